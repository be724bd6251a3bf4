//! Read transactions. A read transaction pins a state, and can also read that state as a file
//! image.
//!
//! A read takes no lock and copies no data. A [`ReadTx`] is a reference-counted handle to a
//! snapshot: it is cheap to clone and to send to another thread, and neither it nor the writer
//! waits for the other. Its cost is space, because pages that the writer frees are not reused while
//! a snapshot needs them.
//!
//! # Not here
//!
//! The content of a bucket (`bucket`).

use std::sync::Arc;

use bytes::Bytes;

use super::bucket::{BucketReader, root_bucket};
use super::check::{self, Problem};
use super::error::Result;
use super::meta::{Meta, NO_FREELIST};
use super::scan::Scanner;
use super::snapshot::Snapshot;
use super::{PageId, TxId};
use crate::size::in_memory;

/// An immutable view of the state that was last committed when the view was created.
#[derive(Clone, Debug)]
pub struct ReadTx {
    pub(super) snapshot: Arc<Snapshot>,
}

impl ReadTx {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot }
    }

    /// Returns the number of the commit that this view shows.
    #[must_use]
    pub fn txid(&self) -> u64 {
        self.snapshot.meta.txid.0
    }

    /// Opens a bucket. Returns `None` if it does not exist.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<BucketReader<'_>>> {
        root_bucket(&self.snapshot)?.bucket(name)
    }

    /// Returns the names of all buckets in byte order.
    pub fn bucket_names(&self) -> Result<Vec<&[u8]>> {
        let mut names = Vec::new();
        let mut cursor = root_bucket(&self.snapshot)?.cursor();
        let mut entry = cursor.first()?;
        while let Some(found) = entry {
            if found.is_bucket {
                names.push(found.key);
            }
            entry = cursor.next()?;
        }
        Ok(names)
    }

    /// Converts a slice of this view to shared bytes without copying the data.
    ///
    /// The result pins the view's pages while it lives, so the caller should not keep many results
    /// for a long time. The slice must come from this view or a clone of it. Passing any other
    /// slice is a bug.
    #[must_use]
    pub fn bytes(&self, slice: &[u8]) -> Bytes {
        if slice.is_empty() {
            return Bytes::new();
        }
        let start = self.snapshot.offset_of(slice);
        self.snapshot.data.slice(start..start + slice.len())
    }

    /// Returns a scanner that reads a bucket's entries in key order through ordinary reads instead
    /// of the mapping.
    ///
    /// The scanner is intended for scans of whole buckets, because the pages that it reads do not
    /// become resident memory of the process. A missing bucket reads as an empty one.
    pub fn scan(&self, bucket: &[u8]) -> Result<Scanner> {
        Scanner::new(Arc::clone(&self.snapshot), bucket)
    }

    /// Returns the length in bytes of this state's image, which is a complete backend file.
    #[must_use]
    pub fn image_len(&self) -> u64 {
        self.snapshot.meta.image_bytes()
    }

    /// Reads a part of this state's image. Returns the number of bytes read.
    ///
    /// The image has this view's transaction number on the first meta page and the previous number
    /// on the second, like bbolt's own copies. Free pages are part of the image, with arbitrary
    /// content.
    pub fn read_image_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let snapshot = &*self.snapshot;
        let left = self.image_len().saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let buffer = &mut buffer[..wanted];
        let metas_len = 2 * snapshot.page_bytes() as u64;
        let mut done = 0;
        if offset < metas_len {
            let metas = image_metas(&snapshot.meta);
            let rest = &metas[in_memory(offset)..];
            done = rest.len().min(buffer.len());
            buffer[..done].copy_from_slice(&rest[..done]);
        }
        snapshot.read_exact(&mut buffer[done..], offset + done as u64)?;
        Ok(wanted)
    }

    /// Verifies the whole state: every page is reachable exactly once, well-formed, and in order.
    ///
    /// Returns the problems, at most a few hundred. The list is empty for a sound file.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        check::check(&self.snapshot)
    }

    /// Returns the file offset of a problem.
    #[must_use]
    pub fn offset_of(&self, problem: &Problem) -> u64 {
        let page_start = problem.page.saturating_mul(self.snapshot.page_bytes() as u64);
        page_start.saturating_add(problem.offset as u64)
    }
}

/// Returns both meta pages of a state's image.
fn image_metas(meta: &Meta) -> Vec<u8> {
    let newer = Meta { freelist: NO_FREELIST, ..*meta };
    let older = Meta { txid: TxId(meta.txid.0.saturating_sub(1)), ..newer };
    let mut pages = Vec::with_capacity(2 * meta.page_bytes as usize);
    newer.put(&mut pages, PageId(0));
    older.put(&mut pages, PageId(1));
    pages
}
