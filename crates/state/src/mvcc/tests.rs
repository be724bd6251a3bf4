//! Compares the keyspace, on a real file, with a naive model: writes, reads of every kind,
//! compactions, commits and restarts in any order.

mod cases;
mod golden;
mod model;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quorate_api::record::{Fields, KeyValue};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};
use smallvec::SmallVec;

use self::model::{Model, stored};
use super::*;
use crate::schema::{RecordKey, Revision};

#[derive(Clone, Debug)]
enum Write {
    Put(Vec<u8>, Vec<u8>, i64),
    Delete(Vec<u8>, Vec<u8>),
}

#[derive(Clone, Debug)]
enum Step {
    /// One entry with several writes.
    Entry(Vec<Write>),
    /// A compaction at this distance below the current revision, and whether its deletions run to completion.
    Compact(i64, bool),
    Garbage,
    Commit,
    Hold,
    Reopen,
    Query(RangeQuery),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    (0..24_u8).prop_map(|n| match n {
        0 => b"\0".to_vec(),
        1 => b"\xff\xff".to_vec(),
        2..8 => vec![b'k'; n.into()],
        _ => format!("/registry/{n}").into_bytes(),
    })
}

fn range_end() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), Just(vec![0]), key(), key()]
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        4 => (key(), proptest::collection::vec(0..4_u8, 0..3), 0..3_i64)
            .prop_map(|(key, value, lease)| Write::Put(key, value, lease)),
        1 => (key(), range_end()).prop_map(|(key, end)| Write::Delete(key, end)),
    ]
}

fn query() -> impl Strategy<Value = RangeQuery> {
    let order =
        prop_oneof![Just(SortOrder::None), Just(SortOrder::Ascend), Just(SortOrder::Descend)];
    let target = prop_oneof![
        3 => Just(SortTarget::Key),
        1 => Just(SortTarget::Version),
        1 => Just(SortTarget::Create),
        1 => Just(SortTarget::Mod),
        1 => Just(SortTarget::Value),
    ];
    let bound = || prop_oneof![6 => Just(0_i64), 1 => -2..60_i64];
    let revision = prop_oneof![2 => Just(0_i64), 3 => -3..80_i64];
    let limit = prop_oneof![1 => Just(0_i64), 2 => -1..12_i64];
    let whole = Just((b"\0".to_vec(), b"\0".to_vec()));
    let keys = prop_oneof![1 => whole, 1 => (key(), range_end())];
    (
        keys,
        order,
        target,
        (any::<bool>(), 0..8_u8),
        revision,
        limit,
        [bound(), bound(), bound(), bound()],
    )
        .prop_map(
            |(
                (key, range_end),
                sort_order,
                sort_target,
                (keys_only, count),
                revision,
                limit,
                bounds,
            )| {
                RangeQuery {
                    key: key.into(),
                    range_end: range_end.into(),
                    limit,
                    revision,
                    sort_order,
                    sort_target,
                    keys_only,
                    count_only: count == 0,
                    min_mod_revision: bounds[0],
                    max_mod_revision: bounds[1],
                    min_create_revision: bounds[2],
                    max_create_revision: bounds[3],
                }
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => proptest::collection::vec(write(), 1..2).prop_map(Step::Entry),
        4 => proptest::collection::vec(write(), 2..5).prop_map(Step::Entry),
        1 => (0..20_i64, any::<bool>()).prop_map(|(back, finish)| Step::Compact(back, finish)),
        1 => Just(Step::Garbage),
        2 => Just(Step::Commit),
        1 => Just(Step::Hold),
        1 => Just(Step::Reopen),
        4 => query().prop_map(Step::Query),
    ]
}

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

fn open(path: &Path) -> Backend {
    let mut options = Options::default();
    options.no_sync = true;
    options.map_bytes_min = 1 << 20;
    options.growth_bytes = 64 << 10;
    Backend::open(&disk(), path, options).unwrap()
}

/// With these options, records are dropped from memory as soon as they are in the file.
const OPTIONS: StoreOptions = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 300 };

