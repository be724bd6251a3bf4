//! The bounds of a node's queues and buffers, and its intervals.

/// Proposals that may wait for a leader. Further ones are refused. The caller bounds their bytes.
pub const WAITING_PROPOSALS_MAX: usize = 16_384;

/// Bytes of entries in a leader's log that are not committed or that the leader has not applied.
/// They include entries that other members forward. Beyond the limit, the leader refuses its own
/// proposals and drops forwarded ones.
pub const UNCOMMITTED_BYTES_MAX: u64 = 1 << 30;

/// Bytes of committed entries that a follower has not applied. Beyond the limit, the follower drops
/// appends that would extend its log, as if they had been lost, and the leader sends them again.
/// Uncommitted entries do not count: the leader may need all of them in a follower's log before it
/// can commit the first.
pub const UNAPPLIED_BYTES_MAX: u64 = 256 << 20;

/// Bytes of the log in memory. Beyond the limit, a follower drops appends that would extend its
/// log, whatever it has applied. The limit exceeds the uncommitted entries of a leader, which may
/// need all of them in a follower's log.
pub const LOG_BYTES_MAX: u64 = UNCOMMITTED_BYTES_MAX + (512 << 20);

/// Barriers that may be pending. Further ones are refused. The caller uses one barrier for many
/// readers.
pub const BARRIER_ROUNDS_MAX: usize = 1024;

/// Bytes of committed entries that were returned for applying and are not reported as applied.
pub const APPLYING_BYTES_MAX: u64 = 64 << 20;

/// Largest append message to a peer, in bytes.
pub const APPEND_BYTES_MAX: u64 = 1 << 20;

/// Append messages to one peer that may be unacknowledged.
pub const INFLIGHT_APPENDS_MAX: usize = 512;

/// The in-memory log is compacted after this many applied entries, or after the entries between two
/// snapshots if those are fewer.
pub const LOG_CUT_EVERY: u64 = 100;

/// Ticks after which an unanswered read index request is repeated.
pub const READ_INDEX_RETRY_TICKS: u64 = 5;

/// Ticks between two log lines about messages that the consensus core refuses.
pub const REFUSAL_NOTE_TICKS: u64 = 50;

/// Bytes of appends that are kept until their predecessors arrive.
pub const EARLY_APPENDS_BYTES_MAX: u64 = 16 << 20;

/// Log writes that may be in progress. Beyond the limit, proposals are refused, and appends are
/// dropped as if they had been lost.
pub const WRITES_MAX: usize = 65_536;

/// Bytes of forwarded requests that wait at a leader that is transferring leadership. Further ones
/// are dropped.
pub const FORWARDED_WAITING_BYTES_MAX: u64 = 64 << 20;

/// Membership changes that wait at the leader until the change before them is applied. Further ones
/// are passed to the core, which replaces them by empty entries.
pub const HELD_CHANGES_MAX: usize = 64;
