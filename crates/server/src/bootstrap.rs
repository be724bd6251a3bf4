//! How a member comes to life: a new one founds its cluster, an old one picks up what its files hold.
//!
//! The write-ahead log alone decides which: a directory with a log has been lived in, and then the flags
//! about the initial cluster are not looked at. The order of what is opened and checked is etcd's, because
//! an operator reads the errors.
//!
//! # Invariants
//!
//! * A member whose log ends before what its backend file has applied does not start: something that had
//!   been durable is lost.
//! * Nothing is changed in a directory that is refused, beyond the creation of what was missing.
//!
//! # Not here
//!
//! The formats (`storage`), rebuilding the state (`state`), threads and listeners (`server`).

mod error;
mod founding;
mod old_members;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prost::Message;
use quorate_api::etcdserverpb::Metadata;
use quorate_node::{Node, SnapshotPolicy};
use quorate_raft::{ConfState, Entry, EntryKind, HardState};
use quorate_state::apply::{State, StateOptions};
use quorate_state::backend::{Backend, Fault as BackendFault};
use quorate_state::lease::LessorOptions;
use quorate_state::mvcc::StoreOptions;
use quorate_state::schema::{Bucket, meta};
use quorate_state::versions::{Version, detect_storage_version};
use quorate_state::watch::QueueLimits;
use quorate_storage::bolt::{self, BoltError};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::snap;
use quorate_storage::wal::{self, SnapshotMark, Wal};

pub(crate) use self::error::BootError;
use self::founding::Founding;
use crate::config::{Config, Gate};
use crate::log;
use crate::member::Identity;

/// How long the backend file's lock is waited for before it is worth a word.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A member's files, opened, and what they make of it.
#[derive(Debug)]
pub(crate) struct Booted {
    pub(crate) identity: Identity,
    pub(crate) dirs: DataDir,
    pub(crate) wal: Wal,
    pub(crate) backend: Backend,
    pub(crate) state: State,
    pub(crate) node: Node,
}

/// Opens or creates a member.
pub(crate) fn boot(config: &Config, disk: &Arc<dyn Disk>) -> Result<Booted, BootError> {
    let wal_dir = (!config.wal_dir.is_empty()).then(|| Path::new(&config.wal_dir));
    let dirs = DataDir::new(Path::new(&config.data_dir), wal_dir);
    let oddities = dirs.prepare(&**disk)?;
    for name in &oddities.unexpected {
        log::warn!(
            "found invalid file under data directory",
            "filename" = name.to_string_lossy().into_owned(),
            "data-dir" = config.data_dir
        );
    }
    for (path, mode) in &oddities.open_modes {
        log::warn!(
            "check file permission",
            "error" = format!(
                "directory {:?} exist, but the permission is {:?}. The recommended permission is \
                 \"-rwx------\" to prevent possible unprivileged access to the data",
                path.display().to_string(),
                format!("{mode:o}")
            )
        );
    }
    for path in snap::clean_up(&**disk, &dirs.snap())? {
        log::info!("removed an unfinished file", "path" = path.display().to_string());
    }
    if dirs.is_initialised(&**disk) {
        restart(config, disk, dirs)
    } else {
        found(config, disk, dirs)
    }
}

/// Founds a cluster.
fn found(config: &Config, disk: &Arc<dyn Disk>, dirs: DataDir) -> Result<Booted, BootError> {
    let founding = Founding::new(config)?;
    let identity = founding.identity.clone();
    log::info!(
        "starting local member",
        "local-member-id" = format!("{:x}", identity.member_id),
        "cluster-id" = format!("{:x}", identity.cluster_id)
    );
    let backend = open_backend(config, disk, &dirs)?;
    let state = State::recover(&backend, state_options(config))?;
    let metadata =
        Metadata { node_id: Some(identity.member_id), cluster_id: Some(identity.cluster_id) };
    let mut wal = Wal::create(
        Arc::clone(disk),
        dirs.wal(),
        metadata.encode_to_vec().into(),
        wal_options(config),
    )?;
    let start = founding.write(&mut wal)?;
    let node = start.into_node(config, &identity)?;
    Ok(Booted { identity, dirs, wal, backend, state, node })
}