struct Bed {
    directory: tempfile::TempDir,
    backend: Backend,
    store: Store,
    batch: Batch,
    model: Model,
    held: Vec<(Arc<View>, Model)>,
    /// The revisions of unfinished compactions.
    unfinished: Vec<i64>,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let backend = open(&directory.path().join("db"));
        let (store, recovered) = Store::recover(&backend, OPTIONS).unwrap();
        assert_eq!((recovered.leases.len(), recovered.resume_compaction), (0, None));
        let (batch, model) = (Batch::new(), Model::new());
        Self { directory, backend, store, batch, model, held: Vec::new(), unfinished: Vec::new() }
    }

    fn view(&mut self) -> Arc<View> {
        self.store.publish();
        self.store.reader().view()
    }

    fn entry(&mut self, writes: &[Write]) {
        let before = self.model.clone();
        let main = before.current + 1;
        let mut txn = self.store.write(&mut self.batch);
        let mut touched = std::collections::BTreeSet::new();
        let mut sub = 0;
        for write in writes {
            let at = Revision::new(main, sub);
            let state = self.model.at(main);
            match write {
                // A put after a deletion of the same key is tested separately.
                Write::Put(key, _, _) if touched.contains(key) => continue,
                Write::Put(key, value, lease) => {
                    let put = txn.put(key, value, *lease);
                    assert_eq!(put.revision, at);
                    let previous = state.get(key);
                    assert_eq!(
                        put.previous.map(|version| version.modified),
                        previous.map(|found| found.0)
                    );
                    self.model.put(at, key, value, *lease);
                    sub += 1;
                }
                Write::Delete(key, range_end) => {
                    let range = KeyRange::new(key, range_end);
                    let doomed: Vec<_> =
                        state.iter().filter(|(key, _)| range.contains(key)).collect();
                    let deleted = txn.delete_range(range);
                    assert_eq!(deleted.len(), doomed.len());
                    for (deleted, (key, (modified, record))) in deleted.iter().zip(doomed) {
                        assert_eq!(
                            (&deleted.key[..], deleted.previous.modified),
                            (&key[..], *modified)
                        );
                        let fetched = txn.record(deleted.previous.modified).unwrap();
                        assert_eq!(fetched, stored(key, *modified, record));
                        self.model.delete(Revision::new(main, sub), key);
                        touched.insert(key.clone());
                        sub += 1;
                    }
                }
            }
        }
        assert_eq!(txn.revision(), before.current + i64::from(sub > 0));
        self.model.current = txn.revision();
        let inside = RangeQuery {
            key: b"\0"[..].into(),
            range_end: b"\0"[..].into(),
            ..RangeQuery::default()
        };
        assert_range(txn.range(&inside), &self.model, &inside);
        let changes = txn.finish();
        assert_eq!(changes.is_some(), sub > 0);
        if let Some(changes) = changes {
            let view = self.view();
            check_changes(std::slice::from_ref(&changes), &self.model, main, &view);
        }
    }

    fn commit(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let committed = self.backend.commit(&batch).unwrap();
        self.store.committed(committed);
    }

    fn compact(&mut self, back: i64, finish: bool) {
        let revision = self.model.current - back;
        let idle = self.store.is_compaction_idle();
        let answer = self.store.schedule_compaction(revision, &mut self.batch);
        if revision <= self.model.compacted {
            assert_eq!(answer, Err(MvccRefusal::Compacted));
            return;
        }
        let compaction = answer.unwrap();
        let previous = self.model.compacted;
        assert_eq!(
            compaction,
            Compaction { revision, previous_revision: previous, previous_finished: idle }
        );
        let view = self.view();
        let hash = view.hash_compaction(&compaction).unwrap();
        if idle {
            let expected = self.model.hash(previous, revision, true);
            assert_eq!(hash.map(|hash| hash.hash), Some(expected));
        } else {
            assert_eq!(hash, None);
        }
        self.model.compacted = revision;
        self.unfinished.push(revision);
        while finish && self.garbage(3) {}
    }

    fn garbage(&mut self, count_max: usize) -> bool {
        let step = self.store.next_garbage(count_max, &mut self.batch);
        assert!(step.deleted_count <= count_max);
        if let Some(revision) = step.finished {
            assert_eq!(self.unfinished.remove(0), revision);
            self.model.finish_compaction(revision);
        }
        assert_eq!(step.more, !self.unfinished.is_empty());
        step.more
    }

    fn reopen(&mut self) {
        self.commit();
        self.backend = open_again(self);
        let (store, recovered) = Store::recover(&self.backend, OPTIONS).unwrap();
        self.store = store;
        let leases: Vec<_> = self
            .model
            .at(i64::MAX)
            .into_iter()
            .filter(|(_, (_, record))| record.lease != 0)
            .map(|(key, (_, record))| (Bytes::from(key), record.lease))
            .collect();
        assert_eq!(recovered.leases, leases);
        assert_eq!(recovered.resume_compaction, self.unfinished.last().copied());
        // Only the last compaction is resumed, and it also finishes the earlier ones.
        let mut kept = Vec::new();
        let records = self.backend.read();
        records
            .scan(Bucket::Key, |key, _| {
                kept.push(RecordKey::decode(key).unwrap().revision);
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        if self.unfinished.is_empty() {
            let expected: Vec<_> = self.model.kept();
            assert_eq!(kept, expected);
        }
        let last = self.unfinished.pop();
        self.unfinished.clear();
        self.unfinished.extend(last);
    }

    fn query(&mut self, query: &RangeQuery) {
        let mut query = query.clone();
        if query.revision > 0 {
            query.revision = 1 + query.revision % (self.model.current + 2);
        }
        let view = self.view();
        assert_range(view.range(&query), &self.model, &query);
        // The range runs a second time, because a limited range may have pinned its index.
        assert_range(view.range(&query), &self.model, &query);
    }

    fn check(&mut self) {
        assert_eq!(self.store.current_revision(), self.model.current);
        assert_eq!(self.store.compacted_revision(), self.model.compacted);
        let view = self.view();
        check_view(&view, &self.model, self.unfinished.is_empty());
    }
}

/// Opens a copy of the file, because views that the test still holds keep the original file locked.
fn open_again(bed: &Bed) -> Backend {
    let copy = bed.directory.path().join("copy");
    std::fs::copy(bed.backend.db().path(), &copy).unwrap();
    let fresh = tempfile::tempdir_in(bed.directory.path()).unwrap().keep().join("db");
    std::fs::rename(copy, &fresh).unwrap();
    open(&fresh)
}

fn assert_range(answer: Result<RangeResult, MvccError>, model: &Model, query: &RangeQuery) {
    match (answer, model.range(query)) {
        (Ok(answer), Ok((kvs, more, count))) => {
            assert_eq!(
                (answer.revision, answer.more, answer.count),
                (model.current, more, count),
                "{query:?}"
            );
            assert_eq!(answer.kvs, kvs, "{query:?}");
        }
        (Err(MvccError::Refusal(refusal)), Err(expected)) => {
            assert_eq!(refusal, expected, "{query:?}");
        }
        (answer, expected) => panic!("{query:?}: {answer:?} instead of {expected:?}"),
    }
}

/// Checks every kind of read that has no options.
fn check_view(view: &View, model: &Model, garbage_gone: bool) {
    assert_eq!(view.current_revision(), model.current);
    let first = model.compacted.max(1);
    for revision in first..=model.current {
        let query = RangeQuery {
            key: b"\0"[..].into(),
            range_end: b"\0"[..].into(),
            revision,
            ..RangeQuery::default()
        };
        assert_range(view.range(&query), model, &query);
        let hash = view.hash_kv(revision).unwrap();
        let remembered = view.remembered_hashes().iter().any(|hash| hash.hash_revision == revision);
        // If no key is live, the hash includes garbage, so it depends on the progress of the
        // deletion.
        if !remembered && (garbage_gone || !model.at(revision).is_empty()) {
            assert_eq!(hash.hash, model.hash(model.compacted, revision, false), "at {revision}");
            assert_eq!((hash.compact_revision, hash.hash_revision), (model.compacted, revision));
        }
    }
    let changes = changes_since(view, first + 1, usize::MAX);
    check_changes(&changes, model, first + 1, view);
    let some = changes_since(view, first + 1, 3);
    assert_eq!(some, changes[..changes.len().min(3)]);
    if model.compacted > 0 {
        let refused = view.visit_changes(model.compacted - 1, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(MvccError::Refusal(MvccRefusal::Compacted))));
    }
}

