//! One process of a member: its machines, the queues between them, and what clients have asked it for.
//!
//! It takes the part of production's threads: a turn ([`Turn`]) is what a thread does between two looks at its queue,
//! and whoever drives this decides when which machine has its turn. So machines interleave as threads could, and in no
//! way that they could not: each queue keeps its order, and an applier waits for a backend that is behind.
//!
//! What leaves the process is an [`Out`], in order. After an error the process is at its end, whatever it has said.
//!
//! # Not here
//!
//! When turns come, and what the disk makes of them (`world`, `disk`); what is done with messages (`network`).

pub mod boot;
mod input;
mod lease_holder;
mod outlet;
mod question;
mod reports;
mod requests;
pub mod settings;
mod terms;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use quorate_core::incoming::Depot;
use quorate_core::{
    AppliedWaits, BackendWriter, Consensus, Job, LeaseCare, Log, Next, Now, Order, Purger,
    StateMachine,
};
use quorate_node::{Effect, Event, Leadership, LogFault, ProposalFailure};
use quorate_raft::{Entry, LogIndex, Message, MessageKind, Role, SnapshotOutcome, Term};
use quorate_state::apply::{Readers, State};
use quorate_state::backend::Backend;
use quorate_state::members::Members;
use quorate_state::watch::WatchStream;
use quorate_storage::bolt::ReadTx;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::wal::SnapshotMark;

pub use self::boot::{Booted, Refused};
use self::input::{Input, LogOrder};
use self::outlet::Said;
pub use self::question::{Ask, Failure, OpId, Reply};
pub(crate) use self::requests::ROOT;
pub use self::settings::Settings;
pub use self::terms::{Ends, GivenUp, Terms};
use crate::clock::{LocalClock, Micros, SECOND};

/// By what a caller is told that something is done: the operation, or 0 for nobody.
pub(crate) type Told = u64;

/// Batches that may wait for the backend, as in production.
const ORDERS_QUEUED_MAX: usize = 2;

/// How soon a batch is tried again that has found no room, as in production.
const ROOM_LOOKED_FOR: Micros = SECOND;

/// Who waits for the outcome of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A client's operation.
    Op(OpId),
    /// A renewal that has proposed a checkpoint first.
    Task(OpId),
    /// Nobody outside: the member itself has proposed it.
    Nobody,
}

/// Who waits for a read barrier, or for an index to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A client's read.
    Op(OpId),
    /// A question about a lease.
    Task(OpId),
    /// The leader, before it ends these leases.
    Care(LeaseCare),
}

/// What a process has let out.
#[derive(Debug)]
pub enum Out {
    /// To a peer.
    Send(Message),
    /// To a peer, with the state as of the message.
    Image {
        /// The message.
        message: Message,
        /// The state.
        image: ReadTx,
    },
    /// To a client.
    Reply(OpId, Reply),
    /// Consensus says that these are committed.
    Applying(Vec<Entry>),
    /// Everything up to here can be read.
    Published(LogIndex),
    /// A leader's state has taken the place of the member's.
    Installed,
    /// The members are these now.
    Members(Members),
    /// Leadership, as this member sees it.
    Leadership(Leadership),
    /// The log holds something no more.
    GivenUp(GivenUp),
    /// The process ends in order: the member was removed.
    Removed,
    /// The process ends, because its log and its group's contradict each other.
    Fault(LogFault),
    /// A rare thing has happened.
    Seen(&'static str),
}

/// What one thread of production does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Consensus takes its inputs.
    Consensus,
    /// The log takes its orders in.
    Append,
    /// The log is synced.
    Sync,
    /// The state machine does a job.
    Machine,
    /// The backend does a step.
    Backend,
}

/// All of them.
pub const TURNS: [Turn; 5] =
    [Turn::Consensus, Turn::Append, Turn::Sync, Turn::Machine, Turn::Backend];

/// Why a process has come to its end.
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

/// What a member has promised to others, and must keep after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promised {
    /// The last entry that it has acknowledged to a leader.
    pub log: LogIndex,
    /// The last term in which it has voted, or acknowledged anything.
    pub term: Term,
    /// Its last vote.
    pub vote: Vote,
}

