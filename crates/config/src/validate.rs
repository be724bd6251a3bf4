//! Checks a configuration, in etcd's order and with etcd's error messages.
//!
//! Operators and tools search for these messages, and only the first error is reported. Therefore both the order and
//! the messages are part of the contract.

use quorate_gotext::duration::{ParseDurationError, SignedDuration};
use quorate_gotext::quote::go_quote;
use quorate_telemetry::audit::{self, Overflow, RuleError, Rules};
use quorate_telemetry::log::{self, Format, Level, Output, Rotation, Settings};
use quorate_telemetry::metrics::MetricsLevel;
use quorate_version::Version;

use super::config::{
    ClusterState, CompactionMode, Config, DEFAULT_NAME, FreelistType, Retention, Tracing,
};
use super::draft::Draft;
use super::engine;
use super::features::FeatureGate;
use super::outcome::Pending;
use super::rotation::{self, RotationError};
use super::security::{Security, TlsVersion};
use super::url::{self, Url};

const ELECTION_TIMEOUT_MS_MAX: u64 = 50_000;
/// The maximum of `--max-request-bytes`. The entry for such a request fits in one message to another member, which has at
/// most 512 MiB (`peer::frame`), together with the other fields of the message.
const REQUEST_BYTES_MAX: u64 = 511 << 20;
/// The minimum interval of progress notifications.
const PROGRESS_NOTIFY_MIN: SignedDuration = SignedDuration::from_millis(100);

