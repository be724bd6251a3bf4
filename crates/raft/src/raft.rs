//! The consensus state of one member, and how messages and ticks change it.
//!
//! This module has the state, the terms, and the dispatch of messages. The modules `election`,
//! `proposal`, `replication`, `snapshot`, `read_index`, `transfer` and `membership` add methods to
//! [`Raft`]. The application uses [`Node`](crate::Node), which checks input from outside and turns
//! the state into [`Ready`](crate::Ready)s.
//!
//! # Invariants
//!
//! * The term never decreases; within a term there is at most one vote.
//! * A message that [attests](crate::MessageKind::attests_durability) state leaves only after that
//!   state is durable: it waits in `messages_after_append`.
//! * All input passes through [`Raft::step`], including local events, so that a member's behaviour
//!   is a function of its configuration and the sequence of messages and ticks.

use std::cmp::Ordering;

use quorate_seeded_random::SplitMix64;

use crate::confchange;
use crate::config::Config;
use crate::entry::{EntryId, MemberId, NONE};
use crate::error::{ConfigError, StepError};
use crate::log::RaftLog;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::{Notes, note};
use crate::pending_reads::PendingReads;
use crate::positions::TERM_END;
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

    /// Messages to other members that may be sent at once.
    pub(crate) messages: Vec<Message>,
    /// Messages, also to this member, that may be sent when all current state is durable.
    pub(crate) messages_after_append: Vec<Message>,
    pub(crate) read_states: Vec<ReadState>,

    pub(crate) reads: PendingReads,
    /// Read requests that arrived before the leader committed an entry in its term.
    pub(crate) parked_reads: Vec<Message>,
    /// The member to which this leader is transferring leadership.
    pub(crate) transferee: MemberId,
    /// The last membership change in the log is at or before this index. Until it is applied, no
    /// other change may be proposed.
    pub(crate) pending_conf_index: LogIndex,
    /// Payload bytes that this leader has appended and that are not known to be applied.
    pub(crate) uncommitted_bytes: u64,

    pub(crate) election_elapsed: u32,
    pub(crate) heartbeat_elapsed: u32,
    pub(crate) election_timeout: u32,
    random: SplitMix64,
    pub(crate) notes: Notes,
}

impl<S: Storage> Raft<S> {
    /// A follower that starts with the state in `storage`.
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
            reads: PendingReads::default(),
            parked_reads: Vec::new(),
            transferee: NONE,
            pending_conf_index: LogIndex::ZERO,
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

    /// Advances one tick.
    pub(crate) fn tick(&mut self) {
        match self.role {
            Role::Leader => self.tick_leader(),
            Role::Follower | Role::PreCandidate | Role::Candidate => self.tick_election(),
        }
    }

    /// Advances one tick for a member that must not campaign now.
    pub(crate) fn tick_without_campaign(&mut self) {
        match self.role {
            Role::Leader => self.tick_leader(),
            Role::Follower | Role::PreCandidate | Role::Candidate => {
                if self.election_comes_due() {
                    self.handle_forget_leader();
                }
            }
        }
    }

    /// Processes a message. `Node` has checked that it is well-formed.
    pub(crate) fn step(&mut self, message: Message) -> Result<(), StepError> {
        if message.term != Term::ZERO {
            match message.term.cmp(&self.term) {
                Ordering::Greater => {
                    if !self.enter_higher_term(&message) {
                        return Ok(());
                    }
                }
                Ordering::Less => {
                    self.answer_lower_term(message);
                    return Ok(());
                }
                Ordering::Equal => {}
            }
        }
        match message.kind {
            MessageKind::Hup => self.handle_hup(),
            MessageKind::StorageAppendResponse => self.handle_append_written(message),
            MessageKind::StorageApplyResponse => self.handle_entries_applied(message),
            MessageKind::Vote | MessageKind::PreVote => self.handle_vote_request(&message),
            MessageKind::Beat
            | MessageKind::Propose
            | MessageKind::Append
            | MessageKind::AppendResponse
            | MessageKind::VoteResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageApply
            | MessageKind::ForgetLeader => match self.role {
                Role::Follower => return self.step_follower(message),
                Role::PreCandidate | Role::Candidate => return self.step_candidate(message),
                Role::Leader => return self.step_leader(message),
            },
        }
        Ok(())
    }

