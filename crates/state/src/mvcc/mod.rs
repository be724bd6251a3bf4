//! The keyspace: every key's versions by revision, for reads at any revision that is not compacted.
//!
//! The applier owns a [`Store`] and changes it through one [`WriteTxn`] per log entry; what must reach the
//! file goes into the entry's `Batch` on the way. Once per batch of entries it publishes a [`View`], and
//! that is all readers ever see: they take the newest view and never meet the applier.
//!
//! ```text
//! tree     newest change of every key ──┐ previous
//! history  changes that were replaced ◄─┘──┐ previous
//!                              ◄───────────┘
//! window   newest records, then the file
//! ```
//!
//! # Invariants
//!
//! * Revisions, versions and records depend on the entries applied and on nothing else.
//! * A view shows whole entries, and shows the same for ever.
//!
//! # Not here
//!
//! Leases, watchers, permissions, quotas: `apply` carries the facts between them and the keyspace.

mod buffer;
mod changes;
mod compaction;
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

use std::ops::ControlFlow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

pub use self::changes::{Change, ChangeKind, Changes, PastChange, Previous};
pub use self::compaction::GarbageStep;
pub use self::error::{MvccError, MvccRefusal};
pub use self::hash::Compaction;
pub use self::key_range::KeyRange;
pub use self::range::{RangeQuery, RangeResult, SortOrder, SortTarget};
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
pub use crate::backend::Fault;
use crate::backend::{Backend, BackendView, Batch, Committed};
use crate::schema::{Bucket, meta};

/// How much memory the keyspace may take beyond its index.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of records kept in memory once the file holds them. What is not there is read from the mapped
    /// file, which costs a microsecond more for a record.
    pub window_bytes_max: usize,
    /// Bytes of records that a restart reads into memory at once.
    pub recovered_bytes_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { window_bytes_max: 64 << 20, recovered_bytes_max: 32 << 20 }
    }
}

/// The keyspace as the applier changes it.
#[derive(Debug)]
pub struct Store {
    tree: Tree,
    history: History,
    window: Window,
    compactor: Compactor,
    file: Option<BackendView>,
    /// The newest main revision that `file` holds.
    persisted: i64,
    current: i64,
    compacted: i64,
    published: Arc<ArcSwap<View>>,
    shared: Arc<Shared>,
    /// What was done since it was last asked for.
    tally: Tally,
}

/// What a restart found besides the keyspace itself.
#[derive(Debug)]
pub struct Recovered {
    /// Keys that are attached to a lease, in key order.
    pub leases: Vec<(Bytes, i64)>,
    /// A compaction whose garbage is not all gone: [`Store::next_garbage`] has work.
    pub resume_compaction: Option<i64>,
}

impl Store {
    /// An empty keyspace.
    #[must_use]
    pub fn new(options: StoreOptions) -> Self {
        Self::from_parts(Rebuild::default().finish(), options)
    }

    /// The keyspace as the file holds it.
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
            persisted: 0,
            current,
            compacted: -1,
            published: Arc::new(ArcSwap::from_pointee(view)),
            shared,
            tally: Tally::default(),
        }
    }

    /// The newest revision, published or not.
    #[must_use]
    pub const fn current_revision(&self) -> i64 {
        self.current
    }

    /// The revision below which nothing can be read, -1 if there never was a compaction.
    #[must_use]
    pub const fn compacted_revision(&self) -> i64 {
        self.compacted
    }

    /// Bytes of records in memory.
    #[must_use]
    pub const fn window_bytes(&self) -> usize {
        self.window.byte_count()
    }

    /// Begins the changes of one entry.
    pub fn write<'a>(&'a mut self, batch: &'a mut Batch) -> WriteTxn<'a> {
        WriteTxn::new(self, batch)
    }

    /// Counts so many looks at the keyspace in one view.
    pub fn count_reads(&mut self, ranges: u64) {
        self.tally.end_view(&Tally { ranges, ..Tally::default() });
    }

    /// What was done since this was asked last.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// The keyspace as it is now, published or not.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            tree: &self.tree,
            tree_revision: self.current,
            history: self.history.view(),
            records: Records {
                window: self.window.view(),
                file: self.file.as_ref(),
                persisted: self.persisted,
            },
            current: self.current,
            compacted: self.compacted,
        }
    }

    /// Accepts a compaction: from now on nothing below `revision` can be read. [`Store::next_garbage`] does
    /// the work.
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
        self.compactor.schedule(revision);
        Ok(Compaction { revision, previous_revision, previous_finished })
    }

    /// Does one step of the compactions accepted: adds the deletion of at most `count_max` records to the
    /// batch. Nothing is deleted before the batch that scheduled the compaction is committed, as long as
    /// batches are committed in order.
    pub fn next_garbage(&mut self, count_max: usize, batch: &mut Batch) -> GarbageStep {
        self.compactor.step(&mut self.tree, &mut self.history, count_max, batch)
    }

    /// Whether every compaction accepted is complete, as far as the batches filled go.
    #[must_use]
    pub fn is_compaction_idle(&self) -> bool {
        self.compactor.is_idle()
    }

    /// Shows readers everything applied so far.
    pub fn publish(&mut self) {
        self.shared.pins.trim(self.current, self.compacted);
        self.published.store(Arc::new(View {
            tree: self.tree.clone(),
            history: self.history.view().clone(),
            window: self.window.view().clone(),
            file: self.file.clone(),
            persisted: self.persisted,
            current: self.current,
            compacted: self.compacted,
            shared: Arc::clone(&self.shared),
        }));
    }

    /// Takes note that batches were committed, in the order in which they were filled: records that the
    /// file holds now may leave memory. Readers follow with the next publication, and until then keep the
    /// file's former state in place.
    pub fn committed(&mut self, committed: Committed) {
        let newest = committed.last_revision.unwrap_or(0);
        assert!(newest <= self.current, "the file holds nothing that was not applied");
        self.file = Some(committed.view);
        self.persisted = self.persisted.max(newest);
        self.window.trim(self.persisted);
    }

    /// Takes the place of another store, whose readers see this one from now on: what a member does that
    /// was sent a snapshot.
    pub fn replace(&mut self, other: Self) {
        self.published = other.published;
        self.publish();
    }

    /// What connection threads read from.
    #[must_use]
    pub fn reader(&self) -> StoreReader {
        StoreReader { published: Arc::clone(&self.published) }
    }
}
