//! Bootstrap: a new member founds a cluster or joins one, and an existing member restarts from its files.
//!
//! The write-ahead log alone decides which case applies. If the directory has a log, the member has run before, and the
//! flags about the initial cluster are ignored, unless the log contains no entries yet. Files are opened and checked in
//! etcd's order, so that operators see the same errors.
//!
//! ```text
//! log?  --initial-cluster-state
//! no    new                      founding: flags, DNS or a discovery cluster name the founders
//! no    existing                 joining: the cluster knows this member's id
//! yes   any                      restart; with --force-new-cluster, as the only member; with a bad state and
//!                                --rebuild-corrupt-member, with a state from another member
//! ```
//!
//! # Invariants
//!
//! * A member that refuses to start leaves its directory unchanged, except that missing files may have been created.
//! * A member whose id has already been used does not start without its log. If its log has lost entries, it starts
//!   only with `--force-new-cluster`, which removes all other members.
//!
//! # Not here
//!
//! File formats (`storage`), loading the state (`state`), and threads and listeners (`server`).

mod alone;
mod discovery;
mod error;
mod founding;
mod initial;
mod names;
mod old_members;
mod own_log;
mod questions;
mod rebuild;
mod reclaim;
mod remote;
mod restart;
mod same_urls;
mod srv;
mod start;
mod unknown_files;

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_core::bootstrap::{Decision, Directory, Flags, create_log};
use quorate_node::Node;
use quorate_raft::LogIndex;
use quorate_state::apply::{State, StateOptions};
use quorate_state::backend::{Backend, Fault as BackendFault};
use quorate_state::lease::LessorOptions;
use quorate_state::members::Member;
use quorate_state::mvcc::StoreOptions;
use quorate_state::watch::WatchLimits;
use quorate_storage::bolt::{self, BoltError};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::lost_log;
use quorate_storage::snap;
use quorate_storage::wal::{self, Wal};

pub(crate) use self::error::BootError;
use self::names::{Outside, SystemNames};
use self::questions::{decide, meet_founders};
use self::reclaim::give_space_back;
use self::start::node_at;
use quorate_config::{ClusterState, Config, FeatureGate};
use quorate_member::{Identity, MemoryLock};
use quorate_peer::Dialer;
use quorate_telemetry::log;

/// Time after which the wait for the backend file's lock is logged.
const LOCK_LOG_DELAY: Duration = Duration::from_secs(10);

/// The opened files of a member, with the state and the node created from them.
#[derive(Debug)]
pub(crate) struct Booted {
    pub(crate) identity: Identity,
    pub(crate) dirs: DataDir,
    pub(crate) wal: Wal,
    pub(crate) backend: Backend,
    pub(crate) state: State,
    pub(crate) node: Node,
    /// The other members, from the flags or discovery (new cluster) or from a running member (join). Empty once the log
    /// or the backend file contains the members.
    pub(crate) peers: Vec<Member>,
    /// Whether the state was rebuilt recently.
    pub(crate) was_rebuilt: bool,
    /// The lock that keeps the backend file in memory, if `--memory-mlock` is set.
    pub(crate) memory_lock: Option<MemoryLock>,
}

/// Opens or creates a member. This may take a long time, because it may involve requests to other members.
pub(crate) fn boot(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dialer: &Dialer,
) -> Result<Booted, BootError> {
    boot_with(config, disk, Outside { names: &SystemNames, dialer })
}

fn boot_with(
    config: &Config,
    disk: &Arc<dyn Disk>,
    outside: Outside<'_>,
) -> Result<Booted, BootError> {
    let wal_dir = (!config.wal_dir.is_empty()).then(|| Path::new(&config.wal_dir));
    let dirs = DataDir::new(Path::new(&config.data_dir), wal_dir);
    let oddities = dirs.prepare(&**disk)?;
    unknown_files::name_oddities(&config.data_dir, &oddities);
    let lost = lost_log_reason(&**disk, &dirs)?;
    let directory = flags(config).classify_directory(lost, dirs.is_initialised(&**disk)?);
    let directory = directory.map_err(|refusal| BootError::refused(refusal, &dirs))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BootError::Runtime)?;
    let booted = runtime.block_on(async {
        match directory {
            Directory::Used => restart::restart(config, disk, dirs.clone(), outside).await,
            Directory::New => create(config, disk, dirs.clone(), outside).await,
        }
    });
    // Name lookups that are still running are abandoned.
    runtime.shutdown_background();
    let mut booted = booted?;
    if config.memory_mlock {
        booted.memory_lock = Some(MemoryLock::take(&booted.backend)?);
    }
    // Files of incomplete snapshots can be removed safely only now that the directory is locked. Before that, another
    // process might still have been receiving these snapshots.
    for path in snap::clean_up(&**disk, &dirs.snap())? {
        log::info!("removed an incomplete temporary file", "path" = path.display().to_string());
    }
    unknown_files::name_files(&**disk, &dirs);
    log::info!("opened the member's files", "known-peers" = booted.peers.len());
    Ok(booted)
}

