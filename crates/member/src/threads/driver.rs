//! The driver of consensus. It owns the [`Consensus`] machine, feeds all events to it, and delivers its effects to the
//! other threads.
//!
//! Inputs are processed in batches: all inputs that are queued while one batch is processed form the next batch, so
//! that many proposals share one append.
//!
//! The driver has its own thread, which keeps the clock and processes the inputs that other threads queue. While that
//! thread is idle, a thread with an urgent input runs the driver itself ([`RunInline`]): the network thread with a
//! peer's message, the log thread after a sync, and a connection thread with the only request in progress. Each of
//! these runs saves two context switches. A lock allows only one thread at a time to run the driver, and every input is
//! taken from the queue under that lock, so inputs from one source keep their order.
//!
//! If only a few entries were committed, the thread that runs the driver also runs the applier, after it has released
//! the driver ([`ApplierHandle::run_or_wake`]). The driver's own thread does so only if there is no other voter:
//! otherwise applying entries could delay the ticks on which elections and heartbeats depend.
//!
//! If this member is the only voter, the thread that runs the driver writes the log between effects, because no voter
//! has to be served during the write. A connection thread then runs the driver only for the only proposal in progress,
//! and only if it serves no other request at that time and the write is likely to be quick. When another voter joins,
//! the log moves to its own thread and stays there.
//!
//! # Bounds
//!
//! At most [`REQUESTS_QUEUED_MAX`](crate::threads::channels::REQUESTS_QUEUED_MAX) requests wait in the queue. Further
//! requests are refused. `admission` bounds the total number of requests, in the queue and after it. Reports from the
//! other threads use the same queue. The number of reports is bounded by the work given to those threads. The driver
//! never waits for the log thread's disk writes. `node` bounds the number and the bytes of these writes.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quorate_core::{Consensus, Intervals, LogError, Now, WaitingReads};
use quorate_node::{BarrierFailure, Effect, Event, Leadership, Node, Persist, ProposalFailure};
use quorate_raft::{Message, NoteLevel, Role};
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::ReceiveError;
use crate::threads::channels::{
    ApplierHandle, Done, DriverHandle, DriverInputs, Input, Job, RunInline, SnapshotNotice,
};
use crate::threads::clock::Clock;
use crate::threads::completion::CompletionBatch;
use crate::threads::fatal::FaultReports;
use crate::threads::member_status::MemberStatus;
use crate::threads::outcome::Outcome;
use crate::threads::pending_proposals::PendingProposals;
use crate::threads::persist::{LogThread, LogWriter};
use crate::threads::waitlist::Waitlist;
use crate::threads::write_stages::WriteStages;
use quorate_peer::Peers;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// The channels and shared state that the driver uses.
#[derive(Debug)]
pub(crate) struct Neighbours {
    pub(crate) peers: Arc<Peers>,
    pub(crate) applier: ApplierHandle,
    pub(crate) snapshots: SnapshotNotice,
    pub(crate) pending: Arc<PendingProposals>,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
}

/// Which thread writes the write-ahead log.
#[derive(Debug)]
enum Log {
    Here(Box<LogWriter>),
    Thread(LogThread),
    /// The log was closed when the driver stopped or after a fault.
    Closed,
}

/// The driver, which its own thread and other threads run in turn.
#[derive(Debug)]
pub(crate) struct SharedDriver {
    inputs: DriverInputs,
    handle: DriverHandle,
    applier: ApplierHandle,
    /// Empty while a thread other than the driver's own runs the driver, and after the driver has stopped.
    driver: Mutex<Option<Box<Driver>>>,
}

impl SharedDriver {
    pub(crate) fn new(driver: Driver, inputs: DriverInputs) -> Arc<Self> {
        let (handle, applier) = (driver.handle.clone(), driver.neighbours.applier.clone());
        let driver = Mutex::new(Some(Box::new(driver)));
        let shared = Arc::new(Self { inputs, handle, applier, driver });
        let runner: Weak<Self> = Arc::downgrade(&shared);
        shared.handle.set_runner(runner);
        shared
    }

