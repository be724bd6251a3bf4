//! The consensus state of one member, and how messages and ticks change it.
//!
//! This module contains the state, the handling of terms, and the dispatch of messages. The modules
//! `election`, `proposal`, `replication`, `snapshot`, `read_index`, `transfer` and `membership` add
//! methods to [`Raft`]. The application uses [`Node`](crate::Node), which checks input from outside
//! and turns the state into [`Ready`](crate::Ready)s.
//!
//! # Invariants
//!
//! * The term never decreases; within a term there is at most one vote.
//! * A message that [attests](crate::MessageKind::attests_durability) to durable state is sent only
//!   after that state has been written; until then it waits in `messages_after_append`.
//! * A member's behaviour is a function of its configuration and the sequence of messages, requests,
//!   reports and ticks.

use std::cmp::Ordering;

use quorate_seeded_random::SplitMix64;

use crate::confchange;
use crate::config::Config;
use crate::entry::{Entry, EntryId, MemberId, NONE, encoded_bytes, payload_bytes};
use crate::error::{ConfigError, StepError};
use crate::log::RaftLog;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::{Notes, note};
use crate::pending_reads::{PendingReads, ReadRequest};
use crate::positions::TERM_END;
use crate::received::{
    Acknowledgement, Body, Received, Replication, Request, Round, Vote, VoteRequest,
};
use crate::state::{HardState, ReadState, Role, SoftState};
use crate::storage::Storage;
use crate::term::Term;
use crate::tracker::{InflightLimits, Tracker};
use crate::unstable::StaleReport;

/// One member's consensus state.
#[derive(Debug)]
pub(crate) struct Raft<S> {
    pub(crate) config: Config,
    pub(crate) term: Term,
    pub(crate) vote: MemberId,
    pub(crate) role: Role,
    pub(crate) leader: MemberId,
    pub(crate) is_learner: bool,
    pub(crate) log: RaftLog<S>,
    pub(crate) tracker: Tracker,

    /// Messages to other members that may be sent immediately.
    pub(crate) messages: Vec<Message>,
    /// Messages, including those to this member itself, that may be sent once all current state is
    /// durable.
    pub(crate) messages_after_append: Vec<Message>,
    pub(crate) read_states: Vec<ReadState>,
    /// The index that this member last acknowledged, and the term of the leader that received the acknowledgement.
    pub(crate) acknowledged: EntryId,

    pub(crate) reads: PendingReads,
    /// Read requests that arrived before this leader committed an entry of its term.
    pub(crate) parked_reads: Vec<ReadRequest>,
    /// The member to which this leader is transferring leadership.
    pub(crate) transferee: MemberId,
    /// The last membership change in the log is at or before this index. Until all entries up to
    /// this index are applied, no other change may be proposed.
    pub(crate) pending_conf_index: LogIndex,
    /// Whether this leader announces a commit only with its next append ([`crate::Node::defer_commit_notices`]).
    pub(crate) defers_commit_notices: bool,
    /// Number of payload bytes that this leader has appended and that have not been reported as applied.
    pub(crate) uncommitted_bytes: u64,

    pub(crate) election_elapsed: u32,
    pub(crate) heartbeat_elapsed: u32,
    pub(crate) election_timeout: u32,
    random: SplitMix64,
    pub(crate) notes: Notes,
}

impl<S: Storage> Raft<S> {
    /// Creates a follower with the state in `storage`.
    pub(crate) fn new(config: Config, storage: S) -> Result<Self, ConfigError> {
        let config = config.validated()?;
        let (hard_state, conf_state) = storage.initial_state();
        let limits = InflightLimits {
            count_max: config.max_inflight_count,
            bytes_max: config.max_inflight_bytes,
        };
        let mut raft = Self {
            term: Term::ZERO,
            vote: NONE,
            role: Role::Follower,
            leader: NONE,
            is_learner: false,
            log: RaftLog::new(storage, config.max_committed_size_per_ready),
            tracker: Tracker::new(limits),
            messages: Vec::new(),
            messages_after_append: Vec::new(),
            read_states: Vec::new(),
            acknowledged: EntryId::default(),
            reads: PendingReads::default(),
            parked_reads: Vec::new(),
            transferee: NONE,
            pending_conf_index: LogIndex::ZERO,
            defers_commit_notices: false,
            uncommitted_bytes: 0,
            election_elapsed: 0,
            heartbeat_elapsed: 0,
            election_timeout: 0,
            random: SplitMix64::new(config.seed),
            notes: Notes::new(config.note_level),
            config,
        };
        let (members, progress) = confchange::restore(&conf_state, raft.log.last_index(), limits)
            .map_err(ConfigError::ConfState)?;
        raft.switch_configuration(members, progress);
        raft.load(hard_state)?;
        raft.become_follower(raft.term, NONE);
        raft.note_start();
        Ok(raft)
    }

