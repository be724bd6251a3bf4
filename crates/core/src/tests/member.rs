//! A member under test: its machines, the queues between them, and its disk.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_node::{Config, Effect, Event, FlowLimits, Node, Persist, SnapshotPolicy};
use quorate_raft::confchange::wire as change_wire;
use quorate_raft::{
    ConfChange, ConfChangeKind, Entry, EntryKind, LogIndex, Message, MessageKind, SnapshotOutcome,
    Term,
};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{Refusal, Request, Response, StateOptions};
use quorate_state::auth::View;
use quorate_state::backend::Backend;
use quorate_state::members::{Member as Row, Members};
use quorate_state::mvcc::StoreOptions;
use quorate_state::units::{MemberId, Millis};
use quorate_storage::bolt;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, FaultyDisk, OpenMode, RealDisk};
use quorate_storage::snap::IncomingDatabase;
use quorate_storage::wal::{self, SnapshotMark, Wal};

use super::{Client, INTERVALS};
use crate::start::{self, Start};
use crate::{
    BackendWriter, Begun, Consensus, Job, Log, Next, Now, Order, Outlet, Output, Pace, Purger,
    Report, StateMachine, StopStep, configuration_of,
};

pub(super) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The directory that contains the member's disk.
#[derive(Debug)]
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn dirs(&self) -> DataDir {
        DataDir::new(&self.path().join("data"), None)
    }

    /// Creates the data directory of a founding member of a cluster with these voters.
    pub(super) fn found(&self, voters: &[u64], options: wal::Options) {
        // The tests cut the power of the simulated disk only, so these initial files need no sync.
        let options = wal::Options { sync: false, ..options };
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let dirs = self.dirs();
        dirs.prepare(&*disk).unwrap();
        let mut wal = Wal::create(disk, dirs.wal(), Bytes::from_static(b"m"), options).unwrap();
        let entries: Vec<_> = (1..)
            .zip(voters)
            .map(|(index, id)| {
                let row = Row::new(MemberId(*id), vec![format!("http://{id}:2380")]);
                let change = ConfChange {
                    kind: ConfChangeKind::AddNode,
                    node_id: *id,
                    context: row.to_json().into(),
                    ..ConfChange::default()
                };
                let data = change_wire::encode_v1(&change);
                wal::Entry { index, term: 1, kind: EntryKind::ConfChange as u8, data }
            })
            .collect();
        let hard_state = wal::HardState { term: 1, vote: 0, commit: entries.len() as u64 };
        wal.save(Some(&hard_state), &entries).unwrap();
        wal.close().unwrap();
    }
}

/// Returns options for segments that contain only a few entries.
pub(super) fn small_segments() -> wal::Options {
    wal::Options {
        segment_bytes: 2000,
        zero_lead_bytes: 0,
        zero_step_bytes: 0,
        ..wal::Options::default()
    }
}

/// An input of consensus, from the other machines or from outside the member.
#[derive(Debug)]
pub(super) enum Input {
    Event(Event),
    Ask,
    Read,
    Change(ConfChange),
    Mark(SnapshotMark),
}

/// A queued task for the log machine.
#[derive(Debug)]
enum LogOrder {
    Append(Persist),
    Mark(SnapshotMark),
}

/// The outputs of the state machine that the other machines have not taken yet, and the outcomes of entries.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    inputs: VecDeque<Input>,
    orders: VecDeque<Order<u64, u64>>,
    /// Applied writes, which are acknowledged when they are published.
    outcomes: Vec<u64>,
    acknowledged: u64,
    published: LogIndex,
    leads_in: Option<Term>,
    pub(super) completions: Vec<u64>,
    /// The number of times that consensus requested the NOSPACE alarm.
    pub(super) alarms: u64,
}

impl Outlet for Outputs {
    type Ticket = u64;
    type Completion = u64;

    fn begin(&mut self, request: &Request, _: &View) -> Begun<u64> {
        Begun { ticket: request.id, reply_wanted: true, kind: "request" }
    }

