//! A working set: a store that contains only those keys that its owner has loaded from elsewhere.
//!
//! The owner keeps the whole keyspace in a database, loads the newest versions of the keys that a
//! request reads or changes, and applies the request. The rules for revisions, versions and ranges
//! are the same as in a complete store.
//!
//! # Invariants
//!
//! * A key that is not loaded looks like a key that does not exist. The owner loads every key that
//!   a request reads or changes before it applies the request.
//! * A version is loaded at most once, and never replaces a newer version. Changes in the store are newer than any
//!   version that the owner can load, so a key can be loaded again at any time.
//! * Nothing is removed from a working set, and it does not schedule deletions for a compaction. The owner replaces a
//!   working set that has become too large.
//!
//! # Not here
//!
//! The database, and which keys a request needs (`engine`).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use quorate_api::record::Fields;

use super::history::Superseded;
use super::tree::Entry;
use super::{Store, StoreOptions};
use crate::schema::{RecordKey, Revision};

/// The memory of a loaded version in bytes, in addition to its record: its entries in the index and in the table of
/// records.
const VERSION_BYTES: usize = 160;

/// The loaded records, by revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    records: Arc<BTreeMap<Revision, Bytes>>,
    byte_count: usize,
}

/// A version of a key, as stored outside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVersion {
    /// Revision of the change, and whether it deleted the key.
    pub at: RecordKey,
    /// The record as the backend file stores it. The record of a deletion contains only the key.
    pub record: Bytes,
}

/// The newest version of a live key, with or without its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedVersion<'a> {
    /// The whole record.
    Whole {
        /// The revision of the change.
        modified: Revision,
        /// The encoded record.
        record: &'a Bytes,
    },
    /// Only the fields that the index stores, for requests that need no value.
    Facts {
        /// The key.
        key: &'a [u8],
        /// The revision of the change.
        modified: Revision,
        /// Main revision at which the key was created.
        create_revision: i64,
        /// The number of changes since the key was created.
        version: i64,
    },
}

impl Loaded {
    pub(super) fn record(&self, revision: Revision) -> Option<&Bytes> {
        self.records.get(&revision)
    }

    fn insert(&mut self, revision: Revision, record: Bytes) {
        self.byte_count += VERSION_BYTES + record.len();
        Arc::make_mut(&mut self.records).insert(revision, record);
    }
}

impl Store {
    /// Creates an empty working set of a keyspace. `current` is the newest revision of the keyspace, and `compacted` is
    /// its compacted revision (-1 before the first compaction).
    #[must_use]
    pub fn working_set(current: i64, compacted: i64, options: StoreOptions) -> Self {
        let mut store = Self::new(options);
        store.loaded = Some(Loaded::default());
        store.current = current;
        store.compacted = compacted;
        store.publish();
        store
    }

    /// Loads the newest version of a live key. A version that is already in the store, or is older than the store's
    /// version, is ignored.
    pub fn load(&mut self, version: LoadedVersion<'_>) {
        let (fields, modified) = match version {
            LoadedVersion::Whole { modified, record } => {
                (Fields::decode(record).unwrap_or_default(), modified)
            }
            LoadedVersion::Facts { key, modified, create_revision, version } => {
                (Fields { key, create_revision, version, ..Fields::default() }, modified)
            }
        };
        assert!(
            modified.main <= self.current,
            "only committed versions are loaded: otherwise a change could supersede a later one"
        );
        let known = self.tree.get(fields.key).copied();
        if known.is_none() {
            self.tree.update(fields.key, |_| entry(modified, &fields, 0));
        }
        let is_newest = known.is_none_or(|known| known.revision() == modified);
        let loaded = self.loaded_mut();
        match version {
            LoadedVersion::Whole { record, .. }
                if is_newest && loaded.record(modified).is_none() =>
            {
                loaded.insert(modified, record.clone());
            }
            LoadedVersion::Facts { .. } if known.is_none() => {
                loaded.byte_count += VERSION_BYTES + fields.key.len();
            }
            LoadedVersion::Whole { .. } | LoadedVersion::Facts { .. } => {}
        }
    }

    /// Loads all versions of a key, oldest first, for reads at older revisions. A key that is already in the working
    /// set is ignored.
    pub fn load_history(&mut self, versions: &[StoredVersion]) {
        let mut newest: Option<Entry> = None;
        for StoredVersion { at, record } in versions {
            let fields = Fields::decode(record).unwrap_or_default();
            if newest.is_none() && self.tree.get(fields.key).is_some() {
                return;
            }
            // The owner never collects garbage from a working set, so the order of superseded
            // versions across keys is irrelevant.
            let previous = newest.map_or(0, |replaced| {
                self.history.push(&Superseded {
                    main: replaced.main,
                    sub: replaced.sub,
                    tombstone: replaced.tombstone,
                    superseded_by: at.revision.main,
                    previous: replaced.previous,
                })
            });
            let entry = Entry { tombstone: at.tombstone, ..entry(at.revision, &fields, previous) };
            newest = Some(entry);
            self.tree.update(fields.key, |_| entry);
            self.loaded_mut().insert(at.revision, record.clone());
        }
    }

    /// Returns the memory that the loaded versions and the later changes of a working set use, in bytes.
    #[must_use]
    pub fn working_set_bytes(&self) -> usize {
        let changes = usize::try_from(self.history.len()).unwrap_or(usize::MAX);
        self.loaded.as_ref().map_or(0, |loaded| loaded.byte_count)
            + self.window.byte_count()
            + changes.saturating_mul(VERSION_BYTES)
    }

