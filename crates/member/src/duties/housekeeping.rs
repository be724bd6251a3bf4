//! Background work of a member: publishing its name, following leadership, revoking expired leases, compaction, and
//! purging files.
//!
//! Each duty is a task on the first connection runtime, where it can propose requests as a client does. All duties end
//! when the runtime ends.
//!
//! # Not here
//!
//! Agreement on versions (`versions`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use quorate_api::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use quorate_core::{LeaseCare, LeaseProposals, Purger, Revocation};
use quorate_net::ticks::shared_ticks;
use quorate_raft::{NONE, Role, Term};
use quorate_state::units::MemberId;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};

use crate::Handles;
use crate::duties::compactor;
use crate::duties::leadership::LeaderWatch;
use crate::threads::fatal::FaultReports;
use quorate_config::Retention;
use quorate_net::runtime::blocking;
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, KEYS_READ_EVERY};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// Interval at which the leader checks for expired leases.
const EXPIRY_SCAN: Duration = Duration::from_millis(500);

/// Maximum number of concurrent revocations of expired leases.
const REVOKES_MAX: usize = 16;

/// Interval at which a member checks whether the member list contains its own entry with the published attributes.
const NAME_LOOK: Duration = Duration::from_millis(50);

const PURGE_INTERVAL: Duration = Duration::from_secs(30);

/// Number of consecutive checks that must find no leader before streams that require a leader are ended. The checks are
/// one election timeout apart.
const LEADERLESS_CHECKS_MAX: u32 = 3;

/// Publishes this member's name and client URLs to the cluster, and retries until the member list of the cluster
/// contains them.
///
/// Publishing starts when this member appears in its own member list, because only then do its files identify its
/// cluster. Other members assume that the files of a member with published URLs do so (`bootstrap::join`).
pub async fn publish(handles: &Handles, client_urls: Vec<String>) {
    let attributes =
        Attributes { name: handles.info.identity().name.clone(), client_urls: client_urls.clone() };
    let is_known = || {
        let facts = handles.info.facts();
        let own = facts.members.get(MemberId(handles.info.id()));
        own.is_some_and(|own| own.name == attributes.name && own.client_urls == client_urls)
    };
    // Attributes that were already known at startup do not prove that this member has caught up, so they are published
    // again.
    let was_known = is_known();
    let mut looks = interval(NAME_LOOK);
    while handles.info.facts().members.get(MemberId(handles.info.id())).is_none() {
        looks.tick().await;
    }
    let becomes_known = async {
        let mut looks = interval(NAME_LOOK);
        // The attributes may also come from the replayed log, before there is a leader. Only a read barrier proves that
        // they are committed.
        while was_known || !is_known() || handles.reader.read_barrier().await.is_err() {
            looks.tick().await;
        }
    };
    let mut becomes_known = std::pin::pin!(becomes_known);
    loop {
        let result = tokio::select! {
            result = publish_attributes(handles, &attributes) => result,
            // If the entry arrives as part of a snapshot, the proposal receives no response, so the member list is
            // checked too.
            () = &mut becomes_known => Ok(()),
        };
        let error = match result {
            Ok(()) => break,
            Err(RequestError::Stopped) => return,
            Err(error) => error,
        };
        log::warn!(
            "failed to publish local member to cluster through raft",
            "local-member-id" = format!("{:x}", handles.info.id()),
            "error" = error.to_string()
        );
        // The attributes may be committed despite the error. If this member has applied them, no further attempt is
        // needed.
        if handles.reader.read_barrier().await.is_ok() && is_known() {
            break;
        }
        // Refusals return immediately, so pause before the next attempt.
        tokio::time::sleep(NAME_LOOK).await;
    }
    log::info!(
        "published local member to cluster through raft",
        "local-member-id" = format!("{:x}", handles.info.id()),
        "cluster-id" = format!("{:x}", handles.info.cluster_id()),
        "publish-timeout" = handles.info.limits().request_timeout
    );
}

async fn publish_attributes(
    handles: &Handles,
    attributes: &Attributes,
) -> Result<(), RequestError> {
    let set = ClusterMemberAttrSetRequest {
        member_id: handles.info.id(),
        member_attributes: Some(attributes.clone()),
    };
    let request = InternalRaftRequest {
        cluster_member_attr_set: Some(Box::new(set)),
        ..InternalRaftRequest::default()
    };
    handles.proposer.propose_as_member(request, RequestKind::ClusterMemberAttrSet).await.map(drop)
}

