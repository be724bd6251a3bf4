//! Compaction of the in-memory log: decides which entries are dropped and which are kept for other
//! members.

use bytes::Bytes;
use quorate_raft::{LogIndex, ProgressState, Storage as _, StorageError};

use super::Node;
use crate::limits;

impl Node {
    /// Drops from memory the entries that other members are unlikely to need.
    ///
    /// Entries are returned for applying in groups, and the core counts a group as applied only once the whole group is
    /// applied. The state machine may therefore be ahead of the core, which still reads the entries that it does not
    /// count as applied. The core may also be ahead of the state machine if a snapshot is not installed yet.
    pub(super) fn cut_log(&mut self) {
        let applied = self.applied.min(self.raft.applied_index());
        let (policy, is_alone) = (self.policy, self.is_only_member());
        let before_first = self.raft.storage().first_index().prev();
        // If there are no other members, no entries are sent. A member that joins later starts from a snapshot.
        let mut forgettable = if is_alone { applied } else { policy.forgettable(applied) };
        let step = limits::LOG_CUT_EVERY.min(policy.entry_count.max(1));
        if forgettable < before_first + step {
            forgettable = before_first;
        } else if !is_alone {
            forgettable = forgettable.min(self.wanted_after()).max(before_first);
        }
        let bytes_max = match self.feeds_snapshot(before_first) {
            true => policy.catch_up_bytes.max(policy.transfer_bytes),
            false => policy.catch_up_bytes,
        };
        let storage = self.raft.storage();
        if storage.bytes() > bytes_max {
            // Compact to half of the limit, so that the next compaction is not due immediately.
            let by_bytes = storage.compact_index_for(bytes_max / 2);
            forgettable = forgettable.max(by_bytes.unwrap_or_default().min(applied));
        }
        // The core's log may begin after a snapshot that the state machine has not installed yet. In that case, there
        // are no entries to drop.
        if forgettable > before_first {
            assert!(
                forgettable <= applied,
                "the log is compacted at most up to the applied index: otherwise entries would be dropped \
                 before they are applied"
            );
            // A member that needs dropped entries receives a snapshot, which is created when it is
            // sent, so the recorded snapshot has no data.
            let conf_state = self.raft.configuration().conf_state();
            match self.raft.storage_mut().create_snapshot(applied, conf_state, Bytes::new()) {
                Ok(_) | Err(StorageError::SnapshotOutOfDate) => {}
                Err(error) => unreachable!("applied entries are in the log: {error}"),
            }
            self.raft.compact(forgettable).expect("applied entries are in the log");
        }
    }

    /// Returns the index after which active members still need entries. A silent member whose state is `Probe` does not
    /// count, because it can receive a snapshot when it returns. A member that is receiving a snapshot needs only the
    /// entries after that snapshot.
    fn wanted_after(&self) -> LogIndex {
        let followers = self.raft.progress().into_iter().flatten();
        followers
            .filter(|(id, _)| **id != self.raft.id())
            .filter_map(|(_, progress)| match progress.state {
                ProgressState::Snapshot => Some(progress.pending_snapshot),
                ProgressState::Replicate => Some(progress.match_index),
                ProgressState::Probe => progress.is_recently_active.then_some(progress.match_index),
            })
            .min()
            .unwrap_or(LogIndex::MAX)
    }

    /// Returns whether an active member lacks dropped entries, because it is receiving a snapshot or has not yet
    /// continued from one.
    fn feeds_snapshot(&self, before_first: LogIndex) -> bool {
        self.raft.progress().into_iter().flatten().any(|(id, progress)| {
            let answers = progress.state == ProgressState::Snapshot || progress.is_recently_active;
            *id != self.raft.id() && progress.match_index < before_first && answers
        })
    }
}
