//! Bounds of a node's queues and buffers, and intervals in ticks and entries.

/// Maximum number of proposals that wait for a leader. Further proposals are refused. The caller
/// limits their size.
pub const WAITING_PROPOSALS_MAX: usize = 16_384;

/// Maximum size, in bytes, of the uncommitted or unapplied entries in a leader's log, including entries that other
/// members forwarded.
/// Beyond the limit, the leader refuses its own proposals and drops forwarded proposals.
pub const UNCOMMITTED_BYTES_MAX: u64 = 1 << 30;

/// Maximum size, in bytes, of the committed entries that a follower has not applied. Beyond the limit, the follower
/// drops appends that would extend its log, as if they had been lost, and the leader sends them again. Uncommitted
/// entries do not count: a leader commits entries of earlier terms only together with a later entry of its own term, so
/// the follower may have to accept all of them first.
pub const UNAPPLIED_BYTES_MAX: u64 = 256 << 20;

/// Maximum size of the log in memory, in bytes. Beyond the limit, a follower drops appends that would extend its log,
/// regardless of how much of the log it has applied. This limit exceeds the limit on a leader's uncommitted entries,
/// because a follower may have to store all of these before the leader can commit any of them.
pub const LOG_BYTES_MAX: u64 = UNCOMMITTED_BYTES_MAX + (512 << 20);

/// Maximum number of pending barriers. Further barriers are refused. The caller uses one barrier
/// for many readers.
pub const BARRIER_ROUNDS_MAX: usize = 1024;

/// Maximum size, in bytes, of the committed entries that have been returned for applying but not yet reported as
/// applied.
pub const APPLYING_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of an append message to a peer, in bytes.
pub const APPEND_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of the proposals in one message to the leader, in bytes. A single larger proposal is allowed.
pub const PROPOSE_BYTES_MAX: u64 = APPEND_BYTES_MAX;

/// Maximum number of unacknowledged append messages to one peer.
pub const INFLIGHT_APPENDS_MAX: usize = 512;

/// Maximum size, in bytes, of the entries in unacknowledged append messages to one peer. The append that reaches the
/// limit may exceed it. The transport's queue for a peer must hold more than this: if an append does not fit, it counts
/// as lost, and the entries that are still in the queue are sent again.
pub const INFLIGHT_BYTES_MAX: u64 = 16 << 20;

/// Number of applied entries after which the in-memory log is compacted. If there are fewer entries between snapshots,
/// the smaller number is used.
pub const LOG_CUT_EVERY: u64 = 100;

/// Number of ticks after which an unanswered read index request is repeated.
pub const READ_INDEX_RETRY_TICKS: u64 = 5;

/// Time in milliseconds after which a leader that has asked only some of the voters to confirm a read asks the others
/// too, at the end of the next batch of events. It is measured from the end of the batch after which the read was the
/// oldest one.
pub const READ_CONFIRMATION_MILLIS: u64 = 5;

/// Maximum number of ticks that a follower may process together. Without input, other work that depends on ticks, such
/// as the repetition of a read index request, is late by less than this many intervals.
pub const DEFERRED_TICKS_MAX: u32 = 5;

/// Minimum number of ticks between two log lines about messages that the consensus core refuses.
pub const REFUSAL_NOTE_TICKS: u64 = 50;

/// Maximum size, in bytes, of the early appends, which are kept until their predecessors arrive.
pub const EARLY_APPENDS_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of log writes in progress. Beyond the limit, proposals are refused, and appends
/// are dropped as if they had been lost.
pub const WRITES_MAX: usize = 65_536;

/// Maximum size, in bytes, of the forwarded requests that wait on a leader while it transfers leadership, or on a
/// member without a leader. Further requests are dropped.
pub const FORWARDED_WAITING_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of membership changes that wait on the leader until the previous change is
/// applied. Further changes are passed to the core, which replaces them with empty entries.
pub const HELD_CHANGES_MAX: usize = 64;
