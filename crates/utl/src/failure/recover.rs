//! Why no new cluster is made of the directories of an old one.

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

/// Directories of which no new cluster is made.
#[derive(Debug, Error)]
pub(crate) enum RecoveryError {
    /// Two of them have nothing to do with one another.
    #[error(
        "{} is of cluster {cluster:x} and {} of cluster {other_cluster:x}: give the directories of one cluster only",
        path.display(),
        other.display()
    )]
    OtherCluster {
        /// One.
        path: PathBuf,
        /// Its cluster.
        cluster: u64,
        /// The other.
        other: PathBuf,
        /// Its cluster.
        other_cluster: u64,
    },
    /// Two of them are states of one member, of which only the last counts.
    #[error(
        "{} and {} are both of member {member:x}: give the one that it used last, and no older copy",
        path.display(),
        other.display()
    )]
    SameMember {
        /// One.
        path: PathBuf,
        /// The other.
        other: PathBuf,
        /// Whose they are.
        member: u64,
    },
    /// Members of the old cluster could not tell that the new one is another.
    #[error(
        "the new cluster would have the id of the old one, {cluster:x}, whose members must never join it: give \
         another --initial-cluster-token"
    )]
    SameCluster {
        /// The id of both.
        cluster: u64,
    },
    /// The new member's files would lie in what is not to be changed.
    #[error("{} lies in {}, in which nothing is changed", output.display(), input.display())]
    Inside {
        /// Where the new member was to be.
        output: PathBuf,
        /// The directory given.
        input: PathBuf,
    },
    /// There is nothing to go on from.
    #[error(
        "none of the directories is sound, so there is none to go on from: restore a snapshot (`snapshot restore`){last}"
    )]
    NoneSound {
        /// What is left without one.
        last: String,
    },
    /// Nobody knows whether the best directory holds everything.
    #[error("{reasons}; --accept-data-loss goes on all the same")]
    MayLose {
        /// Why it may not.
        reasons: String,
    },
    /// What was made is not what was shown, so a directory has changed meanwhile.
    #[error("{} has changed while it was read: nothing was made", .0.display())]
    Changed(PathBuf),
}

/// A log that cannot be carried out behind its backend file.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    /// The state cannot be made from the file.
    #[error("the state cannot be made from the backend file: {0}")]
    State(#[from] RecoverError),
    /// The members of an old file cannot be told.
    #[error(transparent)]
    Members(#[from] OldMembersError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] WalError),
    /// The snapshots beside the file cannot be read.
    #[error(transparent)]
    Snapshots(#[from] SnapError),
    /// An entry is of a kind that no log of a member has.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An entry cannot be carried out.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The file cannot be written.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// What has come of it cannot be read.
    #[error(transparent)]
    Read(#[from] MvccError),
}
