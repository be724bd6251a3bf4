//! The node: events in, effects out.

mod confirming;
mod cut;
mod handing_over;
mod holdings;
mod proposing;
mod room;

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_raft::{
    ConfChange, ConfState, ConfigError, Entry, HardState, LogIndex, MemberId, MemoryStorage,
    Message, MessageKind, NONE, Note, NoteLevel, ReadState, RefusalKind, Snapshot,
    SnapshotMetadata, SnapshotOutcome, SoftState, Status, StepError, Term,
};
use thiserror::Error;

use crate::confirmation::Confirmation;
use crate::disk_watch::DiskWatch;
use crate::early_appends::EarlyAppends;
use crate::effect::{BarrierFailure, Effect, Leadership, LogFault};
use crate::event::Event;
use crate::limits;
use crate::persistence::Persistence;
use crate::proposals::{Content, Proposals};
use crate::read_barrier::ReadBarriers;
use crate::refusals::{Refusals, Source};
use crate::room_watch::RoomWatch;
use crate::snapshot_policy::SnapshotPolicy;
use crate::succession::Succession;

/// How a node starts, and its pace.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member.
    pub id: MemberId,
    /// Ticks without a leader before a member stands for election; the actual number is drawn from
    /// once to twice this.
    pub election_ticks: u32,
    /// Whether a candidate first asks if it could win.
    pub pre_vote: bool,
    /// Whether the first election is not waited for in full.
    pub initial_tick_advance: bool,
    /// Seed of the election jitter.
    pub seed: u64,
    /// First name for read index requests; see [`crate::Event::ReadBarrier`].
    pub first_read_request_id: u64,
    /// Ticks after which a proposal that found no leader is forgotten.
    pub proposal_ticks_max: u64,
    /// Whether a member gives way while its disk is stuck.
    pub fences_stalled_disk: bool,
    /// When to take snapshots.
    pub snapshot_policy: SnapshotPolicy,
    /// The hard state found in the log.
    pub hard_state: HardState,
    /// The members that the state machine knows.
    pub conf_state: ConfState,
    /// The position before the first of `entries`: the snapshot's, or 0.
    pub snapshot_index: LogIndex,
    /// The term at that position.
    pub snapshot_term: Term,
    /// The entries found in the log after the snapshot.
    pub entries: Vec<Entry>,
    /// The last entry whose effects the state machine already has.
    pub applied: LogIndex,
}

/// A membership change that came before its predecessor was applied.
///
/// The core would make an empty entry of it, and whoever proposed it would wait in vain. That happens to
/// somebody who does nothing wrong: a follower may have applied a change, and told its client, before the
/// leader has.
#[derive(Debug)]
enum HeldChange {
    Own(u64, ConfChange),
    /// From a peer, to be handed on as it is.
    Forwarded(Message),
}

/// Why a node cannot start from what was found on disk.
#[derive(Debug, Error)]
pub enum StartError {
    /// The log is shorter than what was applied: something was lost after it had been durable.
    #[error(
        "the write-ahead log ends at index {last_index}, but entry {applied} has already been applied; the log has lost entries"
    )]
    LogLost {
        /// Where the log ends.
        last_index: LogIndex,
        /// What has been applied.
        applied: LogIndex,
    },
    /// The consensus core refuses the configuration.
    #[error("consensus refuses to start")]
    Refused(#[from] ConfigError),
}

