//! The errors that prevent a member from starting.

use std::io;
use std::path::PathBuf;

use quorate_core::bootstrap::Refusal;
use quorate_core::start::StartError;
use quorate_raft::{LogIndex, Term};
use quorate_state::units::MemberId;

use super::discovery::DiscoveryError;
use super::same_urls::Difference;
use super::srv::SrvError;
use crate::remedy;
use quorate_config::InitialClusterError;
use quorate_storage::data_dir::DataDir;
use quorate_storage::lost_log;

impl BootError {
    /// Returns the error for a refusal to start the member in this directory, with the directory's paths and advice.
    pub(super) fn refused(refusal: Refusal, dirs: &DataDir) -> Self {
        match refusal {
            Refusal::LogMarkedLost(reason) => {
                Self::MarkedLost { path: lost_log::path(dirs), reason }
            }
            Refusal::LogMissing(applied) => {
                Self::LogMissing { wal: dirs.wal().to_path_buf(), backend: dirs.backend(), applied }
            }
            Refusal::Published { id, name } => Self::Published { id, name },
            Refusal::NoMetadata
            | Refusal::Metadata(_)
            | Refusal::HeldBack { .. }
            | Refusal::TooOld { .. }
            | Refusal::Removed
            | Refusal::TooManyLearners
            | Refusal::OtherFounding { .. }
            | Refusal::NotInitial(_)
            | Refusal::Bootstrapped(_)
            | Refusal::NoCluster(_)
            | Refusal::PeerUrls { .. }
            | Refusal::Incompatible => Self::Refused(refusal),
        }
    }

    /// Returns whether discovery failed.
    pub(crate) const fn is_of_discovery(&self) -> bool {
        matches!(
            self,
            Self::Srv(_)
                | Self::Discovery(_)
                | Self::DiscoveredTwice(_)
                | Self::DiscoveryWhileJoining
        )
    }
}

/// Why a member does not start. The messages are etcd's where etcd has the same error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    #[error(
        "{0}: --memory-mlock requires a limit on locked memory (ulimit -l, LimitMEMLOCK) that \
         exceeds the size of the backend file and leaves space for its growth"
    )]
    MemoryLock(#[from] quorate_storage::bolt::BoltError),
    #[error("cannot generate request ids: {0}")]
    Random(io::Error),
    #[error(transparent)]
    DataDir(#[from] quorate_storage::data_dir::DataDirError),
    #[error(transparent)]
    InitialCluster(#[from] InitialClusterError),
    #[error(
        "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} \
         ({difference})"
    )]
    NotAdvertised { missing: String, advertised: String, difference: Box<Difference> },
    #[error(
        "--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={initial_cluster}"
    )]
    NotInitial { missing: String, initial_cluster: String },
    #[error(
        "failed to resolve {advertised} to match --initial-cluster={initial_cluster} ({difference})"
    )]
    OtherAdvertised { advertised: String, initial_cluster: String, difference: Box<Difference> },
    #[error(transparent)]
    Srv(#[from] SrvError),
    #[error(transparent)]
    Refused(Refusal),
    #[error("failed to join discovery cluster ({0})")]
    Discovery(DiscoveryError),
    #[error("discovery cluster {0} has duplicate url")]
    DiscoveredTwice(String),
    #[error("discovery URL should not be set when joining existing initial cluster")]
    DiscoveryWhileJoining,
    #[error("failed to start an asynchronous runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error(
        "member {id} of the cluster has already run, under the name {name:?}, but this data directory is empty and \
         has no log: without the entries that it has acknowledged, the member must not rejoin; {}",
        remedy::replace_member(Some(id.0))
    )]
    Published { id: MemberId, name: String },
    #[error(
        "{} has applied entries up to index {applied}, but there is no write-ahead log in {}: if the log \
         is elsewhere, specify its directory with --wal-dir; if the log is lost, this member must not start; {}; \
         {}",
        backend.display(),
        wal.display(),
        remedy::replace_member(None),
        remedy::restore_backend(backend)
    )]
    LogMissing { wal: PathBuf, backend: PathBuf, applied: LogIndex },
    #[error(
        "{}: this member has found that its log has lost entries, and must not vote again ({reason}); \
         {}; {}",
        path.display(),
        remedy::replace_member(None),
        remedy::GO_ON_ALONE
    )]
    MarkedLost { path: PathBuf, reason: String },
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "the write-ahead log contains term {term}, which is impossibly high: no later election would be possible; \
         {}; {}",
        remedy::replace_member(None),
        remedy::restore_backend(backend)
    )]
    Term { term: Term, backend: PathBuf },
    #[error(transparent)]
    Files(StartError),
    #[error("failed to open the backend: {0}")]
    Backend(#[from] quorate_state::backend::Fault),
    #[error("failed to recover the state from the backend: {0}")]
    State(#[from] quorate_state::apply::RecoverError),
    #[error(transparent)]
    Wal(#[from] quorate_storage::wal::WalError),
    #[error(transparent)]
    Snapshot(#[from] quorate_storage::snap::SnapError),
    #[error(
        "{}: the write-ahead log ends at index {last_index}, but entry {applied} has already been \
         applied; the log has lost entries; {}; {}",
        path.display(),
        remedy::replace_member(None),
        remedy::restore_backend(backend)
    )]
    LogLost { path: PathBuf, backend: PathBuf, last_index: LogIndex, applied: LogIndex },
    #[error(
        "this member's state is bad again ({reason}), minutes after it was rebuilt: its disk or memory is \
         probably faulty; repair or replace the machine, or {}",
        remedy::replace_member(None)
    )]
    RebuiltBefore { reason: String },
    #[error(
        "this member's state is bad and cannot be rebuilt: the other {others} of {voters} voters do \
         not form a quorum, so the correct state cannot be determined"
    )]
    NoMajority { voters: usize, others: usize },
    #[error(
        "this member's state is bad ({reason}), and no other member provides a correct one: members \
         that run etcd never do, and members that run Quorate require a certificate of this member \
         (--peer-cert-allowed-cn, --peer-cert-allowed-hostname, or an alternative name for the host \
         of a peer URL); {}",
        remedy::replace_member(None)
    )]
    NoSource { reason: String },
    #[error("this member's state is bad, and the members that responded belong to another cluster")]
    OtherCluster,
    #[error("failed to install the fetched state: {0}")]
    TakeOver(#[from] quorate_core::start::TakeOverError),
    #[error("cannot read the metadata of the write-ahead log: {0}")]
    Metadata(#[from] prost::DecodeError),
    #[error("cannot read the membership change at index {index}: {source}")]
    ConfChange { index: LogIndex, source: quorate_raft::confchange::wire::DecodeError },
    #[error(transparent)]
    OldMembers(#[from] quorate_core::old_members::OldMembersError),
    #[error(transparent)]
    Node(#[from] quorate_node::StartError),
    #[error(
        "{0}; run etcdctl endpoint hashkv --cluster to see which member differs, and if it is this one, {advice}",
        advice = remedy::replace_member(None)
    )]
    Check(#[from] quorate_member::corruption::CheckError),
}

impl From<StartError> for BootError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::LogLost { path, backend, last_index, applied } => {
                Self::LogLost { path, backend, last_index, applied }
            }
            StartError::BackendMissing { .. }
            | StartError::BackendUnusable { .. }
            | StartError::BackendUnreadable { .. }
            | StartError::Install(_)
            | StartError::Backend(_)
            | StartError::State(_)
            | StartError::Wal(_)
            | StartError::Snapshot(_)
            | StartError::EntryKind { .. } => Self::Files(error),
        }
    }
}
