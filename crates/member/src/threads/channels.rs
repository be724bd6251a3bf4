//! What the threads of a member tell one another, and by which ways: inputs go to the driver, jobs to the applier,
//! orders to the backend thread.
//!
//! Every thread knows this file and none of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use quorate_core::Defragmented;
use quorate_node::Proposal;
use quorate_raft::{ConfChange, LogIndex, MemberId, SnapshotOutcome, Status, Term};
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::{self, Nothing, Receiver, Sender};
use crate::threads::bound::Full;
use crate::threads::completion::Completer;
use crate::threads::outcome::Outcome;
use crate::threads::write_stages::Stages;
use quorate_peer::Received;

/// Something to be told when a thing is done.
pub(crate) type Done<T> = Box<dyn FnOnce(T) + Send>;

/// What the applier is told.
pub(crate) type Job = quorate_core::Job<Done<()>>;

/// Tells the backend thread which snapshot of a leader is to be installed. The order to install it comes through the
/// applier, which may be waiting for room on the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotNotice {
    index: Arc<AtomicU64>,
}

impl SnapshotNotice {
    /// The snapshot at this index is in the log, and the applier has the job to install it.
    pub(crate) fn set(&self, index: LogIndex) {
        self.index.store(index.get(), Ordering::Relaxed);
    }

    /// The newest snapshot that was to be installed, perhaps long ago.
    pub(crate) fn newest(&self) -> LogIndex {
        LogIndex(self.index.load(Ordering::Relaxed))
    }
}

/// Batches that may wait for the backend thread.
pub(crate) const ORDERS_QUEUED_MAX: usize = 2;

/// What the backend thread is told.
pub(crate) type Order = quorate_core::Order<Done<()>, Done<Defragmented>>;

/// Requests that may wait for the driver.
pub(crate) const REQUESTS_QUEUED_MAX: usize = 16_384;

/// What the driver is told.
pub(crate) enum Input {
    Propose(Proposal),
    /// The same for what only a leader may want: it fails unless this member leads in this term still.
    ProposeAsLeader {
        term: Term,
        proposal: Proposal,
    },
    ReadBarrier(Completer<Outcome>),
    Persisted {
        token: u64,
    },
    ConfChangeDecided {
        index: LogIndex,
        change: Option<ConfChange>,
    },
    /// Something was applied that is worth waking for.
    Applied,
    /// A snapshot is on disk: record it in the log.
    MarkSnapshot(SnapshotMark),
    SnapshotTaken {
        index: LogIndex,
    },
    /// A change of the membership for the log; its id is the request's.
    ProposeConfChange(ConfChange),
    /// Messages of a peer, in their order.
    Received(Received),
    /// A message to this peer was lost.
    Unreachable(MemberId),
    /// This peer's connections have broken and it listens no more.
    Gone(MemberId),
    /// How sending a snapshot to this peer has ended.
    SnapshotSent {
        to: MemberId,
        outcome: SnapshotOutcome,
    },
    /// Make this member the leader.
    TransferLeadership(MemberId),
    /// The backend file waits for room on its disk, or waits no longer.
    BackendRoom {
        is_short: bool,
    },
    /// Tell what the core knows of the group.
    AskStatus(Done<Status>),
    /// Tell when the write at this index passed the stages of the log, if that is remembered.
    AskStages {
        index: LogIndex,
        done: Done<Option<Stages>>,
    },
    /// Ends the thread. Whatever is in the log then stays there for the next start.
    Stop,
}

/// The way to the driver, for every thread.
#[derive(Clone, Debug)]
pub(crate) struct DriverHandle {
    inputs: Sender<Input>,
    requests_queued: Arc<AtomicUsize>,
}

impl DriverHandle {
    pub(crate) fn channel() -> (Self, DriverInputs) {
        let (inputs, receiver) = batch_queue::unbounded();
        let requests_queued = Arc::new(AtomicUsize::new(0));
        let handle = Self { inputs, requests_queued: Arc::clone(&requests_queued) };
        (handle, DriverInputs { receiver, requests_queued })
    }

    /// Asks for something on behalf of a client.
    pub(crate) fn request(&self, input: Input) -> Result<(), Full> {
        if self.requests_queued.fetch_add(1, Ordering::Relaxed) >= REQUESTS_QUEUED_MAX {
            self.requests_queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Full);
        }
        self.report(input);
        Ok(())
    }

    /// Reports what happened. After the driver has ended there is nobody to tell.
    pub(crate) fn report(&self, input: Input) {
        _ = self.inputs.send(input);
    }
}

/// The receiving end of [`DriverHandle`].
#[derive(Debug)]
pub(crate) struct DriverInputs {
    receiver: Receiver<Input>,
    requests_queued: Arc<AtomicUsize>,
}

impl DriverInputs {
    /// Waits for inputs, until the deadline, and takes all of them into `batch`, which must be empty.
    pub(crate) fn receive_until(
        &self,
        batch: &mut Vec<Input>,
        deadline: Option<Instant>,
    ) -> Result<(), Nothing> {
        self.receiver.receive_until(batch, deadline)
    }

    /// So many requests wait no more.
    pub(crate) fn note_taken(&self, requests: usize) {
        self.requests_queued.fetch_sub(requests, Ordering::Relaxed);
    }
}
