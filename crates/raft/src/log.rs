//! The core's view of the log: the part in storage, the part still being written, and the commit
//! and applied indexes.
//!
//! ```text
//!   first_index ...  applied ...  applying ...  committed ...  last_index
//! ```
//!
//! # Invariants
//!
//! * `applied <= applying <= committed <= last_index`; the first three never decrease.
//! * Terms never decrease from one entry to the next.
//! * A committed entry is never replaced.
//!
//! # Not here
//!
//! Deciding which entries are committed (`replication`), writing (the application), and tracking
//! the entries that were returned for writing (`unstable`).

use std::cmp::Ordering;
use std::fmt;

use crate::entry::{Entry, EntryId, encoded_bytes};
use crate::log_index::LogIndex;
use crate::state::Snapshot;
use crate::storage::{Storage, StorageError};
use crate::term::Term;
use crate::unstable::{Appended, Unstable};

/// In a given sequence of entries, the first entry that the log does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divergence {
    /// The position of that entry in the sequence.
    pub(crate) position: usize,
    /// The identity of that entry.
    pub(crate) id: EntryId,
    /// The term of the conflicting entry at that index of the log, if there is one.
    pub(crate) conflicting_term: Option<Term>,
}

/// The log of one member.
#[derive(Debug)]
pub(crate) struct RaftLog<S> {
    pub(crate) storage: S,
    pub(crate) unstable: Unstable,
    committed: LogIndex,
    /// Index of the last entry that was returned for applying.
    applying: LogIndex,
    applied: LogIndex,
    /// Encoded size of the entries in `(applied, applying]`, limited by `applying_bytes_max`.
    applying_bytes: u64,
    applying_bytes_max: u64,
    is_applying_paused: bool,
}

impl<S: Storage> RaftLog<S> {
    /// Opens the log in `storage`. All compacted entries count as applied.
    pub(crate) fn new(storage: S, applying_bytes_max: u64) -> Self {
        let compacted = storage.first_index().prev();
        let unstable = Unstable::new(storage.last_index() + 1);
        Self {
            storage,
            unstable,
            committed: compacted,
            applying: compacted,
            applied: compacted,
            applying_bytes: 0,
            applying_bytes_max: applying_bytes_max.max(1),
            is_applying_paused: false,
        }
    }

    pub(crate) fn committed(&self) -> LogIndex {
        self.committed
    }

    pub(crate) fn applied(&self) -> LogIndex {
        self.applied
    }

    pub(crate) fn first_index(&self) -> LogIndex {
        self.unstable.first_index().unwrap_or_else(|| self.storage.first_index())
    }

    pub(crate) fn last_index(&self) -> LogIndex {
        self.unstable.last_index().unwrap_or_else(|| self.storage.last_index())
    }

    pub(crate) fn last_id(&self) -> EntryId {
        let index = self.last_index();
        let term = self.term(index).expect("the log contains the term of its last entry");
        EntryId { term, index }
    }

    /// Returns the term at `index`, which must be in `[first_index - 1, last_index]`.
    pub(crate) fn term(&self, index: LogIndex) -> Result<Term, StorageError> {
        if let Some(term) = self.unstable.term(index) {
            return Ok(term);
        }
        if index < self.first_index().prev() {
            return Err(StorageError::Compacted);
        }
        if index > self.last_index() {
            return Err(StorageError::Unavailable);
        }
        self.storage.term(index)
    }

    /// Returns whether the log contains exactly this entry, or the entry is the last compacted one.
    pub(crate) fn contains(&self, id: EntryId) -> bool {
        self.term(id.index) == Ok(id.term)
    }

    /// Returns a committed entry that contradicts the entry `id`, that is, an entry that cannot be
    /// in the same log as `id`. Returns `None` if there is no such entry.
    ///
    /// A log that contains all entries committed here has the same terms as this log up to the commit index, and terms
    /// never decrease along a log. So `id` also contradicts this log if `id` is beyond the commit index and has a lower
    /// term than the entry at the commit index, or if `id` is in the compacted part and has a higher term than the last
    /// compacted entry.
    pub(crate) fn contradiction(&self, id: EntryId) -> Option<EntryId> {
        let position = id.index.clamp(self.first_index().prev(), self.committed);
        let term = self
            .term(position)
            .expect("the log contains all terms from its start to the commit index");
        let contradicts = match id.index.cmp(&position) {
            Ordering::Less => id.term > term,
            Ordering::Equal => id.term != term,
            Ordering::Greater => id.term < term,
        };
        contradicts.then_some(EntryId { term, index: position })
    }

