//! The node: events in, effects out.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_raft::{
    ConfState, ConfigError, Entry, HardState, LogIndex, MemberId, MemoryStorage, Message,
    MessageKind, NONE, Note, ReadState, Snapshot, SnapshotMetadata, SoftState, Storage, Term,
};
use thiserror::Error;

use crate::effect::{BarrierFailure, Effect, Leadership, ProposalFailure};
use crate::event::{Event, Proposal};
use crate::limits;
use crate::persistence::Persistence;
use crate::proposals::{Content, Proposals, Waiting};
use crate::read_barrier::ReadBarriers;
use crate::snapshot_policy::SnapshotPolicy;

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
    policy: SnapshotPolicy,
    effects: VecDeque<Effect>,
    leadership: Leadership,
    conf_state: ConfState,
    applied: LogIndex,
    last_snapshot: LogIndex,
    /// Whether a snapshot was asked for and not yet reported.
    taking_snapshot: bool,
    /// Whether this leader has committed an entry of its own term.
    committed_in_term: bool,
    initial_ticks: u32,
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
        let storage = MemoryStorage::recover(hard_state, snapshot, config.entries);
        let raft = quorate_raft::Node::new(
            quorate_raft::Config {
                election_tick: config.election_ticks,
                max_size_per_message: limits::APPEND_BYTES_MAX,
                max_committed_size_per_ready: limits::APPLYING_BYTES_MAX,
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
            policy: config.snapshot_policy,
            effects: VecDeque::new(),
            leadership: Leadership::default(),
            conf_state: config.conf_state,
            applied: config.applied,
            last_snapshot: config.snapshot_index,
            taking_snapshot: false,
            committed_in_term: false,
            initial_ticks: if config.initial_tick_advance { config.election_ticks - 1 } else { 0 },
        })
    }
}

impl Node {
    /// Starts the clock: called once, before the first event. A lone voter stands for election at once.
    pub fn start(&mut self) {
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
        if self.is_sole_voter() && self.raft.leader() == NONE {
            self.raft.campaign();
        }
    }