/// The reason why a configuration is invalid. For errors that etcd also reports, the messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("--logger=capnslog is removed in v3.5")]
    RemovedLogger,
    #[error("unknown logger option {}", go_quote(.0))]
    UnknownLogger(String),
    #[error("multi logoutput for \"default\" is not supported yet")]
    DefaultAmongOutputs,
    #[error(
        "running with systemd/journal but other '--log-outputs' values ({}) are configured with \
         'default'; override 'default' value with something else",
        quoted_list(.0)
    )]
    JournalAmongOutputs(Vec<String>),
    #[error("--log-outputs requires a single file path when --log-rotate-config-json is defined")]
    RotationWithoutFile,
    #[error(transparent)]
    Rotation(#[from] RotationError),
    #[error("unknown log format: {0}, supported values json, console")]
    UnknownFormat(String),
    /// The log level is unknown, which ends the process at once.
    #[error("unrecognized level: {}", go_quote(.0))]
    UnknownLevel(String),
    #[error("{0}")]
    Unbindable(String),
    #[error("--initial-advertise-peer-urls {} must be \"host:port\" ({reason})", go_quote(urls))]
    AdvertisedPeer { urls: String, reason: String },
    #[error(
        "--advertise-client-urls {} must be in the format \"host:port\", \
         \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" ({reason})",
        go_quote(urls)
    )]
    AdvertisedClient { urls: String, reason: String },
    #[error("unexpected clusterState {}", go_quote(.0))]
    ClusterState(String),
    #[error(
        "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
         \"discovery-endpoints\" or \"discovery-srv\""
    )]
    SeveralWaysToFound,
    #[error("both --discovery-token and --discovery-endpoints must be set")]
    HalfDiscovery,
    #[error("--discovery-endpoints must not contain empty endpoints")]
    EmptyEndpoint,
    #[error("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"")]
    ProxyFallback,
    #[error("--hold-cluster-version {} must be one of 3.5, 3.6 and 3.7", go_quote(.0))]
    HeldVersion(String),
    #[error("--{flag} {percent} must be a percentage below 100")]
    Percent { flag: &'static str, percent: u64 },
    #[error(
        "--max-request-bytes {0} must be at most {REQUEST_BYTES_MAX}; otherwise, a request could be \
         too large for a message to another member"
    )]
    RequestBytes(u64),
    #[error(
        "--quota-headroom-bytes {headroom} leaves no room for writes below --quota-disarm-percent \
         of --quota-backend-bytes"
    )]
    Headroom { headroom: u64 },
    #[error("--{flag} has no effect with --engine: {reason}")]
    WithEngine { flag: &'static str, reason: engine::Reason },
    #[error("--heartbeat-interval must be >0 (set to 0ms)")]
    NoHeartbeat,
    #[error("--election-timeout must be >0 (set to 0ms)")]
    NoElection,
    #[error(
        "--election-timeout[{election}ms] should be at least as 5 times as \
         --heartbeat-interval[{heartbeat}ms]"
    )]
    ShortElection { election: u64, heartbeat: u64 },
    #[error(
        "--election-timeout[{0}ms] is too long, and should be set less than \
         {ELECTION_TIMEOUT_MS_MAX}ms"
    )]
    LongElection(u64),
    #[error("--advertise-client-urls is required when --listen-client-urls is set explicitly")]
    MissingAdvertised,
    #[error("undefined auto-compaction-mode")]
    NoCompactionMode,
    #[error("unknown auto-compaction-mode {}", go_quote(.0))]
    CompactionMode(String),
    #[error(
        "enabling feature gate LeaseCheckpointPersist requires enabling feature gate \
         LeaseCheckpoint"
    )]
    PersistWithoutCheckpoint,
    #[error("--compact-hash-check-time must be >0 (set to {0})")]
    NoCompactHashCheckTime(SignedDuration),
    #[error("--audit-rules: {0}")]
    AuditRules(#[from] RuleError),
    #[error("--audit-log-rotation-config-json: {0}")]
    AuditRotation(RotationError),
    #[error("--audit-log-rotation-config-json requires a file in --audit-log")]
    AuditRotationWithoutFile,
    #[error("--{0} has no effect without --audit-log")]
    AuditWithoutLog(&'static str),
    #[error("distributed tracing configurition is not valid: ({0})")]
    Tracing(&'static str),
    #[error("unexpected TLS version {} (must be one of: TLS1.2, TLS1.3)", go_quote(.0))]
    TlsVersion(String),
    #[error("min version ({}) is greater than max version ({})", min.name(), max.name())]
    TlsVersions { min: TlsVersion, max: TlsVersion },
    #[error("cipher suites cannot be configured when only TLS1.3 is enabled")]
    SuitesOfTls13,
}

/// The reason for refusing a configuration, and the log settings if they are valid.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) refusal: Refusal,
    pub(super) log: Option<Settings>,
}

/// Checks a draft and converts it into a configuration.
pub(super) fn check(draft: &Draft, lines: &mut Vec<Pending>) -> Result<Config, Rejected> {
    let log = check_log(draft).map_err(|refusal| Rejected { refusal, log: None })?;
    check_rest(draft, &log, lines).map_err(|refusal| Rejected { refusal, log: Some(log) })
}

fn check_log(draft: &Draft) -> Result<Settings, Refusal> {
    match draft.logger.as_str() {
        "zap" => {}
        "capnslog" => return Err(Refusal::RemovedLogger),
        other => return Err(Refusal::UnknownLogger(other.to_owned())),
    }
    let names = &draft.log_outputs;
    if names.len() > 1 && names.iter().any(|name| name == "default") {
        return Err(Refusal::DefaultAmongOutputs);
    }
    let rotation = check_rotation(draft)?;
    if names.len() > 1 && names.iter().any(|name| name == "systemd/journal") {
        return Err(Refusal::JournalAmongOutputs(names.clone()));
    }
    let mut outputs: Vec<Output> = names
        .iter()
        .map(|name| match (name.as_str(), &rotation) {
            ("default" | "stderr", _) => Output::Stderr,
            ("stdout", _) => Output::Stdout,
            ("systemd/journal", _) => Output::Journal,
            (path, None) => Output::File(path.to_owned()),
            (path, Some(rotation)) => Output::RotatedFile(path.to_owned(), rotation.clone()),
        })
        .collect();
    if outputs.is_empty() {
        outputs.push(Output::Stderr);
    }
    let level = Level::ALL
        .into_iter()
        .find(|level| level.name().eq_ignore_ascii_case(&draft.log_level))
        .ok_or_else(|| Refusal::UnknownLevel(draft.log_level.clone()))?;
    let format = match draft.log_format.as_str() {
        "json" => Format::Json,
        "console" => Format::Console,
        other => return Err(Refusal::UnknownFormat(other.to_owned())),
    };
    Ok(Settings { level, format, outputs })
}

/// Returns the rotation settings, if rotation is enabled. Refuses rotation of several log files, or of a single output
/// that is not a file. As in etcd, several outputs without a file are accepted, and the journal counts as a file but is
/// not rotated.
fn check_rotation(draft: &Draft) -> Result<Option<Rotation>, Refusal> {
    if !draft.enable_log_rotation {
        return Ok(None);
    }
    let is_file = |name: &&String| !matches!(name.as_str(), "default" | "stderr" | "stdout");
    let files = draft.log_outputs.iter().filter(is_file).count();
    if files > 1 || (files == 0 && draft.log_outputs.len() <= 1) {
        return Err(Refusal::RotationWithoutFile);
    }
    Ok(Some(rotation::parse(&draft.log_rotation_config_json)?))
}

fn check_rest(draft: &Draft, log: &Settings, lines: &mut Vec<Pending>) -> Result<Config, Refusal> {
    let mut config = Config { log: log.clone(), ..draft.config.clone() };
    check_urls(&config, lines)?;
    config.initial_cluster_state = match draft.initial_cluster_state.as_str() {
        "new" => ClusterState::New,
        "existing" => ClusterState::Existing,
        other => return Err(Refusal::ClusterState(other.to_owned())),
    };
    check_discovery(&config)?;
    check_engine(&config, draft)?;
    check_times(&config)?;
    check_quota(&config)?;
    if config.max_request_bytes > REQUEST_BYTES_MAX {
        return Err(Refusal::RequestBytes(config.max_request_bytes));
    }
    if config.advertise_client_urls.is_empty() && !config.listen_client_urls.is_empty() {
        return Err(Refusal::MissingAdvertised);
    }
    config.auto_compaction_mode = match draft.auto_compaction_mode.as_str() {
        "periodic" => CompactionMode::Periodic,
        "revision" => CompactionMode::Revision,
        "" => return Err(Refusal::NoCompactionMode),
        other => return Err(Refusal::CompactionMode(other.to_owned())),
    };
    check_tracing(&config.tracing)?;
    config.audit = audit(draft)?;
    check_gates(&config, lines)?;
    check_tls(&mut config.security, draft)?;
    config.hold_cluster_version = held_version(&draft.hold_cluster_version)?;
    if config.name == DEFAULT_NAME {
        lines.push(Pending::configured(log::pending!(
            Warn,
            "it isn't recommended to use default name, please set a value for --name. Note that \
             etcd might run into issue when multiple members have the same default name",
            "name" = config.name
        )));
    }
    config.backend_freelist_type = match draft.backend_freelist_type.as_str() {
        "array" => FreelistType::Array,
        _ => FreelistType::Map,
    };
    config.metrics = match draft.metrics.as_str() {
        "extensive" => MetricsLevel::Extensive,
        _ => MetricsLevel::Basic,
    };
    settle_defaults(&mut config, lines);
    Ok(config)
}

/// Refuses flags that would have no effect with `--engine`.
fn check_engine(config: &Config, draft: &Draft) -> Result<(), Refusal> {
    if config.engine.get().is_none() {
        return Ok(());
    }
    let Security { client, peer, .. } = &config.security;
    match engine::meaningless(&draft.explicit, client.auto_tls || peer.auto_tls) {
        Some((flag, reason)) => Err(Refusal::WithEngine { flag, reason }),
        None => Ok(()),
    }
}

fn check_urls(config: &Config, lines: &mut Vec<Pending>) -> Result<(), Refusal> {
    let bindable = |urls: &[Url]| url::check_bindable(urls).map_err(Refusal::Unbindable);
    bindable(&config.listen_peer_urls)?;
    bindable(&config.listen_client_urls)?;
    bindable(&config.listen_client_http_urls)?;
    if config.listen_client_http_urls.is_empty() {
        lines.push(Pending::configured(log::pending!(
            Warn,
            "Running http and grpc server on single port. This is not recommended for production."
        )));
    }
    bindable(&config.listen_metrics_urls)?;
    bindable(&config.listen_console_urls)?;
    url::check_advertisable(&config.initial_advertise_peer_urls).map_err(|reason| {
        let urls = url::joined(&config.initial_advertise_peer_urls);
        Refusal::AdvertisedPeer { urls, reason }
    })?;
    url::check_advertisable(&config.advertise_client_urls).map_err(|reason| {
        let urls = url::joined(&config.advertise_client_urls);
        Refusal::AdvertisedClient { urls, reason }
    })
}

fn check_discovery(config: &Config) -> Result<(), Refusal> {
    let discovery = &config.discovery;
    let ways = [
        !config.initial_cluster.is_empty(),
        !config.discovery_srv.is_empty(),
        discovery.is_asked_for(),
    ];
    if ways.into_iter().filter(|is_set| *is_set).count() > 1 {
        return Err(Refusal::SeveralWaysToFound);
    }
    if discovery.token.is_empty() == discovery.is_asked_for() {
        return Err(Refusal::HalfDiscovery);
    }
    if discovery.endpoints.iter().any(|endpoint| endpoint.trim().is_empty()) {
        return Err(Refusal::EmptyEndpoint);
    }
    Ok(())
}

fn held_version(text: &str) -> Result<Option<Version>, Refusal> {
    match text {
        "" => Ok(None),
        "3.5" | "3.6" | "3.7" => Ok(Version::parse(text)),
        _ => Err(Refusal::HeldVersion(text.to_owned())),
    }
}

fn check_times(config: &Config) -> Result<(), Refusal> {
    let (heartbeat, election) = (config.heartbeat_interval_ms, config.election_timeout_ms);
    if heartbeat == 0 {
        return Err(Refusal::NoHeartbeat);
    }
    if election == 0 {
        return Err(Refusal::NoElection);
    }
    if heartbeat.saturating_mul(5) > election {
        return Err(Refusal::ShortElection { election, heartbeat });
    }
    if election > ELECTION_TIMEOUT_MS_MAX {
        return Err(Refusal::LongElection(election));
    }
    Ok(())
}

fn check_quota(config: &Config) -> Result<(), Refusal> {
    for (flag, percent) in [
        ("quota-warning-percent", config.quota_warning_percent),
        ("quota-disarm-percent", config.quota_disarm_percent),
    ] {
        if percent >= 100 {
            return Err(Refusal::Percent { flag, percent });
        }
    }
    let Some(quota) = config.quota_bytes() else { return Ok(()) };
    let headroom = config.quota_headroom_bytes;
    // If the alarm were disarmed before a write fits, the next write would immediately raise it again.
    let level = match config.quota_disarm_percent {
        0 => 0,
        percent => u128::from(quota) * u128::from(percent) / 100,
    };
    if level + u128::from(headroom) >= u128::from(quota) {
        return Err(Refusal::Headroom { headroom });
    }
    Ok(())
}

/// Returns the settings of the audit log, if it is enabled. Other audit log options are refused without `--audit-log`.
fn audit(draft: &Draft) -> Result<Option<audit::Settings>, Refusal> {
    let rules = Rules::parse(&draft.audit_rules)?;
    let rotation = match draft.audit_log_rotation_config_json.as_str() {
        "" => None,
        text => Some(rotation::parse(text).map_err(Refusal::AuditRotation)?),
    };
    let output = match (draft.audit_log.as_str(), rotation) {
        ("", _) => {
            let parts = ["audit-rules", "audit-log-rotation-config-json", "audit-log-overflow"];
            let part = parts.into_iter().find(|part| draft.explicit.contains(*part));
            return part.map_or(Ok(None), |part| Err(Refusal::AuditWithoutLog(part)));
        }
        ("stderr" | "stdout", Some(_)) => return Err(Refusal::AuditRotationWithoutFile),
        ("stderr", None) => Output::Stderr,
        ("stdout", None) => Output::Stdout,
        (path, None) => Output::File(path.to_owned()),
        (path, Some(rotation)) => Output::RotatedFile(path.to_owned(), rotation),
    };
    let overflow = match draft.audit_log_overflow.as_str() {
        "refuse" => Overflow::Refuse,
        _ => Overflow::Drop,
    };
    Ok(Some(audit::Settings { output, rules, overflow }))
}

fn check_tracing(tracing: &Tracing) -> Result<(), Refusal> {
    match (tracing.enabled, tracing.sampling_rate) {
        (true, i64::MIN..0) => Err(Refusal::Tracing("tracing sampling rate must be positive")),
        (true, 1_000_001..) => {
            Err(Refusal::Tracing("tracing sampling rate must be less than 1000000"))
        }
        (false, _) | (true, 0..=1_000_000) => Ok(()),
    }
}

fn check_gates(config: &Config, lines: &mut Vec<Pending>) -> Result<(), Refusal> {
    let checkpoint = config.feature_gates.is_enabled(FeatureGate::LeaseCheckpoint);
    let persist = config.feature_gates.is_enabled(FeatureGate::LeaseCheckpointPersist);
    if checkpoint && !persist {
        lines.push(Pending::configured(log::pending!(
            Warn,
            "Detected that checkpointing is enabled without persistence. Consider enabling feature \
             gate LeaseCheckpointPersist"
        )));
    }
    if persist && !checkpoint {
        return Err(Refusal::PersistWithoutCheckpoint);
    }
    match config.compact_hash_check_time.positive() {
        Some(_) => Ok(()),
        None => Err(Refusal::NoCompactHashCheckTime(config.compact_hash_check_time)),
    }
}

fn check_tls(security: &mut Security, draft: &Draft) -> Result<(), Refusal> {
    let min = tls_version(&draft.tls_min_version)?.unwrap_or_default();
    let max = tls_version(&draft.tls_max_version)?;
    if let Some(max) = max.filter(|max| min > *max) {
        return Err(Refusal::TlsVersions { min, max });
    }
    if min == TlsVersion::Tls13 && !security.cipher_suites.is_empty() {
        return Err(Refusal::SuitesOfTls13);
    }
    (security.tls_min_version, security.tls_max_version) = (min, max);
    Ok(())
}

fn tls_version(name: &str) -> Result<Option<TlsVersion>, Refusal> {
    match name {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(TlsVersion::Tls12)),
        "TLS1.3" => Ok(Some(TlsVersion::Tls13)),
        _ => Err(Refusal::TlsVersion(name.to_owned())),
    }
}

