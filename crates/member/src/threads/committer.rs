//! The backend thread. It owns the writer of the backend file, passes the applier's batches to the writer, and delivers
//! the writer's reports to the other threads.
//!
//! # Bound
//!
//! At most [`ORDERS_QUEUED_MAX`](quorate_core::ORDERS_QUEUED_MAX) batches are queued. While the queue is
//! full, for example while the disk has no space, the applier gathers changes in its open batch. Once this batch has
//! reached its maximum size, the applier blocks.
//!
//! # Not here
//!
//! The steps in which the file is written, in order: [`quorate_core::BackendWriter`].

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use quorate_core::{
    BackendError, BackendWriter, CompactionEnd, Defragmented, ROOM_RETRY_INTERVAL, Report, Then,
};
use quorate_storage::wal::SnapshotMark;

use crate::threads::channels::{
    ApplierHandle, Done, DriverHandle, Input, Job, Order, SnapshotNotice,
};
use crate::threads::fatal::FaultReports;
use crate::threads::memory_lock::MemoryLock;
use crate::threads::timed_disk::{FileTimes, Spent};
use quorate_peer::{OutgoingSnapshot, Peers};
use quorate_telemetry::log;
use quorate_telemetry::metrics::{Histogram, Metrics};

type Writer = BackendWriter<Done<()>, Done<Defragmented>>;

/// State of the backend thread.
pub(crate) struct Committer {
    pub(crate) writer: Writer,
    pub(crate) orders: Receiver<Order>,
    pub(crate) snapshots: SnapshotNotice,
    /// Receives a value when the member stops, which ends a wait for disk space.
    pub(crate) ending: Receiver<()>,
    pub(crate) applier: ApplierHandle,
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    /// Time spent on the backend file.
    pub(crate) disk_times: Arc<FileTimes>,
    /// Size in bytes of the batch that is being committed.
    pub(crate) batch_bytes: i64,
    /// Locks the file in memory, if `--memory-mlock` is set.
    pub(crate) memory_lock: Option<MemoryLock>,
}

