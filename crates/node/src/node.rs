//! The node: processes events and returns effects.

mod barriers;
mod confirming;
mod cut;
mod full_disk;
mod handing_over;
mod held_changes;
mod holdings;
mod proposing;

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_raft::{
    ConfState, ConfigError, Configuration, Entry, HardState, LOCAL_APPEND, LOCAL_APPLY, LogIndex,
    MemberId, MemoryStorage, Message, MessageKind, NONE, Note, NoteLevel, RefusalKind, Role,
    Snapshot, SnapshotMetadata, SnapshotOutcome, SoftState, Status, StepError, Term,
};
use thiserror::Error;

use crate::commit_notices::CommitNotices;
use crate::confirmation::Confirmation;
use crate::disk_watch::DiskWatch;
use crate::early_appends::EarlyAppends;
use crate::effect::{BarrierFailure, Effect, Leadership, LogFault, ProposalFailure};
use crate::event::{ConfChangeDecision, Event};
use crate::flow_limits::FlowLimits;
use crate::full_disk_watch::FullDiskWatch;
use crate::limits;
use crate::persistence::Persistence;
use crate::proposals::{Content, Proposals};
use crate::read_barrier::{ReadBarriers, Round};
use crate::refusals::{Refusals, Source};
use crate::snapshot_policy::SnapshotPolicy;
use crate::succession::Succession;

/// The initial state and the settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The id of this member.
    pub id: MemberId,
    /// Ticks without a leader after which a member campaigns. The actual number is random, between
    /// this value and twice this value.
    pub election_ticks: u32,
    /// Whether a member runs a pre-vote before it campaigns.
    pub pre_vote: bool,
    /// Whether the first election timeout is shortened by `election_ticks - 1` ticks.
    pub initial_tick_advance: bool,
    /// Seed of the election jitter.
    pub seed: u64,
    /// The id of the first read index request. Each further request increments the id, and no two members may use the
    /// same id.
    pub first_read_request_id: u64,
    /// Number of ticks after which a proposal that waits for a leader is dropped, and after which a read barrier fails.
    /// A dropped membership change is reported as failed.
    pub proposal_ticks_max: u64,
    /// Whether the member refrains from campaigning, and transfers leadership, while its disk is
    /// stalled.
    pub fences_stalled_disk: bool,
    /// Whether a leader checks again that a membership change leaves a quorum, if the change had to wait for an earlier
    /// change.
    pub checks_reconfigurations: bool,
    /// The policy that decides when to take snapshots.
    pub snapshot_policy: SnapshotPolicy,
    /// The limits of appends.
    pub flow_limits: FlowLimits,
    /// The hard state found in the log.
    pub hard_state: HardState,
    /// The membership that the state machine has stored, as of `applied`.
    pub conf_state: ConfState,
    /// The index before the first of `entries`: the index of the snapshot, or 0.
    pub snapshot_index: LogIndex,
    /// The term of the entry at `snapshot_index`.
    pub snapshot_term: Term,
    /// The entries found in the log after the snapshot.
    pub entries: Vec<Entry>,
    /// The index of the last entry that the state machine has applied.
    pub applied: LogIndex,
}

/// The reason why a node cannot start with the state on disk.
#[derive(Debug, Error)]
pub enum StartError {
    /// The log ends before the last applied entry, so durable entries have been lost.
    #[error(
        "the write-ahead log ends at index {last_index}, but entry {applied} has already been applied; the log has \
         lost entries"
    )]
    LogLost {
        /// The last index of the log.
        last_index: LogIndex,
        /// The last applied index.
        applied: LogIndex,
    },
    /// The consensus core refused the configuration.
    #[error("the consensus core refused the settings or the state on disk")]
    Refused(#[from] ConfigError),
}

