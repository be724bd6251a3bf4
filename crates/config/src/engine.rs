//! The flag `--engine`, which selects a database for the data, and the flags that have no meaning with `--engine`.
//!
//! # Invariants
//!
//! * A flag that would have no effect with `--engine` is refused, so that no operator relies on it.
//! * The URL is never printed, because it may contain a password.
//!
//! # Not here
//!
//! The parts of the URL (`quorate_engine::DatabaseUrl`).

use std::collections::BTreeSet;
use std::fmt;

/// The URL of a database. The debug output does not show the URL, because it may contain a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EngineUrl(pub(super) String);

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "***" })
    }
}

impl EngineUrl {
    /// Returns the URL, or `None` if the data is in the member's files.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        Some(&*self.0).filter(|url| !url.is_empty())
    }
}

/// The reason why a flag has no meaning with `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Reason {
    #[error("the data is in the database, not in files")]
    Files,
    #[error(
        "the servers do not elect a leader: the database decides which of them orders the writes"
    )]
    Election,
    #[error("servers find each other in the database")]
    Founding,
    #[error("every server on the database is a member, and there are no other members")]
    Members,
    #[error("all servers read the same data from the database")]
    Comparison,
    #[error("the tables have their own format, which a server migrates when it starts")]
    Version,
    #[error("the engine's compaction steps cannot be configured")]
    Compaction,
    #[error("the engine raises the NOSPACE alarm at the quota, and an operator disarms it")]
    Quota,
    #[error("all gates concern raft members or their files")]
    Gates,
}

/// The flags that have no meaning with `--engine`, and the section of the configuration file that sets some of them.
const MEANINGLESS: &[(&str, Reason)] = &[
    ("data-dir", Reason::Files),
    ("wal-dir", Reason::Files),
    ("snapshot-count", Reason::Files),
    ("snapshot-catchup-entries", Reason::Files),
    ("max-snapshots", Reason::Files),
    ("max-wals", Reason::Files),
    ("backend-bbolt-freelist-type", Reason::Files),
    ("memory-mlock", Reason::Files),
    ("backend-batch-interval", Reason::Files),
    ("backend-batch-limit", Reason::Files),
    ("bootstrap-defrag-threshold-megabytes", Reason::Files),
    ("fence-stalled-disk", Reason::Files),
    ("unsafe-no-fsync", Reason::Files),
    ("initial-election-tick-advance", Reason::Election),
    ("pre-vote", Reason::Election),
    ("initial-cluster", Reason::Founding),
    ("initial-cluster-state", Reason::Founding),
    ("initial-cluster-token", Reason::Founding),
    ("discovery-config", Reason::Founding),
    ("discovery-endpoints", Reason::Founding),
    ("discovery-token", Reason::Founding),
    ("discovery-dial-timeout", Reason::Founding),
    ("discovery-request-timeout", Reason::Founding),
    ("discovery-keepalive-time", Reason::Founding),
    ("discovery-keepalive-timeout", Reason::Founding),
    ("discovery-insecure-transport", Reason::Founding),
    ("discovery-insecure-skip-tls-verify", Reason::Founding),
    ("discovery-cert", Reason::Founding),
    ("discovery-key", Reason::Founding),
    ("discovery-cacert", Reason::Founding),
    ("discovery-user", Reason::Founding),
    ("discovery-password", Reason::Founding),
    ("discovery-fallback", Reason::Founding),
    ("discovery-srv", Reason::Founding),
    ("discovery-srv-name", Reason::Founding),
    ("strict-reconfig-check", Reason::Members),
    ("max-learners", Reason::Members),
    ("force-new-cluster", Reason::Members),
    ("rebuild-corrupt-member", Reason::Comparison),
    ("corrupt-check-time", Reason::Comparison),
    ("compact-hash-check-time", Reason::Comparison),
    ("hold-cluster-version", Reason::Version),
    ("downgrade-check-time", Reason::Version),
    ("compaction-batch-limit", Reason::Compaction),
    ("compaction-sleep-interval", Reason::Compaction),
    ("quota-warning-percent", Reason::Quota),
    ("quota-disarm-percent", Reason::Quota),
    ("feature-gates", Reason::Gates),
];

/// Returns the first of the given flags that has no meaning with `--engine`, with the reason. `--data-dir` has a
/// meaning if certificates are generated, because they are stored in the data directory.
pub(super) fn meaningless(
    given: &BTreeSet<String>,
    has_generated_certificates: bool,
) -> Option<(&'static str, Reason)> {
    let is_used = |flag: &str| flag == "data-dir" && has_generated_certificates;
    let mut refused = MEANINGLESS.iter().copied();
    refused.find(|(flag, _)| given.contains(*flag) && !is_used(flag))
}

#[cfg(test)]
mod tests {
    use super::super::flags::FLAGS;
    use super::*;

    #[test]
    fn the_table_of_flags_contains_every_flag_refused_with_engine() {
        for (name, _) in MEANINGLESS.iter().filter(|(name, _)| *name != "discovery-config") {
            assert!(FLAGS.iter().any(|flag| flag.name == *name), "{name}");
        }
    }

    #[test]
    fn the_engine_url_is_not_printed() {
        let url = EngineUrl("postgres://u:geheim@h/db".to_owned());
        assert_eq!(format!("{url:?}"), "***");
        assert_eq!(format!("{:?}", EngineUrl::default()), "none");
        assert_eq!(url.get(), Some("postgres://u:geheim@h/db"));
    }
}
