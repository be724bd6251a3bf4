//! The configuration of a member: the checked or default value of every flag.
//!
//! A duration or a count for which zero or a negative number means "the default" or "off" is stored as given. The
//! method with the same name as the field returns the effective value.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_gotext::duration::SignedDuration;
use quorate_telemetry::metrics::MetricsLevel;
use quorate_telemetry::{audit, log};
use quorate_version::Version;

use super::discovery::Discovery;
use super::engine::EngineUrl;
use super::features::{FeatureGate, FeatureGates};
use super::security::Security;
use super::url::{self, Url};

/// Whether a member without data founds a new cluster or joins an existing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterState {
    /// The member founds a cluster together with the other initial members.
    #[default]
    New,
    /// The member has been added to a running cluster.
    Existing,
}

/// The unit in which the retention of automatic compaction is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionMode {
    /// The revisions of the most recent period of time are kept.
    #[default]
    Periodic,
    /// A number of revisions is kept.
    Revision,
}

/// How much history automatic compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The length of time for which revisions are kept.
    Period(Duration),
    /// The number of revisions that are kept.
    Revisions(i64),
}

/// How the backend file tracks free pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreelistType {
    /// Free pages are indexed by the length of their span.
    #[default]
    Map,
    /// Free pages are kept in one sorted list.
    Array,
}

/// The settings of distributed tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Whether tracing is enabled. If not, the other fields are not used.
    pub enabled: bool,
    /// The host and port of the collector.
    pub address: String,
    /// The service name in the spans.
    pub service_name: String,
    /// The instance id of this member in the spans; omitted if empty.
    pub instance_id: String,
    /// The number of calls to trace per million calls without a sampled parent, as given; see [`Tracing::per_million`].
    pub sampling_rate: i64,
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            enabled: false,
            address: "localhost:4317".to_owned(),
            service_name: "etcd".to_owned(),
            instance_id: String::new(),
            sampling_rate: 0,
        }
    }
}

impl Tracing {
    /// Returns the number of calls to trace per million calls without a sampled parent.
    #[must_use]
    pub fn per_million(&self) -> u32 {
        u32::try_from(self.sampling_rate).unwrap_or_default()
    }
}

