//! The rows of all buckets except `key`, in memory. The rows describe everything except the keyspace: users, roles,
//! leases, alarms, members and versions.
//!
//! A member reads the rows from its backend file when it starts, and when a leader's snapshot has replaced the file.
//! The engine reads the rows from its database, and then applies the changes of each committed batch to them.
//!
//! # Not here
//!
//! Decoding the rows. The modules that write the rows also decode them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::{BackendView, BatchChange, Fault};
use crate::schema::{Bucket, Revision, meta};

/// Rows by bucket and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    buckets: BTreeMap<Bucket, BTreeMap<Bytes, Bytes>>,
    origin: Arc<Path>,
}

impl Rows {
    /// Creates an empty table. `origin` is the path that errors name as the origin of the rows.
    #[must_use]
    pub fn new(origin: impl AsRef<Path>) -> Self {
        Self { buckets: BTreeMap::new(), origin: Arc::from(origin.as_ref()) }
    }

    /// Reads the rows of a backend file.
    pub fn of_file(file: &BackendView) -> Result<Self, Fault> {
        let mut rows = Self::new(&**file.path());
        for bucket in Bucket::ALL.into_iter().filter(|bucket| *bucket != Bucket::Key) {
            rows.buckets.insert(bucket, file.entries(bucket)?.into_iter().collect());
        }
        Ok(rows)
    }

    /// Sets a row.
    pub fn put(&mut self, bucket: Bucket, key: Bytes, value: Bytes) {
        assert!(
            bucket != Bucket::Key,
            "no row belongs to bucket `key`: otherwise the whole keyspace would be kept in memory"
        );
        self.buckets.entry(bucket).or_default().insert(key, value);
    }

    /// Removes a row, if it exists.
    pub fn delete(&mut self, bucket: Bucket, key: &[u8]) {
        if let Some(rows) = self.buckets.get_mut(&bucket) {
            rows.remove(key);
        }
    }

    /// Applies one change of a batch. Records are ignored.
    pub fn apply(&mut self, change: &BatchChange<'_>) {
        match *change {
            BatchChange::Put(bucket, key, value) => self.put(bucket, key.clone(), value.clone()),
            BatchChange::Delete(bucket, key) => self.delete(bucket, key),
            BatchChange::PutRecord(..) | BatchChange::DeleteRecord(_) => {}
        }
    }

    /// Returns the rows of a bucket, in key order.
    pub fn entries(&self, bucket: Bucket) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.buckets.get(&bucket).into_iter().flatten()
    }

    /// Returns the value of a row.
    #[must_use]
    pub fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&Bytes> {
        self.buckets.get(&bucket)?.get(key)
    }

    /// Returns the revision of the last accepted compaction, or -1 before the first compaction.
    pub fn compacted_revision(&self) -> Result<i64, Fault> {
        let revision = |name| match self.get(Bucket::Meta, name) {
            None => Ok(-1),
            Some(value) => Revision::decode(value).map(|revision| revision.main).ok_or_else(|| {
                self.corrupt(Bucket::Meta, None, name, "the value is not a revision")
            }),
        };
        Ok(revision(meta::FINISHED_COMPACTION)?.max(revision(meta::SCHEDULED_COMPACTION)?))
    }

    /// Creates a fault for an invalid row that is preceded by `position` rows of its bucket.
    pub(crate) fn corrupt(
        &self,
        bucket: Bucket,
        position: impl Into<Option<u64>>,
        key: &[u8],
        problem: &'static str,
    ) -> Fault {
        let path = Arc::clone(&self.origin);
        Fault::Corrupt { path, bucket, position: position.into(), key: key.into(), problem }
    }
}
