//! The channels between the threads of a member: inputs for the driver, jobs for the applier, orders for the backend
//! thread.
//!
//! The modules of the threads import this module, but not each other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use quorate_core::Defragmented;
use quorate_node::{ConfChangeDecision, Event, Proposal};
use quorate_raft::{ConfChange, LogIndex, MemberId, SnapshotOutcome, Status, Term};
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::{self, Closed, ReceiveError, Receiver, Sender};
use crate::threads::completion::Completer;
use crate::threads::outcome::Outcome;
use crate::threads::write_stages::Stages;
use quorate_peer::Received;
use quorate_requests::bound::Full;

/// A callback for the completion of an operation.
pub(crate) type Done<T> = Box<dyn FnOnce(T) + Send>;

/// A job for the applier.
pub(crate) type Job = quorate_core::Job<Done<()>>;

/// Notifies the backend thread of a leader's snapshot that is to be installed. The install order itself comes through
/// the applier, which may be blocked because the disk is full.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotNotice {
    index: Arc<AtomicU64>,
}

impl SnapshotNotice {
    /// Records that the snapshot at this index is in the log, and that a job to install it is queued for the applier.
    pub(crate) fn set(&self, index: LogIndex) {
        self.index.store(index.get(), Ordering::Relaxed);
    }

    /// Returns the index of the newest snapshot to install. That snapshot may already be installed.
    pub(crate) fn newest(&self) -> LogIndex {
        LogIndex(self.index.load(Ordering::Relaxed))
    }
}

/// An order for the backend thread.
pub(crate) type Order = quorate_core::Order<Done<()>, Done<Defragmented>>;

/// Maximum number of requests that wait for the driver.
pub(crate) const REQUESTS_QUEUED_MAX: usize = 16_384;

/// An input for the driver.
pub(crate) enum Input {
    /// A proposal, and the time at which this member accepted it.
    Propose(Proposal, Instant),
    /// A proposal that only a leader may make. It fails unless this member still leads in this term.
    ProposeAsLeader {
        term: Term,
        proposal: Proposal,
        /// The time at which this member accepted the proposal.
        accepted: Instant,
    },
    ReadBarrier(Completer<Outcome>),
    Persisted {
        token: u64,
    },
    ConfChangeDecided(ConfChangeDecision),
    /// Wakes the driver's thread. Sent when a membership change has been applied or a leader's snapshot installed,
    /// because consensus waits for both, and when another thread has run the driver and the driver now has to stop, or
    /// may have to tick before the time until which its thread sleeps.
    Wake,
    /// Write the mark of a snapshot to the log. The snapshot's file is already on disk.
    MarkSnapshot(SnapshotMark),
    SnapshotTaken {
        index: LogIndex,
    },
    /// Propose a membership change, whose id is the id of the request.
    ProposeConfChange(ConfChange),
    /// Messages from a peer, in order.
    Received(Received),
    /// A message to this peer was lost.
    Unreachable(MemberId),
    /// The connections to this peer have broken, and the peer refuses new ones.
    Gone(MemberId),
    /// The outcome of sending a snapshot to this peer.
    SnapshotSent {
        to: MemberId,
        outcome: SnapshotOutcome,
    },
    /// Transfer the leadership to this member.
    TransferLeadership(MemberId),
    /// The backend file is waiting for disk space, or has stopped waiting.
    BackendSpace {
        is_short: bool,
    },
    /// An event that [`quorate_core::Pending`] has returned.
    Event(Event),
    /// Return the status of the consensus core.
    AskStatus(Done<Status>),
    /// Return the times at which the write at this index passed the stages of the log, if they are still kept.
    AskStages {
        index: LogIndex,
        done: Done<Option<Stages>>,
    },
    /// Execute a last turn of consensus, then call back. Until the log is closed, only marks of snapshots are written
    /// to it. The entries stay in the log and are read again when the member restarts.
    Stop(Done<()>),
    /// Close the log and end the thread.
    CloseLog,
}

/// Runs the driver or the applier on a thread that has an input for it.
///
/// Waking the driver's or the applier's own thread costs two context switches and several microseconds of CPU. A thread
/// that has just received a message, or has made entries durable, processes that input itself if no other thread runs
/// the driver.
pub(crate) trait RunInline: Send + Sync {
    /// Processes queued inputs on the calling thread, without waiting for the disk. Returns false if the thread of the
    /// driver or applier has to process them.
    fn run_queued(&self) -> bool;

    /// Like [`RunInline::run_queued`], but may also write and sync the log, if the sync is likely to be quick.
    fn run_queued_and_sync(&self) -> bool {
        self.run_queued()
    }
}