    /// Runs on the driver's thread until the log is closed.
    pub(crate) fn run(&self) {
        let mut deadline = self.take_turn(Driver::start);
        while let Some(until) = deadline {
            if self.inputs.wait(Some(until)) == Err(ReceiveError::Closed) {
                break;
            }
            deadline = self.take_turn(|driver| driver.run_queued(&self.inputs));
        }
        // The lock is released before the log is closed, because closing waits for the log thread, and the log thread
        // tries to take the lock when it sends a last report.
        let driver = self.driver.lock().take();
        let mut driver = driver.expect("only this thread ends the driver");
        self.write_last_marks(&mut driver);
        driver.close();
        self.inputs.close();
    }

    /// Writes the marks of the snapshots that the backend thread saves before it ends.
    fn write_last_marks(&self, driver: &mut Driver) {
        let mut batch = Vec::new();
        if let Some(stopped) = driver.stopped.take() {
            stopped(());
        }
        while !driver.closes_log && !matches!(driver.log, Log::Closed) {
            if self.inputs.wait(None) == Err(ReceiveError::Closed) {
                return;
            }
            self.inputs.take(&mut batch);
            for input in batch.drain(..) {
                match input {
                    Input::MarkSnapshot(mark) => driver.mark_snapshot(mark),
                    Input::Stop(stopped) => stopped(()),
                    Input::CloseLog => driver.closes_log = true,
                    // No turn follows, so the senders of requests receive no response.
                    _ => {}
                }
            }
        }
    }

    /// Runs the driver on its own thread. Returns the time by which the driver must run again, or `None` after a stop.
    fn take_turn(&self, run: impl FnOnce(&mut Driver)) -> Option<Instant> {
        let mut slot = self.driver.lock();
        let driver = slot.as_mut().expect("no thread has panicked while it ran the driver");
        run(driver);
        driver.prepare_log();
        let deadline = (!driver.stopping).then(|| driver.consensus.sleep());
        let has_queued = std::mem::take(&mut driver.has_queued_entries);
        // If there are other voters, this thread does not run the applier, because even a page fault would delay its
        // ticks.
        let has_time = !driver.may_run_inline();
        drop(slot);
        if has_queued && has_time {
            self.applier.run_or_wake();
        } else if has_queued {
            self.applier.wake();
        }
        deadline
    }

    /// Runs the driver on a thread other than its own, if `may_run` allows it and no other thread runs the driver.
    fn run_inline(&self, may_run: impl FnOnce(&Driver) -> bool) -> bool {
        let Some(mut slot) = self.driver.try_lock() else { return false };
        if !slot.as_ref().is_some_and(|driver| may_run(driver)) {
            return false;
        }
        // The server aborts on a panic. If panics unwind instead, as in a test, the process may survive a panic of the
        // driver here. The slot then stays empty, because no thread may use a driver whose state is unknown.
        let Some(mut driver) = slot.take() else { return false };
        driver.run_queued(&self.inputs);
        // The driver's thread closes the log.
        let has_to_wake = driver.stopping || driver.consensus.oversleeps();
        let has_queued = std::mem::take(&mut driver.has_queued_entries);
        *slot = Some(driver);
        drop(slot);
        if has_queued {
            self.applier.run_or_wake();
        }
        if has_to_wake {
            self.handle.interrupt();
        }
        true
    }
}

impl RunInline for SharedDriver {
    fn run_queued(&self) -> bool {
        self.run_inline(Driver::may_run_inline)
    }

    fn run_queued_and_sync(&self) -> bool {
        self.run_inline(|driver| driver.may_run_inline() || driver.may_sync_inline())
    }
}

