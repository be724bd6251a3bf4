//! A cursor over a bucket's sorted entries. It moves in both directions.
//!
//! A cursor keeps the path of pages from the root to its entry. It reads an immutable snapshot, so
//! the pages never change. Empty leaves are skipped.

use super::DEPTH_MAX;
use super::error::Result;
use super::page::{Page, PageFault, PageKind};
use super::snapshot::Snapshot;

/// One entry of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'tx> {
    /// The entry's key.
    pub key: &'tx [u8],
    /// The entry's value. If the key names a bucket, the value is the bucket's header and, for an inline bucket, its
    /// page.
    pub value: &'tx [u8],
    /// Whether the key names a bucket instead of a value.
    pub is_bucket: bool,
}

/// A position in a bucket. See [`super::BucketReader::cursor`].
#[derive(Clone, Debug)]
pub struct Cursor<'tx> {
    snapshot: &'tx Snapshot,
    root: Page<'tx>,
    /// The path from the root to the leaf. Empty if the cursor is before the first entry or after
    /// the last one.
    path: Vec<(Page<'tx>, usize)>,
    behind_last: bool,
}

/// The direction in which the cursor moves to the next leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

impl<'tx> Cursor<'tx> {
    /// Returns a cursor over the tree below `root`.
    pub(super) const fn new(snapshot: &'tx Snapshot, root: Page<'tx>) -> Self {
        Self { snapshot, root, path: Vec::new(), behind_last: false }
    }

    /// Moves to the first entry.
    pub fn first(&mut self) -> Result<Option<Entry<'tx>>> {
        self.reset();
        let moved = self.descend(self.root, Way::Up).and_then(|()| self.settle(Way::Up));
        self.or_reset(moved)
    }

    /// Moves to the last entry.
    pub fn last(&mut self) -> Result<Option<Entry<'tx>>> {
        self.reset();
        let moved = self.descend(self.root, Way::Down).and_then(|()| self.settle(Way::Down));
        self.or_reset(moved)
    }

    /// Moves to the first entry at or above `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<Entry<'tx>>> {
        self.reset();
        let moved = self.seek_leaf(key).and_then(|()| self.settle(Way::Up));
        self.or_reset(moved)
    }

    fn seek_leaf(&mut self, key: &[u8]) -> Result<()> {
        let mut page = self.root;
        loop {
            match page.kind {
                PageKind::Branch => {
                    let index = page.child_index(key).map_err(|e| self.fault(&page, e))?;
                    self.push(page, index)?;
                    page = self.child(&page, index)?;
                }
                PageKind::Leaf => {
                    let (index, _) = page.seek(key).map_err(|e| self.fault(&page, e))?;
                    return self.push(page, index);
                }
            }
        }
    }

    /// Moves to the next entry. From the position before the first entry, moves to the first one.
    #[expect(
        clippy::should_implement_trait,
        reason = "next can fail, and the cursor moves in both directions"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'tx>>> {
        if self.path.is_empty() {
            return if self.behind_last { Ok(None) } else { self.first() };
        }
        if let Some((_, index)) = self.path.last_mut() {
            *index += 1;
        }
        let moved = self.settle(Way::Up);
        self.or_reset(moved)
    }

    /// Moves to the previous entry. From the position after the last entry, moves to the last one.
    pub fn prev(&mut self) -> Result<Option<Entry<'tx>>> {
        match self.path.last_mut() {
            None => {
                return if self.behind_last { self.last() } else { Ok(None) };
            }
            Some((_, index)) if *index > 0 => *index -= 1,
            Some(_) => {
                self.path.pop();
                let moved = self.advance(Way::Down);
                self.or_reset(moved)?;
            }
        }
        let moved = self.settle(Way::Down);
        self.or_reset(moved)
    }

    /// Moves to the position before the first entry if `moved` is an error, because the path may then be incomplete.
    fn or_reset<T>(&mut self, moved: Result<T>) -> Result<T> {
        if moved.is_err() {
            self.reset();
        }
        moved
    }

    fn reset(&mut self) {
        self.path.clear();
        self.behind_last = false;
    }

    /// Returns the entry at the cursor, after skipping empty leaves.
    fn settle(&mut self, way: Way) -> Result<Option<Entry<'tx>>> {
        while let Some(&(page, index)) = self.path.last() {
            if index < page.count() {
                let found = page.leaf_element(index).map_err(|e| self.fault(&page, e))?;
                let (key, value, is_bucket) = (found.key, found.value, found.is_bucket);
                return Ok(Some(Entry { key, value, is_bucket }));
            }
            self.path.pop();
            self.advance(way)?;
        }
        self.behind_last = way == Way::Up;
        Ok(None)
    }

    /// Moves to the next leaf in this direction, or empties the path. The previous leaf has been
    /// popped.
    fn advance(&mut self, way: Way) -> Result<()> {
        while let Some((page, index)) = self.path.last_mut() {
            let next = match way {
                Way::Up => Some(*index + 1).filter(|next| *next < page.count()),
                Way::Down => index.checked_sub(1),
            };
            if let Some(next) = next {
                *index = next;
                let page = *page;
                let child = self.child(&page, next)?;
                return self.descend(child, way);
            }
            self.path.pop();
        }
        Ok(())
    }

    /// Descends from `page` to its first leaf if the cursor moves to higher keys, or to its last
    /// leaf if the cursor moves to lower keys.
    fn descend(&mut self, mut page: Page<'tx>, way: Way) -> Result<()> {
        loop {
            let index = match way {
                Way::Up => 0,
                // An empty leaf has no last entry. `settle` treats this index as a position outside
                // the leaf.
                Way::Down => page.count().checked_sub(1).unwrap_or(usize::MAX),
            };
            self.push(page, index)?;
            if page.kind == PageKind::Leaf {
                return Ok(());
            }
            page = self.child(&page, index)?;
        }
    }

    fn push(&mut self, page: Page<'tx>, index: usize) -> Result<()> {
        if self.path.len() == DEPTH_MAX {
            return Err(self.snapshot.corrupt(page.id, 0, "tree is too deep or has a cycle"));
        }
        self.path.push((page, index));
        Ok(())
    }

    fn child(&self, page: &Page<'tx>, index: usize) -> Result<Page<'tx>> {
        self.snapshot.page(page.child(index).map_err(|e| self.fault(page, e))?)
    }

    fn fault(&self, page: &Page<'tx>, fault: PageFault) -> super::BoltError {
        self.snapshot.fault(page.id, fault)
    }
}
