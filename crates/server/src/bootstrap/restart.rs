//! Restarts an existing member from its files. The flags about the initial cluster are ignored, unless the log contains
//! no entries yet.
//!
//! # Invariants
//!
//! * A member whose log ends before the last entry applied to its backend file does not start, because durable entries
//!   were lost.
//! * Consensus starts with the members in the backend file, at the file's applied index.

use std::sync::Arc;

use quorate_core::bootstrap::{Decision, append_entries, is_blank};
use quorate_core::start::{self, Recovered, Start};
use quorate_raft::{HardState, LogIndex};
use quorate_state::apply::State;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::lost_log;
use quorate_storage::wal::{self, Wal};

use super::alone::remove_other_members;
use super::error::BootError;
use super::names::Outside;
use super::own_log::{log_repair, open_log};
use super::questions::{decide, log_unlearned};
use super::rebuild;
use super::reclaim::give_space_back;
use super::start::node_at;
use super::{
    Booted, flags, lost_log_reason, old_members, open_backend, state_options, wal_options,
};
use quorate_config::{Config, FeatureGate};
use quorate_member::Identity;
use quorate_member::corruption::check_before_serving;
use quorate_telemetry::log;

/// Restarts an existing member. Rebuilds its state first if a rebuild is ordered, or if the files are damaged and a
/// rebuild is allowed.
pub(super) async fn restart(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: DataDir,
    outside: Outside<'_>,
) -> Result<Booted, BootError> {
    if let Some(reason) = rebuild::ordered(config, &**disk, &dirs)? {
        rebuild::rebuild(config, disk, &dirs, outside, &reason).await?;
    }
    match pick_up(config, disk, dirs.clone(), outside).await {
        Err(error) if rebuild::may_rebuild(config) && rebuild::is_fixed_by_rebuild(&error) => {
            let reason = error.to_string();
            rebuild::rebuild(config, disk, &dirs, outside, &reason).await?;
            pick_up(config, disk, dirs, outside).await
        }
        outcome => outcome,
    }
}

/// Logs that a received image has replaced the backend file with this index, if there was one.
fn log_recovery(replaced: Option<u64>, snapshot_index: u64) {
    if let Some(consistent_index) = replaced {
        log::info!(
            "Recovering from snapshot backend",
            "consistent-index" = consistent_index,
            "snapshot-index" = snapshot_index
        );
    }
}

async fn pick_up(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dirs: DataDir,
    outside: Outside<'_>,
) -> Result<Booted, BootError> {
    let open = || {
        let backend = open_backend(config, disk, &dirs)?;
        give_space_back(config, &backend)?;
        Ok(backend)
    };
    let recovered = start::recover(disk, &dirs, state_options(config), open)?;
    let mark = recovered.mark();
    let Recovered { marks, backend, mut state, replaced } = recovered;
    log_recovery(replaced, mark.index);
    let (flags, refused) = (flags(config), |refusal| BootError::refused(refusal, &dirs));
    flags.check_version(state.versions().cluster()).map_err(refused)?;
    let applied = LogIndex(state.applied().0);
    let options = wal_options(config);
    let (mut wal, contents) = open_log(disk, &dirs, &mark, options, applied, log_repair)?;
    let identity = Identity::from_metadata(contents.metadata.as_deref(), &config.name);
    let identity = identity.map_err(refused)?;
    log::info!(
        "restarting local member",
        "cluster-id" = format!("{:x}", identity.cluster_id),
        "local-member-id" = format!("{:x}", identity.member_id),
        "commit-index" = contents.hard_state.commit
    );
    warn_about_discovery(config, &dirs);
    let own = identity.clone();
    let (mut start, step) = if is_blank(&contents, &mark, applied) {
        let step = flags.begin_again(own, lost_log_reason(&**disk, &dirs)?).map_err(refused)?;
        (Start::default(), step)
    } else {
        let version = start::storage_version(&backend);
        old_members::repair(&mut state, version, &**disk, &dirs, &marks)?;
        let mut start = Start::new(&state, contents, mark)?;
        correct_members(&start, &mut state);
        flags.check_members(&own, state.members()).map_err(refused)?;
        if config.force_new_cluster {
            remove_other_members(&mut start, state.members(), &identity, &mut wal)?;
            forget_lost_log(&start, &mut wal, &**disk, &dirs)?;
        }
        let step = flags.go_on(own, &start, state.members());
        (start, step)
    };
    let peers = match decide(config, &dirs, outside, step).await? {
        Decision::Found(founding) => {
            log::warn!(
                "bootstrapping the cluster again: the write-ahead log contains only metadata"
            );
            start = founding.write(&mut wal)?;
            founding.others()
        }
        Decision::Continue { others, unlearned } => {
            if let Some(unlearned) = unlearned {
                log_unlearned(unlearned, identity.cluster_id);
            }
            others
        }
        Decision::Join(_) => unreachable!("a member with a log has joined"),
    };
    remove_passed_snapshots(&**disk, &dirs, applied)?;
    let checks = config.feature_gates.is_enabled(FeatureGate::InitialCorruptCheck);
    if checks && !config.force_new_cluster {
        let (view, timeout) = (state.published().view(), config.request_timeout());
        check_before_serving(&identity, view, state.members(), outside.dialer, timeout).await?;
    }
    let node = node_at(start, state.members(), config, &identity, &dirs)?;
    let was_rebuilt = rebuild::is_recent(&**disk, &dirs)?;
    Ok(Booted { was_rebuilt, identity, dirs, wal, backend, state, node, peers, memory_lock: None })
}

/// Logs a warning if the flags name a discovery service, which only a new member uses.
fn warn_about_discovery(config: &Config, dirs: &DataDir) {
    if config.discovery.is_asked_for() {
        log::warn!(
            "discovery token is ignored since cluster already initialized; valid logs are found",
            "wal-dir" = dirs.wal().display().to_string()
        );
    }
}

/// Corrects the member list in the backend file if it differs from the raft configuration, as it may in a directory
/// that etcd has written.
fn correct_members(start: &Start, state: &mut State) {
    if start.correct_members(state) {
        log::warn!("corrected the member list in the database to match the raft configuration");
    }
}

/// Removes received snapshots at or before the applied index.
fn remove_passed_snapshots(
    disk: &dyn Disk,
    dirs: &DataDir,
    applied: LogIndex,
) -> Result<(), BootError> {
    for path in start::release_passed(disk, dirs, applied)? {
        log::info!(
            "removed a snapshot that is no longer needed",
            "path" = path.display().to_string()
        );
    }
    Ok(())
}

/// Removes the lost-log mark of a member with `--force-new-cluster`, once the member can no longer rejoin its old
/// cluster after a restart.
fn forget_lost_log(
    start: &Start,
    wal: &mut Wal,
    disk: &dyn Disk,
    dirs: &DataDir,
) -> Result<(), BootError> {
    let path = lost_log::path(dirs);
    let mark_error = |source| BootError::Unreadable { path: path.clone(), source };
    let Some(reason) = lost_log_reason(disk, dirs)? else { return Ok(()) };
    let HardState { term, vote, commit } = start.hard_state;
    // This hard state commits the removal of the other members. Later restarts do not need `--force-new-cluster`.
    let agreed = wal::HardState { term: term.get(), vote, commit: commit.get() };
    append_entries(wal, Some(&agreed), &[])?;
    lost_log::unmark(disk, dirs).map_err(mark_error)?;
    log::warn!(
        "continuing as the only member although its log has lost entries; acknowledged writes may be missing",
        "reason" = reason
    );
    Ok(())
}
