//! Errors in creating the files of a new member.

use std::io;
use std::path::PathBuf;

use quorate_config::{InitialClusterError, UrlError};
use quorate_state::backend::{Fault, ImageFault};
use quorate_storage::snap::SnapError;
use quorate_storage::wal::WalError;
use thiserror::Error;

/// Reason why the files of a new member are not created.
#[derive(Debug, Error)]
pub(crate) enum RestoreError {
    /// A peer URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The initial cluster is invalid.
    #[error(transparent)]
    Initial(#[from] InitialClusterError),
    /// The initial cluster lists URLs for this member that the member does not advertise.
    #[error(
        "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} \
         ({difference})"
    )]
    NotAdvertised {
        /// URLs that the member does not advertise.
        missing: String,
        /// Advertised URLs.
        advertised: String,
        /// Difference between the resolved addresses.
        difference: String,
    },
    /// The member advertises URLs that the initial cluster does not list for it.
    #[error(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={initial_cluster}"
    )]
    NotInitial {
        /// URLs that the initial cluster does not list.
        missing: String,
        /// The initial cluster, as given.
        initial_cluster: String,
    },
    /// The data directory is not empty, or cannot be read.
    #[error("data-dir \"{}\" not empty or could not be read", .0.display())]
    DataDir(PathBuf),
    /// The WAL directory already exists.
    #[error("wal-dir \"{}\" exists", .0.display())]
    WalDir(PathBuf),
    /// The log cannot be created in the WAL directory, because the member's files are created there.
    #[error(
        "--wal-dir={} conflicts with the files in the data directory: omit the flag to use {}, or specify a path \
         outside of the data directory",
        given.display(),
        default.display()
    )]
    WalPlace {
        /// The given WAL directory.
        given: PathBuf,
        /// Path of the log if no WAL directory is given.
        default: PathBuf,
    },
    /// The snapshot does not exist.
    #[error("open {}: no such file or directory", .0.display())]
    Missing(PathBuf),
    /// The path is not a regular file, or the file is empty. No flag makes the tool accept such a path.
    #[error("{} is not a snapshot: {reason}", path.display())]
    NoSnapshot {
        /// The given path.
        path: PathBuf,
        /// Reason why the path cannot be a snapshot.
        reason: &'static str,
    },
    /// The file is the backend file of a running member, so its content may change during the copy.
    #[error(
        "{} is in use by a running member: a copy would be inconsistent; take a snapshot instead (`snapshot save`)",
        .0.display()
    )]
    InUse(PathBuf),
    /// The file does not end with a digest.
    #[error("snapshot missing hash but --skip-hash-check=false")]
    NoHash,
    /// The content does not match the digest.
    #[error("expected sha256 {}, got {}", go_bytes(expected), go_bytes(computed))]
    Hash {
        /// Digest at the end of the file.
        expected: [u8; 32],
        /// Digest of the content.
        computed: [u8; 32],
    },
    /// A system call failed.
    #[error("{}: cannot {action} at offset {offset}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The newest revision plus the bump exceeds the maximum revision.
    #[error("cannot bump revision {newest} by {by}: the result exceeds the largest revision")]
    Bump {
        /// Newest revision in the snapshot.
        newest: i64,
        /// Requested increase of the revision.
        by: u64,
    },
    /// The file is not a backend file.
    #[error("{} is not a snapshot: its copy cannot be opened: {source}", snapshot.display())]
    Image {
        /// Path of the snapshot.
        snapshot: PathBuf,
        /// Reason why the file is not a backend file.
        source: ImageFault,
    },
    /// Some pages of the snapshot cannot be read.
    #[error(
        "{} is damaged at offset {offset} ({first}; {count} findings), so no member could start from it; \
         run `snapshot verify` for details",
        snapshot.display()
    )]
    Unsound {
        /// Path of the snapshot.
        snapshot: PathBuf,
        /// Offset of the first finding.
        offset: u64,
        /// Description of the first finding.
        first: String,
        /// Number of findings.
        count: usize,
    },
    /// The copy cannot be written.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] WalError),
    /// The snapshot file cannot be written.
    #[error(transparent)]
    Snap(#[from] SnapError),
}

/// Formats bytes as Go prints them.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}
