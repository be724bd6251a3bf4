//! One process of a member: its components (consensus, log, state machine, backend), the queues between them, and the
//! pending client requests.
//!
//! In production, the components run on threads. Here, a component runs in turns. A turn ([`Turn`]) is the work that a
//! thread does between two reads of its queue, and the caller decides when each component has its turn. Components can
//! therefore interleave only as real threads can: each queue keeps its order, and the state machine waits for a backend
//! that is behind.
//!
//! The process returns its outputs ([`Out`]) in order. After an error it must not be used again.
//!
//! # Not here
//!
//! The times of turns (`world`), disk faults (`FaultyDisk`), and the delivery of messages (`network`).

pub mod boot;
mod client_request;
mod consensus;
mod input;
mod lease_holder;
mod outlet;
mod reports;
mod requests;
pub mod settings;
mod stop;
mod terms;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use quorate_core::incoming::Depot;
use quorate_core::{
    AppliedWaits, BackendWriter, Consensus, Job, LeaseCare, Log, Next, Now, ORDERS_QUEUED_MAX,
    Order, Purger, ROOM_RETRY_INTERVAL, StateMachine,
};
use quorate_node::{Event, Leadership, LogFault, ProposalFailure};
use quorate_raft::{Entry, LogIndex, Message, MessageKind, Role, SnapshotOutcome, Term};
use quorate_state::apply::{PublishedState, State};
use quorate_state::backend::Backend;
use quorate_state::members::Members;
use quorate_state::watch::WatchStream;
use quorate_storage::bolt::ReadTx;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::wal::SnapshotMark;

pub use self::boot::{Booted, Refused};
pub use self::client_request::{ClientRequest, Failure, OpId, Reply};
use self::input::{Input, LogOrder};
use self::outlet::Outputs;
pub(crate) use self::requests::ROOT;
pub use self::settings::Settings;
pub use self::terms::{Dropped, LogEnds, Terms};
use crate::clock::{LocalClock, Micros};

/// The operation whose completion is reported, or 0 if no client waits for the completion.
pub(crate) type Completion = u64;

/// The receiver of the outcome of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A client operation.
    Op(OpId),
    /// A lease request, which continues once its checkpoint is applied.
    Task(OpId),
    /// No receiver, because the member itself made the proposal.
    Internal,
}

/// The receiver of the notification that a read barrier has passed or that an index is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A client's read.
    Op(OpId),
    /// A lease request.
    Task(OpId),
    /// The lease checks of the leader, which need a read barrier before they propose changes.
    Care(LeaseCare),
}

/// An output of a process.
#[derive(Debug)]
pub enum Out {
    /// A message to a peer.
    Send(Message),
    /// A snapshot message to a peer, with the state at its index.
    Image {
        /// The message.
        message: Message,
        /// The state.
        image: ReadTx,
    },
    /// A reply to a client.
    Reply(OpId, Reply),
    /// Consensus has reported these entries as committed.
    Applying(Vec<Entry>),
    /// The state is published up to this index.
    Published(LogIndex),
    /// A leader's snapshot has replaced the state.
    Installed,
    /// The membership has changed.
    Members(Members),
    /// The leadership known to this member has changed.
    Leadership(Leadership),
    /// The log has dropped entries.
    Dropped(Dropped),
    /// The member was removed, so the process shuts down cleanly.
    Removed,
    /// The process stops because its log contradicts the log of the cluster.
    Fault(LogFault),
    /// A rare state was reached.
    RareState(&'static str),
}

/// A unit of work of one production thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// A thread that has queued an input for consensus executes a turn of consensus.
    Consensus,
    /// The thread that drives consensus wakes, because something is due, and executes a turn of consensus.
    Tick,
    /// The log appends its queued writes.
    Append,
    /// The log syncs its appended writes.
    Sync,
    /// The state machine executes one job.
    Machine,
    /// The backend executes one step.
    Backend,
}

