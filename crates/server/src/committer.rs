//! The backend thread: it writes the applier's batches to the backend file, one transaction each, and gives
//! free space back between them.
//!
//! # Invariants
//!
//! * Batches are committed in the order in which the applier handed them over, each whole.
//! * What has to wait for a batch to be durable (a snapshot, a compaction's answer) happens after its
//!   commit, in order.
//! * Giving space back proceeds in steps of bounded length; a batch never waits for more than one.
//!
//! # Bound
//!
//! [`ORDERS_QUEUED_MAX`] batches. The applier waits when there are more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use quorate_state::backend::{Backend, Batch, Committed};

use crate::applier::Job;
use crate::fatal::FaultReports;
use crate::inbox::Sender;
use crate::metrics::Metrics;
use crate::snapshots::SnapshotOrder;

/// Batches that may wait.
pub(crate) const ORDERS_QUEUED_MAX: usize = 2;

/// Pages moved in one step of giving space back.
const RECLAIM_PAGES: u64 = 256;

/// Something to be told when a thing is done.
pub(crate) type Done<T> = Box<dyn FnOnce(T) + Send>;

/// What the backend thread is told.
pub(crate) enum Order {
    /// Write this batch, then do what follows it.
    Commit { batch: Batch, then: Vec<Then> },
    /// Give free space back to the file system.
    Defragment(Done<Defragmented>),
    /// End, after everything before.
    Stop,
}

/// What happens once a batch is durable.
pub(crate) enum Then {
    /// Write a snapshot that stands at the batch's index.
    Snapshot(SnapshotOrder),
    /// Tell somebody.
    Tell(Done<()>),
}

/// What giving space back has brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defragmented {
    pub(crate) bytes_before: u64,
    pub(crate) bytes_after: u64,
}

/// The thread's state.
pub(crate) struct Committer {
    pub(crate) backend: Backend,
    pub(crate) orders: Receiver<Order>,
    pub(crate) applier: Sender<Job>,
    pub(crate) snapshots: crate::snapshots::Writer,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
}

/// A reclamation under way, for everybody who asked for it.
///
/// Pages that a step has moved stay where they were for as long as a published view can see them. So
/// readers are shown the file's new state after each step, and when a pass is through, another one
/// begins once they have it, until a pass gains nothing.
struct Reclaiming {
    bytes_before: u64,
    tell: Vec<Done<Defragmented>>,
    /// Whether this pass has moved or truncated anything.
    has_gained: bool,
    passes_left: u32,
    /// When to look again; readers are given a moment to take the new view.
    next_step: Instant,
}

/// Passes of one reclamation. Each gives back what the one before had to leave to readers.
const PASSES_MAX: u32 = 8;

/// Time for readers between two passes.
const PASS_PAUSE: Duration = Duration::from_millis(2);

/// Why the backend thread stops.
#[derive(Debug, thiserror::Error)]
enum CommitError {
    #[error(transparent)]
    Backend(#[from] quorate_state::backend::Fault),
    #[error(transparent)]
    Bolt(#[from] quorate_storage::bolt::BoltError),
    #[error(transparent)]
    Snapshot(#[from] quorate_storage::snap::SnapError),
}

impl Committer {
    /// Runs until told to stop, or until the disk fails.
    pub(crate) fn run(self) {
        let mut reclaiming: Option<Reclaiming> = None;
        loop {
            let received = match &reclaiming {
                Some(reclaiming) => self.orders.recv_deadline(reclaiming.next_step),
                None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let order = match received {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let carried_out = match order {
                Some(Order::Commit { batch, then }) => self.commit(batch, then),
                Some(Order::Defragment(tell)) => {
                    let first = || Reclaiming {
                        bytes_before: self.backend.size_bytes(),
                        tell: Vec::new(),
                        has_gained: false,
                        passes_left: PASSES_MAX,
                        next_step: Instant::now(),
                    };
                    if reclaiming.is_none() {
                        self.backend.db().restart_reclaim();
                    }
                    reclaiming.get_or_insert_with(first).tell.push(tell);
                    Ok(())
                }
                Some(Order::Stop) => return,
                None => self.reclaim(&mut reclaiming),
            };
            if let Err(error) = carried_out {
                self.faults.report("writing the backend file", error);
                return;
            }
        }
    }

    fn commit(&self, batch: Batch, then: Vec<Then>) -> Result<(), CommitError> {
        if !batch.is_empty() {
            let started = Instant::now();
            let committed = self.backend.commit(batch)?;
            self.metrics.disk.backend_commit.observe(started.elapsed());
            _ = self.applier.send(Job::Committed(committed));
        }
        for step in then {
            match step {
                Then::Snapshot(order) => self.snapshots.take(&order)?,
                Then::Tell(done) => done(()),
            }
        }
        Ok(())
    }

    /// Does one step of giving space back.
    fn reclaim(&self, reclaiming: &mut Option<Reclaiming>) -> Result<(), CommitError> {
        let Some(current) = reclaiming else { return Ok(()) };
        let step = self.backend.db().reclaim(RECLAIM_PAGES)?;
        let view = self.backend.read();
        let committed = Committed { view, last_revision: None, consistent_index: None };
        _ = self.applier.send(Job::Committed(committed));
        current.has_gained |= step.moved_pages > 0 || step.truncated_bytes > 0;
        if !step.done {
            return Ok(());
        }
        current.passes_left -= 1;
        if current.has_gained && current.passes_left > 0 {
            current.has_gained = false;
            current.next_step = Instant::now() + PASS_PAUSE;
            return Ok(());
        }
        if let Some(finished) = reclaiming.take() {
            let bytes_before = finished.bytes_before;
            let bytes_after = self.backend.size_bytes();
            for tell in finished.tell {
                tell(Defragmented { bytes_before, bytes_after });
            }
        }
        Ok(())
    }
}
