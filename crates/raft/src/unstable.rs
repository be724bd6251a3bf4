//! The end of the log whose write has not been reported yet.
//!
//! ```text
//!   written (Storage)      │ handed out, being written │ not handed out
//!   ───────────────────────┼───────────────────────────┼────────────────
//!                       offset                in_progress_offset      last
//! ```
//!
//! Entries are added here, returned for writing once, and kept until their write is reported, so
//! that the core can read them all the time. A snapshot that replaces the log is handled in the
//! same way.
//!
//! `offset` may be inside the log of [`Storage`](crate::Storage). Then the next write replaces the
//! end of that log, and the entries here are the valid ones.

use std::collections::VecDeque;

use crate::entry::{Entry, EntryId, fitting_count};
use crate::log_index::LogIndex;
use crate::state::Snapshot;
use crate::term::Term;

/// The effect of appended entries on the existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// They follow the last entry.
    Extended,
    /// They replace all unstable entries, and perhaps written ones, from this index on.
    Replaced(LogIndex),
    /// They replace the unstable entries from this index on.
    Truncated(LogIndex),
}

/// Why a reported write concerns no entry here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleReport {
    /// The entry was reported before or replaced by a snapshot.
    Missing,
    /// The index is that of the snapshot.
    IsSnapshot,
    /// The entry was replaced while it was being written; the entry here has this term.
    Replaced(Term),
}

/// Entries and a snapshot that are not written yet.
#[derive(Debug)]
pub(crate) struct Unstable {
    snapshot: Option<Snapshot>,
    entries: VecDeque<Entry>,
    offset: LogIndex,
    is_snapshot_in_progress: bool,
    in_progress_offset: LogIndex,
}

impl Unstable {
    /// No entries, after a written log that ends before `offset`.
    pub(crate) fn new(offset: LogIndex) -> Self {
        Self {
            snapshot: None,
            entries: VecDeque::new(),
            offset,
            is_snapshot_in_progress: false,
            in_progress_offset: offset,
        }
    }

    /// The index of the first entry here, or of the next entry if there is none.
    pub(crate) fn offset(&self) -> LogIndex {
        self.offset
    }

    /// The index of the first entry that was not returned for writing.
    pub(crate) fn in_progress_offset(&self) -> LogIndex {
        self.in_progress_offset
    }

    /// The number of entries here.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// The snapshot here, returned for writing or not.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// The first index of the log, if a snapshot here determines it.
    pub(crate) fn first_index(&self) -> Option<LogIndex> {
        self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index + 1)
    }

    /// The last index of the log, if entries or a snapshot here determine it.
    pub(crate) fn last_index(&self) -> Option<LogIndex> {
        if self.entries.is_empty() {
            return self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index);
        }
        Some(self.end().prev())
    }

    /// The term at `index`, if known here.
    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        if index < self.offset {
            let snapshot = self.snapshot.as_ref().map(Snapshot::last_id);
            return snapshot.filter(|id| id.index == index).map(|id| id.term);
        }
        self.entries.get(self.position(index)?).map(|entry| entry.term)
    }

    /// Entries in `[lo, hi)`, from the start, as many as fit into `bytes_max`, but at least one.
    pub(crate) fn slice(&self, lo: LogIndex, hi: LogIndex, bytes_max: u64) -> Vec<Entry> {
        let range = self.range(lo, hi);
        let count = fitting_count(self.entries.range(range.clone()), bytes_max);
        self.entries.range(range.start..range.start + count).cloned().collect()
    }

    /// Whether there are entries to return for writing.
    pub(crate) fn has_next_entries(&self) -> bool {
        self.in_progress_offset < self.end()
    }

    /// The entries to return for writing.
    pub(crate) fn next_entries(&self) -> Vec<Entry> {
        self.entries.range(self.range(self.in_progress_offset, self.end())).cloned().collect()
    }

    /// The snapshot to return for writing.
    pub(crate) fn next_snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().filter(|_| !self.is_snapshot_in_progress)
    }

    /// Records that all entries and the snapshot were returned for writing.
    pub(crate) fn accept_in_progress(&mut self) {
        self.in_progress_offset = self.end();
        self.is_snapshot_in_progress = self.snapshot.is_some();
    }

    /// Removes the entries up to `id`: storage has them, and no pending write can replace them.
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

    /// Removes the snapshot at `index`, which is installed.
    pub(crate) fn stable_snapshot_to(&mut self, index: LogIndex) {
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.metadata.index == index) {
            self.snapshot = None;
            self.is_snapshot_in_progress = false;
        }
    }

    /// Replaces the whole log by a snapshot.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        let offset = snapshot.metadata.index + 1;
        *self = Self { snapshot: Some(snapshot), ..Self::new(offset) };
    }

    /// Appends consecutive entries. They replace the entries from the first one's index on.
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

    /// One past the last entry.
    fn end(&self) -> LogIndex {
        self.offset + self.entries.len() as u64
    }

    fn position(&self, index: LogIndex) -> Option<usize> {
        usize::try_from(index.checked_distance_from(self.offset)?).ok()
    }

    fn range(&self, lo: LogIndex, hi: LogIndex) -> std::ops::Range<usize> {
        let inside = self.offset <= lo && lo <= hi && hi <= self.end();
        assert!(inside, "[{lo},{hi}) lies within the unstable log");
        let position = |index| self.position(index).expect("a position of a held entry fits");
        position(lo)..position(hi)
    }
}
