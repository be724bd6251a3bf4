//! Full verification of a state. It includes everything that `bbolt check` verifies.
//!
//! The check reads every page of the state, and collects problems instead of stopping at the first
//! one: pages that are reached twice or lie outside the file, malformed pages, keys out of order
//! within a page or relative to the branch above, and a stored free list that differs from the
//! unreachable pages. Unlike bbolt, it also reports two structures that a correct writer never
//! produces: branches with a single child, and leaves at different depths.
//!
//! # Not here
//!
//! Validation of keys and values (the state machine's schema).

use std::fmt;

use super::bucket::bucket_header;
use super::free::FreePages;
use super::meta::NO_FREELIST;
use super::page::{self, FLAG_FREELIST, HEADER_BYTES, Page, PageFault, PageKind};
use super::snapshot::Snapshot;
use super::{DEPTH_MAX, PageId, Run};
use crate::size::in_memory;

/// The maximum number of reported problems. A damaged file may have a problem in every entry, and a longer list would
/// not be more useful.
const PROBLEMS_MAX: usize = 200;

/// A problem found by a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The page with the problem.
    pub page: u64,
    /// The offset of the problem within the page.
    pub offset: usize,
    /// A description of the problem.
    pub reason: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}, byte {}: {}", self.page, self.offset, self.reason)
    }
}

/// Verifies a state and returns the problems.
pub(super) fn check(snapshot: &Snapshot) -> Vec<Problem> {
    let mut check = Check {
        snapshot,
        unreached: FreePages::all_free(snapshot.meta.high_water),
        problems: Vec::new(),
    };
    let listed = check.stored_list();
    let mut buckets = vec![(snapshot.meta.root, PageId(0))];
    while let Some((root, holder)) = buckets.pop() {
        check.tree(root, holder, &mut buckets);
    }
    if let Some(listed) = listed {
        check.compare_list(listed);
    }
    check.problems
}

struct Check<'s> {
    snapshot: &'s Snapshot,
    /// Pages that have not been reached yet.
    unreached: FreePages,
    problems: Vec<Problem>,
}

/// The bounds on the keys in a subtree.
#[derive(Clone, Copy)]
struct Bounds<'s> {
    low: Option<&'s [u8]>,
    high: Option<&'s [u8]>,
    depth: usize,
}

