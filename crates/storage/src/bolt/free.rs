//! Pages that can be reused now (free pages) or once no snapshot needs them (pending pages).
//!
//! [`FreePages`] is a bitmap of the pages below the high-water mark. It allocates the lowest run
//! that is large enough, so that data moves towards the start of the file and the tail becomes free
//! over time. [`PendingPages`] holds the pages freed by committed transactions until no snapshot
//! can reach them. Neither of them is stored in the file. `reach` computes the bitmap when the file
//! is opened.
//!
//! # Invariants
//!
//! * A page is at most one of the following: reachable from the durable state, pending, or free.
//! * A page allocated by transaction `a` and freed by transaction `t` is needed by exactly the
//!   snapshots `s` with `a <= s < t`. So a long-lived snapshot makes the file grow only by the
//!   pages that the snapshot itself pins.
#![expect(clippy::disallowed_types, reason = "pages are only looked up, never iterated")]

use std::collections::HashMap;
use std::ops::Range;

use super::{PageId, Run, TxId};
use crate::size::in_memory;

const WORD_BITS: u64 = u64::BITS as u64;
/// The number of run lengths for which the start of the search is remembered.
const HINTS: usize = 64;

/// The free pages below the high-water mark.
#[derive(Clone, Debug)]
pub(super) struct FreePages {
    /// A bitmap: bit `n % 64` of word `n / 64` is set if page `n` is free. Bits beyond the
    /// high-water mark are 0.
    words: Vec<u64>,
    high_water: u64,
    free_count: u64,
    /// The start of the search for each run length: no run of `i + 1` free pages starts below
    /// `search_from[i]`.
    search_from: [u64; HINTS],
    /// Pages that are not allocated, even if they are free.
    avoided: Run,
}

impl FreePages {
    /// Creates a bitmap in which all pages from 2 up to the mark are free.
    pub(super) fn all_free(high_water: PageId) -> Self {
        let mut pages = Self {
            words: Vec::new(),
            high_water: 2,
            free_count: 0,
            search_from: [0; HINTS],
            avoided: Run { start: PageId(0), count: 0 },
        };
        pages.extend(high_water.0.max(2));
        pages.set(Run { start: PageId(2), count: pages.high_water - 2 });
        pages
    }

    pub(super) fn high_water(&self) -> PageId {
        PageId(self.high_water)
    }

    pub(super) fn count(&self) -> u64 {
        self.free_count
    }

    pub(super) fn is_free(&self, page: PageId) -> bool {
        self.words
            .get((page.0 / WORD_BITS) as usize)
            .is_some_and(|word| word >> (page.0 % WORD_BITS) & 1 != 0)
    }

    /// Returns whether any page of `run` is free.
    pub(super) fn overlaps(&self, run: Run) -> bool {
        self.next_free(run.start.0, run.end().0).is_some()
    }

    /// Sets the pages that are not allocated until this is called again.
    pub(super) fn avoid(&mut self, avoided: Option<Run>) {
        self.avoided = avoided.unwrap_or(Run { start: PageId(0), count: 0 });
    }

    fn avoids(&self, run: Run) -> bool {
        run.start < self.avoided.end() && self.avoided.start < run.end()
    }

    /// Returns the start of the lowest run of `count` free pages.
    pub(super) fn lowest(&mut self, count: u64) -> Option<PageId> {
        self.find(count).map(PageId)
    }

    /// Allocates the lowest run of its length.
    pub(super) fn reserve(&mut self, run: Run) {
        self.clear(run);
        self.searched(run.count, run.end().0);
    }

    /// Returns the free page above `n` other free pages.
    pub(super) fn nth_free(&self, n: u64) -> Option<PageId> {
        let mut page = self.next_free(0, self.high_water)?;
        for _ in 0..n {
            page = self.next_free(page + 1, self.high_water)?;
        }
        Some(PageId(page))
    }

    /// Allocates the lowest run of `count` free pages. If there is no such run, raises the
    /// high-water mark.
    pub(super) fn allocate(&mut self, count: u64) -> PageId {
        let start = self.find(count).unwrap_or_else(|| {
            let mut start = self.high_water - self.trailing_free();
            if self.avoids(Run { start: PageId(start), count }) {
                start = self.avoided.end().0;
            }
            self.extend_free(self.high_water.max(start + count));
            start
        });
        assert!(
            start >= 2,
            "the meta pages are never allocated: otherwise a commit would destroy the file"
        );
        assert!(
            self.is_free(PageId(start)) && self.is_free(PageId(start + count - 1)),
            "only free pages are allocated: otherwise a page that a reader needs would be overwritten"
        );
        let run = Run { start: PageId(start), count };
        self.clear(run);
        self.searched(count, run.end().0);
        PageId(start)
    }

