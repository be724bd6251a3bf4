//! Errors of `snapshot status`.

use thiserror::Error;

/// Why a file is no sound snapshot.
#[derive(Debug, Error)]
pub(crate) enum StatusError {
    /// Pages violate the format, or contradict each other.
    #[error("snapshot file integrity check failed. {count} errors found.\n{described}")]
    Unsound {
        /// The number of findings.
        count: usize,
        /// The first findings, one in each line.
        described: String,
    },
    /// The file is a bbolt file, but no backend file of etcd.
    #[error("{path}: not an etcd backend file: bucket {bucket} is missing")]
    Foreign {
        /// The file.
        path: String,
        /// A bucket that every backend file has.
        bucket: &'static str,
    },
}
