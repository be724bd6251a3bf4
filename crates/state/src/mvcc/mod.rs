//! The keyspace: every version of every key, readable at any revision that has not been compacted.
//!
//! The applier owns a [`Store`] and changes it through one [`WriteTxn`] per log entry, which also adds the changes to
//! the `Batch` that will be written to the file. After each batch of entries it publishes a [`View`]. Readers use the
//! newest published view and never wait for the applier.
//!
//! ```text
//! tree     newest change of every key ──┐ previous
//! history  superseded changes         ◄─┘──┐ previous
//!                              ◄───────────┘
//! window   newest records, then the file
//! ```
//!
//! # Invariants
//!
//! * Revisions, versions and records depend only on the applied entries.
//! * A view contains all changes of an entry or none of them, and its content never changes.
//!
//! # Not here
//!
//! Leases, watchers, permissions and quotas. `apply` passes facts between them and the keyspace.

mod buffer;
mod changes;
mod compaction;
mod cost;
mod error;
mod hash;
mod history;
mod key_range;
mod range;
mod records;
mod recover;
mod remembered_hashes;
mod snapshot;
mod tally;
#[cfg(test)]
mod tests;
mod tree;
mod txn;
mod view;
mod window;
mod working_set;

use std::ops::ControlFlow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

pub use self::changes::{Change, ChangeKind, Changes, PastChange, Previous};
pub use self::compaction::GarbageStep;
pub use self::cost::RangeCost;
pub use self::error::{MvccError, MvccRefusal};
pub use self::hash::{Compaction, RecordsHash};
pub use self::key_range::KeyRange;
pub use self::range::{Candidates, RangeQuery, RangeResult, SortOrder, SortTarget};
pub use self::remembered_hashes::HashKv;
pub use self::snapshot::{Snapshot, Version};
pub use self::tally::Tally;
pub use self::txn::{Deleted, Put, WriteTxn};
pub use self::view::{StoreReader, View};

use self::compaction::Compactor;
use self::history::History;
use self::records::Records;
use self::recover::{Rebuild, Rebuilt, newest_records};
use self::tree::Tree;
use self::view::Shared;
use self::window::Window;
use self::working_set::Loaded;
pub use self::working_set::{LoadedVersion, StoredVersion};
pub use crate::backend::Fault;
use crate::backend::{Backend, BackendView, Batch, Committed};
use crate::schema::{Bucket, meta};

/// Memory limits of the keyspace, excluding its index.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Maximum number of bytes of records that stay in memory after they are written to the file. Other records are
    /// read from the mapped file, which takes about a microsecond longer for each record.
    pub window_bytes_max: usize,
    /// Maximum number of bytes of records that are read into memory at a restart.
    pub recovered_bytes_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { window_bytes_max: 64 << 20, recovered_bytes_max: 32 << 20 }
    }
}

/// The applier's keyspace, including changes not yet published.
#[derive(Debug)]
pub struct Store {
    tree: Tree,
    history: History,
    window: Window,
    compactor: Compactor,
    file: Option<BackendView>,
    /// The loaded records of a working set; `None` if the store contains the whole keyspace.
    loaded: Option<Loaded>,
    /// The newest main revision in `file`.
    persisted: i64,
    current: i64,
    compacted: i64,
    published: Arc<ArcSwap<View>>,
    shared: Arc<Shared>,
    /// Operations since the last [`Store::take_tally`].
    tally: Tally,
}

/// Facts that recovery finds in addition to the keyspace itself.
#[derive(Debug)]
pub struct Recovered {
    /// Keys attached to a lease, in key order, each with its lease.
    pub leases: Vec<(Bytes, i64)>,
    /// An interrupted compaction, which [`Store::next_garbage`] continues.
    pub resume_compaction: Option<i64>,
}

impl Store {
    /// Creates an empty keyspace.
    #[must_use]
    pub fn new(options: StoreOptions) -> Self {
        Self::from_parts(Rebuild::default().finish(), options)
    }

    /// Builds the keyspace from the file.
    pub fn recover(backend: &Backend, options: StoreOptions) -> Result<(Self, Recovered), Fault> {
        let file = backend.read();
        let mut rebuild = Rebuild::default();
        file.scan(Bucket::Key, |key, value| {
            rebuild.push(key, value)?;
            Ok(ControlFlow::Continue(()))
        })?;
        let mut rebuilt = rebuild.finish();
        let leases = std::mem::take(&mut rebuilt.leases);
        let mut store = Self::from_parts(rebuilt, options);
        store.persisted = store.current;
        let finished = file.compaction(meta::FINISHED_COMPACTION)?;
        let scheduled = file.compaction(meta::SCHEDULED_COMPACTION)?;
        store.compacted = finished.unwrap_or(-1);
        let resume_compaction = scheduled.filter(|scheduled| *scheduled > store.compacted);
        if let Some(revision) = resume_compaction {
            store.compacted = revision;
            store.compactor.schedule(revision);
        }
        store.current = store.current.max(store.compacted);
        newest_records(&file, store.compacted, options.recovered_bytes_max, &mut store.window)?;
        store.file = Some(file);
        store.publish();
        Ok((store, Recovered { leases, resume_compaction }))
    }