    /// Returns whether a log that ends with `last` is at least as up to date as this log, according to the rule for
    /// elections (Raft thesis, section 3.6.1).
    pub(crate) fn is_up_to_date(&self, last: EntryId) -> bool {
        let own = self.last_id();
        (last.term, last.index) >= (own.term, own.index)
    }

    /// Returns as many entries, starting at `from`, as fit into `bytes_max`. The first entry, if there is one, is
    /// returned even if it does not fit.
    pub(crate) fn entries(
        &self,
        from: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        let end = self.last_index() + 1;
        if from >= end { Ok(Vec::new()) } else { self.slice(from, end, bytes_max) }
    }

    /// Returns as many of the entries in `[lo, hi)` as fit into `bytes_max`. The range must lie within the log. Its
    /// first entry, if there is one, is returned even if it does not fit.
    pub(crate) fn slice(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        assert!(
            lo <= hi && hi <= self.last_index() + 1,
            "the range [{lo},{hi}) must lie within the log, which ends at {}",
            self.last_index()
        );
        if lo < self.first_index() {
            return Err(StorageError::Compacted);
        }
        if lo == hi {
            return Ok(Vec::new());
        }
        let boundary = self.unstable.offset();
        if lo >= boundary {
            return Ok(self.unstable.slice(lo, hi, bytes_max));
        }
        let written_end = hi.min(boundary);
        let mut entries = self.storage.entries(lo, written_end, bytes_max)?;
        let is_cut_short = (entries.len() as u64) < written_end - lo;
        if hi <= boundary || is_cut_short {
            return Ok(entries);
        }
        let bytes = encoded_bytes(&entries);
        if bytes < bytes_max {
            let rest = self.unstable.slice(boundary, hi, bytes_max - bytes);
            // `slice` returns at least one entry, even if that entry does not fit. Here it must fit, because `entries`
            // already contains the one entry that may exceed the limit.
            if rest.len() > 1 || bytes + encoded_bytes(&rest) <= bytes_max {
                entries.extend(rest);
            }
        }
        Ok(entries)
    }

    /// Returns the first of the consecutive `entries` that the log does not contain, or `None` if
    /// the log contains all of them.
    pub(crate) fn divergence(&self, entries: &[Entry]) -> Option<Divergence> {
        let (position, entry) = entries.iter().enumerate().find(|(_, e)| !self.contains(e.id()))?;
        let is_conflict = entry.index <= self.last_index();
        let conflicting_term = is_conflict.then(|| self.term(entry.index).unwrap_or_default());
        Some(Divergence { position, id: entry.id(), conflicting_term })
    }

