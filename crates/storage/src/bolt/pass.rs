//! The passes of a reclamation round: which pages the next pass moves, and when the round ends.
//!
//! A round begins with *filling passes*. Each of them moves the pages above a boundary into free runs below. A large
//! value occupies consecutive pages, so it may fit into no free run although enough pages are free. When filling
//! passes no longer shrink the file, the round continues with *sliding passes*. They divide the file into *windows*
//! and empty one window after another, in file order. The pages of a window move into the free run that the previous
//! windows have left below it. Runs that do not fit there move to the end of the file. The emptied window extends the
//! free run, which reaches the end of the file after the last window.
//!
//! ```text
//!                 ┌── free run ──┬── window ──┐
//! ..used used used│              │ used  used │used used used..
//! ..used used used used used│                 │used used used..    the free run has moved up by the used pages
//! ```
//!
//! # Invariants
//!
//! * A round ends. At least one of any two consecutive filling passes lowers the boundary or the high-water mark by at
//!   least one percent. A single series of at most [`WINDOWS_MAX`] sliding passes follows. Each of their windows is
//!   above the previous one, and waits for readers at most [`WAITS_MAX`] times.
//! * Sliding extends the file by at most about twice the pages of its largest window. A run moves to the end only if
//!   the window has more used pages than the free run below it, and the free run then becomes at least as large as the
//!   window. A window has [`Pass::window_pages`] used pages, and the last of its runs may extend beyond it.
//! * Long-lived readers do not make the file grow further: a window is not emptied while they pin the pages below it.
//!   The pages of the window would otherwise move to the end of the file. If the readers do not end, the round ends.
//! * The file is not rewritten for a small gain. Sliding begins only if at least one percent of the file, and at least
//!   [`SLIDE_FREE_MIN`] pages, are free. It skips the start of the file if few pages are free there.
//!
//! # Not here
//!
//! Moving the pages (`reclaim`).

use std::ops::Range;

use super::free::{FreePages, PendingPages};
use super::{PageId, Run};

/// The minimum number of free pages for sliding. Each step rewrites some branches, so a few pages remain free in any
/// case.
const SLIDE_FREE_MIN: u64 = 8;
/// Sliding skips the start of the file, up to the point below which this fraction of the file is free.
const SKIPPED_FRACTION: u64 = 200;
/// The fraction of the file's pages that a window contains. A larger file has larger windows, because each pass walks
/// through all trees.
const WINDOW_FRACTION: u64 = 128;
/// The maximum number of sliding passes in a round. About [`WINDOW_FRACTION`] windows cover a file. More are necessary
/// for the runs at the end of the file, and if other transactions add pages.
const WINDOWS_MAX: u32 = 512;
/// The number of times that a window waits for readers of the pages below it.
const WAITS_MAX: u32 = 8;

/// The position of an unfinished pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) number: u32,
    /// The pages that are moved: those above a boundary, or those in a window.
    pub(super) pages: Range<PageId>,
    /// The lowest boundary and the lowest high-water mark at the start of any filling pass of this round.
    boundary_min: PageId,
    high_water_min: PageId,
    /// The bucket and key at which to continue. Buckets are walked in name order.
    pub(super) bucket: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) moved_pages: u64,
    /// Whether the previous pass lowered the file's length and the number of used pages by less
    /// than one percent each. Another pass may still follow, because the previous pass may have moved small pages that
    /// blocked large ones.
    after_fruitless: bool,
    /// The number of windows so far, including this one, or 0 for a filling pass.
    windows: u32,
    /// The number of used pages in a window.
    window_pages: u64,
    /// The pages that readers must not pin when the pass begins. For the first window, these are all pages, because the
    /// pages that an earlier round has freed may still be pinned.
    needed: Range<PageId>,
    waits: u32,
}

impl Pass {
    /// Returns the first pass of a round.
    pub(super) fn first(free: &FreePages) -> Self {
        Self::filling(free, 0)
    }

