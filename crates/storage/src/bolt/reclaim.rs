//! Online reclamation of space. bbolt can reclaim space only by copying the file offline.
//!
//! The lowest free pages are allocated first, so rewriting a page moves it down while there is a free run below it. A
//! *pass* walks all trees in key order and rewrites pages in small write transactions. It rewrites the pages in a
//! range: those above the position at which the file would end if it had no free pages, or those in a window (`pass`).
//! The first pass also rewrites runs of leaves that would fit in considerably fewer pages. After a pass, the pages
//! above the last used page are free. The high-water mark is lowered to that page, and the file is truncated there
//! once no snapshot reaches further: at the end of a pass, or before a later transaction. A *round* is a sequence of
//! passes, which ends when less than one percent of the file is free, or when another pass would hardly shrink the
//! file.
//!
//! Other transactions may commit between two steps, so a pass records its position as a bucket and a key, not as
//! pages. Each step writes approximately as many pages as its budget allows. If the disk has no room for pages that
//! have to move to the end of the file, the step fails with [`BoltError::NoRoom`](super::error::BoltError::NoRoom) and
//! changes nothing.
//!
//! # Not here
//!
//! The choice of the pages that a pass moves (`pass`), the truncation (`truncate`), and the timing and speed of
//! reclamation (`core::backend_writer`). Nested buckets are not moved.

use std::ops::Range;
use std::sync::Arc;

use super::commit;
use super::db::Db;
use super::error::Result;
use super::free::FreePages;
use super::page::{Page, PageKind};
use super::pass::Pass;
use super::shape::leaf_pages;
use super::snapshot::Snapshot;
use super::source::Source;
use super::tree::{Link, Tree};
use super::truncate::{Tail, truncate};
use super::window::Window;
use super::write::WriteTx;
use super::{DEPTH_MAX, PageId, Run};

/// Neighbouring leaves are joined if that reduces the number of their pages to at most this percentage.
const JOIN_BELOW_PERCENT: usize = 85;
/// The maximum number of leaves that a step examines for each page that it may write.
const EXAMINED_PER_WRITTEN: u64 = 16;

/// The result of [`Db::truncate`] or of one step of [`Db::reclaim`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// The number of pages that were moved to another position.
    pub moved_pages: u64,
    /// The number of bytes that were truncated.
    pub truncated_bytes: u64,
    /// The size of the pages that cannot be reused or truncated while older snapshots live. 0 if the step has moved
    /// pages and the pass has not ended.
    pub pinned_bytes: u64,
    /// Whether nothing more can be reclaimed for now.
    pub done: bool,
}

impl Db {
    /// Runs one step of shrinking the file to the size of its content.
    ///
    /// The caller repeats this until the result is `done`. Each call is a write transaction that rewrites about
    /// `budget_pages` pages, so it delays writers no longer than any other commit of that size.
    pub fn reclaim(&self, budget_pages: u64) -> Result<Reclaimed> {
        let mut tx = self.write()?;
        let unfinished = tx.writer.pass.take();
        let mut pass = unfinished.unwrap_or_else(|| Pass::first(&tx.writer.free));
        if pass.must_wait(&tx.writer.pending) {
            let pinned_pages = tx.writer.pending.count();
            let pinned_bytes = pinned_pages * tx.source.snapshot.page_bytes() as u64;
            let done = pass.has_waited_long();
            tx.writer.pass = (!done).then_some(pass);
            return Ok(Reclaimed { pinned_bytes, done, ..Reclaimed::default() });
        }
        let (moved_pages, finished) = pass.step(&mut tx, budget_pages.max(1))?;
        pass.moved_pages += moved_pages;
        tx.writer.free.avoid(pass.window());
        let committed = commit::commit(&mut tx, false);
        tx.writer.free.avoid(None);
        committed?;
        drop(tx);
        let mut done = false;
        let mut tail = Tail::default();
        if finished {
            tail = self.lower()?;
            let mut tx = self.write()?;
            let next = pass.next(&tx.writer.free, budget_pages.max(1));
            done = next.is_none();
            tx.writer.pass = next;
        } else {
            self.shared.writer.lock().pass = Some(pass);
        }
        let Tail { truncated_bytes, pinned_bytes } = tail;
        Ok(Reclaimed { moved_pages, truncated_bytes, pinned_bytes, done })
    }

    /// Drops an unfinished round, so that the next step begins a new round.
    ///
    /// The unfinished round may already be past parts of the trees in which pages have since become free.
    pub fn restart_reclaim(&self) {
        self.shared.writer.lock().pass = None;
    }

