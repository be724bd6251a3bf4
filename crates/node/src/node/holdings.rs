//! Current sizes of a node's queues and buffers, for metrics. The module `limits` defines their
//! bounds.

use super::Node;

impl Node {
    /// Returns the size in bytes of the log in memory, including entries that are being written.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.raft.storage().bytes() + self.persistence.writing_bytes()
    }

    /// Returns the size in bytes of the entries that are committed and written but not yet applied on this member.
    #[must_use]
    pub fn unapplied_bytes(&self) -> u64 {
        self.raft.storage().bytes_between(self.raft.applied_index(), self.raft.commit_index())
    }

    /// Returns the size in bytes of the entries that this leader has accepted but not yet applied.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.raft.uncommitted_bytes()
    }

    /// Returns the size in bytes of the appends that are kept until their predecessors arrive.
    #[must_use]
    pub const fn early_appends_bytes(&self) -> u64 {
        self.early_appends.bytes()
    }

    /// Returns the number of membership changes that wait for the previous change.
    #[must_use]
    pub fn held_change_count(&self) -> usize {
        self.held_changes.len()
    }
}
