//! The background work of a server on a database, and the metrics that are read at each scrape.
//!
//! # Not here
//!
//! The work of the sequencer: lease expiry, writing the tables, removing compacted versions (the crate `engine`).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use quorate_config::{Config, Retention};
use quorate_engine::Engine;
use quorate_member::housekeeping;
use quorate_net::descriptors::{self, Budget};
use quorate_net::runtime::blocking;
use quorate_requests::{RequestError, ServerHandles, Write};
use quorate_state::watch::Hub;
use quorate_telemetry::log;
use quorate_telemetry::metrics::{Metrics, RequestKind, StateSample};
use tokio::time::{MissedTickBehavior, interval};

use super::forward::PeerForward;
use crate::expiry;
use crate::scrape::{sample_of_limits, show_facts};

/// Interval at which the metrics about the sequencer are updated.
const ROLE_LOOK: Duration = Duration::from_millis(500);

/// Pause before history is read again after a failure.
const HISTORY_RETRY: Duration = Duration::from_millis(500);

/// Number of consecutive checks that must find no sequencer before streams that require a leader are ended. The checks
/// are one election timeout apart. The number is the same as for a raft member.
const LEADERLESS_CHECKS_MAX: u32 = 3;

type Duty = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns all duties of a server.
pub(super) fn all(
    config: &Config,
    engine: &Engine,
    handles: &ServerHandles,
    (expiry, metrics): (expiry::Watch, &Arc<Metrics>),
) -> Vec<Duty> {
    let mut duties: Vec<Duty> = vec![
        Box::pin(follow_role(engine.clone(), Arc::clone(metrics))),
        Box::pin(watch_for_sequencer(handles.clone())),
        Box::pin(catch_up_watchers(engine.published().hub.clone())),
        Box::pin(descriptors::watch_usage()),
        Box::pin(housekeeping::reload_keys(Arc::clone(&handles.access_control))),
    ];
    if let Some(retention) = config.auto_compaction().unwrap_or_default() {
        duties.push(Box::pin(compact_automatically(engine.clone(), handles.clone(), retention)));
    }
    if !expiry.is_empty() {
        duties.push(Box::pin(expiry::check_periodically(expiry, Arc::clone(metrics))));
    }
    duties
}

/// Updates the metrics about the sequencer, and logs each change of sequencer.
async fn follow_role(engine: Engine, metrics: Arc<Metrics>) {
    let mut ticks = interval(ROLE_LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_sequencer = 0;
    loop {
        ticks.tick().await;
        let status = engine.status();
        let sequencer = status.sequencer_id;
        show_role(&engine, &metrics);
        let previous = std::mem::replace(&mut last_sequencer, sequencer);
        if sequencer != 0 && sequencer != previous {
            metrics.server.leader_changes_seen.inc();
            log::info!("a server has become the sequencer", "server-id" = format!("{sequencer:x}"));
        }
    }
}

fn show_role(engine: &Engine, metrics: &Metrics) {
    let sequencer = engine.status().sequencer_id;
    metrics.server.has_leader.set(i64::from(sequencer != 0));
    metrics.server.is_leader.set(i64::from(sequencer == engine.server_id()));
}

/// Ends the streams that require a leader when there has been no sequencer for too long.
async fn watch_for_sequencer(handles: ServerHandles) {
    let mut ticks = interval(handles.info.limits().election_timeout);
    let mut missing_count = 0;
    loop {
        ticks.tick().await;
        missing_count = if handles.info.has_leader() { 0 } else { missing_count + 1 };
        if missing_count == LEADERLESS_CHECKS_MAX {
            handles.streams.lose_leader();
        }
    }
}

/// Sends events from the history to watchers that are behind.
async fn catch_up_watchers(hub: Hub) {
    loop {
        std::future::poll_fn(|cx| hub.poll_behind(cx)).await;
        let reading = hub.clone();
        let caught_up = blocking(move || {
            while reading.catch_up()? {}
            Ok::<_, quorate_state::watch::HistoryFault>(())
        });
        if let Err(fault) = caught_up.await {
            log::warn!("cannot read history for watchers", "error" = fault.to_string());
            tokio::time::sleep(HISTORY_RETRY).await;
        }
    }
}

/// Compacts the keyspace automatically while this server is the sequencer.
async fn compact_automatically(engine: Engine, handles: ServerHandles, retention: Retention) {
    let status = || {
        let status = engine.status();
        (status.revision, status.sequencer_id == engine.server_id())
    };
    let compact = |revision| compact(&handles, revision);
    quorate_member::compact_automatically(retention, status, |revision| revision, compact).await;
}

async fn compact(handles: &ServerHandles, revision: i64) -> Result<(), RequestError> {
    let request = InternalRaftRequest {
        compaction: Some(CompactionRequest { revision, physical: false }),
        ..InternalRaftRequest::default()
    };
    let user = handles.access_control.user_for_own_write();
    let write = Write { request, kind: RequestKind::Compaction, user, trace: None };
    handles.store.write(write, None).await.map(drop)
}

/// Registers the callback that reads the server's state at each scrape. The callback has only weak references to
/// handles that own the metrics, because the metrics own the callback.
pub(super) fn register_callbacks(
    metrics: &Metrics,
    (engine, forward, handles): (&Engine, &Arc<PeerForward>, &ServerHandles),
    budget: &Budget,
) {
    let (store, budget) = (Arc::downgrade(&handles.store), budget.clone());
    let (info, accounts) = (Arc::downgrade(&handles.info), Arc::downgrade(&handles.accounts));
    let (published, forward) = (engine.published().clone(), Arc::clone(forward));
    let engine = engine.clone();
    metrics.watch_state(move || {
        let (Some(store), Some(info), Some(accounts)) =
            (store.upgrade(), info.upgrade(), accounts.upgrade())
        else {
            return StateSample::default();
        };
        let (sizes, watches, status) = (store.sizes(), published.hub.stats(), engine.status());
        let (admission, passwords) = (info.admission(), accounts.passwords_load());
        let index = i64::try_from(status.index).unwrap_or(i64::MAX);
        info.metrics().server.proposals_committed.set(index);
        info.metrics().server.proposals_applied.set(index);
        show_role(&engine, info.metrics());
        show_facts(&info);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        StateSample {
            db_total_size_bytes: bytes(sizes.total_bytes),
            db_in_use_bytes: bytes(sizes.in_use_bytes),
            current_revision: status.revision,
            compact_revision: status.compacted_revision,
            engine_epoch: bytes(status.epoch),
            engine_backlog_batches: bytes(status.backlog_batches),
            engine_backlog_bytes: bytes(status.backlog_bytes),
            engine_forwards_bytes: count(forward.waiting_bytes()),
            auth_revision: bytes(published.auth.view().revision()),
            quota_backend_bytes: info.limits().quota_configured,
            tokens_held: count(published.auth.tokens().count()),
            ..sample_of_limits(admission, &passwords, &watches, &budget)
        }
    });
}
