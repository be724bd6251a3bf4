//! Metrics derived from the state machine, which is read at each scrape.

use super::exposition::Kind;
use super::view::View;

macro_rules! sample {
    ($($kind:ident $field:ident: $name:literal, $help:literal;)*) => {
        /// The figures of the state machine at the time of a scrape.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StateSample {
            $(#[doc = $help] pub $field: i64,)*
        }

        pub(super) const VIEWS: &[View<StateSample>] = &[$(View {
            kind: Kind::$kind,
            name: $name,
            help: $help,
            read: |state| Some(state.$field as f64),
        }),*];
    };
}

sample! {
    Gauge db_total_size_bytes: "etcd_mvcc_db_total_size_in_bytes",
        "Size of the backend file in bytes.";
    Gauge db_in_use_bytes: "etcd_mvcc_db_total_size_in_use_in_bytes",
        "Size of the backend file without free pages, in bytes.";
    Gauge db_open_read_transactions: "etcd_mvcc_db_open_read_transactions",
        "Open read transactions of the backend.";
    Gauge keys: "etcd_debugging_mvcc_keys_total",
        "Number of live keys.";
    Gauge current_revision: "etcd_debugging_mvcc_current_revision",
        "Current revision of the keyspace.";
    Gauge compact_revision: "etcd_debugging_mvcc_compact_revision",
        "Revision of the last compaction.";
    Gauge watch_streams: "etcd_debugging_mvcc_watch_stream_total",
        "Open watch streams.";
    Gauge watchers: "etcd_debugging_mvcc_watcher_total",
        "Watchers.";
    Gauge slow_watchers: "etcd_debugging_mvcc_slow_watcher_total",
        "Watchers that are behind the current revision.";
    Gauge pending_events: "etcd_debugging_mvcc_pending_events_total",
        "Events that are queued for watch streams.";
    Gauge auth_revision: "etcd_debugging_auth_revision",
        "Current revision of the auth store (users and roles).";
    Gauge proposals: "quorate_proposals_in_progress",
        "Proposals that are accepted but not yet applied.";
    Gauge proposals_bytes: "quorate_proposals_in_progress_bytes",
        "Bytes of proposals that are accepted but not yet applied.";
    Counter proposals_refused: "quorate_proposals_refused_total",
        "Proposals refused because the limit on the number or the bytes of proposals was reached.";
    Gauge reads: "quorate_reads_waiting",
        "Reads that wait for the read index or for the state machine.";
    Counter reads_refused: "quorate_reads_refused_total",
        "Reads refused because the limit on waiting reads was reached.";
    Gauge tokens_waiting: "quorate_tokens_waiting",
        "Requests that wait until this member has applied the entry that issued their token.";
    Counter tokens_refused: "quorate_tokens_refused_total",
        "Requests refused because too many requests were waiting for this member to apply the entry that issued their \
         token.";
    Gauge tokens_held: "quorate_tokens_held",
        "Issued tokens that are still valid.";
    Gauge passwords_waiting: "quorate_passwords_waiting",
        "Passwords waiting to be hashed or checked.";
    Counter passwords_refused: "quorate_passwords_refused_total",
        "Logins and password changes refused because too many passwords were waiting to be hashed or checked.";
    Gauge tasks: "quorate_tasks_in_progress",
        "Queries and commands to the core threads that have not been executed yet.";
    Counter tasks_refused: "quorate_tasks_refused_total",
        "Queries and commands to the core threads that were refused because the queue was full.";
    Gauge lists_bytes: "quorate_lists_reference_bytes",
        "Memory of long lists that clients have not received yet, in bytes: references to records, or with --engine keys and values.";
    Counter lists_refused: "quorate_lists_refused_total",
        "Requests for long lists refused because the memory limit for long lists was reached.";
    Gauge replies_bytes: "quorate_replies_bytes",
        "Bytes of unread responses that contain records.";
    Counter replies_refused: "quorate_replies_refused_total",
        "Responses refused because unread responses that contain records had used up the memory limit.";
    Gauge waiters_bytes: "quorate_waiters_bytes",
        "Memory used by requests that wait for a lock or an election, in bytes.";
    Counter waiters_refused: "quorate_waiters_refused_total",
        "Lock and election requests refused because waiting requests had used up the memory limit.";
    Gauge calls: "quorate_calls_in_progress",
        "Client calls in progress, including streams.";
    Counter calls_refused: "quorate_calls_refused_total",
        "Client calls refused because the limit on calls in progress was reached.";
    Gauge requests_bytes: "quorate_requests_bytes",
        "Bytes of requests that are incomplete or not yet answered.";
    Counter requests_refused: "quorate_requests_refused_total",
        "Requests refused because the limit on request bytes was reached.";
    Gauge large_windows: "quorate_large_receive_windows",
        "Client connections with large receive windows (4 MiB).";
    Gauge watchers_bytes: "quorate_watchers_bytes",
        "Memory used by watchers and their keys, in bytes.";
    Counter watchers_refused: "quorate_watchers_refused_total",
        "Watchers refused because the memory limit for watchers was reached.";
    Gauge watch_events_bytes: "quorate_watch_events_bytes",
        "Bytes of watch events that clients have not read yet.";
    Gauge client_connections: "quorate_client_connections",
        "Connections on the client listeners.";
    Counter client_connections_waited: "quorate_client_connections_waited_total",
        "Client connections that had to wait because the connection limit was reached.";
    Counter client_connections_given_up: "quorate_client_connections_given_up_total",
        "Idle client connections that were asked to close to make room for waiting ones.";
    Gauge peer_connections: "quorate_peer_connections",
        "Connections on the peer listeners.";
    Counter peer_connections_waited: "quorate_peer_connections_waited_total",
        "Peer connections that had to wait because the connection limit was reached.";
    Counter peer_connections_given_up: "quorate_peer_connections_given_up_total",
        "Idle peer connections that were asked to close to make room for waiting ones.";
    Gauge metrics_connections: "quorate_metrics_connections",
        "Connections on the metrics listeners.";
    Counter metrics_connections_waited: "quorate_metrics_connections_waited_total",
        "Connections on the metrics listeners that had to wait because the connection limit was reached.";
    Counter metrics_connections_given_up: "quorate_metrics_connections_given_up_total",
        "Connections on the metrics listeners that were asked to close to make room for waiting ones.";
    Gauge peer_waiting_bytes: "quorate_peer_waiting_bytes",
        "Bytes received from peers that consensus has not processed yet.";
    Gauge peer_large_bodies: "quorate_peer_large_bodies",
        "Large peer requests whose bodies are being read.";
    Gauge peer_remotes: "quorate_peer_remotes",
        "Senders that claim to be members and receive responses, but are not in the applied membership.";
    Gauge peer_confirmed: "quorate_peer_confirmed_senders",
        "Senders that were confirmed as members but are not yet in the applied membership.";
    Gauge engine_epoch: "quorate_engine_epoch",
        "Current term of the sequencer, if the data is in a database.";
    Gauge engine_backlog_batches: "quorate_engine_backlog_batches",
        "Committed batches that have not yet been written from the log to the database tables.";
    Gauge engine_backlog_bytes: "quorate_engine_backlog_bytes",
        "Bytes of committed batches that have not yet been written from the log to the database tables.";
    Gauge engine_forwards_bytes: "quorate_engine_forwards_bytes",
        "Bytes of forwarded requests that wait for the sequencer.";
    Gauge quota_backend_bytes: "etcd_server_quota_backend_bytes",
        "Limit on the size of the backend file, in bytes.";
}
