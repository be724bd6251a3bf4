//! Write transactions. Edits are collected in memory until they are committed together.
//!
//! There is at most one write transaction at a time. It reads the last committed state plus its own
//! edits. Readers do not see its edits until [`WriteTx::commit`] has made them durable. Dropping
//! the transaction requires no undo, because pages are allocated and written only during the
//! commit.
//!
//! # Not here
//!
//! The order of writes and syncs (`commit`), and the edited tree (`tree`).

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::bucket::{bucket_header, root_bucket};
use super::error::{BoltError, Result};
use super::read::ReadTx;
use super::shared::{Shared, Writer, release_pages};
use super::snapshot::Snapshot;
use super::source::Source;
use super::tree::Tree;
use super::truncate::truncate_released;
use super::{KEY_BYTES_MAX, PageId, VALUE_BYTES_MAX};

/// The current write transaction. See [`super::Db::write`].
#[derive(Debug)]
pub struct WriteTx<'db> {
    pub(super) shared: &'db Shared,
    pub(super) writer: MutexGuard<'db, Writer>,
    pub(super) source: Source,
    pub(super) root: Tree,
    pub(super) edits: Vec<BucketEdit>,
    /// The position of the bucket that was edited last.
    recent: usize,
}

/// A bucket that was opened for writing.
#[derive(Debug)]
pub(super) struct BucketEdit {
    pub(super) name: Box<[u8]>,
    pub(super) sequence: u64,
    pub(super) tree: Tree,
}

impl<'db> WriteTx<'db> {
    pub(super) fn begin(shared: &'db Shared) -> Result<Self> {
        if shared.options.read_only {
            return Err(BoltError::ReadOnly { path: Arc::clone(&shared.path) });
        }
        let mut writer = shared.writer.lock();
        if let Some(cause) = &writer.poisoned {
            let (path, cause) = (Arc::clone(&shared.path), Arc::clone(cause));
            return Err(BoltError::Poisoned { path, cause });
        }
        assert!(
            writer.meta_in_flight.is_none(),
            "a transaction begins after the previous meta page is durable: otherwise a power cut could damage both \
             meta pages"
        );
        truncate_released(shared, &mut writer);
        let snapshot = release_pages(shared, &mut writer);
        let root = Tree::on_page(snapshot.meta.root);
        let source = Source::new(snapshot);
        Ok(Self { shared, writer, source, root, edits: Vec::new(), recent: 0 })
    }

    /// Returns a view of the state before this transaction.
    #[must_use]
    pub fn base(&self) -> ReadTx {
        ReadTx::new(Arc::clone(&self.source.snapshot))
    }

    /// Creates a bucket unless it exists.
    pub fn create_bucket_if_missing(&mut self, name: &[u8]) -> Result<()> {
        check_key(name)?;
        if self.open(name)?.is_none() {
            let tree = Tree::empty();
            self.recent = self.edits.len();
            self.edits.push(BucketEdit { name: name.into(), sequence: 0, tree });
        }
        Ok(())
    }

    /// Sets the value of a key.
    ///
    /// Writing keys in ascending order is fastest. The bytes of `value` are copied once, when the
    /// page is written.
    pub fn put(&mut self, bucket: &[u8], key: &[u8], value: Bytes) -> Result<()> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(BoltError::ValueLength { len: value.len() });
        }
        let index = self.edited(bucket)?;
        self.edits[index].tree.put(&mut self.source, key, value, false)
    }

    /// Removes a key and returns whether it existed.
    pub fn delete(&mut self, bucket: &[u8], key: &[u8]) -> Result<bool> {
        let index = self.edited(bucket)?;
        self.edits[index].tree.delete(&self.source, key)
    }

    /// Removes the given keys, which must be in ascending order. Returns the number of keys that
    /// existed.
    ///
    /// Intended for long lists of keys, because every leaf is visited only once. After an error,
    /// some keys may already have been removed.
    pub fn delete_sorted<K: AsRef<[u8]>>(&mut self, bucket: &[u8], keys: &[K]) -> Result<u64> {
        let index = self.edited(bucket)?;
        self.edits[index].tree.delete_sorted(&self.source, keys)
    }

    /// Removes all entries of a bucket, including nested buckets.
    pub fn clear_bucket(&mut self, bucket: &[u8]) -> Result<()> {
        let index = self.edited(bucket)?;
        self.edits[index].tree.clear(&self.source)
    }

    /// Returns the value of a key with all edits so far, or `None` if the key does not exist.
    pub fn get(&self, bucket: &[u8], key: &[u8]) -> Result<Option<&[u8]>> {
        if let Some(edit) = self.edits.iter().find(|edit| *edit.name == *bucket) {
            let found = edit.tree.get(&self.source, key)?;
            return Ok(found.filter(|(_, is_bucket)| !is_bucket).map(|(value, _)| value));
        }
        match root_bucket(&self.source.snapshot)?.bucket(bucket)? {
            Some(found) => found.get(key),
            None => Err(BoltError::BucketMissing { name: bucket.into() }),
        }
    }

    /// Returns the position of an existing bucket in `edits`.
    pub(super) fn edited(&mut self, name: &[u8]) -> Result<usize> {
        match self.edits.get(self.recent) {
            Some(edit) if *edit.name == *name => Ok(self.recent),
            _ => self.open(name)?.ok_or_else(|| BoltError::BucketMissing { name: name.into() }),
        }
    }

    fn open(&mut self, name: &[u8]) -> Result<Option<usize>> {
        if let Some(index) = self.edits.iter().position(|edit| *edit.name == *name) {
            self.recent = index;
            return Ok(Some(index));
        }
        let Some((value, is_bucket)) = self.root.get(&self.source, name)? else {
            return Ok(None);
        };
        if !is_bucket {
            return Err(BoltError::WrongKind { key: name.into() });
        }
        let snapshot: &Snapshot = &self.source.snapshot;
        let holder = snapshot.meta.root;
        let Some((root, sequence)) = bucket_header(value) else {
            return Err(snapshot.corrupt(holder, 0, "bucket header is truncated"));
        };
        let tree = if root == PageId(0) {
            Tree::from_inline(&self.source, &snapshot.inline_page(value, holder)?, holder)?
        } else {
            Tree::on_page(root)
        };
        self.recent = self.edits.len();
        self.edits.push(BucketEdit { name: name.into(), sequence, tree });
        Ok(Some(self.recent))
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        Ok(())
    } else {
        Err(BoltError::KeyLength { len: key.len() })
    }
}
