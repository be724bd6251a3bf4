//! What a request may be, and how long it may take.

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
    /// Bytes under the quota that writes which grow the backend leave to those that make room.
    pub quota_headroom: u64,
    /// What hashing a password costs, as bcrypt counts.
    pub bcrypt_cost: u32,
    /// How long followers wait for a leader before they elect another.
    pub election_timeout: Duration,
    /// Whether changes of the membership that could cost the quorum are refused.
    pub checks_reconfigurations: bool,
    /// The version that this member keeps its cluster at, instead of its own.
    pub held_version: Option<Version>,
    /// How often a leader looks whether a downgrade is done; `None` for never.
    pub downgrade_check_interval: Option<Duration>,
    /// Carrying out a write, or answering a read, for longer is worth a warning.
    pub slow_apply: Duration,
    /// Answering a unary request for longer is worth a warning.
    pub slow_unary: Duration,
    /// Whether lease revocations may go on when other requests are refused (`PriorityRequest`).
    pub revocations_first: bool,
    /// Whether a lease that is known here is renewed at once (`FastLeaseKeepAlive`).
    pub renews_at_once: bool,
    /// Whether the hashes of compactions are compared when this member leads (`CompactHashCheck`).
    pub compares_compactions: bool,
    /// Whether this member stops and fetches its state anew when a quorum holds something else.
    pub rebuilds_itself: bool,
    /// Whether the health service says so when space is given back (`StopGRPCServiceOnDefrag`).
    pub unhealthy_on_defragmentation: bool,
}
