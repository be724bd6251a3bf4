//! Why the files of a new member are not made.

use std::io;
use std::path::PathBuf;

use quorate_config::{InitialClusterError, UrlError};
use quorate_state::backend::{Fault, ImageFault};
use quorate_storage::snap::SnapError;
use quorate_storage::wal::WalError;
use thiserror::Error;

/// Files of a new member that are not made.
#[derive(Debug, Error)]
pub(crate) enum RestoreError {
    /// A peer URL is none.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The initial cluster cannot be.
    #[error(transparent)]
    Initial(#[from] InitialClusterError),
    /// The initial cluster gives this member URLs that it does not advertise.
    #[error(
        "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} \
         ({difference})"
    )]
    NotAdvertised {
        /// The URLs.
        missing: String,
        /// What it does advertise.
        advertised: String,
        /// Why names do not make up for it.
        difference: String,
    },
    /// The member advertises URLs that the initial cluster does not give it.
    #[error(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={initial_cluster}"
    )]
    NotInitial {
        /// The URLs.
        missing: String,
        /// The initial cluster.
        initial_cluster: String,
    },
    /// There is something in the way.
    #[error("data-dir \"{}\" not empty or could not be read", .0.display())]
    DataDir(PathBuf),
    /// There is something in the way.
    #[error("wal-dir \"{}\" exists", .0.display())]
    WalDir(PathBuf),
    /// The snapshot is not there.
    #[error("open {}: no such file or directory", .0.display())]
    Missing(PathBuf),
    /// It is no file, or one with nothing in it: no flag makes a snapshot of it.
    #[error("{} is no snapshot: {reason}", path.display())]
    NoSnapshot {
        /// What was given.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// It is the backend file of a running member, which changes while it is read.
    #[error(
        "{} is in use by a running member: a copy of it would be torn; take a snapshot of it (`snapshot save`)",
        .0.display()
    )]
    InUse(PathBuf),
    /// It has no digest at its end.
    #[error("snapshot missing hash but --skip-hash-check=false")]
    NoHash,
    /// It is not what its digest is of.
    #[error("expected sha256 {}, got {}", go_bytes(expected), go_bytes(computed))]
    Hash {
        /// The digest at its end.
        expected: [u8; 32],
        /// The digest of what stands before.
        computed: [u8; 32],
    },
    /// The system refused.
    #[error("{}: cannot {action} at offset {offset}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The newest revision and the bump are more than a revision can be.
    #[error("cannot bump revision {newest} by {by}: that is more than a revision can be")]
    Bump {
        /// The newest revision.
        newest: i64,
        /// What was asked for.
        by: u64,
    },
    /// It is no backend file.
    #[error("{} is no snapshot, as its copy shows: {source}", snapshot.display())]
    Image {
        /// The snapshot.
        snapshot: PathBuf,
        /// What is wrong with it.
        source: ImageFault,
    },
    /// No member could read all of it.
    #[error(
        "{} is damaged at offset {offset} ({first}; {count} findings): no member could start on it; \
         `snapshot verify` says more",
        snapshot.display()
    )]
    Unsound {
        /// The snapshot.
        snapshot: PathBuf,
        /// Where in it the first finding is.
        offset: u64,
        /// The first finding.
        first: String,
        /// How many there are.
        count: usize,
    },
    /// The copy cannot be changed.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] WalError),
    /// The snapshot's file cannot be written.
    #[error(transparent)]
    Snap(#[from] SnapError),
}

/// Bytes as Go prints them.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}
