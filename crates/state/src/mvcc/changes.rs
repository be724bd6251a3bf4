//! What one entry changed, as watchers are told.

use quorate_api::record::KeyValue;

use crate::schema::Revision;

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was created or overwritten.
    Put,
    /// It was deleted.
    Delete,
}

/// Where the value before a change is found. It is the one before the whole entry, not one that the same
/// entry wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// There was none.
    Absent,
    /// In the record of this revision.
    At(Revision),
    /// Nobody has looked yet: the index knows by the key.
    Unknown,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The record; of a deletion, the key and the revision of the deletion alone.
    pub record: KeyValue,
    /// The value before; `View::previous_record` fetches it.
    pub previous: Previous,
}

/// The changes of one main revision, in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The main revision.
    pub revision: i64,
    /// The changes; never empty.
    pub events: Vec<Change>,
}

/// A change as it is read back from history. Whoever keeps anything of it copies it.
#[derive(Clone, Copy, Debug)]
pub struct PastChange<'a> {
    /// The main revision.
    pub revision: i64,
    /// What happened.
    pub kind: ChangeKind,
    /// Whose change it is.
    pub key: &'a [u8],
    /// The record's encoding, as in [`Change`].
    pub record: &'a [u8],
}
