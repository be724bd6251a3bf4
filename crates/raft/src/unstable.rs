//! The end of the log whose write has not been reported yet.
//!
//! ```text
//!   written (Storage)      │ handed out, being written │ not handed out
//!   ───────────────────────┼───────────────────────────┼────────────────
//!                       offset                in_progress_offset      last
//! ```
//!
//! Entries arrive here, are handed out for writing once, and stay until the write is reported, so
//! that the core sees them all along. The same holds for a snapshot that replaces the log.
//!
//! `offset` may lie inside what [`Storage`](crate::Storage) holds: then the next write replaces
//! the tail there, and the entries here are the ones that count.

use std::collections::VecDeque;

use crate::entry::{Entry, EntryId, fitting_count};
use crate::log_index::LogIndex;
use crate::state::Snapshot;
use crate::term::Term;

/// How appended entries met what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// They follow the last entry.
    Extended,
    /// They replace all unstable entries, and perhaps written ones, from this index on.
    Replaced(LogIndex),
    /// They replace the unstable entries from this index on.
    Truncated(LogIndex),
}

/// Why a reported write does not concern any entry held here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleReport {
    /// The entry has been reported before or replaced by a snapshot.
    Missing,
    /// It is the position of the snapshot.
    IsSnapshot,
    /// The entry was replaced while it was being written; the one here has this term.
    Replaced(Term),
}

/// Entries and a snapshot on their way to storage.
#[derive(Debug)]
pub(crate) struct Unstable {
    snapshot: Option<Snapshot>,
    entries: VecDeque<Entry>,
    offset: LogIndex,
    is_snapshot_in_progress: bool,
    in_progress_offset: LogIndex,
}

impl Unstable {
    /// Nothing yet, after a written log that ends before `offset`.
    pub(crate) fn new(offset: LogIndex) -> Self {
        Self {
            snapshot: None,
            entries: VecDeque::new(),
            offset,
            is_snapshot_in_progress: false,
            in_progress_offset: offset,
        }
    }

    /// The index of the first entry held here, or of the next one to come.
    pub(crate) fn offset(&self) -> LogIndex {
        self.offset
    }

    /// The index of the first entry not handed out yet.
    pub(crate) fn in_progress_offset(&self) -> LogIndex {
        self.in_progress_offset
    }

    /// The number of entries held here.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// The snapshot held here, handed out or not.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// The first index of the log, if a snapshot held here decides it.
    pub(crate) fn first_index(&self) -> Option<LogIndex> {
        self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index + 1)
    }

    /// The last index of the log, if something held here decides it.
    pub(crate) fn last_index(&self) -> Option<LogIndex> {
        if self.entries.is_empty() {
            return self.snapshot.as_ref().map(|snapshot| snapshot.metadata.index);
        }
        Some(self.end().prev())
    }

    /// The term at `index`, if it is known here.
    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        if index < self.offset {
            let snapshot = self.snapshot.as_ref().map(Snapshot::last_id);
            return snapshot.filter(|id| id.index == index).map(|id| id.term);
        }
        self.entries.get(self.position(index)?).map(|entry| entry.term)
    }

    /// Entries in `[lo, hi)`, as many of the first as fit into `bytes_max`, but at least one.
    pub(crate) fn slice(&self, lo: LogIndex, hi: LogIndex, bytes_max: u64) -> Vec<Entry> {
        let range = self.range(lo, hi);
        let count = fitting_count(self.entries.range(range.clone()), bytes_max);
        self.entries.range(range.start..range.start + count).cloned().collect()
    }

    /// Whether there are entries to hand out.
    pub(crate) fn has_next_entries(&self) -> bool {
        self.in_progress_offset < self.end()
    }

    /// The entries to hand out.
    pub(crate) fn next_entries(&self) -> Vec<Entry> {
        self.entries.range(self.range(self.in_progress_offset, self.end())).cloned().collect()
    }

    /// The snapshot to hand out.
    pub(crate) fn next_snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref().filter(|_| !self.is_snapshot_in_progress)
    }

    /// Records that everything has been handed out.
    pub(crate) fn accept_in_progress(&mut self) {
        self.in_progress_offset = self.end();
        self.is_snapshot_in_progress = self.snapshot.is_some();
    }

    /// Lets go of the entries up to `id`, which storage is now known to hold and no write still
    /// under way can replace.
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

    /// Lets go of the snapshot at `index`, which is now installed.
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

    /// Appends consecutive entries, replacing everything from the first of them on.
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
