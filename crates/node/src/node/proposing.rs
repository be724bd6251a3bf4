//! Handles requests to add entries to the log: proposes them, forwards them to the leader, or keeps them until either
//! is possible.

use std::mem;

use bytes::Bytes;
use quorate_raft::{ConfChange, EntryKind, Message, NONE, StepError};

use super::Node;
use super::held_changes::HeldContent;
use crate::effect::{Effect, ProposalFailure};
use crate::event::Proposal;
use crate::limits;
use crate::proposals::{Content, Waiting};
use crate::refusals::Source;

impl Node {
    pub(super) fn handle_propose(&mut self, proposals: Vec<Proposal>) {
        let proposals = proposals.into_iter();
        self.propose(proposals.map(|one| (one.request_id, Content::Data(one.data))).collect());
    }

    pub(super) fn propose(&mut self, proposals: Vec<Waiting>) {
        if self.must_wait() {
            for (request_id, content) in proposals {
                if let Err(request_id) = self.proposals.push(request_id, content) {
                    self.fail_proposals([request_id], ProposalFailure::QueueFull);
                }
            }
            return;
        }
        // Adjacent proposals share one message, because the core's work grows with the number of messages. The size of
        // a message is limited, because many large proposals may have waited for a leader.
        let mut request_ids = Vec::with_capacity(proposals.len());
        let mut batch = Vec::with_capacity(proposals.len());
        let mut batch_bytes = 0;
        for (request_id, content) in proposals {
            match content {
                Content::Data(data) => {
                    let bytes = data.len() as u64;
                    if batch_bytes + bytes > limits::PROPOSE_BYTES_MAX {
                        self.propose_data(mem::take(&mut request_ids), mem::take(&mut batch));
                        batch_bytes = 0;
                    }
                    batch_bytes += bytes;
                    request_ids.push(request_id);
                    batch.push(data);
                }
                Content::ConfChange(change) => {
                    self.propose_data(mem::take(&mut request_ids), mem::take(&mut batch));
                    batch_bytes = 0;
                    self.propose_change(request_id, change);
                }
            }
        }
        self.propose_data(request_ids, batch);
    }

    /// Returns whether requests must wait because there is no leader, or because this leader is transferring
    /// leadership.
    fn must_wait(&self) -> bool {
        self.raft.leader() == NONE || self.is_handing_over()
    }

    /// Returns whether this leader is transferring leadership. Until the transfer ends, requests wait and may be
    /// forwarded to the next leader.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        self.raft.is_leader() && self.raft.transferee() != NONE
    }

    /// Accepts requests from another member. While this leader transfers leadership, and after it has voted for its
    /// successor, the requests wait until the next leader is known. Otherwise no member would propose them, and their
    /// clients would never receive a response. As in etcd, membership changes do not wait: their clients may give up, and
    /// this member would not notice.
    pub(super) fn receive_proposal(&mut self, mut message: Message) {
        let is_change = message.entries.iter().any(|entry| entry.kind != EntryKind::Normal);
        if self.must_wait() {
            message.entries.retain(|entry| entry.kind == EntryKind::Normal);
            if message.entries.is_empty() {
                return;
            }
            self.refused_for_room += u64::from(!self.proposals.push_forwarded(message));
        } else if is_change && self.must_hold_changes() {
            self.hold_change(HeldContent::Forwarded(message));
        } else {
            self.step_forwarded(message);
        }
    }

    /// Passes another member's requests to the core. A leader that has no room drops the requests. As in etcd, the drop
    /// is not reported to the other member, so its clients wait until their requests time out.
    pub(super) fn step_forwarded(&mut self, message: Message) {
        if self.is_stopped {
            return;
        }
        let stepped =
            if self.has_room() { self.raft.step(message) } else { Err(StepError::ProposalDropped) };
        match stepped {
            Err(StepError::ProposalDropped) => _ = self.count_refused(1),
            Err(refusal) => self.take_refusal(Source::Peer, refusal),
            Ok(()) => {}
        }
    }

    /// Proposes the requests that waited for a leader or for the end of a transfer, or forwards
    /// them to the new leader.
    pub(super) fn propose_waiting(&mut self) {
        if self.proposals.is_empty() || self.must_wait() {
            return;
        }
        let waiting = self.proposals.take();
        self.propose(waiting);
        for message in self.proposals.take_forwarded() {
            // Clear the sender, so that this member counts as the sender.
            self.receive_proposal(Message { from: NONE, ..message });
        }
    }

    pub(super) fn propose_change(&mut self, request_id: u64, change: ConfChange) {
        if self.must_hold_changes() {
            self.hold_change(HeldContent::Own(request_id, change));
        } else if !self.has_room() || self.raft.propose_conf_change(change).is_err() {
            let failure = self.count_refused(1);
            self.fail_proposals([request_id], failure);
        }
    }

    pub(super) fn propose_data(&mut self, request_ids: Vec<u64>, batch: Vec<Bytes>) {
        if batch.is_empty() || self.has_room() && self.raft.propose_batch(batch).is_ok() {
            return;
        }
        let failure = self.count_refused(request_ids.len() as u64);
        self.fail_proposals(request_ids, failure);
    }

    /// Returns false if this member leads and too many log writes are in progress.
    fn has_room(&self) -> bool {
        !self.raft.is_leader() || !self.persistence.is_full()
    }

    /// Returns the reason for a refusal, and counts the requests if they were refused for lack of room. A leader that
    /// is not transferring leadership refuses requests because its log is too large, because too many log writes are in
    /// progress, or because it was removed from the cluster. A removed leader has no progress of its own. A forwarded
    /// message counts as one request.
    fn count_refused(&mut self, count: u64) -> ProposalFailure {
        let own = self.raft.id();
        if !self.raft.progress().is_some_and(|progress| progress.contains_key(&own)) {
            return ProposalFailure::Dropped;
        }
        self.refused_for_room += count;
        ProposalFailure::QueueFull
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
