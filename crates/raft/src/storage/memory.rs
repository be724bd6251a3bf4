//! The written part of the log, held in memory.
//!
//! ```text
//!   last compacted entry              entries
//!   (offset.term, offset.index)       offset.index + 1 ..= last_index
//! ```
//!
//! A member loads this storage from its write-ahead log at start, appends the entries of each
//! [`Ready`](crate::Ready), and compacts it when snapshots make old entries unnecessary or its
//! [size](MemoryStorage::bytes) exceeds the member's limit. The cost of appending and compacting
//! depends only on the entries appended or dropped; no operation reads the whole log.
//!
//! # Not here
//!
//! Durability. Entries may be appended here as soon as `Ready` returns them, because the core reads
//! them from its own copy until their write is reported.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Storage, StorageError};
use crate::entry::{Entry, EntryId, fitting_count};
use crate::log_index::LogIndex;
use crate::state::{ConfState, HardState, Snapshot};
use crate::term::Term;

/// An in-memory [`Storage`].
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    hard_state: HardState,
    /// The latest snapshot taken or installed; the log may begin before it.
    snapshot: Snapshot,
    /// The last compacted entry, which precedes the first entry.
    offset: EntryId,
    entries: VecDeque<Entry>,
    /// For each entry, the encoded size of all entries up to it, including the compacted ones.
    ends: VecDeque<u64>,
    /// The encoded size of the compacted entries, in bytes.
    compacted_bytes: u64,
}

impl MemoryStorage {
    /// Creates the empty log of a member without a configuration.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the log of a restarting member: the entries after `snapshot`.
    ///
    /// The log begins at the snapshot's position. [`Storage::initial_state`] returns the snapshot's
    /// configuration, which must be the configuration at
    /// [`Config::applied`](crate::Config::applied); that index may be after the snapshot.
    ///
    /// `entries` must follow the snapshot without a gap. Entries that the snapshot covers are
    /// dropped.
    #[must_use]
    pub fn recover(hard_state: HardState, snapshot: Snapshot, entries: Vec<Entry>) -> Self {
        let offset = snapshot.last_id();
        let mut storage = Self { hard_state, snapshot, offset, ..Self::default() };
        storage.append(entries);
        storage
    }

    /// Records the hard state. Only a later [`Storage::initial_state`] reads it.
    pub fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Returns the last recorded hard state.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// Returns the encoded size of all entries, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end() - self.compacted_bytes
    }

    /// Returns the encoded size, in bytes, of the entries in `(from, to]` that are in the log.
    #[must_use]
    pub fn bytes_between(&self, from: LogIndex, to: LogIndex) -> u64 {
        self.end_at(to).saturating_sub(self.end_at(from))
    }

    fn end(&self) -> u64 {
        self.ends.back().copied().unwrap_or(self.compacted_bytes)
    }

    /// Returns the encoded size of all entries up to `index`, including the compacted ones.
    fn end_at(&self, index: LogIndex) -> u64 {
        if index <= self.offset.index {
            return self.compacted_bytes;
        }
        let end = self.position(index).ok().and_then(|position| self.ends.get(position));
        end.copied().unwrap_or_else(|| self.end())
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Appends entries. They replace the existing entries, starting at the first new entry's index. Entries at
    /// compacted indexes are ignored.
    pub fn append(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let first_index = self.first_index();
        let mut entries = entries.into_iter().skip_while(|entry| entry.index < first_index);
        let Some(first) = entries.next() else { return };
        let next_index = self.last_index() + 1;
        assert!(first.index <= next_index, "the log has no gap before {}", first.index);
        if first.index < next_index {
            self.truncate_from(first.index);
        }
        self.push(first);
        for entry in entries {
            self.push(entry);
        }
    }

    /// Drops all entries up to and including `index`, but keeps the term of the entry at `index`.
    ///
    /// The application must ensure that the dropped entries are applied and that no other member needs them.
    pub fn compact(&mut self, index: LogIndex) -> Result<(), StorageError> {
        if index <= self.offset.index {
            return Err(StorageError::Compacted);
        }
        let term = self.term(index)?;
        for _ in 0..index - self.offset.index {
            self.entries.pop_front();
            self.compacted_bytes = self.ends.pop_front().unwrap_or(self.compacted_bytes);
        }
        self.offset = EntryId { term, index };
        Ok(())
    }

    /// Returns the lowest index up to which the log must be [compacted](Self::compact) for the
    /// remaining entries to fit into `bytes_max`, or `None` if all entries fit. Reads only the
    /// entries that would be dropped.
    #[must_use]
    pub fn compact_index_for(&self, bytes_max: u64) -> Option<LogIndex> {
        let mut bytes = self.bytes();
        let mut index = None;
        for entry in &self.entries {
            if bytes <= bytes_max {
                break;
            }
            bytes -= entry.encoded_bytes();
            index = Some(entry.index);
        }
        index
    }

    /// Installs a snapshot. The log becomes empty and begins after the snapshot.
    pub fn apply_snapshot(&mut self, snapshot: Snapshot) -> Result<(), StorageError> {
        // The initial snapshot of a new member has index zero and a configuration. Any snapshot may replace it.
        if !self.snapshot.is_empty() && snapshot.metadata.index <= self.snapshot.metadata.index {
            return Err(StorageError::SnapshotOutOfDate);
        }
        self.offset = snapshot.last_id();
        self.snapshot = snapshot;
        self.entries.clear();
        self.ends.clear();
        self.compacted_bytes = 0;
        Ok(())
    }

    /// Records that a snapshot at `index`, which must be in the log, was taken. The log does not
    /// change; see [`compact`](Self::compact).
    pub fn create_snapshot(
        &mut self,
        index: LogIndex,
        conf_state: ConfState,
        data: Bytes,
    ) -> Result<&Snapshot, StorageError> {
        if index <= self.snapshot.metadata.index {
            return Err(StorageError::SnapshotOutOfDate);
        }
        self.snapshot.metadata.term = self.term(index)?;
        self.snapshot.metadata.index = index;
        self.snapshot.metadata.conf_state = conf_state;
        self.snapshot.data = data;
        Ok(&self.snapshot)
    }

    fn push(&mut self, entry: Entry) {
        assert_eq!(entry.index, self.last_index() + 1, "entries are consecutive");
        self.ends.push_back(self.end() + entry.encoded_bytes());
        self.entries.push_back(entry);
        assert_eq!(
            self.ends.len(),
            self.entries.len(),
            "every entry has a recorded size: otherwise the byte limits would drop the wrong entries"
        );
    }

    fn truncate_from(&mut self, index: LogIndex) {
        assert!(
            index > self.offset.index,
            "entries before the beginning of the log are never replaced: they are applied, and a snapshot covers them"
        );
        while self.last_index() >= index {
            if self.entries.pop_back().is_none() {
                return;
            }
            self.ends.pop_back();
        }
    }

    /// Returns the position in `entries` of the entry at `index`, which must be after the offset.
    fn position(&self, index: LogIndex) -> Result<usize, StorageError> {
        usize::try_from(index - self.offset.index - 1).map_err(|_| StorageError::Unavailable)
    }
}