/// Picks up an existing member.
fn restart(config: &Config, disk: &Arc<dyn Disk>, dirs: DataDir) -> Result<Booted, BootError> {
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let mark = marks.last().cloned().unwrap_or_default();
    let path = dirs.backend();
    let exists = disk.metadata(&path).is_ok_and(|facts| facts.is_some());
    if !exists && mark.index > 0 {
        return Err(BootError::BackendMissing { path });
    }
    let mut backend = open_backend(config, disk, &dirs)?;
    if backend.read().consistent_index()?.0 < mark.index {
        drop(backend);
        // A snapshot from a leader was accepted and not yet put in place.
        snap::install_database(&**disk, &dirs.snap(), mark.index)?;
        backend = open_backend(config, disk, &dirs)?;
        let index = backend.read().consistent_index()?.0;
        if index < mark.index && index != 0 {
            return Err(BootError::BackendMismatch { path, index, snapshot: mark.index });
        }
    }
    let mut state = State::recover(&backend, state_options(config))?;
    let (mut wal, contents) = Wal::open(Arc::clone(disk), dirs.wal(), &mark, wal_options(config))?;
    if let Some(repair) = &contents.repaired {
        log::warn!(
            "repaired the write-ahead log",
            "path" = repair.path.display().to_string(),
            "offset" = repair.offset,
            "backup" = repair.backup.display().to_string()
        );
    }
    if contents.last_index < state.applied().0 {
        return Err(BootError::LogLost {
            path: last_segment(disk, &dirs)?,
            last_index: contents.last_index,
            applied: state.applied().0,
        });
    }
    let identity = identity_of(config, contents.metadata.as_deref())?;
    log::info!(
        "restarting local member",
        "cluster-id" = format!("{:x}", identity.cluster_id),
        "local-member-id" = format!("{:x}", identity.member_id),
        "commit-index" = contents.hard_state.commit
    );
    if contents.hard_state.is_empty() && mark.index == 0 && state.applied().0 == 0 {
        let start = resume_founding(config, &identity, &mut wal)?;
        let node = start.into_node(config, &identity)?;
        return Ok(Booted { identity, dirs, wal, backend, state, node });
    }
    old_members::repair(&mut state, storage_version(&backend), &**disk, &dirs, &marks)?;
    let count = state.members().iter().len();
    if count > 1 {
        return Err(BootError::ClusterUnsupported { count });
    }
    let start = Start {
        hard_state: HardState {
            term: contents.hard_state.term,
            vote: contents.hard_state.vote,
            commit: contents.hard_state.commit,
        },
        conf_state: to_raft(&state.members().conf_state()),
        entries: contents.entries.into_iter().map(to_raft_entry).collect::<Result<_, _>>()?,
        mark,
        applied: state.applied().0,
    };
    let node = start.into_node(config, &identity)?;
    Ok(Booted { identity, dirs, wal, backend, state, node })
}

/// Finishes what a crash has interrupted between the creation of the log and its first entries. Nobody has
/// heard of the cluster yet, so it may be founded again, as long as it is the same.
fn resume_founding(
    config: &Config,
    identity: &Identity,
    wal: &mut Wal,
) -> Result<Start, BootError> {
    let founding = Founding::new(config)?;
    let (logged, computed) = (identity, &founding.identity);
    if (logged.cluster_id, logged.member_id) != (computed.cluster_id, computed.member_id) {
        return Err(BootError::OtherFounding {
            logged_cluster: logged.cluster_id,
            logged_member: logged.member_id,
            cluster: computed.cluster_id,
            member: computed.member_id,
        });
    }
    log::warn!("founding the cluster again: the log holds nothing but its name");
    founding.write(wal)
}

/// The file in which the log ends.
fn last_segment(disk: &Arc<dyn Disk>, dirs: &DataDir) -> Result<PathBuf, BootError> {
    let segments = wal::list(&**disk, dirs.wal())?.segments;
    let name = segments.last().map_or_else(String::new, |name| name.file_name());
    Ok(dirs.wal().join(name))
}

fn identity_of(config: &Config, metadata: Option<&[u8]>) -> Result<Identity, BootError> {
    let metadata = Metadata::decode(metadata.ok_or(BootError::NoMetadata)?)?;
    match (metadata.node_id, metadata.cluster_id) {
        (Some(member_id), Some(cluster_id)) if member_id != 0 => {
            Ok(Identity { cluster_id, member_id, name: config.name.clone() })
        }
        _ => Err(BootError::NoMetadata),
    }
}

