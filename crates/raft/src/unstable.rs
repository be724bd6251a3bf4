//! The tail of the log that has not been reported as written yet.
//!
//! ```text
//!   written (Storage)      │ handed out, being written │ not handed out
//!   ───────────────────────┼───────────────────────────┼────────────────
//!                       offset                in_progress_offset      last
//! ```
//!
//! Entries are added here, returned for writing once, and kept until their write is reported, so
//! that the core can read them at any time. A snapshot that replaces the log is handled the same
//! way.
//!
//! `offset` may be inside the log of [`Storage`](crate::Storage). In that case, the next write
//! replaces the end of that log, and the entries here take precedence.

use std::collections::VecDeque;

use crate::entry::{Entry, EntryId, fitting_count};
use crate::log_index::LogIndex;
use crate::state::Snapshot;
use crate::term::Term;

/// The effect of appended entries on the existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The new entries follow the last entry.
    Extended,
    /// The new entries start at this index and replace all unstable entries and possibly some written entries.
    Replaced(LogIndex),
    /// The new entries replace the unstable entries, starting at this index.
    Truncated(LogIndex),
}

/// The reason why a reported write does not match any unstable entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleReport {
    /// The entry has already been reported, or a snapshot has replaced it.
    Missing,
    /// The reported index is the index of the pending snapshot.
    IsSnapshot,
    /// The entry was replaced while it was being written. Its replacement has this term.
    Replaced(Term),
}

/// Entries and a snapshot whose write has not been reported yet.
#[derive(Debug)]
pub(crate) struct Unstable {
    snapshot: Option<Snapshot>,
    entries: VecDeque<Entry>,
    offset: LogIndex,
    is_snapshot_in_progress: bool,
    in_progress_offset: LogIndex,
}

impl Unstable {
    /// Creates an empty unstable part that follows a written log that ends at index `offset - 1`.
    pub(crate) fn new(offset: LogIndex) -> Self {
        Self {
            snapshot: None,
            entries: VecDeque::new(),
            offset,
            is_snapshot_in_progress: false,
            in_progress_offset: offset,
        }
    }

    /// Returns the index of the first unstable entry or, if there is none, of the next entry.
    pub(crate) fn offset(&self) -> LogIndex {
        self.offset
    }

    /// Returns the index of the first entry not yet returned for writing.
    pub(crate) fn in_progress_offset(&self) -> LogIndex {
        self.in_progress_offset
    }

    /// Returns the number of unstable entries.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the pending snapshot, whether or not it has been returned for writing.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Returns the first index of the log if a pending snapshot determines it.
    pub(crate) fn first_index(&self) -> Option<LogIndex> {
        self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index + 1)
    }

    /// Returns the last index of the log if unstable entries or a pending snapshot determine it.
    pub(crate) fn last_index(&self) -> Option<LogIndex> {
        if self.entries.is_empty() {
            return self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index);
        }
        Some(self.end().prev())
    }

    /// Returns the term at `index` if it can be derived from the unstable entries or the snapshot.
    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        if index < self.offset {
            let snapshot = self.snapshot.as_ref().map(Snapshot::last_id);
            return snapshot.filter(|id| id.index == index).map(|id| id.term);
        }
        self.entries.get(self.position(index)?).map(|entry| entry.term)
    }

    /// Returns as many of the entries in `[lo, hi)` as fit into `bytes_max`, starting with the
    /// first and returning at least one.
    pub(crate) fn slice(&self, lo: LogIndex, hi: LogIndex, bytes_max: u64) -> Vec<Entry> {
        let range = self.range(lo, hi);
        let count = fitting_count(self.entries.range(range.clone()), bytes_max);
        self.entries.range(range.start..range.start + count).cloned().collect()
    }

    /// Returns whether there are entries to return for writing.
    pub(crate) fn has_next_entries(&self) -> bool {
        self.in_progress_offset < self.end()
    }

    /// Returns the entries to write next.
    pub(crate) fn next_entries(&self) -> Vec<Entry> {
        self.entries.range(self.range(self.in_progress_offset, self.end())).cloned().collect()
    }

    /// Returns the snapshot to write next.
    pub(crate) fn next_snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().filter(|_| !self.is_snapshot_in_progress)
    }

    /// Records that all entries and the snapshot were returned for writing.
    pub(crate) fn accept_in_progress(&mut self) {
        self.in_progress_offset = self.end();
        self.is_snapshot_in_progress = self.snapshot.is_some();
    }

    /// Removes the entries up to `id`. Storage now contains these entries, and no pending write can replace them.
    pub(crate) fn stable_to(&mut self, id: EntryId) -> Result<(), StaleReport> {
        let term = self.term(id.index).ok_or(StaleReport::Missing)?;
        if id.index < self.offset {
            return Err(StaleReport::IsSnapshot);
        }
        if term != id.term {
            return Err(StaleReport::Replaced(term));
        }
        let written = self.range(self.offset, id.index + 1);
        self.entries.drain(written);
        self.offset = id.index + 1;
        self.in_progress_offset = self.in_progress_offset.max(self.offset);
        Ok(())
    }

    /// Removes the pending snapshot at `index`, which has been installed.
    pub(crate) fn stable_snapshot_to(&mut self, index: LogIndex) {
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.metadata.index == index) {
            self.snapshot = None;
            self.is_snapshot_in_progress = false;
        }
    }

    /// Replaces the whole log with a snapshot.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        let offset = snapshot.metadata.index + 1;
        *self = Self { snapshot: Some(snapshot), ..Self::new(offset) };
    }

    /// Appends consecutive entries. They replace the existing entries, starting at the first new entry's index.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> Appended {
        let Some(from) = entries.first().map(|entry| entry.index) else {
            return Appended::Extended;
        };
        let appended = if from == self.end() {
            Appended::Extended
        } else if from <= self.offset {
            self.entries.clear();
            self.offset = from;
            self.in_progress_offset = from;
            Appended::Replaced(from)
        } else {
            let kept = self.range(self.offset, from);
            self.entries.truncate(kept.end);
            self.in_progress_offset = self.in_progress_offset.min(from);
            Appended::Truncated(from)
        };
        self.entries.extend(entries);
        appended
    }

    /// Returns the index after the last entry.
    fn end(&self) -> LogIndex {
        self.offset + self.entries.len() as u64
    }

    fn position(&self, index: LogIndex) -> Option<usize> {
        usize::try_from(index.checked_distance_from(self.offset)?).ok()
    }

    fn range(&self, lo: LogIndex, hi: LogIndex) -> std::ops::Range<usize> {
        let inside = self.offset <= lo && lo <= hi && hi <= self.end();
        assert!(inside, "the range [{lo},{hi}) must lie within the unstable log");
        let position =
            |index| self.position(index).expect("the position of an unstable entry fits in usize");
        position(lo)..position(hi)
    }
}