    /// Truncates the file as far as it is possible without moving pages.
    pub fn truncate(&self) -> Result<Reclaimed> {
        let Tail { truncated_bytes, pinned_bytes } = self.lower()?;
        Ok(Reclaimed { moved_pages: 0, truncated_bytes, pinned_bytes, done: true })
    }

    /// Commits a lower high-water mark if the tail is free, and truncates the file there.
    fn lower(&self) -> Result<Tail> {
        let mut tx = self.write()?;
        if tx.writer.free.high_water() < tx.source.snapshot.meta.high_water {
            commit::commit(&mut tx, true)?;
        }
        drop(tx);
        truncate(&self.shared, &mut self.shared.writer.lock())
    }
}

impl Pass {
    /// Marks pages for rewriting, starting at the position of the pass. Returns their number, and whether the pass has
    /// ended.
    fn step(&mut self, tx: &mut WriteTx<'_>, budget_pages: u64) -> Result<(u64, bool)> {
        let snapshot = Arc::clone(&tx.source.snapshot);
        let mut walk = Walk {
            window: Window::new(Arc::clone(&snapshot)),
            snapshot: &snapshot,
            pages: self.pages.clone(),
            room: self.window().is_none().then(|| tx.writer.free.clone()),
            unplaceable_min: u64::MAX,
            join_leaves: self.number == 0,
            moved_pages: 0,
            moved_max: budget_pages,
            examined_leaves: 0,
        };
        let view = tx.base();
        let names = view.bucket_names()?;
        for name in names {
            if name < self.bucket.as_slice() {
                continue;
            }
            if name != self.bucket {
                self.key.clear();
                name.clone_into(&mut self.bucket);
            }
            let index = tx.edited(name)?;
            if let Some(key) = walk.tree(&tx.source, &mut tx.edits[index].tree, &self.key)? {
                self.key = key;
                return Ok((walk.moved_pages, false));
            }
        }
        walk.join_leaves = false;
        walk.moved_max = u64::MAX;
        walk.tree(&tx.source, &mut tx.root, &[])?;
        Ok((walk.moved_pages, true))
    }
}

/// A step's walk through the trees, in their state at the start of the step.
struct Walk<'s> {
    snapshot: &'s Snapshot,
    window: Window,
    /// The pages that are moved.
    pages: Range<PageId>,
    /// The free pages that remain in a filling pass, which moves only runs that fit into them.
    room: Option<FreePages>,
    /// No free run of this length or longer remains in `room`. A search for a long run looks at all free runs.
    unplaceable_min: u64,
    join_leaves: bool,
    moved_pages: u64,
    moved_max: u64,
    examined_leaves: u64,
}

/// The branches from the root down, each with the position of the next child.
type Path<'s> = Vec<(Page<'s>, usize)>;

impl<'s> Walk<'s> {
    /// Walks through a tree, starting at the key `from`. If the budget is used up before the end of the tree, returns
    /// the key at which the next step continues.
    fn tree(&mut self, source: &Source, tree: &mut Tree, from: &[u8]) -> Result<Option<Vec<u8>>> {
        let Link::Page(root) = tree.root else { return Ok(None) };
        let page = self.snapshot.page(root)?;
        let mut path = Vec::new();
        if page.kind == PageKind::Branch {
            self.descend(&mut path, page, from)?;
        } else if self.moves(root)? {
            self.load(source, tree, &[])?;
        }
        while !path.is_empty() {
            if let Some(key) = self.visit(source, tree, &path)? {
                return Ok(Some(key.to_vec()));
            }
            self.advance(&mut path)?;
        }
        Ok(None)
    }