/// Which thread should process a request. If the calling thread cannot run the driver, the driver's thread processes the
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessedBy {
    /// The driver's thread, together with the other requests that are queued.
    DriverThread,
    /// The calling thread. Only for a request that is the only one of its kind (proposal or read barrier) in progress.
    Caller,
    /// Like `Caller`, but the thread may also write and sync the log.
    CallerWithSync,
}

/// The driver or applier that other threads run inline. Until this is set, only the driver's or applier's own thread
/// runs it.
#[derive(Clone, Default)]
struct Runner(Arc<OnceLock<Weak<dyn RunInline>>>);

impl Runner {
    fn set(&self, runner: Weak<dyn RunInline>) {
        assert!(self.0.set(runner).is_ok(), "a member has one driver and one applier");
    }

    /// Processes queued items on the calling thread with `run`, or wakes the thread that receives them.
    fn run_or_wake<T>(&self, items: &Sender<T>, run: impl FnOnce(&dyn RunInline) -> bool) {
        let runner = self.0.get().and_then(Weak::upgrade);
        if !runner.is_some_and(|runner| run(&*runner)) {
            items.wake();
        }
    }
}

/// Sends jobs to the applier.
#[derive(Clone)]
pub(crate) struct ApplierHandle {
    jobs: Sender<Job>,
    runner: Runner,
}

impl std::fmt::Debug for ApplierHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApplierHandle").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl ApplierHandle {
    pub(crate) fn channel() -> (Self, Receiver<Job>) {
        let (jobs, receiver) = batch_queue::unbounded();
        (Self { jobs, runner: Runner::default() }, receiver)
    }

    /// Sets how other threads run the applier.
    pub(crate) fn set_runner(&self, runner: Weak<dyn RunInline>) {
        self.runner.set(runner);
    }

    /// Sends a job to the applier's thread. Fails after the applier has ended.
    pub(crate) fn send(&self, job: Job) -> Result<(), Closed> {
        self.jobs.send(job)
    }

    /// Queues a job. The caller then calls [`ApplierHandle::run_or_wake`] once for all queued jobs.
    pub(crate) fn queue(&self, job: Job) -> Result<(), Closed> {
        self.jobs.queue(job)
    }

    /// Carries out the queued jobs on the calling thread if they are brief and no other thread runs the applier.
    /// Otherwise, the applier's thread carries them out.
    pub(crate) fn run_or_wake(&self) {
        self.runner.run_or_wake(&self.jobs, |applier| applier.run_queued());
    }

    /// Wakes the applier's thread to carry out the queued jobs.
    pub(crate) fn wake(&self) {
        self.jobs.wake();
    }

    /// Ends the wait of the applier's thread, which then determines its next deadline.
    pub(crate) fn interrupt(&self) {
        self.jobs.interrupt();
    }
}

/// Sends inputs to the driver. Every thread has a clone.
#[derive(Clone)]
pub(crate) struct DriverHandle {
    inputs: Sender<Input>,
    requests_queued: Arc<AtomicUsize>,
    runner: Runner,
}

impl std::fmt::Debug for DriverHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverHandle").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl DriverHandle {
    pub(crate) fn channel() -> (Self, DriverInputs) {
        let (inputs, receiver) = batch_queue::unbounded();
        let requests_queued = Arc::new(AtomicUsize::new(0));
        let runner = Runner::default();
        let handle = Self { inputs, requests_queued: Arc::clone(&requests_queued), runner };
        (handle, DriverInputs { receiver, requests_queued })
    }

    /// Sets how other threads run the driver. Until then, only its own thread runs it.
    pub(crate) fn set_runner(&self, runner: Weak<dyn RunInline>) {
        self.runner.set(runner);
    }

    /// Sends a client's request, unless too many requests wait for the driver.
    pub(crate) fn request(&self, input: Input, by: ProcessedBy) -> Result<(), Full> {
        if self.requests_queued.fetch_add(1, Ordering::Relaxed) >= REQUESTS_QUEUED_MAX {
            self.requests_queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Full);
        }
        match by {
            ProcessedBy::DriverThread => self.report(input),
            ProcessedBy::Caller => self.report_inline(input),
            ProcessedBy::CallerWithSync => {
                self.queue_and_run(input, |driver| driver.run_queued_and_sync());
            }
        }
        Ok(())
    }

    /// Wakes the driver's thread, even if another thread takes all queued inputs before it wakes.
    pub(crate) fn interrupt(&self) {
        self.inputs.interrupt();
    }

    /// Reports an event to the driver's thread. Reports are dropped after the driver ends.
    pub(crate) fn report(&self, input: Input) {
        _ = self.inputs.send(input);
    }

    /// Reports an event, and processes it on the calling thread if no other thread runs the driver.
    pub(crate) fn report_inline(&self, input: Input) {
        self.queue_and_run(input, |driver| driver.run_queued());
    }

    fn queue_and_run(&self, input: Input, run: impl FnOnce(&dyn RunInline) -> bool) {
        if self.inputs.queue(input).is_ok() {
            self.runner.run_or_wake(&self.inputs, run);
        }
    }
}

