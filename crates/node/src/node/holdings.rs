//! The current sizes of a node's queues and buffers, for metrics; `limits` has their bounds.

use super::Node;

impl Node {
    /// Bytes of the log in memory, including entries that are being written.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.raft.storage().bytes() + self.persistence.writing_bytes()
    }

    /// Bytes of entries that are committed and written, but not applied by this member.
    #[must_use]
    pub fn unapplied_bytes(&self) -> u64 {
        self.raft.storage().bytes_between(self.raft.applied_index(), self.raft.commit_index())
    }

    /// Bytes of entries that this leader has accepted and not applied yet.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.raft.uncommitted_bytes()
    }

    /// Bytes of appends that are kept until their predecessors arrive.
    #[must_use]
    pub const fn early_appends_bytes(&self) -> u64 {
        self.early_appends.bytes()
    }

    /// The number of membership changes that wait for the change before them.
    #[must_use]
    pub fn held_change_count(&self) -> usize {
        self.held_changes.len()
    }
}
