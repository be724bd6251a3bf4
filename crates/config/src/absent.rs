//! Flags of etcd 3.4 to 3.6 that etcd 3.7 removed, each with the reason.
//!
//! On the command line, such a flag is refused like any unknown flag, and the error names its replacement or the reason
//! for its removal. In the environment and in the file, where etcd ignores unknown settings, such a flag is ignored
//! with a warning, unless it decides which cluster the member joins: then it is refused there, too.
//!
//! # Invariants
//!
//! * No value is ever printed, because it may be a secret.

use std::fmt;

use self::Reason::{Dropped, Replaced};

/// The reason why a flag does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// etcd 3.7 replaced the flag with this one.
    Replaced(&'static str),
    /// etcd 3.7 removed the flag for this reason.
    Dropped(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replaced(by) => {
                write!(f, "not a flag of etcd 3.7; use --{by}")
            }
            Self::Dropped(why) => write!(f, "not a flag of etcd 3.7: {why}"),
        }
    }
}

/// A removed flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    /// The name without dashes.
    pub(super) name: &'static str,
    /// The reason for the removal.
    pub(super) reason: Reason,
    /// Whether the flag takes no value.
    pub(super) is_bool: bool,
    /// Whether the flag decides which cluster the member joins. If it were ignored, the member would found a cluster of
    /// its own. The flag is therefore refused wherever it has a value.
    pub(super) decides_cluster: bool,
}

impl Absent {
    const fn decides_cluster(self) -> Self {
        Self { decides_cluster: true, ..self }
    }
}

/// A removed flag that the operator has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// The setting as the operator wrote it: a flag, a variable or a key in the file.
    pub(super) setting: String,
    pub(super) reason: Reason,
}

/// Returns one line for each reason. The line lists all settings that are refused or ignored for this reason.
pub(super) fn lines(demands: &[Demand]) -> Vec<String> {
    let mut reasons: Vec<Reason> = Vec::new();
    for demand in demands {
        if !reasons.contains(&demand.reason) {
            reasons.push(demand.reason);
        }
    }
    let line = |reason: &Reason| {
        let of_reason = demands.iter().filter(|demand| demand.reason == *reason);
        let settings: Vec<&str> = of_reason.map(|demand| demand.setting.as_str()).collect();
        format!("{}: {reason}", settings.join(", "))
    };
    reasons.iter().map(line).collect()
}

/// Returns the removed flag with this name.
pub(super) fn find(name: &str) -> Option<&'static Absent> {
    ABSENT.iter().find(|absent| absent.name == name)
}

/// Returns the removed flag with this key in a file. etcd ignores the case of keys in files.
pub(super) fn of_key(key: &str) -> Option<&'static Absent> {
    ABSENT.iter().find(|absent| absent.name.eq_ignore_ascii_case(key))
}

const fn text(name: &'static str, reason: Reason) -> Absent {
    Absent { name, reason, is_bool: false, decides_cluster: false }
}

const fn switch(name: &'static str, reason: Reason) -> Absent {
    Absent { name, reason, is_bool: true, decides_cluster: false }
}

const V2: Reason = Dropped("there is no v2 API");
const PROXY: Reason = Dropped("there is no v2 proxy");

/// All removed flags.
pub(super) static ABSENT: &[Absent] = &[
    switch("debug", Replaced("log-level")),
    text("discovery", Replaced("discovery-endpoints")).decides_cluster(),
    text("discovery-proxy", Dropped("there is no v2 discovery")),
    switch("enable-v2", V2),
    text("experimental-backend-bbolt-freelist-type", Replaced("backend-bbolt-freelist-type")),
    text(
        "experimental-bootstrap-defrag-threshold-megabytes",
        Replaced("bootstrap-defrag-threshold-megabytes"),
    ),
    switch(
        "experimental-compact-hash-check-enabled",
        Replaced("feature-gates=CompactHashCheck=true"),
    ),
    text("experimental-compact-hash-check-time", Replaced("compact-hash-check-time")),
    text("experimental-compaction-batch-limit", Replaced("compaction-batch-limit")),
    text("experimental-compaction-sleep-interval", Replaced("compaction-sleep-interval")),
    text("experimental-corrupt-check-time", Replaced("corrupt-check-time")),
    text("experimental-distributed-tracing-address", Replaced("distributed-tracing-address")),
    text(
        "experimental-distributed-tracing-instance-id",
        Replaced("distributed-tracing-instance-id"),
    ),
    text(
        "experimental-distributed-tracing-sampling-rate",
        Replaced("distributed-tracing-sampling-rate"),
    ),
    text(
        "experimental-distributed-tracing-service-name",
        Replaced("distributed-tracing-service-name"),
    ),
    text("experimental-downgrade-check-time", Replaced("downgrade-check-time")),
    switch("experimental-enable-distributed-tracing", Replaced("enable-distributed-tracing")),
    switch("experimental-enable-lease-checkpoint", Replaced("feature-gates=LeaseCheckpoint=true")),
    switch(
        "experimental-enable-lease-checkpoint-persist",
        Replaced("feature-gates=LeaseCheckpointPersist=true"),
    ),
    text("experimental-enable-v2v3", V2),
    switch(
        "experimental-initial-corrupt-check",
        Replaced("feature-gates=InitialCorruptCheck=true"),
    ),
    text("experimental-max-learners", Replaced("max-learners")),
    switch("experimental-memory-mlock", Replaced("memory-mlock")),
    switch(
        "experimental-peer-skip-client-san-verification",
        Replaced("peer-skip-client-san-verification"),
    ),
    text("experimental-snapshot-catchup-entries", Replaced("snapshot-catchup-entries")),
    switch(
        "experimental-stop-grpc-service-on-defrag",
        Replaced("feature-gates=StopGRPCServiceOnDefrag=true"),
    ),
    switch(
        "experimental-txn-mode-write-with-shared-buffer",
        Replaced("feature-gates=TxnModeWriteWithSharedBuffer=true"),
    ),
    text("experimental-warning-apply-duration", Replaced("warning-apply-duration")),
    text("experimental-warning-unary-request-duration", Replaced("warning-unary-request-duration")),
    text("experimental-watch-progress-notify-interval", Replaced("watch-progress-notify-interval")),
    switch("initial-corrupt-check", Replaced("feature-gates=InitialCorruptCheck=true")),
    text("log-output", Replaced("log-outputs")),
    text("log-package-levels", Replaced("log-level")),
    switch(
        "next-cluster-version-compatible",
        Dropped("it allowed etcd 3.4 members to join an etcd 3.5 cluster"),
    ),
    text("proxy", PROXY),
    text("proxy-dial-timeout", PROXY),
    text("proxy-failure-wait", PROXY),
    text("proxy-read-timeout", PROXY),
    text("proxy-refresh-interval", PROXY),
    text("proxy-write-timeout", PROXY),
];
