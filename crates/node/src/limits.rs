//! The bounds of what a node holds, and its pace.

/// Proposals that may wait for a leader. Further ones are refused. Their bytes are bounded by whoever hands them in.
pub const WAITING_PROPOSALS_MAX: usize = 16_384;

/// Entries in a leader's log that are not committed, or not applied there yet, its own and those that other members
/// pass on to it, in bytes. Further ones are refused, or dropped where they came from another member.
pub const UNCOMMITTED_BYTES_MAX: u64 = 1 << 30;

/// Committed entries that a follower has not applied, in bytes, from which on it drops appends that would make its
/// log longer, as if they had been lost on their way. The leader sends them again. Entries that are not committed do not
/// count: the leader may need all of them in a follower's log before it can commit the first.
pub const UNAPPLIED_BYTES_MAX: u64 = 256 << 20;

/// Log in memory from which on a follower drops such appends whatever it has applied. More than a leader has
/// uncommitted, which it may need in a follower's log.
pub const LOG_BYTES_MAX: u64 = UNCOMMITTED_BYTES_MAX + (512 << 20);

/// Barriers that may be under way. Further ones are refused. The caller makes one for many readers.
pub const BARRIER_ROUNDS_MAX: usize = 1024;

/// Committed entries handed out for applying and not yet reported, in bytes.
pub const APPLYING_BYTES_MAX: u64 = 64 << 20;

/// Largest append message to a peer, in bytes.
pub const APPEND_BYTES_MAX: u64 = 1 << 20;

/// Append messages to one peer without an answer.
pub const INFLIGHT_APPENDS_MAX: usize = 512;

/// The in-memory log is cut back every time this many more entries have been applied, or as many as are between two
/// snapshots if these are fewer.
pub const LOG_CUT_EVERY: u64 = 100;

/// Ticks after which an unanswered request for a read index is repeated.
pub const READ_INDEX_RETRY_TICKS: u64 = 5;

/// Ticks between two lines about messages that the consensus core refuses.
pub const REFUSAL_NOTE_TICKS: u64 = 50;

/// Appends that came before those they follow, kept in the hope of these, in bytes.
pub const EARLY_APPENDS_BYTES_MAX: u64 = 16 << 20;

/// Writes of the log that may be under way. Further proposals are refused, and appends dropped, as if they had been
/// lost.
pub const WRITES_MAX: usize = 65_536;

/// Requests of other members that wait at a leader that hands over, in bytes. Further ones are dropped.
pub const FORWARDED_WAITING_BYTES_MAX: u64 = 64 << 20;

/// Membership changes that wait at the leader for the one before them to be applied. Further ones are left to
/// the core, which makes nothing of them.
pub const HELD_CHANGES_MAX: usize = 64;