/// The driver with its consensus machine and its log.
pub(crate) struct Driver {
    consensus: Consensus<Waitlist>,
    /// Sends inputs to this driver. The log thread has a clone.
    handle: DriverHandle,
    /// The inputs that are being processed.
    batch: Vec<Input>,
    log: Log,
    neighbours: Neighbours,
    heartbeat: Duration,
    completions: CompletionBatch<Outcome>,
    /// Messages that are about to be sent to peers.
    messages: Vec<Message>,
    /// Whether entries were queued for the applier without waking its thread.
    has_queued_entries: bool,
    stages: WriteStages,
    /// The leadership after its last change.
    last_leadership: Leadership,
    /// Whether there was a tick since log space was last prepared.
    has_ticked: bool,
    /// The time at which the last inputs were received or the last sync ended.
    now: Instant,
    /// Whether this turn is the last one.
    stopping: bool,
    /// Called after the last turn.
    stopped: Option<Done<()>>,
    closes_log: bool,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("consensus", &self.consensus).finish_non_exhaustive()
    }
}

impl WaitingReads for Waitlist {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Driver {
    pub(crate) fn new(
        node: Node,
        writer: LogWriter,
        handle: DriverHandle,
        neighbours: Neighbours,
        intervals: Intervals,
    ) -> Self {
        let applied = neighbours.member_status.applied();
        let now = Instant::now();
        Self {
            consensus: Consensus::start(node, applied, intervals, now),
            handle,
            batch: Vec::new(),
            log: Log::Here(Box::new(writer)),
            neighbours,
            heartbeat: intervals.tick,
            completions: CompletionBatch::new(),
            messages: Vec::new(),
            has_queued_entries: false,
            stages: WriteStages::default(),
            last_leadership: Leadership::default(),
            has_ticked: false,
            now,
            stopping: false,
            stopped: None,
            closes_log: false,
        }
    }

    fn start(&mut self) {
        self.publish_consensus();
        self.carry_out_effects();
    }

    /// Executes a turn of consensus with all queued inputs.
    fn run_queued(&mut self, inputs: &DriverInputs) {
        let mut batch = std::mem::take(&mut self.batch);
        inputs.take(&mut batch);
        self.now = Instant::now();
        let has_inputs = !batch.is_empty();
        self.consensus.begin_turn(Now { instant: self.now, millis: self.neighbours.clock.now() });
        self.take_batch(&mut batch, inputs);
        self.batch = batch;
        // The applier does not report the applied index, because each report would wake this thread. It is sufficient
        // to read the index in every turn.
        let applied = self.neighbours.member_status.applied();
        if let Some(delay) = self.consensus.end_turn(applied, has_inputs) {
            self.note_ticks(delay);
        }
        self.carry_out_effects();
    }

    /// Does the work that is due after ticks. `delay` is the delay of the last tick.
    fn note_ticks(&mut self, delay: Duration) {
        self.notice_delay(delay);
        self.forget_withdrawn();
        self.publish_consensus();
        self.has_ticked = true;
    }

    /// Returns whether a thread other than the driver's own may run the driver without waiting for the disk.
    const fn may_run_inline(&self) -> bool {
        matches!(self.log, Log::Thread(_)) && !self.stopping
    }

    /// Returns whether a thread other than the driver's own may run the driver if it may also wait for a quick sync.
    fn may_sync_inline(&self) -> bool {
        matches!(&self.log, Log::Here(writer) if writer.is_quick()) && !self.stopping
    }

    fn close(mut self: Box<Self>) {
        let hard_state = self.consensus.unwritten_hard_state();
        match std::mem::replace(&mut self.log, Log::Closed) {
            Log::Here(writer) => self.value_or_stop(writer.close(hard_state)).unwrap_or_default(),
            Log::Thread(thread) => thread.stop(hard_state),
            Log::Closed => {}
        }
    }

    fn leads(&self) -> bool {
        self.consensus.leadership().leads()
    }

    /// Logs and counts a late heartbeat, once for each other member. Heartbeats are sent with the tick, so a late tick is
    /// a late heartbeat.
    fn notice_delay(&self, delay: Duration) {
        if delay <= self.heartbeat || !self.leads() {
            return;
        }
        for id in self.consensus.other_members() {
            self.neighbours.metrics.server.heartbeat_send_failures.inc();
            log::warn!(
                "leader failed to send out heartbeat on time; took too long, leader is overloaded \
                 likely from slow disk",
                "to" = format!("{id:x}"),
                "heartbeat-interval" = self.heartbeat,
                "expected-duration" = 2 * self.heartbeat,
                "exceeded-duration" = delay - self.heartbeat
            );
        }
    }