/// Follows changes of leadership: updates gauges, and records the time at which this member becomes leader. The driver
/// counts and logs the changes, because this task may miss a brief loss of the leader.
pub async fn follow_leadership(handles: Arc<Handles>) {
    let mut leadership = handles.info.member_status().leadership();
    loop {
        let now = *leadership.borrow_and_update();
        let metrics = &handles.info.metrics().server;
        metrics.has_leader.set(i64::from(now.leader != NONE));
        metrics.is_leader.set(i64::from(now.role == Role::Leader));
        if now.role == Role::Leader {
            handles.proposer.note_leading();
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// Ends the streams that require a leader, once there has been no leader for too long.
pub async fn watch_for_leader(handles: Arc<Handles>) {
    let mut ticks = shared_ticks(handles.info.limits().election_timeout);
    let mut missing_count = 0;
    loop {
        ticks.tick().await;
        if !handles.info.member_status().misses_leader(handles.info.limits().election_timeout) {
            missing_count = 0;
            continue;
        }
        missing_count += 1;
        // The signal is repeated, because a stream may have been admitted before the loss and have started after it.
        if missing_count >= LEADERLESS_CHECKS_MAX {
            handles.streams.lose_leader();
        }
    }
}

/// Proposes revocations of expired leases, and checkpoints for leases with a long TTL.
pub async fn end_leases(handles: Arc<Handles>) {
    let leader = LeaderWatch::new(&handles);
    let permits = Arc::new(Semaphore::new(REVOKES_MAX));
    let mut ticks = shared_ticks(EXPIRY_SCAN);
    let mut leadership = handles.info.member_status().leadership();
    loop {
        // Only a leader checks for expired leases.
        if leadership.wait_for(|now| now.role == Role::Leader).await.is_err() {
            return;
        }
        ticks.tick().await;
        let Some(care) = LeaseCare::look(&*handles.reader) else { continue };
        if care.needs_quorum() && !leader.confirm_leadership().await {
            continue;
        }
        let Some(proposals) = care.proposals(&*handles.reader) else { continue };
        let LeaseProposals { term, ends, checkpoints } = proposals;
        for revocation in ends {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let handles = Arc::clone(&handles);
            tokio::spawn(async move {
                revoke(&handles, term, revocation).await;
                drop(permit);
            });
        }
        if let Some(request) = checkpoints {
            let kind = RequestKind::LeaseCheckpoint;
            // If the proposal is lost, the checkpoint is proposed again after the checkpoint interval.
            drop(handles.proposer.propose_as_leader(term, request, kind).await);
        }
    }
}

/// Proposes the revocation of a lease, if it has not been revoked already. If the proposal fails, a later check finds
/// the expired lease again.
async fn revoke(handles: &Handles, term: Term, revocation: Revocation) {
    let Some(request) = revocation.request(handles.reader.leases()) else { return };
    match handles.proposer.propose_as_leader(term, request, RequestKind::LeaseRevoke).await {
        Ok(_) => handles.info.metrics().lease.expired.inc(),
        Err(error) => log::warn!(
            "failed to revoke lease",
            "lease-id" = format!("{:016x}", revocation.id().0),
            "error" = error.to_string()
        ),
    }
}

/// Reloads the token keys when their files change, if keys are configured.
pub async fn reload_keys(access_control: Arc<AccessControl>) {
    let mut ticks = interval(KEYS_READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while access_control.has_keys() {
        ticks.tick().await;
        let access_control = Arc::clone(&access_control);
        blocking(move || access_control.reload_keys()).await;
    }
}

/// Sends events from the history to watchers that are behind.
pub async fn catch_up_watchers(handles: Arc<Handles>, faults: FaultReports) {
    loop {
        let hub = handles.reader.hub().clone();
        std::future::poll_fn(|cx| hub.poll_behind(cx)).await;
        let caught_up = blocking(move || {
            while hub.catch_up()? {}
            Ok::<_, quorate_state::watch::HistoryFault>(())
        });
        if let Err(fault) = caught_up.await {
            faults.report(
                "reading history for watchers",
                crate::requests::reader::ReadingHistory(fault),
            );
            return;
        }
    }
}

/// Compacts the keyspace automatically, as configured by the flags.
pub async fn compact_automatically(handles: Arc<Handles>, retention: Retention) {
    let handles = &*handles;
    compactor::compact_automatically(
        retention,
        || (handles.reader.current_revision(), handles.info.member_status().leads()),
        |revision| handles.proposer.compaction_point(revision),
        |revision| async move {
            let request = InternalRaftRequest {
                compaction: Some(CompactionRequest { revision, physical: false }),
                ..InternalRaftRequest::default()
            };
            let kind = RequestKind::Compaction;
            handles.proposer.propose_as_member(request, kind).await.map(drop)
        },
    )
    .await;
}

/// Removes old snapshot files and log segments.
pub async fn purge_files(purger: Purger, faults: FaultReports) {
    let mut ticks = interval(PURGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let purger = purger.clone();
        if let Err(error) = blocking(move || purger.run(log_purged)).await {
            faults.report("purging old files", error);
            return;
        }
    }
}

fn log_purged(path: &Path) {
    log::info!("purged", "path" = path.display().to_string());
}