/// Returns the changes of at most `revisions_max` revisions, read back from the view.
fn changes_since(view: &View, from: i64, revisions_max: usize) -> Vec<Changes> {
    let mut found: Vec<Changes> = Vec::new();
    view.visit_changes(from, &mut |past| {
        if found.last().is_none_or(|last| last.revision != past.revision) {
            if found.len() == revisions_max {
                return ControlFlow::Break(());
            }
            found.push(Changes { revision: past.revision, events: SmallVec::new() });
        }
        let record = KeyValue::from_encoded(Bytes::copy_from_slice(past.record));
        assert_eq!(record.key(), past.key);
        let change = Change { kind: past.kind, record, previous: Previous::Unknown };
        found.last_mut().unwrap().events.push(change);
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn check_changes(changes: &[Changes], model: &Model, from: i64, view: &View) {
    let found: Vec<_> = changes
        .iter()
        .flat_map(|changes| changes.events.iter().map(|change| (changes.revision, change)))
        .collect();
    let expected = model.changes(from, model.current);
    assert_eq!(found.len(), expected.len());
    for ((revision, change), (at, key, record)) in found.into_iter().zip(expected) {
        assert_eq!(revision, at.main);
        let (kind, kv) = match &record {
            Some(record) => (ChangeKind::Put, stored(&key, at, record)),
            None => {
                let fields = Fields { key: &key, mod_revision: at.main, ..Fields::default() };
                (ChangeKind::Delete, KeyValue::new(&fields))
            }
        };
        assert_eq!((change.kind, &change.record), (kind, &kv));
        let created = record.is_some_and(|record| record.create == at.main);
        let before = model.at(at.main - 1);
        let previous = before.get(&key).filter(|_| !created && at.main > model.compacted);
        let previous = previous.map(|(at, record)| stored(&key, *at, record));
        assert_eq!(view.previous_record(revision, change).unwrap(), previous);
    }
}

fn run(steps: &[Step], queries: &[RangeQuery]) {
    let mut bed = Bed::new();
    for step in steps {
        match step {
            Step::Entry(writes) => bed.entry(writes),
            Step::Compact(back, finish) => bed.compact(*back, *finish),
            Step::Garbage => {
                bed.garbage(2);
            }
            Step::Commit => bed.commit(),
            Step::Hold => {
                let view = bed.view();
                bed.held.push((view, bed.model.clone()));
            }
            Step::Reopen => bed.reopen(),
            Step::Query(query) => bed.query(query),
        }
    }
    let committed = bed.batch.is_empty();
    let view = bed.view();
    check_view(&view, &bed.model, committed && bed.unfinished.is_empty());
    bed.commit();
    bed.check();
    for query in queries {
        bed.query(query);
    }
    bed.reopen();
    bed.check();
    while bed.garbage(5) {}
    bed.reopen();
    bed.check();
    for query in queries {
        bed.query(query);
    }
    for (view, model) in &bed.held {
        check_view(view, model, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_store_behaves_like_the_model(
        steps in proptest::collection::vec(step(), 1..90),
        queries in proptest::collection::vec(query(), 60),
    ) {
        run(&steps, &queries);
    }
}
