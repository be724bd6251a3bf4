//! The configuration of a member: every value that a flag sets, checked, with its default.
//!
//! Spans and counts that stand for "the default" or "off" at zero or below are kept as given; the
//! method of the field's name resolves them.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_gotext::duration::SignedDuration;
use quorate_telemetry::metrics::MetricsLevel;
use quorate_telemetry::{audit, log};
use quorate_version::Version;

use super::discovery::Discovery;
use super::features::{FeatureGates, Gate};
use super::security::Security;
use super::url::{self, Url};

/// Whether a member without data founds a cluster or joins one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterState {
    /// It founds one, together with the other initial members.
    #[default]
    New,
    /// It was added to a running one.
    Existing,
}

/// What automatic compaction keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionMode {
    /// The revisions of a span of time.
    #[default]
    Periodic,
    /// A number of revisions.
    Revision,
}

/// How much automatic compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// The revisions of this span of time.
    Period(Duration),
    /// This many revisions.
    Revisions(i64),
}

/// How free pages are kept track of in the backend file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreelistType {
    /// By span length.
    #[default]
    Map,
    /// As one sorted list.
    Array,
}

/// Distributed tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Whether there is any. Without it the rest is not looked at.
    pub enabled: bool,
    /// Host and port of the collector.
    pub address: String,
    /// What the collector is told that members are called.
    pub service_name: String,
    /// What it is told that this member is called; nothing if empty.
    pub instance_id: String,
    /// How many of a million calls are followed that nobody follows yet, as given; see [`Tracing::per_million`].
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
    /// The sampling rate.
    #[must_use]
    pub fn per_million(&self) -> u32 {
        u32::try_from(self.sampling_rate).unwrap_or_default()
    }
}