impl Storage for MemoryStorage {
    fn initial_state(&self) -> (HardState, ConfState) {
        (self.hard_state, self.snapshot.metadata.conf_state.clone())
    }

    fn entries(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        if lo <= self.offset.index {
            return Err(StorageError::Compacted);
        }
        if hi > self.last_index() + 1 || lo > hi {
            return Err(StorageError::Unavailable);
        }
        let range = self.position(lo)?..self.position(hi)?;
        let count = fitting_count(self.entries.range(range.clone()), bytes_max);
        Ok(self.entries.range(range.start..range.start + count).cloned().collect())
    }

    fn term(&self, index: LogIndex) -> Result<Term, StorageError> {
        if index < self.offset.index {
            return Err(StorageError::Compacted);
        }
        if index == self.offset.index {
            return Ok(self.offset.term);
        }
        let entry = self.entries.get(self.position(index)?);
        entry.map(|entry| entry.term).ok_or(StorageError::Unavailable)
    }

    fn first_index(&self) -> LogIndex {
        self.offset.index + 1
    }

    fn last_index(&self) -> LogIndex {
        self.offset.index + self.entries.len() as u64
    }

    fn snapshot(&self) -> Result<Snapshot, StorageError> {
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(term: u64, index: u64) -> Entry {
        Entry {
            term: Term(term),
            index: LogIndex(index),
            data: Bytes::from_static(b"x"),
            ..Entry::default()
        }
    }

    fn snapshot_at(term: u64, index: u64) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.metadata.term = Term(term);
        snapshot.metadata.index = LogIndex(index);
        snapshot
    }

    fn log() -> MemoryStorage {
        let entries = vec![entry(3, 4), entry(4, 5), entry(5, 6)];
        MemoryStorage::recover(HardState::default(), snapshot_at(3, 3), entries)
    }

    #[test]
    fn reads_outside_the_log_return_compacted_or_unavailable() {
        let log = log();
        assert_eq!((log.first_index(), log.last_index()), (LogIndex(4), LogIndex(6)));
        assert_eq!(log.term(LogIndex(2)), Err(StorageError::Compacted));
        assert_eq!(log.term(LogIndex(3)), Ok(Term(3)));
        assert_eq!(log.term(LogIndex(6)), Ok(Term(5)));
        assert_eq!(log.term(LogIndex(7)), Err(StorageError::Unavailable));
        assert_eq!(log.term(LogIndex(u64::MAX)), Err(StorageError::Unavailable));
        assert_eq!(log.entries(LogIndex(3), LogIndex(5), u64::MAX), Err(StorageError::Compacted));
        assert_eq!(log.entries(LogIndex(4), LogIndex(8), u64::MAX), Err(StorageError::Unavailable));
        assert_eq!(log.entries(LogIndex(4), LogIndex(7), 0), Ok(vec![entry(3, 4)]));
        assert_eq!(
            log.entries(LogIndex(5), LogIndex(7), u64::MAX),
            Ok(vec![entry(4, 5), entry(5, 6)])
        );
    }

