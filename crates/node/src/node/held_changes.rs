//! Membership changes that a leader holds until the previous change is applied.
//!
//! Otherwise the core would replace such a change with an empty entry, and its proposer would never receive an answer.
//! Even a correct client may propose a change this early, because a follower may have applied the previous change and
//! answered its client before the leader has applied it.
//!
//! The quorum was checked when the request for the change arrived. If the membership has changed since then, the leader
//! repeats the check before it proposes the change. Otherwise two changes that are safe one by one could together cost
//! the cluster its quorum.
//!
//! # Not here
//!
//! The rules of the check (`reconfiguration`).

use quorate_raft::confchange::{AnyConfChange, ConfChangeV2};
use quorate_raft::{
    ConfChange, ConfChangeKind, ConfChangeStep, Entry, LogIndex, Message, Note, NoteLevel,
};

use super::Node;
use crate::effect::ProposalFailure;
use crate::limits;
use crate::proposals::Content;
use crate::reconfiguration::{Danger, Link, Voter, check_addition, check_promotion, check_removal};

/// A held membership change.
#[derive(Debug)]
pub(super) struct HeldChange {
    content: HeldContent,
    /// The value of [`Node::members_changed_at`] when the change began to wait.
    members_as_of: LogIndex,
}

#[derive(Debug)]
pub(super) enum HeldContent {
    Own(u64, ConfChange),
    /// A change that a peer forwarded.
    Forwarded(Message),
}

impl Node {
    pub(super) fn must_hold_changes(&self) -> bool {
        self.raft.has_pending_conf_change() && self.held_changes.len() < limits::HELD_CHANGES_MAX
    }

    pub(super) fn hold_change(&mut self, content: HeldContent) {
        let members_as_of = self.members_changed_at;
        self.held_changes.push_back(HeldChange { content, members_as_of });
    }

    /// Drops this member's own held changes with these ids, which are in ascending order.
    pub(super) fn forget_held_changes(&mut self, request_ids: &[u64]) {
        self.held_changes.retain(|held| match &held.content {
            HeldContent::Own(id, _) => request_ids.binary_search(id).is_err(),
            HeldContent::Forwarded(_) => true,
        });
    }

    /// Proposes held changes, each once the previous one is applied. A member that no longer leads forwards its own
    /// changes to the new leader and drops the changes that other members forwarded, because those members can reach
    /// the new leader themselves.
    pub(super) fn propose_held_changes(&mut self) {
        while !self.raft.has_pending_conf_change()
            && let Some(HeldChange { content, members_as_of }) = self.held_changes.pop_front()
        {
            let is_check_due = self.checks_reconfigurations
                && self.raft.is_leader()
                && members_as_of != self.members_changed_at;
            match content {
                HeldContent::Own(request_id, change) => {
                    if is_check_due && let Err(danger) = self.check_change(&change.clone().into()) {
                        self.fail_proposals([request_id], ProposalFailure::UnsafeChange(danger));
                    } else {
                        self.propose(vec![(request_id, Content::ConfChange(change))]);
                    }
                }
                HeldContent::Forwarded(mut message) if self.raft.is_leader() => {
                    if is_check_due {
                        // The protocol between members has no response to a proposal, so the other member is not
                        // informed.
                        message.entries.retain(|entry| self.check_entry(entry).is_ok());
                    }
                    if !message.entries.is_empty() {
                        self.step_forwarded(message);
                    }
                }
                HeldContent::Forwarded(_) => {}
            }
        }
    }

    fn check_entry(&mut self, entry: &Entry) -> Result<(), Danger> {
        match AnyConfChange::from_entry(entry) {
            Ok(Some(change)) => self.check_change(&change.into()),
            // The core refuses an entry that it cannot read.
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Checks whether a change leaves this leader with a quorum, and logs a refusal.
    fn check_change(&mut self, change: &ConfChangeV2) -> Result<(), Danger> {
        let refused = change
            .changes
            .iter()
            .find_map(|step| self.check_step(*step).err().map(|danger| (step, danger)));
        let Some((step, danger)) = refused else { return Ok(()) };
        let text = format!(
            "rejecting a membership change ({:?} {:x}) that waited for an earlier change; {danger}",
            step.kind, step.node_id
        );
        self.notes.push(Note { level: NoteLevel::Warn, text });
        Err(danger)
    }

    fn check_step(&self, step: ConfChangeStep) -> Result<(), Danger> {
        let is_learner = self.raft.configuration().learners.contains(&step.node_id);
        match step.kind {
            ConfChangeKind::AddNode if is_learner => check_promotion(&self.voters()),
            ConfChangeKind::AddNode => check_addition(&self.voters(), false),
            ConfChangeKind::AddLearnerNode => check_addition(&self.voters(), true),
            ConfChangeKind::RemoveNode if is_learner => Ok(()),
            ConfChangeKind::RemoveNode => check_removal(&self.voters(), step.node_id),
            ConfChangeKind::UpdateNode => Ok(()),
        }
    }

    /// Returns the voters as this leader sees them. A voter counts as connected if it has responded within the last
    /// election timeout. The leader does not know which of the other voters have started, so only the connections
    /// matter.
    fn voters(&self) -> Vec<Voter> {
        let (own, timeout) = (self.raft.id(), self.raft.config().election_tick);
        let progress = self.raft.progress().into_iter().flatten();
        let voters = progress.filter(|(_, progress)| !progress.is_learner);
        voters
            .map(|(id, progress)| {
                let is_connected = *id == own || progress.has_responded_within(timeout);
                let link = if is_connected { Link::Steady } else { Link::Down };
                Voter { id: *id, is_started: true, link }
            })
            .collect()
    }
}
