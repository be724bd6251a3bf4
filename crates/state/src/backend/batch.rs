//! The changes of applied entries that the commit thread has not written yet.

use bytes::Bytes;

use crate::schema::{Bucket, RecordKey, Revision, meta};

/// A batch with this many bytes is full, even if it has few changes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// Changes to the backend file, in order.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) operations: Vec<Operation>,
    byte_count: usize,
    last_revision: Option<i64>,
    consistent_index: Option<(u64, u64)>,
    conf_state: Option<Bytes>,
}

#[derive(Debug)]
pub(super) enum Operation {
    /// Puts a record. The commit thread encodes the record's key.
    PutRecord(RecordKey, Bytes),
    DeleteRecord(RecordKey),
    Put(Bucket, Bytes, Bytes),
    Delete(Bucket, Bytes),
}

/// One change in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchChange<'a> {
    /// A record was added.
    PutRecord(RecordKey, &'a Bytes),
    /// A record was removed.
    DeleteRecord(RecordKey),
    /// A key of another bucket was set.
    Put(Bucket, &'a Bytes, &'a Bytes),
    /// A key of another bucket was removed.
    Delete(Bucket, &'a Bytes),
}

impl Batch {
    /// Creates a batch without changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key. Records must be put with [`Batch::put_record`] instead.
    pub fn put(&mut self, bucket: Bucket, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let (key, value) = (key.into(), value.into());
        assert!(
            bucket != Bucket::Key,
            "records are put by revision: otherwise an invalid key could prevent this member from restarting"
        );
        self.byte_count += key.len() + value.len();
        self.operations.push(Operation::Put(bucket, key, value));
    }

    /// Removes a key, if it exists.
    pub fn delete(&mut self, bucket: Bucket, key: impl Into<Bytes>) {
        let key = key.into();
        assert!(
            bucket != Bucket::Key,
            "records are deleted by revision: otherwise the commit would not sort their deletions"
        );
        self.byte_count += key.len();
        self.operations.push(Operation::Delete(bucket, key));
    }

    /// Adds a record.
    pub fn put_record(&mut self, key: RecordKey, value: Bytes) {
        self.byte_count += RecordKey::ENCODED_LEN_MAX + value.len();
        assert!(
            self.last_revision.is_none_or(|before| before <= key.revision.main),
            "records are put in revision order: otherwise the window would drop records that are not in the file"
        );
        self.last_revision = Some(key.revision.main);
        self.operations.push(Operation::PutRecord(key, value));
    }

    /// Removes a record.
    pub fn delete_record(&mut self, key: RecordKey) {
        self.byte_count += RecordKey::ENCODED_LEN_MAX;
        self.operations.push(Operation::DeleteRecord(key));
    }

    /// Sets the index and term of the last entry whose changes are in the batch. Index 0 is never
    /// stored.
    pub fn set_consistent_index(&mut self, index: u64, term: u64) {
        assert!(
            self.consistent_index.is_none_or(|(before, _)| before <= index),
            "the index of a batch never decreases: otherwise a restart would apply entries that the file already contains"
        );
        self.consistent_index = Some((index, term));
    }

    /// Stores the cluster's voters and learners, as JSON.
    pub fn set_conf_state(&mut self, json: impl Into<Bytes>) {
        self.conf_state = Some(json.into());
    }

    /// Returns the changes in order, without the raft index and the conf state.
    pub fn changes(&self) -> impl Iterator<Item = BatchChange<'_>> {
        self.operations.iter().map(|operation| match operation {
            Operation::PutRecord(key, record) => BatchChange::PutRecord(*key, record),
            Operation::DeleteRecord(key) => BatchChange::DeleteRecord(*key),
            Operation::Put(bucket, key, value) => BatchChange::Put(*bucket, key, value),
            Operation::Delete(bucket, key) => BatchChange::Delete(*bucket, key),
        })
    }

    /// Returns the raft index and term that the batch writes, if any.
    #[must_use]
    pub const fn consistent_index(&self) -> Option<(u64, u64)> {
        self.consistent_index
    }

    /// Returns the number of changes, excluding the raft index and the conf state.
    #[must_use]
    pub fn op_count(&self) -> usize {
        self.operations.len()
    }

    /// Returns the approximate total size of all keys and values, in bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Returns how full the batch is: its number of changes divided by `ops_max`, or its number of bytes divided by
    /// `BATCH_BYTES_MAX`, whichever is larger. The quotients are rounded down, so a batch at 1 or above is full.
    #[must_use]
    pub fn fill(&self, ops_max: usize) -> usize {
        (self.op_count() / ops_max.max(1)).max(self.byte_count / BATCH_BYTES_MAX)
    }

    /// Returns whether a commit would write nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.consistent_index.is_none() && self.conf_state.is_none()
    }

    /// Returns the main revision of the newest record in the batch.
    #[must_use]
    pub const fn last_revision(&self) -> Option<i64> {
        self.last_revision
    }

    /// Stores the revision of a compaction under `name`, one of the two compaction keys of bucket `meta`.
    pub fn put_compaction(&mut self, name: &'static [u8], revision: i64) {
        assert!(
            revision >= 0,
            "a compacted revision is not negative: otherwise it would be decoded as later than every revision"
        );
        let value = Bytes::copy_from_slice(&Revision::new(revision, 0).encode());
        self.put(Bucket::Meta, name, value);
    }

    /// Returns the raft index, term and conf state as changes to bucket `meta`.
    pub(super) fn meta_operations(&self) -> impl Iterator<Item = (&'static [u8], Bytes)> {
        let number = |value: u64| Bytes::copy_from_slice(&value.to_be_bytes());
        let (index, term) = self.consistent_index.unwrap_or((0, 0));
        [
            (index > 0).then(|| (meta::CONSISTENT_INDEX, number(index))),
            (index > 0 && term > 0).then(|| (meta::TERM, number(term))),
            self.conf_state.clone().map(|json| (meta::CONF_STATE, json)),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_at_its_change_limit_or_its_byte_limit() {
        let mut batch = Batch::new();
        for number in 0..30_u8 {
            assert_eq!(batch.fill(10), usize::from(number) / 10);
            batch.put(Bucket::Lease, vec![number], Bytes::new());
        }
        assert_eq!(batch.fill(1000), 0);
        for count in 1..=3 {
            batch.put(Bucket::Lease, vec![count], vec![0; BATCH_BYTES_MAX]);
            assert_eq!(batch.fill(1000), usize::from(count));
        }
    }
}
