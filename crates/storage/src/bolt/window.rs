//! Consecutive pages of a state, read from the file into a buffer.
//!
//! A scan of the whole file does not use the mapping, because the mapped pages would become resident memory. The pages
//! are read in large pieces, because most pages that are read in sequence are also adjacent in the file.

use std::sync::Arc;

use super::PageId;
use super::error::Result;
use super::page::{self, Page};
use super::snapshot::Snapshot;
use crate::size::in_memory;

/// The maximum number of bytes that one call reads ahead.
const WINDOW_BYTES: usize = 256 << 10;
/// The maximum number of unneeded pages that are read between two needed ones.
const GAP_PAGES_MAX: u64 = 4;

/// A buffer that holds consecutive pages of a state's file.
#[derive(Debug)]
pub(super) struct Window {
    snapshot: Arc<Snapshot>,
    bytes: Vec<u8>,
    start: PageId,
}

impl Window {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, bytes: Vec::new(), start: PageId(0) }
    }

    /// Returns the page that starts at offset `at` of the buffer. [`Self::load`] returns this offset.
    pub(super) fn page(&self, id: PageId, at: usize) -> Result<Page<'_>> {
        let bytes = self.bytes.get(at..).unwrap_or_default();
        let page = Page::parse(bytes, id, self.snapshot.page_bytes());
        page.map_err(|e| self.snapshot.fault(id, e))
    }

    /// Reads a whole page into the buffer and returns its start in the buffer.
    ///
    /// `next` returns the pages that are known to be needed after that page.
    pub(super) fn load(&mut self, id: PageId, next: impl Iterator<Item = PageId>) -> Result<usize> {
        let page_bytes = self.snapshot.page_bytes();
        let pages_left = self.snapshot.meta.high_water.0.saturating_sub(id.0);
        if id.0 < 2 || pages_left == 0 {
            return Err(self.snapshot.corrupt(id, 0, "page number is outside of the file"));
        }
        if let Some(at) = self.place_in_window(id)
            && in_memory(self.pages_at(at)?) * page_bytes + at <= self.bytes.len()
        {
            return Ok(at);
        }
        self.fill(id, self.pages_wanted(id, next).min(pages_left))?;
        let pages = self.pages_at(0)?;
        if pages > pages_left {
            let reason = "overflow extends beyond the last page";
            return Err(self.snapshot.corrupt(id, 12, reason));
        }
        if in_memory(pages) * page_bytes > self.bytes.len() {
            self.fill(id, pages)?;
        }
        Ok(0)
    }

    fn place_in_window(&self, id: PageId) -> Option<usize> {
        let pages = usize::try_from(id.0.checked_sub(self.start.0)?).ok()?;
        let at = pages.checked_mul(self.snapshot.page_bytes())?;
        (at < self.bytes.len()).then_some(at)
    }

    /// Returns the number of file pages (1 plus the overflow) that make up the page at `at`.
    fn pages_at(&self, at: usize) -> Result<u64> {
        let header = page::header(self.bytes.get(at..).unwrap_or_default());
        let header = header.map_err(|e| self.snapshot.fault(self.start, e))?;
        Ok(u64::from(header.overflow) + 1)
    }

    /// Returns the number of pages to read, starting at `id`, including those that are needed next.
    fn pages_wanted(&self, id: PageId, next: impl Iterator<Item = PageId>) -> u64 {
        let pages_max = (WINDOW_BYTES / self.snapshot.page_bytes()) as u64;
        let mut last = id;
        for page in next {
            let near = page.0.checked_sub(last.0).is_some_and(|gap| gap <= GAP_PAGES_MAX);
            if !near || page.0 - id.0 >= pages_max {
                break;
            }
            last = page;
        }
        last.0 - id.0 + 1
    }

    fn fill(&mut self, id: PageId, pages: u64) -> Result<()> {
        let page_bytes = self.snapshot.page_bytes();
        self.start = id;
        self.bytes.clear();
        self.bytes.resize(in_memory(pages) * page_bytes, 0);
        let read = self.snapshot.read_exact(&mut self.bytes, id.0 * page_bytes as u64);
        if read.is_err() {
            self.bytes.clear();
        }
        read
    }
}