/// The receiving end of [`DriverHandle`].
#[derive(Debug)]
pub(crate) struct DriverInputs {
    receiver: Receiver<Input>,
    requests_queued: Arc<AtomicUsize>,
}

impl DriverInputs {
    /// Waits for inputs, until the deadline if there is one. The inputs stay in the queue.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<(), ReceiveError> {
        self.receiver.wait(deadline)
    }

    /// Drops the queued inputs and refuses further ones.
    pub(crate) fn close(&self) {
        self.receiver.close();
    }

    /// Takes all queued inputs into `batch`, which must be empty.
    pub(crate) fn take(&self, batch: &mut Vec<Input>) {
        self.receiver.take(batch);
    }

    /// Subtracts this many requests from the count of waiting requests.
    pub(crate) fn note_taken(&self, requests: usize) {
        self.requests_queued.fetch_sub(requests, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use parking_lot::Mutex;
    use quorate_raft::MemberId;

    use super::*;

    /// A driver that records the numbers of the inputs it processes. The upper half of a number identifies the sender,
    /// and the lower half counts the sender's inputs.
    struct Recorder {
        inputs: DriverInputs,
        seen: Mutex<Vec<MemberId>>,
        has_stopped: AtomicBool,
    }

    impl Recorder {
        fn process(&self, seen: &mut Vec<MemberId>) {
            let mut batch = Vec::new();
            self.inputs.take(&mut batch);
            for input in batch {
                match input {
                    Input::Unreachable(number) => seen.push(number),
                    Input::CloseLog => self.has_stopped.store(true, Ordering::Relaxed),
                    _ => panic!("the test received an input that it did not send"),
                }
            }
        }
    }

    impl RunInline for Recorder {
        fn run_queued(&self) -> bool {
            let Some(mut seen) = self.seen.try_lock() else { return false };
            self.process(&mut seen);
            true
        }
    }

    fn recorder() -> (DriverHandle, Arc<Recorder>) {
        let (handle, inputs) = DriverHandle::channel();
        let recorder = Arc::new(Recorder {
            inputs,
            seen: Mutex::default(),
            has_stopped: AtomicBool::new(false),
        });
        let runner: Weak<Recorder> = Arc::downgrade(&recorder);
        handle.set_runner(runner);
        (handle, recorder)
    }

    #[test]
    fn an_input_is_processed_on_the_thread_that_reports_it_while_the_driver_is_idle() {
        let (handle, recorder) = recorder();
        handle.report_inline(Input::Unreachable(1));
        assert_eq!(*recorder.seen.lock(), [1]);
    }

    #[test]
    fn an_input_queued_while_another_thread_runs_the_driver_wakes_the_driver_thread() {
        let (handle, recorder) = recorder();
        let running = recorder.seen.lock();
        handle.report_inline(Input::Unreachable(1));
        drop(running);
        let far = Instant::now() + Duration::from_secs(60);
        assert_eq!(recorder.inputs.wait(Some(far)), Ok(()));
    }

    #[test]
    fn concurrent_inputs_are_processed_once_and_in_order_for_each_sender() {
        const COUNT: u64 = 5_000;
        let (handle, recorder) = recorder();
        std::thread::scope(|scope| {
            let driver = scope.spawn(|| {
                while !recorder.has_stopped.load(Ordering::Relaxed) {
                    let far = Instant::now() + Duration::from_secs(60);
                    assert_eq!(recorder.inputs.wait(Some(far)), Ok(()));
                    recorder.process(&mut recorder.seen.lock());
                }
            });
            let senders = [0, 1, 2, 3].map(|sender| {
                let handle = &handle;
                scope.spawn(move || {
                    for number in 0..COUNT {
                        let input = Input::Unreachable(sender << 32 | number);
                        if number % 3 == 0 {
                            handle.report(input);
                        } else {
                            handle.report_inline(input);
                        }
                    }
                })
            });
            for sender in senders {
                sender.join().unwrap();
            }
            handle.report(Input::CloseLog);
            driver.join().unwrap();
        });
        assert_eq!(recorder.seen.lock().len() as u64, 4 * COUNT);
        let mut next = BTreeMap::new();
        for number in recorder.seen.lock().iter() {
            let (sender, count) = (number >> 32, number & u64::from(u32::MAX));
            let expected = next.entry(sender).or_insert(0);
            assert_eq!(count, *expected);
            *expected += 1;
        }
    }
}
