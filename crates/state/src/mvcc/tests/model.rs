//! A naive model of the keyspace: a map with the whole history of every key.

use std::collections::{BTreeMap, BTreeSet};

use quorate_api::record::{Fields, KeyValue};

use super::super::{KeyRange, MvccRefusal, RangeQuery, SortOrder, SortTarget};
use crate::schema::{RecordKey, Revision};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelRecord {
    pub(super) create: i64,
    pub(super) version: i64,
    pub(super) value: Vec<u8>,
    pub(super) lease: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Every change of each key, in order; `None` is a deletion.
    history: BTreeMap<Vec<u8>, Vec<(Revision, Option<ModelRecord>)>>,
    pub(super) current: i64,
    pub(super) compacted: i64,
    /// The changes whose records were deleted from the file.
    gone: BTreeSet<Revision>,
}

/// The live keys, each with the revision of its newest change and its record.
type State = BTreeMap<Vec<u8>, (Revision, ModelRecord)>;

impl Model {
    pub(super) fn new() -> Self {
        Self { history: BTreeMap::new(), current: 1, compacted: -1, gone: BTreeSet::new() }
    }

    pub(super) fn at(&self, revision: i64) -> State {
        let visible = |changes: &[(Revision, Option<ModelRecord>)]| {
            let (at, record) = changes.iter().rfind(|(at, _)| at.main <= revision)?;
            Some((*at, record.clone()?))
        };
        self.history
            .iter()
            .filter_map(|(key, changes)| Some((key.clone(), visible(changes)?)))
            .collect()
    }

    pub(super) fn put(&mut self, at: Revision, key: &[u8], value: &[u8], lease: i64) {
        let changes = self.history.entry(key.to_vec()).or_default();
        let before = changes.last().and_then(|(_, record)| record.as_ref());
        let (create, version) =
            before.map_or((at.main, 1), |before| (before.create, before.version + 1));
        changes.push((at, Some(ModelRecord { create, version, value: value.to_vec(), lease })));
    }

    pub(super) fn delete(&mut self, at: Revision, key: &[u8]) {
        self.history.get_mut(key).unwrap().push((at, None));
    }

    /// Returns all changes with `from <= main <= to`, as watchers would receive them.
    pub(super) fn changes(
        &self,
        from: i64,
        to: i64,
    ) -> Vec<(Revision, Vec<u8>, Option<ModelRecord>)> {
        let mut found: Vec<_> = self
            .history
            .iter()
            .flat_map(|(key, changes)| {
                changes.iter().map(|(at, record)| (*at, key.clone(), record.clone()))
            })
            .filter(|(at, _, _)| (from..=to).contains(&at.main) && !self.gone.contains(at))
            .collect();
        found.sort_by_key(|(at, _, _)| *at);
        found
    }

    pub(super) fn range(
        &self,
        query: &RangeQuery,
    ) -> Result<(Vec<KeyValue>, bool, i64), MvccRefusal> {
        let revision = if query.revision <= 0 { self.current } else { query.revision };
        if revision > self.current {
            return Err(MvccRefusal::FutureRevision);
        }
        if query.revision > 0 && revision < self.compacted {
            return Err(MvccRefusal::Compacted);
        }
        let range = KeyRange::new(&query.key, &query.range_end);
        let mut found: Vec<_> =
            self.at(revision).into_iter().filter(|(key, _)| range.contains(key)).collect();
        let count = i64::try_from(found.len()).unwrap();
        if query.count_only {
            return Ok((Vec::new(), false, count));
        }
        let filters = [
            query.min_mod_revision,
            query.max_mod_revision,
            query.min_create_revision,
            query.max_create_revision,
        ];
        let limit = usize::try_from(query.limit).ok().filter(|limit| *limit > 0);
        if let Some(limit) = limit
            && query.sort_order == SortOrder::None
            && filters == [0; 4]
        {
            found.truncate(limit + 1);
        }
        found.retain(|(_, (at, record))| {
            let [min_mod, max_mod, min_create, max_create] = filters;
            (min_mod == 0 || at.main >= min_mod)
                && (max_mod == 0 || at.main <= max_mod)
                && (min_create == 0 || record.create >= min_create)
                && (max_create == 0 || record.create <= max_create)
        });
        found.sort_by(|(a_key, (a_at, a)), (b_key, (b_at, b))| {
            let ordering = match query.sort_target {
                SortTarget::Key => a_key.cmp(b_key),
                SortTarget::Version => a.version.cmp(&b.version),
                SortTarget::Create => a.create.cmp(&b.create),
                SortTarget::Mod => a_at.main.cmp(&b_at.main),
                SortTarget::Value => a.value.cmp(&b.value),
            };
            if query.sort_order == SortOrder::Descend { ordering.reverse() } else { ordering }
        });
        let more = limit.is_some_and(|limit| found.len() > limit);
        found.truncate(limit.unwrap_or(usize::MAX));
        let from_index = query.keys_only && query.sort_target != SortTarget::Value;
        let kvs = found.iter().map(|(key, (at, record))| {
            let value = if query.keys_only { b"" } else { &record.value[..] };
            let lease = if from_index { 0 } else { record.lease };
            stored(key, *at, &ModelRecord { value: value.to_vec(), lease, ..record.clone() })
        });
        Ok((kvs.collect(), more, count))
    }

