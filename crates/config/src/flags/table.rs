//! The rows: every flag, under its heading.

use super::super::setting::Setting::{
    Bool, Duration, Gates, Hosts, Int, Int64, OneOf, Origins, SomeOf, Text, Texts, Uint, Uint32,
    Uint64, UniqueTexts, Urls,
};
use super::sections::{
    ACCESS, AUTH, CLUSTERING, FEATURES, MEMBER, MONITORING, SECURITY, SPECIAL, UNSAFE,
};
use super::{Flag, flag, ignored};

const V2_STAGES: &[&str] = &["write-only", "write-only-skip-check", "write-only-drop-data", "gone"];

/// All flags; within a heading, in the order of the help text.
pub(crate) static FLAGS: &[Flag] = &[
    flag(MEMBER, "name", Text(|d| &mut d.config.name), "Human-readable name of this member."),
    flag(
        MEMBER,
        "data-dir",
        Text(|d| &mut d.config.data_dir),
        "Directory of everything this member stores.",
    )
    .default_text("${name}.etcd"),
    flag(
        MEMBER,
        "wal-dir",
        Text(|d| &mut d.config.wal_dir),
        "Directory of the write-ahead log, where it is to be apart from the data directory.",
    ),
    flag(
        MEMBER,
        "snapshot-count",
        Uint64(|d| &mut d.config.snapshot_count),
        "Applied entries between two snapshots on disk.",
    ),
    flag(
        MEMBER,
        "snapshot-catchup-entries",
        Uint64(|d| &mut d.config.snapshot_catchup_entries),
        "Entries kept in memory behind a snapshot, for followers that lag.",
    ),
    flag(
        MEMBER,
        "heartbeat-interval",
        Uint(|d| &mut d.config.heartbeat_interval_ms),
        "Milliseconds between two heartbeats of the leader.",
    ),
    flag(
        MEMBER,
        "election-timeout",
        Uint(|d| &mut d.config.election_timeout_ms),
        "Milliseconds without a leader before an election.",
    ),
    flag(
        MEMBER,
        "initial-election-tick-advance",
        Bool(|d| &mut d.config.initial_election_tick_advance),
        "Forward the election clock at start, for a faster first election.",
    ),
    flag(
        MEMBER,
        "listen-peer-urls",
        Urls(|d| &mut d.config.listen_peer_urls),
        "Comma-separated URLs to listen on for peers.",
    ),
    flag(
        MEMBER,
        "listen-client-urls",
        Urls(|d| &mut d.config.listen_client_urls),
        "Comma-separated URLs to listen on for clients: gRPC, and HTTP unless it has URLs of its own.",
    ),
    flag(
        MEMBER,
        "listen-client-http-urls",
        Urls(|d| &mut d.config.listen_client_http_urls),
        "Comma-separated URLs to listen on for HTTP clients alone; takes HTTP away from the client URLs.",
    ),
    flag(
        MEMBER,
        "listen-metrics-urls",
        Urls(|d| &mut d.config.listen_metrics_urls),
        "Comma-separated URLs to listen on for metrics and health alone.",
    ),
    flag(
        MEMBER,
        "max-snapshots",
        Uint(|d| &mut d.config.max_snapshots),
        "Snapshot files to keep, 0 for all. Deprecated.",
    ),
    flag(
        MEMBER,
        "max-wals",
        Uint(|d| &mut d.config.max_wals),
        "Write-ahead log files to keep, 0 for all.",
    ),
    flag(
        MEMBER,
        "quota-backend-bytes",
        Int64(|d| &mut d.config.quota_backend_bytes),
        "Bytes the backend may grow to before writes are refused; 0 for 2 GiB, below for no limit.",
    ),
    flag(
        MEMBER,
        "quota-headroom-bytes",
        Uint(|d| &mut d.config.quota_headroom_bytes),
        "Bytes under the quota that are left for what makes room: deletes, compaction, lease revocation.",
    ),
    flag(
        MEMBER,
        "quota-warning-percent",
        Uint(|d| &mut d.config.quota_warning_percent),
        "Percent of the quota from which on there is a warning, in the log and in the metrics; 0 for none.",
    ),
    flag(
        MEMBER,
        "quota-disarm-percent",
        Uint(|d| &mut d.config.quota_disarm_percent),
        "Percent of the quota below which this member gives space back and ends its NOSPACE alarm; 0 for never.",
    ),
    flag(
        MEMBER,
        "backend-bbolt-freelist-type",
        Text(|d| &mut d.backend_freelist_type),
        "Without effect: free pages are kept in one way only.",
    )
    .default_text("map"),
    flag(
        MEMBER,
        "memory-mlock",
        Bool(|d| &mut d.config.memory_mlock),
        "Keep the backend file in memory as a whole. Needs a limit of locked memory that allows it.",
    ),
    flag(
        MEMBER,
        "backend-batch-interval",
        Duration(|d| &mut d.config.backend_batch_interval),
        "Longest time between two commits of the backend; 0 for 100ms.",
    ),
    flag(
        MEMBER,
        "backend-batch-limit",
        Int(|d| &mut d.config.backend_batch_limit),
        "Most operations between two commits of the backend; 0 for 10000.",
    ),
    flag(
        MEMBER,
        "max-txn-ops",
        Uint(|d| &mut d.config.max_txn_ops),
        "Most operations a transaction may hold.",
    ),
    flag(
        MEMBER,
        "max-request-bytes",
        Uint(|d| &mut d.config.max_request_bytes),
        "Most bytes a request may hold.",
    ),
    flag(
        MEMBER,
        "max-concurrent-streams",
        Uint32(|d| &mut d.config.max_concurrent_streams),
        "Most streams a client connection may have open.",
    ),
    flag(
        MEMBER,
        "max-connections-per-address",
        Uint32(|d| &mut d.config.max_connections_per_address),
        "Most connections that clients of one address may have open; 0 for any number.",
    ),
    flag(
        MEMBER,
        "grpc-keepalive-min-time",
        Duration(|d| &mut d.config.grpc_keepalive_min_time),
        "Least time between two pings of a client, which loses its connection otherwise; 0 for 5m.",
    ),
    flag(
        MEMBER,
        "grpc-keepalive-interval",
        Duration(|d| &mut d.config.grpc_keepalive_interval),
        "Idle time before the server pings a client; 0 for never.",
    ),
    flag(
        MEMBER,
        "grpc-keepalive-timeout",
        Duration(|d| &mut d.config.grpc_keepalive_timeout),
        "Time a client has to answer a ping; 0 for never pinging.",
    ),
    flag(
        MEMBER,
        "socket-reuse-port",
        Bool(|d| &mut d.config.socket_reuse_port),
        "Let several processes listen on one port (SO_REUSEPORT).",
    )
    .file_key("socket-options.reuse-port"),
    flag(
        MEMBER,
        "socket-reuse-address",
        Bool(|d| &mut d.config.socket_reuse_address),
        "Listen on addresses still in TIME_WAIT (SO_REUSEADDR).",
    )
    .file_key("socket-options.reuse-address"),
    flag(
        MEMBER,
        "raft-read-timeout",
        Duration(|d| &mut d.config.raft_read_timeout),
        "Longest wait for bytes from a peer; at least 5s.",
    )
    .flag_only(),
    flag(
        MEMBER,
        "raft-write-timeout",
        Duration(|d| &mut d.config.raft_write_timeout),
        "Longest wait for a peer to take bytes; at least 5s.",
    )
    .flag_only(),
    flag(
        MEMBER,
        "fence-stalled-disk",
        Bool(|d| &mut d.config.fence_stalled_disk),
        "Leave the lead to other members while the log cannot be written for an election timeout.",
    )
    .flag_only(),
    flag(
        MEMBER,
        "rebuild-corrupt-member",
        Bool(|d| &mut d.config.rebuild_corrupt_member),
        "Fetch this member's state anew from the others once a quorum of them holds something else. Needs peer certificates.",
    )
    .flag_only(),
    flag(
        CLUSTERING,
        "initial-advertise-peer-urls",
        Urls(|d| &mut d.config.initial_advertise_peer_urls),
        "Comma-separated peer URLs of this member that the others are told.",
    ),
    flag(
        CLUSTERING,
        "initial-cluster",
        Text(|d| &mut d.config.initial_cluster),
        "First members of the cluster, as NAME=URL,NAME=URL.",
    ),
    flag(
        CLUSTERING,
        "initial-cluster-state",
        OneOf(&["new", "existing"], |d| &mut d.initial_cluster_state),
        "Whether this member founds a cluster ('new') or was added to one ('existing').",
    ),
    flag(
        CLUSTERING,
        "initial-cluster-token",
        Text(|d| &mut d.config.initial_cluster_token),
        "Text that sets the ids of this cluster apart from those of another.",
    ),
    flag(
        CLUSTERING,
        "advertise-client-urls",
        Urls(|d| &mut d.config.advertise_client_urls),
        "Comma-separated client URLs of this member that clients are told.",
    ),
    flag(
        CLUSTERING,
        "strict-reconfig-check",
        Bool(|d| &mut d.config.strict_reconfig_check),
        "Refuse changes of the members that would leave too few of them at work.",
    ),
    flag(
        CLUSTERING,
        "discovery-endpoints",
        UniqueTexts(|d| &mut d.config.discovery.endpoints),
        "Comma-separated client addresses of a cluster through which new members find each other.",
    )
    .file_key("discovery-config.client.endpoints"),
    flag(
        CLUSTERING,
        "discovery-token",
        Text(|d| &mut d.config.discovery.token),
        "Token under which the new cluster is registered there.",
    )
    .file_key("discovery-config.token"),
    flag(
        CLUSTERING,
        "discovery-dial-timeout",
        Duration(|d| &mut d.config.discovery.dial_timeout),
        "Longest wait for a connection to the discovery cluster.",
    )
    .file_key("discovery-config.client.dial-timeout"),
    flag(
        CLUSTERING,
        "discovery-request-timeout",
        Duration(|d| &mut d.config.discovery.request_timeout),
        "Longest wait for an answer of the discovery cluster.",
    )
    .file_key("discovery-config.client.request-timeout"),
    flag(
        CLUSTERING,
        "discovery-keepalive-time",
        Duration(|d| &mut d.config.discovery.keepalive_time),
        "Idle time before the connection to the discovery cluster is checked.",
    )
    .file_key("discovery-config.client.keepalive-time"),
    flag(
        CLUSTERING,
        "discovery-keepalive-timeout",
        Duration(|d| &mut d.config.discovery.keepalive_timeout),
        "Longest wait for the answer to such a check.",
    )
    .file_key("discovery-config.client.keepalive-timeout"),
    flag(
        CLUSTERING,
        "discovery-insecure-transport",
        Bool(|d| &mut d.config.discovery.insecure_transport),
        "Talk to the discovery cluster without TLS, unless a certificate or authority is named.",
    )
    .file_key("discovery-config.client.secure.insecure-transport"),
    flag(
        CLUSTERING,
        "discovery-insecure-skip-tls-verify",
        Bool(|d| &mut d.config.discovery.insecure_skip_tls_verify),
        "Take the discovery cluster for who it says it is.",
    )
    .file_key("discovery-config.client.secure.insecure-skip-tls-verify"),
    flag(
        CLUSTERING,
        "discovery-cert",
        Text(|d| &mut d.config.discovery.cert),
        "Client certificate for the discovery cluster.",
    )
    .file_key("discovery-config.client.secure.cert"),
    flag(
        CLUSTERING,
        "discovery-key",
        Text(|d| &mut d.config.discovery.key),
        "Key of that certificate.",
    )
    .file_key("discovery-config.client.secure.key"),
    flag(
        CLUSTERING,
        "discovery-cacert",
        Text(|d| &mut d.config.discovery.cacert),
        "Authorities trusted for the discovery cluster.",
    )
    .file_key("discovery-config.client.secure.cacert"),
    flag(
        CLUSTERING,
        "discovery-user",
        Text(|d| &mut d.config.discovery.user),
        "NAME or NAME:PASSWORD to log in to the discovery cluster with.",
    )
    .file_key("discovery-config.client.auth.username"),
    flag(
        CLUSTERING,
        "discovery-password",
        Text(|d| &mut d.config.discovery.password),
        "Password to log in to the discovery cluster with.",
    )
    .file_key("discovery-config.client.auth.password"),
    flag(
        CLUSTERING,
        "discovery-fallback",
        OneOf(&["exit", "proxy"], |d| &mut d.discovery_fallback),
        "What to do when discovery fails; only 'exit' is left.",
    )
    .flag_only(),
    flag(
        CLUSTERING,
        "discovery-srv",
        Text(|d| &mut d.config.discovery_srv),
        "Domain whose SRV records name the first members.",
    ),
    flag(
        CLUSTERING,
        "discovery-srv-name",
        Text(|d| &mut d.config.discovery_srv_name),
        "What the service's name in those records ends with.",
    ),
    flag(
        CLUSTERING,
        "hold-cluster-version",
        Text(|d| &mut d.hold_cluster_version),
        "Highest cluster version to take part in: 3.5, 3.6 or 3.7; empty for this program's own.",
    ),
    flag(
        CLUSTERING,
        "pre-vote",
        Bool(|d| &mut d.config.pre_vote),
        "Ask whether an election could be won before starting one.",
    ),
    flag(
        CLUSTERING,
        "auto-compaction-retention",
        Text(|d| &mut d.config.auto_compaction_retention),
        "What automatic compaction keeps; 0 turns it off.",
    ),
    flag(
        CLUSTERING,
        "auto-compaction-mode",
        Text(|d| &mut d.auto_compaction_mode),
        "How the retention is read: 'periodic' as a time (a bare number is hours), 'revision' as a count.",
    ),
    flag(
        CLUSTERING,
        "v2-deprecation",
        SomeOf(V2_STAGES, |d| &mut d.v2_deprecation),
        "Without effect. Deprecated.",
    )
    .flag_only(),
    flag(
        SECURITY,
        "cert-file",
        Text(|d| &mut d.config.security.client.cert_file),
        "Certificate to show to clients, PEM.",
    )
    .file_key("client-transport-security.cert-file"),
    flag(
        SECURITY,
        "key-file",
        Text(|d| &mut d.config.security.client.key_file),
        "Key of that certificate, PEM.",
    )
    .file_key("client-transport-security.key-file"),
    flag(
        SECURITY,
        "client-cert-file",
        Text(|d| &mut d.config.security.client.client_cert_file),
        "Certificate to show when dialing a client port; checked, as no such port is dialed.",
    )
    .file_key("client-transport-security.client-cert-file"),
    flag(
        SECURITY,
        "client-key-file",
        Text(|d| &mut d.config.security.client.client_key_file),
        "Key of that certificate.",
    )
    .file_key("client-transport-security.client-key-file"),
    flag(
        SECURITY,
        "client-cert-auth",
        Bool(|d| &mut d.config.security.client.client_cert_auth),
        "Let in only clients with a certificate, whose common name is a user's.",
    )
    .file_key("client-transport-security.client-cert-auth"),
    flag(
        SECURITY,
        "client-cert-allowed-hostname",
        Texts(|d| &mut d.config.security.client.allowed_hostnames),
        "Comma-separated hosts, one of which clients' certificates have to stand for.",
    )
    .file_key("client-transport-security.allowed-hostname"),
    flag(
        SECURITY,
        "client-crl-file",
        Text(|d| &mut d.config.security.client.crl_file),
        "List of revoked certificates of clients, DER or PEM.",
    ),
    flag(
        SECURITY,
        "trusted-ca-file",
        Text(|d| &mut d.config.security.client.trusted_ca_file),
        "Authorities of clients' certificates, PEM; clients have to show one then.",
    )
    .file_key("client-transport-security.trusted-ca-file"),
    flag(
        SECURITY,
        "auto-tls",
        Bool(|d| &mut d.config.security.client.auto_tls),
        "Serve clients with a certificate made here.",
    )
    .file_key("client-transport-security.auto-tls"),
    flag(
        SECURITY,
        "peer-cert-file",
        Text(|d| &mut d.config.security.peer.cert_file),
        "Certificate to show to peers, PEM.",
    )
    .file_key("peer-transport-security.cert-file"),
    flag(
        SECURITY,
        "peer-key-file",
        Text(|d| &mut d.config.security.peer.key_file),
        "Key of that certificate, PEM.",
    )
    .file_key("peer-transport-security.key-file"),
    flag(
        SECURITY,
        "peer-client-cert-file",
        Text(|d| &mut d.config.security.peer.client_cert_file),
        "Certificate to show to peers that are dialed, if it is another.",
    )
    .file_key("peer-transport-security.client-cert-file"),
    flag(
        SECURITY,
        "peer-client-key-file",
        Text(|d| &mut d.config.security.peer.client_key_file),
        "Key of that certificate.",
    )
    .file_key("peer-transport-security.client-key-file"),
    flag(
        SECURITY,
        "peer-client-cert-auth",
        Bool(|d| &mut d.config.security.peer.client_cert_auth),
        "Let in only peers with a certificate.",
    )
    .file_key("peer-transport-security.client-cert-auth"),
    flag(
        SECURITY,
        "peer-trusted-ca-file",
        Text(|d| &mut d.config.security.peer.trusted_ca_file),
        "Authorities of peers' certificates, PEM; peers have to show one then.",
    )
    .file_key("peer-transport-security.trusted-ca-file"),
    flag(
        SECURITY,
        "peer-cert-allowed-cn",
        Texts(|d| &mut d.config.security.peer.allowed_cns),
        "Comma-separated common names that peers' certificates may have.",
    )
    .file_key("peer-transport-security.allowed-cn"),
    flag(
        SECURITY,
        "peer-cert-allowed-hostname",
        Texts(|d| &mut d.config.security.peer.allowed_hostnames),
        "Comma-separated hosts, one of which peers' certificates have to stand for.",
    )
    .file_key("peer-transport-security.allowed-hostname"),
    flag(
        SECURITY,
        "peer-auto-tls",
        Bool(|d| &mut d.config.security.peer.auto_tls),
        "Talk to peers with a certificate made here, and do not look at theirs.",
    )
    .file_key("peer-transport-security.auto-tls"),
    flag(
        SECURITY,
        "self-signed-cert-validity",
        Uint(|d| &mut d.config.security.self_signed_cert_validity),
        "Years for which certificates are made here.",
    ),
    flag(
        SECURITY,
        "peer-crl-file",
        Text(|d| &mut d.config.security.peer.crl_file),
        "List of revoked certificates of peers, DER or PEM.",
    ),
    flag(
        SECURITY,
        "peer-skip-client-san-verification",
        Bool(|d| &mut d.config.security.peer.skip_client_san_verification),
        "Do not compare the names in a peer's certificate with where it comes from.",
    )
    .file_key("peer-transport-security.skip-client-san-verification"),
    flag(
        SECURITY,
        "cipher-suites",
        Texts(|d| &mut d.config.security.cipher_suites),
        "Comma-separated cipher suites for TLS 1.2; all that are sound if none.",
    ),
    flag(
        SECURITY,
        "tls-min-version",
        Text(|d| &mut d.tls_min_version),
        "Lowest version: TLS1.2 or TLS1.3.",
    ),
    flag(
        SECURITY,
        "tls-max-version",
        Text(|d| &mut d.tls_max_version),
        "Highest version: TLS1.2 or TLS1.3; the highest there is if empty.",
    ),
    flag(
        ACCESS,
        "cors",
        Origins(|d| &mut d.config.cors),
        "Comma-separated origins that browsers may call from; * for all.",
    ),
    flag(
        ACCESS,
        "enable-grpc-gateway",
        Bool(|d| &mut d.config.enable_grpc_gateway),
        "Serve the gRPC services as JSON over HTTP, under /v3/.",
    ),
    flag(
        ACCESS,
        "host-whitelist",
        Hosts(|d| &mut d.config.host_whitelist),
        "Comma-separated host names accepted over plain HTTP; * for all.",
    ),
    flag(
        MONITORING,
        "metrics",
        Text(|d| &mut d.metrics),
        "'extensive' adds histograms per gRPC method to the metrics.",
    ),
    flag(
        MONITORING,
        "enable-pprof",
        Bool(|d| &mut d.config.enable_pprof),
        "Serve profiles of this process to clients under /debug/pprof/; so does --log-level=debug.",
    ),
    flag(MONITORING, "logger", Text(|d| &mut d.logger), "Only 'zap', for structured lines."),
    flag(
        MONITORING,
        "log-outputs",
        UniqueTexts(|d| &mut d.log_outputs),
        "Comma-separated: default, stderr, stdout, systemd/journal, or files.",
    ),
    flag(
        MONITORING,
        "log-level",
        Text(|d| &mut d.log_level),
        "Least level to log: debug, info, warn, error, dpanic, panic or fatal.",
    ),
    flag(MONITORING, "log-format", Text(|d| &mut d.log_format), "json or console."),
    flag(
        MONITORING,
        "enable-log-rotation",
        Bool(|d| &mut d.enable_log_rotation),
        "Set the log file aside when it is full. Needs one file in --log-outputs.",
    ),
    flag(
        MONITORING,
        "log-rotation-config-json",
        Text(|d| &mut d.log_rotation_config_json),
        "Megabytes of a full file, and what is kept: days, files, local time in names, compressed.",
    ),
    flag(
        MONITORING,
        "warning-apply-duration",
        Duration(|d| &mut d.config.warning_apply_duration),
        "Time of applying a request that is worth a warning.",
    ),
    flag(
        MONITORING,
        "warning-unary-request-duration",
        Duration(|d| &mut d.config.warning_unary_request_duration),
        "Time of answering a unary request that is worth a warning.",
    ),
    flag(
        MONITORING,
        "enable-distributed-tracing",
        Bool(|d| &mut d.config.tracing.enabled),
        "Follow calls, and send what they went through to a collector.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-address",
        Text(|d| &mut d.config.tracing.address),
        "Host and port of the collector, which takes OTLP over gRPC without TLS.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-service-name",
        Text(|d| &mut d.config.tracing.service_name),
        "What the collector is told that members are called, all of them alike.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-instance-id",
        Text(|d| &mut d.config.tracing.instance_id),
        "What it is told that this member is called, unlike any other; nothing if empty.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-sampling-rate",
        Int(|d| &mut d.config.tracing.sampling_rate),
        "How many of a million calls are followed that nobody follows yet.",
    ),
    flag(
        MONITORING,
        "audit-log",
        Text(|d| &mut d.audit_log),
        "Where to tell who asks for what, a line of JSON for each call: a file, stderr or stdout; nowhere if empty.",
    ),
    flag(
        MONITORING,
        "audit-rules",
        Text(|d| &mut d.audit_rules),
        "Which calls are told there: 'include' or 'exclude' with method=, key= and user=, ';' between; the first that fits.",
    ),
    flag(
        MONITORING,
        "audit-log-rotation-config-json",
        Text(|d| &mut d.audit_log_rotation_config_json),
        "When that file is set aside, as in --log-rotation-config-json; never if empty.",
    ),
    flag(
        MONITORING,
        "audit-log-overflow",
        OneOf(&["drop", "refuse"], |d| &mut d.audit_log_overflow),
        "While lines come faster than they are written: 'drop' them, or 'refuse' calls.",
    ),
    flag(
        FEATURES,
        "watch-progress-notify-interval",
        Duration(|d| &mut d.config.watch_progress_notify_interval),
        "Time between progress notifications of an idle watch; 0 for 10m.",
    ),
    flag(
        FEATURES,
        "compaction-batch-limit",
        Int(|d| &mut d.config.compaction_batch_limit),
        "Most revisions a compaction removes at once; 0 for 1000.",
    ),
    flag(
        FEATURES,
        "compaction-sleep-interval",
        Duration(|d| &mut d.config.compaction_sleep_interval),
        "Pause between two such steps; 0 for 10ms.",
    ),
    flag(
        FEATURES,
        "bootstrap-defrag-threshold-megabytes",
        Uint(|d| &mut d.config.bootstrap_defrag_threshold_megabytes),
        "Give free space of the backend file back at start if it is as much as that; 0 for never.",
    ),
    flag(
        FEATURES,
        "max-learners",
        Int(|d| &mut d.config.max_learners),
        "Most learners the cluster may have.",
    ),
    flag(
        FEATURES,
        "downgrade-check-time",
        Duration(|d| &mut d.config.downgrade_check_time),
        "Time between looks at a downgrade under way; 0 for never.",
    ),
    flag(
        FEATURES,
        "corrupt-check-time",
        Duration(|d| &mut d.config.corrupt_check_time),
        "Time between comparisons of what all members hold, by the leader; 0 for never.",
    ),
    flag(
        FEATURES,
        "compact-hash-check-time",
        Duration(|d| &mut d.config.compact_hash_check_time),
        "Time between comparisons of the hashes of compactions, where CompactHashCheck is on.",
    ),
    flag(
        FEATURES,
        "feature-gates",
        Gates(|d| &mut d.config.feature_gates),
        "Behaviour that is not settled, switched gate by gate.",
    ),
    flag(
        AUTH,
        "auth-token",
        Text(|d| &mut d.config.auth_token),
        "Type of tokens: simple, or jwt,sign-method=METHOD,pub-key=FILE,priv-key=FILE,ttl=DURATION.",
    ),
    flag(
        AUTH,
        "auth-token-ttl",
        Uint(|d| &mut d.config.auth_token_ttl_secs),
        "Seconds for which a simple token is good after it was last shown.",
    ),
    flag(
        AUTH,
        "bcrypt-cost",
        Uint(|d| &mut d.config.bcrypt_cost),
        "What hashing a password costs, from 4 to 31; each step doubles it.",
    ),
    flag(
        UNSAFE,
        "force-new-cluster",
        Bool(|d| &mut d.config.force_new_cluster),
        "Go on alone with the data of the cluster. The other members must never come back.",
    ),
    flag(
        UNSAFE,
        "unsafe-no-fsync",
        Bool(|d| &mut d.config.unsafe_no_fsync),
        "Never sync files. Loses data.",
    ),
    flag(
        SPECIAL,
        "config-file",
        Text(|d| &mut d.config_file),
        "Configuration file; every other flag and the environment are then ignored.",
    )
    .flag_only(),
    flag(SPECIAL, "version", Bool(|d| &mut d.print_version), "Print the version and exit.")
        .flag_only(),
    ignored("cluster-active-size"),
    ignored("cluster-remove-delay"),
    ignored("cluster-sync-interval"),
    ignored("config"),
    ignored("force"),
    ignored("max-result-buffer"),
    ignored("max-retry-attempts"),
    ignored("peer-heartbeat-interval"),
    ignored("peer-election-timeout"),
    ignored("retry-interval"),
    ignored("snapshot"),
    ignored("v"),
    ignored("vv"),
    ignored("test.coverprofile"),
    ignored("test.outputdir"),
];