/// Whom a member has voted for, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The term.
    pub term: Term,
    /// The candidate.
    pub candidate: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Process {
    /// The member's id.
    pub id: u64,
    /// Its cluster's.
    pub cluster_id: u64,
    pub(crate) settings: Settings,
    disk: Arc<dyn Disk>,
    dirs: DataDir,
    pub(crate) depot: Depot,
    consensus: Consensus<Vec<Reader>>,
    log: Log,
    machine: StateMachine<Told>,
    writer: BackendWriter<Told, Told>,
    backend: Backend,
    readers: Readers,
    purger: Purger,
    inputs: VecDeque<Input>,
    log_orders: VecDeque<LogOrder>,
    jobs: VecDeque<Job<Told>>,
    said: Said,
    /// Whether consensus writes the log itself.
    log_is_here: bool,
    /// Appended, and not synced yet.
    log_is_busy: bool,
    is_installing: bool,
    is_installed: bool,
    /// Leads without room for its backend file, and no other member can lead.
    refuses_writes: bool,
    /// The newest snapshot that is to be installed, and since when.
    installs: LogIndex,
    installs_since: Micros,
    /// When a backend without room tries again.
    room_looked_for_at: Micros,
    /// What is known to be committed, as of the last turn of consensus.
    committed: LogIndex,
    /// What the world was told to be published.
    told: LogIndex,
    waiting: AppliedWaits<Reader>,
    /// Stores that came when the file was as large as it may be.
    without_room: BTreeSet<OpId>,
    /// Reads that may be carried out.
    asked: BTreeMap<OpId, Ask>,
    tasks: BTreeMap<OpId, lease_holder::Asked>,
    /// Of operations in the log: the request's id.
    proposed: BTreeMap<OpId, u64>,
    next_request: u64,
    /// Streams of watchers.
    pub(crate) streams: BTreeMap<OpId, WatchStream>,
    /// Whom it listens to.
    pub(crate) members: BTreeSet<u64>,
    pub(crate) removed: BTreeSet<u64>,
    /// What it has promised.
    pub promised: Promised,
    /// Of which term its log's entries are.
    terms: Terms,
    clock: LocalClock,
    now: Micros,
    out: Vec<Out>,
}

impl Process {
    /// Sets the machines of a member going. `life` counts the processes there were, so that ids are its own.
    #[must_use]
    pub fn start(booted: Booted, clock: LocalClock, now: Micros, life: u64) -> Self {
        let Booted { settings, disk, dirs, depot, wal, backend, state, node, .. } = booted;
        let (id, cluster_id) = (booted.identity.member_id, booted.identity.cluster_id);
        let (applied, applied_term) = state.applied();
        let (applied, applied_term) = (LogIndex(applied), Term(applied_term));
        let snap_dir = dirs.snap();
        let readers = state.readers();
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
        let machine =
            StateMachine::new(state, backend.clone(), own, settings.pace, clock.now(now).instant);
        let said = Said::new(id, applied, applied_term);
        let mut process = Self {
            depot,
            consensus: Consensus::new(node, applied, settings.election_timeout_millis()),
            log: Log::new(wal, Arc::clone(&disk), snap_dir.clone()),
            machine,
            writer: BackendWriter::new(backend.clone(), Arc::clone(&disk), snap_dir),
            committed: applied,
            told: applied,
            id,
            cluster_id,
            settings,
            disk,
            dirs,
            backend,
            readers,
            purger,
            inputs: VecDeque::new(),
            log_orders: VecDeque::new(),
            jobs: VecDeque::new(),
            said,
            log_is_here: true,
            log_is_busy: false,
            is_installing: false,
            is_installed: false,
            refuses_writes: false,
            installs: LogIndex::ZERO,
            installs_since: 0,
            room_looked_for_at: 0,
            waiting: AppliedWaits::default(),
            without_room: BTreeSet::new(),
            asked: BTreeMap::new(),
            tasks: BTreeMap::new(),
            proposed: BTreeMap::new(),
            // As production's: the member, its life, a counter.
            next_request: id << 48 | (life & 0xff_ffff) << 24,
            streams: BTreeMap::new(),
            members: known,
            removed,
            promised: Promised::default(),
            terms: booted.terms,
            clock,
            now,
            out: Vec::new(),
        };
        process.place_log();
        process.consensus.start();
        process
    }