fn to_raft(conf_state: &quorate_api::raftpb::ConfState) -> ConfState {
    ConfState {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        ..ConfState::default()
    }
}

fn to_raft_entry(entry: wal::Entry) -> Result<Entry, BootError> {
    let kind = EntryKind::from_wire(i32::from(entry.kind))
        .filter(|kind| *kind != EntryKind::ConfChangeV2)
        .ok_or(BootError::EntryKind { index: entry.index, kind: entry.kind })?;
    Ok(Entry { term: entry.term, index: entry.index, kind, data: entry.data })
}

/// Where consensus starts from.
#[derive(Default)]
struct Start {
    hard_state: HardState,
    conf_state: ConfState,
    entries: Vec<Entry>,
    mark: SnapshotMark,
    applied: u64,
}

impl Start {
    fn into_node(self, config: &Config, identity: &Identity) -> Result<Node, BootError> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = u64::from(since_epoch.subsec_nanos()) ^ identity.member_id;
        let ids = crate::request_id::RequestIds::new(identity.member_id, SystemTime::now());
        let tick = Duration::from_millis(config.heartbeat_interval_ms);
        let ticks = config.request_timeout().as_millis() / tick.as_millis().max(1);
        let node = Node::new(quorate_node::Config {
            id: identity.member_id,
            election_ticks: u32::try_from(config.election_ticks()).unwrap_or(u32::MAX),
            pre_vote: config.pre_vote,
            initial_tick_advance: config.initial_election_tick_advance,
            seed,
            first_read_request_id: ids.next(),
            proposal_ticks_max: u64::try_from(ticks).unwrap_or(u64::MAX).max(1),
            fences_stalled_disk: config.fence_stalled_disk,
            snapshot_policy: SnapshotPolicy {
                entry_count: config.snapshot_count,
                catch_up_count: config.snapshot_catchup_entries,
                ..SnapshotPolicy::default()
            },
            hard_state: self.hard_state,
            conf_state: self.conf_state,
            snapshot_index: self.mark.index,
            snapshot_term: self.mark.term,
            entries: self.entries,
            applied: self.applied,
        })?;
        Ok(node)
    }
}

/// Opens the backend file, waiting for another process to let go of it.
fn open_backend(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
) -> Result<Backend, BootError> {
    let path = dirs.backend();
    let started = Instant::now();
    let mut has_complained = false;
    loop {
        let mut options = bolt::Options::default();
        options.no_sync = config.unsafe_no_fsync;
        match Backend::open(disk, &path, options) {
            Err(BackendFault::Engine(BoltError::Locked { .. })) => {}
            opened => return Ok(opened?),
        }
        if !has_complained && started.elapsed() > LOCK_PATIENCE {
            has_complained = true;
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

fn state_options(config: &Config) -> StateOptions {
    let election_ticks = config.election_ticks();
    // Half as much again as an election, in whole seconds.
    let ttl_millis = (3 * election_ticks / 2) * config.heartbeat_interval_ms;
    let resubmit = config.request_timeout().as_millis();
    StateOptions {
        store: StoreOptions::default(),
        lessor: LessorOptions {
            ttl_secs_min: i64::try_from(ttl_millis.div_ceil(1000)).unwrap_or(i64::MAX),
            checkpoints: config.feature_gates.is_enabled(Gate::LeaseCheckpoint),
            resubmit_millis: u64::try_from(resubmit).unwrap_or(u64::MAX),
            ..LessorOptions::default()
        },
        checkpoint_persist: config.feature_gates.is_enabled(Gate::LeaseCheckpointPersist),
        quota_bytes: config.quota_backend_bytes,
        learner_count_max: usize::try_from(config.max_learners).unwrap_or_default(),
        watch_queue: QueueLimits::default(),
    }
}

fn url_texts(urls: &[crate::config::Url]) -> Vec<String> {
    let mut texts: Vec<String> = urls.iter().map(|url| url.as_str().to_owned()).collect();
    texts.sort();
    texts
}

/// The version of the backend file's content, if it can be told.
pub(crate) fn storage_version(backend: &Backend) -> Option<Version> {
    let file = backend.read();
    let named = file.get(Bucket::Meta, meta::STORAGE_VERSION).ok()?;
    let term = file.consistent_index().ok()?.1;
    detect_storage_version(named.as_deref(), term).ok()?
}