impl<'s> Check<'s> {
    fn report(&mut self, page: PageId, offset: usize, reason: &'static str) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { page: page.0, offset, reason });
        }
    }

    fn report_fault(&mut self, page: PageId, fault: PageFault) {
        self.report(page, fault.offset, fault.reason);
    }

    fn tree(&mut self, root: PageId, holder: PageId, buckets: &mut Vec<(PageId, PageId)>) {
        let bounds = Bounds { low: None, high: None, depth: 0 };
        let mut pending = vec![(root, holder, bounds)];
        let mut leaf_depth = None;
        while let Some((id, parent, bounds)) = pending.pop() {
            let Some(page) = self.reach(id, parent) else { continue };
            if bounds.depth == DEPTH_MAX {
                self.report(id, 0, "tree is too deep or has a cycle");
                continue;
            }
            match page.kind {
                PageKind::Leaf => {
                    if *leaf_depth.get_or_insert(bounds.depth) != bounds.depth {
                        self.report(id, 0, "leaves of one tree have different depths");
                    }
                    self.leaf(&page, id, bounds, buckets);
                }
                PageKind::Branch => self.branch(&page, bounds, &mut pending),
            }
        }
    }

    /// Reads a page that `parent` refers to, unless it has been reached before.
    fn reach(&mut self, id: PageId, parent: PageId) -> Option<Page<'s>> {
        let start = in_memory(id.0).checked_mul(self.snapshot.page_bytes());
        let bytes = start.and_then(|start| self.snapshot.data.get(start..));
        let Some(bytes) = bytes.filter(|_| id.0 >= 2) else {
            self.report(parent, 0, "page refers to a page outside of the file");
            return None;
        };
        let parsed = Page::parse(bytes, id, self.snapshot.page_bytes());
        let page = parsed.map_err(|fault| self.report_fault(id, fault)).ok()?;
        let count = (page.len() / self.snapshot.page_bytes()) as u64;
        if !self.unreached.take(Run { start: id, count }) {
            self.report(id, 0, "page is reached twice");
            return None;
        }
        Some(page)
    }

    fn leaf(
        &mut self,
        page: &Page<'s>,
        id: PageId,
        bounds: Bounds<'s>,
        buckets: &mut Vec<(PageId, PageId)>,
    ) {
        let mut previous = None;
        for index in 0..page.count() {
            let element = match page.leaf_element(index) {
                Ok(element) => element,
                Err(fault) => {
                    self.report_fault(id, fault);
                    continue;
                }
            };
            self.order(id, element.key, &mut previous, bounds);
            if !element.is_bucket {
                continue;
            }
            match bucket_header(element.value) {
                None => self.report(id, 0, "bucket header is truncated"),
                Some((PageId(0), _)) => self.inline(element.value, id),
                Some((root, _)) => buckets.push((root, id)),
            }
        }
    }

    fn inline(&mut self, value: &'s [u8], holder: PageId) {
        match Page::parse_inline(value.get(HEADER_BYTES..).unwrap_or_default()) {
            Err(fault) => self.report_fault(holder, fault),
            Ok(page) => {
                let mut inner = Vec::new();
                self.leaf(&page, holder, Bounds { low: None, high: None, depth: 0 }, &mut inner);
                if !inner.is_empty() {
                    self.report(holder, 0, "inline bucket contains a bucket");
                }
            }
        }
    }

    fn branch(
        &mut self,
        page: &Page<'s>,
        bounds: Bounds<'s>,
        pending: &mut Vec<(PageId, PageId, Bounds<'s>)>,
    ) {
        if page.count() < 2 {
            self.report(page.id, 10, "branch page with a single child");
        }
        let mut previous = None;
        let mut children = Vec::with_capacity(page.count());
        for index in 0..page.count() {
            match page.branch_key(index).and_then(|key| Ok((key, page.child(index)?))) {
                Ok((key, child)) => {
                    self.order(page.id, key, &mut previous, bounds);
                    children.push((key, child));
                }
                Err(fault) => self.report_fault(page.id, fault),
            }
        }
        for (index, &(key, child)) in children.iter().enumerate() {
            let high = children.get(index + 1).map_or(bounds.high, |(key, _)| Some(*key));
            let below = Bounds { low: Some(key), high, depth: bounds.depth + 1 };
            pending.push((child, page.id, below));
        }
    }

    /// Reports a key that is empty, not greater than the previous key, or outside the bounds set by the branches above.
    fn order(
        &mut self,
        id: PageId,
        key: &'s [u8],
        previous: &mut Option<&'s [u8]>,
        bounds: Bounds<'s>,
    ) {
        if key.is_empty() {
            self.report(id, HEADER_BYTES, "empty key");
        }
        if previous.replace(key).is_some_and(|previous| previous >= key) {
            self.report(id, HEADER_BYTES, "keys are not in ascending order");
        }
        if bounds.low.is_some_and(|low| key < low) {
            self.report(id, HEADER_BYTES, "key is below the branch's key for this page");
        }
        if bounds.high.is_some_and(|high| key >= high) {
            self.report(id, HEADER_BYTES, "key is not below the branch's key for the next page");
        }
    }

    /// Reads the stored free list, if the file has one.
    fn stored_list(&mut self) -> Option<Vec<u64>> {
        let id = self.snapshot.meta.freelist;
        if id == NO_FREELIST {
            return None;
        }
        let start = in_memory(id.0).saturating_mul(self.snapshot.page_bytes());
        let bytes = self.snapshot.data.get(start..).unwrap_or_default();
        let header = page::header(bytes).map_err(|fault| self.report_fault(id, fault)).ok()?;
        if header.id != id || header.flags != FLAG_FREELIST {
            self.report(id, 8, "not a free list page");
            return None;
        }
        let run = Run { start: id, count: u64::from(header.overflow) + 1 };
        if run.end() > self.snapshot.meta.high_water || !self.unreached.take(run) {
            self.report(id, 12, "free list extends beyond the last page");
            return None;
        }
        let len = in_memory(run.count) * self.snapshot.page_bytes();
        let words = bytes[HEADER_BYTES..len].chunks_exact(8);
        let mut words = words.filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)));
        // If the count does not fit in its field, it is stored before the list.
        let count = match header.count {
            u16::MAX => words.next()?,
            count => u64::from(count),
        };
        let listed: Vec<u64> = words.take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
        if listed.len() as u64 != count {
            self.report(id, 10, "free list extends beyond its pages");
        }
        Some(listed)
    }

    /// Checks that the stored list contains exactly the unreached pages.
    fn compare_list(&mut self, listed: Vec<u64>) {
        let id = self.snapshot.meta.freelist;
        if !listed.is_sorted_by(|a, b| a < b) {
            self.report(id, HEADER_BYTES, "free list is not in ascending order");
        }
        for page in listed {
            let inside = page < self.snapshot.meta.high_water.0;
            if !inside || !self.unreached.take(Run { start: PageId(page), count: 1 }) {
                self.report(PageId(page), 0, "page is in use but also in the free list");
            }
        }
        for page in 2..self.snapshot.meta.high_water.0 {
            if self.unreached.is_free(PageId(page)) {
                self.report(PageId(page), 0, "page is neither in use nor in the free list");
            }
        }
    }
}