    fn load(&mut self, hard_state: HardState) -> Result<(), ConfigError> {
        let (first, last) = (self.log.committed(), self.log.last_index());
        let last_term = self.log.last_id().term;
        let stored_term = hard_state.term.max(last_term);
        if stored_term >= TERM_END {
            return Err(ConfigError::Term(stored_term));
        }
        if !hard_state.is_empty() {
            let commit = hard_state.commit;
            if !(first..=last).contains(&commit) {
                return Err(ConfigError::Commit { commit, first, last });
            }
            self.log.commit_to(commit);
            self.term = hard_state.term;
            self.vote = hard_state.vote;
        }
        // The log may have been cut off between an entry and the hard state of the entry's term. This member has not
        // voted in that term, because a vote is stored before it is sent.
        if last > first && self.term < last_term {
            self.term = last_term;
            self.vote = NONE;
        }
        if self.config.applied > LogIndex::ZERO {
            let (applied, commit) = (self.config.applied, self.log.committed());
            if !(first..=commit).contains(&applied) {
                return Err(ConfigError::Applied { applied, first, commit });
            }
            self.log.applied_to(applied, 0);
        }
        Ok(())
    }

    fn note_start(&mut self) {
        let peers: Vec<_> =
            self.tracker.config.voters.ids().iter().map(|id| format!("{id:x}")).collect();
        let last = self.log.last_id();
        note!(
            self,
            Info,
            "newRaft {:x} [peers: [{}], term: {}, commit: {}, applied: {}, lastindex: {}, \
             lastterm: {}]",
            self.config.id,
            peers.join(","),
            self.term,
            self.log.committed(),
            self.log.applied(),
            last.index,
            last.term,
        );
    }

    pub(crate) fn hard_state(&self) -> HardState {
        HardState { term: self.term, vote: self.vote, commit: self.log.committed() }
    }

    pub(crate) fn soft_state(&self) -> SoftState {
        SoftState { leader: self.leader, role: self.role }
    }

    /// Advances the member's timers by one tick.
    pub(crate) fn tick(&mut self) {
        match self.role {
            Role::Leader => self.tick_leader(),
            Role::Follower | Role::PreCandidate | Role::Candidate => self.tick_election(),
        }
    }

    /// Advances the member's timers by one tick, but does not let the member campaign.
    pub(crate) fn tick_without_campaign(&mut self) {
        match self.role {
            Role::Leader => self.tick_leader(),
            Role::Follower | Role::PreCandidate | Role::Candidate => {
                if self.election_comes_due() {
                    self.forget_leader();
                }
            }
        }
    }

    /// Processes a message. `Node` has already checked its terms and indexes.
    pub(crate) fn step(&mut self, message: Received) -> Result<(), StepError> {
        if message.term != Term::ZERO {
            match message.term.cmp(&self.term) {
                Ordering::Greater => {
                    if !self.enter_higher_term(&message) {
                        return Ok(());
                    }
                }
                Ordering::Less => {
                    self.answer_lower_term(&message);
                    return Ok(());
                }
                Ordering::Equal => {}
            }
        }
        let Received { from, term, body, .. } = message;
        match body {
            Body::Request(request) => return self.step_request(from, term, request),
            Body::Replication(replication) => {
                return self.step_replication(from, term, replication);
            }
            Body::Acknowledgement(acknowledgement) if self.role == Role::Leader => {
                return self.step_acknowledgement(from, acknowledgement);
            }
            Body::VoteRequest(request) => self.handle_vote_request(&request),
            Body::Vote(vote) if self.awaits_votes_of(vote.round) => self.handle_vote(from, vote),
            Body::TimeoutNow => self.handle_timeout_now(from),
            Body::ReadAnswer(answer) if self.role == Role::Follower => {
                self.read_states.push(answer);
            }
            // Ignore responses to requests that this member sent in an earlier role.
            Body::Acknowledgement(_) | Body::Vote(_) | Body::ReadAnswer(_) => {}
        }
        Ok(())
    }

