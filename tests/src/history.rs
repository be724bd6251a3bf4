//! The history of a store as a watcher sees it, and the hash computed from it.
//!
//! The hash of the keyspace is defined over the stored records, and a watch from the first revision delivers exactly
//! their contents. A client can therefore compute the hash independently of the server's code. If the two hashes are
//! equal, the server's files contain the records that its clients received.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BufMut as _;
use quorate_api::mvccpb::event::EventType;
use quorate_api::record::{Fields, KeyValue};

use crate::{Client, Watch};

/// One stored record.
#[derive(Clone, Debug)]
struct Record {
    main: i64,
    sub: i64,
    key: Vec<u8>,
    tombstone: bool,
    encoded: Vec<u8>,
}

/// All records of a store that has never been compacted, oldest first.
#[derive(Clone, Debug)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// Reads the history up to a revision through a watch.
    pub async fn read(client: &Client, through: i64) -> Self {
        let mut history = Self { records: Vec::new() };
        if through <= 1 {
            return history;
        }
        let mut watch = Watch::open(client);
        let everything = quorate_api::etcdserverpb::WatchCreateRequest {
            range_end: crate::bytes([0]),
            start_revision: 1,
            ..Default::default()
        };
        let reply = watch.create(everything).await;
        assert!(!reply.canceled, "{reply:?}");
        while history.records.last().map_or(1, |record| record.main) < through {
            let response = watch.next().await;
            assert!(!response.canceled, "{response:?}");
            for event in response.events {
                let tombstone = event.r#type() == EventType::Delete;
                history.add(event.kv.unwrap_or_default().fields(), tombstone);
            }
        }
        history
    }

    fn add(&mut self, fields: Fields<'_>, tombstone: bool) {
        let main = fields.mod_revision;
        let sub = match self.records.last() {
            Some(last) if last.main == main => last.sub + 1,
            Some(last) => {
                assert!(main > last.main, "revision {main} arrived after revision {}", last.main);
                0
            }
            None => 0,
        };
        // For a deletion, only the key is stored. The revision of the deletion is only in the event.
        let stored =
            if tombstone { Fields { key: fields.key, ..Default::default() } } else { fields };
        let encoded = KeyValue::new(&stored).encoded().to_vec();
        self.records.push(Record { main, sub, key: fields.key.to_vec(), tombstone, encoded });
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the history is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the revisions of deletions, in order.
    pub fn tombstones(&self) -> impl Iterator<Item = i64> {
        self.records.iter().filter(|record| record.tombstone).map(|record| record.main)
    }

    /// Returns the expected `HashKV` for a revision, after an optional compaction.
    #[must_use]
    pub fn hash_kv(&self, compacted: Option<i64>, revision: i64) -> u32 {
        let alive = self.alive_at(revision);
        let mut hash = crc32c::crc32c(b"key");
        for record in &self.records {
            if record.main > revision {
                continue;
            }
            if let Some(compacted) = compacted {
                let kept = alive.contains(&(record.main, record.sub));
                let dropped = record.main <= compacted && !alive.is_empty() && !kept;
                if dropped || record.main == compacted && record.tombstone {
                    continue;
                }
            }
            let mut name = Vec::with_capacity(18);
            name.put_i64(record.main);
            name.put_u8(b'_');
            name.put_i64(record.sub);
            if record.tombstone {
                name.put_u8(b't');
            }
            hash = crc32c::crc32c_append(hash, &name);
            hash = crc32c::crc32c_append(hash, &record.encoded);
        }
        hash
    }

    /// Returns the revisions of the records that a read at this revision would return.
    fn alive_at(&self, revision: i64) -> BTreeSet<(i64, i64)> {
        let mut newest: BTreeMap<&[u8], &Record> = BTreeMap::new();
        for record in self.records.iter().filter(|record| record.main <= revision) {
            newest.insert(&record.key, record);
        }
        let alive = newest.values().filter(|record| !record.tombstone);
        alive.map(|record| (record.main, record.sub)).collect()
    }
}
