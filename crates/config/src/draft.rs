//! A configuration that is being read. Every value is stored as given, and only its type has been checked.

use std::collections::BTreeSet;

use super::absent::Demand;
use super::config::Config;
use super::security::TlsVersion;

/// The default value shown by etcd's `--help`. It must be accepted, because scripts pass it unchanged.
const DEFAULT_ROTATION: &str =
    r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#;

/// The values from flags, environment and file. [`super::validate`] checks them and converts them into a [`Config`].
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The values that already have the types of the configuration. [`super::validate`] still checks some of them.
    pub(super) config: Config,
    /// The path of the configuration file; empty if there is none.
    pub(super) config_file: String,
    /// Whether `--version` is set.
    pub(super) print_version: bool,
    /// The initial cluster state: `new` or `existing`, if valid.
    pub(super) initial_cluster_state: String,
    /// The action if discovery fails: `exit` or `proxy`. Only `exit` is still supported.
    pub(super) discovery_fallback: String,
    /// The version at which the cluster version is held, as `MAJOR.MINOR`; empty if not set.
    pub(super) hold_cluster_version: String,
    /// The name of the minimum TLS version, if valid.
    pub(super) tls_min_version: String,
    /// The name of the maximum TLS version; empty if not set.
    pub(super) tls_max_version: String,
    /// The mode of automatic compaction: `periodic` or `revision`, if valid.
    pub(super) auto_compaction_mode: String,
    /// The type of the free list: `array` for a sorted list; any other value for an index by span length.
    pub(super) backend_freelist_type: String,
    /// The level of detail of the metrics: `extensive`; any other value stands for `basic`.
    pub(super) metrics: String,
    /// The name of the logger; only `zap` is valid.
    pub(super) logger: String,
    /// The name of the log level, if valid.
    pub(super) log_level: String,
    /// The format of log lines: `json` or `console`, if valid.
    pub(super) log_format: String,
    /// The names or paths of the log outputs.
    pub(super) log_outputs: Vec<String>,
    /// Whether the log file is rotated.
    pub(super) enable_log_rotation: bool,
    /// The rotation settings of the log file, as JSON.
    pub(super) log_rotation_config_json: String,
    /// The destination of the audit log; empty for none.
    pub(super) audit_log: String,
    /// The rotation settings of the audit log file, as JSON; empty for no rotation.
    pub(super) audit_log_rotation_config_json: String,
    /// The rules that select the calls for the audit log.
    pub(super) audit_rules: String,
    /// The handling of calls while the audit log falls behind: `drop` or `refuse`.
    pub(super) audit_log_overflow: String,
    /// The values of `--v2-deprecation`, which are accepted but have no effect.
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