/// Replaces values that stand for the default, and raises values that are too low.
fn settle_defaults(config: &mut Config, lines: &mut Vec<Pending>) {
    let default = Config::default();
    if config.snapshot_count == 0 {
        config.snapshot_count = default.snapshot_count;
    }
    if config.snapshot_catchup_entries == 0 {
        config.snapshot_catchup_entries = default.snapshot_catchup_entries;
    }
    if config.warning_unary_request_duration == SignedDuration::ZERO {
        config.warning_unary_request_duration = default.warning_unary_request_duration;
    }
    let given = config.watch_progress_notify_interval;
    if given > SignedDuration::ZERO && given < PROGRESS_NOTIFY_MIN {
        config.watch_progress_notify_interval = PROGRESS_NOTIFY_MIN;
        lines.push(Pending::configured(log::pending!(
            Warn,
            "adjusting watch progress notify interval to minimum period",
            "min-watch-progress-notify-interval" = PROGRESS_NOTIFY_MIN
        )));
    }
}

fn quoted_list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| go_quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}

/// The reason why the retention of automatic compaction is invalid. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetentionError {
    /// The retention is neither a number nor a duration.
    #[error("error parsing CompactionRetention: {0}")]
    Unreadable(#[from] ParseDurationError),
    /// The retention is a duration, but the mode requires a number of revisions.
    #[error(
        "error parsing CompactionRetention: {} is not a number of revisions",
        go_quote(.0)
    )]
    NotRevisions(String),
}