/// All kinds of turns.
pub const TURNS: [Turn; 6] =
    [Turn::Consensus, Turn::Tick, Turn::Append, Turn::Sync, Turn::Machine, Turn::Backend];

/// The error that ended a process.
#[derive(Debug, thiserror::Error)]
#[error("{task}: {error}")]
pub struct Fatal {
    task: &'static str,
    error: String,
}

impl Fatal {
    fn of(task: &'static str) -> impl Fn(&dyn std::error::Error) -> Self {
        move |error| Self { task, error: error.to_string() }
    }
}

/// A member's promises to other members. The member must keep them even after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promised {
    /// Index of the last entry that the member acknowledged to a leader.
    pub log: LogIndex,
    /// The last term in which the member voted or acknowledged entries.
    pub term: Term,
    /// The member's last vote.
    pub vote: Vote,
    /// Index of the last membership change that the member received for application. A client may have seen it applied.
    pub change: LogIndex,
}

/// The vote of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The term of the vote.
    pub term: Term,
    /// The candidate that received the vote.
    pub candidate: u64,
}

/// A running process of a member.
#[derive(Debug)]
pub struct Process {
    /// The id of the member.
    pub id: u64,
    /// The id of the member's cluster.
    pub cluster_id: u64,
    pub(crate) settings: Settings,
    disk: Arc<dyn Disk>,
    dirs: DataDir,
    pub(crate) depot: Depot,
    consensus: Consensus<Vec<Reader>>,
    /// The log, unless it is closed.
    log: Option<Log>,
    machine: StateMachine<Completion>,
    writer: BackendWriter<Completion, Completion>,
    backend: Backend,
    published_state: PublishedState,
    purger: Purger,
    inputs: VecDeque<Input>,
    log_orders: VecDeque<LogOrder>,
    jobs: VecDeque<Job<Completion>>,
    outputs: Outputs,
    /// Whether consensus writes the log in its own turn, without a log thread.
    consensus_writes_log: bool,
    /// The time until which the thread that drives consensus sleeps.
    sleeps_until: Instant,
    /// Whether the log has appended entries that are not synced.
    log_needs_sync: bool,
    is_installing: bool,
    is_installed: bool,
    /// Whether this member refuses writes because it leads, its backend file has no room to grow, and no other member
    /// can lead.
    refuses_writes: bool,
    /// The index of the newest snapshot to be installed, and the start time of its installation.
    install_index: LogIndex,
    installing_since: Micros,
    /// The time at which the backend retries a batch that did not fit on the disk.
    room_retry_at: Instant,
    /// The commit index after the last turn of consensus.
    committed: LogIndex,
    /// The last published index that the process has reported.
    reported: LogIndex,
    applied_waits: AppliedWaits<Reader>,
    /// Puts that arrived while the backend file was at its maximum size.
    puts_without_room: BTreeSet<OpId>,
    /// Reads that wait for a barrier, and physical compactions that wait until the compacted records are removed.
    waiting_requests: BTreeMap<OpId, ClientRequest>,
    tasks: BTreeMap<OpId, lease_holder::PendingTask>,
    /// The request ids of proposed operations.
    proposed: BTreeMap<OpId, u64>,
    next_request: u64,
    /// The watchers' streams.
    pub(crate) streams: BTreeMap<OpId, WatchStream>,
    /// Members from which this process accepts messages.
    pub(crate) members: BTreeSet<u64>,
    pub(crate) removed: BTreeSet<u64>,
    /// The request ids of the membership changes that clients have requested.
    changes: BTreeSet<u64>,
    /// The request ids of the membership changes that this member has sent to a leader.
    sent_changes: BTreeSet<u64>,
    /// The request ids of the membership changes that were withdrawn before they were sent.
    withdrawn_changes: BTreeSet<u64>,
    /// The index of the last snapshot of its own state that this process has saved.
    saved_snapshot: LogIndex,
    /// The promises of this process to other members.
    pub promised: Promised,
    /// The terms of the entries in the log.
    terms: Terms,
    clock: LocalClock,
    now: Micros,
    out: Vec<Out>,
}