    fn finish(&mut self, ticket: u64, _: &Entry, outcome: Option<Result<Response, Refusal>>) {
        if let Some(Ok(Response::Put(_))) = outcome {
            self.outcomes.push(ticket);
        }
    }

    fn leads_in(&self, term: Term) -> bool {
        self.leads_in == Some(term)
    }

    fn is_backend_behind(&self) -> bool {
        self.orders.len() >= 2
    }

    fn put(&mut self, output: Output<u64>) {
        match output {
            Output::Decided(decision) => {
                self.inputs.push_back(Input::Event(Event::ConfChangeDecided(decision)));
            }
            Output::Published { index, .. } | Output::Installed { index, .. } => {
                assert!(index >= self.published, "the published index never decreases");
                self.published = index;
                let newest = self.outcomes.drain(..).max();
                self.acknowledged = self.acknowledged.max(newest.unwrap_or(0));
            }
            Output::Commit { batch, then } => self.orders.push_back(Order::Commit { batch, then }),
            Output::Install { index } => {
                self.orders.push_back(Order::Install { index, completion: 0 });
            }
            Output::Complete(completion) => self.completions.push(completion),
            Output::Members(_)
            | Output::Changed { .. }
            | Output::ChangeRefused(_)
            | Output::Removed
            | Output::ChangeAnswered { .. }
            | Output::CompactionAccepted { .. }
            | Output::ClusterVersion { .. }
            | Output::StorageVersion { .. }
            | Output::StorageVersionStays(_)
            | Output::OverQuota { .. }
            | Output::TakingSnapshot { .. } => {}
        }
    }
}

/// Returns the content of a file.
pub(super) fn read_file(disk: &FaultyDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A member's promises to other members. The member must keep them after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    /// The index of the last entry that the member has acknowledged to a leader.
    pub(super) log: LogIndex,
    /// The last term in which the member has voted or acknowledged anything.
    pub(super) term: Term,
    /// The newest snapshot of the member's own state that consensus relies on.
    pub(super) mark: LogIndex,
}

/// The steps of a member. In production, the four machines usually run on four threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Consensus,
    Log,
    StateMachine,
    Backend,
    Time,
    Purge,
}

pub(super) const TURNS: [Turn; 6] =
    [Turn::Consensus, Turn::Log, Turn::StateMachine, Turn::Backend, Turn::Time, Turn::Purge];

/// A member without threads, and the state that tests observe.
pub(super) struct Member {
    pub(super) disk: FaultyDisk,
    shared: Arc<dyn Disk>,
    dirs: DataDir,
    pub(super) consensus: Consensus<Vec<u64>>,
    log: Log,
    pub(super) machine: StateMachine<u64>,
    pub(super) writer: BackendWriter<u64, u64>,
    pub(super) inputs: VecDeque<Input>,
    log_orders: VecDeque<LogOrder>,
    pub(super) jobs: VecDeque<Job<u64>>,
    pub(super) outputs: Outputs,
    /// The index of the newest snapshot that consensus has ordered to be installed.
    installs: LogIndex,
    is_installing: bool,
    is_installed: bool,
    /// Pending reads: the index that must be applied first, and the number of writes that the read must see.
    waiting_reads: Vec<(LogIndex, u64)>,
    reads_done: u64,
    /// Sent messages that are not delivered yet.
    pub(super) sent: Vec<Message>,
    /// Sent snapshots that are not delivered yet, with their images.
    pub(super) images: Vec<(Message, Vec<u8>)>,
    image_count: u64,
    purger: Purger,
    now: Instant,
    elapsed: Duration,
    /// The time of consensus, which passes only with ticks.
    ticked_at: Instant,
    pub(super) promised: Promised,
}

