//! The state that the handles to an open file share: the published snapshot, and the writer's own
//! state.
//!
//! Readers take the published snapshot under a lock that is held for a few nanoseconds. The
//! writer's lock is held for a whole write transaction, and readers never take it. Weak references
//! to each published state show which snapshots are alive.
//!
//! # Not here
//!
//! Opening and reading a file (`db`), and the transactions that change the shared state (`write`,
//! `commit`, `reclaim`).

use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::error::BoltError;
use super::free::{FreePages, PendingPages};
use super::pass::Pass;
use super::snapshot::{Pin, Snapshot};
use super::{PageId, Run, TxId};
use crate::disk::{Disk, DiskFile, Mapping};

/// Options for opening a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether the file is opened for reading only. In that case, the file must exist, it is not changed, and the lock
    /// on it is shared with other readers.
    pub read_only: bool,
    /// Whether opening fails if the path already names something, even an empty file or a symbolic link. An incomplete
    /// file may remain if the process ends while it creates the file. Ignored if the file is opened for reading only.
    pub must_be_new: bool,
    /// The page size of a new file, in bytes. An existing file keeps its page size.
    pub page_bytes_new: usize,
    /// Whether commits return without waiting for the disk. Intended for files that are not needed after the machine
    /// stops.
    pub no_sync: bool,
    /// The maximum number of additional bytes by which a file is extended when it has to grow.
    pub growth_bytes: u64,
    /// The minimum size of the mapped address space in bytes, so that a growing file is rarely mapped again.
    pub map_bytes_min: usize,
    /// Whether the caller guarantees that no bucket contains other buckets, as in all files of
    /// etcd.
    ///
    /// Opening then reads only about one percent of the file. If the guarantee is wrong, writing
    /// destroys the nested buckets.
    pub flat: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            must_be_new: false,
            page_bytes_new: 4096,
            no_sync: false,
            growth_bytes: 16 << 20,
            map_bytes_min: 1 << 30,
            flat: false,
        }
    }
}

/// The state that all handles to an open file share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: Arc<Path>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) options: Options,
    pub(super) published: Mutex<Published>,
    pub(super) writer: Mutex<Writer>,
}

/// The state that new readers see.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) snapshot: Arc<Snapshot>,
    /// The states that may be alive, oldest first. The last one is `snapshot`.
    pub(super) tracked: Vec<Tracked>,
    pub(super) free_pages: u64,
    pub(super) pending_pages: u64,
    pub(super) file_bytes: u64,
}

/// A published state that may still be in use.
#[derive(Debug)]
pub(super) struct Tracked {
    txid: TxId,
    high_water: PageId,
    pub(super) pin: Weak<Pin>,
    pub(super) handles: Weak<Snapshot>,
}

/// The writer's state.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) poisoned: Option<Arc<str>>,
    pub(super) free: FreePages,
    pub(super) pending: PendingPages,
    pub(super) mapping: Arc<Mapping>,
    pub(super) file_bytes: u64,
    /// The offset in bytes up to which the file's space is reserved. The file may end in a hole after that offset.
    pub(super) reserved_bytes: u64,
    /// Whether the last truncation could not remove all free pages at the end of the file, and the file has not grown
    /// since.
    pub(super) awaits_truncation: bool,
    /// The transaction whose meta page is being written.
    pub(super) meta_in_flight: Option<TxId>,
    /// Pages of the stored free list, which the durable state still refers to. The next commit
    /// frees them.
    pub(super) superseded: Vec<Run>,
    pub(super) pass: Option<Pass>,
    /// A scratch buffer for encoding pages, kept between commits.
    pub(super) buffer: Vec<u8>,
}

impl Published {
    /// Makes `snapshot` the state that new readers see.
    pub(super) fn publish(&mut self, snapshot: Snapshot, pin: &Arc<Pin>) {
        assert!(
            snapshot.meta.txid.0 == self.snapshot.meta.txid.0 + 1,
            "transaction numbers have no gaps: otherwise two consecutive commits would overwrite the same meta page"
        );
        self.snapshot = Arc::new(snapshot);
        self.tracked.push(Tracked::new(&self.snapshot, pin));
    }

    /// Returns the live states before the current one, oldest first, with their high-water marks.
    pub(super) fn older_states(&mut self) -> Vec<(TxId, PageId)> {
        let current = self.snapshot.meta.txid;
        assert!(
            self.tracked.last().is_some_and(|last| last.txid == current),
            "the current state is tracked: otherwise its pages would be overwritten while they are read"
        );
        self.tracked.retain(|state| state.txid == current || state.pin.strong_count() > 0);
        // If a count has reached zero, this fence makes the last owner's reads happen before the pages are reused.
        fence(Ordering::Acquire);
        let older = self.tracked.iter().filter(|state| state.txid != current);
        older.map(|state| (state.txid, state.high_water)).collect()
    }
}

impl Tracked {
    pub(super) fn new(snapshot: &Arc<Snapshot>, pin: &Arc<Pin>) -> Self {
        Self {
            txid: snapshot.meta.txid,
            high_water: snapshot.meta.high_water,
            pin: Arc::downgrade(pin),
            handles: Arc::downgrade(snapshot),
        }
    }
}

/// Frees the pages that snapshots no longer need, and returns the current state.
pub(super) fn release_pages(shared: &Shared, writer: &mut Writer) -> Arc<Snapshot> {
    let mut published = shared.published.lock();
    let older: Vec<TxId> = published.older_states().into_iter().map(|(txid, _)| txid).collect();
    let snapshot = Arc::clone(&published.snapshot);
    drop(published);
    assert!(
        older.is_sorted(),
        "older states are in order: otherwise pages that one of them reads would be reused"
    );
    writer.pending.release(&older, &mut writer.free);
    writer.free.drop_tail();
    snapshot
}

/// Returns the size of the mapping in bytes for a file of this length.
pub(super) fn map_capacity(file_bytes: u64, options: &Options) -> usize {
    let len = usize::try_from(file_bytes).unwrap_or(usize::MAX);
    if options.read_only {
        return len;
    }
    len.saturating_mul(2).min(1 << 46).max(len).max(options.map_bytes_min)
}

/// Builds the error for a failed system call, with the file and the offset.
pub(super) fn io_fault(
    path: &Arc<Path>,
    operation: &'static str,
    offset: u64,
) -> impl FnOnce(std::io::Error) -> BoltError {
    let path = Arc::clone(path);
    move |source| BoltError::Io { path, operation, offset, source }
}