    /// What the process has let out since the last call.
    pub fn take_out(&mut self) -> Vec<Out> {
        self.out.extend(self.said.seen.drain(..).map(Out::Seen));
        std::mem::take(&mut self.out)
    }

    /// The state as applied.
    #[must_use]
    pub const fn state(&self) -> &State {
        self.machine.state()
    }

    /// Who leads, as far as this member knows.
    #[must_use]
    pub const fn leadership(&self) -> Leadership {
        self.said.state.leadership
    }

    /// What can be read here.
    #[must_use]
    pub const fn published(&self) -> LogIndex {
        self.said.published
    }

    /// Since when a leader's snapshot is in the log whose image is not in place yet.
    #[must_use]
    pub fn installs_since(&self) -> Option<Micros> {
        (self.installs > self.said.published).then_some(self.installs_since)
    }

    /// What consensus knows to be committed.
    #[must_use]
    pub fn committed(&self) -> LogIndex {
        self.consensus.commit_index()
    }

    /// What consensus knows of the group.
    #[must_use]
    pub fn status(&self) -> quorate_raft::Status {
        self.consensus.status()
    }

    /// Of which term its log's entries are.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The vote that it knows of.
    #[must_use]
    pub fn vote(&self) -> Vote {
        let hard_state = self.status().hard_state;
        Vote { term: hard_state.term, candidate: hard_state.vote }
    }

