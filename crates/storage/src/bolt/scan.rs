//! Reads a bucket from start to end through ordinary reads instead of the memory map.
//!
//! With the memory map, every page that is read becomes resident memory of the process. Scanning a whole bucket when
//! the process starts would make the process as large as the file. So a scan reads into its own buffer. Each read
//! covers several consecutive leaves, because most consecutive leaves are also adjacent in the file.
//!
//! # Not here
//!
//! Random access (`bucket`, `cursor`).

use std::sync::Arc;

use super::bucket::{bucket_header, root_bucket};
use super::cursor::Entry;
use super::error::Result;
use super::page::{self, Page, PageKind};
use super::snapshot::Snapshot;
use super::window::Window;
use super::{DEPTH_MAX, PageId};

/// A bucket's entries in key order. See [`super::ReadTx::scan`].
#[derive(Debug)]
pub struct Scanner {
    snapshot: Arc<Snapshot>,
    /// The remaining pages of each level, starting at the root. In each list, the next page is at the end.
    ahead: Vec<Vec<PageId>>,
    window: Window,
    /// The page of an inline bucket. Empty for a bucket with its own pages.
    inline: Vec<u8>,
    leaf: Option<Leaf>,
}

/// The current leaf, within the window.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    id: PageId,
    /// The offset of the leaf in the window.
    at: usize,
    inline: bool,
    index: usize,
}

impl Scanner {
    pub(super) fn new(snapshot: Arc<Snapshot>, bucket: &[u8]) -> Result<Self> {
        let mut scanner = Self {
            ahead: Vec::new(),
            window: Window::new(Arc::clone(&snapshot)),
            inline: Vec::new(),
            leaf: None,
            snapshot: Arc::clone(&snapshot),
        };
        let Some((value, holder)) = root_bucket(&snapshot)?.bucket_value(bucket)? else {
            return Ok(scanner);
        };
        match bucket_header(value) {
            None => return Err(snapshot.corrupt(holder, 0, "bucket header is truncated")),
            Some((PageId(0), _)) => {
                snapshot.inline_page(value, holder)?;
                value[page::HEADER_BYTES..].clone_into(&mut scanner.inline);
                scanner.leaf = Some(Leaf { id: holder, at: 0, inline: true, index: 0 });
            }
            Some((root, _)) => scanner.ahead.push(vec![root]),
        }
        Ok(scanner)
    }

    /// Returns the next entry, or `None` after the last one.
    #[expect(
        clippy::should_implement_trait,
        reason = "next can fail, and its entries borrow from the scanner's buffer"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>> {
        while !self.leaf_has_more()? {
            if !self.advance()? {
                return Ok(None);
            }
        }
        let Some(leaf) = &mut self.leaf else { return Ok(None) };
        let index = leaf.index;
        leaf.index += 1;
        let leaf = *leaf;
        let found = self.page(leaf)?.leaf_element(index);
        let found = found.map_err(|e| self.snapshot.fault(leaf.id, e))?;
        Ok(Some(Entry { key: found.key, value: found.value, is_bucket: found.is_bucket }))
    }

    fn leaf_has_more(&self) -> Result<bool> {
        match self.leaf {
            Some(leaf) => Ok(leaf.index < self.page(leaf)?.count()),
            None => Ok(false),
        }
    }

    fn page(&self, leaf: Leaf) -> Result<Page<'_>> {
        if leaf.inline {
            let page = Page::parse_inline(&self.inline);
            return page.map_err(|e| self.snapshot.fault(leaf.id, e));
        }
        self.window.page(leaf.id, leaf.at)
    }

    /// Moves to the next leaf. Returns `false` after the last one.
    fn advance(&mut self) -> Result<bool> {
        self.leaf = None;
        while let Some(level) = self.ahead.last_mut() {
            let Some(id) = level.pop() else {
                self.ahead.pop();
                continue;
            };
            let at = self.window.load(id, level.iter().rev().copied())?;
            let leaf = Leaf { id, at, inline: false, index: 0 };
            let page = self.page(leaf)?;
            if page.kind == PageKind::Leaf {
                self.leaf = Some(leaf);
                return Ok(true);
            }
            let children = (0..page.count()).rev().map(|index| page.child(index));
            let children = children.collect::<Result<Vec<_>, _>>();
            let children = children.map_err(|e| self.snapshot.fault(id, e))?;
            if self.ahead.len() == DEPTH_MAX {
                return Err(self.snapshot.corrupt(id, 0, "tree is too deep or has a cycle"));
            }
            self.ahead.push(children);
        }
        Ok(false)
    }
}
