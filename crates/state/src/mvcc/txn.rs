//! The changes of one log entry, applied to the keyspace immediately.
//!
//! All changes of an entry share one main revision and have ascending sub revisions. An entry without changes does not
//! use a revision. A transaction's writes are visible to its own reads immediately, and to readers after the next
//! publication.
//!
//! # Not here
//!
//! Deciding whether an entry may write. `apply` checks alarms, permissions, leases and conditions first, because a
//! write transaction cannot be rolled back.

use std::ops::ControlFlow;

use bytes::Bytes;
use quorate_api::record::{Fields, KeyValue};
use smallvec::SmallVec;

use super::Store;
use super::changes::{Change, ChangeKind, Changes, Previous};
use super::error::MvccError;
use super::history::{History, Superseded};
use super::key_range::KeyRange;
use super::range::{RangeQuery, RangeResult};
use super::snapshot::{Snapshot, Version};
use super::tally::Tally;
use super::tree::Entry;
use crate::backend::{Batch, Fault};
use crate::schema::{RecordKey, Revision};

/// An open write transaction. [`WriteTxn::finish`] returns the changes for watchers.
#[derive(Debug)]
pub struct WriteTxn<'a> {
    store: &'a mut Store,
    batch: &'a mut Batch,
    events: SmallVec<[Change; 1]>,
    done: Tally,
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The revision of the change.
    pub revision: Revision,
    /// The replaced version, if the key was live. [`WriteTxn::record`] reads its record.
    pub previous: Option<Version>,
}

/// A deleted key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The key.
    pub key: Bytes,
    /// The key's last version. [`WriteTxn::record`] reads its record.
    pub previous: Version,
}

impl<'a> WriteTxn<'a> {
    pub(super) fn new(store: &'a mut Store, batch: &'a mut Batch) -> Self {
        Self { store, batch, events: SmallVec::new(), done: Tally::default() }
    }

