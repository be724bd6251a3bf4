//! Limits on requests: sizes, timeouts and intervals.

use std::time::Duration;

use quorate_state::versions::Version;

/// The limits set by flags.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum size of an encoded proposal, in bytes.
    pub request_bytes_max: usize,
    /// Maximum number of operations in a transaction.
    pub txn_ops_max: usize,
    /// Maximum time that a write waits for its outcome, or a read for its read barrier.
    pub request_timeout: Duration,
    /// Maximum time that a request waits for the applier to catch up.
    pub apply_timeout: Duration,
    /// Interval between progress notifications to watchers.
    pub progress_interval: Duration,
    /// Size limit of the backend in bytes, as reported in status responses. Negative if there is no limit.
    pub quota_configured: i64,
    /// The part of the quota, in bytes, that is reserved for writes that free space.
    pub quota_headroom: u64,
    /// The bcrypt cost of a password hash.
    pub bcrypt_cost: u32,
    /// Time that a follower waits for a leader before it starts an election.
    pub election_timeout: Duration,
    /// Whether membership changes that could cost the cluster its quorum are refused.
    pub checks_reconfigurations: bool,
    /// The older version at which an operator holds the cluster version (`--hold-cluster-version`), if any.
    pub held_version: Option<Version>,
    /// Interval at which a leader checks whether a downgrade is finished; `None` for never.
    pub downgrade_check_interval: Option<Duration>,
    /// Duration above which a warning is logged for a read, or for applying a write.
    pub slow_apply: Duration,
    /// Duration above which a warning is logged for a unary request.
    pub slow_unary: Duration,
    /// Whether lease revocations are accepted while other requests are refused (`PriorityRequest`).
    pub revocations_first: bool,
    /// Whether a lease that exists on this member is renewed without waiting for committed entries
    /// (`FastLeaseKeepAlive`).
    pub renews_at_once: bool,
    /// Whether this member, while it leads, compares the hashes that the members compute at each compaction
    /// (`CompactHashCheck`).
    pub compares_compactions: bool,
    /// Whether this member stops and fetches its state again if its state differs from the state of a quorum.
    pub rebuilds_itself: bool,
    /// Whether the health service reports "not serving" during a defragmentation (`StopGRPCServiceOnDefrag`).
    pub unhealthy_on_defragmentation: bool,
}