/// One member's decisions; see the crate.
#[derive(Debug)]
pub struct Node {
    raft: quorate_raft::Node<MemoryStorage>,
    persistence: Persistence,
    proposals: Proposals,
    barriers: ReadBarriers,
    early_appends: EarlyAppends,
    /// Membership changes that wait for the one before them to be applied here.
    held_changes: VecDeque<HeldChange>,
    confirmation: Confirmation,
    disk_watch: DiskWatch,
    room_watch: RoomWatch,
    /// The voter that is to lead instead of this leader, whose disk is stuck.
    heir: Option<MemberId>,
    succession: Succession,
    policy: SnapshotPolicy,
    notes: Vec<Note>,
    effects: VecDeque<Effect>,
    leadership: Leadership,
    conf_state: ConfState,
    /// Changes of the membership up to here are known to the core by the state or the snapshot it began with,
    /// whatever is decided of their entries later. The snapshot may still be on its way to the disk.
    conf_state_index: LogIndex,
    /// In whose term an append was last found to fit the log.
    matched_in: Term,
    applied: LogIndex,
    last_snapshot: LogIndex,
    /// Whether a snapshot was asked for and not yet reported.
    taking_snapshot: bool,
    /// Whether this leader has committed an entry of its own term.
    committed_in_term: bool,
    initial_ticks: u32,
    refusals: Refusals,
    refused_for_room: u64,
    /// After a fault nothing is done any more.
    is_stopped: bool,
}

impl Node {
    /// Builds a node from what is on disk.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let last_index = config.entries.last().map_or(config.snapshot_index, |last| last.index);
        if last_index < config.applied {
            return Err(StartError::LogLost { last_index, applied: config.applied });
        }
        // What is applied was committed, whatever the hard state had time to say.
        let hard_state =
            HardState { commit: config.hard_state.commit.max(config.applied), ..config.hard_state };
        let metadata = SnapshotMetadata {
            conf_state: config.conf_state.clone(),
            index: config.snapshot_index,
            term: config.snapshot_term,
        };
        let snapshot = Snapshot { data: Bytes::new(), metadata };
        let mut storage = MemoryStorage::recover(hard_state, snapshot, config.entries);
        if config.applied > config.snapshot_index {
            // Where a peer that needs a snapshot is brought to, at least.
            let recorded =
                storage.create_snapshot(config.applied, config.conf_state.clone(), Bytes::new());
            recorded.expect("the log was found to reach what is applied");
        }
        let raft = quorate_raft::Node::new(
            quorate_raft::Config {
                election_tick: config.election_ticks,
                max_size_per_message: limits::APPEND_BYTES_MAX,
                max_committed_size_per_ready: limits::APPLYING_BYTES_MAX,
                max_uncommitted_size: limits::UNCOMMITTED_BYTES_MAX,
                max_inflight_count: limits::INFLIGHT_APPENDS_MAX,
                pre_vote: config.pre_vote,
                async_storage_writes: true,
                applied: config.applied,
                ..quorate_raft::Config::new(config.id, config.seed)
            },
            storage,
        )?;
        Ok(Self {
            raft,
            persistence: Persistence::new(config.hard_state),
            proposals: Proposals::new(config.proposal_ticks_max),
            barriers: ReadBarriers::new(config.first_read_request_id),
            early_appends: EarlyAppends::default(),
            held_changes: VecDeque::new(),
            confirmation: Confirmation::default(),
            disk_watch: DiskWatch::new(
                config.fences_stalled_disk.then_some(u64::from(config.election_ticks)),
            ),
            room_watch: RoomWatch::new(config.election_ticks),
            heir: None,
            succession: Succession::default(),
            notes: Vec::new(),
            policy: config.snapshot_policy,
            effects: VecDeque::new(),
            leadership: Leadership::default(),
            conf_state: config.conf_state,
            conf_state_index: config.applied,
            matched_in: Term::ZERO,
            applied: config.applied,
            last_snapshot: config.snapshot_index,
            taking_snapshot: false,
            committed_in_term: false,
            initial_ticks: if config.initial_tick_advance { config.election_ticks - 1 } else { 0 },
            refusals: Refusals::default(),
            refused_for_room: 0,
            is_stopped: false,
        })
    }
}

impl Node {
    /// Starts the clock: called once, before the first event. A lone voter stands for election at once.
    pub fn start(&mut self) {
        // All that the log has was read, and what is applied may be most of it.
        self.cut_log();
        if !self.is_sole_voter() {
            for _ in 0..self.initial_ticks {
                self.raft.tick();
            }
        }
        self.stand_if_alone();
        self.settle();
    }

