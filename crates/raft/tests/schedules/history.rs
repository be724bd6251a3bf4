//! The observed history of a group, and the properties that must hold.
//!
//! * Election safety: a term has at most one leader.
//! * Log matching: entries with the same term and index are equal, as are all entries before them.
//! * Leader completeness: a leader's log contains every entry committed before its term.
//! * State machine safety: all members apply the same entry at each index.
//! * Reads: the index of a read is at least the commit index at the time of the request.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_raft::{Entry, EntryId, LogIndex, MemberId, MemoryStorage, Node, Storage, Term};

/// Everything observed since the start of the schedule.
#[derive(Debug, Default)]
pub(crate) struct History {
    leaders: BTreeMap<Term, MemberId>,
    /// Every entry ever written, with the term of the preceding entry.
    written: BTreeMap<(Term, LogIndex), (Entry, Term)>,
    /// Every entry ever applied.
    applied: BTreeMap<LogIndex, Entry>,
    /// The highest commit index of any member.
    committed: LogIndex,
    reads: BTreeMap<Bytes, LogIndex>,
}

impl History {
    /// Records a member's state after an event, and checks the properties.
    pub(crate) fn observe(&mut self, node: &Node<MemoryStorage>) {
        let (term, commit) = (node.term(), node.commit_index());
        self.committed = self.committed.max(commit);
        assert!(node.applied_index() <= commit, "every applied entry is committed");
        assert!(commit <= node.last_index(), "every committed entry is in the log");
        if !node.is_leader() {
            return;
        }
        let leader = *self.leaders.entry(term).or_insert(node.id());
        assert_eq!(leader, node.id(), "election safety is violated: term {term} has two leaders");
        // A leader of an earlier term may lack an entry that a later leader has committed.
        let is_latest = self.leaders.last_key_value().is_some_and(|(last, _)| *last == term);
        if is_latest {
            self.check_completeness(node);
        }
    }

    fn check_completeness(&self, node: &Node<MemoryStorage>) {
        for (index, entry) in self.applied.range(node.storage().first_index()..) {
            let own = node.term_at(*index);
            assert_eq!(own, Some(entry.term), "leader completeness is violated at index {index}");
        }
    }

    /// Checks the entries that a node writes after the entry `previous`: they have no gaps, their
    /// terms do not decrease, and each entry and its predecessor are the same as on every other
    /// node.
    pub(crate) fn observe_write(&mut self, mut previous: EntryId, entries: &[Entry]) {
        for entry in entries {
            assert_eq!(entry.index, previous.index + 1, "logs have no gaps");
            assert!(entry.term >= previous.term, "terms never decrease along a log");
            let key = (entry.term, entry.index);
            let known = self.written.entry(key).or_insert((entry.clone(), previous.term));
            let own = (entry.clone(), previous.term);
            assert_eq!(*known, own, "log matching is violated at {key:?}");
            previous = entry.id();
        }
    }

    pub(crate) fn observe_apply(&mut self, entry: &Entry) {
        let known = self.applied.entry(entry.index).or_insert_with(|| entry.clone());
        assert_eq!(known, entry, "state machine safety is violated at index {}", entry.index);
    }

    pub(crate) fn observe_read(&mut self, context: Bytes) {
        self.reads.insert(context, self.committed);
    }

    pub(crate) fn observe_answer(&self, context: &Bytes, index: LogIndex) {
        let committed = self.reads[context];
        assert!(index >= committed, "a read at {index} misses entries committed up to {committed}");
    }

    /// Returns the index at which an entry with this data was applied on any member, or `None`.
    pub(crate) fn index_of(&self, data: &Bytes) -> Option<LogIndex> {
        let mut latest = self.applied.iter().rev();
        latest.find(|(_, entry)| entry.data == *data).map(|(index, _)| *index)
    }
}
