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
use quorate_raft::Message;
use quorate_state::backend::{Backend, Batch, Committed};
use quorate_storage::snap;

use crate::applier::Job;
use crate::fatal::FaultReports;
use crate::image;
use crate::inbox::Sender;
use crate::log;
use crate::metrics::Metrics;
use crate::peer::{OutgoingSnapshot, Peers};
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
    /// Put the received image of the snapshot at `index` in place of the backend file.
    Install { index: u64, done: Done<()> },
    /// Give free space back to the file system.
    Defragment(Done<Defragmented>),
    /// End, after everything before.
    Stop,
}

/// What happens once a batch is durable.
pub(crate) enum Then {
    /// Write a snapshot that stands at the batch's index.
    Snapshot(SnapshotOrder),
    /// Send a peer the file as it is then, by this message.
    Send(Message),
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
    pub(crate) peers: Arc<Peers>,
    pub(crate) snapshots: crate::snapshots::Writer,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    /// How often the file was replaced.
    pub(crate) generation: u64,
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

impl Reclaiming {
    fn tell(self, bytes_after: u64) {
        for tell in self.tell {
            tell(Defragmented { bytes_before: self.bytes_before, bytes_after });
        }
    }
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
    Snapshot(#[from] snap::SnapError),
    #[error(transparent)]
    Install(#[from] image::InstallError),
}

impl Committer {
    /// Runs until told to stop, or until the disk fails.
    pub(crate) fn run(mut self) {
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
                Some(Order::Install { index, done }) => {
                    // Space is won back anew in the other file, by whoever asks for it.
                    if let Some(finished) = reclaiming.take() {
                        finished.tell(self.backend.size_bytes());
                    }
                    self.install(index).map(|()| done(()))
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
            self.tell_committed(committed);
        }
        for step in then {
            match step {
                Then::Snapshot(order) => self.snapshots.take(&order)?,
                Then::Send(message) => {
                    let image = self.backend.db().read();
                    self.peers.send_snapshot(OutgoingSnapshot { message, image });
                }
                Then::Tell(done) => done(()),
            }
        }
        Ok(())
    }

    fn tell_committed(&self, committed: Committed) {
        _ = self.applier.send(Job::Committed { committed, generation: self.generation });
    }

    /// Views of the old file that are still held keep it readable; its space is free when they are gone.
    fn install(&mut self, index: u64) -> Result<(), CommitError> {
        let started = Instant::now();
        let writer = &self.snapshots;
        image::replace(&self.backend, &writer.disk, &writer.dir, index)?;
        self.generation += 1;
        log::info!(
            "installed the backend file of a snapshot",
            "snapshot-index" = index,
            "took" = started.elapsed()
        );
        Ok(())
    }

    /// Does one step of giving space back.
    fn reclaim(&self, reclaiming: &mut Option<Reclaiming>) -> Result<(), CommitError> {
        let Some(current) = reclaiming else { return Ok(()) };
        let step = self.backend.db().reclaim(RECLAIM_PAGES)?;
        let view = self.backend.read();
        let committed = Committed { view, last_revision: None, consistent_index: None };
        self.tell_committed(committed);
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
            finished.tell(self.backend.size_bytes());
        }
        Ok(())
    }
}
