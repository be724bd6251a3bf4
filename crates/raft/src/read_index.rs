//! Linearizable reads. This module finds the index up to which the state machine must have applied entries, so that a
//! read is not stale (Raft thesis, section 6.4).
//!
//! A leader records its commit index when a request arrives. The leader responds once it is certain that it led at that
//! moment: in `Safe` mode after a quorum has responded to a later heartbeat, and in `LeaseBased` mode immediately,
//! because of its lease. Followers forward requests to the leader.
//!
//! The module `pending_reads` numbers the reads and records their confirmations.

use crate::config::ReadOnlyOption;
use crate::entry::{EntryId, MemberId, NONE};
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::pending_reads::ReadRequest;
use crate::raft::Raft;
use crate::received::read_entries;
use crate::state::ReadState;
use crate::storage::Storage;

impl<S: Storage> Raft<S> {
    pub(crate) fn handle_read_index(&mut self, request: ReadRequest) {
        if self.has_committed_in_term() {
            self.confirm_leadership_for(request);
        } else {
            // The read must wait until the leader has committed an entry of its term. Until then, the commit index may
            // be lower than a read index that an earlier leader returned, or that this member returned before it
            // crashed.
            self.parked_reads.push(request);
        }
    }

    /// Returns whether an entry of the current term is committed. If so, the leader's commit index is the highest in
    /// the group.
    pub(crate) fn has_committed_in_term(&self) -> bool {
        self.log.contains(EntryId { term: self.term, index: self.log.committed() })
    }

    fn confirm_leadership_for(&mut self, request: ReadRequest) {
        assert!(
            self.has_committed_in_term(),
            "a leader answers reads only after a commit in its term: before that, its commit index may be stale"
        );
        let commit = self.log.committed();
        let is_sure = self.config.read_only == ReadOnlyOption::LeaseBased
            || self.tracker.is_sole_voter(self.config.id);
        if is_sure {
            self.answer_read(request, commit);
            return;
        }
        self.reads.push(request, commit);
        let context = self.reads.heartbeat_context();
        self.reads.acknowledge(self.config.id, &context);
        self.broadcast_heartbeat();
    }

    /// Processes the reads that arrived before an entry was committed in this term.
    pub(crate) fn release_parked_reads(&mut self) {
        if self.parked_reads.is_empty() {
            return;
        }
        if !self.has_committed_in_term() {
            note!(
                self,
                Error,
                "pending MsgReadIndex should be released only after first commit in current term"
            );
            return;
        }
        for request in std::mem::take(&mut self.parked_reads) {
            self.confirm_leadership_for(request);
        }
    }

    /// Records that a follower has echoed a heartbeat, and answers the reads that are now
    /// confirmed.
    pub(crate) fn confirm_reads(&mut self, from: MemberId, context: &[u8]) {
        if self.config.read_only != ReadOnlyOption::Safe || context.is_empty() {
            return;
        }
        if !self.reads.acknowledge(from, context) {
            note!(
                self,
                Debug,
                "{:x} ignored a heartbeat response from {from:x} with a context that was not sent",
                self.config.id
            );
            return;
        }
        self.answer_confirmed_reads();
    }

    /// Answers the reads that a quorum of the current configuration has confirmed.
    pub(crate) fn answer_confirmed_reads(&mut self) {
        let confirmed = self.reads.quorum_confirmed(&self.tracker.config.voters);
        while let Some((request, commit)) = self.reads.pop_confirmed(confirmed) {
            self.answer_read(request, commit);
        }
    }

    fn answer_read(&mut self, request: ReadRequest, index: LogIndex) {
        let ReadRequest { from, context } = request;
        if from == self.config.id {
            self.read_states.push(ReadState { index, context });
            return;
        }
        let mut response = Message::new(MessageKind::ReadIndexResponse, from);
        response.index = index;
        response.entries = read_entries(context);
        self.send(response);
    }

    /// Forwards a read request to the leader.
    pub(crate) fn forward_read_index(&mut self, request: ReadRequest) {
        if self.leader == NONE {
            note!(
                self,
                Info,
                "{:x} no leader at term {}; dropping index reading msg",
                self.config.id,
                self.term
            );
            return;
        }
        let mut message = Message::new(MessageKind::ReadIndex, NONE);
        message.entries = read_entries(request.context);
        self.forward(request.from, message);
    }
}