    /// Enters the higher term of a message, unless the message is a pre-vote that leaves the term
    /// unchanged or a vote request to be ignored. Returns whether the message must be processed.
    fn enter_higher_term(&mut self, message: &Received) -> bool {
        let mut leader = NONE;
        match &message.body {
            Body::VoteRequest(request) if self.is_leader_lease_held(request) => return false,
            // A pre-vote request and its approval carry a term that the candidate itself has not entered, so this
            // member does not enter it either. A refusal carries the voter's own, higher term.
            Body::VoteRequest(VoteRequest { round: Round::PreVote, .. })
            | Body::Vote(Vote { round: Round::PreVote, is_granted: true }) => return true,
            Body::Replication(_) => leader = message.from,
            Body::Request(_)
            | Body::Acknowledgement(_)
            | Body::VoteRequest(_)
            | Body::Vote(_)
            | Body::TimeoutNow
            | Body::ReadAnswer(_) => {}
        }
        note!(
            self,
            Info,
            "{:x} [term: {}] received a {} message with higher term from {:x} [term: {}]",
            self.config.id,
            self.term,
            message.kind,
            message.from,
            message.term,
        );
        self.become_follower(message.term, leader);
        true
    }

    /// Drops a message with a lower term, but responds to senders that need to receive the current term.
    fn answer_lower_term(&mut self, message: &Received) {
        let knows_leases = self.config.check_quorum || self.config.pre_vote;
        match &message.body {
            // This response carries the current term to a former leader. With leases or pre-votes,
            // that leader might never receive the term otherwise, because other members would
            // ignore this member's campaigns.
            Body::Replication(Replication::Append(_) | Replication::Heartbeat(_))
                if knows_leases =>
            {
                self.send(Message::new(MessageKind::AppendResponse, message.from));
            }
            // A candidate with a lower term also needs the current term. Members that do not know the candidate send it
            // no other message, so without this response, it would reach their term only after many elections.
            Body::VoteRequest(request) => self.reject_vote(request),
            Body::Request(_)
            | Body::Replication(_)
            | Body::Acknowledgement(_)
            | Body::Vote(_)
            | Body::TimeoutNow
            | Body::ReadAnswer(_) => {
                note!(
                    self,
                    Info,
                    "{:x} [term: {}] ignored a {} message with lower term from {:x} [term: {}]",
                    self.config.id,
                    self.term,
                    message.kind,
                    message.from,
                    message.term,
                );
            }
        }
    }

    /// Processes a request for the leader. If `from` is this member's id, this member made the
    /// request.
    pub(crate) fn step_request(
        &mut self,
        from: MemberId,
        term: Term,
        request: Request,
    ) -> Result<(), StepError> {
        match (request, self.role) {
            (Request::Propose(entries), Role::Leader) => return self.handle_proposal(entries),
            (Request::Propose(entries), Role::Follower) => {
                return self.forward_proposal(from, entries);
            }
            (Request::Propose(_), Role::PreCandidate | Role::Candidate) => {
                let (id, term) = (self.config.id, self.term);
                note!(self, Info, "{id:x} no leader at term {term}; dropping proposal");
                return Err(StepError::ProposalDropped);
            }
            (Request::ReadIndex(context), Role::Leader) => {
                self.handle_read_index(ReadRequest { from, context });
            }
            (Request::ReadIndex(context), Role::Follower) => {
                self.forward_read_index(ReadRequest { from, context });
            }
            (Request::TransferLeader, Role::Leader) => self.handle_transfer_leader(from),
            (Request::TransferLeader, Role::Follower) => self.forward_transfer(from, term),
            // A candidate has no leader to which it could forward the request.
            (
                Request::ReadIndex(_) | Request::TransferLeader,
                Role::PreCandidate | Role::Candidate,
            ) => {}
        }
        Ok(())
    }

    fn step_replication(
        &mut self,
        from: MemberId,
        term: Term,
        replication: Replication,
    ) -> Result<(), StepError> {
        match self.role {
            // A term has only one leader, so the message cannot be genuine.
            Role::Leader => return Ok(()),
            // Another member has won the election of this term.
            Role::PreCandidate | Role::Candidate => self.become_follower(term, from),
            Role::Follower => {
                self.election_elapsed = 0;
                self.leader = from;
            }
        }
        match replication {
            Replication::Append(append) => self.handle_append(from, term, append),
            Replication::Heartbeat(heartbeat) => self.handle_heartbeat(from, heartbeat),
            Replication::Snapshot(snapshot) => self.handle_snapshot(from, *snapshot),
        }
    }

