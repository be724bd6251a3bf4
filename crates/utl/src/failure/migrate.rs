//! Errors of `migrate`.

use quorate_state::versions::StorageVersionError;
use thiserror::Error;

/// Reason why the storage version is not changed.
#[derive(Debug, Error)]
pub(crate) enum MigrateError {
    /// The file does not contain its storage version, and is older than every version that can be migrated.
    #[error("cannot detect storage schema version: missing term information")]
    Undetected,
    /// There is no migration between the two versions.
    #[error("cannot create migration plan: {0}")]
    NoWay(StorageVersionError),
    /// The log contains an entry that the target version does not know.
    #[error(
        "cannot downgrade storage, WAL contains newer entries: {segment} has one of version {version} at offset {offset}"
    )]
    NewerEntries {
        /// Segment file that contains the entry.
        segment: String,
        /// Offset of the entry's record.
        offset: u64,
        /// Version that the entry needs.
        version: String,
    },
}