    /// Removes a run from the free pages. If part of the run is not free, changes nothing and
    /// returns `false`.
    pub(super) fn take(&mut self, run: Run) -> bool {
        let free = (run.start.0..run.end().0).all(|page| self.is_free(PageId(page)));
        if free {
            self.clear(run);
        }
        free
    }

    /// Marks a run as free.
    pub(super) fn release(&mut self, run: Run) {
        self.set(run);
        for (index, from) in self.search_from.iter_mut().enumerate() {
            // A free run may begin up to `index` pages earlier, because the released run merges
            // with free pages before it.
            *from = (*from).min(run.start.0.saturating_sub(index as u64));
        }
    }

    /// Lowers the high-water mark to exclude the free pages at the end.
    pub(super) fn drop_tail(&mut self) {
        let trailing = self.trailing_free();
        if trailing > 0 {
            let mark = self.high_water - trailing;
            self.clear(Run { start: PageId(mark), count: trailing });
            self.high_water = mark;
            self.words.truncate(in_memory(mark.div_ceil(WORD_BITS)));
        }
        assert!(
            self.free_count <= self.high_water,
            "free pages are counted once: otherwise a reclamation would look for pages that do not exist"
        );
    }

    fn find(&mut self, count: u64) -> Option<u64> {
        if self.free_count < count {
            return None;
        }
        let mut from = self.search_from[in_memory(count.clamp(1, HINTS as u64) - 1)];
        loop {
            let Some(start) = self.next_free(from, self.high_water) else {
                self.searched(count, self.high_water);
                return None;
            };
            let end = self.next_used(start, start + count);
            let run = Run { start: PageId(start), count };
            from = match end - start == count {
                true if self.avoids(run) => self.avoided.end().0,
                true => return Some(start),
                false => end,
            };
        }
    }

    /// Records that no free run of `count` pages starts below `from`.
    fn searched(&mut self, count: u64, from: u64) {
        if self.avoided.count > 0 {
            // The search has skipped the avoided pages, which may be free.
            return;
        }
        // Runs longer than `HINTS` have no entry. Their search starts at the entry of the longest
        // remembered run.
        if let Some(hint) = self.search_from.get_mut(in_memory(count.saturating_sub(1))) {
            *hint = from;
        }
    }

    /// Returns the first free page in `from..to`.
    fn next_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut index = (from / WORD_BITS) as usize;
        let mut word = *self.words.get(index)? & (u64::MAX << (from % WORD_BITS));
        while word == 0 {
            index += 1;
            if index as u64 * WORD_BITS >= to {
                return None;
            }
            word = *self.words.get(index)?;
        }
        let page = index as u64 * WORD_BITS + u64::from(word.trailing_zeros());
        (page < to).then_some(page)
    }

    /// Returns the first page in `from..to` that is not free, or `to`.
    fn next_used(&self, from: u64, to: u64) -> u64 {
        let mut page = from;
        while page < to {
            let word = self.words.get((page / WORD_BITS) as usize).copied().unwrap_or(0);
            let used = !word >> (page % WORD_BITS);
            if used != 0 {
                let next = page + u64::from(used.trailing_zeros());
                // The zeros that the shift inserts at the top do not represent used pages.
                if next / WORD_BITS == page / WORD_BITS {
                    return next.min(to);
                }
            }
            page = (page / WORD_BITS + 1) * WORD_BITS;
        }
        to
    }

    /// Returns the number of free pages directly below the high-water mark.
    fn trailing_free(&self) -> u64 {
        let mut page = self.high_water;
        while page > 2 && self.is_free(PageId(page - 1)) {
            if page.is_multiple_of(WORD_BITS)
                && self.words[(page / WORD_BITS) as usize - 1] == u64::MAX
            {
                page -= WORD_BITS;
            } else {
                page -= 1;
            }
        }
        self.high_water - page
    }

    fn extend(&mut self, high_water: u64) {
        self.high_water = high_water;
        self.words.resize(in_memory(high_water.div_ceil(WORD_BITS)), 0);
    }

    /// Raises the high-water mark. The added pages are free.
    fn extend_free(&mut self, high_water: u64) {
        let start = self.high_water;
        self.extend(high_water);
        self.set(Run { start: PageId(start), count: high_water - start });
    }

    fn set(&mut self, run: Run) {
        self.for_words(run, |word, mask| {
            let added = mask & !*word;
            *word |= mask;
            i64::from(added.count_ones())
        });
    }

    fn clear(&mut self, run: Run) {
        self.for_words(run, |word, mask| {
            let removed = mask & *word;
            *word &= !mask;
            -i64::from(removed.count_ones())
        });
    }

    fn for_words(&mut self, run: Run, mut change: impl FnMut(&mut u64, u64) -> i64) {
        let (mut page, end) = (run.start.0, run.end().0.min(self.high_water));
        while page < end {
            let word_start = page / WORD_BITS * WORD_BITS;
            let stop = end.min(word_start + WORD_BITS);
            let low = u64::MAX << (page - word_start);
            let high = u64::MAX >> (word_start + WORD_BITS - stop);
            let delta = change(&mut self.words[(page / WORD_BITS) as usize], low & high);
            self.free_count = self.free_count.wrapping_add_signed(delta);
            page = stop;
        }
    }
}