    /// Enters the term of a message if that message ends the current term. Returns whether the
    /// message must be processed.
    fn enter_higher_term(&mut self, message: &Message) -> bool {
        match message.kind {
            MessageKind::Vote | MessageKind::PreVote if self.is_leader_lease_held(message) => {
                return false;
            }
            // A pre-vote and its approval have a term that no member has entered. A refusal has the
            // term of a voter that is further ahead.
            MessageKind::PreVote => return true,
            MessageKind::PreVoteResponse if !message.reject => return true,
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::Propose
            | MessageKind::Append
            | MessageKind::AppendResponse
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => {}
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
        let is_from_leader = matches!(
            message.kind,
            MessageKind::Append | MessageKind::Heartbeat | MessageKind::Snapshot
        );
        self.become_follower(message.term, if is_from_leader { message.from } else { NONE });
        true
    }

    /// A message of a lower term is dropped, but some senders need an answer.
    fn answer_lower_term(&mut self, message: Message) {
        let knows_leases = self.config.check_quorum || self.config.pre_vote;
        match message.kind {
            // This response gives a former leader the current term. With leases or pre-votes it
            // might never receive the term otherwise, because other members would ignore this
            // member's campaigns.
            MessageKind::Append | MessageKind::Heartbeat if knows_leases => {
                self.send(Message::new(MessageKind::AppendResponse, message.from));
            }
            // A candidate with a lower term also needs the term. If it uses no pre-vote, members
            // that do not know it as a member would never send it a term, and it would reach theirs
            // only by chance.
            MessageKind::PreVote | MessageKind::Vote => self.reject_vote(&message),
            MessageKind::StorageAppendResponse => {
                // Entries may have been replaced since the term ended, and the new ones may be on
                // their way to storage; a later report covers them. A snapshot is final.
                if message.index != LogIndex::ZERO {
                    note!(
                        self,
                        Info,
                        "{:x} [term: {}] ignored entry appends from a {} message with lower term \
                         [term: {}]",
                        self.config.id,
                        self.term,
                        message.kind,
                        message.term,
                    );
                }
                self.handle_snapshot_installed(message);
            }
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::Propose
            | MessageKind::Append
            | MessageKind::AppendResponse
            | MessageKind::VoteResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => {
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

    fn step_follower(&mut self, message: Message) -> Result<(), StepError> {
        match message.kind {
            MessageKind::Propose => return self.forward_proposal(message),
            MessageKind::Append => {
                self.hear_from_leader(message.from);
                return self.handle_append(message);
            }
            MessageKind::Heartbeat => {
                self.hear_from_leader(message.from);
                return self.handle_heartbeat(message);
            }
            MessageKind::Snapshot => {
                self.hear_from_leader(message.from);
                return self.handle_snapshot(message);
            }
            MessageKind::TransferLeader => self.forward_transfer(message),
            MessageKind::ForgetLeader => self.handle_forget_leader(),
            MessageKind::TimeoutNow => self.handle_timeout_now(&message),
            MessageKind::ReadIndex => self.forward_read_index(message),
            MessageKind::ReadIndexResponse => self.handle_read_index_response(message),
            // Responses to requests from an earlier role, and messages for other roles.
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::AppendResponse
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse => {}
        }
        Ok(())
    }

    fn hear_from_leader(&mut self, leader: MemberId) {
        self.election_elapsed = 0;
        self.leader = leader;
    }

    fn step_candidate(&mut self, message: Message) -> Result<(), StepError> {
        match message.kind {
            MessageKind::Propose => {
                note!(
                    self,
                    Info,
                    "{:x} no leader at term {}; dropping proposal",
                    self.config.id,
                    self.term
                );
                return Err(StepError::ProposalDropped);
            }
            // Another member has won the election of this term.
            MessageKind::Append => {
                self.become_follower(message.term, message.from);
                return self.handle_append(message);
            }
            MessageKind::Heartbeat => {
                self.become_follower(message.term, message.from);
                return self.handle_heartbeat(message);
            }
            MessageKind::Snapshot => {
                self.become_follower(message.term, message.from);
                return self.handle_snapshot(message);
            }
            MessageKind::VoteResponse | MessageKind::PreVoteResponse => {
                self.handle_vote_response(&message);
            }
            MessageKind::TimeoutNow => {
                note!(
                    self,
                    Debug,
                    "{:x} [term {} state State{:?}] ignored MsgTimeoutNow from {:x}",
                    self.config.id,
                    self.term,
                    self.role,
                    message.from,
                );
            }
            // A candidate knows no leader to forward these to, and no member follows it.
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::AppendResponse
            | MessageKind::Vote
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVote
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => {}
        }
        Ok(())
    }

    fn step_leader(&mut self, message: Message) -> Result<(), StepError> {
        match message.kind {
            MessageKind::Beat => self.broadcast_heartbeat(),
            MessageKind::CheckQuorum => self.handle_check_quorum(),
            MessageKind::Propose => return self.handle_proposal(message),
            MessageKind::ReadIndex => self.handle_read_index(message),
            MessageKind::AppendResponse => return self.handle_append_response(&message),
            MessageKind::HeartbeatResponse => self.handle_heartbeat_response(&message),
            MessageKind::SnapshotStatus => self.handle_snapshot_status(&message),
            MessageKind::Unreachable => self.handle_unreachable(&message),
            MessageKind::TransferLeader => self.handle_transfer_leader(&message),
            // No other member leads in this term, and the remaining votes have no effect.
            MessageKind::Hup
            | MessageKind::Append
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => {}
        }
        Ok(())
    }

    /// The log is durable up to an index, or a snapshot is installed.
    fn handle_append_written(&mut self, message: Message) {
        let id = EntryId { term: message.log_term, index: message.index };
        if id.index != LogIndex::ZERO
            && let Err(stale) = self.log.unstable.stable_to(id)
        {
            self.note_stale_report(id, stale);
        }
        self.handle_snapshot_installed(message);
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

    fn handle_snapshot_installed(&mut self, message: Message) {
        if let Some(snapshot) = message.snapshot {
            let index = snapshot.metadata.index;
            self.log.unstable.stable_snapshot_to(index);
            self.applied_to(index, 0);
        }
    }

    fn handle_entries_applied(&mut self, message: Message) {
        if let Some(last) = message.entries.last() {
            let encoded = crate::entry::encoded_bytes(&message.entries);
            let payload = crate::entry::payload_bytes(&message.entries);
            self.entries_applied(last.index, encoded, payload);
        }
    }

    /// Records that the state machine has applied entries up to `last`.
    pub(crate) fn entries_applied(&mut self, last: LogIndex, encoded: u64, payload: u64) {
        self.applied_to(last, encoded);
        self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(payload);
    }

    fn applied_to(&mut self, index: LogIndex, encoded_bytes: u64) {
        // A snapshot may have been installed after entries beyond it were applied.
        self.log.applied_to(index.max(self.log.applied()), encoded_bytes);
        self.leave_joint_if_due();
    }

    /// Schedules a message, giving it sender and term.
    pub(crate) fn send(&mut self, mut message: Message) {
        if message.from == NONE {
            message.from = self.config.id;
        }
        match message.kind {
            MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse => {
                assert!(message.term != Term::ZERO, "a campaign names the term it is about");
            }
            // A forwarded message is not a statement of this member.
            MessageKind::Propose | MessageKind::ReadIndex => message.term = Term::ZERO,
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::Append
            | MessageKind::AppendResponse
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndexResponse
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => message.term = self.term,
        }
        if message.kind.attests_durability() {
            self.messages_after_append.push(message);
        } else {
            assert!(message.to != self.config.id, "a member sends {} to others", message.kind);
            self.messages.push(message);
        }
    }

    pub(crate) fn draw_election_timeout(&mut self) {
        let base = self.config.election_tick;
        let jitter = self.random.below(u64::from(base));
        let jitter = u32::try_from(jitter).expect("a remainder is below its divisor");
        self.election_timeout = base + jitter;
    }
}