    /// Drops proposals whose clients no longer wait. A leader cannot drop proposals that are in its log.
    fn forget_withdrawn(&mut self) {
        let withdrawn = self.neighbours.pending.forget_withdrawn(self.leads());
        if !withdrawn.is_empty() {
            self.consensus.handle(Event::Withdraw(withdrawn));
        }
    }

    /// Moves the log to its own thread as soon as this member has peers to serve during disk writes.
    fn place_log(&mut self) {
        if !matches!(self.log, Log::Here(_)) || !self.consensus.has_other_voters() {
            return;
        }
        if let Log::Here(writer) = std::mem::replace(&mut self.log, Log::Closed) {
            let faults = self.neighbours.faults.clone();
            match LogThread::start(*writer, self.handle.clone(), faults) {
                Ok(thread) => self.log = Log::Thread(thread),
                Err(error) => self.fail("starting the log thread", error),
            }
        }
    }

    /// Prepares log space after a tick, so that later writes do not wait for it. This can take longer than a sync, so only
    /// the driver's own thread does it.
    fn prepare_log(&mut self) {
        if !std::mem::take(&mut self.has_ticked) {
            return;
        }
        if let Log::Here(writer) = &mut self.log {
            let prepared = writer.prepare();
            self.value_or_stop(prepared);
        }
    }

    /// Makes the entries that this thread has appended durable. Returns false if there were none.
    fn sync_log(&mut self) -> bool {
        let Log::Here(writer) = &mut self.log else { return false };
        let synced = writer.sync();
        let Some(Some(token)) = self.value_or_stop(synced) else { return false };
        self.now = Instant::now();
        self.note_persisted(token);
        true
    }

    fn note_persisted(&mut self, token: u64) {
        self.stages.sync(token, self.now);
        self.consensus.handle(Event::Persisted { token });
    }

    fn mark_snapshot(&mut self, mark: SnapshotMark) {
        match &mut self.log {
            Log::Here(writer) => {
                let mut reports = Vec::new();
                let marked = writer.mark_snapshot(&mark, |report| reports.push(report));
                if self.value_or_stop(marked).is_some() {
                    for report in reports {
                        self.take(report);
                    }
                }
            }
            Log::Thread(thread) => thread.mark_snapshot(mark),
            Log::Closed => {}
        }
    }

    /// Returns the value of a log operation. If the operation failed, reports the error, which stops the member.
    fn value_or_stop<T>(&mut self, step: Result<T, LogError>) -> Option<T> {
        match step {
            Ok(value) => Some(value),
            Err(error) => {
                self.fail("writing the write-ahead log", error);
                None
            }
        }
    }

    fn fail(&mut self, task: &'static str, error: impl Error + Send + Sync + 'static) {
        self.neighbours.faults.report(task, error);
        self.log = Log::Closed;
        self.stopping = true;
    }

    fn take_batch(&mut self, batch: &mut Vec<Input>, inputs: &DriverInputs) {
        if batch.is_empty() {
            return;
        }
        let mut requests = 0;
        for input in batch.drain(..) {
            requests += usize::from(self.take(input));
        }
        inputs.note_taken(requests);
    }

