//! Elections: changing roles, campaigning and voting (Raft thesis, sections 3.4, 3.6.1 and 9.6).
//!
//! ```text
//!             timeout                   quorum would agree          quorum agrees
//!   Follower ─────────► PreCandidate ───────────────► Candidate ───────────────► Leader
//!      ▲                     │                            │                        │
//!      └─────────────────────┴────── higher term, a leader, or refusal ────────────┘
//! ```
//!
//! There is no PreCandidate step if pre-votes are disabled, or if the leader itself requested the
//! election. Check-quorum gives a leader a lease: members that have received a message from it
//! within an election timeout ignore candidates, and a leader that receives no messages from a
//! quorum for an election timeout steps down.
//!
//! A learner also grants its vote on request. It may have been promoted without having received the
//! change yet, and the group may need its vote to elect the leader that would send it the change.

use crate::entry::{MemberId, NONE};
use crate::log_index::LogIndex;
use crate::message::Message;
use crate::note::note;
use crate::pending_reads::PendingReads;
use crate::positions::TERM_END;
use crate::progress::Progress;
use crate::quorum::VoteResult;
use crate::raft::Raft;
use crate::received::{Round, TRANSFER_CONTEXT, Vote, VoteRequest};
use crate::state::Role;
use crate::storage::Storage;
use crate::term::Term;

/// The kind of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Campaign {
    /// A pre-vote, to find out whether an election could be won.
    PreElection,
    /// A regular election.
    Election,
    /// An election that the leader requested in order to transfer leadership.
    Transfer,
}

impl<S: Storage> Raft<S> {
    pub(crate) fn become_follower(&mut self, term: Term, leader: MemberId) {
        self.reset(term);
        self.leader = leader;
        self.role = Role::Follower;
        note!(self, Info, "{:x} became follower at term {}", self.config.id, self.term);
    }

    fn become_pre_candidate(&mut self) {
        assert!(
            self.role != Role::Leader,
            "a leader does not campaign: otherwise it would give up leadership without having lost its quorum"
        );
        // The term and the vote do not change, so a pre-election has no lasting effect.
        self.tracker.reset_votes();
        self.leader = NONE;
        self.role = Role::PreCandidate;
        note!(self, Info, "{:x} became pre-candidate at term {}", self.config.id, self.term);
    }

    fn become_candidate(&mut self) {
        assert!(
            self.role != Role::Leader,
            "a leader does not campaign: otherwise it would give up leadership without having lost its quorum"
        );
        self.reset(self.term.next());
        self.vote = self.config.id;
        self.role = Role::Candidate;
        note!(self, Info, "{:x} became candidate at term {}", self.config.id, self.term);
    }

    fn become_leader(&mut self) {
        assert!(
            self.role == Role::Candidate,
            "only a candidate becomes leader: otherwise votes of an earlier term could elect a leader"
        );
        assert!(
            self.vote == self.config.id,
            "a leader has voted for itself in its term: otherwise the term could have two leaders"
        );
        self.reset(self.term);
        self.leader = self.config.id;
        self.role = Role::Leader;
        if let Some(own) = self.tracker.progress.get_mut(&self.config.id) {
            own.become_replicate();
            own.is_recently_active = true;
        }
        // The log may contain an unapplied membership change. Waiting until the whole log is applied is cheap, whereas
        // searching the log for a change could be expensive.
        self.pending_conf_index = self.log.last_index();
        // The first entry of the term is empty. Committing it also commits all entries before it.
        let is_accepted = self.append_as_leader(vec![crate::Entry::default()]);
        assert!(
            is_accepted,
            "an empty entry is always accepted: otherwise the new leader could commit nothing in its term"
        );
        note!(self, Info, "{:x} became leader at term {}", self.config.id, self.term);
    }

    /// Resets the state that belongs to a role or a term.
    fn reset(&mut self, term: Term) {
        assert!(
            term >= self.term,
            "the term never decreases: otherwise the member could vote twice in a term"
        );
        if self.term != term {
            self.term = term;
            self.vote = NONE;
        }
        self.leader = NONE;
        self.election_elapsed = 0;
        self.heartbeat_elapsed = 0;
        self.draw_election_timeout();
        self.transferee = NONE;
        self.tracker.reset_votes();
        let last_index = self.log.last_index();
        for (id, progress) in &mut self.tracker.progress {
            progress.reset(last_index, *id == self.config.id);
        }
        self.pending_conf_index = LogIndex::ZERO;
        self.uncommitted_bytes = 0;
        self.reads = PendingReads::default();
    }