    /// Whether nothing is on its way between its machines, so that all of them know the same.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let is_applied = self.said.published == self.consensus.commit_index();
        self.inputs.is_empty() && self.jobs.is_empty() && !self.is_installing && is_applied
    }

    /// Its files' disk.
    pub(crate) const fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) const fn dirs(&self) -> &DataDir {
        &self.dirs
    }

    /// Handles to what is published.
    #[must_use]
    pub const fn readers(&self) -> &Readers {
        &self.readers
    }

    fn clock_now(&self) -> Now {
        self.clock.now(self.now)
    }

    /// Its clock.
    pub(crate) const fn clock_mut(&mut self) -> &mut LocalClock {
        &mut self.clock
    }

    /// When this machine has something to do; `None` while it has nothing.
    #[must_use]
    pub fn wants(&self, turn: Turn, now: Micros) -> Option<Micros> {
        let due = |wanted: bool| wanted.then_some(now);
        match turn {
            Turn::Consensus => due(!self.inputs.is_empty()),
            Turn::Append => due(!self.log_is_busy && !self.log_orders.is_empty()),
            Turn::Sync => due(self.log_is_busy),
            Turn::Machine if self.said.orders.len() > ORDERS_QUEUED_MAX => None,
            Turn::Machine if self.is_installing => due(self.is_installed),
            Turn::Machine if !self.jobs.is_empty() => Some(now),
            Turn::Machine => self.machine.wake_at().map(|at| self.clock.when(at, now)),
            Turn::Backend if self.writer.lacks_room() => Some(self.room_looked_for_at.max(now)),
            Turn::Backend if !self.said.orders.is_empty() => Some(now),
            Turn::Backend => self.writer.reclaim_at().map(|at| self.clock.when(at, now)),
        }
    }

    /// Lets a machine have its turn.
    ///
    /// # Errors
    ///
    /// The process has come to its end.
    pub fn take_turn(&mut self, turn: Turn, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        let done = match turn {
            Turn::Consensus => self.run_consensus(),
            Turn::Append => self.append_to_log(),
            Turn::Sync => self.sync_log(),
            Turn::Machine => self.run_machine(),
            Turn::Backend => self.run_backend(),
        };
        self.gather();
        done
    }

    /// One heartbeat interval has passed.
    ///
    /// # Errors
    ///
    /// The process has come to its end.
    pub fn tick(&mut self, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        self.consensus.notice_applied(self.said.published);
        let forgotten = self.said.pending.forget_withdrawn(self.consensus.leadership().leads());
        if !forgotten.is_empty() {
            self.consensus.handle(Event::Withdraw(forgotten));
        }
        self.consensus.note_time(self.clock_now().millis);
        self.consensus.handle(Event::Tick);
        if self.log_is_here {
            self.log.prepare().map_err(|error| Fatal::of("the log")(&error))?;
        }
        let done = self.carry_out_effects();
        self.gather();
        done
    }

    /// Removes old files.
    ///
    /// # Errors
    ///
    /// The process has come to its end.
    pub fn purge(&self) -> Result<u64, Fatal> {
        let mut removed = 0;
        self.purger.run(|_| removed += 1).map_err(|error| Fatal::of("purging")(&error))?;
        Ok(removed)
    }

    /// Messages of a peer have come.
    pub fn receive(&mut self, message: Message) {
        self.inputs.push_back(Input::Event(Event::Received(vec![message])));
    }

    /// A message to this peer was lost.
    pub fn note_lost(&mut self, peer: u64) {
        self.inputs.push_back(Input::Event(Event::Unreachable(peer)));
    }

    /// Nobody listens where this peer was.
    pub fn note_gone(&mut self, peer: u64) {
        self.inputs.push_back(Input::Event(Event::Gone(peer)));
    }

    /// A snapshot has reached a peer, or has not.
    pub fn note_snapshot(&mut self, to: u64, outcome: SnapshotOutcome) {
        self.inputs.push_back(Input::Event(Event::SnapshotSent { to, outcome }));
    }

    /// Has the lead handed over.
    pub fn transfer_leadership(&mut self, to: u64) {
        self.inputs.push_back(Input::Event(Event::TransferLeadership(to)));
    }

    fn run_consensus(&mut self) -> Result<(), Fatal> {
        self.consensus.note_time(self.clock_now().millis);
        for input in std::mem::take(&mut self.inputs) {
            match input {
                Input::Event(event) => {
                    let decided = matches!(event, Event::ConfChangeDecided { .. });
                    self.consensus.handle(event);
                    if decided {
                        self.publish_leadership();
                        self.place_log();
                    }
                }
                Input::Propose(proposal) => self.consensus.propose(proposal),
                Input::ProposeAsLeader { term, proposal } => {
                    let id = proposal.request_id;
                    if let Err(failure) = self.consensus.propose_as_leader(term, proposal) {
                        self.fail_proposal(id, failure);
                    }
                }
                Input::Barrier(reader) => self.consensus.next_readers().push(reader),
                Input::Change(change) => {
                    self.consensus.propose_conf_change(change, self.said.published);
                }
                Input::Mark(mark) => self.mark(mark)?,
                Input::Applied => {}
            }
        }
        self.consensus.end_batch();
        self.consensus.notice_applied(self.said.published);
        self.carry_out_effects()
    }

    /// Once there is somebody to talk to while the disk works, the log is not consensus' affair any more.
    fn place_log(&mut self) {
        self.log_is_here &= self.consensus.is_sole_voter();
    }

    fn carry_out_effects(&mut self) -> Result<(), Fatal> {
        loop {
            while let Some(effect) = self.consensus.poll_effect() {
                self.carry_out(effect)?;
            }
            if !self.log_is_here {
                break;
            }
            let synced = self.log.sync().map_err(|error| Fatal::of("the log")(&error))?;
            let Some(synced) = synced else { break };
            self.consensus.handle(Event::Persisted { token: synced.token });
        }
        self.publish_leadership();
        self.note_committed();
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), Fatal> {
        match effect {
            Effect::Persist(persist) => {
                let given_up = self.terms.note(&persist);
                self.out.extend(given_up.into_iter().map(Out::GivenUp));
                if let Some(first) = persist.entries.first() {
                    self.promised.log = self.promised.log.min(first.index.prev());
                }
                if self.log_is_here {
                    self.log.append(&persist).map_err(|error| Fatal::of("the log")(&error))?;
                } else {
                    self.log_orders.push_back(LogOrder::Append(persist));
                }
            }
            Effect::Apply(applying) => {
                self.note_committed();
                self.out.push(Out::Applying(applying.entries.clone()));
                self.jobs.push_back(Job::Apply(applying.entries));
            }
            Effect::Send(message) => {
                self.promise(&message);
                self.out.push(Out::Send(message));
            }
            Effect::SendSnapshot(message) => self.jobs.push_back(Job::SendSnapshot(message)),
            Effect::InstallSnapshot(snapshot) => {
                self.note_committed();
                self.publish_leadership();
                self.installs = snapshot.metadata.index;
                self.installs_since = self.now;
                self.jobs.push_back(Job::InstallSnapshot(snapshot));
            }
            Effect::TakeSnapshot => self.jobs.push_back(Job::TakeSnapshot),
            Effect::Leadership(leadership) => self.change_leadership(leadership),
            Effect::BarrierPassed { index, .. } => {
                self.publish_leadership();
                for reader in std::mem::take(self.consensus.readers()) {
                    self.when_applied(index, reader);
                }
            }
            Effect::BarrierFailed { .. } => {
                for reader in std::mem::take(self.consensus.readers()) {
                    self.fail_reader(&reader);
                }
            }
            Effect::ProposalFailed { request_id, failure } => {
                self.fail_proposal(request_id, failure);
            }
            Effect::RefuseWrites(refuses) => self.refuse_writes(refuses),
            Effect::Stop(fault) => self.out.push(Out::Fault(fault)),
        }
        Ok(())
    }

    fn note_committed(&mut self) {
        self.committed = self.committed.max(self.consensus.commit_index());
    }

    fn publish_leadership(&mut self) {
        self.said.state = self.consensus.leadership();
    }

    fn change_leadership(&mut self, leadership: Leadership) {
        self.publish_leadership();
        if leadership.role == Role::Leader {
            self.said.pending.begin_reign(leadership.term);
        } else {
            self.jobs.push_back(Job::LostLeadership);
        }
        self.out.push(Out::Leadership(leadership));
    }

    /// Pre-votes speak of terms to come, which nobody has entered. An acknowledgement that has waited for a stalled disk
    /// may be of entries that another leader has replaced meanwhile: the log need not have those.
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
            promised.log = promised.log.max(self.terms.held_of(message.index));
        }
    }

    fn mark(&mut self, mark: SnapshotMark) -> Result<(), Fatal> {
        if !self.log_is_here {
            self.log_orders.push_back(LogOrder::Mark(mark));
            return Ok(());
        }
        for event in self.mark_now(&mark)? {
            self.consensus.handle(event);
        }
        Ok(())
    }

    fn mark_now(&mut self, mark: &SnapshotMark) -> Result<Vec<Event>, Fatal> {
        let marked = self.log.mark(mark).map_err(|error| Fatal::of("the log")(&error))?;
        let persisted = marked.synced.map(|synced| Event::Persisted { token: synced.token });
        let taken = Event::SnapshotTaken { index: marked.index };
        Ok(persisted.into_iter().chain([taken]).collect())
    }

    fn append_to_log(&mut self) -> Result<(), Fatal> {
        for order in std::mem::take(&mut self.log_orders) {
            match order {
                LogOrder::Append(persist) => {
                    self.log.append(&persist).map_err(|error| Fatal::of("the log")(&error))?;
                }
                LogOrder::Mark(mark) => {
                    let events = self.mark_now(&mark)?;
                    self.inputs.extend(events.into_iter().map(Input::Event));
                }
            }
        }
        self.log_is_busy = true;
        Ok(())
    }

    fn sync_log(&mut self) -> Result<(), Fatal> {
        self.log_is_busy = false;
        let synced = self.log.sync().map_err(|error| Fatal::of("the log")(&error))?;
        if let Some(synced) = synced {
            if synced.shortage.is_some() {
                self.out.push(Out::Seen("there is no room to preallocate the log"));
            }
            self.inputs.push_back(Input::Event(Event::Persisted { token: synced.token }));
        } else {
            self.log.prepare().map_err(|error| Fatal::of("the log")(&error))?;
        }
        Ok(())
    }

    fn run_machine(&mut self) -> Result<(), Fatal> {
        let now = self.clock_now();
        let fatal = Fatal::of("applying the log");
        if self.is_installing {
            if std::mem::take(&mut self.is_installed) {
                self.is_installing = false;
                self.machine.installed(now, &mut self.said).map_err(|error| fatal(&error))?;
            }
            return Ok(());
        }
        if let Some(job) = self.jobs.pop_front() {
            match self.machine.take(job, now, &mut self.said).map_err(|error| fatal(&error))? {
                Next::GoOn => self.machine.hand_over_if_due(now.instant, &mut self.said),
                Next::AwaitInstall => self.is_installing = true,
                Next::End => {}
            }
            if !self.jobs.is_empty() || self.is_installing {
                return Ok(());
            }
        }
        self.machine.compact(now.instant, &mut self.said);
        self.machine.hand_over_if_due(now.instant, &mut self.said);
        Ok(())
    }

    fn run_backend(&mut self) -> Result<(), Fatal> {
        let fatal = Fatal::of("the backend");
        let now = self.clock_now().instant;
        if self.writer.lacks_room() {
            if self.writer.supersede(self.installs).map_err(|error| fatal(&error))? {
                self.out.push(Out::Seen("a snapshot replaces batches that find no room"));
            }
        } else {
            if let Some(order) = self.said.orders.pop_front() {
                self.writer.take(order, now);
            } else {
                self.writer.reclaim(now).map_err(|error| fatal(&error))?;
            }
        }
        while let Some(report) = self.writer.step().map_err(|error| fatal(&error))? {
            self.carry_report(report);
        }
        if self.writer.lacks_room() {
            self.room_looked_for_at = self.now + ROOM_LOOKED_FOR;
        }
        Ok(())
    }

    /// Takes what a turn has left to where it belongs.
    fn gather(&mut self) {
        self.inputs.append(&mut self.said.inputs);
        let published = self.said.published;
        if let Some(members) = self.said.members.take() {
            self.removed.extend(members.removed().map(|id| id.0));
            self.members.extend(members.iter().map(|member| member.id.0));
            self.out.push(Out::Members(members));
        }
        if std::mem::take(&mut self.said.was_installed) {
            self.out.push(Out::Installed);
        }
        if published > self.told {
            self.told = published;
            self.out.push(Out::Published(published));
        }
        self.release_readers();
        self.tell_outcomes();
        for request in std::mem::take(&mut self.said.proposals) {
            self.propose(request, Waiter::Nobody, None);
        }
        if std::mem::take(&mut self.said.is_removed) {
            self.out.push(Out::Removed);
        }
    }

    /// Ends in order: what is under way is finished, as far as no disk or peer has to be waited for.
    ///
    /// # Errors
    ///
    /// The disk has failed meanwhile.
    pub fn stop(mut self, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        if self.log_is_busy {
            self.sync_log()?;
        }
        self.append_to_log()?;
        self.sync_log()?;
        let hard_state = self.consensus.unwritten_hard_state();
        let time = self.clock_now();
        if self.is_installing {
            return Ok(());
        }
        let fatal = Fatal::of("the end");
        while let Some(job) = self.jobs.pop_front() {
            if let Next::AwaitInstall =
                self.machine.take(job, time, &mut self.said).map_err(|error| fatal(&error))?
            {
                return Ok(());
            }
        }
        self.machine.take(Job::Stop, time, &mut self.said).map_err(|error| fatal(&error))?;
        if self.writer.lacks_room() {
            self.writer.give_up();
        }
        while let Some(order) = self.said.orders.pop_front() {
            self.writer.take(order, time.instant);
            while self.writer.step().map_err(|error| fatal(&error))?.is_some() {}
        }
        self.log.close(hard_state).map_err(|error| fatal(&error))
    }

    fn fail_proposal(&mut self, request_id: u64, failure: ProposalFailure) {
        let Some(waiter) = self.said.pending.take(request_id) else { return };
        let words = match failure {
            ProposalFailure::Dropped => "the proposal was dropped",
            ProposalFailure::QueueFull => "too many requests",
        };
        self.fail_waiter(waiter, Failure::Never(words));
    }
}

/// An order that gives space back, for whoever asks for it.
pub(crate) const fn defragment(op: OpId) -> Order<Told, Told> {
    Order::Defragment(op)
}
