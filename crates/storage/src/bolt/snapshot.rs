//! A committed state, and the mapped memory that contains it.
//!
//! Tree pages are read from the mapping with [`Snapshot::page`]. It checks page numbers from the
//! file against the bounds of the state, and adds the file name and the offset to faults.
//!
//! # Invariants
//!
//! * `data` covers the pages below the high-water mark. The file contains all of them while the
//!   snapshot or any slice of `data` lives, because the writer checks [`Pin`] before it reuses
//!   pages or truncates the file.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::PageId;
use super::error::{BoltError, Result};
use super::meta::Meta;
use super::page::{HEADER_BYTES, Page, PageFault};
use crate::disk::{DiskFile, Mapping};
use crate::size::in_memory;

/// A state that remains readable while this value lives.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) meta: Meta,
    pub(super) path: Arc<Path>,
    pub(super) file: Arc<dyn DiskFile>,
    /// The file's bytes up to the high-water mark.
    pub(super) data: Bytes,
}

/// Pins a snapshot's pages. The pin is alive while any value that may read the pages is alive.
#[derive(Debug)]
pub(super) struct Pin;

/// The owner of [`Snapshot::data`] and of every slice of it.
struct PinnedBytes {
    mapping: Arc<Mapping>,
    len: usize,
    _pin: Arc<Pin>,
}

impl AsRef<[u8]> for PinnedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.mapping[..self.len]
    }
}

impl Snapshot {
    /// Creates a snapshot of the state that `meta` describes. `mapping` contains the pages of this state. Returns the
    /// snapshot and its pin.
    pub(super) fn new(
        meta: Meta,
        path: Arc<Path>,
        file: Arc<dyn DiskFile>,
        mapping: Arc<Mapping>,
    ) -> Result<(Self, Arc<Pin>)> {
        let needed = meta.image_bytes();
        let visible = mapping.len();
        let len = usize::try_from(needed).ok().filter(|&len| len <= visible);
        let Some(len) = len else {
            return Err(BoltError::CutOff { path, len: visible as u64, needed });
        };
        let pin = Arc::new(Pin);
        let owner = PinnedBytes { mapping, len, _pin: Arc::clone(&pin) };
        Ok((Self { meta, path, file, data: Bytes::from_owner(owner) }, pin))
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.meta.page_bytes as usize
    }

    /// Reads a tree page.
    pub(super) fn page(&self, id: PageId) -> Result<Page<'_>> {
        // `data` ends at the high-water mark, so a page number beyond the mark results in a position beyond `data`, or
        // in an overflow.
        let start = in_memory(id.0).checked_mul(self.page_bytes());
        let bytes = start.and_then(|start| self.data.get(start..)).filter(|_| id.0 >= 2);
        let Some(bytes) = bytes else {
            return Err(self.corrupt(id, 0, "page number is outside of the file"));
        };
        Page::parse(bytes, id, self.page_bytes()).map_err(|fault| self.fault(id, fault))
    }

    /// Fills `buffer` from the file at `offset` through an ordinary read.
    pub(super) fn read_exact(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.file.read_exact_at(buffer, offset).map_err(|source| BoltError::Io {
            path: Arc::clone(&self.path),
            operation: "read pages",
            offset,
            source,
        })
    }

    /// Prefetches the start of a page into the CPU cache, if the page exists.
    pub(super) fn touch(&self, id: PageId) {
        let start = in_memory(id.0).checked_mul(self.page_bytes());
        std::hint::black_box(start.and_then(|start| self.data.get(start)));
    }

    /// Reads the inline page in a bucket's `value`, which is an element on page `holder`.
    pub(super) fn inline_page<'a>(&self, value: &'a [u8], holder: PageId) -> Result<Page<'a>> {
        let bytes = value.get(HEADER_BYTES..).unwrap_or_default();
        Page::parse_inline(bytes).map_err(|fault| self.fault(holder, fault))
    }

    /// Adds the file and the offset to a fault on page `id`.
    pub(super) fn fault(&self, id: PageId, fault: PageFault) -> BoltError {
        self.corrupt(id, fault.offset, fault.reason)
    }

    /// Returns an error for corruption at byte `offset` of page `id`.
    pub(super) fn corrupt(&self, id: PageId, offset: usize, reason: &'static str) -> BoltError {
        let start = id.0.saturating_mul(self.page_bytes() as u64);
        BoltError::Corrupt {
            path: Arc::clone(&self.path),
            page: id.0,
            offset: start.saturating_add(offset as u64),
            reason,
        }
    }

    /// Returns the file offset of `slice`, which must be part of `data`.
    pub(super) fn offset_of(&self, slice: &[u8]) -> usize {
        let offset = slice.as_ptr().addr().wrapping_sub(self.data.as_ptr().addr());
        assert!(
            offset.checked_add(slice.len()).is_some_and(|end| end <= self.data.len()),
            "the slice is part of the snapshot's bytes"
        );
        offset
    }
}
