//! `--rebuild-corrupt-member`: a member with a bad state fetches the state of a quorum of the other members.
//!
//! The state is bad if the backend file cannot be read, or if the running member was found to differ from a quorum. In
//! the latter case, the member has left a rebuild order in the directory. The log is not affected, so the member keeps
//! its votes and acknowledged entries. It therefore keeps its id, and no membership change is needed.
//!
//! ```text
//! find the members -> fetch the file of one -> open it, hash it -> does a quorum of the others have the same hash?
//!                        ^------ no: the next member, with pauses, without limit -----------'   | yes
//!                                                               the log and the backend file continue from it
//! ```
//!
//! # Invariants
//!
//! * A file in the directory is replaced only with a state that a quorum of voters has, not counting this member.
//! * A member that was rebuilt within the last [`REBUILDS_APART`] is not rebuilt again, because its machine is probably
//!   faulty.
//! * An order stays in force until the rebuild is complete, across any number of restarts.
//! * If every other member refuses to provide its state (because it runs etcd, or does not accept this member's
//!   certificate), this member does not start.
//!
//! # Not here
//!
//! Detecting a bad state (`member::corruption`), and providing the state to other members (`peer_port`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate_core::SnapshotOrder;
use quorate_core::bootstrap::Refusal;
use quorate_core::start::{self, StartError};
use quorate_member::Identity;
use quorate_member::corruption::{CheckError, is_held_by_quorum};
use quorate_peer::image::{self, FetchError, Question};
use quorate_raft::{LogIndex, Term};
use quorate_state::apply::{RecoverError, State, stored_members};
use quorate_state::backend::{Backend, Fault, ImageFault, open_image};
use quorate_state::members::{Member, Members};
use quorate_state::mvcc::{HashKv, MvccError};
use quorate_state::units::MemberId;
use quorate_storage::bolt;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::rebuild;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::{self, SnapshotMark};

use super::error::BootError;
use super::initial::Initial;
use super::names::Outside;
use super::own_log::log_repair;
use super::{remote, state_options, wal_options};
use quorate_config::Config;
use quorate_net::runtime::blocking;
use quorate_telemetry::log;

/// Minimum time between two rebuilds of a member.
const REBUILDS_APART: Duration = Duration::from_secs(600);

/// Pause before all members are tried again.
const ROUND_PAUSE: Duration = Duration::from_secs(2);