    /// Returns the changes that a compaction at `revision` keeps for each key. This implements
    /// etcd's rule for generations literally.
    fn keep(&self, revision: i64, with_closing_tombstone: bool) -> BTreeSet<Revision> {
        let mut keep = BTreeSet::new();
        for changes in self.history.values() {
            let present: Vec<_> =
                changes.iter().filter(|(at, _)| !self.gone.contains(at)).collect();
            let mut generations: Vec<&[&(Revision, Option<ModelRecord>)]> =
                present.split_inclusive(|(_, record)| record.is_none()).collect();
            // The last generation is the open one, which may be empty.
            if generations
                .last()
                .is_none_or(|last| last.last().is_some_and(|(_, record)| record.is_none()))
            {
                generations.push(&[]);
            }
            let last = generations.len() - 1;
            let chosen = generations[..last]
                .iter()
                .find(|changes| changes.last().is_some_and(|(at, _)| at.main >= revision))
                .unwrap_or(&generations[last]);
            let newest = chosen.iter().rfind(|(at, _)| at.main <= revision);
            if let Some((at, record)) = newest
                && (with_closing_tombstone || record.is_some())
            {
                keep.insert(*at);
            }
        }
        keep
    }

    pub(super) fn finish_compaction(&mut self, revision: i64) {
        let keep = self.keep(revision, true);
        let all = self.history.values().flatten().map(|(at, _)| *at);
        let gone: Vec<_> = all.filter(|at| at.main <= revision && !keep.contains(at)).collect();
        self.gone.extend(gone);
    }

    /// Returns the changes whose records still exist, in order.
    pub(super) fn kept(&self) -> Vec<Revision> {
        let all = self.history.values().flatten().map(|(at, _)| *at);
        let kept: BTreeSet<_> = all.filter(|at| !self.gone.contains(at)).collect();
        kept.into_iter().collect()
    }

    /// Returns the hash of the records up to `revision`.
    pub(super) fn hash(&self, compacted: i64, revision: i64, for_compaction: bool) -> u32 {
        let keep = self.keep(revision, for_compaction);
        let mut records: Vec<_> = self
            .history
            .iter()
            .flat_map(|(key, changes)| changes.iter().map(move |(at, record)| (*at, key, record)))
            .filter(|(at, _, _)| !self.gone.contains(at))
            .collect();
        records.sort_by_key(|(at, _, _)| *at);
        let mut hash = crc32c::crc32c(b"key");
        for (at, key, record) in records {
            let tombstone = record.is_none();
            if at.main > revision
                || (at.main <= compacted && !keep.is_empty() && !keep.contains(&at))
                || (at.main == compacted && tombstone)
            {
                continue;
            }
            let value = match record {
                Some(record) => stored(key, at, record),
                None => KeyValue::new(&Fields { key, ..Fields::default() }),
            };
            let key = RecordKey { revision: at, tombstone }.encode();
            hash = crc32c::crc32c_append(hash, key.as_ref());
            hash = crc32c::crc32c_append(hash, value.encoded());
        }
        hash
    }
}

pub(super) fn stored(key: &[u8], at: Revision, record: &ModelRecord) -> KeyValue {
    KeyValue::new(&Fields {
        key,
        create_revision: record.create,
        mod_revision: at.main,
        version: record.version,
        value: &record.value,
        lease: record.lease,
    })
}
