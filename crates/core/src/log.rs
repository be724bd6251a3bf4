//! The write-ahead log at work: making durable what the driver orders.
//!
//! With other voters the log has a thread of its own, so that a slow disk does not hold up heartbeats and
//! messages. All orders that have queued up there are appended together and share one sync; this is what
//! makes a thousand clients as cheap as one. A lone voter has nobody to talk to meanwhile, so there the
//! driver writes the log itself, which saves two of the four wake-ups of a write (measured: a tenth of
//! the CPU of a single client's put).
//!
//! # Invariants
//!
//! * A token is reported only after everything ordered up to it is on disk.
//! * A snapshot's mark never outlives a hard state that covers it: without one a start would pass over the
//!   mark. What lies before a mark is given up only when both are on disk.
//! * After a failed write or sync nothing is reported any more, and the member stops: what the medium
//!   holds then is unknown until the log is read again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_node::Persist;
use quorate_raft::{Entry, HardState, Snapshot};
use quorate_storage::disk::Disk;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::{self, SnapshotMark, Wal, WalError};

use crate::driver::{DriverHandle, Input};
use crate::fatal::FaultReports;
use crate::inbox::{self, Nothing, Receiver, Sender};
use crate::log;
use crate::metrics::Metrics;
use crate::snapshots::encode_conf_state;

/// Orders that may wait. The driver waits when there are more.
const ORDERS_QUEUED_MAX: usize = 1024;

/// Bytes of the log prepared at a time, when there is nothing else to do.
const PREPARE_BYTES: u64 = 1 << 20;

/// How long the thread is idle before it prepares space.
const IDLE: Duration = Duration::from_millis(5);

/// A sync that takes longer is worth a warning.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Why the log cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error(transparent)]
    Snapshot(#[from] SnapError),
}

/// The open log, with what has been appended and not yet synced.
#[derive(Debug)]
pub(crate) struct LogWriter {
    wal: Wal,
    disk: Arc<dyn Disk>,
    snap_dir: PathBuf,
    metrics: Arc<Metrics>,
    /// Where the newest snapshot stands that the log was told of.
    marked: u64,
    /// The newest order appended and not yet synced.
    unsynced: Option<u64>,
}

impl LogWriter {
    pub(crate) const fn new(
        wal: Wal,
        disk: Arc<dyn Disk>,
        snap_dir: PathBuf,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { wal, disk, snap_dir, metrics, marked: 0, unsynced: None }
    }

    pub(crate) fn append(&mut self, persist: &Persist) -> Result<(), LogError> {
        if let Some(snapshot) = &persist.snapshot {
            self.begin_at(snapshot)?;
        }
        let hard_state = persist.hard_state.map(to_wal_state);
        self.wal.append(hard_state.as_ref(), persist.entries.iter().map(to_wal_entry))?;
        self.unsynced = Some(persist.token);
        Ok(())
    }

    /// Makes everything appended durable. Returns the newest token that now is, if there was any.
    pub(crate) fn sync(&mut self) -> Result<Option<u64>, WalError> {
        let Some(token) = self.unsynced.take() else { return Ok(None) };
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
        self.tell_of_shortage();
        Ok(Some(token))
    }

    /// Warns, once for each segment, that the disk has no room to spare for it.
    fn tell_of_shortage(&mut self) {
        if let Some(shortage) = self.wal.take_shortage() {
            log::warn!(
                "no room to preallocate the WAL segment; the member goes on in what room there is, and stops \
                 when a write finds none: make room on this disk",
                "path" = shortage.path.display().to_string(),
                "wanted-bytes" = shortage.wanted_bytes,
                "preallocated-bytes" = shortage.reserved_bytes
            );
        }
    }

    /// Notes a leader's snapshot, whose image has arrived: first its file, then the log's mark, so that a
    /// crash in between leaves a file that nobody looks at. The hard state that makes the mark count comes
    /// with the same order, behind it: the other way round a crash would leave a commit index beyond the
    /// log.
    ///
    /// Images of earlier snapshots stay: they may still wait to be installed.
    fn begin_at(&mut self, snapshot: &Snapshot) -> Result<(), LogError> {
        let metadata = &snapshot.metadata;
        let conf_state = encode_conf_state(&metadata.conf_state);
        let file = snap::Snapshot {
            index: metadata.index,
            term: metadata.term,
            conf_state: conf_state.clone(),
            data: snapshot.data.clone(),
        };
        snap::save(&*self.disk, &self.snap_dir, &file)?;
        let mark = SnapshotMark {
            index: metadata.index,
            term: metadata.term,
            conf_state: Some(conf_state),
        };
        self.write_mark(&mark)?;
        Ok(())
    }

    /// Records that a snapshot of this member's own is on disk; segments below it may then be purged. What
    /// was appended before has been synced.
    pub(crate) fn mark_snapshot(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        // It may be ready only after a leader's newer one came in, and a start goes by the last mark.
        if mark.index <= self.marked {
            return Ok(());
        }
        let known = self.wal.hard_state();
        if known.commit < mark.index {
            // It was taken of what is applied, which is committed, though no write has said so yet.
            self.wal.append(Some(&wal::HardState { commit: mark.index, ..known }), [])?;
        }
        self.write_mark(mark)
    }

    fn write_mark(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        self.wal.save_snapshot(mark)?;
        self.wal.release_to(mark.index);
        self.marked = mark.index;
        Ok(())
    }

    /// Prepares space ahead of the log, so that a sync does not have to update the file's metadata. Says
    /// whether there is more to prepare.
    pub(crate) fn prepare(&mut self) -> Result<bool, WalError> {
        self.wal.prepare(PREPARE_BYTES)
    }

    /// Writes a last hard state, if there is one, and closes the log.
    pub(crate) fn close(mut self, hard_state: Option<HardState>) -> Result<(), WalError> {
        if let Some(hard_state) = hard_state {
            self.wal.append(Some(&to_wal_state(hard_state)), [])?;
        }
        self.wal.close()
    }
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
        let (orders, receiver) = inbox::inbox(ORDERS_QUEUED_MAX);
        let thread = std::thread::Builder::new().name("wal".to_owned()).spawn(move || {
            if let Err(error) = serve(writer, &receiver, &driver) {
                faults.report("writing the write-ahead log", error);
            }
        })?;
        Ok(Self { orders, thread })
    }

    // A send fails when the thread has ended after a fault, which stops the member.

    pub(crate) fn append(&self, persist: Persist) {
        _ = self.orders.send_when_room(Order::Append(persist));
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
    let sync = |writer: &mut LogWriter| -> Result<(), WalError> {
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
            Err(Nothing::Ever) => return Ok(writer.close(None)?),
        }
        is_prepared = false;
        for order in orders.drain(..) {
            match order {
                Order::Append(persist) => writer.append(&persist)?,
                Order::MarkSnapshot(mark) => {
                    sync(&mut writer)?;
                    writer.mark_snapshot(&mark)?;
                    driver.report(Input::SnapshotTaken { index: mark.index });
                }
                Order::Stop(hard_state) => {
                    sync(&mut writer)?;
                    return Ok(writer.close(hard_state)?);
                }
            }
        }
        sync(&mut writer)?;
    }
}

fn to_wal_entry(entry: &Entry) -> wal::EntryRef<'_> {
    let kind = entry.kind as u8;
    wal::EntryRef { index: entry.index, term: entry.term, kind, data: &entry.data }
}

const fn to_wal_state(state: HardState) -> wal::HardState {
    wal::HardState { term: state.term, vote: state.vote, commit: state.commit }
}
