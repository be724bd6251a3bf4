//! The channels between the threads of a member: inputs for the driver, jobs for the applier, orders for the backend
//! thread.
//!
//! The threads import this module, and do not import each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use quorate_core::Defragmented;
use quorate_node::{ConfChangeDecision, Proposal};
use quorate_raft::{ConfChange, LogIndex, MemberId, SnapshotOutcome, Status, Term};
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::{self, ReceiveError, Receiver, Sender};
use crate::threads::bound::Full;
use crate::threads::completion::Completer;
use crate::threads::outcome::Outcome;
use crate::threads::write_stages::Stages;
use quorate_peer::Received;

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
    /// Records that the snapshot at this index is in the log, and that the applier has the job to install it.
    pub(crate) fn set(&self, index: LogIndex) {
        self.index.store(index.get(), Ordering::Relaxed);
    }

    /// Returns the index of the newest snapshot to install. That snapshot may already be installed.
    pub(crate) fn newest(&self) -> LogIndex {
        LogIndex(self.index.load(Ordering::Relaxed))
    }
}

/// Maximum number of batches that wait for the backend thread.
pub(crate) const ORDERS_QUEUED_MAX: usize = 2;

/// An order for the backend thread.
pub(crate) type Order = quorate_core::Order<Done<()>, Done<Defragmented>>;

/// Maximum number of requests that wait for the driver.
pub(crate) const REQUESTS_QUEUED_MAX: usize = 16_384;

/// An input for the driver.
pub(crate) enum Input {
    Propose(Proposal),
    /// A proposal that only a leader may make. It fails unless this member still leads in this term.
    ProposeAsLeader {
        term: Term,
        proposal: Proposal,
    },
    ReadBarrier(Completer<Outcome>),
    Persisted {
        token: u64,
    },
    ConfChangeDecided(ConfChangeDecision),
    /// The applier has applied an entry after which the driver has to be woken.
    Applied,
    /// Record in the log a snapshot that is on disk.
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
    /// Make this member the leader.
    TransferLeadership(MemberId),
    /// The backend file is waiting for disk space, or has stopped waiting.
    BackendSpace {
        is_short: bool,
    },
    /// Return the status of the consensus core.
    AskStatus(Done<Status>),
    /// Return when the write at this index passed the stages of the log, if those times are still kept.
    AskStages {
        index: LogIndex,
        done: Done<Option<Stages>>,
    },
    /// End the thread. The entries in the log remain for the next start.
    Stop,
}

/// Sends inputs to the driver; every thread has a clone.
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

    /// Sends a client's request, unless too many requests wait for the driver.
    pub(crate) fn request(&self, input: Input) -> Result<(), Full> {
        if self.requests_queued.fetch_add(1, Ordering::Relaxed) >= REQUESTS_QUEUED_MAX {
            self.requests_queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Full);
        }
        self.report(input);
        Ok(())
    }

    /// Reports an event. Reports are dropped once the driver has ended.
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
    /// Waits for inputs until the deadline, or without limit if there is no deadline. Moves all inputs into `batch`,
    /// which must be empty.
    pub(crate) fn receive_until(
        &self,
        batch: &mut Vec<Input>,
        deadline: Option<Instant>,
    ) -> Result<(), ReceiveError> {
        self.receiver.receive_until(batch, deadline)
    }

    /// Subtracts this many requests from the count of waiting requests.
    pub(crate) fn note_taken(&self, requests: usize) {
        self.requests_queued.fetch_sub(requests, Ordering::Relaxed);
    }
}
