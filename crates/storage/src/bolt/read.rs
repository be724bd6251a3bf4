//! Read transactions: a pinned state, its buckets, point reads, and the state as a file image.
//!
//! Nothing here locks or copies. A [`ReadTx`] is a counted reference to a snapshot: cloning it and
//! sending it to another thread is cheap, and it never waits for the writer nor the writer for it.
//! What it costs is space: pages that the writer frees stay in place while a snapshot needs them.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{self, Problem};
use super::cursor::Cursor;
use super::error::{BoltError, Result};
use super::meta::{Meta, NO_FREELIST};
use super::page::{HEADER_BYTES, LeafElement, Page, PageFault, PageKind};
use super::scan::Scanner;
use super::snapshot::Snapshot;
use super::together::{TOGETHER, find_together};
use super::{DEPTH_MAX, PageId, TxId};
use crate::disk::DiskFile;

/// A constant view of the last committed state at the time it was taken.
#[derive(Clone, Debug)]
pub struct ReadTx {
    pub(super) snapshot: Arc<Snapshot>,
}

impl ReadTx {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot }
    }

    /// The number of the commit that this view shows.
    #[must_use]
    pub fn txid(&self) -> u64 {
        self.snapshot.meta.txid.0
    }

    /// Opens a bucket; `None` when there is none of that name.
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

    /// Turns a slice that this view handed out into shared bytes, without a copy.
    ///
    /// The result keeps the view's pages in place for as long as it lives, so hold on to few of them
    /// for long. The slice must come from this view (or a clone of it): anything else is a bug.
    #[must_use]
    pub fn bytes(&self, slice: &[u8]) -> Bytes {
        if slice.is_empty() {
            return Bytes::new();
        }
        let start = self.snapshot.offset_of(slice);
        self.snapshot.data.slice(start..start + slice.len())
    }

    /// Reads a bucket's entries in key order through ordinary reads instead of the map.
    ///
    /// For whole-bucket scans: the process does not grow by the pages it has seen. An absent bucket
    /// scans as an empty one.
    pub fn scan(&self, bucket: &[u8]) -> Result<Scanner> {
        Scanner::new(Arc::clone(&self.snapshot), bucket)
    }

    /// Length of this state as a file of its own.
    #[must_use]
    pub fn image_len(&self) -> u64 {
        self.snapshot.meta.image_bytes()
    }

    /// Reads a piece of this state as a file of its own, and returns how many bytes there were.
    ///
    /// The image has this view's number on the first meta page and the number before it on the
    /// second, as bbolt's own copies do. Free pages inside are part of it, with any content.
    pub fn read_image_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let snapshot = &*self.snapshot;
        let left = self.image_len().saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let buffer = &mut buffer[..wanted];
        let metas_len = 2 * snapshot.page_bytes() as u64;
        let mut done = 0;
        if offset < metas_len {
            let metas = image_metas(&snapshot.meta);
            let rest = &metas[offset as usize..];
            done = rest.len().min(buffer.len());
            buffer[..done].copy_from_slice(&rest[..done]);
        }
        read_exact(snapshot, &mut buffer[done..], offset + done as u64)?;
        Ok(wanted)
    }

    /// Verifies the whole state: every page reachable once, well-formed, and in order.
    ///
    /// Returns what is wrong, at most a few hundred findings; an empty list means a sound file.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        check::check(&self.snapshot)
    }
}

/// The bucket that holds the buckets.
pub(super) fn root_bucket(snapshot: &Snapshot) -> Result<BucketReader<'_>> {
    Ok(BucketReader { snapshot, root: snapshot.page(snapshot.meta.root)? })
}

/// A bucket in a view: sorted keys with their values.
#[derive(Clone, Copy, Debug)]
pub struct BucketReader<'tx> {
    snapshot: &'tx Snapshot,
    root: Page<'tx>,
}