impl Committer {
    /// Runs until the stop order, or until the disk fails.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.serve() {
            self.faults.report("writing the backend file", error);
        }
    }

    fn serve(&mut self) -> Result<(), BackendError> {
        loop {
            if self.writer.lacks_space() {
                self.await_room()?;
            } else {
                let received = match self.writer.reclaim_at() {
                    Some(at) => self.orders.recv_deadline(at),
                    None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match received {
                    Ok(order) => {
                        self.batch_bytes = batch_bytes(&order);
                        take_in(&mut self.writer, order, &self.metrics.snapshot.marshalling);
                    }
                    Err(RecvTimeoutError::Timeout) => self.writer.reclaim(Instant::now())?,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
            if self.work()? {
                return Ok(());
            }
        }
    }

    /// Waits until it is time to try the batch again. Ends early if the member stops or a leader's snapshot replaces
    /// the batch.
    fn await_room(&mut self) -> Result<(), BackendError> {
        match self.ending.recv_timeout(ROOM_RETRY_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => self.supersede(),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                log::warn!(
                    "no disk space for the backend file; changes that are not in it yet remain in the write-ahead log"
                );
                self.writer.give_up();
                Ok(())
            }
        }
    }

    /// Drops the batches that wait for disk space if a leader's snapshot is to be installed, because the snapshot
    /// contains their changes. The applier, which is blocked by the full queue of orders, can then proceed to the
    /// installation.
    fn supersede(&mut self) -> Result<(), BackendError> {
        let index = self.snapshots.newest();
        if self.writer.supersede(index)? {
            log::info!(
                "no disk space for the backend file; a received snapshot replaces the changes that are waiting for \
                 space",
                "snapshot-index" = index.get()
            );
        }
        Ok(())
    }

    /// Carries out the received orders while the disk has space for them. Returns true if the stop order was carried
    /// out.
    fn work(&mut self) -> Result<bool, BackendError> {
        let mut started = Instant::now();
        let mut is_last = false;
        self.disk_times.take();
        while let Some(report) = self.writer.step()? {
            let ended = Instant::now();
            if let (Report::Installed { .. }, Some(lock)) = (&report, &mut self.memory_lock) {
                lock.forget();
            }
            is_last |= self.deliver(report, ended - std::mem::replace(&mut started, ended));
        }
        if let Some(lock) = &mut self.memory_lock {
            lock.follow(self.writer.backend());
        }
        Ok(is_last)
    }

    /// Delivers the report of a step that lasted for `took`. Returns true if it was the last step.
    fn deliver(&mut self, report: Report<Done<()>, Done<Defragmented>>, took: Duration) -> bool {
        match report {
            Report::Committed { committed, generation } => {
                self.count_commit(took);
                self.metrics.disk.backend_pending.add(-std::mem::take(&mut self.batch_bytes));
                _ = self.applier.send(Job::Committed { committed, generation });
            }
            Report::Superseded => {
                self.metrics.disk.backend_pending.add(-std::mem::take(&mut self.batch_bytes));
            }
            Report::Moved { committed, generation } => {
                _ = self.applier.send(Job::Committed { committed, generation });
            }
            Report::SnapshotSaved(mark) => self.log_snapshot(mark, took),
            Report::Send { message, image } => {
                self.peers.send_snapshot(OutgoingSnapshot { message, image });
            }
            Report::Compacted(end) => self.log_compaction(end),
            Report::Installed { index, completion } => {
                log::info!(
                    "installed the backend file of a snapshot",
                    "snapshot-index" = index.get(),
                    "took" = took
                );
                completion(());
            }
            Report::Complete(completion) => completion(()),
            Report::Defragmented { completions, outcome } => {
                completions.into_iter().for_each(|completion| completion(outcome));
            }
            Report::NoRoom(error) => {
                self.driver.report(Input::BackendSpace { is_short: true });
                log::warn!(
                    "no disk space for the backend file; changes stay in memory and in the write-ahead log, and are \
                     written when there is space again: free some space on this disk",
                    "error" = error.to_string()
                );
            }
            Report::RoomAgain => {
                self.driver.report(Input::BackendSpace { is_short: false });
                log::info!("disk space is available again for the backend file");
            }
            Report::Ended => return true,
        }
        false
    }

    /// Splits the time of a commit into the parts that etcd's dashboards show: rebalancing pages (always zero here),
    /// laying out pages, and writing them.
    fn count_commit(&self, took: Duration) {
        let Spent { writing, syncing } = self.disk_times.take();
        let disk = &self.metrics.disk;
        disk.backend_commit.observe(took);
        disk.commit_rebalance.observe(Duration::ZERO);
        disk.commit_spill.observe(took.saturating_sub(writing + syncing));
        disk.commit_write.observe(writing + syncing);
    }

    fn log_snapshot(&self, mark: SnapshotMark, took: Duration) {
        self.metrics.snapshot.fsync.observe(took);
        self.metrics.snapshot.save.observe(took);
        let index = mark.index;
        self.driver.report(Input::MarkSnapshot(mark));
        log::info!("saved snapshot", "snapshot-index" = index);
        log::info!("saved snapshot to disk", "snapshot-index" = index);
    }

    fn log_compaction(&self, end: CompactionEnd) {
        let metrics = &self.metrics.mvcc;
        metrics.compaction_total.observe(end.took);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        metrics.compaction_last.set_unsigned(since_epoch.map_or(0, |at| at.as_secs()));
        let backend = self.writer.backend();
        log::info!(
            "finished scheduled compaction",
            "compact-revision" = end.revision,
            "took" = end.took,
            "number-of-keys-compacted" = end.removed_count,
            "current-db-size-bytes" = backend.size_bytes(),
            "current-db-size-in-use-bytes" = backend.size_in_use_bytes()
        );
    }
}

/// Returns the number of bytes that an order adds to the file.
fn batch_bytes(order: &Order) -> i64 {
    match order {
        Order::Commit { batch, .. } => i64::try_from(batch.byte_count()).unwrap_or(i64::MAX),
        Order::Install { .. } | Order::Defragment(_) | Order::Stop => 0,
    }
}

/// Passes an order to the writer. If the order contains a snapshot, this call encodes the snapshot and measures the
/// duration of the encoding.
fn take_in(writer: &mut Writer, order: Order, marshalling: &Histogram) {
    let started = Instant::now();
    let is_snapshot = |then: &Then<Done<()>>| matches!(then, Then::Snapshot(_));
    let has_snapshot = matches!(&order, Order::Commit { then, .. } if then.iter().any(is_snapshot));
    writer.take(order, started);
    if has_snapshot {
        marshalling.observe(started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::SnapshotOrder;
    use quorate_raft::{LogIndex, Term};
    use quorate_state::backend::{Backend, Batch};
    use quorate_state::members::Members;
    use quorate_state::versions::Versions;
    use quorate_storage::bolt::Options;
    use quorate_storage::disk::{Disk, RealDisk};

    use super::*;

    #[test]
    fn the_snapshot_encoding_time_is_measured_only_for_commits_with_a_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let backend = Backend::open(&disk, &folder.path().join("db"), Options::default()).unwrap();
        let mut writer = Writer::new(backend, disk, folder.path().to_owned());
        let metrics = Metrics::new(&[], quorate_telemetry::metrics::MetricsLevel::Basic);
        let marshalling = &metrics.snapshot.marshalling;
        let snapshot =
            SnapshotOrder::new(LogIndex(7), Term(1), &Members::default(), &Versions::default());
        let commit = |then| Order::Commit { batch: Batch::default(), then };
        let completion: Done<()> = Box::new(|()| {});
        take_in(&mut writer, commit(vec![Then::Complete(completion)]), marshalling);
        assert_eq!(marshalling.count(), 0);
        take_in(&mut writer, commit(vec![Then::Snapshot(snapshot)]), marshalling);
        assert_eq!(marshalling.count(), 1);
    }
}
