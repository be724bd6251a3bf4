//! Logs etcd's lines with the configuration of a starting member. The line `starting an etcd server` contains the
//! effective configuration under etcd's names.
//!
//! Tools and people read this line, so the names, types and order are the same as in etcd 3.7, even where the flags
//! have other names. Quorate's own settings follow. The line contains no secrets.

use std::path::Path;
use std::time::Duration;

use quorate_config::{ClusterState, CompactionMode, Config, FeatureGate, Retention, texts};
use quorate_gotext::duration::SignedDuration;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_telemetry::log::{self, Line, Value};

use crate::assembly::core_count;

type Fields = Vec<(&'static str, Value<'static>)>;

/// Logs the line `starting an etcd server`.
pub(crate) fn log(config: &Config, disk: &dyn Disk) {
    let wal_dir = (!config.wal_dir.is_empty()).then(|| Path::new(&config.wal_dir));
    let dirs = DataDir::new(Path::new(&config.data_dir), wal_dir);
    // An unreadable WAL directory is reported when the member's files are opened.
    line(config, &dirs, dirs.is_initialised(disk).unwrap_or_default()).emit();
}

/// Logs that all ports of a member are served.
pub(crate) fn log_serving(config: &Config, own_id: u64) {
    log::info!(
        "now serving peer/client/metrics",
        "local-member-id" = format!("{own_id:x}"),
        "initial-advertise-peer-urls" = texts(&config.initial_advertise_peer_urls),
        "listen-peer-urls" = texts(&config.listen_peer_urls),
        "advertise-client-urls" = texts(&config.advertise_client_urls),
        "listen-client-urls" = texts(&config.listen_client_urls),
        "listen-metrics-urls" = texts(&config.listen_metrics_urls)
    );
}

/// Creates the line `starting an etcd server`. `is_initialized` means that the member already has data.
fn line(config: &Config, dirs: &DataDir, is_initialized: bool) -> Line {
    let mut line = log::pending!(
        Info,
        "starting an etcd server",
        "etcd-version" = quorate_version::ETCD_VERSION,
        "git-sha" = quorate_version::git_sha(),
        "go-version" = format!("none ({})", quorate_version::COMPILER),
        "go-os" = quorate_version::go_os(),
        "go-arch" = quorate_version::go_arch(),
        "max-cpu-set" = core_count(),
        "max-cpu-available" = core_count(),
        "member-initialized" = is_initialized
    );
    line.fields.extend(member(config, dirs));
    line.fields.extend(urls(config));
    line.fields.extend(cluster(config, is_initialized));
    line.fields.extend(checks(config));
    line.fields.extend(discovery(config));
    line.fields.extend(last(config));
    line
}

fn member(config: &Config, dirs: &DataDir) -> Fields {
    let election = config.election_ticks() * config.heartbeat_interval_ms;
    log::pending!(
        Info,
        "",
        "name" = config.name,
        "data-dir" = config.data_dir,
        "wal-dir" = config.wal_dir,
        "wal-dir-dedicated" = config.wal_dir,
        "member-dir" = dirs.member(),
        "force-new-cluster" = config.force_new_cluster,
        "heartbeat-interval" = Duration::from_millis(config.heartbeat_interval_ms),
        "election-timeout" = Duration::from_millis(election),
        "initial-election-tick-advance" = config.initial_election_tick_advance,
        "snapshot-count" = config.snapshot_count,
        "max-wals" = config.max_wals,
        "max-snapshots" = config.max_snapshots,
        "snapshot-catchup-entries" = config.snapshot_catchup_entries
    )
    .fields
}

fn urls(config: &Config) -> Fields {
    let all = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
    log::pending!(
        Info,
        "",
        "initial-advertise-peer-urls" = texts(&config.initial_advertise_peer_urls),
        "listen-peer-urls" = texts(&config.listen_peer_urls),
        "advertise-client-urls" = texts(&config.advertise_client_urls),
        "listen-client-urls" = texts(&config.listen_client_urls),
        "listen-metrics-urls" = texts(&config.listen_metrics_urls),
        "local-address" = "",
        "cors" = all(&config.cors),
        "host-whitelist" = all(&config.host_whitelist)
    )
    .fields
}