    fn step_acknowledgement(
        &mut self,
        from: MemberId,
        acknowledgement: Acknowledgement,
    ) -> Result<(), StepError> {
        match acknowledgement {
            Acknowledgement::Appended(index) => self.handle_append_accepted(from, index)?,
            Acknowledgement::AppendRefused(refused) => self.handle_append_refused(from, refused),
            Acknowledgement::Heartbeat(context) => self.handle_heartbeat_response(from, &context),
        }
        Ok(())
    }

    /// Processes the report from this member's log thread that the log is durable up to an index,
    /// or that a snapshot is installed.
    pub(crate) fn handle_append_written(&mut self, report: Message) {
        let id = EntryId { term: report.log_term, index: report.index };
        if id.index == LogIndex::ZERO {
            // The report covers only a snapshot.
        } else if report.term < self.term {
            // The written entries may have been replaced in a newer term, and their replacements may not be written
            // yet. A later report covers the replacements. A snapshot is never replaced.
            note!(
                self,
                Info,
                "{:x} [term: {}] ignored entry appends from a {} message with lower term [term: {}]",
                self.config.id,
                self.term,
                report.kind,
                report.term,
            );
        } else if let Err(stale) = self.log.unstable.stable_to(id) {
            self.note_stale_report(id, stale);
        }
        if let Some(snapshot) = report.snapshot {
            let index = snapshot.metadata.index;
            self.log.unstable.stable_snapshot_to(index);
            self.applied_to(index, 0);
        }
    }

    fn note_stale_report(&mut self, id: EntryId, stale: StaleReport) {
        let EntryId { term, index } = id;
        match stale {
            StaleReport::Missing => {
                note!(self, Info, "entry at index {index} missing from unstable log; ignoring");
            }
            StaleReport::IsSnapshot => {
                note!(self, Info, "entry at index {index} matched unstable snapshot; ignoring");
            }
            StaleReport::Replaced(own) => {
                note!(
                    self,
                    Info,
                    "entry at (index,term)=({index},{term}) mismatched with entry at \
                     ({index},{own}) in unstable log; ignoring"
                );
            }
        }
    }

    /// Records a report from the thread that applies entries.
    pub(crate) fn handle_entries_applied(&mut self, entries: &[Entry]) {
        if let Some(last) = entries.last() {
            let (encoded, payload) = (encoded_bytes(entries), payload_bytes(entries));
            self.entries_applied(last.index, encoded, payload);
        }
    }

    /// Records that the state machine has applied entries up to `last`.
    pub(crate) fn entries_applied(&mut self, last: LogIndex, encoded: u64, payload: u64) {
        self.applied_to(last, encoded);
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(payload);
    }

    fn applied_to(&mut self, index: LogIndex, encoded_bytes: u64) {
        // The reported index may be lower than the applied index, because a later snapshot may have been installed
        // while the reported entries were being applied.
        self.log.applied_to(index.max(self.log.applied()), encoded_bytes);
        self.leave_joint_if_due();
    }

    /// Sends a message from this member in its current term.
    pub(crate) fn send(&mut self, message: Message) {
        self.send_in_term(self.term, message);
    }

    /// Sends a message from this member with the given term. In a pre-vote, this term differs from the member's own
    /// term.
    pub(crate) fn send_in_term(&mut self, term: Term, message: Message) {
        assert!(
            term != Term::ZERO,
            "a message from this member has a term: otherwise its receiver would treat it as a forwarded request"
        );
        self.schedule(Message { from: self.config.id, term, ..message });
    }

    /// Forwards a member's request to the leader. The request carries no term, because this member only passes it on.
    pub(crate) fn forward(&mut self, from: MemberId, request: Message) {
        self.schedule(Message { from, to: self.leader, term: Term::ZERO, ..request });
    }

    /// Queues a message. A message that attests to durable state waits until that state is written.
    pub(crate) fn schedule(&mut self, message: Message) {
        if message.kind.attests_durability() {
            self.messages_after_append.push(message);
        } else {
            assert!(
                message.to != self.config.id,
                "a message of kind {} is sent only to other members",
                message.kind
            );
            self.messages.push(message);
        }
    }

    pub(crate) fn draw_election_timeout(&mut self) {
        let base = self.config.election_tick;
        let jitter = self.random.below(u64::from(base));
        let jitter =
            u32::try_from(jitter).expect("`below(base)` is less than `base`, which is a u32");
        self.election_timeout = base + jitter;
    }
}
