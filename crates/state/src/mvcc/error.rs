//! Why the keyspace cannot answer: a refusal is the same on every member, a fault is this machine's.

use std::path::PathBuf;

use crate::schema::{Bucket, Revision};

/// A deterministic answer: the revision cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MvccRefusal {
    /// The revision's history is gone.
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    /// The revision has not happened yet.
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
}

/// This member's file does not hold what it must. The member stops.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The index knows a record that is neither in memory nor in the file.
    #[error("{}: record of revision {revision} is missing", path.display())]
    MissingRecord {
        /// The backend file.
        path: PathBuf,
        /// The record's revision.
        revision: Revision,
    },
    /// A key or value is not what its bucket holds.
    #[error("{}: bucket {}, key {}, offset {offset:?}: {problem}", path.display(), bucket.name().escape_ascii(), key.escape_ascii())]
    Corrupt {
        /// The backend file.
        path: PathBuf,
        /// Where the bytes stand in the file, when known.
        offset: Option<u64>,
        /// The bucket.
        bucket: Bucket,
        /// The key as stored.
        key: Vec<u8>,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum MvccError {
    /// The same answer on every member.
    #[error(transparent)]
    Refusal(#[from] MvccRefusal),
    /// This member's failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}
