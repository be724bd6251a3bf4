//! A configuration while it is read: every value as given, checked only for its type.

use std::collections::BTreeSet;

use super::absent::Demand;
use super::config::Config;
use super::security::TlsVersion;

/// The default that etcd's `--help` shows and that scripts pass.
const DEFAULT_ROTATION: &str =
    r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#;

/// What flags, environment and file write into. [`super::validate`] converts it into a [`Config`].
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The values that need no further checks.
    pub(super) config: Config,
    /// The configuration file, empty for none.
    pub(super) config_file: String,
    /// Whether `--version` is set.
    pub(super) print_version: bool,
    /// `new` or `existing`, once checked.
    pub(super) initial_cluster_state: String,
    /// `exit` or `proxy`; only `exit` is still supported.
    pub(super) discovery_fallback: String,
    /// A version of two numbers, or empty.
    pub(super) hold_cluster_version: String,
    /// The name of a version of TLS, once checked.
    pub(super) tls_min_version: String,
    /// The name of a version of TLS, or empty.
    pub(super) tls_max_version: String,
    /// `periodic` or `revision`, once checked.
    pub(super) auto_compaction_mode: String,
    /// `array`, or anything else for the map.
    pub(super) backend_freelist_type: String,
    /// `extensive`, or anything else for basic.
    pub(super) metrics: String,
    /// The name of the logger, once checked `zap`.
    pub(super) logger: String,
    /// The name of a level, once checked.
    pub(super) log_level: String,
    /// `json` or `console`, once checked.
    pub(super) log_format: String,
    /// Names of outputs and paths.
    pub(super) log_outputs: Vec<String>,
    /// Whether the log file is rotated.
    pub(super) enable_log_rotation: bool,
    /// When the log file is rotated, and what is kept, as JSON.
    pub(super) log_rotation_config_json: String,
    /// The destination of the audit log; empty for none.
    pub(super) audit_log: String,
    /// When the audit log file is rotated, as JSON; empty for never.
    pub(super) audit_log_rotation_config_json: String,
    /// The calls that the audit log records.
    pub(super) audit_rules: String,
    /// `drop` or `refuse`.
    pub(super) audit_log_overflow: String,
    /// Stages of the removal of the v2 store; accepted without effect.
    pub(super) v2_deprecation: Vec<String>,
    /// The names of the flags that were set explicitly.
    pub(super) explicit: BTreeSet<String>,
    /// The removed flags that were set.
    pub(super) demands: Vec<Demand>,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            config: Config::default(),
            config_file: String::new(),
            print_version: false,
            initial_cluster_state: "new".to_owned(),
            discovery_fallback: "exit".to_owned(),
            hold_cluster_version: String::new(),
            tls_min_version: TlsVersion::default().name().to_owned(),
            tls_max_version: String::new(),
            auto_compaction_mode: "periodic".to_owned(),
            backend_freelist_type: String::new(),
            metrics: "basic".to_owned(),
            logger: "zap".to_owned(),
            log_level: "info".to_owned(),
            log_format: "json".to_owned(),
            log_outputs: vec!["default".to_owned()],
            enable_log_rotation: false,
            log_rotation_config_json: DEFAULT_ROTATION.to_owned(),
            audit_log: String::new(),
            audit_log_rotation_config_json: String::new(),
            audit_rules: String::new(),
            audit_log_overflow: "drop".to_owned(),
            v2_deprecation: Vec::new(),
            explicit: BTreeSet::new(),
            demands: Vec::new(),
        }
    }
}