    /// Returns the newest revision inside the transaction. After its first write, this is the
    /// revision that the transaction writes.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.store.current
    }

    /// Returns the keyspace, including the transaction's writes so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        self.store.snapshot()
    }

    /// Returns the newest version of a key, if the key is live.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Version> {
        self.store.snapshot().get(key)
    }

    /// Reads the record of a version.
    pub fn record(&self, modified: Revision) -> Result<KeyValue, Fault> {
        self.store.snapshot().record(modified)
    }

    /// Counts a read of the previous records that a put or a deletion needs.
    pub const fn count_read(&mut self) {
        self.done.ranges += 1;
    }

    /// Executes a range request. If the request does not name a revision, the range includes the transaction's writes
    /// so far.
    pub fn range(&mut self, query: &RangeQuery) -> Result<RangeResult, MvccError> {
        self.done.ranges += 1;
        self.store.snapshot().range(query)
    }

    /// Creates or overwrites a key.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Put {
        self.done.puts += 1;
        self.done.put_bytes += (key.len() + value.len()) as u64;
        let revision = self.next_revision();
        let Store { tree, history, window, .. } = &mut *self.store;
        let mut replaced = None;
        let mut written = None;
        tree.update(key, |entry| {
            replaced = entry.copied();
            let (create, version) = match entry {
                Some(entry) if !entry.tombstone => (entry.create, entry.version + 1),
                Some(_) | None => (revision.main, 1),
            };
            let entry = new_entry(revision, create, version, entry, history);
            written = Some(entry);
            entry
        });
        let entry = written.expect("an update always writes");
        let fields = Fields {
            key,
            create_revision: entry.create,
            mod_revision: revision.main,
            version: entry.version,
            value,
            lease,
        };
        let record = window.append(revision, &fields);
        self.batch.put_record(RecordKey { revision, tombstone: false }, record.clone());
        let previous = match entry.create {
            create if create == revision.main => Previous::Absent,
            _ => before_entry(&entry, history),
        };
        let record = KeyValue::from_encoded(record);
        self.events.push(Change { kind: ChangeKind::Put, record, previous });
        Put { revision, previous: replaced.and_then(|entry| entry.live()) }
    }

    /// Deletes the live keys of a range, in key order.
    pub fn delete_range(&mut self, range: KeyRange<'_>) -> Vec<Deleted> {
        self.done.deletes += 1;
        if let KeyRange::One(key) = range {
            return self.get(key).map(|version| self.delete(key, version)).into_iter().collect();
        }
        // The keys are copied first, because deleting them changes the index that is being walked.
        let mut keys = Vec::new();
        let mut versions = Vec::new();
        self.snapshot().for_each_live(range, |key, version| {
            keys.extend_from_slice(key);
            versions.push((keys.len(), version));
            ControlFlow::Continue(())
        });
        let mut start = 0;
        versions
            .into_iter()
            .map(|(end, version)| {
                let key = &keys[std::mem::replace(&mut start, end)..end];
                self.delete(key, version)
            })
            .collect()
    }

    /// Ends the transaction. Returns its changes, or `None` if it changed nothing.
    #[must_use]
    pub fn finish(self) -> Option<Changes> {
        self.store.tally.end_view(&self.done);
        let revision = self.revision();
        let events = self.events;
        (!events.is_empty()).then_some(Changes { revision, events })
    }

    fn delete(&mut self, key: &[u8], previous: Version) -> Deleted {
        let revision = self.next_revision();
        let Store { tree, history, window, compactor, loaded, .. } = &mut *self.store;
        let mut written = None;
        tree.update(key, |entry| {
            let (create, version) = (previous.create_revision, previous.version);
            let entry =
                Entry { tombstone: true, ..new_entry(revision, create, version, entry, history) };
            written = Some(entry);
            entry
        });
        if loaded.is_none() {
            compactor.tombstones.push(revision, key);
        }
        // Watchers receive the key and the revision. The file stores only the key, which is the
        // first field.
        let fields = Fields { key, mod_revision: revision.main, ..Fields::default() };
        let record = window.append(revision, &fields);
        let stored = record.slice(..Fields { key, ..Fields::default() }.encoded_len());
        let key_at = stored.len() - key.len();
        let key = stored.slice(key_at..);
        self.batch.put_record(RecordKey { revision, tombstone: true }, stored);
        let entry = written.expect("an update always writes");
        self.events.push(Change {
            kind: ChangeKind::Delete,
            record: KeyValue::from_encoded(record),
            previous: before_entry(&entry, history),
        });
        Deleted { key, previous }
    }

    fn next_revision(&mut self) -> Revision {
        if self.events.is_empty() {
            self.store.current += 1;
        }
        let sub = i64::try_from(self.events.len()).expect("changes fit in memory");
        Revision::new(self.store.current, sub)
    }
}

/// Pushes the superseded change, if any, to the history. Returns the index entry of the new change.
fn new_entry(
    revision: Revision,
    create: i64,
    version: i64,
    replaced: Option<&Entry>,
    history: &mut History,
) -> Entry {
    let previous = replaced.map_or(0, |entry| {
        assert!(
            (entry.main, i64::from(entry.sub)) < (revision.main, revision.sub),
            "a change supersedes only older changes: otherwise a compaction would delete the newest value of the key"
        );
        history.push(&Superseded {
            main: entry.main,
            sub: entry.sub,
            tombstone: entry.tombstone,
            superseded_by: revision.main,
            previous: entry.previous,
        })
    });
    let sub = u32::try_from(revision.sub).expect("an entry makes fewer than 2^32 changes");
    Entry { main: revision.main, create, version, previous, sub, tombstone: false }
}

/// Returns where to find the value that the key had before the entry that contains this change.
fn before_entry(entry: &Entry, history: &History) -> Previous {
    match history.view().at_or_below(entry.previous, entry.main - 1) {
        Some(before) if !before.tombstone => Previous::At(before.revision()),
        Some(_) | None => Previous::Absent,
    }
}
