//! The threads' side of the write-ahead log: where it is written, how long that takes, and what is said of it.
//!
//! With other voters the log has a thread of its own, so that a slow disk does not hold up heartbeats and
//! messages. All orders that have queued up there are appended together and share one sync; this is what
//! makes a thousand clients as cheap as one. A lone voter has nobody to talk to meanwhile, so there the
//! driver writes the log itself, which saves two of the four wake-ups of a write (measured: a tenth of
//! the CPU of a single client's put).
//!
//! # Not here
//!
//! What is written in which order: [`quorate_core::Log`].

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_core::{Log, LogError, Synced};
use quorate_node::Persist;
use quorate_raft::HardState;
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::{self, Nothing, Receiver, Sender};
use crate::threads::channels::{DriverHandle, Input};
use crate::threads::fatal::FaultReports;
use crate::threads::timed_disk::{FileTimes, Spent};
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::threads;

/// How long the thread is idle before it prepares space.
const IDLE: Duration = Duration::from_millis(5);

/// A sync that takes longer is worth a warning.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// The log, timed and talked about.
#[derive(Debug)]
pub(crate) struct LogWriter {
    log: Log,
    metrics: Arc<Metrics>,
    /// What is spent on the log's files.
    times: Arc<FileTimes>,
}

impl LogWriter {
    pub(crate) const fn new(log: Log, metrics: Arc<Metrics>, times: Arc<FileTimes>) -> Self {
        Self { log, metrics, times }
    }

    pub(crate) fn append(&mut self, persist: &Persist) -> Result<(), LogError> {
        let bytes = self.log.append(persist)?;
        self.metrics.disk.wal_write_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Makes everything appended durable. Returns the newest token that now is, if there was any.
    pub(crate) fn sync(&mut self) -> Result<Option<u64>, LogError> {
        if self.log.is_synced() {
            return Ok(None);
        }
        // What was prepared before nobody has waited for.
        self.times.take();
        let synced = self.log.sync()?;
        let Spent { writing, syncing } = self.times.take();
        self.metrics.disk.wal_write.observe(writing);
        // Where nothing is to be synced nothing was.
        if !syncing.is_zero() {
            self.metrics.disk.wal_fsync.observe(syncing);
        }
        if syncing > SLOW_SYNC {
            log::warn!("slow fdatasync", "took" = syncing, "expected-duration" = SLOW_SYNC);
        }
        Ok(synced.map(tell_of))
    }

    /// Records that a snapshot of this member's own is on disk, and hands out what `report` is to tell.
    pub(crate) fn mark_snapshot(
        &mut self,
        mark: &SnapshotMark,
        mut report: impl FnMut(Input),
    ) -> Result<(), LogError> {
        // Synced for the mark's sake, but timed as any other sync.
        if let Some(token) = self.sync()? {
            report(Input::Persisted { token });
        }
        let marked = self.log.mark(mark)?;
        if let Some(token) = marked.synced.map(tell_of) {
            report(Input::Persisted { token });
        }
        report(Input::SnapshotTaken { index: marked.index });
        Ok(())
    }

    /// Prepares space ahead of the log; says whether there is more to prepare.
    pub(crate) fn prepare(&mut self) -> Result<bool, LogError> {
        self.log.prepare()
    }

    /// Writes a last hard state, if there is one, and closes the log.
    pub(crate) fn close(self, hard_state: Option<HardState>) -> Result<(), LogError> {
        self.log.close(hard_state)
    }
}

/// Says what a sync has found, and returns the token that it has made durable.
fn tell_of(synced: Synced) -> u64 {
    if let Some(path) = synced.new_segment {
        log::info!("created a new WAL segment", "path" = path.display().to_string());
    }
    if let Some(shortage) = synced.shortage {
        log::warn!(
            "no disk space to preallocate the WAL segment; the member continues to write in the space that is left, \
             and stops when a write finds none: free space on this disk",
            "path" = shortage.path.display().to_string(),
            "wanted-bytes" = shortage.wanted_bytes,
            "preallocated-bytes" = shortage.reserved_bytes
        );
    }
    synced.token
}

/// What the log thread is told.
#[derive(Debug)]
enum Order {
    /// Make durable, then report.
    Append(Persist),
    /// Record a snapshot, then report it.
    MarkSnapshot(SnapshotMark),
    /// Write this, if anything, and end.
    Stop(Option<HardState>),
}

/// A log on a thread of its own.
#[derive(Debug)]
pub(crate) struct LogThread {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl LogThread {
    pub(crate) fn start(
        writer: LogWriter,
        driver: DriverHandle,
        faults: FaultReports,
    ) -> io::Result<Self> {
        let (orders, receiver) = batch_queue::unbounded();
        let thread = std::thread::Builder::new().name("wal".to_owned());
        let thread = threads::spawn(thread, move || {
            if let Err(error) = serve(writer, &receiver, &driver) {
                faults.report("writing the write-ahead log", error);
            }
        })?;
        Ok(Self { orders, thread })
    }

    // A send fails when the thread has ended after a fault, which stops the member.

    /// Does not wait, however slow the disk is, because ticks and heartbeats would wait with it. `node` bounds the
    /// writes that are under way.
    pub(crate) fn append(&self, persist: Persist) {
        _ = self.orders.send(Order::Append(persist));
    }

    pub(crate) fn mark_snapshot(&self, mark: SnapshotMark) {
        _ = self.orders.send(Order::MarkSnapshot(mark));
    }

    /// Ends the thread once everything ordered is done.
    pub(crate) fn stop(self, hard_state: Option<HardState>) {
        _ = self.orders.send(Order::Stop(hard_state));
        drop(self.thread.join());
    }
}

fn serve(
    mut writer: LogWriter,
    receiver: &Receiver<Order>,
    driver: &DriverHandle,
) -> Result<(), LogError> {
    let sync = |writer: &mut LogWriter| -> Result<(), LogError> {
        if let Some(token) = writer.sync()? {
            driver.report(Input::Persisted { token });
        }
        Ok(())
    };
    let mut orders = Vec::new();
    let mut is_prepared = false;
    loop {
        let idle_at = (!is_prepared).then(|| Instant::now() + IDLE);
        match receiver.receive_until(&mut orders, idle_at) {
            Ok(()) => {}
            Err(Nothing::Yet) => {
                is_prepared = !writer.prepare()?;
                continue;
            }
            Err(Nothing::Ever) => return writer.close(None),
        }
        is_prepared = false;
        for order in orders.drain(..) {
            match order {
                Order::Append(persist) => writer.append(&persist)?,
                Order::MarkSnapshot(mark) => {
                    writer.mark_snapshot(&mark, |report| driver.report(report))?;
                }
                Order::Stop(hard_state) => {
                    sync(&mut writer)?;
                    return writer.close(hard_state);
                }
            }
        }
        sync(&mut writer)?;
    }
}