    /// Processes one input. Returns whether the input was a client's request.
    fn take(&mut self, input: Input) -> bool {
        let event = match input {
            Input::Propose(proposal, accepted) => {
                self.note_queue_wait(accepted);
                self.consensus.propose(proposal);
                return true;
            }
            Input::ProposeAsLeader { term, proposal, accepted } => {
                self.note_queue_wait(accepted);
                let request_id = proposal.request_id;
                if let Err(failure) = self.consensus.propose_as_leader(term, proposal) {
                    self.fail_proposal(request_id, failure);
                }
                return true;
            }
            Input::ReadBarrier(completer) => {
                self.consensus.next_readers().push(completer);
                return true;
            }
            Input::ProposeConfChange(change) => {
                let applied = self.neighbours.member_status.applied();
                self.consensus.propose_conf_change(change, applied);
                return true;
            }
            Input::AskStatus(done) => {
                done(self.consensus.status());
                return true;
            }
            Input::AskStages { index, done } => {
                done(self.stages.of(index));
                return true;
            }
            Input::TransferLeadership(to) => {
                self.consensus.handle(Event::TransferLeadership(to));
                return true;
            }
            Input::ConfChangeDecided(decision) => {
                self.consensus.handle(Event::ConfChangeDecided(decision));
                self.publish_leadership();
                return false;
            }
            Input::MarkSnapshot(mark) => {
                self.mark_snapshot(mark);
                return false;
            }
            Input::Stop(stopped) => {
                self.stopping = true;
                self.stopped = Some(stopped);
                return false;
            }
            Input::CloseLog => {
                self.stopping = true;
                self.closes_log = true;
                return false;
            }
            // The wake-up carries no data. The applied index, which may be its cause, is read after the batch.
            Input::Wake => return false,
            Input::Persisted { token } => {
                self.note_persisted(token);
                return false;
            }
            Input::Event(event) => event,
            Input::SnapshotTaken { index } => Event::SnapshotTaken { index },
            Input::Received(received) => Event::Received(received.into_messages()),
            Input::Unreachable(peer) => Event::Unreachable(peer),
            Input::Gone(peer) => Event::Gone(peer),
            Input::SnapshotSent { to, outcome } => Event::SnapshotSent { to, outcome },
            Input::BackendSpace { is_short } => Event::BackendSpace { is_short },
        };
        self.consensus.handle(event);
        false
    }

    /// Records how long a proposal has waited in the queue. The clock was read once for all inputs of the batch.
    fn note_queue_wait(&self, accepted: Instant) {
        let waited = self.now.saturating_duration_since(accepted);
        self.neighbours.metrics.server.proposal_queue.observe(waited);
    }

    fn fail_proposal(&mut self, request_id: u64, failure: ProposalFailure) {
        if let Some(completer) = self.neighbours.pending.take(request_id) {
            self.completions.push(completer, Outcome::ProposalFailed(failure));
        }
    }

    fn carry_out_effects(&mut self) {
        // At this point, all entries that this thread has appended are synced, so the log can be handed to its own
        // thread.
        self.place_log();
        loop {
            // Notes are logged before the effects that they explain, so that the log lines come first.
            self.log_notes();
            while let Some(effect) = self.consensus.poll_effect() {
                self.carry_out(effect);
            }
            if !self.messages.is_empty() {
                // The commit index is published before the messages that contain it are sent, because another member
                // may apply the entry as soon as it receives the index.
                self.neighbours.member_status.set_committed(self.consensus.commit_index());
                self.neighbours.peers.send(std::mem::take(&mut self.messages));
            }
            // The responses gathered so far are sent now, without waiting for the sync below.
            self.completions.send();
            if !self.sync_log() {
                break;
            }
        }
        self.publish_leadership();
        let committed = self.consensus.commit_index();
        self.neighbours.member_status.set_committed(committed);
        let metrics = &self.neighbours.metrics.server;
        metrics.proposals_committed.set_unsigned(committed.get());
        metrics.log_bytes.set_unsigned(self.consensus.log_bytes());
        metrics.log_uncommitted_bytes.set_unsigned(self.consensus.uncommitted_bytes());
        metrics.early_appends.set_unsigned(self.consensus.early_appends_bytes());
        metrics.held_changes.set_unsigned(self.consensus.held_change_count() as u64);
        metrics.log_refused.add(self.consensus.take_refused_for_room());
    }