impl Member {
    /// Starts a member from its directory. The disk may be set to fail while the member starts.
    pub(super) fn start(
        id: u64,
        folder: &Folder,
        disk: FaultyDisk,
        options: wal::Options,
    ) -> Outcome<Self> {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let dirs = folder.dirs();
        quorate_storage::snap::clean_up(&*shared, &dirs.snap())?;
        let open = || Backend::open(&shared, &dirs.backend(), bolt_options());
        let recovered = start::recover(&shared, &dirs, state_options(), open)?;
        let mark = recovered.mark();
        let applied = LogIndex(recovered.state.applied().0);
        let (wal, contents) = start::open_log(&shared, &dirs, &mark, options)?;
        start::check_log(&*shared, &dirs, &contents, applied)?;
        let begin = Start::new(&recovered.state, contents, mark)?;
        start::release_passed(&*shared, &dirs, applied)?;
        let node = Node::new(node_config(id, begin, recovered.state.members()))?;
        let now = Instant::now();
        let backend = recovered.backend;
        let machine =
            StateMachine::new(recovered.state, backend.clone(), MemberId(id), pace(), now);
        let snap_dir = dirs.snap();
        Ok(Self {
            consensus: Consensus::start(node, applied, INTERVALS, now),
            log: Log::new(wal, Arc::clone(&shared), snap_dir.clone()),
            machine,
            writer: BackendWriter::new(backend, Arc::clone(&shared), snap_dir.clone()),
            inputs: VecDeque::new(),
            log_orders: VecDeque::new(),
            jobs: VecDeque::new(),
            outputs: Outputs { published: applied, ..Outputs::default() },
            installs: LogIndex::ZERO,
            is_installing: false,
            is_installed: false,
            waiting_reads: Vec::new(),
            reads_done: 0,
            sent: Vec::new(),
            images: Vec::new(),
            image_count: 0,
            purger: Purger {
                disk: Arc::clone(&shared),
                snap_dir,
                wal_dir: dirs.wal().to_path_buf(),
                snapshots_max: 1,
                segments_max: 1,
            },
            disk,
            shared,
            dirs,
            now,
            elapsed: Duration::ZERO,
            ticked_at: now,
            promised: Promised::default(),
        })
    }

    /// Returns whether the member leads and has applied the first entry of its term.
    pub(super) fn leads(&self) -> bool {
        self.consensus.leadership().leads_in(Term(self.machine.state().applied().1))
    }

    pub(super) fn applied(&self) -> LogIndex {
        self.outputs.published
    }

    pub(super) const fn reads_done(&self) -> u64 {
        self.reads_done
    }

    /// Runs one machine.
    pub(super) fn take_turn(
        &mut self,
        turn: Turn,
        client: &mut Client,
        draw: &mut SplitMix64,
    ) -> Outcome {
        match turn {
            Turn::Consensus => {
                let count = draw.position(self.inputs.len() + 1).max(1);
                self.run_consensus(count, client)?;
            }
            Turn::Log => self.run_log(draw)?,
            Turn::StateMachine => self.run_machine(client)?,
            Turn::Backend => self.run_backend()?,
            Turn::Time => {
                self.let_time_pass();
                self.ticked_at += INTERVALS.tick;
                self.run_consensus(0, client)?;
            }
            Turn::Purge => self.purger.run(|_| ())?,
        }
        self.inputs.append(&mut self.outputs.inputs);
        client.acknowledged = client.acknowledged.max(self.outputs.acknowledged);
        Ok(())
    }

    /// Returns whether no machine has work left.
    pub(super) fn is_idle(&self) -> bool {
        self.inputs.is_empty()
            && self.log_orders.is_empty()
            && self.jobs.is_empty()
            && self.outputs.orders.is_empty()
            && !self.is_installing
            && self.machine.wake_at().is_none()
            && LogIndex(self.machine.state().applied().0) == self.consensus.commit_index()
    }

