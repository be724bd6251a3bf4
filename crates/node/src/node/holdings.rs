//! What a node holds at this moment, for whoever shows it beside its bounds (`limits`).

use super::Node;

impl Node {
    /// Bytes of the log held in memory, what is being written included.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.raft.storage().bytes() + self.persistence.writing_bytes()
    }

    /// Bytes of entries that are committed, written to the log and not applied here yet.
    #[must_use]
    pub fn unapplied_bytes(&self) -> u64 {
        self.raft.storage().bytes_between(self.raft.applied_index(), self.raft.commit_index())
    }

    /// Bytes of entries that this leader has taken on and not applied yet.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.raft.uncommitted_bytes()
    }

    /// Bytes of appends that are kept until those before them come.
    #[must_use]
    pub const fn early_appends_bytes(&self) -> u64 {
        self.early_appends.bytes()
    }

    /// How many membership changes wait for the one before them.
    #[must_use]
    pub fn held_change_count(&self) -> usize {
        self.held_changes.len()
    }
}
