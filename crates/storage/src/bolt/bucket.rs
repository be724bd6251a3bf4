//! Opens the buckets of a state, and reads single keys from them.
//!
//! # Not here
//!
//! Iteration over entries (`cursor`), reads of many keys at once (`multi_get`), and scans of whole
//! buckets (`scan`).

use super::cursor::Cursor;
use super::error::{BoltError, Result};
use super::multi_get::{KEYS_MAX, find_each};
use super::page::{HEADER_BYTES, LeafElement, Page, PageFault, PageKind};
use super::snapshot::Snapshot;
use super::{DEPTH_MAX, PageId};

/// Returns the bucket that contains all other buckets.
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
    /// Returns the value of `key`, or `None` if the key does not exist or names a bucket.
    pub fn get(&self, key: &[u8]) -> Result<Option<&'tx [u8]>> {
        let found = self.find(key)?;
        Ok(found.filter(|(_, element)| !element.is_bucket).map(|(_, element)| element.value))
    }

    /// Calls `take` with the result of [`BucketReader::get`] for each key, until `take` fails.
    /// Several keys are looked up together. This is fastest for sorted keys, but any order is
    /// allowed.
    pub fn get_each<K: AsRef<[u8]>, E: From<BoltError>>(
        &self,
        mut keys: impl Iterator<Item = K>,
        mut take: impl FnMut(Option<&'tx [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut group, mut found) = (Vec::new(), Vec::new());
        loop {
            group.extend(keys.by_ref().take(KEYS_MAX));
            if group.is_empty() {
                return Ok(());
            }
            find_each(self.snapshot, self.root, &group, &mut found)?;
            group.clear();
            for entry in found.drain(..) {
                take(entry.filter(|entry| !entry.is_bucket).map(|entry| entry.value))?;
            }
        }
    }

    /// Opens a bucket inside this bucket. Returns `None` if it does not exist.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Self>> {
        let found = self.bucket_value(name)?;
        found.map(|(value, holder)| open_bucket(self.snapshot, value, holder)).transpose()
    }

    /// Returns the value that describes a bucket inside this bucket, and the page that contains the
    /// value.
    pub(super) fn bucket_value(&self, name: &[u8]) -> Result<Option<(&'tx [u8], PageId)>> {
        let found = self.find(name)?.filter(|(_, found)| found.is_bucket);
        Ok(found.map(|(page, element)| (element.value, page)))
    }

    /// Returns a cursor over the entries, positioned before the first one.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'tx> {
        Cursor::new(self.snapshot, self.root)
    }

    /// Returns the entry of `key` and the page that contains it.
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

/// Opens the bucket described by `value`, which is the value of an element on page `holder`.
fn open_bucket<'tx>(
    snapshot: &'tx Snapshot,
    value: &'tx [u8],
    holder: PageId,
) -> Result<BucketReader<'tx>> {
    let Some((root, _sequence)) = bucket_header(value) else {
        return Err(snapshot.corrupt(holder, 0, "bucket header is truncated"));
    };
    let root = if root == PageId(0) {
        snapshot.inline_page(value, holder)?
    } else {
        snapshot.page(root)?
    };
    Ok(BucketReader { snapshot, root })
}

/// Returns the root page (0 for an inline bucket) and the sequence, from the first 16 bytes of a
/// bucket's value.
pub(super) fn bucket_header(value: &[u8]) -> Option<(PageId, u64)> {
    let header: &[u8; HEADER_BYTES] = value.first_chunk()?;
    let (root, sequence) = header.split_at(8);
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk()?));
    Some((PageId(word(root)?), word(sequence)?))
}
