//! Requests for the log: proposed, passed on to the leader, or kept until that is possible.

use bytes::Bytes;
use quorate_raft::{ConfChange, NONE};

use super::{HeldChange, Node};
use crate::effect::{Effect, ProposalFailure};
use crate::event::Proposal;
use crate::limits;
use crate::proposals::{Content, Waiting};

impl Node {
    pub(super) fn handle_propose(&mut self, proposals: Vec<Proposal>) {
        let proposals = proposals.into_iter();
        self.propose(proposals.map(|one| (one.request_id, Content::Data(one.data))).collect());
    }

    pub(super) fn propose(&mut self, proposals: Vec<Waiting>) {
        if self.leadership.leader == NONE {
            for (request_id, content) in proposals {
                if let Err(request_id) = self.proposals.push(request_id, content) {
                    self.fail_proposals([request_id], ProposalFailure::QueueFull);
                }
            }
            return;
        }
        // One message for neighbours: the core's cost is by message.
        let mut request_ids = Vec::with_capacity(proposals.len());
        let mut batch = Vec::with_capacity(proposals.len());
        for (request_id, content) in proposals {
            match content {
                Content::Data(data) => {
                    request_ids.push(request_id);
                    batch.push(data);
                }
                Content::ConfChange(change) => {
                    self.propose_data(std::mem::take(&mut request_ids), std::mem::take(&mut batch));
                    self.propose_change(request_id, change);
                }
            }
        }
        self.propose_data(request_ids, batch);
    }

    pub(super) fn propose_change(&mut self, request_id: u64, change: ConfChange) {
        if self.must_hold_changes() {
            self.held_changes.push_back(HeldChange::Own(request_id, change));
        } else if self.raft.propose_conf_change(change).is_err() {
            self.fail_proposals([request_id], ProposalFailure::Dropped);
        }
    }

    pub(super) fn must_hold_changes(&self) -> bool {
        self.raft.has_pending_conf_change() && self.held_changes.len() < limits::HELD_CHANGES_MAX
    }

    /// Proposes what was held, one after the other is applied. A member that leads no longer passes its own on,
    /// and forgets those of others, who know the new leader.
    pub(super) fn propose_held_changes(&mut self) {
        while !self.raft.has_pending_conf_change()
            && let Some(held) = self.held_changes.pop_front()
        {
            match held {
                HeldChange::Own(request_id, change) => {
                    self.propose(vec![(request_id, Content::ConfChange(change))]);
                }
                HeldChange::Forwarded(message) if self.raft.is_leader() => {
                    self.step_received(message);
                }
                HeldChange::Forwarded(_) => {}
            }
        }
    }

    pub(super) fn propose_data(&mut self, request_ids: Vec<u64>, batch: Vec<Bytes>) {
        if batch.is_empty() || self.raft.propose_batch(batch).is_ok() {
            return;
        }
        // A leader that is to stay one refuses only for the size of its log.
        let is_full = self.raft.is_leader() && self.raft.transferee() == NONE;
        self.refused_for_room += if is_full { request_ids.len() as u64 } else { 0 };
        let failure = if is_full { ProposalFailure::QueueFull } else { ProposalFailure::Dropped };
        self.fail_proposals(request_ids, failure);
    }

    pub(super) fn fail_proposals(
        &mut self,
        request_ids: impl IntoIterator<Item = u64>,
        failure: ProposalFailure,
    ) {
        let failed = request_ids.into_iter();
        self.effects
            .extend(failed.map(|request_id| Effect::ProposalFailed { request_id, failure }));
    }
}
