//! Errors of `snapshot status`.

use thiserror::Error;

/// Reason why a file is not a sound snapshot.
#[derive(Debug, Error)]
pub(crate) enum StatusError {
    /// Pages violate the format, or contradict each other.
    #[error("snapshot file integrity check failed. {count} errors found.\n{described}")]
    Unsound {
        /// Number of findings.
        count: usize,
        /// The first findings, one per line.
        described: String,
    },
    /// The file is a bbolt file, but not an etcd backend file.
    #[error("{path}: not an etcd backend file: bucket {bucket} is missing")]
    Foreign {
        /// Path of the file.
        path: String,
        /// Missing bucket, which every backend file has.
        bucket: &'static str,
    },
}