    /// Sets the newest and the compacted revision of a working set whose owner follows changes that
    /// were made elsewhere.
    pub fn follow(&mut self, current: i64, compacted: i64) {
        assert!(
            self.loaded.is_some(),
            "only a working set follows changes made elsewhere: a complete store would miss their records"
        );
        self.current = self.current.max(current);
        self.compacted = self.compacted.max(compacted);
    }

    fn loaded_mut(&mut self) -> &mut Loaded {
        self.loaded.as_mut().expect("versions are loaded only into a working set")
    }
}

fn entry(modified: Revision, fields: &Fields<'_>, previous: u64) -> Entry {
    Entry {
        main: modified.main,
        create: fields.create_revision,
        version: fields.version,
        previous,
        sub: u32::try_from(modified.sub).unwrap_or(u32::MAX),
        tombstone: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Batch, BatchChange};
    use crate::mvcc::{KeyRange, RangeQuery};
    use quorate_api::record::KeyValue;

    fn record(key: &[u8], value: &[u8], create: i64, main: i64, version: i64) -> Bytes {
        let fields =
            Fields { key, value, create_revision: create, mod_revision: main, version, lease: 0 };
        KeyValue::new(&fields).encoded().clone()
    }

    fn whole(record: &Bytes) -> LoadedVersion<'_> {
        let modified = Revision::new(Fields::decode(record).unwrap().mod_revision, 0);
        LoadedVersion::Whole { modified, record }
    }

    fn values(store: &Store, revision: i64) -> Vec<String> {
        let query = RangeQuery {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(&[0]),
            revision,
            ..RangeQuery::default()
        };
        let found = store.snapshot().range(&query).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        found.kvs.iter().map(|kv| format!("{}={}", text(kv.key()), text(kv.value()))).collect()
    }

    #[test]
    fn a_put_increments_the_version_of_a_loaded_key() {
        let mut store = Store::working_set(10, 4, StoreOptions::default());
        let loaded = record(b"a", b"1", 3, 7, 4);
        store.load(whole(&loaded));
        assert_eq!(values(&store, 0), ["a=1"]);
        let mut batch = Batch::new();
        let mut txn = store.write(&mut batch);
        let put = txn.put(b"a", b"2", 0);
        assert_eq!(put.revision, Revision::new(11, 0));
        assert_eq!(put.previous.map(|previous| previous.version), Some(4));
        txn.put(b"b", b"1", 0);
        assert!(txn.finish().is_some());
        let version = store.snapshot().get(b"a").unwrap();
        assert_eq!((version.create_revision, version.version), (3, 5));
        // Loading the same version again has no effect, because the change is newer.
        store.load(whole(&loaded));
        assert_eq!(values(&store, 0), ["a=2", "b=1"]);
        assert_eq!(values(&store, 10), ["a=1"]);
        assert!(matches!(batch.changes().next(), Some(BatchChange::PutRecord(..))));
    }

    #[test]
    fn a_key_loaded_without_its_record_can_be_deleted_or_completed() {
        let mut store = Store::working_set(10, -1, StoreOptions::default());
        let facts = |key| LoadedVersion::Facts {
            key,
            modified: Revision::new(7, 0),
            create_revision: 7,
            version: 1,
        };
        store.load(facts(b"a"));
        store.load(facts(b"b"));
        let before = store.working_set_bytes();
        store.load(facts(b"b"));
        assert_eq!(store.working_set_bytes(), before);
        let completed = record(b"b", b"x", 7, 7, 1);
        store.load(whole(&completed));
        let mut batch = Batch::new();
        let mut txn = store.write(&mut batch);
        assert_eq!(txn.delete_range(KeyRange::Between(b"a", b"b")).len(), 1);
        assert!(txn.finish().is_some());
        assert_eq!(values(&store, 0), ["b=x"]);
        store.load(facts(b"a"));
        assert_eq!(values(&store, 0), ["b=x"], "a deleted key is not loaded again");
    }

    #[test]
    fn a_loaded_history_can_be_read_at_every_revision() {
        let mut store = Store::working_set(10, 2, StoreOptions::default());
        let at = |main, tombstone| RecordKey { revision: Revision::new(main, 0), tombstone };
        let deletion = KeyValue::new(&Fields { key: b"a", ..Fields::default() }).encoded().clone();
        store.load_history(&[
            StoredVersion { at: at(3, false), record: record(b"a", b"1", 3, 3, 1) },
            StoredVersion { at: at(5, true), record: deletion },
            StoredVersion { at: at(8, false), record: record(b"a", b"2", 8, 8, 1) },
        ]);
        for (revision, expected) in [
            (2, vec![]),
            (3, vec!["a=1"]),
            (5, vec![]),
            (7, vec![]),
            (8, vec!["a=2"]),
            (0, vec!["a=2"]),
        ] {
            assert_eq!(values(&store, revision), expected, "at {revision}");
        }
    }

    #[test]
    fn a_compaction_of_a_working_set_does_not_delete_records() {
        let mut store = Store::working_set(10, 4, StoreOptions::default());
        let mut batch = Batch::new();
        assert!(store.schedule_compaction(4, &mut batch).is_err());
        store.schedule_compaction(9, &mut batch).unwrap();
        assert!(store.is_compaction_idle());
        assert_eq!(store.compacted_revision(), 9);
        store.follow(12, 11);
        assert_eq!((store.current_revision(), store.compacted_revision()), (12, 11));
    }

    #[test]
    #[should_panic(expected = "only committed versions are loaded")]
    fn loading_a_version_beyond_the_newest_revision_panics() {
        let mut store = Store::working_set(10, -1, StoreOptions::default());
        store.load(whole(&record(b"a", b"", 11, 11, 1)));
    }
}