    /// Takes an event. Its effects are then polled.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => self.handle_tick(),
            Event::Propose(proposals) => self.handle_propose(proposals),
            Event::ProposeConfChange { request_id, change } => {
                self.propose(vec![(request_id, Content::ConfChange(change))]);
            }
            Event::ReadBarrier { round } => self.start_barrier(vec![round]),
            Event::Received(message) => self.handle_received(message),
            Event::Persisted { token } => self.handle_persisted(token),
            Event::Applied { index } => self.handle_applied(index),
            Event::ConfChangeDecided(change) => {
                // A refused change still has to be accounted for by the core; node 0 makes it a no-op.
                // The core refuses to be left without a voter; the group then keeps what it has.
                if let Ok(conf_state) = self.raft.apply_conf_change(change.unwrap_or_default()) {
                    self.conf_state = conf_state;
                }
            }
            Event::SnapshotTaken { index } => {
                self.last_snapshot = self.last_snapshot.max(index);
                self.taking_snapshot = false;
            }
            Event::Unreachable(peer) => self.raft.report_unreachable(peer),
            Event::TransferLeadership(to) => self.raft.transfer_leader(to),
        }
        self.settle();
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

    /// Whether this member decides alone. Then whatever it has acknowledged it has applied, and reads need
    /// no barrier.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.conf_state.voters_outgoing.is_empty() && self.conf_state.voters == [self.raft.id()]
    }

    /// What the consensus core has noted for the log since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.raft.take_notes()
    }

    /// Bytes of the log held in memory.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.raft.storage().bytes()
    }

    fn handle_tick(&mut self) {
        self.raft.tick();
        self.proposals.tick();
        let overdue = self.barriers.tick();
        if !overdue.is_empty() {
            self.start_barrier(overdue);
        }
    }

    fn handle_propose(&mut self, proposals: Vec<Proposal>) {
        let proposals = proposals.into_iter();
        self.propose(proposals.map(|one| (one.request_id, Content::Data(one.data))).collect());
    }

    fn propose(&mut self, proposals: Vec<Waiting>) {
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
                    if self.raft.propose_conf_change(change).is_err() {
                        self.fail_proposals([request_id], ProposalFailure::Dropped);
                    }
                }
            }
        }
        self.propose_data(request_ids, batch);
    }

    fn propose_data(&mut self, request_ids: Vec<u64>, batch: Vec<Bytes>) {
        if !batch.is_empty() && self.raft.propose_batch(batch).is_err() {
            self.fail_proposals(request_ids, ProposalFailure::Dropped);
        }
    }

    fn fail_proposals(
        &mut self,
        request_ids: impl IntoIterator<Item = u64>,
        failure: ProposalFailure,
    ) {
        let failed = request_ids.into_iter();
        self.effects
            .extend(failed.map(|request_id| Effect::ProposalFailed { request_id, failure }));
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

    fn handle_received(&mut self, message: Message) {
        if message.to == self.raft.id() {
            // What a peer sends wrongly is its affair; the core has refused it and stays as it was.
            drop(self.raft.step(message));
        }
    }

    fn handle_persisted(&mut self, token: u64) {
        while let Some(write) = self.persistence.finish_write(token) {
            self.raft.storage_mut().append(write.entries);
            self.deliver(write.responses);
        }
    }

    fn handle_applied(&mut self, index: LogIndex) {
        assert!(index >= self.applied, "entries are applied in order");
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

    /// Forgets entries that nobody is likely to ask for.
    fn cut_log(&mut self) {
        let (applied, policy, is_alone) = (self.applied, self.policy, self.is_sole_voter());
        let storage = self.raft.storage_mut();
        let before_first = storage.first_index() - 1;
        // A lone voter has nobody to feed. Who joins it later starts from a snapshot.
        let mut forgettable = if is_alone { applied } else { policy.forgettable(applied) };
        if forgettable < before_first + limits::LOG_CUT_EVERY {
            forgettable = before_first;
        }
        if storage.bytes() > policy.catch_up_bytes {
            // Down to half of what may be held, so that the next cut is not at once.
            let by_bytes = storage.compact_index_for(policy.catch_up_bytes / 2);
            forgettable = forgettable.max(by_bytes.unwrap_or(0).min(applied));
        }
        if forgettable > before_first {
            storage.compact(forgettable).expect("applied entries are in the log");
        }
    }

    /// Delivers messages that waited for storage: to the core, or to peers.
    fn deliver(&mut self, messages: Vec<Message>) {
        for message in messages {
            if message.to == self.raft.id() {
                self.step_own(message);
            } else {
                self.effects.push_back(Effect::Send(message));
            }
        }
    }

    fn step_own(&mut self, message: Message) {
        // Refused when it has been overtaken, for example by a newer term.
        drop(self.raft.step_local(message));
    }

    /// Takes everything the core wants done, until it wants nothing more.
    fn settle(&mut self) {
        while self.raft.has_ready() {
            let ready = self.raft.ready();
            if let Some(soft_state) = ready.soft_state {
                self.change_leadership(soft_state);
            }
            self.pass_barriers(ready.read_states);
            for message in ready.messages {
                self.carry_out(message);
            }
            self.notice_first_commit();
        }
    }

    fn carry_out(&mut self, message: Message) {
        match message.kind {
            MessageKind::StorageAppend => match self.persistence.order_write(message) {
                Ok(persist) => self.effects.push_back(Effect::Persist(persist)),
                Err(responses) => self.deliver(responses),
            },
            MessageKind::StorageApply => {
                if let Some(applying) = self.persistence.order_application(message) {
                    self.effects.push_back(Effect::Apply(applying));
                }
            }
            _ => self.effects.push_back(Effect::Send(message)),
        }
    }

    fn change_leadership(&mut self, soft_state: SoftState) {
        let previous = self.leadership;
        let SoftState { leader, role } = soft_state;
        self.leadership = Leadership { leader, term: self.raft.term(), role };
        if self.leadership == previous {
            return;
        }
        self.effects.push_back(Effect::Leadership(self.leadership));
        if leader != NONE && leader != previous.leader {
            self.committed_in_term = false;
            let rounds = self.barriers.take_all();
            self.fail_barriers(rounds, BarrierFailure::LeaderChanged);
            let waiting = self.proposals.take();
            self.propose(waiting);
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