/// A checked configuration.
///
/// Fields are named after their flags. A duration for which zero or a negative value means "off" or "the default" is a
/// [`SignedDuration`], and the method of the same name returns the effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    // Member flags.
    /// The member's name.
    pub name: String,
    /// The data directory, which is never empty after parsing.
    pub data_dir: String,
    /// A separate directory for the WAL; if empty, the WAL is in the data directory.
    pub wal_dir: String,
    /// The database that holds the data instead of this member's files.
    pub engine: EngineUrl,
    /// The URLs on which the member listens for peers.
    pub listen_peer_urls: Vec<Url>,
    /// The URLs on which the member listens for clients.
    pub listen_client_urls: Vec<Url>,
    /// The URLs on which the member listens for HTTP only. If there are any, the client URLs serve gRPC only.
    pub listen_client_http_urls: Vec<Url>,
    /// The URLs on which the member listens for metrics and health checks.
    pub listen_metrics_urls: Vec<Url>,
    /// The URLs on which the member serves the web console.
    pub listen_console_urls: Vec<Url>,
    /// Whether the web console may change the cluster.
    pub console_allow_writes: bool,
    /// The number of snapshot files to keep; 0 for all.
    pub max_snapshots: u64,
    /// The number of WAL files to keep; 0 for all.
    pub max_wals: u64,
    /// The number of applied entries between two snapshots.
    pub snapshot_count: u64,
    /// The number of applied log entries to keep in memory, counted back from the last applied entry.
    pub snapshot_catchup_entries: u64,
    /// The time between two heartbeats in milliseconds, which is also the length of a raft tick.
    pub heartbeat_interval_ms: u64,
    /// The time without a leader before an election, in milliseconds.
    pub election_timeout_ms: u64,
    /// Whether the election clock is advanced at startup, for a faster first election.
    pub initial_election_tick_advance: bool,
    /// Whether a candidate holds a pre-vote before an election.
    pub pre_vote: bool,
    /// Whether a leader hands over leadership when a write to its log takes longer than an election timeout.
    pub fence_stalled_disk: bool,
    /// Whether a member whose data differs from a quorum's data replaces its state with the other members' state.
    pub rebuild_corrupt_member: bool,
    /// The size limit of the backend in bytes, as given: 0 for the default, negative for no limit.
    pub quota_backend_bytes: i64,
    /// The number of bytes below the quota that are reserved for requests that free space.
    pub quota_headroom_bytes: u64,
    /// The percentage of the quota above which a warning is logged; 0 for never.
    pub quota_warning_percent: u64,
    /// The percentage of the quota below which the member disarms its own NOSPACE alarm; 0 for never.
    pub quota_disarm_percent: u64,
    /// Whether the entire backend file is locked in memory.
    pub memory_mlock: bool,
    /// The number of megabytes that defragmentation at startup must free to be worthwhile; 0 for no defragmentation.
    pub bootstrap_defrag_threshold_megabytes: u64,
    /// How the backend tracks free pages.
    pub backend_freelist_type: FreelistType,
    /// The interval between backend commits, as given; see [`Config::backend_batch_interval`].
    pub backend_batch_interval: SignedDuration,
    /// The maximum number of operations between backend commits, as given; see [`Config::backend_batch_limit`].
    pub backend_batch_limit: i64,
    /// The maximum number of operations in a transaction.
    pub max_txn_ops: u64,
    /// The maximum size of a proposal in bytes.
    pub max_request_bytes: u64,
    /// The maximum number of HTTP/2 streams on a connection; `u32::MAX` for no limit.
    pub max_concurrent_streams: u32,
    /// The maximum number of client connections from one address; 0 for no limit.
    pub max_connections_per_address: u32,
    /// The minimum time between two pings from a client, as given; see [`Config::grpc_keepalive_min_time`].
    pub grpc_keepalive_min_time: SignedDuration,
    /// The idle time after which the server sends a ping; zero or less for never.
    pub grpc_keepalive_interval: SignedDuration,
    /// The timeout for the response to a ping; zero or less disables pings.
    pub grpc_keepalive_timeout: SignedDuration,
    /// Whether listeners set `SO_REUSEPORT`.
    pub socket_reuse_port: bool,
    /// Whether listeners are asked to set `SO_REUSEADDR`, which they always do.
    pub socket_reuse_address: bool,
    /// The timeout for reading from a peer.
    pub raft_read_timeout: SignedDuration,
    /// The timeout for writing to a peer.
    pub raft_write_timeout: SignedDuration,

    // Cluster flags.
    /// The peer URLs advertised to the other members.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// The client URLs advertised to clients.
    pub advertise_client_urls: Vec<Url>,
    /// The initial members in the form `name=url,name=url`.
    pub initial_cluster: String,
    /// Whether this member founds a new cluster or joins an existing one.
    pub initial_cluster_state: ClusterState,
    /// A token from which the ids of this cluster and its members are derived, so that no other cluster has the same
    /// ids.
    pub initial_cluster_token: String,
    /// The unit in which the retention of automatic compaction is measured.
    pub auto_compaction_mode: CompactionMode,
    /// How much history automatic compaction keeps, as given; see [`Config::auto_compaction`].
    pub auto_compaction_retention: String,
    /// The type and options of tokens, as given; see [`AuthToken::parse`](super::AuthToken::parse).
    pub auth_token: String,
    /// How long a simple token stays valid after its last use, in seconds; see [`Config::auth_token_ttl`].
    pub auth_token_ttl_secs: u64,
    /// The bcrypt cost of password hashes.
    pub bcrypt_cost: u64,
    /// The maximum number of learners in the cluster.
    pub max_learners: i64,
    /// The settings with which a new member finds the other members through a discovery cluster.
    pub discovery: Discovery,
    /// The domain whose SRV records list the initial members; empty if SRV records are not used.
    pub discovery_srv: String,
    /// The suffix of the service name in the SRV records.
    pub discovery_srv_name: String,
    /// Whether a membership change that would leave too few active members is refused.
    pub strict_reconfig_check: bool,
    /// Whether the gRPC services are also served as JSON over HTTP.
    pub enable_grpc_gateway: bool,
    /// Whether profiles of the process are served over HTTP.
    pub enable_pprof: bool,
    /// The interval at which an active downgrade is checked; zero for never.
    pub downgrade_check_time: SignedDuration,
    /// The interval at which the leader compares the data of all members; zero or less for never.
    pub corrupt_check_time: SignedDuration,
    /// The interval at which the leader compares compaction hashes, if the feature gate `CompactHashCheck` is enabled.
    /// The interval is positive.
    pub compact_hash_check_time: SignedDuration,
    /// The highest cluster version that this member accepts, if it differs from the member's own version.
    pub hold_cluster_version: Option<Version>,

    // Security flags.
    /// The security settings of connections.
    pub security: Security,

    // Flags that control HTTP access.
    /// The accepted CORS origins; `*` for all.
    pub cors: BTreeSet<String>,
    /// The accepted host names on listeners without TLS; `*` or an empty set for all.
    pub host_whitelist: BTreeSet<String>,

    // Monitoring and logging flags.
    /// The level of detail of `/metrics`.
    pub metrics: MetricsLevel,
    /// The settings of the log.
    pub log: log::Settings,
    /// A warning is logged if applying a request takes longer than this.
    pub warning_apply_duration: SignedDuration,
    /// A warning is logged if a unary request takes longer than this.
    pub warning_unary_request_duration: SignedDuration,
    /// The settings of distributed tracing.
    pub tracing: Tracing,
    /// The settings of the audit log, if it is enabled.
    pub audit: Option<audit::Settings>,

    // Flags for tuning.
    /// The number of revisions removed in each step of a compaction, as given; see
    /// [`Config::compaction_batch_limit`].
    pub compaction_batch_limit: i64,
    /// The pause between two steps of a compaction, as given; see [`Config::compaction_sleep_interval`].
    pub compaction_sleep_interval: SignedDuration,
    /// The interval of progress notifications, as given; see [`Config::watch_progress_notify_interval`].
    pub watch_progress_notify_interval: SignedDuration,
    /// The feature gates, which control behaviour that may still change.
    pub feature_gates: FeatureGates,

    // Unsafe flags.
    /// Whether this member forms a new single-member cluster from its data.
    pub force_new_cluster: bool,
    /// Whether `fsync` is disabled.
    pub unsafe_no_fsync: bool,
}

