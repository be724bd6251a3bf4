//! Published views: the keyspace as of one publication, which any thread can read without a lock.
//!
//! # Invariants
//!
//! * Later writes, compactions and commits never change a view.
//! * At most 16 indexes are pinned for paged lists. An index is dropped if its revision is compacted or very old.
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
use super::working_set::Loaded;
use crate::backend::{BackendView, Fault};

/// A handle that provides the newest published view. Clones see the same publications.
#[derive(Clone, Debug)]
pub struct StoreReader {
    pub(super) published: Arc<ArcSwap<View>>,
}

impl StoreReader {
    /// Returns the newest published view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.published.load_full()
    }

    /// Returns the newest published revision.
    #[must_use]
    pub fn current_revision(&self) -> i64 {
        self.published.load().current
    }
}

/// The keyspace as of one publication.
pub struct View {
    pub(super) tree: Tree,
    pub(super) history: HistoryView,
    pub(super) window: WindowView,
    pub(super) file: Option<BackendView>,
    pub(super) loaded: Option<Loaded>,
    pub(super) persisted: i64,
    pub(super) current: i64,
    pub(super) compacted: i64,
    pub(super) shared: Arc<Shared>,
}

/// Prints the revisions of the view, but not its content.
impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("View");
        text.field("current", &self.current).field("compacted", &self.compacted);
        text.finish_non_exhaustive()
    }
}

/// State that is shared by all views of one store.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) pins: Pins,
    pub(super) hashes: RememberedHashes,
}

impl View {
    /// Returns the newest revision.
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

    /// Returns the number of live keys.
    #[must_use]
    pub const fn live_key_count(&self) -> usize {
        self.tree.live()
    }

    /// Returns the keyspace, for comparisons and reads of single keys.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.snapshot_of(&self.tree, self.current)
    }

    /// Executes a range request. If the limit cuts off a range at the newest revision, the index is
    /// pinned for the following pages.
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

    /// Visits the changes from main revision `from` on, in order, until there are no more or
    /// `visit` breaks. Changes are read one at a time, as they are visited.
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

    /// Returns the record of the key before a change at `revision`, or `None` if the key did not
    /// exist or the record is compacted. The caller may keep the record for a long time.
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
                loaded: self.loaded.as_ref(),
                persisted: self.persisted,
            },
            current: self.current,
            compacted: self.compacted,
        }
    }
}

/// Indexes pinned for paged lists, whose pages are all read at one revision.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// The pinned indexes with their revisions, oldest first.
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

    /// Drops indexes whose revision is compacted or too old.
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