    fn run_consensus(&mut self, count: usize, client: &mut Client) -> Outcome {
        self.consensus.begin_turn(Now { instant: self.ticked_at, millis: self.now().millis });
        for _ in 0..count.min(self.inputs.len()) {
            match self.inputs.pop_front().expect("the queue has at least this many items") {
                Input::Event(event) => self.consensus.handle(event),
                Input::Ask => {
                    client.ask().into_iter().for_each(|proposal| self.consensus.propose(proposal));
                }
                Input::Read => self.consensus.next_readers().push(client.acknowledged),
                Input::Change(change) => {
                    self.consensus.propose_conf_change(change, self.outputs.published);
                }
                Input::Mark(mark) => self.mark(mark)?,
            }
        }
        self.consensus.end_turn(self.outputs.published, count > 0);
        self.consensus.sleep();
        loop {
            while let Some(effect) = self.consensus.poll_effect() {
                self.carry_out(effect, client)?;
            }
            if self.consensus.has_other_voters() {
                return Ok(());
            }
            let Some(synced) = self.log.sync()? else { return Ok(()) };
            self.consensus.handle(Event::Persisted { token: synced.token });
        }
    }

    fn carry_out(&mut self, effect: Effect, client: &mut Client) -> Outcome {
        match effect {
            Effect::Persist(persist) => {
                let is_here = !self.consensus.has_other_voters() && self.log_orders.is_empty();
                if is_here {
                    self.log.append(&persist)?;
                } else {
                    self.log_orders.push_back(LogOrder::Append(persist));
                }
            }
            Effect::Apply(applying) => {
                for entry in &applying.entries {
                    let is_request = entry.kind == EntryKind::Normal;
                    let data = if is_request { entry.data.clone() } else { Bytes::new() };
                    client.note_committed(entry.index, &data);
                }
                self.jobs.push_back(Job::Apply(applying.entries));
            }
            Effect::Send(message) => {
                self.promise(&message);
                self.sent.push(message);
            }
            Effect::SendSnapshot(message) => self.jobs.push_back(Job::SendSnapshot(message)),
            Effect::InstallSnapshot(snapshot) => {
                self.installs = snapshot.metadata.index;
                self.jobs.push_back(Job::InstallSnapshot(snapshot));
            }
            Effect::TakeSnapshot => self.jobs.push_back(Job::TakeSnapshot),
            Effect::Leadership(leadership) => {
                let leads = leadership.role == quorate_raft::Role::Leader;
                self.outputs.leads_in = leads.then_some(leadership.term);
                if !leads {
                    self.jobs.push_back(Job::LostLeadership);
                }
            }
            Effect::BarrierPassed { index, .. } => {
                let waiting_reads = std::mem::take(self.consensus.waiting_reads());
                self.waiting_reads.extend(waiting_reads.into_iter().map(|writes| (index, writes)));
            }
            Effect::BarrierFailed { .. } => self.consensus.waiting_reads().clear(),
            Effect::ProposalFailed { request_id, failure } => {
                panic!("proposal {request_id} has failed: {failure:?}");
            }
            Effect::RefuseWrites(refuses) => self.outputs.alarms += u64::from(refuses),
            Effect::Stop(fault) => panic!("an intact log was reported as faulty: {fault}"),
        }
        Ok(())
    }

    /// Records what a message promises to its receiver. A pre-vote promises nothing, because the sender does not enter
    /// the term of the pre-vote.
    fn promise(&mut self, message: &Message) {
        let promised = &mut self.promised;
        let is_ack = message.kind == MessageKind::AppendResponse;
        if is_ack || message.kind == MessageKind::VoteResponse {
            promised.term = promised.term.max(message.term);
        }
        if is_ack && !message.reject {
            promised.log = promised.log.max(message.index);
        }
    }

    fn mark(&mut self, mark: SnapshotMark) -> Outcome {
        if self.consensus.has_other_voters() || !self.log_orders.is_empty() {
            self.log_orders.push_back(LogOrder::Mark(mark));
            return Ok(());
        }
        self.mark_now(&mark)
    }

    fn mark_now(&mut self, mark: &SnapshotMark) -> Outcome {
        let marked = self.log.mark(mark)?;
        self.promised.mark = self.promised.mark.max(marked.index);
        let persisted = marked.synced.map(|synced| Event::Persisted { token: synced.token });
        let taken = Event::SnapshotTaken { index: marked.index };
        self.inputs.extend(persisted.into_iter().chain([taken]).map(Input::Event));
        Ok(())
    }

