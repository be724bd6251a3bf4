//! A snapshot of the file's content, by bucket.
//!
//! # Not here
//!
//! Decoding values other than numbers and revisions. The modules that write these values also decode them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use quorate_storage::bolt::ReadTx;

use super::Fault;
use crate::schema::{Bucket, Revision, meta};

/// The file's content as of one commit. Cloning a view only increments a reference count. The file
/// does not reuse the pages of a view until the view is dropped.
#[derive(Clone, Debug)]
pub struct BackendView {
    read: ReadTx,
    path: Arc<Path>,
}

impl BackendView {
    pub(super) const fn new(read: ReadTx, path: Arc<Path>) -> Self {
        Self { read, path }
    }

    /// Returns the storage engine's read transaction, for images and checks.
    #[must_use]
    pub const fn transaction(&self) -> &ReadTx {
        &self.read
    }

    /// Returns the path of the file.
    #[must_use]
    pub const fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Returns the value of a key, as a slice of the mapped file.
    pub fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let Some(bucket) = self.read.bucket(bucket.name())? else { return Ok(None) };
        Ok(bucket.get(key)?.map(|value| self.read.bytes(value)))
    }

    /// Returns the values of several keys, as slices of the mapped file. This is fastest if the
    /// keys are in order.
    pub fn get_each<K: AsRef<[u8]>>(
        &self,
        bucket: Bucket,
        mut keys: impl Iterator<Item = K>,
        mut take: impl FnMut(Option<Bytes>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        match self.read.bucket(bucket.name())? {
            Some(bucket) => {
                bucket.get_each(keys, |value| take(value.map(|value| self.read.bytes(value))))
            }
            None => keys.try_for_each(|_| take(None)),
        }
    }

    /// Returns copies of all entries of a small bucket, in key order.
    pub fn entries(&self, bucket: Bucket) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let mut found = Vec::new();
        self.scan(bucket, |key, value| {
            found.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Visits the entries of a bucket in key order until `visit` breaks. An error from `visit`
    /// becomes a fault that names the entry.
    pub fn scan(
        &self,
        bucket: Bucket,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, &'static str>,
    ) -> Result<(), Fault> {
        let mut scanner = self.read.scan(bucket.name())?;
        let mut position = 0;
        while let Some(entry) = scanner.next()? {
            match visit(entry.key, entry.value) {
                Ok(ControlFlow::Continue(())) => position += 1,
                Ok(ControlFlow::Break(())) => break,
                Err(problem) => return Err(self.corrupt(bucket, position, entry.key, problem)),
            }
        }
        Ok(())
    }

    /// Returns the raft index and term of the last entry that the file contains; (0, 0) if the file contains no index.
    pub fn consistent_index(&self) -> Result<(u64, u64), Fault> {
        Ok((self.number(meta::CONSISTENT_INDEX)?, self.number(meta::TERM)?))
    }

    /// Returns the mark of the restore that created the file, or `None` if the file was not restored.
    pub fn restore_mark(&self) -> Result<Option<String>, Fault> {
        let mark = self.get(Bucket::Meta, meta::RESTORED)?;
        Ok(mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()))
    }

    /// Returns the stored voters and learners, as JSON.
    pub fn conf_state(&self) -> Result<Option<Bytes>, Fault> {
        self.get(Bucket::Meta, meta::CONF_STATE)
    }

    /// Returns the main revision of the last scheduled or the last finished compaction, depending
    /// on `name`.
    pub fn compaction(&self, name: &[u8]) -> Result<Option<i64>, Fault> {
        let Some(value) = self.get(Bucket::Meta, name)? else { return Ok(None) };
        match Revision::decode(&value) {
            Some(revision) => Ok(Some(revision.main)),
            None => Err(self.corrupt(Bucket::Meta, None, name, "the value is not a revision")),
        }
    }

    /// Returns the CRC-32C over all buckets. Members that have applied the same entries and deleted
    /// the same garbage have the same hash. The causes of alarms are left out, because etcd members
    /// do not store them.
    pub fn hash(&self) -> Result<u32, Fault> {
        let ignored = [meta::CONSISTENT_INDEX, meta::TERM, meta::STORAGE_VERSION];
        let mut hash = 0;
        for name in self.read.bucket_names()? {
            hash = crc32c::crc32c_append(hash, name);
            let mut scanner = self.read.scan(name)?;
            while let Some(entry) = scanner.next()? {
                if name != Bucket::Meta.name() || !ignored.contains(&entry.key) {
                    hash = crc32c::crc32c_append(hash, entry.key);
                    let is_cause = name == Bucket::Alarm.name();
                    let value = if is_cause { &[][..] } else { entry.value };
                    hash = crc32c::crc32c_append(hash, value);
                }
            }
        }
        Ok(hash)
    }

    /// Creates a fault for an invalid key or value that was read after `position` other entries of
    /// its bucket.
    #[must_use]
    pub fn corrupt(
        &self,
        bucket: Bucket,
        position: impl Into<Option<u64>>,
        key: &[u8],
        problem: &'static str,
    ) -> Fault {
        Fault::Corrupt {
            path: Arc::clone(&self.path),
            bucket,
            position: position.into(),
            key: key.into(),
            problem,
        }
    }

    fn number(&self, name: &[u8]) -> Result<u64, Fault> {
        let Some(value) = self.get(Bucket::Meta, name)? else { return Ok(0) };
        match value[..].try_into() {
            Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
            Err(_) => Err(self.corrupt(Bucket::Meta, None, name, "the value is not a number")),
        }
    }
}
