//! Finds the free pages of a file when it is opened, by walking the trees of the current state.
//!
//! A stored free list is neither trusted nor needed: every page below the high-water mark that no tree reaches is free.
//! All branch pages are read. With [`super::Options::flat`], most leaf pages are not: in a tree without nested buckets,
//! only the number of pages in a leaf matters, and a leaf has a single page if the next page is itself reached. So
//! opening a flat file of 1 GB reads only a few MB.
//!
//! # Not here
//!
//! Full verification (`check`), which reads all pages and collects problems instead of stopping at the first one.

use super::bucket::bucket_header;
use super::error::Result;
use super::free::FreePages;
use super::meta::NO_FREELIST;
use super::page::{self, FLAG_FREELIST, Page, PageKind};
use super::snapshot::Snapshot;
use super::window::Window;
use super::{DEPTH_MAX, PageId, Run};
use crate::size::in_memory;
use std::sync::Arc;

const TWICE: &str = "page is reached twice";

/// The free pages of a state.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) free: FreePages,
    /// The pages of the stored free list, which the durable state still refers to. The pages become free when that
    /// state is superseded.
    pub(super) stored_list: Option<Run>,
}

/// Walks the state. With `flat`, buckets contain no nested buckets, so leaves below the top level need not be read.
pub(super) fn reach(snapshot: &Arc<Snapshot>, flat: bool) -> Result<Reach> {
    let mut walk = Walk {
        snapshot,
        window: Window::new(Arc::clone(snapshot)),
        free: FreePages::all_free(snapshot.meta.high_water),
        unread_leaves: Vec::new(),
    };
    let stored_list = walk.take_stored_list()?;
    // The top level is always read completely, because its leaves name the buckets.
    let mut pending = vec![(snapshot.meta.root, true)];
    while let Some((root, read_leaves)) = pending.pop() {
        walk.tree(root, read_leaves, &mut |bucket| pending.push((bucket, !flat)))?;
    }
    walk.take_overflow_of_unread()?;
    Ok(Reach { free: walk.free, stored_list })
}

/// Collects all pages of the tree at `root`, including the buckets in it.
pub(super) fn tree_pages(snapshot: &Snapshot, root: PageId) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let mut pending = vec![(root, 0)];
    while let Some((id, depth)) = pending.pop() {
        let page = snapshot.page(id)?;
        if depth == DEPTH_MAX || runs.len() as u64 > snapshot.meta.high_water.0 {
            return Err(snapshot.corrupt(id, 0, TWICE));
        }
        runs.push(Run { start: id, count: (page.len() / snapshot.page_bytes()) as u64 });
        each_below(snapshot, id, &page, |child| pending.push((child.id(), depth + 1)))?;
    }
    Ok(runs)
}

/// A page or bucket that another page refers to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Below {
    /// A page of the same tree.
    Page(PageId),
    /// The root of a bucket with its own pages.
    Bucket(PageId),
}

impl Below {
    pub(super) const fn id(self) -> PageId {
        match self {
            Self::Page(id) | Self::Bucket(id) => id,
        }
    }
}

/// Calls a function for each page and bucket that a page refers to, in order.
pub(super) fn each_below(
    snapshot: &Snapshot,
    id: PageId,
    page: &Page<'_>,
    mut found: impl FnMut(Below),
) -> Result<()> {
    for index in 0..page.count() {
        match page.kind {
            PageKind::Branch => {
                found(Below::Page(page.child(index).map_err(|e| snapshot.fault(id, e))?));
            }
            PageKind::Leaf => {
                let element = page.leaf_element(index).map_err(|e| snapshot.fault(id, e))?;
                let root = bucket_header(element.value).filter(|_| element.is_bucket);
                if let Some((root, _)) = root.filter(|(root, _)| *root != PageId(0)) {
                    found(Below::Bucket(root));
                }
            }
        }
    }
    Ok(())
}