impl Config {
    /// Returns the retention of automatic compaction; `None` if automatic compaction is disabled.
    ///
    /// A plain number is a number of hours or of revisions, depending on the mode. In revision mode, etcd interprets a
    /// duration as its number of nanoseconds, which is never intended. Quorate refuses a duration.
    ///
    /// # Errors
    ///
    /// The retention is invalid. The server checks the retention when it starts, as etcd does.
    pub fn auto_compaction(&self) -> Result<Option<Retention>, RetentionError> {
        let text = match self.auto_compaction_retention.as_str() {
            "" => "0",
            text => text,
        };
        if let Some(count) = text.parse::<i64>().ok().filter(|count| *count >= 0) {
            return Ok(match self.auto_compaction_mode {
                _ if count == 0 => None,
                CompactionMode::Revision => Some(Retention::Revisions(count)),
                CompactionMode::Periodic => {
                    let secs = count.saturating_mul(3_600);
                    SignedDuration::from_secs(secs).positive().map(Retention::Period)
                }
            });
        }
        let period: SignedDuration = text.parse()?;
        match self.auto_compaction_mode {
            CompactionMode::Periodic => Ok(period.positive().map(Retention::Period)),
            CompactionMode::Revision if period.positive().is_none() => Ok(None),
            CompactionMode::Revision => Err(RetentionError::NotRevisions(text.to_owned())),
        }
    }
}