    fn filling(free: &FreePages, number: u32) -> Self {
        let high_water = free.high_water();
        let boundary = PageId(high_water.0 - free.count());
        Self {
            number,
            pages: boundary..PageId(u64::MAX),
            boundary_min: boundary,
            high_water_min: high_water,
            bucket: Vec::new(),
            key: Vec::new(),
            moved_pages: 0,
            after_fruitless: false,
            windows: 0,
            window_pages: 0,
            needed: PageId(0)..PageId(0),
            waits: 0,
        }
    }

    /// Returns the window that this pass empties, or `None` for a filling pass.
    pub(super) fn window(&self) -> Option<Run> {
        let Range { start, end } = self.pages;
        (self.windows > 0).then(|| Run { start, count: end.0 - start.0 })
    }

    /// Returns whether the window should not be emptied yet, because readers pin pages below it. Counts the calls that
    /// return true.
    pub(super) fn must_wait(&mut self, pending: &PendingPages) -> bool {
        let must_wait = pending.count_in(&self.needed) * 4 > self.window_pages;
        if must_wait {
            self.waits += 1;
        } else {
            // The pass has begun. It no longer matters which pages are pinned later.
            self.needed = PageId(0)..PageId(0);
        }
        must_wait
    }

    /// Returns whether the window has waited so long for readers that the round ends.
    pub(super) fn has_waited_long(&self) -> bool {
        self.waits > WAITS_MAX
    }

    /// Returns the next pass, or `None` if the round has ended.
    pub(super) fn next(&self, free: &FreePages, budget_pages: u64) -> Option<Self> {
        if self.windows > 0 {
            let next = self.next_window(free, self.pages.end, self.window_pages)?;
            return Some(Self { needed: PageId(0)..self.pages.end, ..next });
        }
        let mut next = Self::filling(free, self.number + 1);
        let much_lower = |page: PageId, than: PageId| page.0 * 100 <= than.0 * 99;
        // Pages that were freed during this pass lower the boundary of the next one.
        let fruitful = much_lower(next.high_water_min, self.high_water_min)
            || much_lower(next.boundary_min, self.boundary_min);
        let high_water = free.high_water();
        let full = free.count() * 100 < high_water.0;
        let stuck = !fruitful && (self.after_fruitless || self.moved_pages == 0);
        let joined = self.number == 0 && self.moved_pages > 0;
        next.after_fruitless = !fruitful;
        next.high_water_min = next.high_water_min.min(self.high_water_min);
        next.boundary_min = next.boundary_min.min(self.boundary_min);
        assert!(
            next.boundary_min <= self.boundary_min && next.high_water_min <= self.high_water_min,
            "a pass is compared with the best previous pass: otherwise a reclamation might never end"
        );
        if joined || !full && !stuck {
            return Some(next);
        }
        if full || free.count() < SLIDE_FREE_MIN {
            return None;
        }
        let from = free.nth_free(high_water.0 / SKIPPED_FRACTION)?;
        let window =
            self.next_window(free, from, budget_pages.max(high_water.0 / WINDOW_FRACTION))?;
        Some(Self { needed: PageId(0)..PageId(u64::MAX), ..window })
    }

    /// Returns the pass that empties the next window at or above `from`, or `None` if no pages are used there.
    fn next_window(&self, free: &FreePages, from: PageId, window_pages: u64) -> Option<Self> {
        if self.windows == WINDOWS_MAX {
            return None;
        }
        let high_water = free.high_water();
        let is_used = |page: &u64| !free.is_free(PageId(*page));
        let mut used = (from.0..high_water.0).filter(is_used);
        let start = PageId(used.next()?);
        let last = used.take(usize::try_from(window_pages - 1).unwrap_or(usize::MAX)).last();
        let end = PageId(last.unwrap_or(start.0) + 1);
        let windows = self.windows + 1;
        let number = self.number + 1;
        Some(Self { pages: start..end, windows, window_pages, ..Self::filling(free, number) })
    }
}
