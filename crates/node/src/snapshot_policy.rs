//! When a snapshot is due, and how much of the log stays in memory.

use quorate_raft::LogIndex;

/// How often snapshots are taken and how far behind a peer may be and still be fed from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// A snapshot is due when more than this many entries were applied since the last.
    pub entry_count: u64,
    /// Entries kept in memory behind the applied index.
    pub catch_up_count: u64,
    /// Bytes those entries may take. Beyond it they are dropped, however few they are.
    pub catch_up_bytes: u64,
    /// Bytes they may take while a member is sent a snapshot and has not gone on from it. Whoever is written to faster
    /// than this in the time that a snapshot takes sends one after the other, and the member never comes back.
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

    /// The last entry that the in-memory log may forget.
    pub(crate) const fn forgettable(&self, applied: LogIndex) -> LogIndex {
        applied.saturating_sub(self.catch_up_count)
    }
}
