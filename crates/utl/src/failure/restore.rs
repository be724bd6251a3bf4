//! Errors of creating the files of a new member.

use std::io;
use std::path::PathBuf;

use quorate_config::{InitialClusterError, UrlError};
use quorate_state::backend::{Fault, ImageFault};
use quorate_storage::snap::SnapError;
use quorate_storage::wal::WalError;
use thiserror::Error;

/// Why the files of a new member are not created.
#[derive(Debug, Error)]
pub(crate) enum RestoreError {
    /// A peer URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The initial cluster is invalid.
    #[error(transparent)]
    Initial(#[from] InitialClusterError),
    /// The initial cluster lists URLs for this member that it does not advertise.
    #[error(
        "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} \
         ({difference})"
    )]
    NotAdvertised {
        /// The URLs.
        missing: String,
        /// The advertised URLs.
        advertised: String,
        /// How the resolved addresses differ.
        difference: String,
    },
    /// The member advertises URLs that the initial cluster does not list for it.
    #[error(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={initial_cluster}"
    )]
    NotInitial {
        /// The URLs.
        missing: String,
        /// The initial cluster.
        initial_cluster: String,
    },
    /// The data directory exists already.
    #[error("data-dir \"{}\" not empty or could not be read", .0.display())]
    DataDir(PathBuf),
    /// The WAL directory exists already.
    #[error("wal-dir \"{}\" exists", .0.display())]
    WalDir(PathBuf),
    /// The snapshot does not exist.
    #[error("open {}: no such file or directory", .0.display())]
    Missing(PathBuf),
    /// The path is no regular file, or the file is empty. No flag makes a snapshot of it.
    #[error("{} is not a snapshot: {reason}", path.display())]
    NoSnapshot {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The file is the backend file of a running member, which changes while it is read.
    #[error(
        "{} is in use by a running member: a copy of it would be torn; take a snapshot of it (`snapshot save`)",
        .0.display()
    )]
    InUse(PathBuf),
    /// The file has no digest at its end.
    #[error("snapshot missing hash but --skip-hash-check=false")]
    NoHash,
    /// The content does not match the digest.
    #[error("expected sha256 {}, got {}", go_bytes(expected), go_bytes(computed))]
    Hash {
        /// The digest at the end of the file.
        expected: [u8; 32],
        /// The digest of the content.
        computed: [u8; 32],
    },
    /// A system call failed.
    #[error("{}: cannot {action} at offset {offset}: {source}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The offset in the file.
        offset: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The newest revision plus the bump exceeds the largest revision.
    #[error("cannot bump revision {newest} by {by}: the result exceeds the largest revision")]
    Bump {
        /// The newest revision.
        newest: i64,
        /// The requested bump.
        by: u64,
    },
    /// The file is no backend file.
    #[error("{} is not a snapshot: its copy cannot be opened: {source}", snapshot.display())]
    Image {
        /// The snapshot.
        snapshot: PathBuf,
        /// The reason.
        source: ImageFault,
    },
    /// Some pages of the snapshot cannot be read.
    #[error(
        "{} is damaged at offset {offset} ({first}; {count} findings): no member could start on it; `snapshot \
         verify` shows more",
        snapshot.display()
    )]
    Unsound {
        /// The snapshot.
        snapshot: PathBuf,
        /// The offset of the first finding.
        offset: u64,
        /// The first finding.
        first: String,
        /// The number of findings.
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

/// Bytes as Go prints them.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}
