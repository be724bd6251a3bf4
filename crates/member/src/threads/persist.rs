//! The threads' interface to the write-ahead log: which thread writes it, how writes are timed, and what is logged.
//!
//! If the cluster has other voters, the log has its own thread, so that a slow disk does not delay heartbeats and
//! messages. All queued orders are appended together and share one sync, so a thousand clients need no more syncs than
//! a single client.
//!
//! While this member is the only voter, no voter waits for its messages during a sync, so the thread that runs the
//! driver writes the log. This is the driver's own thread or, if only one proposal is in progress and the recent syncs
//! were quick ([`RecentSyncs`]), a connection thread that serves no other request at that time
//! ([`may_wait`](quorate_net::runtime::may_wait)). Such a proposal wakes no other thread.
//!
//! # Not here
//!
//! The steps in which the log is written, in order: [`quorate_core::Log`].

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_core::{Log, LogError, Synced};
use quorate_node::Persist;
use quorate_raft::HardState;
use quorate_storage::wal::SnapshotMark;

use crate::threads::batch_queue::{self, ReceiveError, Receiver, Sender};
use crate::threads::channels::{DriverHandle, Input};
use crate::threads::fatal::FaultReports;
use crate::threads::timed_disk::{FileTimes, Spent};
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::threads;

/// Idle time after which the thread preallocates log space.
const IDLE: Duration = Duration::from_millis(5);

/// Duration above which a sync is logged as a warning.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Decides from the recent syncs whether a connection thread may wait for the next sync.
///
/// If many entries share a sync, a wake-up costs little per entry, and a connection thread that waited for the disk
/// would not receive the entries that could share the next sync. If a sync was slow, the next may be slow too.
#[derive(Clone, Copy, Debug, Default)]
struct RecentSyncs {
    /// Rises by one with each quick sync of at most one entry, falls by [`Self::STEP_DOWN`] with each quick sync of
    /// several entries, and is zero after a slow sync.
    score: u8,
}

impl RecentSyncs {
    /// Maximum duration of a quick sync.
    const QUICK: Duration = Duration::from_millis(1);
    const SCORE_MAX: u8 = 32;
    /// The lowest score at which a connection thread may wait.
    const SCORE_MIN: u8 = 16;
    /// The amount by which a sync of several entries lowers the score.
    const STEP_DOWN: u8 = 4;

    fn note(&mut self, entry_count: usize, took: Duration) {
        self.score = if took > Self::QUICK {
            0
        } else if entry_count > 1 {
            self.score.saturating_sub(Self::STEP_DOWN)
        } else {
            (self.score + 1).min(Self::SCORE_MAX)
        };
    }

    const fn are_quick(self) -> bool {
        self.score >= Self::SCORE_MIN
    }
}

/// Writes the log, updates its metrics and logs its events.
#[derive(Debug)]
pub(crate) struct LogWriter {
    log: Log,
    /// The number of appended entries that are not synced.
    unsynced_count: usize,
    recent: RecentSyncs,
    metrics: Arc<Metrics>,
    /// Time spent on the log's files.
    times: Arc<FileTimes>,
}

impl LogWriter {
    pub(crate) const fn new(log: Log, metrics: Arc<Metrics>, times: Arc<FileTimes>) -> Self {
        Self { log, unsynced_count: 0, recent: RecentSyncs { score: 0 }, metrics, times }
    }