    /// Processes some of the queued tasks, with one sync for all of them.
    fn run_log(&mut self, draw: &mut SplitMix64) -> Outcome {
        let count = draw.position(self.log_orders.len() + 1).max(1);
        for _ in 0..count.min(self.log_orders.len()) {
            match self.log_orders.pop_front().expect("the queue has at least this many items") {
                LogOrder::Append(persist) => {
                    self.log.append(&persist)?;
                }
                LogOrder::Mark(mark) => self.mark_now(&mark)?,
            }
        }
        match self.log.sync()? {
            Some(synced) => {
                self.inputs.push_back(Input::Event(Event::Persisted { token: synced.token }));
            }
            None => _ = self.log.prepare()?,
        }
        Ok(())
    }

    fn now(&self) -> Now {
        let millis = u64::try_from(self.elapsed.as_millis()).unwrap();
        Now { instant: self.now + self.elapsed, millis: Millis(millis) }
    }

    fn run_machine(&mut self, client: &Client) -> Outcome {
        let now = self.now();
        if self.is_installing {
            if std::mem::take(&mut self.is_installed) {
                self.is_installing = false;
                self.machine.installed(now, &mut self.outputs)?;
            }
        } else if let Some(job) = self.jobs.pop_front() {
            match self.machine.take(job, now, &mut self.outputs)? {
                Next::GoOn => self.machine.hand_over_if_due(now.instant, &mut self.outputs),
                Next::AwaitInstall => self.is_installing = true,
                Next::End => panic!("the state machine stopped during a turn"),
            }
        } else {
            self.machine.compact(now.instant, &mut self.outputs);
            self.machine.hand_over_if_due(now.instant, &mut self.outputs);
        }
        let applied = self.outputs.published;
        let view = self.machine.state().published().view();
        let written = u64::try_from(view.current_revision()).unwrap() - 1;
        for (_, writes) in self.waiting_reads.extract_if(.., |(index, _)| *index <= applied) {
            assert!(written >= writes, "a read misses acknowledged writes: {written} of {writes}");
            self.reads_done += 1;
        }
        assert!(written >= client.acknowledged.min(client.written_at(applied)));
        Ok(())
    }

    fn run_backend(&mut self) -> Outcome {
        let report = match self.writer.step()? {
            Some(report) => report,
            None if self.writer.lacks_space() => {
                self.writer.supersede(self.installs)?;
                return Ok(());
            }
            None => {
                if let Some(order) = self.outputs.orders.pop_front() {
                    self.writer.take(order, self.now().instant);
                } else if self.writer.reclaim_at().is_some() {
                    self.writer.reclaim(self.now().instant)?;
                }
                return Ok(());
            }
        };
        match report {
            Report::Committed { committed, generation }
            | Report::Moved { committed, generation } => {
                self.jobs.push_back(Job::Committed { committed, generation });
            }
            Report::SnapshotSaved(mark) => self.inputs.push_back(Input::Mark(mark)),
            Report::Send { message, image } => {
                let mut bytes = vec![0; usize::try_from(image.image_len()).unwrap()];
                let mut done = 0;
                while done < bytes.len() {
                    done += image.read_image_at(done as u64, &mut bytes[done..])?;
                }
                self.images.push((message, bytes));
            }
            Report::Installed { .. } => self.is_installed = true,
            Report::Complete(completion) => self.outputs.completions.push(completion),
            Report::NoRoom(_) => self.note_room(true),
            Report::RoomAgain => self.note_room(false),
            Report::Defragmented { completions, .. } => {
                self.outputs.completions.extend(completions);
            }
            Report::Compacted(_) | Report::Superseded | Report::Ended => {}
        }
        Ok(())
    }

    fn note_room(&mut self, is_short: bool) {
        self.inputs.push_back(Input::Event(Event::BackendSpace { is_short }));
    }

    /// Advances the clock of batches and compactions, without a consensus tick.
    pub(super) fn let_time_pass(&mut self) {
        self.elapsed += Duration::from_millis(40);
    }

