//! Superseded changes, in the order in which they were superseded.
//!
//! An entry of the key index links to the previous change of its key, that change links to the one before it, and so
//! on. A read of a key at an older revision follows this chain. A compaction removes records from the front. Those
//! records are exactly the garbage, because they were superseded at or below the compacted revision. A chain ends at
//! the first link to a removed record.
//!
//! # Invariants
//!
//! * Records never change once pushed. Readers see the records that were pushed before their view
//!   was published.
//! * `superseded_by` never decreases from one record to the next.
//!
//! # Not here
//!
//! Keys (`tree`), and tombstones that no later change superseded (`compaction`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::schema::Revision;

/// The number of records in one allocation.
const SEGMENT_LEN: u64 = 8192;

/// A superseded change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superseded {
    /// Main revision of the change.
    pub(super) main: i64,
    /// Sub revision of the change.
    pub(super) sub: u32,
    /// Whether the change deleted the key.
    pub(super) tombstone: bool,
    /// Main revision of the change that superseded this change.
    pub(super) superseded_by: i64,
    /// The previous change of the key, as its position plus one; 0 if there is none.
    pub(super) previous: u64,
}

impl Superseded {
    pub(super) fn revision(&self) -> Revision {
        Revision::new(self.main, self.sub.into())
    }
}

/// A reader's view of the history. Cloning it does not copy records.
#[derive(Clone, Debug)]
pub(super) struct HistoryView {
    segments: Arc<Vec<Arc<Segment>>>,
    /// Position of the first segment's first record.
    first: u64,
    /// Position of the oldest record that has not been compacted. Earlier records of the first segment are ignored.
    base: u64,
}

/// The applier's history, to which changes are added.
#[derive(Debug)]
pub(super) struct History {
    view: HistoryView,
    /// Position after the newest record.
    end: u64,
}

/// A fixed number of records. The applier writes each record once. Publishing a view orders these
/// writes before the reads through that view.
struct Segment {
    records: Box<[[AtomicU64; 4]]>,
}

impl HistoryView {
    /// Returns the record at `link`, which is a position plus one, or `None` if it was compacted.
    pub(super) fn get(&self, link: u64) -> Option<Superseded> {
        let position = link.checked_sub(1)?;
        if position < self.base {
            return None;
        }
        let offset = position - self.first;
        let segment = self.segments.get(usize::try_from(offset / SEGMENT_LEN).ok()?)?;
        Some(segment.load(slot(offset)))
    }

    /// Returns the newest change at or below `main` in the chain that begins at `link`.
    pub(super) fn at_or_below(&self, mut link: u64, main: i64) -> Option<Superseded> {
        loop {
            let record = self.get(link)?;
            if record.main <= main {
                return Some(record);
            }
            link = record.previous;
        }
    }
}

impl History {
    pub(super) fn new() -> Self {
        let view = HistoryView { segments: Arc::default(), first: 0, base: 0 };
        Self { view, end: 0 }
    }

    pub(super) const fn view(&self) -> &HistoryView {
        &self.view
    }

    /// Returns the number of records.
    pub(super) const fn len(&self) -> u64 {
        self.end - self.view.base
    }

    /// Adds a record and returns the link to it.
    pub(super) fn push(&mut self, record: &Superseded) -> u64 {
        let offset = self.end - self.view.first;
        if offset.is_multiple_of(SEGMENT_LEN) {
            Arc::make_mut(&mut self.view.segments).push(Arc::new(Segment::new()));
        }
        let segment = self.view.segments.last().expect("the record's segment was just added");
        segment.store(slot(offset), record);
        self.end += 1;
        assert!(
            record.previous < self.end,
            "a record links only to older records: otherwise a read of the key's history would never end"
        );
        self.end
    }

    /// Returns the oldest record.
    pub(super) fn front(&self) -> Option<Superseded> {
        if self.len() == 0 { None } else { self.view.get(self.view.base + 1) }
    }

    /// Removes the oldest record.
    pub(super) fn pop_front(&mut self) {
        assert!(
            self.len() > 0,
            "only existing records are removed: otherwise chains would end before the change that a reader needs"
        );
        self.view.base += 1;
        if self.view.base - self.view.first == SEGMENT_LEN {
            Arc::make_mut(&mut self.view.segments).remove(0);
            self.view.first += SEGMENT_LEN;
        }
    }
}

const TOMBSTONE: u64 = 1 << 32;

impl Segment {
    fn new() -> Self {
        Self { records: (0..SEGMENT_LEN).map(|_| Default::default()).collect() }
    }

    fn store(&self, slot: usize, record: &Superseded) {
        let [main, superseded_by, previous, rest] = &self.records[slot];
        let mark = if record.tombstone { TOMBSTONE } else { 0 };
        main.store(record.main.cast_unsigned(), Ordering::Relaxed);
        superseded_by.store(record.superseded_by.cast_unsigned(), Ordering::Relaxed);
        previous.store(record.previous, Ordering::Relaxed);
        rest.store(u64::from(record.sub) | mark, Ordering::Relaxed);
    }

    fn load(&self, slot: usize) -> Superseded {
        let [main, superseded_by, previous, rest] =
            self.records[slot].each_ref().map(|word| word.load(Ordering::Relaxed));
        Superseded {
            main: main.cast_signed(),
            sub: (rest & 0xffff_ffff) as u32,
            tombstone: rest & TOMBSTONE != 0,
            superseded_by: superseded_by.cast_signed(),
            previous,
        }
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").finish_non_exhaustive()
    }
}

fn slot(offset: u64) -> usize {
    (offset % SEGMENT_LEN) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: i64, previous: u64) -> Superseded {
        Superseded { main: n, sub: 7, tombstone: n % 3 == 0, superseded_by: n + 1, previous }
    }

    #[test]
    fn a_key_history_ends_at_compacted_records() {
        let mut history = History::new();
        let mut link = 0;
        let count = 3 * SEGMENT_LEN.cast_signed() + 5;
        for n in 0..count {
            link = history.push(&record(n, link));
        }
        assert_eq!(history.view().at_or_below(link, 10).map(|found| found.main), Some(10));
        let held = history.view().clone();
        for n in 0..SEGMENT_LEN.cast_signed() + 3 {
            assert_eq!(history.front().map(|front| front.main), Some(n));
            history.pop_front();
        }
        assert_eq!(history.view().at_or_below(link, 10), None);
        assert_eq!(
            held.at_or_below(link, 10).map(|found| found.revision()),
            Some(Revision::new(10, 7))
        );
        let newest = count - 1;
        assert_eq!(history.view().get(link), Some(record(newest, link - 1)));
        assert_eq!(history.len(), 2 * SEGMENT_LEN + 2);
    }

    #[test]
    fn a_history_accepts_records_after_all_records_were_removed() {
        let mut history = History::new();
        for n in 0..SEGMENT_LEN.cast_signed() {
            history.push(&record(n, 0));
        }
        while history.front().is_some() {
            history.pop_front();
        }
        let link = history.push(&record(1, 0));
        assert_eq!(history.front(), history.view().get(link));
    }
}