    /// Appends consecutive entries. They replace the existing entries, starting at the first new entry's index.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> Appended {
        if let Some(first) = entries.first() {
            assert!(
                first.index > self.committed,
                "a committed entry is never replaced: otherwise members would apply different entries"
            );
        }
        self.unstable.append(entries)
    }

    /// Returns the highest index, at or below `index`, at which this log and another log may agree. Also returns this
    /// log's term at that index, or zero if the term is unknown. The other log's term at `index` is at most `term`.
    ///
    /// Terms never decrease along a log, so the logs are certain to differ above the returned
    /// index.
    pub(crate) fn last_possible_match(&self, index: LogIndex, term: Term) -> (LogIndex, Term) {
        match self.term(index) {
            // Outside the log, the term is unknown, so the logs may agree at `index`.
            Err(_) => return (index, Term::ZERO),
            Ok(own) if own <= term => return (index, own),
            Ok(_) => {}
        }
        let before_first = self.first_index().prev();
        match self.term(before_first) {
            Ok(own) if own <= term => {}
            _ => return (before_first.saturating_sub(1), Term::ZERO),
        }
        // Binary search between an index that may match and an index that cannot.
        let (mut possible, mut impossible) = (before_first, index);
        while impossible - possible > 1 {
            let middle = possible + (impossible - possible) / 2;
            match self.term(middle) {
                Ok(own) if own > term => impossible = middle,
                _ => possible = middle,
            }
        }
        (possible, self.term(possible).unwrap_or_default())
    }

    /// Raises the commit index. The caller has checked that the log reaches `index`.
    pub(crate) fn commit_to(&mut self, index: LogIndex) {
        assert!(
            index <= self.last_index(),
            "the commit index is within the log: otherwise missing entries would count as committed"
        );
        self.committed = self.committed.max(index);
    }

    /// Commits the entries up to `id` if the log contains the entry `id`. Returns whether the commit index has changed.
    pub(crate) fn try_commit(&mut self, id: EntryId) -> bool {
        let is_news = id.term != Term::ZERO && id.index > self.committed && self.contains(id);
        if is_news {
            self.commit_to(id.index);
        }
        is_news
    }

    /// Returns the committed entries that may be applied and have not been returned yet.
    ///
    /// With `allow_unstable`, this includes entries whose write has not been reported, because the
    /// application writes them before it applies them.
    pub(crate) fn next_committed(&self, allow_unstable: bool) -> Vec<Entry> {
        if !self.has_next_committed(allow_unstable) {
            return Vec::new();
        }
        let room = self.applying_bytes_max - self.applying_bytes;
        let end = self.appliable_index(allow_unstable) + 1;
        self.slice(self.applying + 1, end, room).expect("unapplied entries are never compacted")
    }

    /// Returns whether [`next_committed`](Self::next_committed) would return any entries.
    pub(crate) fn has_next_committed(&self, allow_unstable: bool) -> bool {
        // A snapshot must be installed before later entries are applied.
        let is_held_back = self.is_applying_paused || self.unstable.snapshot().is_some();
        !is_held_back && self.applying < self.appliable_index(allow_unstable)
    }

    fn appliable_index(&self, allow_unstable: bool) -> LogIndex {
        if allow_unstable {
            self.committed
        } else {
            self.committed.min(self.unstable.offset().prev())
        }
    }

    /// Records that entries up to `index`, `bytes` in size, were returned for applying.
    pub(crate) fn accept_applying(&mut self, index: LogIndex, bytes: u64, allow_unstable: bool) {
        assert!(
            index <= self.committed,
            "only committed entries are applied: another leader could still replace later entries"
        );
        assert!(
            index >= self.applying,
            "entries are returned for applying only once: otherwise the state machine would apply an entry twice"
        );
        self.applying = index;
        self.applying_bytes += bytes;
        // Applying pauses if the size limit is reached, or if not all entries could be returned because of the limit.
        self.is_applying_paused = self.applying_bytes >= self.applying_bytes_max
            || index < self.appliable_index(allow_unstable);
    }

    /// Records that entries up to `index` are applied. `bytes` is the size of the newly applied
    /// entries.
    pub(crate) fn applied_to(&mut self, index: LogIndex, bytes: u64) {
        assert!(
            index <= self.committed,
            "only committed entries are applied: another leader could still replace later entries"
        );
        assert!(
            index >= self.applied,
            "the applied index never decreases: otherwise entries would be applied twice"
        );
        self.applied = index;
        self.applying = self.applying.max(index);
        assert!(
            self.applying <= self.committed,
            "applied <= applying <= committed: otherwise an entry that another leader can replace would be applied"
        );
        self.applying_bytes = self.applying_bytes.saturating_sub(bytes);
        self.is_applying_paused = self.applying_bytes >= self.applying_bytes_max;
    }

    /// Returns whether any committed but unapplied entry changes the membership.
    pub(crate) fn has_unapplied_conf_change(&self) -> bool {
        let mut next = self.applied + 1;
        while next <= self.committed {
            let page = self.slice(next, self.committed + 1, self.applying_bytes_max);
            let page = page.expect("unapplied entries are never compacted");
            assert!(!page.is_empty(), "a slice of at least one entry is never empty");
            if page.iter().any(|entry| entry.kind.is_conf_change()) {
                return true;
            }
            next += page.len() as u64;
        }
        false
    }

    /// Returns the snapshot to send to a follower that needs compacted entries.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, StorageError> {
        match self.unstable.snapshot() {
            Some(snapshot) => Ok(snapshot.clone()),
            None => self.storage.snapshot(),
        }
    }

    /// Replaces the whole log with a snapshot.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        assert!(
            snapshot.metadata.index > self.committed,
            "a snapshot is newer than the commit index: otherwise it would revert committed entries"
        );
        self.committed = snapshot.metadata.index;
        self.unstable.restore(snapshot);
    }
}

impl<S> fmt::Display for RaftLog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed={}, applied={}, applying={}, unstable.offset={}, \
             unstable.offsetInProgress={}, len(unstable.Entries)={}",
            self.committed,
            self.applied,
            self.applying,
            self.unstable.offset(),
            self.unstable.in_progress_offset(),
            self.unstable.count(),
        )
    }
}

#[cfg(test)]
mod tests;