struct Walk<'s> {
    snapshot: &'s Arc<Snapshot>,
    window: Window,
    free: FreePages,
    unread_leaves: Vec<PageId>,
}

impl Walk<'_> {
    fn take(&mut self, run: Run) -> Result<()> {
        let inside = run.start.0 >= 2 && run.end() <= self.snapshot.meta.high_water;
        if inside && self.free.take(run) {
            return Ok(());
        }
        let reason = if inside { TWICE } else { "page number is outside of the file" };
        Err(self.snapshot.corrupt(run.start, 0, reason))
    }

    fn take_stored_list(&mut self) -> Result<Option<Run>> {
        let start = self.snapshot.meta.freelist;
        if start == NO_FREELIST {
            return Ok(None);
        }
        let offset = in_memory(start.0) * self.snapshot.page_bytes();
        let header = self.snapshot.data.get(offset..).map(page::header);
        let count = match header {
            Some(Ok(header)) if header.flags == FLAG_FREELIST => u64::from(header.overflow) + 1,
            _ => return Err(self.snapshot.corrupt(start, 8, "not a free list page")),
        };
        let run = Run { start, count };
        self.take(run)?;
        Ok(Some(run))
    }

    /// Removes the pages of a tree from the free pages, and passes the roots of the buckets in its leaves to
    /// `found_bucket`. The overflow pages of unread leaves are removed later.
    fn tree(
        &mut self,
        root: PageId,
        read_leaves: bool,
        found_bucket: &mut impl FnMut(PageId),
    ) -> Result<()> {
        let snapshot = self.snapshot;
        let mut pending = vec![root];
        while let Some(id) = pending.pop() {
            let page = self.page(id, pending.iter().rev().copied())?;
            let fault = |e| snapshot.fault(id, e);
            let count = (page.len() / snapshot.page_bytes()) as u64;
            if page.kind == PageKind::Leaf {
                for index in 0..page.count() {
                    let element = page.leaf_element(index).map_err(fault)?;
                    match bucket_header(element.value).filter(|_| element.is_bucket) {
                        Some((PageId(0), _)) => {}
                        Some((root, _)) => found_bucket(root),
                        None if element.is_bucket => {
                            return Err(snapshot.corrupt(id, 0, "bucket header is truncated"));
                        }
                        None => {}
                    }
                }
                self.take(Run { start: id, count })?;
                continue;
            }
            let children = (0..page.count()).rev().map(|index| page.child(index));
            let children = children.collect::<Result<Vec<_>, _>>().map_err(fault)?;
            self.take(Run { start: id, count })?;
            // All children of a branch are of the same kind, because all leaves of a tree have the same depth. So
            // reading one child is enough.
            let first = children.last().copied().unwrap_or(id);
            if read_leaves || self.page(first, std::iter::empty())?.kind == PageKind::Branch {
                pending.extend(children);
                continue;
            }
            for child in children {
                self.take(Run { start: child, count: 1 })?;
                self.unread_leaves.push(child);
            }
        }
        Ok(())
    }

    /// Reads a page, and possibly the pages in `next`, through ordinary reads, because mapped pages would stay in
    /// memory.
    fn page(&mut self, id: PageId, next: impl Iterator<Item = PageId>) -> Result<Page<'_>> {
        let at = self.window.load(id, next)?;
        self.window.page(id, at)
    }

    /// Removes the overflow pages of unread leaves from the free pages. Of these leaves, reads only those whose next
    /// page is not reached, because no other leaf can have overflow pages.
    fn take_overflow_of_unread(&mut self) -> Result<()> {
        for leaf in std::mem::take(&mut self.unread_leaves) {
            let next = PageId(leaf.0 + 1);
            if !self.free.is_free(next) {
                continue;
            }
            let page_bytes = self.snapshot.page_bytes();
            let count = (self.page(leaf, std::iter::empty())?.len() / page_bytes) as u64;
            if count > 1 {
                self.take(Run { start: next, count: count - 1 })?;
            }
        }
        Ok(())
    }
}