/// Returns the fields about the cluster. The initial cluster and its token are empty for a member with data, because it
/// ignores these flags, unless `--force-new-cluster` is set.
fn cluster(config: &Config, is_initialized: bool) -> Fields {
    let founds = !is_initialized || config.force_new_cluster;
    let state = match config.initial_cluster_state {
        ClusterState::New => "new",
        ClusterState::Existing => "existing",
    };
    let quota = match config.quota_backend_bytes {
        0 => 2 << 30,
        given => given,
    };
    log::pending!(
        Info,
        "",
        "initial-cluster" = if founds { config.initial_cluster.as_str() } else { "" },
        "initial-cluster-state" = state,
        "initial-cluster-token" = if founds { config.initial_cluster_token.as_str() } else { "" },
        "quota-backend-bytes" = quota,
        "max-request-bytes" = config.max_request_bytes,
        "max-concurrent-streams" = config.max_concurrent_streams,
        "pre-vote" = config.pre_vote
    )
    .fields
}

fn checks(config: &Config) -> Fields {
    let mode = match config.auto_compaction_mode {
        CompactionMode::Periodic => "periodic",
        CompactionMode::Revision => "revision",
    };
    // etcd prints a number of revisions as nanoseconds here, and readers of the line expect that.
    let retention = match config.auto_compaction() {
        Ok(Some(Retention::Period(period))) => period.into(),
        Ok(Some(Retention::Revisions(count))) => SignedDuration::from_nanos(count),
        Ok(None) | Err(_) => SignedDuration::ZERO,
    };
    log::pending!(
        Info,
        "",
        "feature-gates" = config.feature_gates.to_string(),
        "initial-corrupt-check" = config.feature_gates.is_enabled(FeatureGate::InitialCorruptCheck),
        "corrupt-check-time-interval" = config.corrupt_check_time,
        "compact-check-time-interval" = config.compact_hash_check_time,
        "auto-compaction-mode" = mode,
        "auto-compaction-retention" = retention,
        "auto-compaction-interval" = retention
    )
    .fields
}

fn discovery(config: &Config) -> Fields {
    let discovery = &config.discovery;
    let user = discovery.user.split(':').next().unwrap_or_default();
    log::pending!(
        Info,
        "",
        "discovery-token" = discovery.token,
        "discovery-endpoints" = discovery.endpoints.join(","),
        "discovery-dial-timeout" = discovery.dial_timeout,
        "discovery-request-timeout" = discovery.request_timeout,
        "discovery-keepalive-time" = discovery.keepalive_time,
        "discovery-keepalive-timeout" = discovery.keepalive_timeout,
        "discovery-insecure-transport" = discovery.insecure_transport,
        "discovery-insecure-skip-tls-verify" = discovery.insecure_skip_tls_verify,
        "discovery-cert" = discovery.cert,
        "discovery-key" = discovery.key,
        "discovery-cacert" = discovery.cacert,
        "discovery-user" = user
    )
    .fields
}

/// Returns the remaining fields of etcd, followed by Quorate's own.
fn last(config: &Config) -> Fields {
    let held = config.hold_cluster_version.map(|version| version.to_string());
    log::pending!(
        Info,
        "",
        "downgrade-check-interval" = config.downgrade_check_time,
        "max-learners" = config.max_learners,
        "v2-deprecation" = "write-only",
        "quorate-version" = quorate_version::QUORATE_VERSION,
        "hold-cluster-version" = held,
        "quota-headroom-bytes" = config.quota_headroom_bytes,
        "quota-warning-percent" = config.quota_warning_percent,
        "quota-disarm-percent" = config.quota_disarm_percent,
        "fence-stalled-disk" = config.fence_stalled_disk,
        "rebuild-corrupt-member" = config.rebuild_corrupt_member,
        "max-connections-per-address" = config.max_connections_per_address
    )
    .fields
}