pub(crate) const DEFAULT_NAME: &str = "default";
pub(crate) const DEFAULT_PEER_URL: &str = "http://localhost:2380";
pub(crate) const DEFAULT_CLIENT_URL: &str = "http://localhost:2379";

impl Default for Config {
    #[expect(clippy::too_many_lines, reason = "the function has one line for each field")]
    fn default() -> Self {
        let only = |url| url::parse_list(url).expect("the default URLs are valid");
        let any = || BTreeSet::from(["*".to_owned()]);
        Self {
            name: DEFAULT_NAME.to_owned(),
            data_dir: String::new(),
            wal_dir: String::new(),
            engine: EngineUrl::default(),
            listen_peer_urls: only(DEFAULT_PEER_URL),
            listen_client_urls: only(DEFAULT_CLIENT_URL),
            listen_client_http_urls: Vec::new(),
            listen_metrics_urls: Vec::new(),
            listen_console_urls: Vec::new(),
            console_allow_writes: false,
            max_snapshots: 5,
            max_wals: 5,
            snapshot_count: 10_000,
            snapshot_catchup_entries: 5_000,
            heartbeat_interval_ms: 100,
            election_timeout_ms: 1_000,
            initial_election_tick_advance: true,
            pre_vote: true,
            fence_stalled_disk: true,
            rebuild_corrupt_member: false,
            quota_backend_bytes: 0,
            quota_headroom_bytes: 0,
            quota_warning_percent: 0,
            quota_disarm_percent: 0,
            memory_mlock: false,
            bootstrap_defrag_threshold_megabytes: 0,
            backend_freelist_type: FreelistType::Map,
            backend_batch_interval: SignedDuration::ZERO,
            backend_batch_limit: 0,
            max_txn_ops: 128,
            max_request_bytes: 1_572_864,
            max_concurrent_streams: u32::MAX,
            max_connections_per_address: 0,
            grpc_keepalive_min_time: SignedDuration::from_secs(5),
            grpc_keepalive_interval: SignedDuration::from_secs(7_200),
            grpc_keepalive_timeout: SignedDuration::from_secs(20),
            socket_reuse_port: false,
            socket_reuse_address: false,
            raft_read_timeout: SignedDuration::from_secs(5),
            raft_write_timeout: SignedDuration::from_secs(5),
            initial_advertise_peer_urls: only(DEFAULT_PEER_URL),
            advertise_client_urls: only(DEFAULT_CLIENT_URL),
            initial_cluster: format!("{DEFAULT_NAME}={DEFAULT_PEER_URL}"),
            initial_cluster_state: ClusterState::New,
            initial_cluster_token: "etcd-cluster".to_owned(),
            auto_compaction_mode: CompactionMode::Periodic,
            auto_compaction_retention: "0".to_owned(),
            auth_token: "simple".to_owned(),
            auth_token_ttl_secs: 300,
            bcrypt_cost: 10,
            max_learners: 1,
            discovery: Discovery::default(),
            discovery_srv: String::new(),
            discovery_srv_name: String::new(),
            strict_reconfig_check: true,
            enable_grpc_gateway: true,
            enable_pprof: false,
            downgrade_check_time: SignedDuration::from_secs(5),
            corrupt_check_time: SignedDuration::from_secs(0),
            compact_hash_check_time: SignedDuration::from_secs(60),
            hold_cluster_version: None,
            security: Security::default(),
            cors: any(),
            host_whitelist: any(),
            metrics: MetricsLevel::Basic,
            log: log::Settings::default(),
            warning_apply_duration: SignedDuration::from_millis(100),
            warning_unary_request_duration: SignedDuration::from_millis(300),
            tracing: Tracing::default(),
            audit: None,
            compaction_batch_limit: 0,
            compaction_sleep_interval: SignedDuration::ZERO,
            watch_progress_notify_interval: SignedDuration::ZERO,
            feature_gates: FeatureGates::default(),
            force_new_cluster: false,
            unsafe_no_fsync: false,
        }
    }
}