    /// A lone voter has nobody to wait for. It cannot stand while changes of the membership are
    /// unapplied, so it tries again whenever something was applied.
    fn stand_if_alone(&mut self) {
        let is_due = self.is_sole_voter() && self.raft.leader() == NONE;
        if is_due && !self.raft.has_unapplied_conf_change() {
            self.raft.campaign();
        }
    }

    /// Takes an event. Its effects are then polled.
    pub fn handle(&mut self, event: Event) {
        if self.is_stopped {
            return;
        }
        match event {
            Event::Tick => self.handle_tick(),
            Event::Propose(proposals) => self.handle_propose(proposals),
            Event::Withdraw(request_ids) => self.proposals.forget(&request_ids),
            Event::ProposeConfChange { request_id, change } => {
                self.propose(vec![(request_id, Content::ConfChange(change))]);
            }
            Event::ReadBarrier { round } => self.start_barrier(vec![round]),
            Event::Received(messages) => self.handle_received(messages),
            Event::Persisted { token } => self.handle_persisted(token),
            Event::Applied { index } => self.handle_applied(index),
            Event::ConfChangeDecided { index, change } => self.decide_conf_change(index, change),
            Event::SnapshotTaken { index } => {
                self.last_snapshot = self.last_snapshot.max(index);
                self.taking_snapshot = false;
            }
            Event::Unreachable(peer) => self.raft.report_unreachable(peer),
            Event::Gone(peer) => self.handle_gone(peer),
            Event::SnapshotSent { to, outcome } => self.handle_snapshot_sent(to, outcome),
            Event::TransferLeadership(to) => self.raft.transfer_leader(to),
            Event::BackendRoom { is_short } => self.room_watch.note(is_short),
        }
        self.propose_held_changes();
        self.propose_waiting();
        // What a fault has left in the core is not to be written, sent or applied.
        if !self.is_stopped {
            self.settle();
        }
    }

    /// The next thing to do, if any.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// A hard state that is known and that no [`Effect::Persist`] has carried.
    #[must_use]
    pub fn unwritten_hard_state(&self) -> Option<HardState> {
        self.persistence.unwritten()
    }