    /// Loads the pages that must move: the branches on the path, and the leaves starting at the path's last position.
    /// Leaves that are to be joined are also loaded. If the budget is used up, stops and returns the key of the first
    /// leaf that was not examined.
    fn visit(
        &mut self,
        source: &Source,
        tree: &mut Tree,
        path: &Path<'s>,
    ) -> Result<Option<&'s [u8]>> {
        let Some((&(parent, start), above)) = path.split_last() else { return Ok(None) };
        let mut positions: Vec<usize> = above.iter().map(|(_, at)| *at).collect();
        for (depth, (page, _)) in path.iter().enumerate() {
            if self.pages.contains(&page.id) {
                self.load(source, tree, &positions[..depth])?;
            }
        }
        let children = (0..parent.count()).map(|at| parent.child(at));
        let children = children.collect::<Result<Vec<_>, _>>();
        let children = children.map_err(|e| self.snapshot.fault(parent.id, e))?;
        let mut join = false;
        for (at, child) in children.iter().enumerate().skip(start) {
            let examined_max = self.moved_max.saturating_mul(EXAMINED_PER_WRITTEN);
            if self.moved_pages >= self.moved_max || self.examined_leaves >= examined_max {
                let key = parent.branch_key(at).map_err(|e| self.snapshot.fault(parent.id, e))?;
                return Ok(Some(key));
            }
            if at == start && self.join_leaves {
                join = self.is_sparse(&children[start..])?;
            }
            self.examined_leaves += 1;
            if join || self.moves(*child)? {
                positions.push(at);
                self.load(source, tree, &positions)?;
                positions.pop();
            }
        }
        Ok(None)
    }

    /// Returns whether a leaf is moved.
    fn moves(&mut self, id: PageId) -> Result<bool> {
        if !self.pages.contains(&id) {
            return Ok(false);
        }
        let Some(room) = &mut self.room else { return Ok(true) };
        let count = (self.snapshot.page(id)?.len() / self.snapshot.page_bytes()) as u64;
        if count >= self.unplaceable_min {
            return Ok(false);
        }
        let found = room.lowest(count);
        if found.is_none() {
            self.unplaceable_min = count;
        }
        let Some(start) = found.filter(|start| *start < id) else { return Ok(false) };
        room.reserve(Run { start, count });
        Ok(true)
    }

    /// Loads the page at the end of the path `positions`, so that the commit rewrites it.
    fn load(&mut self, source: &Source, tree: &mut Tree, positions: &[usize]) -> Result<()> {
        let freed_before = tree.freed.len();
        tree.load_at(source, positions)?;
        let freed = &tree.freed[freed_before..];
        self.moved_pages += freed.iter().map(|run| run.count).sum::<u64>();
        Ok(())
    }

    /// Returns whether these neighbouring leaves would fit in at most [`JOIN_BELOW_PERCENT`]
    /// percent of their pages.
    fn is_sparse(&mut self, leaves: &[PageId]) -> Result<bool> {
        let page_bytes = self.snapshot.page_bytes();
        let mut sizes = Vec::new();
        let mut pages = 0;
        for (index, &id) in leaves.iter().enumerate() {
            let at = self.window.load(id, leaves[index + 1..].iter().copied())?;
            let page = self.window.page(id, at)?;
            pages += page.len() / page_bytes;
            for index in 0..page.count() {
                let size = page.element_bytes(index);
                sizes.push(size.map_err(|e| self.snapshot.fault(id, e))?);
            }
        }
        Ok(leaf_pages(&sizes, page_bytes) * 100 <= pages * JOIN_BELOW_PERCENT)
    }

    /// Extends the path from `page` down to the lowest branch that covers `key`.
    fn descend(&self, path: &mut Path<'s>, mut page: Page<'s>, key: &[u8]) -> Result<()> {
        while path.len() < DEPTH_MAX {
            let fault = |e| self.snapshot.fault(page.id, e);
            let first = self.snapshot.page(page.child(0).map_err(fault)?)?;
            let at = page.child_index(key).map_err(fault)?;
            path.push((page, at));
            if first.kind == PageKind::Leaf {
                return Ok(());
            }
            let child = self.snapshot.page(page.child(at).map_err(fault)?)?;
            if child.kind == PageKind::Leaf {
                let reason = "leaves of one tree have different depths";
                return Err(self.snapshot.corrupt(child.id, 8, reason));
            }
            page = child;
        }
        Err(self.snapshot.corrupt(page.id, 0, "tree is too deep or has a cycle"))
    }

    /// Moves the path to the next branch that is directly above leaves. Empties the path if there is no such branch.
    fn advance(&self, path: &mut Path<'s>) -> Result<()> {
        path.pop();
        while let Some((page, at)) = path.last_mut() {
            if *at + 1 < page.count() {
                *at += 1;
                let child = page.child(*at).map_err(|e| self.snapshot.fault(page.id, e))?;
                let child = self.snapshot.page(child)?;
                if child.kind == PageKind::Leaf {
                    let reason = "leaves of one tree have different depths";
                    return Err(self.snapshot.corrupt(child.id, 8, reason));
                }
                return self.descend(path, child, &[]);
            }
            path.pop();
        }
        Ok(())
    }
}