/// Returns the reason why the log is marked as lost, or `None` if it is not marked.
fn lost_log_reason(disk: &dyn Disk, dirs: &DataDir) -> Result<Option<String>, BootError> {
    lost_log::reason(disk, dirs)
        .map_err(|source| BootError::Unreadable { path: lost_log::path(dirs), source })
}

/// Returns the flags that affect how the member starts.
fn flags(config: &Config) -> Flags {
    Flags {
        name: config.name.clone(),
        joins: config.initial_cluster_state == ClusterState::Existing,
        is_alone: config.force_new_cluster,
        is_discovered: config.discovery.is_asked_for(),
        learner_count_max: usize::try_from(config.max_learners).unwrap_or_default(),
        held_version: config.hold_cluster_version,
    }
}

/// Returns the index of the last applied entry in the backend file, or 0 if there is no file.
fn applied_by(config: &Config, disk: &Arc<dyn Disk>, dirs: &DataDir) -> Result<u64, BootError> {
    let path = dirs.backend();
    match disk.metadata(&path) {
        Ok(None) => Ok(0),
        Ok(Some(_)) => Ok(open_backend(config, disk, dirs)?.read().consistent_index()?.0),
        Err(source) => Err(BootError::Unreadable { path, source }),
    }
}

/// Creates a member, which founds a new cluster or joins a running one.
async fn create(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: DataDir,
    outside: Outside<'_>,
) -> Result<Booted, BootError> {
    let applied = LogIndex(applied_by(config, disk, &dirs)?);
    let step = flags(config).create(applied);
    let step = step.map_err(|refusal| BootError::refused(refusal, &dirs))?;
    let (identity, founding, peers) = match decide(config, &dirs, outside, step).await? {
        Decision::Found(founding) => {
            let founding = meet_founders(config, &dirs, outside, founding).await?;
            (founding.identity.clone(), Some(founding.clone()), founding.others())
        }
        Decision::Join(joining) => (joining.identity, None, joining.others),
        Decision::Continue { .. } => unreachable!("there is no log to continue from"),
    };
    log::info!(
        "starting local member",
        "local-member-id" = format!("{:x}", identity.member_id),
        "cluster-id" = format!("{:x}", identity.cluster_id)
    );
    let backend = open_backend(config, disk, &dirs)?;
    give_space_back(config, &backend)?;
    let state = State::recover(&backend, state_options(config))?;
    let options = wal_options(config);
    let (wal, start) = create_log(disk, &dirs, &identity, founding.as_ref(), options)?;
    let node = node_at(start, state.members(), config, &identity, &dirs)?;
    let memory_lock = None;
    Ok(Booted { was_rebuilt: false, identity, dirs, wal, backend, state, node, peers, memory_lock })
}

/// Opens the backend file. If another process has locked it, waits for the lock.
fn open_backend(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
) -> Result<Backend, BackendFault> {
    let path = dirs.backend();
    let started = Instant::now();
    let (mut has_warned, mut has_logged) = (false, false);
    loop {
        let mut options = bolt::Options::default();
        options.no_sync = config.unsafe_no_fsync;
        match Backend::open(disk, &path, options) {
            Err(BackendFault::Engine(BoltError::Locked { .. })) => {}
            opened => return opened,
        }
        if !std::mem::replace(&mut has_warned, true) {
            log::warn!(
                "another process is using this data directory; waiting until it releases the lock",
                "path" = path.display().to_string(),
                "advice" = "stop the other process, or give this member a --data-dir of its own"
            );
        }
        if !has_logged && started.elapsed() > LOCK_LOG_DELAY {
            has_logged = true;
            log::info!(
                "db file is flocked by another process, or taking too long",
                "path" = path.display().to_string(),
                "took" = started.elapsed()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wal_options(config: &Config) -> wal::Options {
    wal::Options { sync: !config.unsafe_no_fsync, ..wal::Options::default() }
}

pub(crate) fn state_options(config: &Config) -> StateOptions {
    let resubmit = config.request_timeout().as_millis();
    StateOptions {
        store: StoreOptions::default(),
        lessor: LessorOptions {
            ttl_secs_min: config.least_lease_secs(),
            checkpoints: config.feature_gates.is_enabled(FeatureGate::LeaseCheckpoint),
            resubmit_millis: u64::try_from(resubmit).unwrap_or(u64::MAX),
            ..LessorOptions::default()
        },
        checkpoint_persist: config.feature_gates.is_enabled(FeatureGate::LeaseCheckpointPersist),
        quota_bytes: config.quota_backend_bytes,
        learner_count_max: usize::try_from(config.max_learners).unwrap_or_default(),
        watch: WatchLimits { seed: RandomState::new().hash_one(0), ..WatchLimits::default() },
        token_ttl_millis: u64::try_from(config.auth_token_ttl().as_millis()).unwrap_or(u64::MAX),
    }
}
