//! Errors of `recover`.

use std::path::PathBuf;

use quorate_core::ApplyError;
use quorate_core::old_members::OldMembersError;
use quorate_core::start::StartError;
use quorate_state::apply::RecoverError;
use quorate_state::backend::Fault;
use quorate_state::mvcc::MvccError;
use quorate_storage::snap::SnapError;
use quorate_storage::wal::WalError;
use thiserror::Error;

/// Reason why no new cluster is created from the given directories.
#[derive(Debug, Error)]
pub(crate) enum RecoveryError {
    /// Two directories belong to different clusters.
    #[error(
        "{} belongs to cluster {cluster:x} and {} to cluster {other_cluster:x}: pass only directories of one cluster",
        path.display(),
        other.display()
    )]
    OtherCluster {
        /// Path of the first directory.
        path: PathBuf,
        /// Cluster id of the first directory.
        cluster: u64,
        /// Path of the second directory.
        other: PathBuf,
        /// Cluster id of the second directory.
        other_cluster: u64,
    },
    /// Two directories belong to the same member, and at most the newer one is valid.
    #[error(
        "{} and {} both belong to member {member:x}: pass only the directory that the member used last, not \
         an older copy",
        path.display(),
        other.display()
    )]
    SameMember {
        /// Path of the first directory.
        path: PathBuf,
        /// Path of the second directory.
        other: PathBuf,
        /// Id of the member.
        member: u64,
    },
    /// The new cluster would have the id of the old cluster, whose members could then join the new cluster by mistake.
    #[error(
        "the new cluster would have the id of the old one, {cluster:x}, and members of the old one could join it: \
         specify a different --initial-cluster-token"
    )]
    SameCluster {
        /// Id of both clusters.
        cluster: u64,
    },
    /// The new member's files would be inside a given directory, which must not be changed.
    #[error(
        "{} is inside {}, which must not be changed: specify a path outside of it",
        output.display(),
        input.display()
    )]
    Inside {
        /// Path of the new member.
        output: PathBuf,
        /// Path of the given directory.
        input: PathBuf,
    },
    /// None of the directories is sound.
    #[error(
        "no directory is sound, so none can be recovered: restore a snapshot (`snapshot restore`){last}"
    )]
    NoneSound {
        /// Advice to restore the best backend file, appended to the message; empty if there is no such file.
        last: String,
    },
    /// The chosen directory may lack acknowledged changes.
    #[error("{reasons}; use --accept-data-loss to continue anyway")]
    MayLose {
        /// Reasons why changes may be missing.
        reasons: String,
    },
    /// The result differs from the printed plan because a directory has changed since the plan was printed.
    #[error("{} changed while it was read: nothing was created", .0.display())]
    Changed(PathBuf),
}

/// Reason why a log cannot be replayed onto its backend file.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    /// The state cannot be read from the file.
    #[error("the state cannot be read from the backend file: {0}")]
    State(#[from] RecoverError),
    /// The members in a file written by etcd 3.5 cannot be determined.
    #[error(transparent)]
    Members(#[from] OldMembersError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// The snapshot files cannot be read.
    #[error(transparent)]
    Snapshots(#[from] SnapError),
    /// An entry has a kind that members never write.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An entry cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The file cannot be written.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The resulting state cannot be read.
    #[error(transparent)]
    Read(#[from] MvccError),
}
