//! The rows of the table of flags.

use super::super::setting::Setting::*;
use super::console::{CONSOLE_ALLOW_WRITES, LISTEN_CONSOLE_URL};
use super::data::{DATA_DIR, ENGINE, WAL_DIR};
use super::sections::{
    ACCESS, AUTH, CLUSTERING, FEATURES, MEMBER, MONITORING, SECURITY, SPECIAL, UNSAFE,
};
use super::{Flag, flag, ignored};

const V2_STAGES: &[&str] = &["write-only", "write-only-skip-check", "write-only-drop-data", "gone"];

/// All flags. Flags with the same heading are in help-text order.
pub(crate) static FLAGS: &[Flag] = &[
    flag(MEMBER, "name", Text(|d| &mut d.config.name), "Human-readable name of this member."),
    DATA_DIR,
    WAL_DIR,
    ENGINE,
    flag(
        MEMBER,
        "snapshot-count",
        Uint64(|d| &mut d.config.snapshot_count),
        "Number of applied entries between two snapshots on disk.",
    ),
    flag(
        MEMBER,
        "snapshot-catchup-entries",
        Uint64(|d| &mut d.config.snapshot_catchup_entries),
        "Number of applied log entries to keep in memory for lagging followers.",
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
        "Milliseconds without a leader after which a member starts an election.",
    ),
    flag(
        MEMBER,
        "initial-election-tick-advance",
        Bool(|d| &mut d.config.initial_election_tick_advance),
        "Advance the election clock at startup, for a faster first election.",
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
        "Comma-separated URLs to listen on for clients: gRPC, and HTTP unless it has separate URLs.",
    ),
    flag(
        MEMBER,
        "listen-client-http-urls",
        Urls(|d| &mut d.config.listen_client_http_urls),
        "Comma-separated URLs to listen on for HTTP only; the client URLs then serve gRPC only.",
    ),
    flag(
        MEMBER,
        "listen-metrics-urls",
        Urls(|d| &mut d.config.listen_metrics_urls),
        "Comma-separated URLs to listen on for metrics and health checks only.",
    ),
    LISTEN_CONSOLE_URL,
    CONSOLE_ALLOW_WRITES,
    flag(
        MEMBER,
        "max-snapshots",
        Uint(|d| &mut d.config.max_snapshots),
        "Number of snapshot files to keep; 0 for all. Deprecated.",
    ),
    flag(
        MEMBER,
        "max-wals",
        Uint(|d| &mut d.config.max_wals),
        "Number of write-ahead log files to keep; 0 for all.",
    ),
    flag(
        MEMBER,
        "quota-backend-bytes",
        Int64(|d| &mut d.config.quota_backend_bytes),
        "Size of the backend file, in bytes, at which writes are refused; 0 for 2 GiB, negative for no limit.",
    ),
    flag(
        MEMBER,
        "quota-headroom-bytes",
        Uint(|d| &mut d.config.quota_headroom_bytes),
        "Bytes below the quota that are reserved for requests that free space: deletes, compaction, lease revocation.",
    ),
    flag(
        MEMBER,
        "quota-warning-percent",
        Uint(|d| &mut d.config.quota_warning_percent),
        "Percentage of the quota at which a warning appears in the log and in the metrics; 0 for never.",
    ),
    flag(
        MEMBER,
        "quota-disarm-percent",
        Uint(|d| &mut d.config.quota_disarm_percent),
        "Quota percentage below which the NOSPACE alarm is disarmed, after defragmenting if needed; 0 for never.",
    ),
    flag(
        MEMBER,
        "backend-bbolt-freelist-type",
        Text(|d| &mut d.backend_freelist_type),
        "No effect: free pages are always tracked in the same way.",
    )
    .default_text("map"),
    flag(
        MEMBER,
        "memory-mlock",
        Bool(|d| &mut d.config.memory_mlock),
        "Lock the whole backend file in memory. Needs a sufficient limit on locked memory.",
    ),
    flag(
        MEMBER,
        "backend-batch-interval",
        Duration(|d| &mut d.config.backend_batch_interval),
        "Maximum time between two commits of the backend; 0 for 100ms.",
    ),
    flag(
        MEMBER,
        "backend-batch-limit",
        Int(|d| &mut d.config.backend_batch_limit),
        "Maximum number of operations between two commits of the backend; 0 for 10000.",
    ),
    flag(
        MEMBER,
        "max-txn-ops",
        Uint(|d| &mut d.config.max_txn_ops),
        "Maximum number of operations in a transaction.",
    ),
    flag(
        MEMBER,
        "max-request-bytes",
        Uint(|d| &mut d.config.max_request_bytes),
        "Maximum size of a request in bytes.",
    ),
    flag(
        MEMBER,
        "max-concurrent-streams",
        Uint32(|d| &mut d.config.max_concurrent_streams),
        "Maximum number of open streams on a client connection.",
    ),
    flag(
        MEMBER,
        "max-connections-per-address",
        Uint32(|d| &mut d.config.max_connections_per_address),
        "Maximum number of client connections from one address; 0 for no limit.",
    ),
    flag(
        MEMBER,
        "grpc-keepalive-min-time",
        Duration(|d| &mut d.config.grpc_keepalive_min_time),
        "Minimum time between two pings from a client; clients that ping more often are disconnected; 0 for 5m.",
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
        "Timeout for the response to a ping; 0 disables pings.",
    ),
    flag(
        MEMBER,
        "socket-reuse-port",
        Bool(|d| &mut d.config.socket_reuse_port),
        "Allow several processes to listen on the same port (SO_REUSEPORT).",
    )
    .file_key("socket-options.reuse-port"),
    flag(
        MEMBER,
        "socket-reuse-address",
        Bool(|d| &mut d.config.socket_reuse_address),
        "No effect: listeners always set SO_REUSEADDR.",
    )
    .file_key("socket-options.reuse-address"),
    flag(
        MEMBER,
        "raft-read-timeout",
        Duration(|d| &mut d.config.raft_read_timeout),
        "Timeout for reading from a peer; at least 5s.",
    )
    .flag_only(),
    flag(
        MEMBER,
        "raft-write-timeout",
        Duration(|d| &mut d.config.raft_write_timeout),
        "Timeout for writing to a peer; at least 5s.",
    )
    .flag_only(),
    flag(
        MEMBER,
        "fence-stalled-disk",
        Bool(|d| &mut d.config.fence_stalled_disk),
        "Hand over leadership if a write to the log takes longer than an election timeout.",
    ),
    flag(
        MEMBER,
        "rebuild-corrupt-member",
        Bool(|d| &mut d.config.rebuild_corrupt_member),
        "Fetch this member's state from the other members if it differs from the state of a quorum. Needs peer \
         certificates.",
    ),
    flag(
        CLUSTERING,
        "initial-advertise-peer-urls",
        Urls(|d| &mut d.config.initial_advertise_peer_urls),
        "Comma-separated peer URLs of this member, advertised to the other members.",
    ),
    flag(
        CLUSTERING,
        "initial-cluster",
        Text(|d| &mut d.config.initial_cluster),
        "Initial members of the cluster, as NAME=URL,NAME=URL.",
    ),
    flag(
        CLUSTERING,
        "initial-cluster-state",
        OneOf(&["new", "existing"], |d| &mut d.initial_cluster_state),
        "Whether this member founds a cluster ('new') or has been added to an existing cluster ('existing').",
    ),
    flag(
        CLUSTERING,
        "initial-cluster-token",
        Text(|d| &mut d.config.initial_cluster_token),
        "Token from which the ids of the cluster and its members are derived, so that clusters do not share ids.",
    ),
    flag(
        CLUSTERING,
        "advertise-client-urls",
        Urls(|d| &mut d.config.advertise_client_urls),
        "Comma-separated client URLs of this member, advertised to clients.",
    ),
    flag(
        CLUSTERING,
        "strict-reconfig-check",
        Bool(|d| &mut d.config.strict_reconfig_check),
        "Refuse membership changes that would leave too few active members.",
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
        "Token under which the discovery cluster registers the new cluster.",
    )
    .file_key("discovery-config.token"),
    flag(
        CLUSTERING,
        "discovery-dial-timeout",
        Duration(|d| &mut d.config.discovery.dial_timeout),
        "Timeout for connecting to the discovery cluster.",
    )
    .file_key("discovery-config.client.dial-timeout"),
    flag(
        CLUSTERING,
        "discovery-request-timeout",
        Duration(|d| &mut d.config.discovery.request_timeout),
        "Timeout for a request to the discovery cluster.",
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
        "Timeout for checking the connection to the discovery cluster.",
    )
    .file_key("discovery-config.client.keepalive-timeout"),
    flag(
        CLUSTERING,
        "discovery-insecure-transport",
        Bool(|d| &mut d.config.discovery.insecure_transport),
        "Connect to the discovery cluster without TLS, unless a certificate or authority is given.",
    )
    .file_key("discovery-config.client.secure.insecure-transport"),
    flag(
        CLUSTERING,
        "discovery-insecure-skip-tls-verify",
        Bool(|d| &mut d.config.discovery.insecure_skip_tls_verify),
        "Do not verify the certificate of the discovery cluster.",
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
        "Private key of the client certificate for the discovery cluster.",
    )
    .file_key("discovery-config.client.secure.key"),
    flag(
        CLUSTERING,
        "discovery-cacert",
        Text(|d| &mut d.config.discovery.cacert),
        "Trusted authorities for the discovery cluster.",
    )
    .file_key("discovery-config.client.secure.cacert"),
    flag(
        CLUSTERING,
        "discovery-user",
        Text(|d| &mut d.config.discovery.user),
        "User name for the discovery cluster, as NAME or NAME:PASSWORD.",
    )
    .file_key("discovery-config.client.auth.username"),
    flag(
        CLUSTERING,
        "discovery-password",
        Text(|d| &mut d.config.discovery.password),
        "Password for the discovery cluster.",
    )
    .file_key("discovery-config.client.auth.password"),
    flag(
        CLUSTERING,
        "discovery-fallback",
        OneOf(&["exit", "proxy"], |d| &mut d.discovery_fallback),
        "Action when discovery fails; only 'exit' is supported.",
    )
    .flag_only(),
    flag(
        CLUSTERING,
        "discovery-srv",
        Text(|d| &mut d.config.discovery_srv),
        "Domain whose SRV records list the initial members.",
    ),
    flag(
        CLUSTERING,
        "discovery-srv-name",
        Text(|d| &mut d.config.discovery_srv_name),
        "Suffix of the service name in the SRV records.",
    ),
    flag(
        CLUSTERING,
        "hold-cluster-version",
        Text(|d| &mut d.hold_cluster_version),
        "Highest cluster version to accept: 3.5, 3.6 or 3.7; empty for the version of this program.",
    ),
    flag(
        CLUSTERING,
        "pre-vote",
        Bool(|d| &mut d.config.pre_vote),
        "Hold a pre-vote before an election.",
    ),
    flag(
        CLUSTERING,
        "auto-compaction-retention",
        Text(|d| &mut d.config.auto_compaction_retention),
        "History that automatic compaction keeps; 0 disables automatic compaction.",
    ),
    flag(
        CLUSTERING,
        "auto-compaction-mode",
        Text(|d| &mut d.auto_compaction_mode),
        "Retention unit: 'periodic' for a period (plain numbers are hours), 'revision' for a number of revisions.",
    ),
    flag(
        CLUSTERING,
        "v2-deprecation",
        SomeOf(V2_STAGES, |d| &mut d.v2_deprecation),
        "No effect. Deprecated.",
    )
    .flag_only(),
    flag(
        SECURITY,
        "cert-file",
        Text(|d| &mut d.config.security.client.cert_file),
        "PEM file with the certificate of the client listeners.",
    )
    .file_key("client-transport-security.cert-file"),
    flag(
        SECURITY,
        "key-file",
        Text(|d| &mut d.config.security.client.key_file),
        "PEM file with the private key for the certificate of the client listeners.",
    )
    .file_key("client-transport-security.key-file"),
    flag(
        SECURITY,
        "client-cert-file",
        Text(|d| &mut d.config.security.client.client_cert_file),
        "Certificate for connections to client ports; the file is checked, but the certificate is not used.",
    )
    .file_key("client-transport-security.client-cert-file"),
    flag(
        SECURITY,
        "client-key-file",
        Text(|d| &mut d.config.security.client.client_key_file),
        "Private key of the certificate for connections to client ports.",
    )
    .file_key("client-transport-security.client-key-file"),
    flag(
        SECURITY,
        "client-cert-auth",
        Bool(|d| &mut d.config.security.client.client_cert_auth),
        "Accept only clients with a certificate; its common name is the user name.",
    )
    .file_key("client-transport-security.client-cert-auth"),
    flag(
        SECURITY,
        "client-cert-allowed-hostname",
        Texts(|d| &mut d.config.security.client.allowed_hostnames),
        "Comma-separated host names; a client's certificate must be valid for one of them.",
    )
    .file_key("client-transport-security.allowed-hostname"),
    flag(
        SECURITY,
        "client-crl-file",
        Text(|d| &mut d.config.security.client.crl_file),
        "DER or PEM file with the revocation list for client certificates.",
    ),
    flag(
        SECURITY,
        "trusted-ca-file",
        Text(|d| &mut d.config.security.client.trusted_ca_file),
        "PEM file with the trusted authorities for client certificates; if set, clients must present a certificate.",
    )
    .file_key("client-transport-security.trusted-ca-file"),
    flag(
        SECURITY,
        "auto-tls",
        Bool(|d| &mut d.config.security.client.auto_tls),
        "Use a self-signed certificate for the client listeners.",
    )
    .file_key("client-transport-security.auto-tls"),
    flag(
        SECURITY,
        "peer-cert-file",
        Text(|d| &mut d.config.security.peer.cert_file),
        "PEM file with the certificate for peer connections.",
    )
    .file_key("peer-transport-security.cert-file"),
    flag(
        SECURITY,
        "peer-key-file",
        Text(|d| &mut d.config.security.peer.key_file),
        "PEM file with the private key of the peer certificate.",
    )
    .file_key("peer-transport-security.key-file"),
    flag(
        SECURITY,
        "peer-client-cert-file",
        Text(|d| &mut d.config.security.peer.client_cert_file),
        "Certificate for outgoing peer connections, if it differs from --peer-cert-file.",
    )
    .file_key("peer-transport-security.client-cert-file"),
    flag(
        SECURITY,
        "peer-client-key-file",
        Text(|d| &mut d.config.security.peer.client_key_file),
        "Private key of the certificate for outgoing peer connections.",
    )
    .file_key("peer-transport-security.client-key-file"),
    flag(
        SECURITY,
        "peer-client-cert-auth",
        Bool(|d| &mut d.config.security.peer.client_cert_auth),
        "Accept only peers with a certificate.",
    )
    .file_key("peer-transport-security.client-cert-auth"),
    flag(
        SECURITY,
        "peer-trusted-ca-file",
        Text(|d| &mut d.config.security.peer.trusted_ca_file),
        "PEM file with the trusted authorities for peer certificates; if set, peers must present a certificate.",
    )
    .file_key("peer-transport-security.trusted-ca-file"),
    flag(
        SECURITY,
        "peer-cert-allowed-cn",
        Texts(|d| &mut d.config.security.peer.allowed_cns),
        "Comma-separated common names that are accepted in peer certificates.",
    )
    .file_key("peer-transport-security.allowed-cn"),
    flag(
        SECURITY,
        "peer-cert-allowed-hostname",
        Texts(|d| &mut d.config.security.peer.allowed_hostnames),
        "Comma-separated host names; a peer's certificate must be valid for one of them.",
    )
    .file_key("peer-transport-security.allowed-hostname"),
    flag(
        SECURITY,
        "peer-auto-tls",
        Bool(|d| &mut d.config.security.peer.auto_tls),
        "Use a self-signed certificate for peer connections, and do not verify peer certificates.",
    )
    .file_key("peer-transport-security.auto-tls"),
    flag(
        SECURITY,
        "self-signed-cert-validity",
        Uint(|d| &mut d.config.security.self_signed_cert_validity),
        "Validity of self-signed certificates in years.",
    ),
    flag(
        SECURITY,
        "peer-crl-file",
        Text(|d| &mut d.config.security.peer.crl_file),
        "DER or PEM file with the revocation list for peer certificates.",
    ),
    flag(
        SECURITY,
        "peer-skip-client-san-verification",
        Bool(|d| &mut d.config.security.peer.skip_client_san_verification),
        "Do not compare the names in a peer's certificate with the peer's address.",
    )
    .file_key("peer-transport-security.skip-client-san-verification"),
    flag(
        SECURITY,
        "cipher-suites",
        Texts(|d| &mut d.config.security.cipher_suites),
        "Comma-separated cipher suites for TLS 1.2; all secure ones if empty.",
    ),
    flag(
        SECURITY,
        "tls-min-version",
        Text(|d| &mut d.tls_min_version),
        "Minimum TLS version: TLS1.2 or TLS1.3.",
    ),
    flag(
        SECURITY,
        "tls-max-version",
        Text(|d| &mut d.tls_max_version),
        "Maximum TLS version: TLS1.2 or TLS1.3; the newest if empty.",
    ),
    flag(
        ACCESS,
        "cors",
        Origins(|d| &mut d.config.cors),
        "Comma-separated origins from which browsers may send requests; * for all.",
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
        "Level of detail of the metrics: 'extensive' adds a histogram for each gRPC method.",
    ),
    flag(
        MONITORING,
        "enable-pprof",
        Bool(|d| &mut d.config.enable_pprof),
        "Serve profiles of this process to clients under /debug/pprof/; also enabled by --log-level=debug.",
    ),
    flag(MONITORING, "logger", Text(|d| &mut d.logger), "Logger: only 'zap', which writes structured lines."),
    flag(
        MONITORING,
        "log-outputs",
        UniqueTexts(|d| &mut d.log_outputs),
        "Comma-separated log outputs: default, stderr, stdout, systemd/journal, or file paths.",
    ),
    flag(
        MONITORING,
        "log-level",
        Text(|d| &mut d.log_level),
        "Minimum level to log: debug, info, warn, error, dpanic, panic or fatal.",
    ),
    flag(MONITORING, "log-format", Text(|d| &mut d.log_format), "Format of the log lines: json or console."),
    flag(
        MONITORING,
        "enable-log-rotation",
        Bool(|d| &mut d.enable_log_rotation),
        "Rotate the log file when it is full. Needs exactly one file in --log-outputs.",
    ),
    flag(
        MONITORING,
        "log-rotation-config-json",
        Text(|d| &mut d.log_rotation_config_json),
        "JSON rotation settings: size in megabytes, days and files to keep, local time in file names, compression.",
    ),
    flag(
        MONITORING,
        "warning-apply-duration",
        Duration(|d| &mut d.config.warning_apply_duration),
        "Log a warning if applying a request takes longer than this.",
    ),
    flag(
        MONITORING,
        "warning-unary-request-duration",
        Duration(|d| &mut d.config.warning_unary_request_duration),
        "Log a warning if a unary request takes longer than this.",
    ),
    flag(
        MONITORING,
        "enable-distributed-tracing",
        Bool(|d| &mut d.config.tracing.enabled),
        "Trace calls, and send the spans to a collector.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-address",
        Text(|d| &mut d.config.tracing.address),
        "Host and port of the collector, which must accept OTLP over gRPC without TLS.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-service-name",
        Text(|d| &mut d.config.tracing.service_name),
        "Service name in the spans, the same for all members.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-instance-id",
        Text(|d| &mut d.config.tracing.instance_id),
        "Instance id of this member in the spans; it must be unique, and is not sent if empty.",
    ),
    flag(
        MONITORING,
        "distributed-tracing-sampling-rate",
        Int(|d| &mut d.config.tracing.sampling_rate),
        "Number of calls to trace out of every million calls without a traced parent.",
    ),
    flag(
        MONITORING,
        "audit-log",
        Text(|d| &mut d.audit_log),
        "Output of the audit log (one line of JSON for each call): a file, stderr or stdout; none if empty.",
    ),
    flag(
        MONITORING,
        "audit-rules",
        Text(|d| &mut d.audit_rules),
        "Calls in the audit log: 'include' or 'exclude' rules with method=, key= and user=, separated by ';'; the \
         first match decides.",
    ),
    flag(
        MONITORING,
        "audit-log-rotation-config-json",
        Text(|d| &mut d.audit_log_rotation_config_json),
        "Rotation settings of the audit log file, as in --log-rotation-config-json; no rotation if empty.",
    ),
    flag(
        MONITORING,
        "audit-log-overflow",
        OneOf(&["drop", "refuse"], |d| &mut d.audit_log_overflow),
        "Action if audit lines cannot be written fast enough: 'drop' lines, or 'refuse' calls.",
    ),
    flag(
        FEATURES,
        "watch-progress-notify-interval",
        Duration(|d| &mut d.config.watch_progress_notify_interval),
        "Time between progress notifications on an idle watch; 0 for 10m.",
    ),
    flag(
        FEATURES,
        "compaction-batch-limit",
        Int(|d| &mut d.config.compaction_batch_limit),
        "Maximum number of revisions removed in one step of a compaction; 0 for 1000.",
    ),
    flag(
        FEATURES,
        "compaction-sleep-interval",
        Duration(|d| &mut d.config.compaction_sleep_interval),
        "Pause between two steps of a compaction; 0 for 10ms.",
    ),
    flag(
        FEATURES,
        "bootstrap-defrag-threshold-megabytes",
        Uint(|d| &mut d.config.bootstrap_defrag_threshold_megabytes),
        "Defragment the backend file at startup if that frees this many megabytes; 0 for never.",
    ),
    flag(
        FEATURES,
        "max-learners",
        Int(|d| &mut d.config.max_learners),
        "Maximum number of learners in the cluster.",
    ),
    flag(
        FEATURES,
        "downgrade-check-time",
        Duration(|d| &mut d.config.downgrade_check_time),
        "Interval at which the leader checks whether an active downgrade is finished; 0 for never.",
    ),
    flag(
        FEATURES,
        "corrupt-check-time",
        Duration(|d| &mut d.config.corrupt_check_time),
        "Interval at which the leader compares the data of all members; 0 for never.",
    ),
    flag(
        FEATURES,
        "compact-hash-check-time",
        Duration(|d| &mut d.config.compact_hash_check_time),
        "Interval at which the leader compares compaction hashes, if CompactHashCheck is enabled.",
    ),
    flag(
        FEATURES,
        "feature-gates",
        Gates(|d| &mut d.config.feature_gates),
        "Feature gates, for behaviour that may still change.",
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
        "Seconds for which a simple token stays valid after its last use.",
    ),
    flag(
        AUTH,
        "bcrypt-cost",
        Uint(|d| &mut d.config.bcrypt_cost),
        "bcrypt cost of password hashes, from 4 to 31; each step doubles the time.",
    ),
    flag(
        UNSAFE,
        "force-new-cluster",
        Bool(|d| &mut d.config.force_new_cluster),
        "Form a new single-member cluster from the data of this member. The other members must never be started again.",
    ),
    flag(
        UNSAFE,
        "unsafe-no-fsync",
        Bool(|d| &mut d.config.unsafe_no_fsync),
        "Never sync files. Data may be lost if the machine crashes.",
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