    pub(crate) fn tick_election(&mut self) {
        if self.election_comes_due() {
            self.handle_hup();
        }
    }

    /// Counts a tick without a message from a leader. Returns whether this member is eligible to
    /// lead and its election timeout has expired; if so, starts the next timeout.
    pub(crate) fn election_comes_due(&mut self) -> bool {
        self.election_elapsed += 1;
        let is_due = self.is_promotable() && self.election_elapsed >= self.election_timeout;
        if is_due {
            self.election_elapsed = 0;
        }
        is_due
    }

    pub(crate) fn tick_leader(&mut self) {
        self.heartbeat_elapsed += 1;
        self.election_elapsed += 1;
        self.tracker.progress.values_mut().for_each(Progress::tick);
        if self.election_elapsed >= self.config.election_tick {
            self.election_elapsed = 0;
            if self.config.check_quorum {
                self.handle_check_quorum();
            }
            // Abort a leadership transfer that has not succeeded within the election timeout.
            if self.role == Role::Leader {
                self.transferee = NONE;
                self.reads.forget_confirmers();
            }
        }
        if self.role == Role::Leader && self.heartbeat_elapsed >= self.config.heartbeat_tick {
            self.heartbeat_elapsed = 0;
            self.broadcast_heartbeat();
        }
        assert!(
            self.role != Role::Leader || self.election_elapsed < self.config.election_tick,
            "a leader checks its quorum once per election timeout: otherwise it would lead forever without a quorum"
        );
    }

    /// Steps down if this leader no longer has an active quorum, because another leader may have one.
    pub(crate) fn handle_check_quorum(&mut self) {
        if !self.tracker.is_quorum_active() {
            note!(
                self,
                Warn,
                "{:x} stepped down to follower since quorum is not active",
                self.config.id
            );
            self.become_follower(self.term, NONE);
        }
        for (id, progress) in &mut self.tracker.progress {
            if *id != self.config.id {
                progress.is_recently_active = false;
            }
        }
    }

    /// Stops following the leader, so that this member may immediately vote for another member.
    pub(crate) fn forget_leader(&mut self) {
        if self.config.read_only == crate::ReadOnlyOption::LeaseBased {
            // With lease-based reads, the leader relies on its followers not to help elect another leader, so they must
            // not forget the leader.
            note!(self, Error, "ignoring MsgForgetLeader due to ReadOnlyLeaseBased");
        } else if self.leader != NONE {
            note!(
                self,
                Info,
                "{:x} forgetting leader {:x} at term {}",
                self.config.id,
                self.leader,
                self.term
            );
            self.leader = NONE;
        }
    }

    pub(crate) fn handle_hup(&mut self) {
        let pre_vote = self.config.pre_vote;
        self.try_campaign(if pre_vote { Campaign::PreElection } else { Campaign::Election });
    }

    /// Campaigns, unless this member already leads, is not eligible to lead, has an unapplied
    /// membership change, or has reached the last possible term.
    pub(crate) fn try_campaign(&mut self, campaign: Campaign) {
        let id = self.config.id;
        if self.role == Role::Leader {
            note!(self, Debug, "{id:x} ignoring MsgHup because already leader");
        } else if !self.is_promotable() {
            note!(self, Warn, "{id:x} is unpromotable and can not campaign");
        } else if self.term >= TERM_END {
            note!(
                self,
                Error,
                "{id:x} cannot campaign at term {}: it is the last possible term",
                self.term
            );
        } else if self.log.has_unapplied_conf_change() {
            note!(
                self,
                Warn,
                "{id:x} cannot campaign at term {} since there are still pending configuration \
                 changes to apply",
                self.term
            );
        } else {
            note!(self, Info, "{id:x} is starting a new election at term {}", self.term);
            self.campaign(campaign);
        }
    }

    /// Returns whether this member is eligible to lead: it is a voter, and no snapshot is about to replace its log.
    fn is_promotable(&self) -> bool {
        let own = self.tracker.progress.get(&self.config.id);
        own.is_some_and(|own| !own.is_learner) && self.log.unstable.snapshot().is_none()
    }