impl Process {
    /// Starts the components of a member. `life` is the sequence number of the process on its host. Request ids contain
    /// this number, so that they are unique.
    #[must_use]
    pub fn start(booted: Booted, clock: LocalClock, now: Micros, life: u64) -> Self {
        let Booted { settings, disk, dirs, depot, wal, backend, state, node, .. } = booted;
        let (id, cluster_id) = (booted.identity.member_id, booted.identity.cluster_id);
        let (applied, applied_term) = state.applied();
        let (applied, applied_term) = (LogIndex(applied), Term(applied_term));
        let snap_dir = dirs.snap();
        let published_state = state.published();
        let purger = Purger {
            disk: Arc::clone(&disk),
            snap_dir: snap_dir.clone(),
            wal_dir: dirs.wal().to_path_buf(),
            snapshots_max: settings.snapshots_max,
            segments_max: settings.segments_max,
        };
        let removed = state.members().removed().map(|id| id.0).collect();
        let known = state.members().iter().map(|row| row.id.0).chain(booted.members).collect();
        let own = quorate_state::units::MemberId(id);
        let started = clock.now(now).instant;
        let machine =
            StateMachine::new(state, backend.clone(), own, settings.pace, clock.now(now).instant);
        let outputs = Outputs::new(id, applied, applied_term);
        let mut process = Self {
            depot,
            consensus: Consensus::start(node, applied, settings.intervals(), started),
            log: Some(Log::new(wal, Arc::clone(&disk), snap_dir.clone())),
            machine,
            writer: BackendWriter::new(backend.clone(), Arc::clone(&disk), snap_dir),
            committed: applied,
            reported: applied,
            id,
            cluster_id,
            settings,
            disk,
            dirs,
            backend,
            published_state,
            purger,
            inputs: VecDeque::new(),
            log_orders: VecDeque::new(),
            jobs: VecDeque::new(),
            outputs,
            consensus_writes_log: true,
            sleeps_until: started,
            log_needs_sync: false,
            is_installing: false,
            is_installed: false,
            refuses_writes: false,
            install_index: LogIndex::ZERO,
            installing_since: 0,
            room_retry_at: started,
            applied_waits: AppliedWaits::default(),
            puts_without_room: BTreeSet::new(),
            waiting_requests: BTreeMap::new(),
            tasks: BTreeMap::new(),
            proposed: BTreeMap::new(),
            // As in production, request ids consist of the member, the process and a counter.
            next_request: id << 48 | (life & 0xff_ffff) << 24,
            streams: BTreeMap::new(),
            members: known,
            removed,
            changes: BTreeSet::new(),
            sent_changes: BTreeSet::new(),
            withdrawn_changes: BTreeSet::new(),
            saved_snapshot: LogIndex::ZERO,
            promised: Promised::default(),
            terms: booted.terms,
            clock,
            now,
            out: Vec::new(),
        };
        process.sleeps_until = process.consensus.sleep();
        process
    }

    /// Returns the outputs since the last call.
    pub fn take_outputs(&mut self) -> Vec<Out> {
        self.out.extend(self.outputs.rare_states.drain(..).map(Out::RareState));
        std::mem::take(&mut self.out)
    }

    /// Returns the applied state.
    #[must_use]
    pub const fn state(&self) -> &State {
        self.machine.state()
    }

    /// Returns the leadership as known to this member.
    #[must_use]
    pub const fn leadership(&self) -> Leadership {
        self.outputs.state.leadership
    }

    /// Returns the published index.
    #[must_use]
    pub const fn published(&self) -> LogIndex {
        self.outputs.published
    }

    /// Returns the start time of the unfinished installation of a snapshot, if there is one.
    #[must_use]
    pub fn installing_since(&self) -> Option<Micros> {
        (self.install_index > self.outputs.published).then_some(self.installing_since)
    }

