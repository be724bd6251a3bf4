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

mod changes;
mod compaction;
mod error;
mod history;
mod key_range;
mod range;
mod records;
mod snapshot;
mod tree;
mod txn;
mod view;
mod window;

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;

pub use self::changes::{Change, ChangeKind, Changes, Previous};
pub use self::compaction::GarbageStep;
pub use self::error::{Fault, MvccError, MvccRefusal};
pub use self::key_range::KeyRange;
pub use self::range::{RangeQuery, RangeResult, SortOrder, SortTarget};
pub use self::snapshot::{Snapshot, Version};
pub use self::txn::{Deleted, Put, WriteTxn};
pub use self::view::{StoreReader, View};

use self::compaction::Compactor;
use self::history::History;
use self::records::Records;
use self::tree::Tree;
use self::view::Pins;
use self::window::Window;
use crate::backend::Batch;
use crate::schema::meta;

/// How much memory the keyspace may take beyond its index.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of records kept in memory once the file holds them.
    pub window_bytes_max: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { window_bytes_max: 256 << 20 }
    }
}

/// The keyspace as the applier changes it.
#[derive(Debug)]
pub struct Store {
    tree: Tree,
    history: History,
    window: Window,
    compactor: Compactor,
    path: Arc<Path>,
    current: i64,
    compacted: i64,
    published: Arc<ArcSwap<View>>,
    pins: Arc<Pins>,
}

impl Store {
    /// An empty keyspace.
    #[must_use]
    pub fn new(options: StoreOptions) -> Self {
        let (tree, history) = (Tree::new(), History::new());
        let window = Window::new(options.window_bytes_max);
        let (path, pins) = (Arc::from(Path::new("")), Arc::<Pins>::default());
        let view = View {
            tree: tree.clone(),
            history: history.view().clone(),
            window: window.view().clone(),
            path: Arc::clone(&path),
            current: 1,
            compacted: -1,
            pins: Arc::clone(&pins),
        };
        Self {
            tree,
            history,
            window,
            compactor: Compactor::default(),
            path,
            current: 1,
            compacted: -1,
            published: Arc::new(ArcSwap::from_pointee(view)),
            pins,
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

    /// Begins the changes of one entry.
    pub const fn write<'a>(&'a mut self, batch: &'a mut Batch) -> WriteTxn<'a> {
        WriteTxn::new(self, batch)
    }

    /// The keyspace as it is now, published or not.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            tree: &self.tree,
            tree_revision: self.current,
            history: self.history.view(),
            records: Records { window: self.window.view(), path: &self.path },
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
    ) -> Result<(), MvccRefusal> {
        if revision <= self.compacted {
            return Err(MvccRefusal::Compacted);
        }
        if revision > self.current {
            return Err(MvccRefusal::FutureRevision);
        }
        self.compacted = revision;
        batch.put_compaction(meta::SCHEDULED_COMPACTION, revision);
        self.compactor.schedule(revision);
        Ok(())
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
        self.pins.trim(self.current, self.compacted);
        self.published.store(Arc::new(View {
            tree: self.tree.clone(),
            history: self.history.view().clone(),
            window: self.window.view().clone(),
            path: Arc::clone(&self.path),
            current: self.current,
            compacted: self.compacted,
            pins: Arc::clone(&self.pins),
        }));
    }

    /// What connection threads read from.
    #[must_use]
    pub fn reader(&self) -> StoreReader {
        StoreReader { published: Arc::clone(&self.published) }
    }
}