/// A checked configuration.
///
/// Fields are named after their flags; a span of time that may be "off" or "default" at zero or
/// below is a [`SignedDuration`], and the method of the same name resolves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    // Member.
    /// The member's name.
    pub name: String,
    /// The data directory; never empty once parsed.
    pub data_dir: String,
    /// A directory of its own for the WAL; empty for the one inside the data directory.
    pub wal_dir: String,
    /// Where peers are listened to.
    pub listen_peer_urls: Vec<Url>,
    /// Where clients are listened to.
    pub listen_client_urls: Vec<Url>,
    /// Where clients are listened to for HTTP alone; when not empty, the client URLs are for gRPC
    /// alone.
    pub listen_client_http_urls: Vec<Url>,
    /// Where scrapers and probes are listened to.
    pub listen_metrics_urls: Vec<Url>,
    /// Snapshot files kept, 0 for all.
    pub max_snapshots: u64,
    /// WAL files kept, 0 for all.
    pub max_wals: u64,
    /// Applied entries between disk snapshots.
    pub snapshot_count: u64,
    /// Entries kept in memory behind the snapshot.
    pub snapshot_catchup_entries: u64,
    /// Milliseconds between heartbeats; one raft tick.
    pub heartbeat_interval_ms: u64,
    /// Milliseconds without a leader before an election.
    pub election_timeout_ms: u64,
    /// Whether election ticks are forwarded at start.
    pub initial_election_tick_advance: bool,
    /// Whether a candidate first asks whether it could win.
    pub pre_vote: bool,
    /// Whether a member whose log cannot be written for an election timeout leaves the lead to others.
    pub fence_stalled_disk: bool,
    /// Whether a member that holds something else than a quorum of the others fetches its state from them.
    pub rebuild_corrupt_member: bool,
    /// The backend's size limit as given: 0 for the default, below for none.
    pub quota_backend_bytes: i64,
    /// Bytes under the quota that writes which grow the backend leave free.
    pub quota_headroom_bytes: u64,
    /// Percent of the quota from which on there is a warning; 0 for none.
    pub quota_warning_percent: u64,
    /// Percent of the quota below which the member takes its own NOSPACE alarm back; 0 for never.
    pub quota_disarm_percent: u64,
    /// Whether the backend file is kept in memory as a whole.
    pub memory_mlock: bool,
    /// Megabytes that giving free space back at start has to win to be worth it; 0 for never.
    pub bootstrap_defrag_threshold_megabytes: u64,
    /// How the backend keeps free pages.
    pub backend_freelist_type: FreelistType,
    /// Time between backend commits as given; see [`Config::backend_batch_interval`].
    pub backend_batch_interval: SignedDuration,
    /// Operations between backend commits as given; see [`Config::backend_batch_limit`].
    pub backend_batch_limit: i64,
    /// Operations a transaction may have.
    pub max_txn_ops: u64,
    /// Bytes a proposal may have.
    pub max_request_bytes: u64,
    /// HTTP/2 streams a connection may have; `u32::MAX` for no limit.
    pub max_concurrent_streams: u32,
    /// Connections of clients that one address may hold; 0 for any number.
    pub max_connections_per_address: u32,
    /// Time that a client lets pass between two pings as given; see [`Config::grpc_keepalive_min_time`].
    pub grpc_keepalive_min_time: SignedDuration,
    /// Idle time before the server pings; zero or less for never.
    pub grpc_keepalive_interval: SignedDuration,
    /// Time a ping may stay unanswered; zero or less for never pinging.
    pub grpc_keepalive_timeout: SignedDuration,
    /// Whether listeners share their port.
    pub socket_reuse_port: bool,
    /// Whether listeners take an address that is still winding down.
    pub socket_reuse_address: bool,
    /// How long a read from a peer may take.
    pub raft_read_timeout: SignedDuration,
    /// How long a write to a peer may take.
    pub raft_write_timeout: SignedDuration,

    // Cluster.
    /// The peer URLs that the others are told.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// The client URLs that clients are told.
    pub advertise_client_urls: Vec<Url>,
    /// The first members, `name=url,name=url`.
    pub initial_cluster: String,
    /// Whether this member founds or joins.
    pub initial_cluster_state: ClusterState,
    /// What sets this cluster's ids apart from another's.
    pub initial_cluster_token: String,
    /// What automatic compaction keeps.
    pub auto_compaction_mode: CompactionMode,
    /// How much it keeps, as given; see [`Config::auto_compaction`].
    pub auto_compaction_retention: String,
    /// The type of tokens, as given; see [`AuthToken::parse`](super::AuthToken::parse).
    pub auth_token: String,
    /// Seconds for which a simple token is good after it was last shown; see [`Config::auth_token_ttl`].
    pub auth_token_ttl_secs: u64,
    /// What hashing a password costs, as bcrypt counts.
    pub bcrypt_cost: u64,
    /// Learners the cluster may have.
    pub max_learners: i64,
    /// How a new member finds the others through a cluster that already runs.
    pub discovery: Discovery,
    /// The domain whose SRV records name the first members; empty for none.
    pub discovery_srv: String,
    /// What those records have behind their service's name.
    pub discovery_srv_name: String,
    /// Whether a change of the members is refused that would leave too few of them at work.
    pub strict_reconfig_check: bool,
    /// Whether the gRPC services are served as JSON over HTTP, too.
    pub enable_grpc_gateway: bool,
    /// Whether profiles of the process are served to clients over HTTP.
    pub enable_pprof: bool,
    /// Time between looks at a downgrade under way; zero for never.
    pub downgrade_check_time: SignedDuration,
    /// How often a leader compares what all members hold; never unless positive.
    pub corrupt_check_time: SignedDuration,
    /// How often a leader compares what compactions have left behind, where its gate is open. Positive.
    pub compact_hash_check_time: SignedDuration,
    /// The highest cluster version that this member takes part in, where that is not its own.
    pub hold_cluster_version: Option<Version>,

    // Security.
    /// How connections are secured.
    pub security: Security,

    // Access over HTTP.
    /// Origins that browsers are told about; `*` for all.
    pub cors: BTreeSet<String>,
    /// Host names accepted on listeners without TLS; `*` or none for all.
    pub host_whitelist: BTreeSet<String>,

    // Watching over the member.
    /// How much `/metrics` tells.
    pub metrics: MetricsLevel,
    /// What the log does with lines.
    pub log: log::Settings,
    /// Applying a request for longer is worth a warning.
    pub warning_apply_duration: SignedDuration,
    /// Answering a unary request for longer is worth a warning.
    pub warning_unary_request_duration: SignedDuration,
    /// Which calls are followed, and who is told.
    pub tracing: Tracing,
    /// The audit log, if there is one.
    pub audit: Option<audit::Settings>,

    // Tuning.
    /// Revisions removed per step of a compaction as given; see [`Config::compaction_batch_limit`].
    pub compaction_batch_limit: i64,
    /// Time between those steps as given; see [`Config::compaction_sleep_interval`].
    pub compaction_sleep_interval: SignedDuration,
    /// Time between progress notifications as given; see
    /// [`Config::watch_progress_notify_interval`].
    pub watch_progress_notify_interval: SignedDuration,
    /// Behaviour that is not settled.
    pub feature_gates: FeatureGates,

    // Unsafe.
    /// Whether this member goes on alone with the data of its cluster.
    pub force_new_cluster: bool,
    /// Whether files are never synced.
    pub unsafe_no_fsync: bool,
}

