//! The limits of requests: sizes, timeouts and intervals.

use std::time::Duration;

use quorate_state::versions::Version;

/// The limits that flags set.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Encoded size of a proposal.
    pub request_bytes_max: usize,
    /// Operations of a transaction.
    pub txn_ops_max: usize,
    /// How long a request may wait for the log, or a read for its barrier.
    pub request_timeout: Duration,
    /// How long a request may wait for the applier to catch up.
    pub apply_timeout: Duration,
    /// Time between progress notifications of watchers.
    pub progress_interval: Duration,
    /// Backend size limit in bytes as status reports it; negative for none.
    pub quota_configured: i64,
    /// Bytes below the quota that are reserved for writes that free space.
    pub quota_headroom: u64,
    /// The bcrypt cost of a password hash.
    pub bcrypt_cost: u32,
    /// How long followers wait for a leader before they elect another.
    pub election_timeout: Duration,
    /// Whether changes of the membership that could cost the quorum are refused.
    pub checks_reconfigurations: bool,
    /// The version at which this member keeps its cluster, instead of its own version.
    pub held_version: Option<Version>,
    /// The interval at which a leader checks whether a downgrade is finished; `None` for never.
    pub downgrade_check_interval: Option<Duration>,
    /// The duration of a write's application, or of a read, above which a warning is logged.
    pub slow_apply: Duration,
    /// The duration of a unary request above which a warning is logged.
    pub slow_unary: Duration,
    /// Whether lease revocations are accepted while other requests are refused (`PriorityRequest`).
    pub revocations_first: bool,
    /// Whether a lease that this member has is renewed without a wait for committed entries (`FastLeaseKeepAlive`).
    pub renews_at_once: bool,
    /// Whether the hashes of compactions are compared when this member leads (`CompactHashCheck`).
    pub compares_compactions: bool,
    /// Whether this member stops and fetches its state again if it differs from the state of a quorum.
    pub rebuilds_itself: bool,
    /// Whether the health service reports not serving during a defragmentation (`StopGRPCServiceOnDefrag`).
    pub unhealthy_on_defragmentation: bool,
}