    #[test]
    fn appending_replaces_the_tail_from_the_first_new_index() {
        let mut log = log();
        log.append(vec![entry(6, 5)]);
        assert_eq!(
            log.entries(LogIndex(4), LogIndex(6), u64::MAX),
            Ok(vec![entry(3, 4), entry(6, 5)])
        );
        assert_eq!(log.bytes(), 2 * entry(1, 1).encoded_bytes());
        // Appending compacted entries has no effect.
        log.append(vec![entry(1, 2), entry(1, 3)]);
        assert_eq!(log.last_index(), LogIndex(5));
        log.append(vec![entry(3, 3), entry(3, 4)]);
        assert_eq!(log.last_index(), LogIndex(4));
    }

    #[test]
    fn compaction_keeps_the_term_before_the_first_entry() {
        let mut log = log();
        assert_eq!(log.compact(LogIndex(3)), Err(StorageError::Compacted));
        assert_eq!(log.compact(LogIndex(7)), Err(StorageError::Unavailable));
        assert_eq!(log.compact(LogIndex(5)), Ok(()));
        assert_eq!(
            (log.first_index(), log.term(LogIndex(5)), log.count()),
            (LogIndex(6), Ok(Term(4)), 1)
        );
        assert_eq!(log.bytes(), entry(5, 6).encoded_bytes());
    }

    #[test]
    fn bytes_between_equals_the_sum_of_the_entry_sizes_after_every_log_change() {
        let data = |len: u64| Bytes::from(vec![0; usize::try_from(len).unwrap()]);
        let entry = |index| Entry { data: data(index), ..entry(1, index) };
        let mut log = MemoryStorage::new();
        let check = |log: &MemoryStorage| {
            let entries = log.entries(log.first_index(), log.last_index() + 1, u64::MAX);
            let entries = entries.unwrap_or_default();
            for from in 0..30 {
                for to in 0..30 {
                    let part =
                        entries.iter().filter(|it| it.index.get() > from && it.index.get() <= to);
                    let expected: u64 = part.map(Entry::encoded_bytes).sum();
                    let between = log.bytes_between(LogIndex(from), LogIndex(to));
                    assert_eq!(between, expected, "after {from}, up to {to}");
                }
            }
            assert_eq!(log.bytes(), log.bytes_between(LogIndex(0), LogIndex(u64::MAX)));
        };
        check(&log);
        log.append((1..=20).map(entry));
        check(&log);
        log.compact(LogIndex(5)).unwrap();
        check(&log);
        log.append((15..=17).map(entry));
        check(&log);
        log.compact(LogIndex(17)).unwrap();
        check(&log);
        log.append((18..=25).map(entry));
        check(&log);
        log.apply_snapshot(snapshot_at(1, 28)).unwrap();
        check(&log);
        log.append([entry(29)]);
        check(&log);
    }

    #[test]
    fn compact_index_for_keeps_the_log_within_the_size_limit() {
        let log = log();
        let one = entry(1, 1).encoded_bytes();
        assert_eq!(log.compact_index_for(3 * one), None);
        assert_eq!(log.compact_index_for(3 * one - 1), Some(LogIndex(4)));
        assert_eq!(log.compact_index_for(one), Some(LogIndex(5)));
        assert_eq!(log.compact_index_for(0), Some(LogIndex(6)));
    }

    #[test]
    fn installed_snapshot_replaces_the_log() {
        let mut log = log();
        assert_eq!(log.apply_snapshot(snapshot_at(3, 3)), Err(StorageError::SnapshotOutOfDate));
        assert_eq!(log.apply_snapshot(snapshot_at(7, 9)), Ok(()));
        assert_eq!(
            (log.first_index(), log.last_index(), log.bytes()),
            (LogIndex(10), LogIndex(9), 0)
        );
        assert_eq!(log.term(LogIndex(9)), Ok(Term(7)));
    }

    #[test]
    fn creating_a_snapshot_does_not_change_the_log() {
        let mut log = log();
        let created = log.create_snapshot(LogIndex(5), ConfState::default(), Bytes::new()).cloned();
        assert_eq!(created, Ok(snapshot_at(4, 5)));
        assert_eq!(log.first_index(), LogIndex(4));
        let again = log.create_snapshot(LogIndex(5), ConfState::default(), Bytes::new()).cloned();
        assert_eq!(again, Err(StorageError::SnapshotOutOfDate));
    }
}