    /// Returns the commit index of consensus.
    #[must_use]
    pub fn committed(&self) -> LogIndex {
        self.consensus.commit_index()
    }

    /// Returns the status of consensus.
    #[must_use]
    pub fn status(&self) -> quorate_raft::Status {
        self.consensus.status()
    }

    /// Returns the terms of the entries in the log.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the vote in the hard state.
    #[must_use]
    pub fn vote(&self) -> Vote {
        let hard_state = self.status().hard_state;
        Vote { term: hard_state.term, candidate: hard_state.vote }
    }

    /// Returns whether consensus and the state machine have no queued work and all committed entries are published.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let is_applied = self.outputs.published == self.consensus.commit_index();
        self.inputs.is_empty() && self.jobs.is_empty() && !self.is_installing && is_applied
    }

    /// Returns the disk that contains the member's files.
    pub(crate) const fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) const fn dirs(&self) -> &DataDir {
        &self.dirs
    }

    /// Returns handles to the published state.
    #[must_use]
    pub const fn published_state(&self) -> &PublishedState {
        &self.published_state
    }

    /// Returns whether the leader has asked only some of the voters to confirm its newest read.
    #[must_use]
    pub fn has_asked_few_to_confirm_reads(&self) -> bool {
        self.consensus.has_asked_few_to_confirm_reads()
    }

    /// Returns whether the leader defers its commit notices.
    #[must_use]
    pub const fn defers_commit_notices(&self) -> bool {
        self.consensus.defers_commit_notices()
    }

    fn clock_now(&self) -> Now {
        self.clock.now(self.now)
    }

    /// Returns the clock of the process.
    pub(crate) const fn clock_mut(&mut self) -> &mut LocalClock {
        &mut self.clock
    }

    /// Returns the time from which a component has work for a turn of this kind, or `None` if it has no work.
    #[must_use]
    pub fn work_at(&self, turn: Turn, now: Micros) -> Option<Micros> {
        let due = |wanted: bool| wanted.then_some(now);
        match turn {
            Turn::Consensus => due(!self.inputs.is_empty()),
            Turn::Tick => Some(self.clock.virtual_time(self.sleeps_until, now)),
            Turn::Append => due(!self.log_needs_sync && !self.log_orders.is_empty()),
            Turn::Sync => due(self.log_needs_sync),
            Turn::Machine if self.outputs.orders.len() > ORDERS_QUEUED_MAX => None,
            Turn::Machine if self.is_installing => due(self.is_installed),
            Turn::Machine if !self.jobs.is_empty() => Some(now),
            Turn::Machine => self.machine.wake_at().map(|at| self.clock.virtual_time(at, now)),
            Turn::Backend if self.writer.lacks_space() => {
                Some(self.clock.virtual_time(self.room_retry_at, now))
            }
            Turn::Backend if !self.outputs.orders.is_empty() => Some(now),
            Turn::Backend => self.writer.reclaim_at().map(|at| self.clock.virtual_time(at, now)),
        }
    }

    /// Executes a turn.
    ///
    /// # Errors
    ///
    /// The process failed and must not be used again.
    pub fn take_turn(&mut self, turn: Turn, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        let done = match turn {
            Turn::Consensus => self.run_consensus_inline(),
            Turn::Tick => self.run_consensus_on_its_thread(),
            Turn::Append => self.append_to_log(),
            Turn::Sync => self.sync_log(),
            Turn::Machine => self.run_machine(),
            Turn::Backend => self.run_backend(),
        };
        self.route_outputs();
        done
    }

    /// Queues a message from a peer. If `same_read` is set and the previous input is a message from this peer, consensus
    /// processes both together, as if the process had received them in one read.
    pub fn receive(&mut self, message: Message, same_read: bool) {
        if same_read
            && let Some(Input::Event(Event::Received(messages))) = self.inputs.back_mut()
            && messages.iter().all(|earlier| earlier.from == message.from)
        {
            messages.push(message);
            return;
        }
        self.inputs.push_back(Input::Event(Event::Received(vec![message])));
    }

    /// Notes that a message to a peer was lost.
    pub fn note_lost(&mut self, peer: u64) {
        self.inputs.push_back(Input::Event(Event::Unreachable(peer)));
    }

    /// Notes that the process of a peer has ended.
    pub fn note_peer_ended(&mut self, peer: u64) {
        self.inputs.push_back(Input::Event(Event::Gone(peer)));
    }

    /// Notes whether a snapshot has reached a peer.
    pub fn note_snapshot(&mut self, to: u64, outcome: SnapshotOutcome) {
        self.inputs.push_back(Input::Event(Event::SnapshotSent { to, outcome }));
    }

    /// Requests a transfer of leadership.
    pub fn transfer_leadership(&mut self, to: u64) {
        self.inputs.push_back(Input::Event(Event::TransferLeadership(to)));
    }

    fn note_committed(&mut self) {
        self.committed = self.committed.max(self.consensus.commit_index());
    }

    fn publish_leadership(&mut self) {
        self.outputs.state = self.consensus.leadership();
    }

    fn change_leadership(&mut self, leadership: Leadership) {
        self.publish_leadership();
        if leadership.role == Role::Leader {
            self.outputs.pending.begin_term(leadership.term);
        } else {
            self.jobs.push_back(Job::LostLeadership);
        }
        self.out.push(Out::Leadership(leadership));
    }

    /// Records the promises that a message makes to its recipient. A pre-vote response makes no promise, because its
    /// term has not begun. An acknowledgement that waited for a stalled disk may cover entries that another leader has
    /// replaced in the meantime. The log does not have to keep such entries.
    fn promise(&mut self, message: &Message) {
        let promised = &mut self.promised;
        let is_ack = message.kind == MessageKind::AppendResponse;
        if message.kind == MessageKind::VoteResponse && !message.reject {
            promised.vote = Vote { term: message.term, candidate: message.to };
        }
        if is_ack || message.kind == MessageKind::VoteResponse {
            promised.term = promised.term.max(message.term);
        }
        if is_ack && !message.reject {
            promised.log = promised.log.max(self.terms.last_held(message.index));
        }
    }

    fn mark(&mut self, mark: SnapshotMark) -> Result<(), Fatal> {
        if !self.consensus_writes_log {
            self.log_orders.push_back(LogOrder::Mark(mark));
            return Ok(());
        }
        for event in self.mark_now(&mark)? {
            self.consensus.handle(event);
        }
        Ok(())
    }

    fn mark_now(&mut self, mark: &SnapshotMark) -> Result<Vec<Event>, Fatal> {
        let marked = self.log().mark(mark).map_err(|error| Fatal::of("the log")(&error))?;
        let persisted = marked.synced.map(|synced| Event::Persisted { token: synced.token });
        let taken = Event::SnapshotTaken { index: marked.index };
        Ok(persisted.into_iter().chain([taken]).collect())
    }

    const fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("a process is not used after it has closed its log")
    }

    fn append_to_log(&mut self) -> Result<(), Fatal> {
        for order in std::mem::take(&mut self.log_orders) {
            match order {
                LogOrder::Append(persist) => {
                    self.log().append(&persist).map_err(|error| Fatal::of("the log")(&error))?;
                }
                LogOrder::Mark(mark) => {
                    let events = self.mark_now(&mark)?;
                    self.inputs.extend(events.into_iter().map(Input::Event));
                }
            }
        }
        self.log_needs_sync = true;
        Ok(())
    }

    fn sync_log(&mut self) -> Result<(), Fatal> {
        self.log_needs_sync = false;
        let synced = self.log().sync().map_err(|error| Fatal::of("the log")(&error))?;
        if let Some(synced) = synced {
            if synced.shortage.is_some() {
                self.out.push(Out::RareState("there is no room to preallocate the log"));
            }
            self.inputs.push_back(Input::Event(Event::Persisted { token: synced.token }));
        } else {
            self.log().prepare().map_err(|error| Fatal::of("the log")(&error))?;
        }
        Ok(())
    }

    fn run_machine(&mut self) -> Result<(), Fatal> {
        let now = self.clock_now();
        let fatal = Fatal::of("applying the log");
        if self.is_installing {
            if std::mem::take(&mut self.is_installed) {
                self.is_installing = false;
                self.machine.installed(now, &mut self.outputs).map_err(|error| fatal(&error))?;
            }
            return Ok(());
        }
        if let Some(job) = self.jobs.pop_front() {
            match self.machine.take(job, now, &mut self.outputs).map_err(|error| fatal(&error))? {
                Next::GoOn => self.machine.hand_over_if_due(now.instant, &mut self.outputs),
                Next::AwaitInstall => self.is_installing = true,
                Next::End => return Ok(()),
            }
            if !self.jobs.is_empty() || self.is_installing {
                return Ok(());
            }
        }
        self.machine.compact(now.instant, &mut self.outputs);
        self.machine.hand_over_if_due(now.instant, &mut self.outputs);
        Ok(())
    }

    fn run_backend(&mut self) -> Result<(), Fatal> {
        let fatal = Fatal::of("the backend");
        let now = self.clock_now().instant;
        if self.writer.lacks_space() {
            if self.writer.supersede(self.install_index).map_err(|error| fatal(&error))? {
                self.out.push(Out::RareState("a snapshot replaces batches that wait for room"));
            }
        } else {
            if let Some(order) = self.outputs.orders.pop_front() {
                self.writer.take(order, now);
            } else {
                self.writer.reclaim(now).map_err(|error| fatal(&error))?;
            }
        }
        while let Some(report) = self.writer.step().map_err(|error| fatal(&error))? {
            self.handle_report(report);
        }
        if self.writer.lacks_space() {
            self.room_retry_at = now + ROOM_RETRY_INTERVAL;
        }
        Ok(())
    }

    /// Removes old files. Returns their number.
    ///
    /// # Errors
    ///
    /// The process failed and must not be used again.
    pub fn purge(&self) -> Result<u64, Fatal> {
        let mut removed = 0;
        self.purger.run(|_| removed += 1).map_err(|error| Fatal::of("purging")(&error))?;
        Ok(removed)
    }

    /// Moves the outputs of a turn to the queues of their receivers.
    fn route_outputs(&mut self) {
        self.inputs.append(&mut self.outputs.inputs);
        let published = self.outputs.published;
        if let Some(members) = self.outputs.members.take() {
            self.removed.extend(members.removed().map(|id| id.0));
            self.members.extend(members.iter().map(|member| member.id.0));
            self.out.push(Out::Members(members));
        }
        if std::mem::take(&mut self.outputs.was_installed) {
            self.out.push(Out::Installed);
        }
        if published > self.reported {
            self.reported = published;
            self.out.push(Out::Published(published));
        }
        self.release_readers();
        self.deliver_outcomes();
        for request in std::mem::take(&mut self.outputs.proposals) {
            self.propose(request, Waiter::Internal, None);
        }
        if std::mem::take(&mut self.outputs.is_removed) {
            self.out.push(Out::Removed);
        }
    }

    fn fail_proposal(&mut self, request_id: u64, failure: ProposalFailure) {
        let Some(waiter) = self.outputs.pending.take(request_id) else { return };
        let reason = match failure {
            ProposalFailure::Dropped => "the proposal was dropped",
            ProposalFailure::QueueFull => "too many requests",
            ProposalFailure::Expired => "there is no leader",
            ProposalFailure::UnsafeChange(_) => {
                self.out.push(Out::RareState("a membership change that had to wait is refused"));
                "the membership change would endanger the quorum"
            }
        };
        self.fail_waiter(waiter, Failure::Never(reason));
    }
}

/// Creates a request to defragment the backend file.
pub(crate) const fn defragment(op: OpId) -> Order<Completion, Completion> {
    Order::Defragment(op)
}
