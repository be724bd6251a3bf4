//! Proposals: how a leader appends them to its log, and how a follower forwards them.
//!
//! A leader accepts all entries of a batch or none. A membership change that is invalid in the
//! current configuration is replaced with an empty entry: at most one change may be unapplied, and
//! a joint configuration must be left before the next change. The leader proposes the empty change
//! that leaves the joint configuration as soon as the change that entered it is applied.

use crate::confchange::{AnyConfChange, ConfChangeV2};
use crate::entry::{Entry, MemberId, NONE, payload_bytes};
use crate::error::StepError;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::raft::Raft;
use crate::state::Role;
use crate::storage::Storage;

impl<S: Storage> Raft<S> {
    /// Appends entries to the log and replicates them.
    pub(crate) fn handle_proposal(&mut self, mut entries: Vec<Entry>) -> Result<(), StepError> {
        // A removed leader continues to replicate its log but accepts no new entries.
        if !self.tracker.progress.contains_key(&self.config.id) {
            return Err(StepError::ProposalDropped);
        }
        if self.transferee != NONE {
            note!(
                self,
                Debug,
                "{:x} [term {}] transfer leadership to {:x} is in progress; dropping proposal",
                self.config.id,
                self.term,
                self.transferee
            );
            return Err(StepError::ProposalDropped);
        }
        let pending_before = self.pending_conf_index;
        let appended = match self.admit_conf_changes(&mut entries) {
            Ok(()) if self.append_as_leader(entries) => Ok(()),
            Ok(()) => Err(StepError::ProposalDropped),
            Err(unreadable) => Err(unreadable),
        };
        if appended.is_ok() {
            self.broadcast_append();
        } else {
            // The entries were not appended, so no membership change among them is pending.
            self.pending_conf_index = pending_before;
        }
        appended
    }

    /// Replaces each membership change in `entries` with an empty entry if the change must not be appended now.
    fn admit_conf_changes(&mut self, entries: &mut [Entry]) -> Result<(), StepError> {
        let mut index = self.log.last_index();
        for entry in entries {
            index += 1;
            if !entry.kind.is_conf_change() {
                continue;
            }
            let Some(change) = AnyConfChange::from_entry(entry)? else { continue };
            let change = change.into();
            let objection = self.objection_to(&change);
            match objection {
                Some(objection) if !self.config.disable_conf_change_validation => {
                    note!(
                        self,
                        Info,
                        "{:x} ignoring conf change {change} at config {}: {objection}",
                        self.config.id,
                        self.tracker.config
                    );
                    *entry = Entry::default();
                }
                _ => self.pending_conf_index = index,
            }
        }
        Ok(())
    }

    /// Returns the reason why a membership change is currently invalid, or `None` if it is valid.
    fn objection_to(&self, change: &ConfChangeV2) -> Option<String> {
        let is_joint = self.tracker.config.voters.is_joint();
        if self.pending_conf_index > self.log.applied() {
            Some(format!(
                "possible unapplied conf change at index {} (applied to {})",
                self.pending_conf_index,
                self.log.applied()
            ))
        } else if is_joint && !change.is_leave_request() {
            Some("must transition out of joint config first".to_owned())
        } else if !is_joint && change.is_leave_request() {
            Some("not in joint state; refusing empty conf change".to_owned())
        } else {
            None
        }
    }

    /// Sets the terms and indexes of the entries and appends them, unless too many bytes are
    /// uncommitted. Returns whether it appended them.
    pub(crate) fn append_as_leader(&mut self, mut entries: Vec<Entry>) -> bool {
        assert!(
            self.role == Role::Leader,
            "only a leader gives entries a term and an index: otherwise two entries could have the same term and index"
        );
        let bytes = payload_bytes(&entries);
        if self.would_exceed_uncommitted(bytes) {
            note!(
                self,
                Warn,
                "{:x} appending new entries to log would exceed uncommitted entry size limit; \
                 dropping proposal",
                self.config.id
            );
            return false;
        }
        self.uncommitted_bytes += bytes;
        let mut index: LogIndex = self.log.last_index();
        for entry in &mut entries {
            index += 1;
            entry.term = self.term;
            entry.index = index;
        }
        self.log.append(entries);
        // Like any follower, the leader acknowledges its own entries once they are durable.
        let mut acknowledgement = Message::new(MessageKind::AppendResponse, self.config.id);
        acknowledgement.index = index;
        self.send(acknowledgement);
        true
    }

    /// Returns whether `bytes` more bytes would exceed the limit on uncommitted bytes. Returns `false` if no bytes are
    /// uncommitted, so that one proposal of any size is accepted. Also returns `false` for entries without a payload,
    /// such as the first entry of a term.
    fn would_exceed_uncommitted(&self, bytes: u64) -> bool {
        let total = self.uncommitted_bytes.saturating_add(bytes);
        self.uncommitted_bytes > 0 && bytes > 0 && total > self.config.max_uncommitted_size
    }

    /// Forwards proposals to the leader.
    pub(crate) fn forward_proposal(
        &mut self,
        from: MemberId,
        entries: Vec<Entry>,
    ) -> Result<(), StepError> {
        let (id, term, leader) = (self.config.id, self.term, self.leader);
        if leader == NONE {
            note!(self, Info, "{id:x} no leader at term {term}; dropping proposal");
            return Err(StepError::ProposalDropped);
        }
        if self.config.disable_proposal_forwarding {
            note!(
                self,
                Info,
                "{id:x} not forwarding to leader {leader:x} at term {term}; dropping proposal"
            );
            return Err(StepError::ProposalDropped);
        }
        let mut message = Message::new(MessageKind::Propose, leader);
        message.entries = entries;
        self.forward(from, message);
        Ok(())
    }

    /// Proposes to leave a joint configuration if the configuration requests it and the change that entered it is
    /// applied. This method is called after each report of applied entries, so a refused proposal is retried.
    pub(crate) fn leave_joint_if_due(&mut self) {
        let is_due = self.tracker.config.auto_leave
            && self.role == Role::Leader
            && self.log.applied() >= self.pending_conf_index;
        if !is_due {
            return;
        }
        let leave = AnyConfChange::V2(ConfChangeV2::default()).into_entry();
        match self.handle_proposal(vec![leave]) {
            Ok(()) => {
                note!(
                    self,
                    Info,
                    "initiating automatic transition out of joint configuration {}",
                    self.tracker.config
                );
            }
            Err(error) => {
                note!(
                    self,
                    Debug,
                    "not initiating automatic transition out of joint configuration {}: {error}",
                    self.tracker.config
                );
            }
        }
    }
}
