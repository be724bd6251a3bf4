//! The table of metric families, grouped by subsystem, with the name, type and help of each family.
//!
//! To add a metric, add a row. The row names the field that code uses to update the metric. For metrics that etcd also
//! has, names, types and buckets are etcd's, because dashboards and alerts depend on them.

use std::sync::Arc;
use std::time::Duration;

use super::exposition::{Kind, Samples};
use super::labelled::Labelled;
use super::primitive::{Counter, Gauge, Histogram};
use super::registry::{Collect, Registry, Scrape};

macro_rules! group {
    (
        $(#[$doc:meta])*
        $group:ident {
            $($field:ident: $type:ty = $make:expr, $name:literal, $help:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $group {
            $(#[doc = $help] pub $field: Arc<$type>,)*
        }

        impl $group {
            pub(super) fn new(registry: &mut Registry) -> Self {
                Self { $($field: registry.share($name, $help, $make),)* }
            }
        }
    };
}

/// Creates a histogram with the bounds used for most durations, from 1 ms to 8 s.
fn from_a_milli() -> Histogram {
    Histogram::seconds(1_000, 14)
}

/// Creates a histogram with bounds for waits between threads, from 10 µs to 5.2 s.
fn from_ten_micros() -> Histogram {
    Histogram::seconds(10, 20)
}

/// Creates a histogram with fine bounds, from 0.1 ms to 52 s.
fn from_a_tenth_milli() -> Histogram {
    Histogram::seconds(100, 20)
}

/// Creates a histogram with fine bounds for round trips, from 0.1 ms to 3.3 s.
fn from_a_tenth_milli_to_seconds() -> Histogram {
    Histogram::seconds(100, 16)
}

/// Creates a histogram with coarse bounds, from 0.1 s.
fn from_a_tenth_second() -> Histogram {
    Histogram::seconds(100_000, 10)
}

fn counter() -> Counter {
    Counter::default()
}

fn gauge() -> Gauge {
    Gauge::default()
}

group! {
    /// Metrics of Raft, requests and health.
    ServerMetrics {
        has_leader: Gauge = gauge(), "etcd_server_has_leader",
            "1 if a leader is known, otherwise 0.";
        is_leader: Gauge = gauge(), "etcd_server_is_leader",
            "1 if this member is the leader, otherwise 0.";
        is_learner: Gauge = gauge(), "etcd_server_is_learner",
            "1 if this member is a learner, otherwise 0.";
        leader_changes_seen: Counter = counter(), "etcd_server_leader_changes_seen_total",
            "Leader changes seen by this member.";
        heartbeat_send_failures: Counter = counter(), "etcd_server_heartbeat_send_failures_total",
            "Heartbeats that this member sent late as leader.";
        learner_promote_successes: Counter = counter(), "etcd_server_learner_promote_successes",
            "Learners promoted while this member was the leader.";
        learner_promote_failures: Labelled<Counter> = Labelled::new(&["Reason"]),
            "etcd_server_learner_promote_failures",
            "Failed promotions of learners while this member was the leader.";
        snapshot_apply_in_progress: Gauge = gauge(), "etcd_server_snapshot_apply_in_progress_total",
            "1 if a received snapshot is being installed, otherwise 0.";
        proposals_committed: Gauge = gauge(), "etcd_server_proposals_committed_total",
            "Index of the last committed log entry.";
        proposals_applied: Gauge = gauge(), "etcd_server_proposals_applied_total",
            "Index of the last applied log entry.";
        quota_warning: Gauge = gauge(), "quorate_quota_warning",
            "1 if the backend file has reached --quota-warning-percent of its quota, otherwise 0.";
        log_bytes: Gauge = gauge(), "quorate_log_memory_bytes",
            "Bytes of log entries held in memory.";
        log_uncommitted_bytes: Gauge = gauge(), "quorate_log_uncommitted_bytes",
            "Bytes of log entries that this member has appended as leader but has not yet applied.";
        log_refused: Counter = counter(), "quorate_log_refused_total",
            "Requests and appends refused because a limit on the log, on log writes in progress or on waiting \
             forwarded requests was reached.";
        early_appends: Gauge = gauge(), "quorate_early_appends_bytes",
            "Bytes of received appends that wait for earlier appends from the leader.";
        held_changes: Gauge = gauge(), "quorate_membership_changes_waiting",
            "Membership changes that wait until an earlier one is applied.";
        certificate_expiry: Labelled<Gauge> = Labelled::new(&["file"]),
            "quorate_certificate_expiration_timestamp_seconds",
            "Earliest expiry time of the certificates in a file, in seconds since 1970, by the flag that names the \
             file.";
        revocations_next_update: Labelled<Gauge> = Labelled::new(&["file"]),
            "quorate_revocation_list_next_update_timestamp_seconds",
            "Time of the next update of a certificate revocation list, in seconds since 1970, by the flag that names \
             its file.";
        connections_over_address_limit: Counter = counter(),
            "quorate_connections_over_address_limit_total",
            "Connections closed because their source address had reached the per-address connection limit.";
        proposals_pending: Gauge = gauge(), "etcd_server_proposals_pending",
            "Proposals waiting for their result.";
        proposal_queue: Histogram = from_ten_micros(), "quorate_proposal_queue_duration_seconds",
            "Time from the acceptance of a proposal until consensus takes it from the queue, to append it to the log \
             or to forward it to the leader. A wait for a leader is not included.";
        proposals_failed: Counter = counter(), "etcd_server_proposals_failed_total",
            "Proposals that ended without a result.";
        request_duration: PerKind = PerKind::new("type", None, from_a_milli),
            "etcd_server_request_duration_seconds",
            "Duration of requests, by kind.";
        range_duration: Labelled<Histogram> = Labelled::made_by(&["success"], from_a_tenth_milli),
            "etcd_server_range_duration_seconds",
            "Duration of ranges that are not part of a transaction.";
        apply_duration: PerKind = PerKind::new("op", Some(("version", "v3")), from_a_tenth_milli),
            "etcd_server_apply_duration_seconds",
            "Duration of applying entries, by kind.";
        slow_apply: Counter = counter(), "etcd_server_slow_apply_total",
            "Requests that took too long to apply.";
        slow_read_indexes: Counter = counter(), "etcd_server_slow_read_indexes_total",
            "Read index requests that were answered late or not at all.";
        read_indexes_failed: Counter = counter(), "etcd_server_read_indexes_failed_total",
            "Read index requests that failed.";
        client_requests: Labelled<Counter> = Labelled::new(&["client_api_version", "type"]),
            "etcd_server_client_requests_total",
            "Client calls, by the API version of the client.";
        version: Labelled<Gauge> = Labelled::new(&["server_version"]), "etcd_server_version",
            "The etcd release that this server implements.";
        go_version: Labelled<Gauge> = Labelled::new(&["server_go_version"]),
            "etcd_server_go_version",
            "The compiler that built this server.";
        id: Labelled<Gauge> = Labelled::new(&["server_id"]), "etcd_server_id",
            "The id of this member, in hex.";
        feature_enabled: Labelled<Gauge> = Labelled::new(&["name", "stage"]),
            "etcd_server_feature_enabled",
            "1 if a feature gate is enabled, otherwise 0.";
        cluster_version: Labelled<Gauge> = Labelled::new(&["cluster_version"]),
            "etcd_cluster_version",
            "1 for the current cluster version, 0 for earlier versions.";
        health_success: Counter = counter(), "etcd_server_health_success",
            "Health probes that found the member healthy.";
        health_failures: Counter = counter(), "etcd_server_health_failures",
            "Health probes that found the member unhealthy.";
        healthcheck: Labelled<Gauge> = Labelled::new(&["name", "type"]), "etcd_server_healthcheck",
            "Latest result of each health check: 1 if it passed, 0 if it failed.";
        healthchecks: Labelled<Counter> = Labelled::new(&["name", "status", "type"]),
            "etcd_server_healthchecks_total",
            "Health checks, by result.";
        alarms: Labelled<Gauge> = Labelled::new(&["alarm_type", "server_id"]),
            "etcd_debugging_server_alarms",
            "Activations minus deactivations of an alarm since this member started. Only quorate_alarm_active shows \
             whether the alarm is active.";
        alarm_active: Labelled<Gauge> = Labelled::new(&["alarm_type", "server_id"]),
            "quorate_alarm_active",
            "1 if an alarm is active, 0 if the alarm has been deactivated.";
        watch_send: Histogram = from_a_milli(),
            "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
            "Duration of sending a batch of events.";
        watch_send_per_event: Histogram = from_a_milli(),
            "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
            "Duration of sending a batch of events, per event.";
        watch_send_control: Histogram = from_a_milli(),
            "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
            "Duration of sending a control response on a watch stream.";
        watch_send_progress: Histogram = from_a_milli(),
            "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
            "Duration of sending one round of progress notifications.";
    }
}

group! {
    /// Metrics of the write-ahead log and the backend.
    DiskMetrics {
        wal_fsync: Histogram = from_a_milli(), "etcd_disk_wal_fsync_duration_seconds",
            "Duration of syncing the write-ahead log.";
        wal_write: Histogram = from_a_milli(), "etcd_disk_wal_write_duration_seconds",
            "Duration of writing to the write-ahead log.";
        wal_write_bytes: Gauge = gauge(), "etcd_disk_wal_write_bytes_total",
            "Bytes written to the write-ahead log.";
        backend_commit: Histogram = from_a_milli(), "etcd_disk_backend_commit_duration_seconds",
            "Duration of backend commits.";
        backend_pending: Gauge = gauge(), "quorate_backend_pending_bytes",
            "Bytes of applied changes that are not yet in the backend file.";
        backend_defrag: Histogram = Histogram::seconds(100_000, 13),
            "etcd_disk_backend_defrag_duration_seconds",
            "Duration of defragmenting the backend.";
        backend_snapshot: Histogram = Histogram::seconds(10_000, 17),
            "etcd_disk_backend_snapshot_duration_seconds",
            "Duration of sending a snapshot of the backend file to a client.";
        defrag_inflight: Gauge = gauge(), "etcd_disk_defrag_inflight",
            "1 if the backend is being defragmented, otherwise 0.";
        commit_rebalance: Histogram = from_a_milli(),
            "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
            "Time that a commit spent merging pages.";
        commit_spill: Histogram = from_a_milli(),
            "etcd_debugging_disk_backend_commit_spill_duration_seconds",
            "Time that a commit spent splitting and placing pages.";
        commit_write: Histogram = from_a_milli(),
            "etcd_debugging_disk_backend_commit_write_duration_seconds",
            "Time that a commit spent writing pages.";
    }
}

group! {
    /// Metrics of snapshot files.
    SnapshotMetrics {
        fsync: Histogram = from_a_milli(), "etcd_snap_fsync_duration_seconds",
            "Duration of writing and syncing a snapshot file.";
        db_save: Histogram = from_a_tenth_second(), "etcd_snap_db_save_total_duration_seconds",
            "Duration of saving a received backend file.";
        db_fsync: Histogram = from_a_milli(), "etcd_snap_db_fsync_duration_seconds",
            "Duration of syncing a received backend file.";
        marshalling: Histogram = from_a_milli(),
            "etcd_debugging_snap_save_marshalling_duration_seconds",
            "Duration of encoding a snapshot.";
        save: Histogram = from_a_milli(), "etcd_debugging_snap_save_total_duration_seconds",
            "Total duration of saving a snapshot.";
    }
}

group! {
    /// Metrics of the keyspace.
    MvccMetrics {
        range: Counter = counter(), "etcd_mvcc_range_total", "Ranges executed by this member.";
        put: Counter = counter(), "etcd_mvcc_put_total", "Puts executed by this member.";
        delete: Counter = counter(), "etcd_mvcc_delete_total", "Deletions executed by this member.";
        txn: Counter = counter(), "etcd_mvcc_txn_total",
            "Requests that performed more than one operation on the keyspace.";
        put_size: Gauge = gauge(), "etcd_debugging_mvcc_total_put_size_in_bytes",
            "Total size in bytes of the keys and values put since this member started.";
        events: Counter = counter(), "etcd_debugging_mvcc_events_total",
            "Events sent to clients.";
        hash: Histogram = Histogram::seconds(10_000, 15), "etcd_mvcc_hash_duration_seconds",
            "Duration of hashing the backend.";
        hash_revision: Histogram = Histogram::seconds(10_000, 15),
            "etcd_mvcc_hash_rev_duration_seconds",
            "Duration of hashing the keyspace at a revision.";
        index_compaction_pause: Histogram = Histogram::millis(500, 14),
            "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
            "Time for which a compaction blocked the index.";
        compaction_pause: Histogram = Histogram::millis(1_000, 13),
            "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
            "Time for which a step of a compaction blocked the backend.";
        compaction_total: Histogram = Histogram::millis(100_000, 14),
            "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
            "Total duration of compactions.";
        compaction_last: Gauge = gauge(), "etcd_debugging_mvcc_db_compaction_last",
            "Time of the last compaction in seconds since 1970.";
        compaction_keys: Counter = counter(), "etcd_debugging_mvcc_db_compaction_keys_total",
            "Revisions that compactions removed.";
    }
}

group! {
    /// Metrics of leases.
    LeaseMetrics {
        granted: Counter = counter(), "etcd_debugging_lease_granted_total", "Leases granted.";
        revoked: Counter = counter(), "etcd_debugging_lease_revoked_total", "Leases revoked.";
        renewed: Counter = counter(), "etcd_debugging_lease_renewed_total",
            "Leases renewed while this member was the leader.";
        expired: Counter = counter(), "etcd_debugging_server_lease_expired_total",
            "Expired leases that this member revoked as leader.";
        ttl: Histogram = Histogram::numbers(1, 24), "etcd_debugging_lease_ttl_total",
            "TTLs of granted leases, in seconds.";
    }
}

impl LeaseMetrics {
    /// Adds granted leases, given by their TTLs in seconds, and revoked leases.
    pub fn count(&self, granted_ttls: &[i64], revoked: u64) {
        for ttl_secs in granted_ttls {
            self.granted.inc();
            self.ttl.observe_number(u64::try_from(*ttl_secs).unwrap_or_default());
        }
        self.revoked.add(revoked);
    }
}

group! {
    /// Metrics of network traffic and peers.
    NetworkMetrics {
        client_sent_bytes: Counter = counter(), "etcd_network_client_grpc_sent_bytes_total",
            "Bytes of messages sent to gRPC clients.";
        client_received_bytes: Counter = counter(), "etcd_network_client_grpc_received_bytes_total",
            "Bytes of messages received from gRPC clients.";
        stream_failures: Labelled<Counter> = Labelled::new(&["API", "Type"]),
            "etcd_network_server_stream_failures_total",
            "Watch and keep-alive streams on which receiving or sending failed.";
        known_peers: Labelled<Gauge> = Labelled::new(&["Local", "Remote"]),
            "etcd_network_known_peers",
            "1 if a peer is a known member, otherwise 0.";
        active_peers: Labelled<Gauge> = Labelled::new(&["Local", "Remote"]),
            "etcd_network_active_peers",
            "1 if a peer can be reached, otherwise 0.";
        disconnected_peers: Labelled<Counter> = Labelled::new(&["Local", "Remote"]),
            "etcd_network_disconnected_peers_total",
            "Number of times that a peer became unreachable.";
        peer_sent_bytes: Labelled<Counter> = Labelled::new(&["To"]),
            "etcd_network_peer_sent_bytes_total",
            "Bytes sent to peers.";
        peer_received_bytes: Labelled<Counter> = Labelled::new(&["From"]),
            "etcd_network_peer_received_bytes_total",
            "Bytes received from peers.";
        peer_sent_failures: Labelled<Counter> = Labelled::new(&["To"]),
            "etcd_network_peer_sent_failures_total",
            "Messages to peers that were dropped or could not be sent.";
        peer_received_failures: Labelled<Counter> = Labelled::new(&["From"]),
            "etcd_network_peer_received_failures_total",
            "Malformed messages from peers.";
        peer_round_trip_time: Labelled<Histogram> =
            Labelled::made_by(&["To"], from_a_tenth_milli_to_seconds),
            "etcd_network_peer_round_trip_time_seconds",
            "Round-trip times to peers.";
        snapshot_send_success: Labelled<Counter> = Labelled::new(&["To"]),
            "etcd_network_snapshot_send_success",
            "Snapshots sent.";
        snapshot_send_failures: Labelled<Counter> = Labelled::new(&["To"]),
            "etcd_network_snapshot_send_failures",
            "Snapshots that could not be sent.";
        snapshot_send_inflights: Labelled<Gauge> = Labelled::new(&["To"]),
            "etcd_network_snapshot_send_inflights_total",
            "Snapshots being sent.";
        snapshot_send_duration: Labelled<Histogram> =
            Labelled::made_by(&["To"], from_a_tenth_second),
            "etcd_network_snapshot_send_total_duration_seconds",
            "Duration of sending a snapshot.";
        snapshot_receive_success: Labelled<Counter> = Labelled::new(&["From"]),
            "etcd_network_snapshot_receive_success",
            "Snapshots received.";
        snapshot_receive_failures: Labelled<Counter> = Labelled::new(&["From"]),
            "etcd_network_snapshot_receive_failures",
            "Snapshots that could not be received.";
        snapshot_receive_inflights: Labelled<Gauge> = Labelled::new(&["From"]),
            "etcd_network_snapshot_receive_inflights_total",
            "Snapshots being received.";
        snapshot_receive_duration: Labelled<Histogram> =
            Labelled::made_by(&["From"], from_a_tenth_second),
            "etcd_network_snapshot_receive_total_duration_seconds",
            "Duration of receiving a snapshot.";
    }
}

group! {
    /// Metrics of requests to the metrics endpoint.
    HttpMetrics {
        requests: Labelled<Counter> = Labelled::new(&["code"]),
            "promhttp_metric_handler_requests_total",
            "Scrapes of the metrics page, by HTTP status.";
        in_flight: Gauge = gauge(), "promhttp_metric_handler_requests_in_flight",
            "Scrapes of the metrics page in progress.";
    }
}

group! {
    /// Metrics of a server whose data is in a database. They are zero on a member.
    EngineMetrics {
        commit_duration: Histogram = from_a_tenth_milli(), "quorate_engine_commit_duration_seconds",
            "Duration of appending a batch to the log in the database, including repeated attempts.";
        batches: Counter = counter(), "quorate_engine_batches_total",
            "Batches that this server committed as the sequencer.";
        batch_requests: Counter = counter(), "quorate_engine_batch_requests_total",
            "Requests in the batches that this server committed as the sequencer.";
        forwarded: Counter = counter(), "quorate_engine_forwarded_total",
            "Requests that this server forwarded to the sequencer.";
        forwards_lost: Counter = counter(), "quorate_engine_forwards_lost_total",
            "Forwarded requests whose outcome is unknown, because the connection to the sequencer was lost.";
    }
}

group! {
    /// Metrics of trace spans.
    TracingMetrics {
        exported: Counter = counter(), "quorate_tracing_spans_exported_total",
            "Tracing spans that the collector accepted.";
        dropped: Counter = counter(), "quorate_tracing_spans_dropped_total",
            "Tracing spans dropped because the queue was full or the collector did not accept them.";
        waiting_bytes: Gauge = gauge(), "quorate_tracing_spans_bytes",
            "Bytes of tracing spans that the collector has not accepted yet.";
    }
}

group! {
    /// Metrics of the audit log.
    AuditMetrics {
        written: Counter = counter(), "quorate_audit_lines_written_total",
            "Audit log lines written.";
        dropped: Counter = counter(), "quorate_audit_lines_dropped_total",
            "Audit log lines lost because the queue was full or the write failed.";
        waiting_bytes: Gauge = gauge(), "quorate_audit_lines_bytes",
            "Bytes of audit log lines that are not written yet.";
        refused: Counter = counter(), "quorate_audit_requests_refused_total",
            "Requests refused because the audit log could not be written fast enough.";
    }
}

/// Metrics of etcd's v2 store and gRPC proxy. etcd servers expose these metrics, and some monitoring checks require
/// that they exist. On a member, their value is always zero.
const ALWAYS_ZERO: &[(&str, &str, Kind)] = &[
    ("etcd_debugging_store_expires_total", "Expired keys of the v2 store.", Kind::Counter),
    ("etcd_debugging_store_watch_requests_total", "Watches of the v2 store.", Kind::Counter),
    ("etcd_debugging_store_watchers", "Watchers of the v2 store.", Kind::Gauge),
    (
        "etcd_grpc_proxy_cache_hits_total",
        "Ranges that a gRPC proxy answered from its cache.",
        Kind::Gauge,
    ),
    ("etcd_grpc_proxy_cache_keys_total", "Ranges in the cache of a gRPC proxy.", Kind::Gauge),
    (
        "etcd_grpc_proxy_cache_misses_total",
        "Ranges that were not in the cache of a gRPC proxy.",
        Kind::Gauge,
    ),
    (
        "etcd_grpc_proxy_events_coalescing_total",
        "Responses to the watchers of a shared watch in a gRPC proxy, not \
      counting the first watcher.",
        Kind::Counter,
    ),
    (
        "etcd_grpc_proxy_watchers_coalescing_total",
        "Watchers that share a watch in a gRPC proxy, not counting the \
      first watcher of each watch.",
        Kind::Gauge,
    ),
];

/// A family whose value is always zero.
struct AlwaysZero(Kind);

impl Collect for AlwaysZero {
    fn kind(&self) -> Kind {
        self.0
    }

    fn collect(&self, _scrape: &Scrape, samples: &mut Samples<'_>) {
        samples.value(&[], 0.0);
    }
}

pub(super) fn register_always_zero(registry: &mut Registry) {
    for (name, help, kind) in ALWAYS_ZERO {
        registry.add(name, help, AlwaysZero(*kind));
    }
}

macro_rules! request_kinds {
    ($($kind:ident,)*) => {
        /// The kinds of requests whose duration is measured.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is named after its request")]
        pub enum RequestKind { $($kind,)* }

        impl RequestKind {
            /// All kinds of requests.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the label value of the kind.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)* }
            }
        }
    };
}

request_kinds! {
    Alarm,
    AuthDisable,
    AuthEnable,
    AuthRoleAdd,
    AuthRoleDelete,
    AuthRoleGet,
    AuthRoleGrantPermission,
    AuthRoleList,
    AuthRoleRevokePermission,
    AuthStatus,
    AuthUserAdd,
    AuthUserChangePassword,
    AuthUserDelete,
    AuthUserGet,
    AuthUserGrantRole,
    AuthUserList,
    AuthUserRevokeRole,
    Authenticate,
    ClusterMemberAttrSet,
    ClusterVersionSet,
    Compaction,
    DeleteRange,
    DowngradeInfoSet,
    DowngradeVersionTest,
    LeaseCheckpoint,
    LeaseGrant,
    LeaseRevoke,
    Put,
    Range,
    ReadonlyTxn,
    Txn,
    Unknown,
}

/// Durations of requests, by kind and result. They are stored in an array, so that the write path needs no lookups.
#[derive(Debug)]
pub struct PerKind {
    kind_label: &'static str,
    /// An additional label with a constant value.
    constant: Option<(&'static str, &'static str)>,
    /// The durations of failed and of successful requests, for each kind.
    times: Box<[[Histogram; 2]]>,
}

impl PerKind {
    fn new(
        kind_label: &'static str,
        constant: Option<(&'static str, &'static str)>,
        make: fn() -> Histogram,
    ) -> Self {
        let times = RequestKind::ALL.iter().map(|_| [make(), make()]).collect();
        Self { kind_label, constant, times }
    }

    /// Records the duration of a request.
    #[inline]
    pub fn observe(&self, kind: RequestKind, is_success: bool, took: Duration) {
        self.times[kind as usize][usize::from(is_success)].observe(took);
    }
}

impl Collect for Arc<PerKind> {
    fn kind(&self) -> Kind {
        Kind::Histogram
    }

    fn label_names(&self) -> Vec<&'static str> {
        let constant = self.constant.iter().map(|(name, _)| *name);
        let mut names: Vec<_> = [self.kind_label, "success"].into_iter().chain(constant).collect();
        names.sort_unstable();
        names
    }

    fn collect(&self, _scrape: &Scrape, samples: &mut Samples<'_>) {
        for (kind, times) in RequestKind::ALL.iter().zip(&self.times) {
            for (times, success) in times.iter().zip(["false", "true"]) {
                if times.count() > 0 {
                    let kind = (self.kind_label, kind.name());
                    let mut labels: Vec<(&str, &str)> =
                        [kind, ("success", success)].into_iter().chain(self.constant).collect();
                    labels.sort_unstable();
                    samples.histogram(&labels, times);
                }
            }
        }
    }
}
