//! Failures of this member's backend file.

use std::path::Path;
use std::sync::Arc;

use quorate_storage::bolt::BoltError;

use crate::schema::{Bucket, Revision};

/// This member's backend file cannot be used, or part of its content is missing or invalid. The
/// member then stops.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The storage engine failed.
    #[error(transparent)]
    Engine(#[from] BoltError),
    /// The key index refers to a record that is neither in memory nor in the file.
    #[error("{}: bucket key: the record of revision {revision} is missing", path.display())]
    MissingRecord {
        /// Path of the backend file.
        path: Arc<Path>,
        /// The record's revision.
        revision: Revision,
    },
    /// A key or value is invalid in its bucket.
    #[error(
        "{}: bucket {}, key {}{}: {problem}",
        path.display(), bucket.name().escape_ascii(), key.escape_ascii(), as_suffix(*position)
    )]
    Corrupt {
        /// Path of the backend file.
        path: Arc<Path>,
        /// The bucket of the key.
        bucket: Bucket,
        /// The number of entries that were read from the bucket before the invalid entry, if the number is known.
        position: Option<u64>,
        /// The key as stored.
        key: Box<[u8]>,
        /// Why the key or value is invalid.
        problem: &'static str,
    },
}

impl Fault {
    /// Returns whether the file's content is invalid, so that another attempt would fail in the
    /// same way.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::MissingRecord { .. } | Self::Corrupt { .. } => true,
        }
    }
}

fn as_suffix(position: Option<u64>) -> String {
    position.map(|position| format!(" (entry {position})")).unwrap_or_default()
}
