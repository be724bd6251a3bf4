//! Meta pages, which contain the file's page size and the number of the current state's root page.
//!
//! ```text
//! +16 magic u32 | version u32 | page bytes u32 | flags u32
//! +32 root page u64 | root sequence u64 | free list page u64 | high-water mark u64
//! +64 transaction id u64 | FNV-1a 64 of the 56 bytes from +16 u64
//! ```
//!
//! Pages 0 and 1 are meta pages. The valid meta page with the higher transaction id is current. In a file that is in
//! use, transaction `t` is written to page `t % 2`, but a streamed image always has the newer meta page at position 0,
//! so the position does not determine which meta page is current.
//!
//! # Not here
//!
//! The check that the file is as long as the meta page requires, and the content of the tree (`db`,
//! `check`).

use super::error::{BoltError, Result};
use super::page::{FLAG_META, HEADER_BYTES, Header, put_header};
use super::{PageId, TxId};
use crate::checksum::fnv1a_64;
use crate::disk::DiskFile;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub(super) const MAGIC: u32 = 0xED0C_DAED;
pub(super) const VERSION: u32 = 2;
/// The free list's page id in a file without a stored free list.
pub(super) const NO_FREELIST: PageId = PageId(u64::MAX);
pub(super) const META_END: usize = 80;
pub(super) const CHECKED_BYTES: usize = 56;
/// The minimum supported page size, in bytes. Page sizes are powers of two.
pub(super) const PAGE_BYTES_MIN: usize = 1 << 10;
pub(super) const PAGE_BYTES_MAX: usize = 1 << 16;

/// The fields of a committed state's meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) page_bytes: u32,
    pub(super) root: PageId,
    pub(super) root_sequence: u64,
    pub(super) freelist: PageId,
    /// All pages of the state have lower numbers than this mark.
    pub(super) high_water: PageId,
    pub(super) txid: TxId,
}

impl Meta {
    /// Decodes a meta page. Returns `None` if the magic, the version or the checksum is wrong.
    pub(super) fn parse(page: &[u8]) -> Option<Self> {
        let body = page.get(HEADER_BYTES..META_END)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let sum = fnv1a_64(&body[..CHECKED_BYTES]);
        if u32_at(0)? != MAGIC || u32_at(4)? != VERSION || u64_at(CHECKED_BYTES)? != sum {
            return None;
        }
        Some(Self {
            page_bytes: u32_at(8)?,
            root: PageId(u64_at(16)?),
            root_sequence: u64_at(24)?,
            freelist: PageId(u64_at(32)?),
            high_water: PageId(u64_at(40)?),
            txid: TxId(u64_at(48)?),
        })
    }

    /// Appends a whole meta page with the page number `id`.
    pub(super) fn put(&self, out: &mut Vec<u8>, id: PageId) {
        let start = out.len();
        put_header(out, &Header { id, flags: FLAG_META, count: 0, overflow: 0 });
        for field in [MAGIC, VERSION, self.page_bytes, 0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let words =
            [self.root.0, self.root_sequence, self.freelist.0, self.high_water.0, self.txid.0];
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let sum = fnv1a_64(&out[start + HEADER_BYTES..]);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(start + self.page_bytes as usize, 0);
    }

    /// Returns the length of the file up to the high-water mark.
    pub(super) fn image_bytes(&self) -> u64 {
        self.high_water.0.saturating_mul(u64::from(self.page_bytes))
    }
}

/// Returns whether the engine supports pages of this size.
pub(super) fn is_page_size(bytes: usize) -> bool {
    bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&bytes)
}

/// Minimum number of bytes from which [`image_bytes`] determines the length of an image.
pub const IMAGE_HEAD_BYTES: usize = META_END;

/// Returns the length of a streamed image that begins with `head`. An image begins with a valid meta page, and ends at
/// the high-water mark, whether Quorate or bbolt has written it.
pub fn image_bytes(path: &Path, head: &[u8]) -> Result<u64> {
    let meta = Meta::parse(head).filter(|meta| is_page_size(meta.page_bytes as usize));
    let meta = meta.ok_or_else(|| BoltError::NotABackend {
        path: Arc::from(path),
        second_meta: 0,
        reason: "magic, version, page size or checksum of the first meta page is wrong",
    })?;
    Ok(meta.image_bytes())
}

/// Reads both meta pages. Returns the current meta page and its page number.
pub(super) fn read_current(file: &dyn DiskFile, path: &Arc<Path>) -> Result<(Meta, PageId)> {
    let invalid = |second_meta: usize, reason| BoltError::NotABackend {
        path: Arc::clone(path),
        second_meta: second_meta as u64,
        reason,
    };
    let read = |at: usize| -> Result<Option<Meta>> {
        let mut page = [0; META_END];
        match file.read_exact_at(&mut page, at as u64) {
            Ok(()) => Ok(Meta::parse(&page)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(BoltError::Io {
                path: Arc::clone(path),
                operation: "read a meta page",
                offset: at as u64,
                source,
            }),
        }
    };
    let accepted = |meta: &Meta| is_page_size(meta.page_bytes as usize);
    let first = read(0)?;
    let page_bytes = match first {
        Some(meta) if accepted(&meta) => meta.page_bytes as usize,
        Some(meta) => {
            return Err(invalid(meta.page_bytes as usize, "page size is not supported"));
        }
        None => {
            // The first meta page is damaged. The second meta page starts at the offset of one page, but the page size
            // is unknown, so every supported size is tried.
            let mut candidate = PAGE_BYTES_MIN;
            loop {
                if candidate > PAGE_BYTES_MAX {
                    return Err(invalid(4096, "magic, version or checksum is wrong"));
                }
                if read(candidate)?.is_some_and(|meta| meta.page_bytes as usize == candidate) {
                    break candidate;
                }
                candidate *= 2;
            }
        }
    };
    let second = read(page_bytes)?.filter(|meta| meta.page_bytes as usize == page_bytes);
    let metas = [(first, PageId(0)), (second, PageId(1))].into_iter();
    let metas = metas.filter_map(|(meta, place)| Some((meta?, place)));
    let current = metas.max_by_key(|(meta, _)| meta.txid);
    let (meta, place) =
        current.ok_or_else(|| invalid(page_bytes, "magic, version or checksum is wrong"))?;
    if meta.txid.0 == u64::MAX {
        return Err(invalid(page_bytes, "the transaction numbers are exhausted"));
    }
    let pages = PageId(2).0..meta.high_water.0;
    if !pages.contains(&meta.root.0) {
        return Err(invalid(page_bytes, "root page is outside of the file"));
    }
    if meta.freelist != NO_FREELIST && !pages.contains(&meta.freelist.0) {
        return Err(invalid(page_bytes, "free list page is outside of the file"));
    }
    Ok((meta, place))
}
