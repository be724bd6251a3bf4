//! Cutting the log in memory: which entries are dropped, and which are kept for members that still need them.

use bytes::Bytes;
use quorate_raft::{LogIndex, ProgressState, Storage as _, StorageError};

use super::Node;
use crate::limits;

impl Node {
    /// Drops entries from memory that no member is likely to ask for.
    ///
    /// Entries are handed out for applying in groups, and consensus counts a group as applied when all of it is: the
    /// state machine may be ahead of that. Consensus still reads the entries that it does not count yet. It may be
    /// ahead of the state machine too, at a snapshot that is still to be installed.
    pub(super) fn cut_log(&mut self) {
        let applied = self.applied.min(self.raft.applied_index());
        let (policy, is_alone) = (self.policy, self.is_sole_voter());
        let before_first = self.raft.storage().first_index().prev();
        // A lone voter has nobody to feed. Who joins it later starts from a snapshot.
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
        let storage = self.raft.storage_mut();
        if storage.bytes() > bytes_max {
            // Down to half of what may be held, so that the next cut is not at once.
            let by_bytes = storage.compact_index_for(bytes_max / 2);
            forgettable = forgettable.max(by_bytes.unwrap_or_default().min(applied));
        }
        // The core's log may have begun anew at a snapshot that the state machine has not reached.
        if forgettable > before_first {
            assert!(
                forgettable <= applied,
                "the log is compacted up to the applied index at most: what follows has still to be applied"
            );
            // Who needs what is forgotten is sent a snapshot, which is made when it is sent.
            match storage.create_snapshot(applied, self.conf_state.clone(), Bytes::new()) {
                Ok(_) | Err(StorageError::SnapshotOutOfDate) => {}
                Err(error) => unreachable!("what is applied is in the log: {error}"),
            }
            self.raft.compact(forgettable).expect("applied entries are in the log");
        }
    }

    /// The last entry that no member which takes part is still to be sent. Those that are silent may be
    /// sent a snapshot when they come back; those that are being sent one go on after it.
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

    /// Whether somebody who answers lacks what is forgotten: he is being sent a snapshot, or has yet to go on from it.
    fn feeds_snapshot(&self, before_first: LogIndex) -> bool {
        self.raft.progress().into_iter().flatten().any(|(id, progress)| {
            let answers = progress.state == ProgressState::Snapshot || progress.is_recently_active;
            *id != self.raft.id() && progress.match_index < before_first && answers
        })
    }
}
