//! The changes that one entry made, in the form that watchers need.

use quorate_api::record::KeyValue;

use crate::schema::Revision;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The key was created or overwritten.
    Put,
    /// The key was deleted.
    Delete,
}

/// Where to find the value before a change. It is the value before the whole entry, not one that
/// the same entry wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// The key did not exist.
    Absent,
    /// In the record of this revision.
    At(Revision),
    /// Not looked up yet: the index finds it by the key.
    Unknown,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The record. For a deletion, it has only the key and the revision of the deletion.
    pub record: KeyValue,
    /// The value before the change; `View::previous_record` reads it.
    pub previous: Previous,
}

/// The changes of one main revision, in the order of their sub revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The main revision.
    pub revision: i64,
    /// The changes; never empty.
    pub events: Vec<Change>,
}

/// A change as read back from history. It borrows its bytes: a caller that keeps any of them copies
/// them.
#[derive(Clone, Copy, Debug)]
pub struct PastChange<'a> {
    /// The main revision.
    pub revision: i64,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The key.
    pub key: &'a [u8],
    /// The encoded record, as in [`Change`].
    pub record: &'a [u8],
}