/// Maximum time for each URL to return the members of the cluster.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a member's state was not used.
#[derive(Debug, thiserror::Error)]
enum Untaken {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the state is invalid: {0}")]
    Image(#[from] ImageFault),
    #[error("the state is invalid: {0}")]
    Backend(#[from] Fault),
    #[error("the state is invalid: {0}")]
    State(#[from] RecoverError),
    #[error("the state cannot be hashed: {0}")]
    Hash(#[from] MvccError),
    #[error("the state ends at index {index}, before this member's own snapshot at {mark}")]
    Old { index: u64, mark: u64 },
    #[error("the state does not list this member")]
    Stranger,
    #[error("no quorum has the same state at revision {revision}")]
    Unconfirmed { revision: i64 },
    #[error(transparent)]
    Store(#[from] SnapError),
}

/// Returns whether this member may fetch its state from another member. With `--force-new-cluster`, there are no other
/// members.
pub(super) fn may_rebuild(config: &Config) -> bool {
    config.rebuilds_corrupt_member() && !config.force_new_cluster
}

impl Untaken {
    /// Returns whether the member refuses to provide its state, either to all members or only to this member.
    fn is_refused(&self) -> bool {
        matches!(self, Self::Fetch(error) if error.is_refused())
    }
}

/// Returns the reason given in the rebuild order, if there is an order and the flags allow a rebuild. If there is an
/// order but the flags do not allow a rebuild, logs a warning and ignores the order.
pub(super) fn ordered(
    config: &Config,
    disk: &dyn Disk,
    dirs: &DataDir,
) -> Result<Option<String>, BootError> {
    let mark_error = |source| BootError::Unreadable { path: rebuild::path(dirs), source };
    let Some(reason) = rebuild::ordered(disk, dirs).map_err(mark_error)? else { return Ok(None) };
    if may_rebuild(config) {
        return Ok(Some(reason));
    }
    log::warn!(
        "this member's state is bad but will not be rebuilt: a rebuild requires --rebuild-corrupt-member and peer \
         certificates (--peer-client-cert-auth)",
        "path" = rebuild::path(dirs).display().to_string(),
        "reason" = reason
    );
    Ok(None)
}

/// Returns whether a rebuild would fix this start error.
pub(super) fn is_fixed_by_rebuild(error: &BootError) -> bool {
    let is_damaged = |error: &RecoverError| match error {
        RecoverError::Store(fault) => fault.is_damage(),
        RecoverError::Members(_) | RecoverError::Versions(_) => true,
        RecoverError::StorageVersion(_) | RecoverError::ServerTooOld { .. } => false,
    };
    match error {
        BootError::Files(
            StartError::BackendMissing { .. } | StartError::BackendUnusable { .. },
        )
        | BootError::Check(CheckError::Inconsistent(_)) => true,
        BootError::Files(StartError::Backend(fault)) | BootError::Backend(fault) => {
            fault.is_damage()
        }
        BootError::Files(StartError::State(error)) | BootError::State(error) => is_damaged(error),
        BootError::Check(CheckError::Unreadable(_, MvccError::Fault(fault))) => fault.is_damage(),
        _ => false,
    }
}

/// Returns whether this member was rebuilt recently.
pub(super) fn is_recent(disk: &dyn Disk, dirs: &DataDir) -> Result<bool, BootError> {
    let mark_error = |source| BootError::Unreadable { path: rebuild::path(dirs), source };
    let last = rebuild::last_done(disk, dirs).map_err(mark_error)?;
    // A time in the future means that the clock was wrong, so the time is ignored.
    let since = last.and_then(|last| unix_secs().checked_sub(last));
    Ok(since.is_some_and(|secs| secs < REBUILDS_APART.as_secs()))
}

fn unix_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Replaces this member's state with the state of a quorum of the other members. Retries until it succeeds.
pub(super) async fn rebuild(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    outside: Outside<'_>,
    reason: &str,
) -> Result<(), BootError> {
    let mark_error = |source| BootError::Unreadable { path: rebuild::path(dirs), source };
    if is_recent(&**disk, dirs)? {
        return Err(BootError::RebuiltBefore { reason: reason.to_owned() });
    }
    // The log's lock keeps other processes out of the directory even if there is no backend file to lock.
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let mark = marks.last().cloned().unwrap_or_default();
    let (wal, contents) = start::open_log(disk, dirs, &mark, wal_options(config))?;
    if let Some(repair) = &contents.repaired {
        log_repair(repair);
    }
    rebuild::order(&**disk, dirs, reason).map_err(mark_error)?;
    for path in snap::clean_up(&**disk, &dirs.snap())? {
        log::info!("removed an incomplete temporary file", "path" = path.display().to_string());
    }
    let identity = Identity::from_metadata(contents.metadata.as_deref(), &config.name)
        .map_err(|refusal| BootError::refused(refusal, dirs))?;
    log::warn!(
        "this member's state is bad; fetching the state on which a quorum of the other members agrees",
        "local-member-id" = format!("{:x}", identity.member_id),
        "reason" = reason
    );
    let urls = urls_of_others(config, disk, dirs, (&identity, outside)).await;
    let place = Place { config, disk, dirs, identity: &identity, mark: &mark, reason };
    let (order, index) = place.find(&urls, outside).await?;
    start::take_over(disk, dirs, (wal, &contents, &mark), order)?;
    rebuild::done(&**disk, dirs, unix_secs()).map_err(mark_error)?;
    log::info!(
        "rebuilt this member's state, which now equals the state of a quorum",
        "local-member-id" = format!("{:x}", identity.member_id),
        "applied-index" = index
    );
    Ok(())
}

/// Returns the possible URLs of the other members, from the flags and from the readable part of the backend file.
async fn urls_of_others(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    (identity, outside): (&Identity, Outside<'_>),
) -> Vec<String> {
    let mut options = bolt::Options::default();
    options.read_only = true;
    let stored = Backend::open(disk, &dirs.backend(), options)
        .map_err(RecoverError::from)
        .and_then(|backend| stored_members(&backend.read()));
    let mut urls: Vec<String> = stored
        .iter()
        .flat_map(Members::iter)
        .filter(|member| member.id.0 != identity.member_id)
        .flat_map(|member| member.peer_urls.clone())
        .collect();
    if let Ok(initial) = Initial::find(config, outside.names).await {
        urls.extend(initial.to_cluster().urls_of_others(&config.name));
    }
    urls.sort();
    urls.dedup();
    urls
}

/// The member to rebuild, with its files.
struct Place<'a> {
    config: &'a Config,
    disk: &'a Arc<dyn Disk>,
    dirs: &'a DataDir,
    identity: &'a Identity,
    /// The newest snapshot mark in the member's log.
    mark: &'a SnapshotMark,
    /// Why the member's state is bad.
    reason: &'a str,
}

/// A state provided by another member, opened and hashed.
struct Candidate {
    order: SnapshotOrder,
    index: u64,
    members: Members,
    hash: HashKv,
}

impl Place<'_> {
    /// Tries the members in turn, repeatedly, until one of them provides a state that a quorum has. Stores that state
    /// in a snapshot file named after its index.
    async fn find(
        &self,
        urls: &[String],
        outside: Outside<'_>,
    ) -> Result<(SnapshotOrder, u64), BootError> {
        loop {
            let cluster = remote::cluster_of(urls, (outside.dialer, MEMBERS_TIMEOUT)).await;
            let others = match cluster {
                Ok(cluster) if cluster.id == self.identity.cluster_id => {
                    self.sources(cluster.members.into_values().collect())?
                }
                Ok(_) => return Err(BootError::OtherCluster),
                Err(error) => {
                    log::warn!("no other member has responded yet", "error" = error.to_string());
                    Vec::new()
                }
            };
            let mut has_source = others.is_empty();
            for (id, url) in others
                .iter()
                .flat_map(|member| member.peer_urls.iter().map(move |url| (member.id, url)))
            {
                match self.try_source(url, outside).await {
                    Ok(found) => return Ok(found),
                    Err(error) => {
                        has_source |= !error.is_refused();
                        log::warn!(
                            "cannot use the state of another member",
                            "remote-peer-id" = id.to_string(),
                            "remote-peer-endpoint" = url,
                            "error" = log::error_chain(&error)
                        );
                    }
                }
            }
            if !has_source {
                return Err(BootError::NoSource { reason: self.reason.to_owned() });
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
    }

    /// Returns the other members. Fails if their voters do not form a quorum without this member.
    fn sources(&self, members: Vec<Member>) -> Result<Vec<Member>, BootError> {
        let own = MemberId(self.identity.member_id);
        if !members.iter().any(|member| member.id == own) {
            return Err(BootError::Refused(Refusal::Removed));
        }
        let voters = members.iter().filter(|member| !member.is_learner).count();
        let others: Vec<Member> = members.into_iter().filter(|member| member.id != own).collect();
        let voting = others.iter().filter(|member| !member.is_learner).count();
        if voting < voters / 2 + 1 {
            return Err(BootError::NoMajority { voters, others: voting });
        }
        Ok(others)
    }

    async fn try_source(
        &self,
        url: &str,
        outside: Outside<'_>,
    ) -> Result<(SnapshotOrder, u64), Untaken> {
        let Identity { cluster_id, member_id, .. } = *self.identity;
        let question = Question { url, cluster_id, member_id };
        let (snap, number) = (self.dirs.snap(), 0);
        let file = image::fetch(question, outside.dialer, (self.disk, &snap, number)).await?;
        let judged = self.verify_image(file.path().to_path_buf(), outside).await;
        match judged {
            Ok(Candidate { order, index, .. }) => {
                blocking(move || file.finish(index)).await?;
                Ok((order, index))
            }
            Err(error) => {
                blocking(move || file.discard()).await?;
                Err(error)
            }
        }
    }

    /// Opens an image and compares its hash with the hashes of the other members.
    async fn verify_image(
        &self,
        path: PathBuf,
        outside: Outside<'_>,
    ) -> Result<Candidate, Untaken> {
        let (disk, options) = (Arc::clone(self.disk), state_options(self.config));
        let candidate = blocking(move || -> Result<Candidate, Untaken> {
            open_image(&disk, &path)?;
            let backend = Backend::open(&disk, &path, bolt::Options::default())?;
            let state = State::recover(&backend, options)?;
            let hash = state.published().view().hash_kv(0)?;
            let (index, term) = state.applied();
            let (members, versions) = (state.members(), state.versions());
            let order = SnapshotOrder::new(LogIndex(index), Term(term), members, versions);
            Ok(Candidate { order, index, members: members.clone(), hash })
        });
        let candidate = candidate.await?;
        let Candidate { index, ref members, ref hash, .. } = candidate;
        if index < self.mark.index {
            return Err(Untaken::Old { index, mark: self.mark.index });
        }
        if members.get(MemberId(self.identity.member_id)).is_none() {
            return Err(Untaken::Stranger);
        }
        let way = (outside.dialer, self.config.request_timeout());
        if !is_held_by_quorum(self.identity, members, way, hash).await {
            return Err(Untaken::Unconfirmed { revision: hash.hash_revision });
        }
        Ok(candidate)
    }
}
