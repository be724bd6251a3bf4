//! When a snapshot is due, and how much of the log stays in memory.

use quorate_raft::LogIndex;

/// How often snapshots are taken, and how far a peer may lag behind and still receive entries from
/// the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// A snapshot is due when more than this many entries were applied since the last one.
    pub entry_count: u64,
    /// Entries that stay in memory behind the applied index.
    pub catch_up_count: u64,
    /// Maximum bytes of those entries. Beyond it entries are dropped, even if there are fewer than
    /// `catch_up_count`.
    pub catch_up_bytes: u64,
    /// Maximum bytes of those entries while a member receives a snapshot and until it continues
    /// from the log. If more than this is written during the transfer of a snapshot, the leader
    /// sends one snapshot after the other and the member never catches up.
    pub transfer_bytes: u64,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        Self {
            entry_count: 10_000,
            catch_up_count: 5_000,
            catch_up_bytes: 64 << 20,
            transfer_bytes: 512 << 20,
        }
    }
}

impl SnapshotPolicy {
    pub(crate) const fn is_due(&self, applied: LogIndex, last_snapshot: LogIndex) -> bool {
        applied.saturating_distance_from(last_snapshot) > self.entry_count
    }

    /// The last entry that may be dropped from the in-memory log.
    pub(crate) const fn forgettable(&self, applied: LogIndex) -> LogIndex {
        applied.saturating_sub(self.catch_up_count)
    }
}
