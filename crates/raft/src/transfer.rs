//! Leadership transfer to a chosen member (Raft thesis, section 3.10).
//!
//! The leader stops accepting proposals, brings the chosen member up to date and instructs it to campaign immediately.
//! If no other leader is elected within an election timeout, the leader accepts proposals again.

use crate::election::Campaign;
use crate::entry::{MemberId, NONE};
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::raft::Raft;
use crate::replication::WhenEmpty;
use crate::state::Role;
use crate::storage::Storage;
use crate::term::Term;

impl<S: Storage> Raft<S> {
    /// Processes a request to transfer leadership to a member.
    pub(crate) fn handle_transfer_leader(&mut self, to: MemberId) {
        let (id, term) = (self.config.id, self.term);
        let Some(progress) = self.tracker.progress.get(&to) else {
            note!(self, Debug, "{id:x} no progress available for {to:x}");
            return;
        };
        let (is_learner, match_index) = (progress.is_learner, progress.match_index);
        if is_learner {
            note!(self, Debug, "{id:x} is learner. Ignored transferring leadership");
            return;
        }
        if self.transferee == to {
            note!(
                self,
                Info,
                "{id:x} [term {term}] transfer leadership to {to:x} is in progress, ignores \
                 request to same node {to:x}"
            );
            return;
        }
        if self.transferee != NONE {
            note!(
                self,
                Info,
                "{id:x} [term {term}] abort previous transferring leadership to {:x}",
                self.transferee
            );
            self.transferee = NONE;
        }
        if to == id {
            note!(self, Debug, "{id:x} is already leader. Ignored transferring leadership to self");
            return;
        }
        note!(self, Info, "{id:x} [term {term}] starts to transfer leadership to {to:x}");
        // The transfer is aborted if it takes longer than one election timeout from now.
        self.election_elapsed = 0;
        self.transferee = to;
        if match_index == self.log.last_index() {
            self.send_timeout_now(to);
            note!(
                self,
                Info,
                "{id:x} sends MsgTimeoutNow to {to:x} immediately as {to:x} already has up-to-date \
                 log"
            );
        } else {
            self.send_append(to, WhenEmpty::Send);
        }
    }

    pub(crate) fn send_timeout_now(&mut self, to: MemberId) {
        self.send(Message::new(MessageKind::TimeoutNow, to));
    }

    /// Forwards a member's request to become the leader to the current leader. A request with a
    /// term is dropped, because another member has already forwarded it to this member, which was
    /// the leader then.
    pub(crate) fn forward_transfer(&mut self, from: MemberId, term: Term) {
        if self.leader == NONE || term != Term::ZERO {
            note!(
                self,
                Info,
                "{:x} no leader at term {}; dropping leader transfer msg",
                self.config.id,
                self.term
            );
            return;
        }
        let request = Message::new(MessageKind::TransferLeader, self.leader);
        self.schedule(Message { from, term: self.term, ..request });
    }

    /// Campaigns at the leader's request. There is no pre-vote, because the leader itself requested
    /// the election.
    pub(crate) fn handle_timeout_now(&mut self, leader: MemberId) {
        let (id, term) = (self.config.id, self.term);
        match self.role {
            Role::Follower => {
                note!(
                    self,
                    Info,
                    "{id:x} [term {term}] received MsgTimeoutNow from {leader:x} and starts an \
                     election to get leadership."
                );
                self.try_campaign(Campaign::Transfer);
            }
            Role::PreCandidate | Role::Candidate => {
                note!(
                    self,
                    Debug,
                    "{id:x} [term {term} state State{:?}] ignored MsgTimeoutNow from {leader:x}",
                    self.role
                );
            }
            Role::Leader => {}
        }
    }
}