/// Makes the decisions of one member. The crate documentation lists the caller's duties.
#[derive(Debug)]
pub struct Node {
    raft: quorate_raft::Node<MemoryStorage>,
    persistence: Persistence,
    proposals: Proposals,
    barriers: ReadBarriers,
    early_appends: EarlyAppends,
    /// Membership changes that wait until this member has applied the previous change.
    held_changes: VecDeque<held_changes::HeldChange>,
    /// Index of the last entry that has changed the membership since this member started, or 0.
    members_changed_at: LogIndex,
    checks_reconfigurations: bool,
    commit_notices: CommitNotices,
    confirmation: Confirmation,
    watched_read: Option<confirming::WatchedRead>,
    disk_watch: DiskWatch,
    full_disk_watch: FullDiskWatch,
    /// The voter to which this leader transfers leadership because its own disk is stalled.
    heir: Option<MemberId>,
    succession: Succession,
    policy: SnapshotPolicy,
    unapplied_bytes_max: u64,
    notes: Vec<Note>,
    effects: VecDeque<Effect>,
    leadership: Leadership,
    /// Index up to which the core's initial state or a snapshot already includes all membership
    /// changes. Later decisions about entries up to this index are ignored. The snapshot may not be
    /// durable yet.
    conf_state_index: LogIndex,
    /// The term of the last append that matched the log.
    matched_in: Term,
    applied: LogIndex,
    last_snapshot: LogIndex,
    /// Whether a snapshot has been requested but not yet reported.
    taking_snapshot: bool,
    /// Whether this leader has committed an entry in its own term.
    committed_in_term: bool,
    initial_ticks: u32,
    refusals: Refusals,
    refused_for_room: u64,
    /// Whether the node has stopped after a fault. It then ignores all events.
    is_stopped: bool,
}