pub(crate) const DEFAULT_NAME: &str = "default";
pub(crate) const DEFAULT_PEER_URL: &str = "http://localhost:2380";
pub(crate) const DEFAULT_CLIENT_URL: &str = "http://localhost:2379";

impl Default for Config {
    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    fn default() -> Self {
        let only = |url| url::parse_list(url).expect("the default URLs are URLs");
        let any = || BTreeSet::from(["*".to_owned()]);
        Self {
            name: DEFAULT_NAME.to_owned(),
            data_dir: String::new(),
            wal_dir: String::new(),
            listen_peer_urls: only(DEFAULT_PEER_URL),
            listen_client_urls: only(DEFAULT_CLIENT_URL),
            listen_client_http_urls: Vec::new(),
            listen_metrics_urls: Vec::new(),
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
    /// Ticks without a leader before an election.
    pub fn election_ticks(&self) -> u64 {
        self.election_timeout_ms / self.heartbeat_interval_ms
    }

    /// The shortest life of a lease: half as much again as an election, in whole seconds.
    pub fn least_lease_secs(&self) -> i64 {
        let millis = (3 * self.election_ticks() / 2) * self.heartbeat_interval_ms;
        i64::try_from(millis.div_ceil(1000)).unwrap_or(i64::MAX)
    }

    /// What members should have alike, because what they store depends on it: names and values.
    pub fn shared_settings(&self) -> Vec<(&'static str, String)> {
        let persists = self.feature_gates.is_enabled(Gate::LeaseCheckpointPersist);
        vec![
            ("least-lease-secs", self.least_lease_secs().to_string()),
            ("max-learners", self.max_learners.to_string()),
            ("LeaseCheckpointPersist", persists.to_string()),
        ]
    }

    /// What members tell one another and may have otherwise: names and values.
    pub fn announced_settings(&self) -> Vec<(&'static str, String)> {
        let gate = Gate::CompactHashCheck;
        vec![(gate.name(), self.feature_gates.is_enabled(gate).to_string())]
    }

    /// How long a request may take in all: five seconds and two elections.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * Duration::from_millis(self.election_timeout_ms)
    }

    /// For how long a token is good after it was last shown. None is good for no time at all.
    pub fn auth_token_ttl(&self) -> Duration {
        Duration::from_secs(if self.auth_token_ttl_secs == 0 {
            300
        } else {
            self.auth_token_ttl_secs
        })
    }

    /// The backend's size limit, `None` for no limit.
    pub fn quota_bytes(&self) -> Option<u64> {
        match self.quota_backend_bytes {
            0 => Some(2 << 30),
            given => u64::try_from(given).ok(),
        }
    }

    /// Time between backend commits.
    pub fn backend_batch_interval(&self) -> Duration {
        self.backend_batch_interval.positive().unwrap_or(Duration::from_millis(100))
    }

    /// Time that a client lets pass between two pings, on pain of its connection. Without one in the flags it is that
    /// of gRPC's library for Go, as in etcd.
    pub fn grpc_keepalive_min_time(&self) -> Duration {
        self.grpc_keepalive_min_time.positive().unwrap_or(Duration::from_secs(300))
    }

    /// Operations between backend commits.
    pub fn backend_batch_limit(&self) -> u64 {
        u64::try_from(self.backend_batch_limit).ok().filter(|limit| *limit > 0).unwrap_or(10_000)
    }

    /// Revisions removed per step of a compaction.
    pub fn compaction_batch_limit(&self) -> u64 {
        u64::try_from(self.compaction_batch_limit).ok().filter(|limit| *limit > 0).unwrap_or(1_000)
    }

    /// Time between the steps of a compaction.
    pub fn compaction_sleep_interval(&self) -> Duration {
        self.compaction_sleep_interval.positive().unwrap_or(Duration::from_millis(10))
    }

    /// Time between progress notifications of a watch, before each one's jitter.
    pub fn watch_progress_notify_interval(&self) -> Duration {
        self.watch_progress_notify_interval.positive().unwrap_or(Duration::from_secs(600))
    }

    /// Listeners for gRPC serve HTTP too, unless HTTP has listeners of its own.
    pub fn serves_http_with_grpc(&self) -> bool {
        self.listen_client_http_urls.is_empty()
    }

    /// Profiles are also for whoever hunts a fault.
    pub fn serves_profiles(&self) -> bool {
        self.enable_pprof || self.log.level == log::Level::Debug
    }

    /// The initial cluster of a member of that name with the advertised peer URLs.
    pub fn initial_cluster_from_name(&self, name: &str) -> String {
        let name = if name.is_empty() { DEFAULT_NAME } else { name };
        let members = self.initial_advertise_peer_urls.iter().map(|url| format!("{name}={url}"));
        members.collect::<Vec<_>>().join(",")
    }
}
