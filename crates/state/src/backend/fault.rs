//! How this member's file can fail it.

use std::path::Path;
use std::sync::Arc;

use quorate_storage::bolt::BoltError;

use crate::schema::{Bucket, Revision};

/// This member's file cannot be used, or does not hold what it must. The member stops.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] BoltError),
    /// The index knows a record that is neither in memory nor in the file.
    #[error("{}: bucket key: the record of revision {revision} is missing", path.display())]
    MissingRecord {
        /// The backend file.
        path: Arc<Path>,
        /// The record's revision.
        revision: Revision,
    },
    /// A key or value is not what its bucket holds.
    #[error(
        "{}: bucket {}, key {} (entry {position}): {problem}",
        path.display(), bucket.name().escape_ascii(), key.escape_ascii()
    )]
    Corrupt {
        /// The backend file.
        path: Arc<Path>,
        /// The bucket.
        bucket: Bucket,
        /// How many entries of the bucket were read before, where that is known.
        position: u64,
        /// The key as stored.
        key: Box<[u8]>,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Fault {
    /// Whether it is the file's content that is wrong, and no other attempt will find it otherwise.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::MissingRecord { .. } | Self::Corrupt { .. } => true,
        }
    }
}