/// The pages freed by committed transactions that snapshots may still need.
#[derive(Debug, Default)]
pub(super) struct PendingPages {
    /// Freed pages, ordered by transaction.
    batches: Vec<Batch>,
    /// The transaction that allocated each run, keyed by the run's first page. Contains at least
    /// the runs that are younger than the oldest live snapshot.
    allocated_by: HashMap<PageId, TxId>,
    /// The live snapshots older than the current state, as of the last search through `batches`.
    seen_older: Vec<TxId>,
    count: u64,
}

#[derive(Debug)]
struct Batch {
    freed_by: TxId,
    runs: Vec<(Run, TxId)>,
    looked_through: bool,
}

impl PendingPages {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    #[cfg(test)]
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.batches.iter().flat_map(|batch| batch.runs.iter().map(|(run, _)| *run))
    }

    /// Returns the number of pending pages in `pages`.
    pub(super) fn count_in(&self, pages: &Range<PageId>) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        let runs = self.batches.iter().flat_map(|batch| &batch.runs);
        let shared = runs.map(|(run, _)| {
            run.end().0.min(pages.end.0).saturating_sub(run.start.0.max(pages.start.0))
        });
        shared.sum()
    }

    /// Records the pages that the durable transaction `by` allocated and freed.
    pub(super) fn committed(&mut self, by: TxId, allocated: &[Run], freed: Vec<Run>) {
        let mut runs = Vec::with_capacity(freed.len());
        for run in freed {
            let allocated_by = self.allocated_by.remove(&run.start).unwrap_or(TxId(0));
            self.count += run.count;
            runs.push((run, allocated_by));
        }
        for run in allocated {
            self.allocated_by.insert(run.start, by);
        }
        assert!(
            self.batches.last().is_none_or(|last| last.freed_by < by),
            "transactions are recorded in order: otherwise pages that a snapshot still reads would be allocated"
        );
        if !runs.is_empty() {
            self.batches.push(Batch { freed_by: by, runs, looked_through: false });
        }
    }

    /// Moves pending pages that snapshots no longer need into `free`.
    ///
    /// `older` contains the live snapshots before the current state, in ascending order.
    pub(super) fn release(&mut self, older: &[TxId], free: &mut FreePages) {
        if self.seen_older != older {
            self.batches.iter_mut().for_each(|batch| batch.looked_through = false);
            older.clone_into(&mut self.seen_older);
        }
        for batch in &mut self.batches {
            if batch.looked_through {
                continue;
            }
            batch.looked_through = true;
            let freed_by = batch.freed_by;
            let count = &mut self.count;
            batch.runs.retain(|&(run, allocated_by)| {
                let first = older.partition_point(|snapshot| *snapshot < allocated_by);
                let needed = older.get(first).is_some_and(|snapshot| *snapshot < freed_by);
                if !needed {
                    free.release(run);
                    *count -= run.count;
                }
                needed
            });
        }
        self.batches.retain(|batch| !batch.runs.is_empty());
        assert!(
            !self.batches.is_empty() || self.count == 0,
            "the count is 0 when no pending page is left: otherwise the size in use would be reported incorrectly"
        );
        if older.is_empty() {
            // Later snapshots see all pages allocated so far, so it no longer matters which transaction allocated them.
            self.allocated_by.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_seeded_random::SplitMix64;

    use super::*;

    fn run(start: u64, count: u64) -> Run {
        Run { start: PageId(start), count }
    }

    #[test]
    fn the_lowest_fitting_run_is_allocated() {
        let mut free = FreePages::all_free(PageId(300));
        assert_eq!(free.count(), 298);
        assert_eq!(free.allocate(290), PageId(2));
        for freed in [run(5, 1), run(60, 3), run(126, 5), run(8, 1)] {
            free.release(freed);
        }
        assert_eq!(free.allocate(3), PageId(60));
        assert_eq!(free.allocate(2), PageId(126));
        assert_eq!(free.allocate(1), PageId(5));
        assert_eq!(free.allocate(1), PageId(8));
        assert_eq!(free.allocate(1), PageId(128));
        assert_eq!(free.allocate(9), PageId(292), "the free tail is extended");
        assert_eq!(free.high_water(), PageId(301));
        assert_eq!(free.count(), 2);
    }

    #[test]
    fn adjacent_freed_pages_are_merged() {
        let mut free = FreePages::all_free(PageId(200));
        assert_eq!(free.allocate(198), PageId(2));
        free.release(run(64, 2));
        assert_eq!(free.allocate(4), PageId(200));
        free.release(run(66, 2));
        assert_eq!(free.allocate(4), PageId(64));
    }

    #[test]
    fn avoided_pages_are_not_allocated() {
        let mut free = FreePages::all_free(PageId(100));
        free.avoid(Some(run(10, 20)));
        assert_eq!(free.allocate(5), PageId(2));
        assert_eq!(free.allocate(5), PageId(30), "the run from 7 would end at an avoided page");
        assert_eq!(free.allocate(3), PageId(7));
        assert_eq!(free.allocate(70), PageId(35), "the free tail is extended");
        free.drop_tail();
        free.avoid(None);
        assert_eq!(free.allocate(20), PageId(10), "the pages are free when they are not avoided");
        // The avoided pages are the free tail.
        free.release(run(50, 55));
        free.avoid(Some(run(60, 45)));
        assert_eq!(free.allocate(11), PageId(105));
        assert_eq!(free.high_water(), PageId(116));
        assert_eq!(free.count(), 55);
    }

    #[test]
    fn the_lowest_run_is_found_and_reserved() {
        let mut free = FreePages::all_free(PageId(20));
        assert_eq!(free.lowest(4), Some(PageId(2)));
        free.reserve(run(2, 4));
        assert_eq!((free.lowest(4), free.lowest(40)), (Some(PageId(6)), None));
        assert_eq!((free.count(), free.nth_free(3)), (14, Some(PageId(9))));
        assert_eq!(free.nth_free(14), None);
    }

    #[test]
    fn free_pages_after_the_last_used_page_are_dropped() {
        let mut free = FreePages::all_free(PageId(500));
        assert!(free.take(run(130, 2)));
        assert!(!free.take(run(131, 2)));
        free.drop_tail();
        assert_eq!((free.high_water(), free.count()), (PageId(132), 128));
        free.release(run(130, 2));
        free.drop_tail();
        assert_eq!((free.high_water(), free.count()), (PageId(2), 0));
        assert_eq!(free.allocate(1), PageId(2));
    }

    /// Tries every page to find the first run of `count` free pages, and returns its start.
    fn first_fit(free: &[bool], count: usize) -> usize {
        let fits = |start: &usize| free[*start..].iter().take(count).all(|free| *free);
        (2..free.len()).find(fits).unwrap_or(free.len())
    }

    #[test]
    fn allocation_has_the_same_result_as_a_naive_first_fit() {
        for seed in 1..60_u64 {
            let mut random = SplitMix64::new(seed);
            let mut draw = |below: u64| random.below(below);
            let mut free = FreePages::all_free(PageId(2));
            let mut model = vec![false; 2];
            let mut used: Vec<Run> = Vec::new();
            for _ in 0..200 {
                if draw(5) < 3 || used.is_empty() {
                    let count = if draw(8) == 0 { 1 + draw(150) } else { 1 + draw(4) };
                    let start = free.allocate(count);
                    assert_eq!(start.0 as usize, first_fit(&model, count as usize));
                    let end = (start.0 + count) as usize;
                    model.resize(model.len().max(end), true);
                    model[start.0 as usize..end].fill(false);
                    used.push(Run { start, count });
                } else {
                    let run = used.swap_remove(draw(used.len() as u64) as usize);
                    free.release(run);
                    model[run.start.0 as usize..run.end().0 as usize].fill(true);
                }
                if draw(20) == 0 {
                    free.drop_tail();
                    let last = model.iter().rposition(|free| !free).unwrap_or(1);
                    model.truncate(last + 1);
                }
                assert_eq!(free.high_water().0 as usize, model.len());
                assert_eq!(free.count() as usize, model.iter().filter(|free| **free).count());
            }
        }
    }

    #[test]
    fn replaced_pages_are_freed_when_no_snapshot_can_read_them() {
        let mut free = FreePages::all_free(PageId(50));
        assert_eq!(free.allocate(48), PageId(2));
        let mut pending = PendingPages::default();
        // Snapshot 4 is still alive. Transaction 5 replaces page 10 with page 11, and transaction 6 replaces page 11
        // with page 12.
        pending.committed(TxId(5), &[run(11, 1)], vec![run(10, 1)]);
        pending.committed(TxId(6), &[run(12, 1)], vec![run(11, 1)]);
        pending.release(&[TxId(4)], &mut free);
        assert!(!free.is_free(PageId(10)) && free.is_free(PageId(11)));
        pending.release(&[], &mut free);
        assert!(free.is_free(PageId(10)) && !free.is_free(PageId(12)));
        assert_eq!(pending.count(), 0);
    }
}
