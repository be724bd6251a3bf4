//! The file's content at one moment, by bucket.
//!
//! # Not here
//!
//! The meaning of the values, besides numbers and revisions: the modules that write them know it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use quorate_storage::bolt::ReadTx;

use super::Fault;
use crate::schema::{Bucket, Revision, meta};

/// The file's content as of one commit. Cloning costs one reference. Until a view is dropped, its
/// pages are not reused.
#[derive(Clone, Debug)]
pub struct BackendView {
    read: ReadTx,
    path: Arc<Path>,
}

impl BackendView {
    pub(super) const fn new(read: ReadTx, path: Arc<Path>) -> Self {
        Self { read, path }
    }

    /// The engine's read transaction, for images and checks.
    #[must_use]
    pub const fn transaction(&self) -> &ReadTx {
        &self.read
    }

    /// The path of the file.
    #[must_use]
    pub const fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The value of a key, as a slice of the file.
    pub fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        let Some(bucket) = self.read.bucket(bucket.name())? else { return Ok(None) };
        Ok(bucket.get(key)?.map(|value| self.read.bytes(value)))
    }

    /// The values of several keys, as slices of the file. Keys in order are fastest.
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

    /// All entries of a small bucket, in key order, copied.
    pub fn entries(&self, bucket: Bucket) -> Result<Vec<(Bytes, Bytes)>, Fault> {
        let mut found = Vec::new();
        self.scan(bucket, |key, value| {
            found.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Visits the entries of a bucket in key order until `visit` breaks. An error of `visit`
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

    /// Raft index and term of the last entry that the file contains; zero if none was stored.
    pub fn consistent_index(&self) -> Result<(u64, u64), Fault> {
        Ok((self.number(meta::CONSISTENT_INDEX)?, self.number(meta::TERM)?))
    }

    /// The mark of the restore from which the content comes, if there was one.
    pub fn restore_mark(&self) -> Result<Option<String>, Fault> {
        let mark = self.get(Bucket::Meta, meta::RESTORED)?;
        Ok(mark.map(|mark| String::from_utf8_lossy(&mark).into_owned()))
    }

    /// Voters and learners as last stored, JSON.
    pub fn conf_state(&self) -> Result<Option<Bytes>, Fault> {
        self.get(Bucket::Meta, meta::CONF_STATE)
    }

    /// Main revision of the last scheduled or finished compaction, as `name` selects.
    pub fn compaction(&self, name: &[u8]) -> Result<Option<i64>, Fault> {
        let Some(value) = self.get(Bucket::Meta, name)? else { return Ok(None) };
        match Revision::decode(&value) {
            Some(revision) => Ok(Some(revision.main)),
            None => Err(self.corrupt(Bucket::Meta, 0, name, "the value is not a revision")),
        }
    }

    /// CRC-32C over all buckets. It is equal on members that have applied the same entries and
    /// deleted the same garbage. The causes of alarms are left out, because members of etcd do not
    /// store them.
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

    /// Builds a fault for an invalid key or value, read after `position` others of its bucket.
    #[must_use]
    pub fn corrupt(
        &self,
        bucket: Bucket,
        position: u64,
        key: &[u8],
        problem: &'static str,
    ) -> Fault {
        Fault::Corrupt { path: Arc::clone(&self.path), bucket, position, key: key.into(), problem }
    }

    fn number(&self, name: &[u8]) -> Result<u64, Fault> {
        let Some(value) = self.get(Bucket::Meta, name)? else { return Ok(0) };
        match value[..].try_into() {
            Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
            Err(_) => Err(self.corrupt(Bucket::Meta, 0, name, "the value is not a number")),
        }
    }
}
