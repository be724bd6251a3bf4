//! Snapshots for followers that need compacted entries (Raft thesis, chapter 5).
//!
//! The core decides when a snapshot is needed and at which index. The application transfers and
//! installs the state machine image. During the transfer, the follower receives no entries.

use crate::confchange;
use crate::entry::MemberId;
use crate::error::StepError;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::progress::ProgressState;
use crate::raft::Raft;
use crate::state::{Role, Snapshot};
use crate::storage::{Storage, StorageError};

/// The leader's side of a snapshot transfer.
impl<S: Storage> Raft<S> {
    /// Sends a snapshot to a follower whose next entries are compacted. Returns whether it sent
    /// one.
    pub(crate) fn send_snapshot(&mut self, to: MemberId) -> bool {
        let id = self.config.id;
        let Some(progress) = self.tracker.progress.get_mut(&to) else { return false };
        if !progress.is_recently_active {
            note!(self, Debug, "ignore sending snapshot to {to:x} since it is not recently active");
            return false;
        }
        let snapshot = match self.log.snapshot() {
            Ok(snapshot) => snapshot,
            Err(StorageError::SnapshotTemporarilyUnavailable) => {
                note!(
                    self,
                    Debug,
                    "{id:x} failed to send snapshot to {to:x} because snapshot is temporarily \
                     unavailable"
                );
                return false;
            }
            Err(error) => {
                panic!(
                    "the storage of a compacted log returned an error instead of a snapshot: {error}"
                )
            }
        };
        assert!(
            !snapshot.is_empty(),
            "a compacted log has a snapshot: otherwise a follower that needs compacted entries could never catch up"
        );
        let last = snapshot.last_id();
        assert!(
            last.index + 1 >= self.log.first_index(),
            "a snapshot reaches the beginning of the log: otherwise the follower would need compacted entries, and \
             would be sent the same snapshot forever"
        );
        note!(
            self,
            Debug,
            "{id:x} [firstindex: {}, commit: {}] sent snapshot[index: {}, term: {}] to {to:x} \
             [{progress}]",
            self.log.first_index(),
            self.log.committed(),
            last.index,
            last.term
        );
        progress.become_snapshot(last.index);
        note!(self, Debug, "{id:x} paused sending replication messages to {to:x} [{progress}]");
        let mut message = Message::new(MessageKind::Snapshot, to);
        message.snapshot = Some(Box::new(snapshot));
        self.send(message);
        true
    }

    /// Processes the application's report of how a snapshot transfer ended.
    pub(crate) fn handle_snapshot_status(&mut self, from: MemberId, is_failed: bool) {
        let id = self.config.id;
        let Some(progress) = self.tracker.progress.get_mut(&from) else {
            note!(self, Debug, "{id:x} no progress available for {from:x}");
            return;
        };
        if progress.state != ProgressState::Snapshot {
            return;
        }
        let outcome = if is_failed { "failed" } else { "succeeded" };
        if is_failed {
            // The snapshot did not arrive, so probing resumes after the last acknowledged entry.
            progress.pending_snapshot = LogIndex::ZERO;
        }
        progress.become_probe();
        note!(
            self,
            Debug,
            "{id:x} snapshot {outcome}, resumed sending replication messages to {from:x} \
             [{progress}]"
        );
        // After a success, wait for the follower's acknowledgement; after a failure, for its next
        // heartbeat response.
        progress.is_flow_paused = true;
    }
}

/// The follower's side of a snapshot transfer.
impl<S: Storage> Raft<S> {
    pub(crate) fn handle_snapshot(
        &mut self,
        leader: MemberId,
        snapshot: Snapshot,
    ) -> Result<(), StepError> {
        let last = snapshot.last_id();
        if !snapshot.is_empty() {
            self.check_agrees(leader, last)?;
        }
        let is_restored = self.restore(snapshot)?;
        let (verb, index) = if is_restored {
            ("restored", self.log.last_index())
        } else {
            ("ignored", self.log.committed())
        };
        note!(
            self,
            Info,
            "{:x} [commit: {}] {verb} snapshot [index: {}, term: {}]",
            self.config.id,
            self.log.committed(),
            last.index,
            last.term
        );
        let mut response = Message::new(MessageKind::AppendResponse, leader);
        response.index = index;
        self.send(response);
        Ok(())
    }

    /// Replaces the log and the configuration with a snapshot, unless the log already contains the entries that the
    /// snapshot covers, or this member is not in the snapshot's configuration. Returns whether the log was replaced.
    fn restore(&mut self, snapshot: Snapshot) -> Result<bool, StepError> {
        let last = snapshot.last_id();
        if last.index <= self.log.committed() {
            return Ok(false);
        }
        assert!(
            self.role == Role::Follower,
            "only a follower replaces its log with a snapshot: otherwise a leader would drop its own entries"
        );
        let id = self.config.id;
        let conf_state = &snapshot.metadata.conf_state;
        let is_member = [&conf_state.voters, &conf_state.learners, &conf_state.voters_outgoing]
            .iter()
            .any(|ids| ids.contains(&id));
        if !is_member {
            note!(
                self,
                Warn,
                "{id:x} attempted to restore snapshot but it is not in the ConfState \
                 {conf_state:?}; should never happen"
            );
            return Ok(false);
        }
        if self.log.contains(last) {
            let own = self.log.last_id();
            note!(
                self,
                Info,
                "{id:x} [commit: {}, lastindex: {}, lastterm: {}] fast-forwarded commit to \
                 snapshot [index: {}, term: {}]",
                self.log.committed(),
                own.index,
                own.term,
                last.index,
                last.term
            );
            self.log.commit_to(last.index);
            return Ok(false);
        }
        let limits = self.tracker.limits;
        let (config, progress) = confchange::restore(conf_state, last.index, limits)
            .map_err(StepError::SnapshotConfState)?;
        note!(
            self,
            Info,
            "log [{}] starts to restore snapshot [index: {}, term: {}]",
            self.log,
            last.index,
            last.term
        );
        self.log.restore(snapshot);
        self.tracker.reset_votes();
        self.switch_configuration(config, progress);
        let own = self.log.last_id();
        note!(
            self,
            Info,
            "{id:x} [commit: {}, lastindex: {}, lastterm: {}] restored snapshot [index: {}, term: \
             {}]",
            self.log.committed(),
            own.index,
            own.term,
            last.index,
            last.term
        );
        Ok(true)
    }
}
