//! Decides when a snapshot is due and how much of the log stays in memory.

use quorate_raft::LogIndex;

/// How often snapshots are taken, and how far a peer may lag behind and still receive entries from
/// the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Number of entries between snapshots. A snapshot is due when the number of entries applied since the last
    /// snapshot exceeds this number.
    pub entry_count: u64,
    /// Number of applied entries that stay in memory, counted back from the applied index.
    pub catch_up_count: u64,
    /// Maximum size, in bytes, of the applied entries that stay in memory. Beyond this limit, entries are dropped, even
    /// if there are fewer than `catch_up_count`.
    pub catch_up_bytes: u64,
    /// Maximum size, in bytes, of the applied entries that stay in memory from the time a member receives a snapshot
    /// until it continues from the log. If more entries than that are written while a snapshot is being transferred,
    /// the leader sends one snapshot after another, and the member never catches up.
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

    /// Returns the index of the last entry that may be dropped from the in-memory log.
    pub(crate) const fn forgettable(&self, applied: LogIndex) -> LogIndex {
        applied.saturating_sub(self.catch_up_count)
    }
}
