//! Why a file is no snapshot that anything can be said of.

use thiserror::Error;

/// A file that is no sound snapshot.
#[derive(Debug, Error)]
pub(crate) enum StatusError {
    /// Pages contradict the format or each other.
    #[error("snapshot file integrity check failed. {count} errors found.\n{told}")]
    Unsound {
        /// How many findings.
        count: usize,
        /// The first of them, a line each.
        told: String,
    },
    /// It is a file of the same engine, of something else.
    #[error("{path}: no file of etcd: bucket {bucket} is missing")]
    Foreign {
        /// The file.
        path: String,
        /// A bucket that every backend file has.
        bucket: &'static str,
    },
}
