//! Compares the log with a plain vector under random events.

use proptest::prelude::*;

use super::*;
use crate::entry::fitting_count;
use crate::storage::MemoryStorage;

/// A random event. The numbers in it are reduced to values that are possible in the current state.
#[derive(Clone, Debug)]
enum Event {
    /// Entries are appended after an index at or above the commit index.
    Append {
        back: u64,
        count: u64,
        raises_term: bool,
    },
    /// All new entries are returned for writing.
    HandOut,
    /// The oldest pending write finishes and is reported.
    Write,
    Commit {
        by: u64,
    },
    Apply {
        by: u64,
    },
    Compact {
        by: u64,
    },
    Restore {
        beyond: u64,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..4u64, 1..4u64, any::<bool>())
            .prop_map(|(back, count, raises_term)| Event::Append { back, count, raises_term }),
        4 => Just(Event::HandOut),
        4 => Just(Event::Write),
        2 => (1..4u64).prop_map(|by| Event::Commit { by }),
        2 => (1..4u64).prop_map(|by| Event::Apply { by }),
        1 => (1..4u64).prop_map(|by| Event::Compact { by }),
        1 => (1..4u64).prop_map(|beyond| Event::Restore { beyond }),
    ]
}

/// A log and its expected content.
struct Model {
    log: RaftLog<MemoryStorage>,
    /// Pending writes, each with the term in which it was returned.
    writes: Vec<(Vec<Entry>, Option<Snapshot>, Term)>,
    /// The entry before the first entry of the log.
    before: EntryId,
    entries: Vec<Entry>,
    term: Term,
}

impl Model {
    fn last(&self) -> EntryId {
        self.entries.last().map_or(self.before, Entry::id)
    }

    fn apply_event(&mut self, event: &Event) {
        match *event {
            Event::Append { back, count, raises_term } => self.append(back, count, raises_term),
            Event::HandOut => {
                let snapshot = self.log.unstable.next_snapshot().cloned();
                self.writes.push((self.log.unstable.next_entries(), snapshot, self.term));
                self.log.unstable.accept_in_progress();
            }
            Event::Write if !self.writes.is_empty() => self.write(),
            Event::Write => {}
            Event::Commit { by } => {
                let index = (self.log.committed() + by).min(self.log.last_index());
                self.log.commit_to(index);
            }
            Event::Apply { by } => self.apply(by),
            Event::Compact { by } => {
                let first = self.log.storage.first_index();
                let index = (first.prev() + by).min(self.log.applied());
                if self.log.storage.compact(index).is_ok() && index > self.before.index {
                    let count = usize::try_from(index - self.before.index).unwrap();
                    self.before = self.entries[count - 1].id();
                    self.entries.drain(..count);
                }
            }
            Event::Restore { beyond } => self.restore(beyond),
        }
    }

    fn append(&mut self, back: u64, count: u64, raises_term: bool) {
        // Only another leader, in a later term, can replace entries.
        self.term = Term(self.term.get() + u64::from(raises_term || back > 0));
        let after = self.log.last_index().saturating_sub(back).max(self.log.committed());
        let entry = |count| Entry { term: self.term, index: after + count, ..Entry::default() };
        let entries: Vec<_> = (1..=count).map(entry).collect();
        self.entries.truncate(usize::try_from(after - self.before.index).unwrap());
        self.entries.extend(entries.clone());
        self.log.append(entries);
    }

    fn write(&mut self) {
        let (entries, snapshot, term) = self.writes.remove(0);
        let installed = snapshot.as_ref().map(|snapshot| snapshot.metadata.index);
        if let Some(snapshot) = snapshot {
            self.log.storage.apply_snapshot(snapshot).unwrap();
        }
        let last = entries.last().map(Entry::id);
        self.log.storage.append(entries);
        if let Some(index) = installed {
            self.log.unstable.stable_snapshot_to(index);
            self.log.applied_to(index.max(self.log.applied()), 0);
        }
        // As in a real member, a report from another term is ignored.
        if let Some(last) = last
            && term == self.term
        {
            // The model ignores stale reports.
            let _stale = self.log.unstable.stable_to(last);
        }
    }

