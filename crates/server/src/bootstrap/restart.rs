//! A member picks up what its files hold; the flags about the initial cluster are not looked at.
//!
//! # Invariants
//!
//! * A member whose log ends before what its backend file has applied does not start: something that had
//!   been durable is lost.
//! * The members that consensus starts with are those of the backend file, at the index it has applied.

use std::sync::Arc;

use quorate_core::start::{self, Recovered, Start};
use quorate_raft::{EntryKind, HardState, LogIndex};
use quorate_state::apply::State;
use quorate_state::members::{self, Member};
use quorate_state::units::MemberId;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::lost_log;
use quorate_storage::wal::{self, Wal};

use super::alone::go_on_alone;
use super::error::BootError;
use super::founding::{Founding, append};
use super::initial::Initial;
use super::joining::learn_others;
use super::names::{Names, Outside};
use super::own_log::{identity_of, open_log, tell_repaired};
use super::rebuild;
use super::reclaim::give_space_back;
use super::start::node_at;
use super::{Booted, check_learners, old_members, open_backend, state_options, wal_options};
use quorate_config::{ClusterState, Config, Gate};
use quorate_member::Identity;
use quorate_member::corruption::check_before_serving;
use quorate_telemetry::log;

/// Picks up an existing member. Where it is to be rebuilt, or cannot be picked up as it is and may be, it is.
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
        Err(error) if rebuild::may_rebuild(config) && rebuild::would_help(&error) => {
            let reason = error.to_string();
            rebuild::rebuild(config, disk, &dirs, outside, &reason).await?;
            pick_up(config, disk, dirs, outside).await
        }
        outcome => outcome,
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
    let Recovered { marks, backend, mut state } = recovered;
    check_held_version(config, &state)?;
    let applied = LogIndex(state.applied().0);
    let options = wal_options(config);
    let (mut wal, contents) = open_log(disk, &dirs, &mark, options, applied, tell_repaired)?;
    let identity = identity_of(config, contents.metadata.as_deref())?;
    log::info!(
        "restarting local member",
        "cluster-id" = format!("{:x}", identity.cluster_id),
        "local-member-id" = format!("{:x}", identity.member_id),
        "commit-index" = contents.hard_state.commit
    );
    if config.discovery.is_asked_for() {
        log::warn!(
            "discovery token is ignored since cluster already initialized; valid logs are found",
            "wal-dir" = dirs.wal().display().to_string()
        );
    }
    let (start, peers) =
        if contents.hard_state.is_empty() && mark.index == 0 && applied == LogIndex::ZERO {
            super::check_lost_log(&**disk, &dirs)?;
            begin_again(config, &identity, &mut wal, outside).await?
        } else {
            let version = start::storage_version(&backend);
            old_members::repair(&mut state, version, &**disk, &dirs, &marks)?;
            check_membership(config, &identity, &state)?;
            let mut start = Start::new(&state, contents, mark)?;
            if config.force_new_cluster {
                go_on_alone(&mut start, &identity, &mut wal)?;
                forget_lost_log(&start, &mut wal, &**disk, &dirs)?;
            }
            let peers = match knows_members(&start, &state) {
                true => Vec::new(),
                false => learn_others(config, &identity, outside).await?,
            };
            (start, peers)
        };
    for path in start::release_passed(&**disk, &dirs, applied)? {
        log::info!("removed a snapshot that is not needed", "path" = path.display().to_string());
    }
    if config.feature_gates.is_enabled(Gate::InitialCorruptCheck) && !config.force_new_cluster {
        let (view, timeout) = (state.readers().view(), config.request_timeout());
        check_before_serving(&identity, view, state.members(), outside.dialer, timeout).await?;
    }
    let node = node_at(start, config, &identity, &dirs)?;
    let was_rebuilt = rebuild::is_recent(&**disk, &dirs)?;
    Ok(Booted { was_rebuilt, identity, dirs, wal, backend, state, node, peers, memory_lock: None })
}

/// Takes the mark of a lost log away from a member that goes on alone, once no later start could have it take
/// part in its old cluster.
fn forget_lost_log(
    start: &Start,
    wal: &mut Wal,
    disk: &dyn Disk,
    dirs: &DataDir,
) -> Result<(), BootError> {
    let path = lost_log::path(dirs);
    let mark_error = |source| BootError::Mark { path: path.clone(), source };
    let Some(reason) = lost_log::reason(disk, dirs).map_err(mark_error)? else { return Ok(()) };
    let HardState { term, vote, commit } = start.hard_state;
    // The removal of the others counts from here on, with or without the flag.
    let agreed = wal::HardState { term: term.get(), vote, commit: commit.get() };
    append(wal, Some(&agreed), &[])?;
    lost_log::unmark(disk, dirs).map_err(mark_error)?;
    log::warn!(
        "going on alone with a log that has lost entries; writes that were acknowledged may be missing",
        "reason" = reason
    );
    Ok(())
}

/// A member that is held back does not open the files of a cluster that has gone ahead.
fn check_held_version(config: &Config, state: &State) -> Result<(), BootError> {
    match (config.hold_cluster_version, state.versions().cluster()) {
        (Some(held), Some(cluster)) if cluster > held => Err(BootError::HeldBack { held, cluster }),
        _ => Ok(()),
    }
}

fn check_membership(config: &Config, identity: &Identity, state: &State) -> Result<(), BootError> {
    if state.members().is_removed(MemberId(identity.member_id)) {
        return Err(BootError::Removed);
    }
    check_learners(config, state.members().iter())
}

/// Whether the file or the log will tell who else is in the cluster.
fn knows_members(start: &Start, state: &State) -> bool {
    state.members().iter().len() > 0
        || start.entries.iter().any(|entry| entry.kind == EntryKind::ConfChange)
}

/// Goes on where a crash has stopped the first start, between the creation of the log and its first
/// entries.
///
/// A founder founds again: nobody has heard from it yet. So that no other cluster comes of it, the flags
/// must still found the same one. A member that was to join waits for the leader, as it did before; so does
/// a founder whose flags are not there any more, if there were others, who know the founders too.
async fn begin_again(
    config: &Config,
    identity: &Identity,
    wal: &mut Wal,
    outside: Outside<'_>,
) -> Result<(Start, Vec<Member>), BootError> {
    let is_sole = is_sole_founder(identity);
    let founds = config.initial_cluster_state == ClusterState::New || is_sole;
    let founding = match founds && !config.discovery.is_asked_for() {
        true => refounding(config, outside.names).await.map(Some),
        false => Ok(None),
    };
    match founding {
        Ok(Some(founding)) if founding.is_of(identity) => {
            log::warn!("founding the cluster again: the log holds nothing but its name");
            Ok((founding.write(wal)?, founding.others()))
        }
        // The id of a cluster of one is made of its only member's: there is nobody to wait for.
        Ok(Some(founding)) if is_sole => Err(BootError::OtherFounding {
            logged_cluster: identity.cluster_id,
            logged_member: identity.member_id,
            cluster: founding.identity.cluster_id,
            member: founding.identity.member_id,
        }),
        Err(error) if is_sole => Err(error),
        _ => Ok((Start::default(), learn_others(config, identity, outside).await?)),
    }
}

/// The cluster that the flags found.
async fn refounding(config: &Config, names: &dyn Names) -> Result<Founding, BootError> {
    let initial = Initial::find(config, names).await?;
    initial.members.check_holds(&config.name)?;
    Ok(Founding::of(config, &initial.members, &initial.token))
}

fn is_sole_founder(identity: &Identity) -> bool {
    members::cluster_id([MemberId(identity.member_id)]) == identity.cluster_id
}
