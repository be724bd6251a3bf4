//! The changes made by one entry, in the form that watchers need.

use quorate_api::record::KeyValue;
use smallvec::SmallVec;

use crate::schema::Revision;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key was created or overwritten.
    Put,
    /// The key was deleted.
    Delete,
}

/// Where to find the value of a key before a change. This is always the value before the whole entry, never a value
/// written by the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// The key did not exist.
    Absent,
    /// The value is in the record of this revision.
    At(Revision),
    /// The value has not been looked up yet. The index finds it by the key of the change.
    Unknown,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The record. For a deletion, it contains only the key and the deletion's revision.
    pub record: KeyValue,
    /// Where to find the value before the change, which `View::previous_record` reads.
    pub previous: Previous,
}

/// The changes of one main revision, ordered by sub revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The main revision.
    pub revision: i64,
    /// The changes. The list is never empty. Most entries make one change, which is stored without an allocation.
    pub events: SmallVec<[Change; 1]>,
}

/// A change read back from history. The change borrows its bytes, so a caller that keeps the change must copy the
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct PastChange<'a> {
    /// The main revision.
    pub revision: i64,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The key.
    pub key: &'a [u8],
    /// The encoded record, with the same fields as in [`Change`].
    pub record: &'a [u8],
}
