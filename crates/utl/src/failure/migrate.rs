//! Why the version of a file is not changed.

use quorate_state::versions::StorageVersionError;
use thiserror::Error;

/// A file whose version is not changed.
#[derive(Debug, Error)]
pub(crate) enum MigrateError {
    /// The file does not tell of its version, and is older than any there is a way from.
    #[error("cannot detect storage schema version: missing term information")]
    Undetected,
    /// There is no way between the two.
    #[error("cannot create migration plan: {0}")]
    NoWay(StorageVersionError),
    /// An older version would stumble over the log.
    #[error(
        "cannot downgrade storage, WAL contains newer entries: {segment} has one of version {version} at offset {offset}"
    )]
    NewerEntries {
        /// The segment.
        segment: String,
        /// Where the entry's record begins.
        offset: u64,
        /// What the entry needs.
        version: String,
    },
}