    fn log_notes(&mut self) {
        for note in self.consensus.take_notes() {
            match note.level {
                NoteLevel::Debug => log::debug!(logger: "raft", &note.text),
                NoteLevel::Info => log::info!(logger: "raft", &note.text),
                NoteLevel::Warn => log::warn!(logger: "raft", &note.text),
                NoteLevel::Error => log::error!(logger: "raft", &note.text),
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Persist(persist) => {
                self.stages.append(&persist, self.now);
                self.append(persist);
            }
            // A send fails if the receiving thread has ended after a fault. The fault report then stops the member.
            Effect::Apply(applying) => {
                // The commit index is published before the entry can be observed as applied.
                self.neighbours.member_status.set_committed(self.consensus.commit_index());
                if let Some(last) = applying.entries.last() {
                    self.stages.commit(last.index, self.now);
                }
                let job = Job::Apply(applying.entries);
                if job.has_few_entries() {
                    self.has_queued_entries |= self.neighbours.applier.queue(job).is_ok();
                } else {
                    _ = self.neighbours.applier.send(job);
                }
            }
            Effect::Stop(fault) => {
                self.neighbours.faults.report_log_fault(fault);
                // The disk still works, so the last hard state is written before the log is closed. A tool that
                // inspects the log may need the commit index in it.
                self.stopping = true;
            }
            Effect::RefuseWrites(refuses) => {
                self.neighbours.member_status.set_refuses_writes(refuses);
            }
            Effect::TakeSnapshot => {
                _ = self.neighbours.applier.send(Job::TakeSnapshot);
            }
            Effect::Leadership(leadership) => self.change_leadership(leadership),
            Effect::BarrierPassed { index, .. } => {
                // The quorum's confirmation is published before the reads that waited for it continue.
                self.publish_leadership();
                for completer in self.consensus.waiting_reads().drain() {
                    self.neighbours.member_status.when_applied(index, completer);
                }
            }
            Effect::BarrierFailed { failure, .. } => {
                self.count_failed_barrier(failure);
                for completer in self.consensus.waiting_reads().drain() {
                    self.completions.push(completer, Outcome::BarrierFailed(failure));
                }
            }
            Effect::ProposalFailed { request_id, failure } => {
                self.fail_proposal(request_id, failure);
            }
            Effect::Send(message) => self.messages.push(message),
            Effect::SendSnapshot(message) => {
                _ = self.neighbours.applier.send(Job::SendSnapshot(message));
            }
            Effect::InstallSnapshot(snapshot) => {
                self.neighbours.member_status.set_committed(self.consensus.commit_index());
                self.publish_leadership();
                let index = snapshot.metadata.index;
                _ = self.neighbours.applier.send(Job::InstallSnapshot(snapshot));
                self.neighbours.snapshots.set(index);
            }
        }
    }

    /// Counts a failed round of the read barrier once, however many reads waited for it.
    fn count_failed_barrier(&self, failure: BarrierFailure) {
        let metrics = &self.neighbours.metrics.server;
        match failure {
            BarrierFailure::LeaderChanged => metrics.read_indexes_failed.inc(),
            BarrierFailure::TimedOut => metrics.slow_read_indexes.inc(),
            BarrierFailure::QueueFull => {}
        }
    }

    fn append(&mut self, persist: Persist) {
        match &mut self.log {
            Log::Here(writer) => {
                let appended = writer.append(&persist);
                self.value_or_stop(appended);
            }
            Log::Thread(thread) => thread.append(persist),
            Log::Closed => {}
        }
    }

    fn publish_leadership(&self) {
        self.neighbours.member_status.publish(self.consensus.leadership());
    }

    /// Publishes the state of consensus, which may be read while this thread waits for the disk.
    fn publish_consensus(&self) {
        self.neighbours.member_status.publish_consensus(self.consensus.status());
    }

    fn change_leadership(&mut self, leadership: Leadership) {
        let previous = std::mem::replace(&mut self.last_leadership, leadership);
        if leadership.has_new_leader(&previous) {
            self.neighbours.metrics.server.leader_changes_seen.inc();
        }
        self.publish_leadership();
        self.publish_consensus();
        if leadership.role == Role::Leader {
            self.neighbours.pending.begin_term(leadership.term);
        } else {
            _ = self.neighbours.applier.send(Job::LostLeadership);
        }
    }
}

#[cfg(test)]
mod tests;