impl Config {
    /// Returns the number of ticks without a leader before an election.
    pub fn election_ticks(&self) -> u64 {
        self.election_timeout_ms / self.heartbeat_interval_ms
    }

    /// Returns the minimum TTL of a lease: one and a half election timeouts, rounded up to whole seconds.
    pub fn least_lease_secs(&self) -> i64 {
        let millis = (3 * self.election_ticks() / 2) * self.heartbeat_interval_ms;
        i64::try_from(millis.div_ceil(1000)).unwrap_or(i64::MAX)
    }

    /// Returns the names and values of settings that must be equal on all members, because replicated data depends on
    /// them.
    pub fn shared_settings(&self) -> Vec<(&'static str, String)> {
        let persists = self.feature_gates.is_enabled(FeatureGate::LeaseCheckpointPersist);
        vec![
            ("least-lease-secs", self.least_lease_secs().to_string()),
            ("max-learners", self.max_learners.to_string()),
            ("LeaseCheckpointPersist", persists.to_string()),
        ]
    }

    /// Returns the names and values of settings that members report to one another and that may differ between members.
    pub fn announced_settings(&self) -> Vec<(&'static str, String)> {
        let gate = FeatureGate::CompactHashCheck;
        vec![(gate.name(), self.feature_gates.is_enabled(gate).to_string())]
    }

    /// Returns the timeout of a request: five seconds plus two election timeouts.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * Duration::from_millis(self.election_timeout_ms)
    }

    /// Returns how long a simple token stays valid after its last use. Zero means the default of five minutes.
    pub fn auth_token_ttl(&self) -> Duration {
        Duration::from_secs(if self.auth_token_ttl_secs == 0 {
            300
        } else {
            self.auth_token_ttl_secs
        })
    }

    /// Returns the size limit of the backend in bytes; `None` for no limit.
    pub fn quota_bytes(&self) -> Option<u64> {
        match self.quota_backend_bytes {
            0 => Some(2 << 30),
            given => u64::try_from(given).ok(),
        }
    }

    /// Returns the interval between backend commits.
    pub fn backend_batch_interval(&self) -> Duration {
        self.backend_batch_interval.positive().unwrap_or(Duration::from_millis(100))
    }

    /// Returns the minimum time between two pings from a client. A client that sends pings faster is disconnected. The
    /// default is grpc-go's, as in etcd.
    pub fn grpc_keepalive_min_time(&self) -> Duration {
        self.grpc_keepalive_min_time.positive().unwrap_or(Duration::from_secs(300))
    }

    /// Returns the maximum number of operations between backend commits.
    pub fn backend_batch_limit(&self) -> u64 {
        u64::try_from(self.backend_batch_limit).ok().filter(|limit| *limit > 0).unwrap_or(10_000)
    }

    /// Returns the number of revisions removed in each step of a compaction.
    pub fn compaction_batch_limit(&self) -> u64 {
        u64::try_from(self.compaction_batch_limit).ok().filter(|limit| *limit > 0).unwrap_or(1_000)
    }

    /// Returns the pause between two steps of a compaction.
    pub fn compaction_sleep_interval(&self) -> Duration {
        self.compaction_sleep_interval.positive().unwrap_or(Duration::from_millis(10))
    }

    /// Returns the interval between progress notifications of a watch, without jitter.
    pub fn watch_progress_notify_interval(&self) -> Duration {
        self.watch_progress_notify_interval.positive().unwrap_or(Duration::from_secs(600))
    }

    /// Returns whether gRPC listeners also serve HTTP. This is the case unless there are separate HTTP listeners.
    pub fn serves_http_with_grpc(&self) -> bool {
        self.listen_client_http_urls.is_empty()
    }

    /// Returns whether profiles are served, which `--enable-pprof` or the log level `debug` enables.
    pub fn serves_profiles(&self) -> bool {
        self.enable_pprof || self.log.level == log::Level::Debug
    }

    /// Returns an initial cluster whose only member has this name and the advertised peer URLs.
    pub fn initial_cluster_from_name(&self, name: &str) -> String {
        let name = if name.is_empty() { DEFAULT_NAME } else { name };
        let members = self.initial_advertise_peer_urls.iter().map(|url| format!("{name}={url}"));
        members.collect::<Vec<_>>().join(",")
    }
}
