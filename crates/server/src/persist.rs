//! The log thread: it owns the write-ahead log and makes durable what the driver orders.
//!
//! All orders that have queued up are appended together and share one sync; this is what makes a
//! thousand clients as cheap as one. Between orders it prepares space ahead of the log, so that a sync
//! does not have to update the file's metadata.
//!
//! # Invariants
//!
//! * A token is reported only after everything ordered up to it is on disk.
//! * After a failed write or sync nothing is reported any more, and the member stops: what the medium
//!   holds then is unknown until the log is read again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_node::Persist;
use quorate_raft::{Entry, HardState};
use quorate_storage::wal::{self, SnapshotMark, Wal, WalError};

use crate::driver::{DriverHandle, Input};
use crate::fatal::FaultReports;
use crate::inbox::{Nothing, Receiver};
use crate::log;

/// Orders that may wait. The driver waits when there are more.
pub(crate) const ORDERS_QUEUED_MAX: usize = 1024;

/// Bytes of the log prepared at a time, when there is nothing else to do.
const PREPARE_BYTES: u64 = 1 << 20;

/// How long the thread is idle before it prepares space.
const IDLE: Duration = Duration::from_millis(5);

/// A sync that takes longer is worth a warning.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// What the log thread is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Make durable, then report.
    Append(Persist),
    /// Record that a snapshot is on disk, then report it; segments below it may then be purged.
    MarkSnapshot(SnapshotMark),
    /// Write this, if anything, and end.
    Stop(Option<HardState>),
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct LogThread {
    wal: Wal,
    orders: Receiver<Order>,
    driver: DriverHandle,
    faults: FaultReports,
    metrics: Arc<crate::metrics::Metrics>,
    /// The newest order taken into the log's buffer and not yet reported.
    unreported: Option<u64>,
}

impl LogThread {
    pub(crate) fn new(
        wal: Wal,
        orders: Receiver<Order>,
        driver: DriverHandle,
        faults: FaultReports,
        metrics: Arc<crate::metrics::Metrics>,
    ) -> Self {
        Self { wal, orders, driver, faults, metrics, unreported: None }
    }

    /// Runs until told to stop, or until the disk fails.
    pub(crate) fn run(mut self) {
        let served = self.serve();
        if let Err(error) = served.and_then(|()| self.wal.close()) {
            self.faults.report("writing the write-ahead log", error);
        }
    }

    fn serve(&mut self) -> Result<(), WalError> {
        let mut orders = Vec::new();
        let mut is_prepared = false;
        loop {
            let idle_at = (!is_prepared).then(|| Instant::now() + IDLE);
            match self.orders.receive_until(&mut orders, idle_at) {
                Ok(()) => {}
                Err(Nothing::Yet) => {
                    is_prepared = !self.wal.prepare(PREPARE_BYTES)?;
                    continue;
                }
                Err(Nothing::Ever) => return Ok(()),
            }
            is_prepared = false;
            for order in orders.drain(..) {
                match order {
                    Order::Append(persist) => self.append(&persist)?,
                    Order::MarkSnapshot(mark) => {
                        self.sync()?;
                        self.mark_snapshot(&mark)?;
                    }
                    Order::Stop(hard_state) => {
                        self.sync()?;
                        if let Some(hard_state) = hard_state {
                            self.wal.append(Some(&to_wal_state(hard_state)), [])?;
                        }
                        return Ok(());
                    }
                }
            }
            self.sync()?;
        }
    }

    fn append(&mut self, persist: &Persist) -> Result<(), WalError> {
        let hard_state = persist.hard_state.map(to_wal_state);
        self.wal.append(hard_state.as_ref(), persist.entries.iter().map(to_wal_entry))?;
        self.unreported = Some(persist.token);
        Ok(())
    }

    /// Makes everything appended durable, and says so.
    fn sync(&mut self) -> Result<(), WalError> {
        let Some(token) = self.unreported.take() else { return Ok(()) };
        let started = Instant::now();
        let saved = self.wal.sync()?;
        let took = started.elapsed();
        self.metrics.disk.wal_fsync.observe(took);
        if took > SLOW_SYNC {
            log::warn!("slow fdatasync", "took" = took, "expected-duration" = SLOW_SYNC);
        }
        if let Some(path) = saved.new_segment {
            log::info!("created a new WAL segment", "path" = path.display().to_string());
        }
        self.driver.report(Input::Persisted { token });
        Ok(())
    }

    fn mark_snapshot(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        self.wal.save_snapshot(mark)?;
        self.wal.release_to(mark.index);
        self.driver.report(Input::SnapshotTaken { index: mark.index });
        Ok(())
    }
}

fn to_wal_entry(entry: &Entry) -> wal::EntryRef<'_> {
    let kind = entry.kind as u8;
    wal::EntryRef { index: entry.index, term: entry.term, kind, data: &entry.data }
}

const fn to_wal_state(state: HardState) -> wal::HardState {
    wal::HardState { term: state.term, vote: state.vote, commit: state.commit }
}
