//! What connection threads read: the keyspace as of one publication, without a lock and for as long as they
//! hold it.
//!
//! # Invariants
//!
//! * A view never changes, whatever is written, compacted or committed after it.
//! * The roots that continue pages read are few: at most 16, none compacted, none far behind.
//!
//! # Not here
//!
//! Publishing (`Store::publish`).

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use quorate_api::record::KeyValue;

use super::changes::{Change, PastChange, Previous};
use super::error::{MvccError, MvccRefusal};
use super::history::HistoryView;
use super::range::{RangeQuery, RangeResult};
use super::records::Records;
use super::remembered_hashes::RememberedHashes;
use super::snapshot::Snapshot;
use super::tree::Tree;
use super::window::WindowView;
use crate::backend::{BackendView, Fault};

/// Yields the newest published view. Clones share it.
#[derive(Clone, Debug)]
pub struct StoreReader {
    pub(super) published: Arc<ArcSwap<View>>,
}

impl StoreReader {
    /// The newest published view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.published.load_full()
    }
}

/// The keyspace as of one publication.
pub struct View {
    pub(super) tree: Tree,
    pub(super) history: HistoryView,
    pub(super) window: WindowView,
    pub(super) file: Option<BackendView>,
    pub(super) persisted: i64,
    pub(super) current: i64,
    pub(super) compacted: i64,
    pub(super) shared: Arc<Shared>,
}

/// What it is of, and nothing of what is in it.
impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = f.debug_struct("View");
        told.field("current", &self.current).field("compacted", &self.compacted);
        told.finish_non_exhaustive()
    }
}

/// What views add to, for those that come after.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) pins: Pins,
    pub(super) hashes: RememberedHashes,
}

impl View {
    /// The newest revision.
    #[must_use]
    pub const fn current_revision(&self) -> i64 {
        self.current
    }

    /// The revision below which nothing can be read, -1 if there never was a compaction.
    #[must_use]
    pub const fn compacted_revision(&self) -> i64 {
        self.compacted
    }

    /// Number of live keys.
    #[must_use]
    pub const fn live_key_count(&self) -> usize {
        self.tree.live()
    }

    /// The keyspace, for compares and single reads.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.snapshot_of(&self.tree, self.current)
    }

    /// Answers a range request. A list that was cut off at the newest revision keeps its index for the
    /// pages that follow.
    pub fn range(&self, query: &RangeQuery) -> Result<RangeResult, MvccError> {
        if query.revision > 0
            && query.revision < self.current
            && let Some(tree) = self.shared.pins.get(query.revision)
        {
            return self.snapshot_of(&tree, query.revision).range(query);
        }
        let result = self.snapshot().range(query)?;
        if result.more && (query.revision <= 0 || query.revision == self.current) {
            self.shared.pins.insert(self.current, &self.tree);
        }
        Ok(result)
    }

    /// Visits the changes from main revision `from` on, in order, until there are no more or `visit` says
    /// to stop. Nothing is read ahead of it.
    pub fn visit_changes(
        &self,
        from: i64,
        visit: &mut dyn FnMut(&PastChange<'_>) -> ControlFlow<()>,
    ) -> Result<(), MvccError> {
        if from < self.compacted {
            return Err(MvccRefusal::Compacted.into());
        }
        Ok(self.snapshot().records.visit_changes(from, visit)?)
    }

    /// The record before a change that happened at `revision`, unless there was none or it is compacted. It
    /// may be kept for long.
    pub fn previous_record(
        &self,
        revision: i64,
        change: &Change,
    ) -> Result<Option<KeyValue>, Fault> {
        let before = revision - 1;
        if before < self.compacted {
            return Ok(None);
        }
        let snapshot = self.snapshot();
        let detached =
            |modified| snapshot.records.get_detached(modified).map(KeyValue::from_encoded);
        match change.previous {
            Previous::Absent => Ok(None),
            Previous::At(modified) => detached(modified).map(Some),
            Previous::Unknown => {
                let fields = change.record.fields();
                if fields.create_revision == revision {
                    return Ok(None);
                }
                snapshot.version_at(fields.key, before).map(detached).transpose()
            }
        }
    }

    fn snapshot_of<'a>(&'a self, tree: &'a Tree, tree_revision: i64) -> Snapshot<'a> {
        Snapshot {
            tree,
            tree_revision,
            history: &self.history,
            records: Records {
                window: &self.window,
                file: self.file.as_ref(),
                persisted: self.persisted,
            },
            current: self.current,
            compacted: self.compacted,
        }
    }
}

/// Index roots kept for lists that go on page by page at one revision.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Oldest first.
    roots: Mutex<VecDeque<(i64, Tree)>>,
    count: AtomicUsize,
}

impl Pins {
    const COUNT_MAX: usize = 16;
    const REVISIONS_MAX: i64 = 20_000;

    fn get(&self, revision: i64) -> Option<Tree> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let roots = self.roots.lock();
        roots.iter().find(|(pinned, _)| *pinned == revision).map(|(_, tree)| tree.clone())
    }

    fn insert(&self, revision: i64, tree: &Tree) {
        let mut roots = self.roots.lock();
        if roots.iter().any(|(pinned, _)| *pinned == revision) {
            return;
        }
        roots.push_back((revision, tree.clone()));
        let oldest = if roots.len() > Self::COUNT_MAX { roots.pop_front() } else { None };
        self.count.store(roots.len(), Ordering::Relaxed);
        drop(roots);
        drop(oldest);
    }

    /// Lets go of roots that nobody may or will read.
    pub(super) fn trim(&self, current: i64, compacted: i64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let oldest = compacted.max(current - Self::REVISIONS_MAX);
        let mut roots = self.roots.lock();
        let (kept, dropped) = roots.drain(..).partition(|(revision, _)| *revision >= oldest);
        let dropped: VecDeque<_> = dropped;
        *roots = kept;
        self.count.store(roots.len(), Ordering::Relaxed);
        drop(roots);
        drop(dropped);
    }
}