    pub(crate) fn append(&mut self, persist: &Persist) -> Result<(), LogError> {
        let bytes = self.log.append(persist)?;
        self.unsynced_count += persist.entries.len();
        self.metrics.disk.wal_write_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Makes all appended entries durable. Returns the newest durable token, or `None` if there was nothing to sync.
    pub(crate) fn sync(&mut self) -> Result<Option<u64>, LogError> {
        if self.log.is_synced() {
            return Ok(None);
        }
        // Discard the time spent on earlier preallocation, because no request waited for it.
        self.times.take();
        let began = Instant::now();
        let synced = self.log.sync()?;
        self.recent.note(std::mem::take(&mut self.unsynced_count), began.elapsed());
        let Spent { writing, syncing } = self.times.take();
        self.metrics.disk.wal_write.observe(writing);
        // A zero duration means that no file was synced.
        if !syncing.is_zero() {
            self.metrics.disk.wal_fsync.observe(syncing);
        }
        if syncing > SLOW_SYNC {
            log::warn!("slow fdatasync", "took" = syncing, "expected-duration" = SLOW_SYNC);
        }
        Ok(synced.map(log_sync))
    }

    /// Returns whether the next sync is likely to be quick.
    pub(crate) const fn is_quick(&self) -> bool {
        self.recent.are_quick()
    }

    /// Records that a snapshot of this member is on disk, and passes the resulting inputs to `report`.
    pub(crate) fn mark_snapshot(
        &mut self,
        mark: &SnapshotMark,
        mut report: impl FnMut(Input),
    ) -> Result<(), LogError> {
        // This sync is part of recording the mark, but it is timed like any other sync.
        if let Some(token) = self.sync()? {
            report(Input::Persisted { token });
        }
        let began = Instant::now();
        let marked = self.log.mark(mark)?;
        self.recent.note(0, began.elapsed());
        if let Some(token) = marked.synced.map(log_sync) {
            report(Input::Persisted { token });
        }
        report(Input::SnapshotTaken { index: marked.index });
        Ok(())
    }

    /// Preallocates log space. Returns whether there is more to preallocate.
    pub(crate) fn prepare(&mut self) -> Result<bool, LogError> {
        self.log.prepare()
    }

    /// Returns whether log space has to be preallocated.
    pub(crate) fn needs_preparation(&self) -> bool {
        self.log.needs_preparation()
    }

    /// Writes the last hard state, if there is one, and closes the log.
    pub(crate) fn close(self, hard_state: Option<HardState>) -> Result<(), LogError> {
        self.log.close(hard_state)
    }
}

/// Logs the events of a sync and returns the token up to which the sync made entries durable.
fn log_sync(synced: Synced) -> u64 {
    if let Some(path) = synced.new_segment {
        log::info!("created a new WAL segment", "path" = path.display().to_string());
    }
    if let Some(shortage) = synced.shortage {
        log::warn!(
            "no disk space to preallocate the WAL segment; the member writes into the remaining space, and stops when \
             no space is left: free some space on this disk; if it has free space, check its inodes (df -i) and \
             quotas",
            "path" = shortage.path.display().to_string(),
            "wanted-bytes" = shortage.wanted_bytes,
            "preallocated-bytes" = shortage.reserved_bytes
        );
    }
    synced.token
}

/// An order for the log thread.
#[derive(Debug)]
enum Order {
    /// Make the entries durable, then report the token.
    Append(Persist),
    /// Record a snapshot, then report it.
    MarkSnapshot(SnapshotMark),
    /// Write this hard state, if there is one, and end the thread.
    Stop(Option<HardState>),
}

/// A log with its own thread.
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

    // In the methods below, a send fails only if the thread has ended after a fault. The fault also stops the member,
    // so the error is ignored.

    /// Queues entries for the log. Never waits for the disk, because that would delay ticks and heartbeats. `node`
    /// bounds the writes in progress.
    pub(crate) fn append(&self, persist: Persist) {
        _ = self.orders.send(Order::Append(persist));
    }

    pub(crate) fn mark_snapshot(&self, mark: SnapshotMark) {
        _ = self.orders.send(Order::MarkSnapshot(mark));
    }

    /// Ends the thread once all queued orders are done.
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
            driver.report_inline(Input::Persisted { token });
        }
        Ok(())
    };
    let mut orders = Vec::new();
    let mut is_prepared = false;
    loop {
        let idle_at = (!is_prepared).then(|| Instant::now() + IDLE);
        match receiver.receive_until(&mut orders, idle_at) {
            Ok(()) => {}
            Err(ReceiveError::TimedOut) => {
                is_prepared = !writer.prepare()?;
                continue;
            }
            Err(ReceiveError::Closed) => return writer.close(None),
        }
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
        // After most writes, enough space is still preallocated, so the thread sleeps until the next write.
        is_prepared = !writer.needs_preparation();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_thread_waits_only_after_many_quick_syncs_of_single_entries() {
        let quick = Duration::from_micros(200);
        let mut recent = RecentSyncs::default();
        for _ in 0..RecentSyncs::SCORE_MIN {
            assert!(!recent.are_quick());
            recent.note(1, quick);
        }
        assert!(recent.are_quick());
        let after = |syncs: &[(usize, Duration)]| {
            let mut recent = RecentSyncs { score: RecentSyncs::SCORE_MAX };
            syncs.iter().for_each(|(entry_count, took)| recent.note(*entry_count, *took));
            recent.are_quick()
        };
        assert!(after(&[(8, quick), (1, quick), (8, quick)]));
        assert!(!after(&[(2, quick); 5]));
        assert!(!after(&[(1, RecentSyncs::QUICK * 2)]));
    }
}