    /// Receives a message.
    pub(super) fn receive(&mut self, message: Message) {
        self.inputs.push_back(Input::Event(Event::Received(vec![message])));
    }

    /// Receives a snapshot: first its image, then its message.
    pub(super) fn receive_snapshot(&mut self, message: Message, image: &[u8]) -> Outcome {
        let index = message.snapshot.as_ref().expect("the message is a snapshot").metadata.index;
        self.image_count += 1;
        let disk = Arc::clone(&self.shared);
        let mut file = IncomingDatabase::create(disk, &self.dirs.snap(), self.image_count)?;
        file.write(image)?;
        file.finish(index.get())?;
        self.receive(message);
        Ok(())
    }

    /// Reports that a message to this peer was lost.
    pub(super) fn note_lost(&mut self, peer: u64) {
        self.inputs.push_back(Input::Event(Event::Unreachable(peer)));
    }

    /// Reports whether a snapshot has reached a peer.
    pub(super) fn note_snapshot(&mut self, to: u64, outcome: SnapshotOutcome) {
        self.inputs.push_back(Input::Event(Event::SnapshotSent { to, outcome }));
    }

    /// Stops the member cleanly.
    pub(super) fn stop(mut self, client: &mut Client) -> Outcome {
        for step in StopStep::ORDER {
            match step {
                StopStep::EndConsensus => self.run_consensus(self.inputs.len(), client)?,
                StopStep::EndStateMachine => {
                    self.jobs.push_back(Job::Stop);
                    while let Some(job) = self.jobs.pop_front() {
                        self.machine.take(job, self.now(), &mut self.outputs)?;
                    }
                }
                StopStep::EndBackend => {
                    while !self.outputs.orders.is_empty() {
                        self.run_backend()?;
                    }
                    while self.writer.step()?.is_some() {}
                }
                StopStep::CloseLog => self.write_last_marks()?,
            }
        }
        Ok(self.log.close(self.consensus.unwritten_hard_state())?)
    }

    fn write_last_marks(&mut self) -> Outcome {
        for order in std::mem::take(&mut self.log_orders) {
            match order {
                LogOrder::Append(persist) => _ = self.log.append(&persist)?,
                LogOrder::Mark(mark) => self.mark_now(&mark)?,
            }
        }
        for input in std::mem::take(&mut self.inputs) {
            if let Input::Mark(mark) = input {
                self.mark_now(&mark)?;
            }
        }
        Ok(())
    }
}

pub(super) fn bolt_options() -> bolt::Options {
    let mut options = bolt::Options::default();
    options.growth_bytes = 8 << 10;
    options.map_bytes_min = 1 << 20;
    options
}

pub(super) fn state_options() -> StateOptions {
    // Do not cache records, so that reads use the file.
    let store = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 0 };
    StateOptions { store, learner_count_max: 1, ..StateOptions::default() }
}

pub(super) fn pace() -> Pace {
    Pace {
        batch_interval: Duration::from_millis(100),
        batch_ops_max: 6,
        compaction_step: 2,
        compaction_pause: Duration::from_millis(10),
        lease_extension_millis: 1000,
    }
}

fn node_config(id: u64, start: Start, members: &Members) -> Config {
    Config {
        id,
        election_ticks: 10,
        pre_vote: true,
        initial_tick_advance: true,
        seed: id,
        first_read_request_id: id << 48,
        proposal_ticks_max: 1 << 40,
        fences_stalled_disk: false,
        checks_reconfigurations: true,
        // The limits are small, so that several snapshots are taken and a follower needs one.
        snapshot_policy: SnapshotPolicy {
            entry_count: 8,
            catch_up_count: 4,
            catch_up_bytes: 4000,
            transfer_bytes: 4000,
        },
        flow_limits: FlowLimits::default(),
        hard_state: start.hard_state,
        conf_state: configuration_of(members),
        snapshot_index: LogIndex(start.mark.index),
        snapshot_term: Term(start.mark.term),
        entries: start.entries,
        applied: start.applied,
    }
}