    fn from_parts(parts: Rebuilt, options: StoreOptions) -> Self {
        let Rebuilt { tree, history, tombstones, leases: _, last_main } = parts;
        let window = Window::new(options.window_bytes_max);
        let shared = Arc::<Shared>::default();
        let current = last_main.unwrap_or(1);
        let view = View {
            tree: tree.clone(),
            history: history.view().clone(),
            window: window.view().clone(),
            file: None,
            loaded: None,
            persisted: 0,
            current,
            compacted: -1,
            shared: Arc::clone(&shared),
        };
        Self {
            tree,
            history,
            window,
            compactor: Compactor::new(tombstones),
            file: None,
            loaded: None,
            persisted: 0,
            current,
            compacted: -1,
            published: Arc::new(ArcSwap::from_pointee(view)),
            shared,
            tally: Tally::default(),
        }
    }

    /// Returns the newest revision, whether published or not.
    #[must_use]
    pub const fn current_revision(&self) -> i64 {
        self.current
    }

    /// Returns the compacted revision, or -1 before the first compaction. Revisions below it cannot
    /// be read.
    #[must_use]
    pub const fn compacted_revision(&self) -> i64 {
        self.compacted
    }

    /// Returns the total size of the records in memory, in bytes.
    #[must_use]
    pub const fn window_bytes(&self) -> usize {
        self.window.byte_count()
    }

    /// Begins the changes of one entry.
    pub fn write<'a>(&'a mut self, batch: &'a mut Batch) -> WriteTxn<'a> {
        WriteTxn::new(self, batch)
    }

    /// Counts `ranges` reads, all made in one view of the keyspace.
    pub fn count_reads(&mut self, ranges: u64) {
        self.tally.end_view(&Tally { ranges, ..Tally::default() });
    }

    /// Counts a granted lease.
    pub(crate) fn count_lease_granted(&mut self, ttl_secs: i64) {
        self.tally.lease_ttls.push(ttl_secs);
    }

    /// Counts a revoked lease.
    pub(crate) const fn count_lease_revoked(&mut self) {
        self.tally.leases_revoked += 1;
    }

    /// Returns the counts of operations since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Returns the current keyspace, whether published or not.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            tree: &self.tree,
            tree_revision: self.current,
            history: self.history.view(),
            records: Records {
                window: self.window.view(),
                file: self.file.as_ref(),
                loaded: self.loaded.as_ref(),
                persisted: self.persisted,
            },
            current: self.current,
            compacted: self.compacted,
        }
    }

    /// Accepts a compaction: from now on, revisions below `revision` cannot be read.
    /// [`Store::next_garbage`] deletes the records.
    pub fn schedule_compaction(
        &mut self,
        revision: i64,
        batch: &mut Batch,
    ) -> Result<Compaction, MvccRefusal> {
        if revision <= self.compacted {
            return Err(MvccRefusal::Compacted);
        }
        if revision > self.current {
            return Err(MvccRefusal::FutureRevision);
        }
        let previous_finished = self.compactor.is_idle();
        let previous_revision = std::mem::replace(&mut self.compacted, revision);
        batch.put_compaction(meta::SCHEDULED_COMPACTION, revision);
        // A working set has nothing to delete. Its owner deletes the records where they are stored.
        if self.loaded.is_none() {
            self.compactor.schedule(revision);
        }
        Ok(Compaction { revision, previous_revision, previous_finished })
    }

    /// Runs one step of the accepted compactions: adds the deletion of at most `count_max` records
    /// to the batch. If batches are committed in order, nothing is deleted before the batch that
    /// scheduled the compaction is committed.
    pub fn next_garbage(&mut self, count_max: usize, batch: &mut Batch) -> GarbageStep {
        self.compactor.step(&mut self.tree, &mut self.history, count_max, batch)
    }

    /// Returns whether every accepted compaction is complete, including deletions in batches not
    /// yet committed.
    #[must_use]
    pub fn is_compaction_idle(&self) -> bool {
        self.compactor.is_idle()
    }

    /// Publishes everything applied so far to readers.
    pub fn publish(&mut self) {
        assert!(
            self.persisted <= self.current,
            "the file contains only applied revisions: otherwise readers would see part of an entry"
        );
        assert!(
            self.compacted <= self.current,
            "a compaction is not beyond the newest revision: otherwise the newest value could not be read"
        );
        self.shared.pins.trim(self.current, self.compacted);
        self.published.store(Arc::new(View {
            tree: self.tree.clone(),
            history: self.history.view().clone(),
            window: self.window.view().clone(),
            file: self.file.clone(),
            loaded: self.loaded.clone(),
            persisted: self.persisted,
            current: self.current,
            compacted: self.compacted,
            shared: Arc::clone(&self.shared),
        }));
        self.tree.reclaim();
    }

    /// Handles a commit of batches, which must be committed in the order in which they were filled.
    /// Records that the file now contains may be dropped from memory. Readers switch to the new
    /// state of the file with the next publication. Until then, the file preserves its former state
    /// for them.
    pub fn committed(&mut self, committed: Committed) {
        let newest = committed.last_revision.unwrap_or(0);
        assert!(
            newest <= self.current,
            "the file contains only applied revisions: otherwise records would be dropped from memory before they \
             exist"
        );
        self.file = Some(committed.view);
        self.persisted = self.persisted.max(newest);
        self.window.trim(self.persisted);
    }

    /// Takes the place of another store: from now on, the readers of `other` see this store.
    pub fn replace(&mut self, other: Self) {
        self.published = other.published;
        self.publish();
    }

    /// Returns the handle from which other threads read.
    #[must_use]
    pub fn reader(&self) -> StoreReader {
        StoreReader { published: Arc::clone(&self.published) }
    }
}
