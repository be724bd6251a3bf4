//! Metrics that are read from the member at each scrape: the store, the watchers, the applied members, alarms and
//! versions, and the use of the member's limits.
//!
//! # Not here
//!
//! The names and help of the metrics (`metrics::state`).

use std::sync::Arc;

use quorate_api::etcdserverpb::AlarmType;
use quorate_member::Handles;
use quorate_net::descriptors::Budget;
use quorate_requests::accounts::Accounts;
use quorate_requests::admission::Admission;
use quorate_requests::{PasswordsLoad, ServerInfo};
use quorate_state::watch::HubStats;
use quorate_telemetry::metrics::{Metrics, StateSample};

/// Registers the callback that reads the member's state at each scrape. The callback holds weak references, because the
/// member owns the metrics, and the metrics own the callback.
pub(crate) fn register_callbacks(
    metrics: &Metrics,
    (handles, accounts): (&Arc<Handles>, &Arc<Accounts>),
    budget: &Budget,
) {
    let (handles, budget) = (Arc::downgrade(handles), budget.clone());
    let accounts = Arc::downgrade(accounts);
    metrics.watch_state(move || {
        let (Some(handles), Some(accounts)) = (handles.upgrade(), accounts.upgrade()) else {
            return StateSample::default();
        };
        show_facts(&handles.info);
        let applied = handles.info.member_status().applied();
        handles.info.metrics().server.proposals_applied.set_unsigned(applied.get());
        let (view, stats) = (handles.reader.view(), handles.reader.backend().stats());
        let watches = handles.reader.hub().stats();
        let (admission, proposals) = (handles.reader.admission(), handles.proposer.load());
        let (passwords, messages) = (accounts.passwords_load(), handles.peers.load());
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        StateSample {
            db_total_size_bytes: bytes(stats.size_bytes),
            db_in_use_bytes: bytes(stats.in_use_bytes),
            db_open_read_transactions: count(stats.open_readers),
            keys: count(view.live_key_count()),
            current_revision: view.current_revision(),
            compact_revision: view.compacted_revision(),
            auth_revision: bytes(handles.access_control.revision()),
            quota_backend_bytes: handles.info.limits().quota_configured,
            proposals: count(proposals.count),
            proposals_bytes: count(proposals.bytes),
            proposals_refused: bytes(proposals.refused),
            tokens_held: count(handles.access_control.tokens_held()),
            peer_waiting_bytes: count(messages.waiting_bytes),
            peer_large_bodies: count(messages.large_bodies),
            peer_remotes: count(messages.remotes),
            peer_confirmed: count(messages.confirmed),
            ..sample_of_limits(admission, &passwords, &watches, &budget)
        }
    });
}

/// Updates the metrics about the applied members, alarms and versions.
pub(crate) fn show_facts(info: &ServerInfo) {
    let (facts, metrics) = (info.facts(), &info.metrics().server);
    metrics.is_learner.set(i64::from(info.is_learner()));
    let version = facts.versions.cluster();
    let version = version.map(|version| format!("{}.{}", version.major, version.minor));
    let current: Vec<[&str; 1]> = version.iter().map(|version| [version.as_str()]).collect();
    metrics.cluster_version.set_only(&current);
    let alarms = facts.alarms.of_kind(AlarmType::None as i32);
    let alarms: Vec<(AlarmType, String)> =
        alarms.map(|alarm| (alarm.to_message().alarm(), format!("{:x}", alarm.member.0))).collect();
    let active: Vec<[&str; 2]> =
        alarms.iter().map(|(kind, member)| [kind.as_str_name(), member.as_str()]).collect();
    metrics.alarm_active.set_only(&active);
}

/// Returns the use of the limits that do not depend on the data store. All other fields are zero.
pub(crate) fn sample_of_limits(
    admission: &Admission,
    passwords: &PasswordsLoad,
    watches: &HubStats,
    budget: &Budget,
) -> StateSample {
    let (clients, peers) = (budget.clients.load(), budget.peers.load());
    let scrapers = budget.metrics.load();
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    StateSample {
        watch_streams: count(watches.stream_count),
        watchers: count(watches.watcher_count),
        slow_watchers: count(watches.slow_watcher_count),
        pending_events: count(watches.pending_event_count),
        reads: bytes(admission.reads.used()),
        reads_refused: bytes(admission.reads.refused()),
        tokens_waiting: bytes(admission.tokens.used()),
        tokens_refused: bytes(admission.tokens.refused()),
        passwords_waiting: count(passwords.waiting),
        passwords_refused: bytes(passwords.refused + admission.calls.logins.refused()),
        tasks: bytes(admission.tasks.used()),
        tasks_refused: bytes(admission.tasks.refused()),
        lists_bytes: bytes(admission.lists.used()),
        lists_refused: bytes(admission.lists.refused()),
        replies_bytes: bytes(admission.replies.used()),
        replies_refused: bytes(admission.replies.refused()),
        waiters_bytes: bytes(admission.waiters.used()),
        waiters_refused: bytes(admission.waiters.refused()),
        calls: bytes(admission.calls.count.used()),
        calls_refused: bytes(admission.calls.count.refused()),
        requests_bytes: bytes(admission.calls.request_bytes.used()),
        requests_refused: bytes(admission.calls.request_bytes.refused()),
        large_windows: count(clients.large_windows),
        watchers_bytes: count(watches.watcher_bytes),
        watchers_refused: bytes(watches.refused_watcher_count),
        watch_events_bytes: count(watches.held_bytes),
        client_connections: count(clients.taken),
        client_connections_waited: bytes(clients.waited),
        client_connections_given_up: bytes(clients.closed_idle),
        peer_connections: count(peers.taken),
        peer_connections_waited: bytes(peers.waited),
        peer_connections_given_up: bytes(peers.closed_idle),
        metrics_connections: count(scrapers.taken),
        metrics_connections_waited: bytes(scrapers.waited),
        metrics_connections_given_up: bytes(scrapers.closed_idle),
        ..StateSample::default()
    }
}