    fn apply(&mut self, by: u64) {
        let mut entries = self.log.next_committed(false);
        entries.truncate(usize::try_from(by).unwrap());
        if let Some(last) = entries.last() {
            assert_eq!(entries[0].index, self.log.applied() + 1);
            self.log.accept_applying(last.index, encoded_bytes(&entries), false);
            self.log.applied_to(last.index, encoded_bytes(&entries));
        }
    }

    fn restore(&mut self, beyond: u64) {
        self.term = self.term.next();
        let index = self.log.last_index() + beyond;
        let mut snapshot = Snapshot::default();
        snapshot.metadata.index = index;
        snapshot.metadata.term = self.term;
        self.before = snapshot.last_id();
        self.entries.clear();
        self.log.restore(snapshot);
    }

    fn check(&self) {
        let log = &self.log;
        assert_eq!(log.last_id(), self.last());
        assert!(log.applied() <= log.committed());
        // The log may still contain entries that the model has already compacted, but it never lacks an entry that the
        // model still has.
        assert!(log.first_index() <= self.before.index + 1);
        assert_eq!(log.term(self.before.index), Ok(self.before.term));
        for entry in &self.entries {
            assert_eq!(log.term(entry.index), Ok(entry.term));
        }
        assert_eq!(log.term(self.last().index + 1), Err(StorageError::Unavailable));
        if let Some(first) = self.entries.first() {
            for bytes_max in [0, 9, u64::MAX] {
                let count = fitting_count(self.entries.iter(), bytes_max);
                let read = log.entries(first.index, bytes_max).unwrap();
                assert_eq!(
                    read,
                    self.entries[..count],
                    "entries are read from storage and from the unstable part"
                );
            }
        }
        self.check_last_possible_match();
    }

    fn check_last_possible_match(&self) {
        for term in 0..=self.term.get() + 1 {
            let index = self.last().index;
            let naive = self.entries.iter().rev().map(Entry::id).find(|id| id.term <= Term(term));
            let (found, found_term) = self.log.last_possible_match(index, Term(term));
            match naive {
                Some(id) => assert_eq!((found, found_term), (id.index, id.term)),
                None => assert!(found <= self.before.index),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn log_behaves_like_a_vector_of_entries(events in proptest::collection::vec(any_event(), 0..60)) {
        let mut model = Model {
            log: RaftLog::new(MemoryStorage::new(), u64::MAX),
            writes: Vec::new(),
            before: EntryId::default(),
            entries: Vec::new(),
            term: Term(1),
        };
        for event in &events {
            model.apply_event(event);
            model.check();
        }
    }
}

#[test]
fn the_size_of_entries_being_applied_is_limited() {
    let entry = |index| Entry { term: Term(1), index: LogIndex(index), ..Entry::default() };
    let one = entry(1).encoded_bytes();
    let storage = MemoryStorage::recover(
        crate::HardState::default(),
        Snapshot::default(),
        (1..=5).map(entry).collect(),
    );
    let mut log = RaftLog::new(storage, 2 * one + 1);
    log.commit_to(LogIndex(5));
    let first = log.next_committed(false);
    assert_eq!(first.len(), 2);
    log.accept_applying(LogIndex(2), encoded_bytes(&first), false);
    assert!(!log.has_next_committed(false), "the remaining entries are held back");
    log.applied_to(LogIndex(1), one);
    let next = log.next_committed(false);
    assert_eq!(next, [entry(3)]);
    log.accept_applying(LogIndex(3), one, false);
    log.applied_to(LogIndex(3), 2 * one);
    assert_eq!(log.next_committed(false), [entry(4), entry(5)]);
}