    fn campaign(&mut self, campaign: Campaign) {
        let (round, term) = if campaign == Campaign::PreElection {
            self.become_pre_candidate();
            (Round::PreVote, self.term.next())
        } else {
            self.become_candidate();
            (Round::Vote, self.term)
        };
        let (request, response) = (round.request(), round.response());
        let last = self.log.last_id();
        for voter in self.tracker.config.voters.ids() {
            if voter == self.config.id {
                // Like any other vote, the member's own vote counts only once it is durable.
                self.send_in_term(term, Message::new(response, voter));
                continue;
            }
            note!(
                self,
                Info,
                "{:x} [logterm: {}, index: {}] sent {request} request to {voter:x} at term {}",
                self.config.id,
                last.term,
                last.index,
                self.term,
            );
            let mut message = Message::new(request, voter);
            message.log_term = last.term;
            message.index = last.index;
            if campaign == Campaign::Transfer {
                message.context = bytes::Bytes::from_static(TRANSFER_CONTEXT);
            }
            self.send_in_term(term, message);
        }
    }

    /// Returns whether to ignore a candidate of a later term because this member has recently received a message from a
    /// leader. A candidate is never ignored if that leader requested the election.
    pub(crate) fn is_leader_lease_held(&mut self, request: &VoteRequest) -> bool {
        let is_held = self.config.check_quorum
            && self.leader != NONE
            && self.election_elapsed < self.config.election_tick
            && !request.is_transfer;
        if is_held {
            let remaining = self.config.election_tick - self.election_elapsed;
            let why = format!(": lease is not expired (remaining ticks: {remaining})");
            self.note_vote(request, "ignored", "from", &why);
        }
        is_held
    }

    pub(crate) fn handle_vote_request(&mut self, request: &VoteRequest) {
        let VoteRequest { round, candidate, term, last, .. } = *request;
        let is_pre_vote_ahead = round == Round::PreVote && term > self.term;
        let is_vote_free = self.vote == candidate
            || (self.vote == NONE && self.leader == NONE)
            || is_pre_vote_ahead;
        if !is_vote_free || !self.log.is_up_to_date(last) {
            self.reject_vote(request);
            return;
        }
        self.note_vote(request, "cast", "for", "");
        // The response carries the request's term, which for a pre-vote differs from this member's
        // own term. A candidate would drop a response with a lower term.
        self.send_in_term(term, Message::new(round.response(), candidate));
        if round == Round::Vote {
            assert!(
                self.vote == NONE || self.vote == candidate,
                "a member votes once in a term: two votes could elect two leaders"
            );
            self.election_elapsed = 0;
            self.vote = candidate;
        }
    }

    pub(crate) fn reject_vote(&mut self, request: &VoteRequest) {
        self.note_vote(request, "rejected", "from", "");
        let mut response = Message::new(request.round.response(), request.candidate);
        response.reject = true;
        self.send(response);
    }

    fn note_vote(&mut self, request: &VoteRequest, verb: &str, preposition: &str, why: &str) {
        let last = self.log.last_id();
        note!(
            self,
            Info,
            "{:x} [logterm: {}, index: {}, vote: {:x}] {verb} {} {preposition} {:x} [logterm: {}, \
             index: {}] at term {}{why}",
            self.config.id,
            last.term,
            last.index,
            self.vote,
            request.round.request(),
            request.candidate,
            request.last.term,
            request.last.index,
            self.term,
        );
    }

    /// Returns whether this member campaigns in this round of an election.
    pub(crate) fn awaits_votes_of(&self, round: Round) -> bool {
        match round {
            Round::PreVote => self.role == Role::PreCandidate,
            Round::Vote => self.role == Role::Candidate,
        }
    }

    pub(crate) fn handle_vote(&mut self, from: MemberId, vote: Vote) {
        let response = vote.round.response();
        let rejection = if vote.is_granted { "" } else { " rejection" };
        note!(
            self,
            Info,
            "{:x} received {response}{rejection} from {from:x} at term {}",
            self.config.id,
            self.term
        );
        self.tracker.record_vote(from, vote.is_granted);
        let tally = self.tracker.tally();
        note!(
            self,
            Info,
            "{:x} has received {} {response} votes and {} vote rejections",
            self.config.id,
            tally.granted,
            tally.rejected
        );
        match tally.result {
            VoteResult::Won if self.role == Role::PreCandidate => self.campaign(Campaign::Election),
            VoteResult::Won => {
                self.become_leader();
                self.broadcast_append();
            }
            VoteResult::Lost => self.become_follower(self.term, NONE),
            VoteResult::Pending => {}
        }
    }
}