impl<'tx> BucketReader<'tx> {
    pub(super) fn snapshot(&self) -> &'tx Snapshot {
        self.snapshot
    }

    pub(super) fn root(&self) -> Page<'tx> {
        self.root
    }

    /// Returns the value of `key`, or `None` when there is none (or `key` names a bucket).
    pub fn get(&self, key: &[u8]) -> Result<Option<&'tx [u8]>> {
        let found = self.find(key)?;
        Ok(found.filter(|(_, element)| !element.is_bucket).map(|(_, element)| element.value))
    }

    /// Hands on what [`BucketReader::get`] returns for each key, until `take` fails. The keys are looked for
    /// several at a time, which is fastest when they are in order, and right in any.
    pub fn get_each<K: AsRef<[u8]>, E: From<BoltError>>(
        &self,
        mut keys: impl Iterator<Item = K>,
        mut take: impl FnMut(Option<&'tx [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut group, mut found) = (Vec::new(), Vec::new());
        loop {
            group.extend(keys.by_ref().take(TOGETHER));
            if group.is_empty() {
                return Ok(());
            }
            find_together(self, &group, &mut found)?;
            group.clear();
            for entry in found.drain(..) {
                take(entry.filter(|entry| !entry.is_bucket).map(|entry| entry.value))?;
            }
        }
    }

    /// Opens a bucket inside this one; `None` when there is none of that name.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Self>> {
        let found = self.bucket_value(name)?;
        found.map(|(value, holder)| open_bucket(self.snapshot, value, holder)).transpose()
    }

    /// The description of a bucket inside this one, and the page it lies on.
    pub(super) fn bucket_value(&self, name: &[u8]) -> Result<Option<(&'tx [u8], PageId)>> {
        let found = self.find(name)?.filter(|(_, found)| found.is_bucket);
        Ok(found.map(|(page, element)| (element.value, page)))
    }

    /// A cursor over the entries, standing before the first one.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'tx> {
        Cursor::new(self)
    }

    /// The entry of `key` and the page it lies on.
    fn find(&self, key: &[u8]) -> Result<Option<(PageId, LeafElement<'tx>)>> {
        let mut page = self.root;
        for _ in 0..DEPTH_MAX {
            let at_page = |fault: PageFault| self.snapshot.fault(page.id, fault);
            match page.kind {
                PageKind::Branch => {
                    let index = page.child_index(key).map_err(at_page)?;
                    page = self.snapshot.page(page.child(index).map_err(at_page)?)?;
                }
                PageKind::Leaf => {
                    let (index, exact) = page.seek(key).map_err(at_page)?;
                    if !exact {
                        return Ok(None);
                    }
                    let element = page.leaf_element(index).map_err(at_page)?;
                    return Ok(Some((page.id, element)));
                }
            }
        }
        Err(self.snapshot.corrupt(page.id, 0, "tree is too deep or has a cycle"))
    }
}

/// Opens the bucket that `value` describes, an element's value on page `holder`.
pub(super) fn open_bucket<'tx>(
    snapshot: &'tx Snapshot,
    value: &'tx [u8],
    holder: PageId,
) -> Result<BucketReader<'tx>> {
    let Some((root, _sequence)) = bucket_header(value) else {
        return Err(snapshot.corrupt(holder, 0, "bucket header is cut off"));
    };
    let root = if root == PageId(0) {
        snapshot.inline_page(value, holder)?
    } else {
        snapshot.page(root)?
    };
    Ok(BucketReader { snapshot, root })
}

/// Root page (0: inline) and sequence from the first 16 bytes of a bucket's value.
pub(super) fn bucket_header(value: &[u8]) -> Option<(PageId, u64)> {
    let header: &[u8; HEADER_BYTES] = value.first_chunk()?;
    let (root, sequence) = header.split_at(8);
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
    Some((PageId(word(root)?), word(sequence)?))
}

/// Fills `buffer` from the file at `offset`.
pub(super) fn read_exact(snapshot: &Snapshot, buffer: &mut [u8], offset: u64) -> Result<()> {
    if buffer.is_empty() {
        return Ok(());
    }
    let file: &dyn DiskFile = &*snapshot.file;
    file.read_exact_at(buffer, offset).map_err(|source: io::Error| BoltError::Io {
        path: Arc::clone(&snapshot.path),
        operation: "read pages",
        offset,
        source,
    })
}

/// Both meta pages of a state as a file of its own.
fn image_metas(meta: &Meta) -> Vec<u8> {
    let newer = Meta { freelist: NO_FREELIST, ..*meta };
    let older = Meta { txid: TxId(meta.txid.0.saturating_sub(1)), ..newer };
    let mut pages = Vec::with_capacity(2 * meta.page_bytes as usize);
    newer.put(&mut pages, PageId(0));
    older.put(&mut pages, PageId(1));
    pages
}
