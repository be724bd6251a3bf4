//! Linearizable reads. This module finds the index up to which the state machine must have applied entries, so that a
//! read is not stale (Raft thesis, section 6.4).
//!
//! A leader records its commit index when a request arrives. The leader responds once it is certain that it led at that
//! moment: in `Safe` mode after a quorum has responded to a later heartbeat, and in `LeaseBased` mode immediately,
//! because of its lease. Followers forward requests to the leader.
//!
//! The module `pending_reads` numbers the reads and records their confirmations. The module `confirmers` chooses the
//! followers that are asked for them.

use bytes::Bytes;

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
        self.ask_to_confirm_reads(context);
    }

    /// Asks followers to confirm all pending reads.
    fn ask_to_confirm_reads(&mut self, context: Bytes) {
        let chosen = match self.config.asks_few_to_confirm_reads {
            true => self.reads.choose_confirmers(self.config.id, &self.tracker.config.voters),
            false => Vec::new(),
        };
        if chosen.is_empty() || self.next_voter(0, &chosen).is_none() {
            self.broadcast_heartbeat();
            return;
        }
        for follower in &chosen {
            self.send_heartbeat(*follower, context.clone());
        }
        self.reads.note_asked_alone(chosen);
    }

    /// Asks the other voters to confirm the pending reads if only some of the voters were asked. The next read is
    /// followed by a survey.
    pub(crate) fn ask_others_to_confirm_reads(&mut self) {
        let asked = self.reads.asked_alone().to_vec();
        if asked.is_empty() {
            return;
        }
        self.reads.forget_confirmers();
        let (context, mut position) = (self.reads.heartbeat_context(), 0);
        while let Some((at, voter)) = self.next_voter(position, &asked) {
            self.send_heartbeat(voter, context.clone());
            position = at + 1;
        }
        self.reads.note_others_asked();
    }

    /// Asks the other voters to confirm the pending reads if `id` was asked and some of the voters were not. Also
    /// forgets the choice if `id` would be asked alone to confirm the next read.
    pub(crate) fn ask_others_instead_of(&mut self, id: MemberId) {
        if self.reads.is_confirmer(id) {
            self.reads.forget_confirmers();
        }
        if self.reads.asked_alone().contains(&id) {
            self.ask_others_to_confirm_reads();
        }
    }

    /// Returns the first peer at `position` or later, in id order, that is a voter and not in `except`, with its
    /// position.
    fn next_voter(&self, position: usize, except: &[MemberId]) -> Option<(usize, MemberId)> {
        let voters = &self.tracker.config.voters;
        (position..)
            .map_while(|at| Some((at, self.tracker.peer(at)?)))
            .find(|(_, id)| voters.contains(*id) && !except.contains(id))
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
        let Some(number) = self.reads.acknowledge(from, context) else {
            note!(
                self,
                Debug,
                "{:x} ignored a heartbeat response from {from:x} with a context that was not sent",
                self.config.id
            );
            return;
        };
        self.reads.rank(self.config.id, from, number, &self.tracker.config.voters);
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
