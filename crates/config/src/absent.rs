//! The flags that operators of etcd know and this program does not have, each with the reason.
//!
//! Two kinds, and how each is met on the command line, in the environment and in the file:
//!
//! * A **feature** that is not there yet is refused on the command line, as any unknown flag is. Elsewhere, where
//!   etcd too passes over what it does not know, a warning says so.
//! * A flag **of etcd 3.4 to 3.6** that 3.7 dropped is met like a feature, and its successor is named.
//!
//! A value that asks for nothing (`--enable-distributed-tracing=false`, an empty text) is accepted
//! for the first: the operator gets what it says.
//!
//! # Invariants
//!
//! * No value is ever printed: it may be a secret.

use std::fmt;

use self::Reason::{Dropped, Feature, Replaced};
use quorate_gotext::number::parse_bool;

use super::yaml::YamlValue;

/// Why there is no such flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It belongs to a feature, named here, that is not there yet.
    Feature(&'static str),
    /// etcd 3.7 has this instead.
    Replaced(&'static str),
    /// etcd 3.7 does without, for this reason.
    Dropped(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LACKS: &str = "not supported by this version of Quorate";
        match self {
            Self::Feature(what) => write!(f, "{LACKS}: {what}"),
            Self::Replaced(by) => {
                write!(f, "no flag of etcd 3.7 any more, which has --{by} instead")?;
                match find(by) {
                    Some(_) => write!(f, "; that is {LACKS}"),
                    None => Ok(()),
                }
            }
            Self::Dropped(why) => write!(f, "no flag of etcd 3.7 any more: {why}"),
        }
    }
}

/// A flag that is not there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    /// Without dashes.
    pub(super) name: &'static str,
    /// Why.
    pub(super) reason: Reason,
    /// Whether the flag stands without a value.
    pub(super) is_bool: bool,
    /// Values, besides the empty one and false, that ask for nothing.
    idle: &'static [&'static str],
}

impl Absent {
    /// Whether this text asks for what is there anyway.
    pub(super) fn is_idle(&self, text: &str) -> bool {
        let says_nothing = if self.is_bool {
            parse_bool(text) == Some(false)
        } else {
            text.is_empty() || self.idle.contains(&text)
        };
        says_nothing && self.is_of_this_release()
    }

    /// The same for a value of the file.
    fn is_idle_value(&self, value: &YamlValue) -> bool {
        let says_nothing = value.is_empty()
            || match value {
                YamlValue::Text(text) | YamlValue::Number(text) => {
                    self.idle.contains(&text.as_str())
                }
                YamlValue::Null | YamlValue::Bool(_) | YamlValue::List(_) | YamlValue::Map(_) => {
                    false
                }
            };
        says_nothing && self.is_of_this_release()
    }

    /// Whether etcd 3.7 has the flag. It refuses the others whatever their value.
    pub(super) fn is_of_this_release(&self) -> bool {
        match self.reason {
            Feature(_) => true,
            Replaced(_) | Dropped(_) => false,
        }
    }
}

/// What was asked for and is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// The setting as the operator wrote it: a flag, a variable or a key.
    pub(super) setting: String,
    pub(super) reason: Reason,
}

/// One line for each reason, with all settings that it keeps from being honoured.
pub(super) fn told(demands: &[Demand]) -> Vec<String> {
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

/// The flag of that name.
pub(super) fn find(name: &str) -> Option<&'static Absent> {
    ABSENT.iter().find(|absent| absent.name == name)
}

/// What a file asks for that is not there: by the names of flags, which etcd reads whatever their case.
pub(super) fn in_file<'a>(
    top: impl IntoIterator<Item = (&'a String, &'a YamlValue)>,
) -> Vec<Demand> {
    let mut demands = Vec::new();
    for (key, node) in top {
        let found = ABSENT.iter().find(|absent| absent.name.eq_ignore_ascii_case(key));
        if let Some(absent) = found.filter(|absent| !absent.is_idle_value(node)) {
            demands.push(Demand { setting: key.clone(), reason: absent.reason });
        }
    }
    demands
}

const fn text(name: &'static str, reason: Reason) -> Absent {
    Absent { name, reason, is_bool: false, idle: &[] }
}

const fn switch(name: &'static str, reason: Reason) -> Absent {
    Absent { name, reason, is_bool: true, idle: &[] }
}

impl Absent {
    const fn idle(self, idle: &'static [&'static str]) -> Self {
        Self { idle, ..self }
    }
}

const TRACING: Reason = Feature("requests are not traced");
const V2: Reason = Dropped("there is no v2 API");
const PROXY: Reason = Dropped("there is no v2 proxy");

/// Every such flag.
pub(super) static ABSENT: &[Absent] = &[
    text("distributed-tracing-address", TRACING).idle(&["localhost:4317"]),
    text("distributed-tracing-instance-id", TRACING),
    text("distributed-tracing-sampling-rate", TRACING).idle(&["0"]),
    text("distributed-tracing-service-name", TRACING).idle(&["etcd"]),
    switch("enable-distributed-tracing", TRACING),
    // Flags of etcd 3.4 to 3.6.
    switch("debug", Replaced("log-level")),
    text("discovery", Replaced("discovery-endpoints")),
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
        Dropped("it let members of etcd 3.4 join a cluster of 3.5"),
    ),
    text("proxy", PROXY),
    text("proxy-dial-timeout", PROXY),
    text("proxy-failure-wait", PROXY),
    text("proxy-read-timeout", PROXY),
    text("proxy-refresh-interval", PROXY),
    text("proxy-write-timeout", PROXY),
];
