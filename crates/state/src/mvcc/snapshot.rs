//! A snapshot of the keyspace, from which every read, comparison and range request is answered.
//!
//! A [`Snapshot`] borrows an index, the history and the records. A published `View` provides a snapshot. So does a
//! write transaction, whose snapshot includes its own writes so far.
//!
//! # Not here
//!
//! The options of a range request (`range`).

use std::ops::ControlFlow;

use quorate_api::record::KeyValue;

use super::error::MvccRefusal;
use super::history::HistoryView;
use super::key_range::KeyRange;
use super::records::Records;
use super::tree::{Counts, Entry, Tree, Wanted};
use crate::backend::Fault;
use crate::schema::Revision;

/// The facts about a live key's newest change that are known without reading its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision of the change.
    pub modified: Revision,
    /// Main revision at which the key was created.
    pub create_revision: i64,
    /// The number of changes since the key was created, including the creation.
    pub version: i64,
}

/// A snapshot of the keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    pub(super) tree: &'a Tree,
    /// The revision of the state that the index describes.
    pub(super) tree_revision: i64,
    pub(super) history: &'a HistoryView,
    pub(super) records: Records<'a>,
    pub(super) current: i64,
    pub(super) compacted: i64,
}

/// A key as it was at the read revision.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub(super) key: &'a [u8],
    pub(super) modified: Revision,
    /// Create revision and version, if known. For a change in the history, they can only be read from its record.
    pub(super) generation: Option<(i64, i64)>,
}

impl Entry {
    pub(super) fn revision(&self) -> Revision {
        Revision::new(self.main, self.sub.into())
    }

    /// Returns the change as a version, or `None` if it deleted the key.
    pub(super) fn live(&self) -> Option<Version> {
        (!self.tombstone).then(|| Version {
            modified: self.revision(),
            create_revision: self.create,
            version: self.version,
        })
    }
}

impl<'a> Snapshot<'a> {
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

    /// Returns the newest version of a key, if the key is live.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Version> {
        self.tree.get(key)?.live()
    }

    /// Visits the live keys of a range with their newest versions, in order, until `visit` breaks.
    pub fn for_each_live(
        &self,
        range: KeyRange<'_>,
        mut visit: impl FnMut(&'a [u8], Version) -> ControlFlow<()>,
    ) {
        self.walk(range, Wanted::Live, 0, |key, entry| match entry.live() {
            Some(version) => visit(key, version),
            None => ControlFlow::Continue(()),
        });
    }

    /// Returns the number of live keys in a range at the newest revision.
    #[must_use]
    pub fn count(&self, range: KeyRange<'_>) -> usize {
        self.counts(range).live
    }

    /// Returns the number of live keys and of all keys in a range of the index.
    pub(super) fn counts(&self, range: KeyRange<'_>) -> Counts {
        match range.bounds() {
            Ok((from, to)) => self.tree.count(from, to),
            Err(key) => self.tree.get(key).map_or_else(Counts::default, |entry| Counts {
                live: usize::from(!entry.tombstone),
                all: 1,
            }),
        }
    }

    /// Reads the record of a version.
    pub fn record(&self, modified: Revision) -> Result<KeyValue, Fault> {
        self.records.get(modified).map(KeyValue::from_encoded)
    }

    /// Returns the revision of a key's newest change at or below `revision`, if the key was live
    /// then. The revision must be readable.
    #[must_use]
    pub fn version_at(&self, key: &[u8], revision: i64) -> Option<Revision> {
        let entry = self.tree.get(key)?;
        self.visible(&[], entry, revision).map(|found| found.modified)
    }

    /// Reads a key's record as it was at a readable revision.
    pub fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, Fault> {
        self.version_at(key, revision).map(|modified| self.record(modified)).transpose()
    }

    /// Resolves the revision of a request, where 0 or less means the newest. Refuses a revision
    /// that cannot be read.
    pub fn readable(&self, revision: i64) -> Result<i64, MvccRefusal> {
        if revision <= 0 {
            Ok(self.current)
        } else if revision > self.current {
            Err(MvccRefusal::FutureRevision)
        } else if revision < self.compacted {
            Err(MvccRefusal::Compacted)
        } else {
            Ok(revision)
        }
    }

    pub(super) fn walk(
        &self,
        range: KeyRange<'_>,
        wanted: Wanted,
        skip: usize,
        mut visit: impl FnMut(&'a [u8], &'a Entry) -> ControlFlow<()>,
    ) {
        match range.bounds() {
            Ok((from, to)) => self.tree.walk(from, to, wanted, skip, visit),
            Err(key) => {
                if skip == 0
                    && let Some((key, entry)) = self.tree.get_key_value(key)
                {
                    let (ControlFlow::Continue(()) | ControlFlow::Break(())) = visit(key, entry);
                }
            }
        }
    }

    /// Returns the newest change of a key at or below `revision`, unless it is a deletion.
    pub(super) fn visible(&self, key: &'a [u8], entry: &Entry, revision: i64) -> Option<Found<'a>> {
        if entry.main <= revision {
            let version = entry.live()?;
            let generation = Some((version.create_revision, version.version));
            return Some(Found { key, modified: version.modified, generation });
        }
        let older = self.history.at_or_below(entry.previous, revision)?;
        (!older.tombstone).then(|| Found { key, modified: older.revision(), generation: None })
    }

    /// Returns the newest change of a key at or below `revision`, if it is a deletion.
    pub(super) fn deletion(&self, entry: &Entry, revision: i64) -> Option<Revision> {
        if entry.main <= revision {
            return entry.tombstone.then(|| entry.revision());
        }
        let older = self.history.at_or_below(entry.previous, revision)?;
        older.tombstone.then(|| older.revision())
    }

    /// Returns whether a key was deleted at exactly this revision, even if the same entry wrote it
    /// again.
    pub(super) fn is_deleted_at(&self, entry: &Entry, revision: i64) -> bool {
        let mut link = entry.previous;
        if entry.main <= revision {
            if entry.main < revision || entry.tombstone {
                return entry.main == revision;
            }
        } else {
            let Some(older) = self.history.at_or_below(link, revision) else { return false };
            if older.main < revision || older.tombstone {
                return older.main == revision;
            }
            link = older.previous;
        }
        while let Some(older) = self.history.get(link).filter(|older| older.main == revision) {
            if older.tombstone {
                return true;
            }
            link = older.previous;
        }
        false
    }
}