    /// The last entry known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.raft.commit_index()
    }

    /// Who leads.
    #[must_use]
    pub const fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// Whether this member decides alone.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.conf_state.voters_outgoing.is_empty() && self.conf_state.voters == [self.raft.id()]
    }

    /// What is worth a line in the log since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.append(&mut self.raft.take_notes());
        notes
    }

    /// A copy of what the consensus core knows of the group.
    #[must_use]
    pub fn status(&self) -> Status {
        self.raft.status()
    }

    /// How many messages with entries, and requests, have found no room in the log since the last call.
    pub fn take_refused_for_room(&mut self) -> u64 {
        std::mem::take(&mut self.refused_for_room)
    }

    fn handle_tick(&mut self) {
        self.persistence.tick();
        self.watch_disk();
        self.watch_room();
        self.tick_raft();
        if self.disk_watch.is_stalled() {
            self.hand_over();
        }
        for message in self.early_appends.take_all() {
            self.step_received(message);
        }
        assert!(
            self.heir.is_none() || self.disk_watch.is_stalled(),
            "a leader withholds heartbeats only while its disk is stalled: otherwise it would stay without a quorum"
        );
        self.refusals.tick();
        self.proposals.tick();
        let overdue = self.barriers.tick();
        if !overdue.is_empty() {
            self.start_barrier(overdue);
        }
    }

    /// Lets the clock of consensus go on, also where the log cannot be written: a leader without a quorum has to step
    /// down, and a follower to notice that it has no leader.
    fn tick_raft(&mut self) {
        let (led, before) = (self.raft.is_leader(), self.raft.election_elapsed());
        if self.disk_watch.is_stalled() {
            self.raft.tick_without_campaign();
        } else {
            if self.succession.tick(self.raft.leader(), self.raft.term()) {
                self.raft.campaign();
            }
            self.raft.tick();
        }
        let is_round_over = before + 1 >= self.raft.config().election_tick;
        let expected = if is_round_over { 0 } else { before + 1 };
        assert!(
            !led || !self.raft.is_leader() || self.raft.election_elapsed() == expected,
            "a leader's clock goes on with every tick: while it stands, the leader never looks for its quorum and leads \
             for ever"
        );
    }

    fn decide_conf_change(&mut self, index: LogIndex, change: Option<ConfChange>) {
        // A snapshot that was taken in meanwhile knows better.
        if index <= self.conf_state_index {
            return;
        }
        // A refused change still has to be accounted for by the core; node 0 makes it a no-op.
        // The core refuses to be left without a voter; the group then keeps what it has.
        if let Ok(conf_state) = self.raft.apply_conf_change(change.unwrap_or_default()) {
            self.conf_state = conf_state;
        }
    }

    fn start_barrier(&mut self, rounds: Vec<u64>) {
        match self.barriers.start(rounds) {
            Ok(name) => self.raft.read_index(name),
            Err(rounds) => self.fail_barriers(rounds, BarrierFailure::QueueFull),
        }
    }

    fn fail_barriers(&mut self, rounds: Vec<u64>, failure: BarrierFailure) {
        self.effects
            .extend(rounds.into_iter().map(|round| Effect::BarrierFailed { round, failure }));
    }

    fn handle_received(&mut self, messages: Vec<Message>) {
        for message in messages {
            if self.is_stopped {
                return;
            }
            if message.to != self.raft.id() {
                continue;
            }
            if matches!(message.kind, MessageKind::PreVote | MessageKind::Vote) {
                self.succession.step_back();
            }
            // A member that cannot write its log cannot be elected either.
            if message.kind == MessageKind::TimeoutNow && self.disk_watch.is_stalled() {
                continue;
            }
            // Handing over is for the leader to do; nobody else is asked, and nothing passed on.
            if message.kind == MessageKind::TransferLeader && !self.raft.is_leader() {
                continue;
            }
            if self.declines(&message) {
                continue;
            }
            if message.kind == MessageKind::Propose {
                self.receive_proposal(message);
                continue;
            }
            if self.has_no_room_for(&message) {
                self.refused_for_room += 1;
                continue;
            }
            let Some(message) = self.keep_if_early(message) else { continue };
            self.step_received(message);
            while let Some(message) =
                self.early_appends.take_fitting(self.raft.term(), self.raft.last_index())
            {
                self.step_received(message);
            }
        }
    }

    /// Whether a message would make a log longer that is as long as it may be. The leader sends it again. What
    /// replaces entries is taken in: it may be what these wait for.
    fn has_no_room_for(&self, message: &Message) -> bool {
        message.kind == MessageKind::Append
            && !message.entries.is_empty()
            && message.term == self.raft.term()
            && message.index >= self.raft.last_index()
            && (self.unapplied_bytes() >= limits::UNAPPLIED_BYTES_MAX
                || self.log_bytes() >= limits::LOG_BYTES_MAX
                || self.persistence.is_full())
    }

    /// Keeps an append that has overtaken those before it. What comes first from a leader is no such one:
    /// it is how the leader finds out where this log ends.
    fn keep_if_early(&mut self, message: Message) -> Option<Message> {
        let term = self.raft.term();
        let is_early = message.kind == MessageKind::Append
            && message.term == term
            && message.term == self.matched_in
            && message.index > self.raft.last_index();
        if is_early { self.early_appends.keep(message) } else { Some(message) }
    }

    fn step_received(&mut self, mut message: Message) {
        if self.is_stopped {
            return;
        }
        let answer = match message.kind == MessageKind::HeartbeatResponse {
            true => {
                Confirmation::take_stamp(&mut message).map(|at| (message.from, message.term, at))
            }
            false => None,
        };
        let append = (message.kind == MessageKind::Append)
            .then(|| (message.term, message.index + message.entries.len() as u64));
        if let Err(refusal) = self.raft.step(message) {
            self.take_refusal(Source::Peer, refusal);
            return;
        }
        if let Some((from, term, sent_at)) = answer
            && self.raft.is_leader()
            && term == self.raft.term()
        {
            self.confirmation.note_answer(term, from, sent_at);
        }
        if let Some((term, last)) = append
            && term == self.raft.term()
            && last <= self.raft.last_index()
        {
            self.matched_in = term;
        }
    }

    /// What is sent wrongly changes nothing: the core has refused it and stays as it was. What tells that
    /// entries were lost ends this member, if it is the one to go.
    fn take_refusal(&mut self, source: Source, refusal: StepError) {
        let note = match refusal.kind() {
            RefusalKind::Ordinary => None,
            RefusalKind::Impossible => {
                self.refusals.note(NoteLevel::Warn, source, &refusal.to_string())
            }
            RefusalKind::Discord => {
                self.refusals.note(NoteLevel::Error, source, &refusal.to_string())
            }
            RefusalKind::LogLost => return self.stop(LogFault::LogLost(refusal)),
            RefusalKind::GroupLost => return self.stop(LogFault::GroupLost(refusal)),
        };
        self.notes.extend(note);
    }

    fn stop(&mut self, fault: LogFault) {
        self.is_stopped = true;
        self.effects.push_back(Effect::Stop(fault));
    }

    fn handle_persisted(&mut self, token: u64) {
        while let Some(write) = self.persistence.finish_write(token) {
            if let Some(snapshot) = write.snapshot {
                self.begin_log_at(snapshot);
            }
            self.raft.storage_mut().append(write.entries);
            self.deliver(write.responses);
        }
    }

    /// A leader's snapshot is in the log, which begins after it now; the state machine is to follow.
    fn begin_log_at(&mut self, snapshot: Snapshot) {
        self.conf_state = snapshot.metadata.conf_state.clone();
        assert!(
            snapshot.metadata.index > self.applied,
            "a snapshot from the leader is newer than the state machine: otherwise it would take back applied entries"
        );
        self.last_snapshot = snapshot.metadata.index;
        // One of this member's own that is under way is older, and may be dropped.
        self.taking_snapshot = false;
        self.raft
            .storage_mut()
            .apply_snapshot(snapshot.clone())
            .expect("the core takes in no snapshot older than the last");
        self.effects.push_back(Effect::InstallSnapshot(snapshot));
    }

    fn handle_snapshot_sent(&mut self, to: MemberId, outcome: SnapshotOutcome) {
        self.raft.report_snapshot(to, outcome);
    }

    fn handle_applied(&mut self, index: LogIndex) {
        assert!(index >= self.applied, "entries are applied in order");
        assert!(
            index <= self.raft.commit_index(),
            "only committed entries are applied: another leader could still replace entry {index}"
        );
        self.applied = index;
        let responses = self.persistence.finish_applications(index);
        self.deliver(responses);
        self.stand_if_alone();
        self.cut_log();
        if !self.taking_snapshot && self.policy.is_due(index, self.last_snapshot) {
            self.taking_snapshot = true;
            self.effects.push_back(Effect::TakeSnapshot);
        }
    }

    /// Delivers messages that waited for storage: to the core, or to peers.
    ///
    /// Of acknowledgements to a leader only the last is sent: it covers those before it.
    fn deliver(&mut self, messages: Vec<Message>) {
        let is_ack =
            |message: &Message| message.kind == MessageKind::AppendResponse && !message.reject;
        let last_ack = messages.iter().rev().find(|message| is_ack(message));
        let last_ack = last_ack.map(|ack| (ack.to, ack.term, ack.index));
        let is_superseded = |message: &Message| {
            is_ack(message)
                && last_ack.is_some_and(|(to, term, index)| {
                    (message.to, message.term) == (to, term) && message.index < index
                })
        };
        for message in messages {
            if message.to == self.raft.id() {
                self.step_own(message);
            } else if !is_superseded(&message) {
                self.effects.push_back(Effect::Send(message));
            }
        }
    }

    /// A report of this member's own storage. One that a newer term has overtaken is no refusal.
    pub(crate) fn step_own(&mut self, message: Message) {
        if let Err(refusal) = self.raft.step_local(message) {
            self.take_refusal(Source::Own, refusal);
        }
    }

    /// Takes everything the core wants done, until it wants nothing more.
    fn settle(&mut self) {
        while self.raft.has_ready() {
            let ready = self.raft.ready();
            if let Some(soft_state) = ready.soft_state {
                self.change_leadership(soft_state);
            }
            self.pass_barriers(ready.read_states);
            // A candidate asks for votes when its own is durable. Asked for sooner, and lost with the power, they could
            // elect it twice in one term: the others give a candidate again what they have given it before.
            let mut votes = Vec::new();
            for message in ready.messages {
                if message.kind == MessageKind::Vote {
                    votes.push(message);
                } else {
                    self.carry_out(message);
                }
            }
            if !votes.is_empty() {
                let durable_already = self.persistence.hold_back(votes);
                self.deliver(durable_already);
            }
            self.notice_first_commit();
        }
    }

    fn carry_out(&mut self, message: Message) {
        match message.kind {
            MessageKind::StorageAppend => match self.persistence.order_write(message) {
                Ok(persist) => {
                    if let Some(snapshot) = &persist.snapshot {
                        // The core goes by the snapshot's members from now on, not only once it is on disk.
                        self.conf_state_index = snapshot.metadata.index;
                    }
                    self.effects.push_back(Effect::Persist(persist));
                }
                Err(responses) => self.deliver(responses),
            },
            MessageKind::StorageApply => {
                if let Some(applying) = self.persistence.order_application(message) {
                    self.effects.push_back(Effect::Apply(applying));
                }
            }
            MessageKind::Snapshot => self.effects.push_back(Effect::SendSnapshot(message)),
            // What would keep the others from electing a leader that can write.
            MessageKind::Heartbeat if self.heir.is_some() => {}
            MessageKind::Heartbeat => {
                let mut heartbeat = message;
                self.confirmation.stamp(&mut heartbeat);
                self.effects.push_back(Effect::Send(heartbeat));
            }
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::Propose
            | MessageKind::Append
            | MessageKind::AppendResponse
            | MessageKind::Vote
            | MessageKind::VoteResponse
            | MessageKind::HeartbeatResponse
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::TransferLeader
            | MessageKind::TimeoutNow
            | MessageKind::ReadIndex
            | MessageKind::ReadIndexResponse
            | MessageKind::PreVote
            | MessageKind::PreVoteResponse
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => self.effects.push_back(Effect::Send(message)),
        }
    }

    fn change_leadership(&mut self, soft_state: SoftState) {
        let previous = self.leadership;
        let SoftState { leader, role } = soft_state;
        self.leadership = Leadership { leader, term: self.raft.term(), role };
        assert!(
            self.leadership.term >= previous.term,
            "terms never fall: the member would obey a leader that was deposed"
        );
        if self.leadership == previous {
            return;
        }
        self.effects.push_back(Effect::Leadership(self.leadership));
        if leader != NONE && leader != previous.leader {
            self.committed_in_term = false;
            let rounds = self.barriers.take_all();
            self.fail_barriers(rounds, BarrierFailure::LeaderChanged);
            self.propose_waiting();
        }
    }

    /// A leader answers read requests only once it has committed in its term, so those it may have
    /// dropped are repeated then.
    fn notice_first_commit(&mut self) {
        if !self.committed_in_term && self.raft.has_committed_in_term() {
            self.committed_in_term = true;
            let rounds = self.barriers.take_all();
            if !rounds.is_empty() {
                self.start_barrier(rounds);
            }
        }
    }

    fn pass_barriers(&mut self, read_states: Vec<ReadState>) {
        for state in read_states {
            let rounds = self.barriers.finish(&state.context);
            self.effects.extend(
                rounds.into_iter().map(|round| Effect::BarrierPassed { round, index: state.index }),
            );
        }
    }
}