impl Node {
    /// Builds a node from the state on disk.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let last_index = config.entries.last().map_or(config.snapshot_index, |last| last.index);
        if last_index < config.applied {
            return Err(StartError::LogLost { last_index, applied: config.applied });
        }
        // Applied entries are committed, so a lower stored commit index is raised to the applied index.
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
            // Record a snapshot at the applied index, because a snapshot for a peer covers at least the entries up to
            // that index.
            let recorded = storage.create_snapshot(config.applied, config.conf_state, Bytes::new());
            recorded.expect("the log reaches the applied index");
        }
        let raft = quorate_raft::Node::new(
            quorate_raft::Config {
                election_tick: config.election_ticks,
                max_size_per_message: config.flow_limits.append_bytes,
                max_committed_size_per_ready: limits::APPLYING_BYTES_MAX,
                max_uncommitted_size: limits::UNCOMMITTED_BYTES_MAX,
                max_inflight_count: config.flow_limits.inflight_appends,
                max_inflight_bytes: config.flow_limits.inflight_bytes,
                pre_vote: config.pre_vote,
                skip_repeated_acknowledgements: true,
                asks_few_to_confirm_reads: true,
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
            barriers: ReadBarriers::new(config.first_read_request_id, config.proposal_ticks_max),
            early_appends: EarlyAppends::default(),
            held_changes: VecDeque::new(),
            members_changed_at: LogIndex::ZERO,
            checks_reconfigurations: config.checks_reconfigurations,
            commit_notices: CommitNotices::default(),
            confirmation: Confirmation::default(),
            watched_read: None,
            disk_watch: DiskWatch::new(
                config.fences_stalled_disk.then_some(u64::from(config.election_ticks)),
            ),
            full_disk_watch: FullDiskWatch::new(config.election_ticks),
            heir: None,
            succession: Succession::default(),
            notes: Vec::new(),
            policy: config.snapshot_policy,
            unapplied_bytes_max: config.flow_limits.unapplied_bytes,
            effects: VecDeque::new(),
            leadership: Leadership::default(),
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
    /// Starts the node. The caller must call this method once, before the first event. A sole voter campaigns
    /// immediately.
    pub fn start(&mut self) {
        // Drop old entries, because the whole log was read into memory and most of it may already be applied.
        self.cut_log();
        if !self.is_sole_voter() {
            for _ in 0..self.initial_ticks {
                self.raft.tick();
            }
        }
        self.stand_if_alone();
        self.settle();
    }

    /// Campaigns if this member is the only voter, because it needs no other votes. It cannot campaign while a
    /// membership change is unapplied, so it tries again whenever entries have been applied.
    fn stand_if_alone(&mut self) {
        let is_due = self.is_sole_voter() && self.raft.leader() == NONE;
        if is_due && !self.raft.has_unapplied_conf_change() {
            self.raft.campaign();
        }
    }

    /// Processes an event. The caller then polls the resulting effects.
    pub fn handle(&mut self, event: Event) {
        if self.is_stopped {
            return;
        }
        let led = self.raft.is_leader();
        match event {
            Event::Tick => self.handle_tick(),
            Event::CommitInterval => {
                if let Some(overdue) = self.commit_notices.end_interval() {
                    self.raft.announce_commit(overdue);
                }
            }
            Event::Propose(proposals) => self.handle_propose(proposals),
            Event::Withdraw(request_ids) => {
                self.proposals.forget(&request_ids);
                self.forget_held_changes(&request_ids);
            }
            Event::ProposeConfChange { request_id, change } => {
                self.propose(vec![(request_id, Content::ConfChange(change))]);
            }
            Event::ReadBarrier { round } => {
                self.start_barrier(vec![Round { number: round, ticks: 0 }]);
            }
            Event::Received(messages) => self.handle_received(messages),
            Event::Persisted { token } => self.handle_persisted(token),
            Event::Applied { index } => self.handle_applied(index),
            Event::ConfChangeDecided(decision) => self.decide_conf_change(decision),
            Event::SnapshotTaken { index } => {
                self.last_snapshot = self.last_snapshot.max(index);
                self.taking_snapshot = false;
            }
            Event::Unreachable(peer) => self.raft.report_unreachable(peer),
            Event::Gone(peer) => {
                self.raft.ask_others_instead_of(peer);
                self.handle_gone(peer);
            }
            Event::SnapshotSent { to, outcome } => self.handle_snapshot_sent(to, outcome),
            Event::TransferLeadership(to) => self.raft.transfer_leader(to),
            Event::BackendSpace { is_short } => self.full_disk_watch.note(is_short),
        }
        self.propose_held_changes();
        self.propose_waiting();
        self.pace_commit_notices();
        // After a fault, the core's pending work must not be written, sent or applied.
        if !self.is_stopped {
            if led && !self.raft.is_leader() {
                // A follower need not keep entries for a member that receives a snapshot. With these entries, its log
                // could have no room for those that the new leader must replicate before it can commit anything.
                self.cut_log();
            }
            self.settle();
        }
    }

    /// Removes and returns the next effect, if any.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the newest hard state if no [`Effect::Persist`] has contained it yet.
    #[must_use]
    pub fn unwritten_hard_state(&self) -> Option<HardState> {
        self.persistence.unwritten()
    }

    /// Returns the highest index known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.raft.commit_index()
    }

    /// Returns the current leader, term and role.
    #[must_use]
    pub const fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// Returns how many of the next ticks may be late and handled together, before the next event. While a member
    /// follows a leader, these ticks count the time since the leader's last message. They start no election.
    #[must_use]
    pub fn deferrable_ticks(&self) -> u32 {
        let follows = self.leadership.role == Role::Follower && self.leadership.leader != NONE;
        let before_election = self.raft.ticks_until_election().saturating_sub(1);
        if follows { before_election.min(limits::DEFERRED_TICKS_MAX) } else { 0 }
    }

    /// Returns the configuration in effect.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        self.raft.configuration()
    }

    /// Returns whether this member is the only voter.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.raft.is_sole_voter()
    }

    /// Returns whether this member is the only member: the only voter, and there are no learners.
    #[must_use]
    pub fn is_only_member(&self) -> bool {
        self.is_sole_voter() && self.configuration().learners.is_empty()
    }

    /// Returns whether the configuration has any voter other than this member.
    #[must_use]
    pub fn has_other_voters(&self) -> bool {
        let voters = &self.configuration().voters;
        voters.incoming.0.iter().chain(&voters.outgoing.0).any(|id| *id != self.raft.id())
    }

    /// Returns the ids of the other voters and of the learners, to which a leader sends heartbeats.
    #[must_use]
    pub fn other_members(&self) -> Vec<MemberId> {
        let ConfState { voters, learners, .. } = self.configuration().conf_state();
        voters.into_iter().chain(learners).filter(|id| *id != self.raft.id()).collect()
    }

    /// Returns the log lines since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.append(&mut self.raft.take_notes());
        notes
    }

    /// Returns a copy of the consensus core's state.
    #[must_use]
    pub fn status(&self) -> Status {
        self.raft.status()
    }

    /// Returns how many requests, and messages with entries, were refused since the last call because the log was full,
    /// too many log writes were in progress, or too many forwarded requests were waiting.
    pub fn take_refused_for_room(&mut self) -> u64 {
        std::mem::take(&mut self.refused_for_room)
    }

    /// Returns whether this leader currently announces commits only with its next append.
    #[must_use]
    pub const fn defers_commit_notices(&self) -> bool {
        self.commit_notices.are_deferred()
    }

    /// Decides whether the next commit is announced at once. Announces the last commit if a period of deferral has
    /// ended.
    fn pace_commit_notices(&mut self) {
        let may_defer = self.raft.is_leader()
            && !self.raft.is_sole_voter()
            && !self.raft.has_pending_conf_change();
        let deferred = self.raft.defers_commit_notices();
        self.commit_notices.observe(self.raft.commit_index(), may_defer);
        let defers = self.commit_notices.are_deferred();
        if deferred && !defers {
            self.raft.announce_commit(self.raft.commit_index());
        }
        self.raft.defer_commit_notices(defers);
    }

    fn handle_tick(&mut self) {
        self.persistence.tick();
        self.commit_notices.tick();
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
            "a leader withholds heartbeats only while its disk is stalled: otherwise the other members would \
             replace a healthy leader"
        );
        self.refusals.tick();
        let expired_changes = self.proposals.tick();
        self.fail_proposals(expired_changes, ProposalFailure::Expired);
        self.tick_barriers();
    }

    /// Advances the core's clock. The clock also advances while the log cannot be written, because a leader without a
    /// quorum must step down, and a follower must notice that it has no leader.
    fn tick_raft(&mut self) {
        let (led, before) = (self.raft.is_leader(), self.raft.election_elapsed());
        let is_round_over = before + 1 >= self.raft.config().election_tick;
        if led && is_round_over {
            // A member that has been silent since the last check of the quorum no longer needs entries, but there may be
            // no further entry after which they would be dropped. The check itself marks all members as silent.
            self.cut_log();
        }
        if self.disk_watch.is_stalled() {
            self.raft.tick_without_campaign();
        } else {
            if self.succession.tick(self.raft.leader(), self.raft.term()) {
                self.raft.campaign();
            }
            self.raft.tick();
        }
        let expected = if is_round_over { 0 } else { before + 1 };
        assert!(
            !led || !self.raft.is_leader() || self.raft.election_elapsed() == expected,
            "every tick advances a leader's clock: otherwise the leader would never check its quorum and would lead \
             forever"
        );
    }

    fn decide_conf_change(&mut self, decision: ConfChangeDecision) {
        let ConfChangeDecision { index, change, members } = decision;
        // A snapshot installed in the meantime already covers this change, so the decision is ignored.
        if index <= self.conf_state_index {
            return;
        }
        assert!(
            index > self.applied,
            "the decision about a membership change is reported before its entry counts as applied: otherwise the \
             next change would be checked against the former members; change {index}, applied {}",
            self.applied
        );
        if change.is_some() {
            self.members_changed_at = index;
        }
        // The core must also count a refused change as applied, so it receives the default change, which is a no-op
        // because its node id is 0. The core returns an error even for the no-op if it has no voters yet.
        _ = self.raft.apply_conf_change(change.unwrap_or_default());
        let counted = self.raft.configuration().conf_state();
        assert!(
            counted == members,
            "consensus has the same members as the state machine: otherwise it would count quorums of other members; \
             after entry {index}: {counted:?}, not {members:?}"
        );
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
            // Ignore the request to campaign. A member that cannot write its log cannot win an election, because it
            // cannot write its own vote.
            if message.kind == MessageKind::TimeoutNow && self.disk_watch.is_stalled() {
                continue;
            }
            // Only the leader can transfer leadership. A follower drops the request and does not forward it.
            if message.kind == MessageKind::TransferLeader && !self.raft.is_leader() {
                continue;
            }
            if self.declines(&message) {
                continue;
            }
            if matches!(message.kind, MessageKind::Propose | MessageKind::ReadIndex) {
                self.commit_notices.note_forwarded();
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

    /// Returns whether a message must be dropped because it would extend a log that is already full. The leader sends
    /// the message again. Entries that replace other entries are accepted, because the leader may be unable to commit
    /// anything until this log contains them.
    fn has_no_room_for(&self, message: &Message) -> bool {
        message.kind == MessageKind::Append
            && !message.entries.is_empty()
            && message.term == self.raft.term()
            && message.index >= self.raft.last_index()
            && (self.unapplied_bytes() >= self.unapplied_bytes_max
                || self.log_bytes() >= limits::LOG_BYTES_MAX
                || self.persistence.is_full())
    }

    /// Keeps an append that arrived before its predecessors, or returns the message if it should be processed now. The
    /// first append from a leader is never kept: if it does not fit, the core refuses it, and the leader learns from
    /// the refusal where this log ends.
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
            // The message has not been checked yet.
            .then(|| (message.term, message.index.saturating_add(message.entries.len() as u64)));
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

    /// Logs a refused message, which has not changed the core's state. If the message proves that
    /// entries were lost and that this member must stop, stops the node.
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
            self.begin_applications();
            if let Some(snapshot) = write.snapshot {
                self.begin_log_at(snapshot);
            }
            self.raft.storage_mut().append(write.entries);
            self.deliver(write.responses);
        }
    }

    /// Requests the application of committed entries that wait for no write.
    fn begin_applications(&mut self) {
        while let Some(applying) = self.persistence.next_application() {
            self.effects.push_back(Effect::Apply(applying));
        }
    }

    /// Makes the log start after a durable snapshot from the leader, and requests that the state machine install the
    /// snapshot.
    fn begin_log_at(&mut self, snapshot: Snapshot) {
        assert!(
            snapshot.metadata.index > self.applied,
            "a snapshot from the leader is newer than the state machine: otherwise it would revert applied entries"
        );
        self.last_snapshot = snapshot.metadata.index;
        // If this member is taking a snapshot itself, that snapshot is older and may be dropped.
        self.taking_snapshot = false;
        self.raft
            .storage_mut()
            .apply_snapshot(snapshot.clone())
            .expect("the core does not install a snapshot older than the last one");
        self.effects.push_back(Effect::InstallSnapshot(snapshot));
    }

    fn handle_snapshot_sent(&mut self, to: MemberId, outcome: SnapshotOutcome) {
        self.raft.report_snapshot(to, outcome);
    }

    fn handle_applied(&mut self, index: LogIndex) {
        assert!(
            index >= self.applied,
            "the applied index never decreases: otherwise entries would be applied twice"
        );
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

    /// Delivers messages that were waiting for a write or for entries to be applied. Messages to this member are passed
    /// to the core.
    ///
    /// Of several acknowledgements to a leader, only the last is sent, because it covers the
    /// earlier ones.
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

    /// Passes a report from this member's own storage to the core. A report from an older term is ignored and does not
    /// count as refused.
    pub(crate) fn step_own(&mut self, message: Message) {
        if let Err(refusal) = self.raft.step_local(message) {
            self.take_refusal(Source::Own, refusal);
        }
    }

    /// Processes the core's pending work, and the work that results from it, until no work is left.
    fn settle(&mut self) {
        while self.raft.has_ready() {
            let ready = self.raft.ready();
            if let Some(soft_state) = ready.soft_state {
                self.change_leadership(soft_state);
            }
            self.pass_barriers(ready.read_states);
            // A candidate requests votes only once its own vote is durable. Otherwise it could lose
            // its vote in a power failure, campaign again in the same term, and be elected twice in
            // that term, because voters repeat an earlier vote for the same candidate.
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

    fn carry_out(&mut self, mut message: Message) {
        match message.to {
            LOCAL_APPEND => match self.persistence.order_write(message) {
                Ok(persist) => {
                    if let Some(snapshot) = &persist.snapshot {
                        // From now on, the core uses the membership recorded in the snapshot, even
                        // before the snapshot is durable.
                        self.conf_state_index = snapshot.metadata.index;
                    }
                    self.effects.push_back(Effect::Persist(persist));
                }
                Err(responses) => self.deliver(responses),
            },
            LOCAL_APPLY => {
                let write = self.persistence.order_application(message);
                self.effects.extend(write.map(Effect::Persist));
                self.begin_applications();
            }
            _ if message.kind == MessageKind::Snapshot => {
                self.effects.push_back(Effect::SendSnapshot(message));
            }
            _ => {
                if message.kind == MessageKind::Heartbeat {
                    // Heartbeats from this stalled leader would prevent the other members from electing a leader that
                    // can write.
                    if self.heir.is_some() {
                        return;
                    }
                    self.confirmation.stamp(&mut message);
                }
                self.effects.push_back(Effect::Send(message));
            }
        }
    }

    fn change_leadership(&mut self, soft_state: SoftState) {
        let previous = self.leadership;
        let SoftState { leader, role } = soft_state;
        self.leadership = Leadership { leader, term: self.raft.term(), role };
        assert!(
            self.leadership.term >= previous.term,
            "terms never decrease: otherwise the member would follow a deposed leader"
        );
        if self.leadership == previous {
            return;
        }
        // The core's notes explain the change, so they come first.
        self.notes.append(&mut self.raft.take_notes());
        if let Some(text) = self.leadership.change_text(&previous, self.raft.id()) {
            self.notes.push(Note { level: NoteLevel::Info, text });
        }
        self.effects.push_back(Effect::Leadership(self.leadership));
        if leader != NONE && leader != previous.leader {
            self.committed_in_term = false;
            let rounds = self.barriers.take_all();
            self.fail_barriers(rounds, BarrierFailure::LeaderChanged);
            self.propose_waiting();
        }
    }
}
