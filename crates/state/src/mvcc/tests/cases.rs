//! Cases that a random run rarely or never reaches.

use super::*;
use crate::backend::BackendView;
use crate::steps;

fn put(store: &mut Store, batch: &mut Batch, key: &[u8], value: &[u8]) -> Put {
    let mut txn = store.write(batch);
    let put = txn.put(key, value, 0);
    assert!(txn.finish().is_some());
    put
}

fn whole(revision: i64) -> RangeQuery {
    let zero: Bytes = b"\0"[..].into();
    RangeQuery { key: zero.clone(), range_end: zero, revision, ..RangeQuery::default() }
}

fn kept(view: &BackendView) -> Vec<String> {
    let mut kept = Vec::new();
    view.scan(Bucket::Key, |key, _| {
        let key = RecordKey::decode(key).unwrap();
        kept.push(format!("{}{}", key.revision, if key.tombstone { "t" } else { "" }));
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    kept
}

#[test]
fn an_entry_without_effect_does_not_use_a_revision() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    let mut txn = store.write(&mut batch);
    assert_eq!(txn.delete_range(KeyRange::new(b"a", b"\0")), []);
    assert_eq!(txn.revision(), 1);
    assert!(txn.finish().is_none());
    assert_eq!((store.current_revision(), batch.op_count()), (1, 0));
}

#[test]
fn future_and_compacted_revisions_are_refused() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    assert_eq!(store.schedule_compaction(-1, &mut batch), Err(MvccRefusal::Compacted));
    assert_eq!(store.schedule_compaction(2, &mut batch), Err(MvccRefusal::FutureRevision));
    assert!(store.schedule_compaction(0, &mut batch).is_ok());
    assert_eq!(store.schedule_compaction(0, &mut batch), Err(MvccRefusal::Compacted));
    put(&mut store, &mut batch, b"a", b"");
    assert!(store.schedule_compaction(2, &mut batch).is_ok());
    let refusal = |revision| match store.snapshot().range(&whole(revision)) {
        Err(MvccError::Refusal(refusal)) => Some(refusal),
        Err(MvccError::Fault(fault)) => panic!("{fault}"),
        Ok(_) => None,
    };
    assert_eq!(refusal(3), Some(MvccRefusal::FutureRevision));
    assert_eq!(refusal(1), Some(MvccRefusal::Compacted));
    assert_eq!((refusal(2), refusal(0), refusal(-5)), (None, None, None));
}

#[test]
fn a_key_deleted_and_put_at_one_revision_survives_a_compaction_at_that_revision() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"k", b"old");
    let mut txn = bed.store.write(&mut bed.batch);
    assert_eq!(txn.delete_range(KeyRange::From(b"k")).len(), 1);
    txn.put(b"k", b"new", 0);
    let changes = txn.finish().unwrap();
    // Watchers receive both changes. The previous value of the deletion is the value before the entry, and the put has
    // no previous value.
    let kinds: Vec<_> =
        changes.events.iter().map(|change| (change.kind, change.previous)).collect();
    let old = Revision::new(2, 0);
    assert_eq!(
        kinds,
        [(ChangeKind::Delete, Previous::At(old)), (ChangeKind::Put, Previous::Absent)]
    );
    bed.store.schedule_compaction(3, &mut bed.batch).unwrap();
    while bed.store.next_garbage(10, &mut bed.batch).more {}
    bed.commit();
    let view = bed.view();
    assert_eq!(view.range(&whole(3)).unwrap().kvs[0].value(), b"new");
    assert_eq!(kept(&bed.backend.read()), ["3/0t", "3/1"]);
    let (store, _) = Store::recover(&open_again(&bed), OPTIONS).unwrap();
    assert_eq!(store.snapshot().range(&whole(0)).unwrap().kvs[0].value(), b"new");
}

#[test]
fn a_key_deleted_and_put_by_one_entry_is_hashed_as_in_etcd() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"a", b"before");
    let mut txn = bed.store.write(&mut bed.batch);
    txn.delete_range(KeyRange::From(b"a"));
    txn.put(b"a", b"after", 0);
    drop(txn.finish());
    bed.store.schedule_compaction(2, &mut bed.batch).unwrap();
    while bed.store.next_garbage(10, &mut bed.batch).more {}
    bed.commit();
    // etcd 3.5.16 computes this hash, because it treats the key as deleted at that revision and so leaves no record
    // out.
    let at_once = bed.view().hash_kv(3).unwrap();
    assert_eq!((at_once.hash, at_once.compact_revision), (2_836_943_625, 2));
    let later = |bed: &mut Bed| bed.view().hash_kv(3).unwrap();
    put(&mut bed.store, &mut bed.batch, b"a", b"later");
    assert_eq!(later(&mut bed), at_once);
    let mut txn = bed.store.write(&mut bed.batch);
    txn.delete_range(KeyRange::From(b"a"));
    drop(txn.finish());
    assert_eq!(later(&mut bed), at_once);
    let snapshot_says = [2, 3, 4, 5].map(|revision| {
        let view = bed.view();
        let snapshot = view.snapshot();
        let entry = snapshot.tree.get(b"a").unwrap();
        snapshot.is_deleted_at(entry, revision)
    });
    assert_eq!(snapshot_says, [false, true, false, true]);
}

#[test]
fn the_newest_hash_differs_from_the_hash_of_a_compaction_at_revision_zero() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"k", b"v");
    let compaction = bed.store.schedule_compaction(0, &mut bed.batch).unwrap();
    bed.commit();
    let view = bed.view();
    let of_nothing = view.hash_compaction(&compaction).unwrap().unwrap();
    assert_eq!(of_nothing.hash_revision, 0);
    let newest = view.hash_kv(0).unwrap();
    assert_eq!(newest.hash_revision, view.current_revision());
    assert_ne!(newest.hash, of_nothing.hash);
}

#[test]
fn a_hash_for_comparison_uses_the_other_members_compact_revision() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"k", b"v1");
    put(&mut bed.store, &mut bed.batch, b"k", b"v2");
    let before = bed.view().hash_kv(3).unwrap();
    let compaction = bed.store.schedule_compaction(3, &mut bed.batch).unwrap();
    bed.commit();
    let of_compaction = bed.view().hash_compaction(&compaction).unwrap().unwrap();
    while bed.store.next_garbage(10, &mut bed.batch).more {}
    bed.commit();
    assert_eq!(of_compaction, before);
    let view = bed.view();
    assert_eq!(view.hash_kv(3).unwrap(), of_compaction);
    assert_eq!(view.hash_kv_to_compare(3, Some(-1)).unwrap(), of_compaction);
    let computed = view.hash_kv_to_compare(3, Some(3)).unwrap();
    assert_eq!(computed, view.hash_kv(0).unwrap());
    assert_eq!(computed.compact_revision, 3);
    assert_ne!(computed.hash, of_compaction.hash);
}

#[test]
fn both_changes_of_a_key_in_one_entry_have_the_value_before_the_entry_as_previous_value() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"k", b"before");
    let mut txn = bed.store.write(&mut bed.batch);
    txn.put(b"k", b"between", 0);
    txn.put(b"n", b"", 0);
    txn.delete_range(KeyRange::From(b"k"));
    let changes = txn.finish().unwrap();
    bed.commit();
    let view = bed.view();
    let found = changes_since(&view, 3, 10);
    for changes in [&changes, &found[0]] {
        let previous = changes.events.iter().map(|change| {
            view.previous_record(3, change).unwrap().map(|record| record.value().to_vec())
        });
        let before = Some(b"before".to_vec());
        assert_eq!(previous.collect::<Vec<_>>(), [before.clone(), None, before, None]);
    }
}

#[test]
fn a_restore_marker_compacts_all_revisions_and_is_not_an_event() {
    let bed = Bed::new();
    let mut batch = Batch::new();
    let record = |key: &[u8], main| {
        let fields = Fields {
            key,
            create_revision: main,
            mod_revision: main,
            version: 1,
            ..Fields::default()
        };
        KeyValue::new(&fields).encoded().clone()
    };
    let at = |main| RecordKey { revision: Revision::new(main, 0), tombstone: false };
    batch.put_record(at(2), record(b"a", 2));
    batch.put_record(at(3), record(b"a", 3));
    batch.put_record(at(1_000_003), Bytes::new());
    batch.put_compaction(meta::SCHEDULED_COMPACTION, 1_000_003);
    bed.backend.commit(&batch).unwrap();
    let (mut store, recovered) = Store::recover(&bed.backend, OPTIONS).unwrap();
    assert_eq!(recovered.resume_compaction, Some(1_000_003));
    assert_eq!((store.current_revision(), store.compacted_revision()), (1_000_003, 1_000_003));
    let mut batch = Batch::new();
    while store.next_garbage(10, &mut batch).more {}
    bed.backend.commit(&batch).unwrap();
    assert_eq!(kept(&bed.backend.read()), ["3/0", "1000003/0"]);
    for _ in 0..2 {
        let listed = store.snapshot().range(&whole(0)).unwrap();
        assert_eq!((listed.count, listed.kvs[0].key()), (1, &b"a"[..]));
        assert_eq!(changes_since(&store.reader().view(), 1_000_003, 10), []);
        assert_eq!(put(&mut store, &mut Batch::new(), b"b", b"").revision.main, 1_000_004);
        store = Store::recover(&bed.backend, OPTIONS).unwrap().0;
    }
}

#[test]
fn the_fault_for_an_invalid_record_names_the_file_and_the_entry() {
    let bed = Bed::new();
    let good = RecordKey { revision: Revision::new(2, 0), tombstone: false };
    let db = bed.backend.db();
    let mut tx = db.write().unwrap();
    tx.put(b"key", good.encode().as_ref(), Bytes::from_static(b"\x0a\x01a")).unwrap();
    tx.put(b"key", b"no revision", Bytes::new()).unwrap();
    tx.commit().unwrap();
    let fault = Store::recover(&bed.backend, OPTIONS).map(|_| ()).unwrap_err();
    let text = fault.to_string();
    let path = bed.backend.db().path().display().to_string();
    for part in [&path, "bucket key", "no revision", "entry 1", "the key is not a revision"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[test]
fn the_fault_for_a_missing_record_names_its_revision() {
    let mut bed = Bed::new();
    put(&mut bed.store, &mut bed.batch, b"k", b"");
    for _ in 0..2000 {
        put(&mut bed.store, &mut bed.batch, b"other", &[0; 600]);
    }
    bed.batch.delete_record(RecordKey { revision: Revision::new(2, 0), tombstone: false });
    bed.commit();
    let view = bed.view();
    let query = RangeQuery { key: b"k"[..].into(), ..RangeQuery::default() };
    let fault = view.range(&query).unwrap_err().to_string();
    assert!(fault.contains("2/0") && fault.contains("missing"), "{fault}");
}

#[test]
fn a_count_at_an_earlier_revision_visits_no_keys_if_few_changes_followed() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    for n in 0..50_u8 {
        put(&mut store, &mut batch, &[b'k', n], &[n]);
    }
    let revision = store.current_revision();
    let range = KeyRange::Between(b"k", b"l");
    let known = |store: &mut Store, revision| {
        store.publish();
        store.reader().view().snapshot().known_count(range, revision)
    };
    put(&mut store, &mut batch, b"kx", b"created");
    put(&mut store, &mut batch, b"kx", b"changed");
    put(&mut store, &mut batch, b"other", b"");
    store.write(&mut batch).delete_range(KeyRange::Between(b"k\0", b"k\x0a"));
    assert_eq!(known(&mut store, revision), Some(50));
    assert_eq!(known(&mut store, revision + 1), Some(51));
    let newest = store.current_revision();
    assert_eq!(known(&mut store, newest), Some(41));
    for _ in 0..40 {
        put(&mut store, &mut batch, b"other", b"");
    }
    assert_eq!(known(&mut store, revision), None, "the changes outnumber the keys");
    assert_eq!(known(&mut store, newest), Some(41));
    assert_eq!(known(&mut store, 1), None);
}

#[test]
fn reads_at_the_newest_revision_skip_deleted_keys() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    // The elements of a queue are put and then deleted in the order of their keys.
    for n in 0..20_000_u16 {
        put(&mut store, &mut batch, &n.to_be_bytes(), b"");
    }
    let all = KeyRange::From(b"");
    assert_eq!(store.write(&mut batch).delete_range(all).len(), 20_000);
    put(&mut store, &mut batch, &20_000_u16.to_be_bytes(), b"");
    put(&mut store, &mut batch, &20_001_u16.to_be_bytes(), b"");
    for n in 20_002..40_000_u16 {
        put(&mut store, &mut batch, &n.to_be_bytes(), b"");
    }
    store.write(&mut batch).delete_range(KeyRange::From(&20_002_u16.to_be_bytes()));
    store.publish();
    let view = store.reader().view();
    for (limit, found) in [(1, 1), (2, 2), (3, 2), (0, 2)] {
        for sort_order in [SortOrder::None, SortOrder::Descend] {
            let query = RangeQuery { limit, sort_order, ..whole(0) };
            let visited = steps::of(|| {
                let result = view.range(&query).unwrap();
                assert_eq!((result.kvs.len(), result.count), (found, 2));
            });
            assert!(visited <= 128, "{visited} visited keys with the limit {limit}");
        }
    }
    let visited = steps::of(|| {
        let mut live = Vec::new();
        view.snapshot().for_each_live(all, |key, _| {
            live.push(key.to_vec());
            ControlFlow::Continue(())
        });
        assert_eq!(live, [20_000, 20_001].map(|n: u16| n.to_be_bytes().to_vec()));
    });
    assert!(visited <= 128, "{visited} visited keys");
}

#[test]
fn the_cost_of_a_range_includes_the_deleted_keys_that_it_may_visit() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    for n in 0..10_000_u16 {
        put(&mut store, &mut batch, &n.to_be_bytes(), b"");
    }
    let revision = store.current_revision();
    let cost = |store: &mut Store, query: &RangeQuery| {
        store.publish();
        let cost = store.reader().view().range_cost(query);
        (cost.records, cost.visited)
    };
    let [newest, past] = [0, revision].map(whole);
    assert_eq!(cost(&mut store, &newest), (10_000, 10_000));
    assert_eq!(cost(&mut store, &RangeQuery { limit: 10, ..newest.clone() }), (10, 11));
    store.write(&mut batch).delete_range(KeyRange::Between(&[0, 0], &[39, 0]));
    // 16 live keys remain.
    let limited = |query: &RangeQuery| RangeQuery { limit: 1, ..query.clone() };
    let counting = |query: &RangeQuery| RangeQuery { count_only: true, ..query.clone() };
    let sorted = |query| RangeQuery { sort_target: SortTarget::Mod, ..limited(query) };
    let descending = |query| RangeQuery { sort_order: SortOrder::Descend, ..sorted(query) };
    assert_eq!(cost(&mut store, &past), (10_000, 10_000));
    assert_eq!(cost(&mut store, &limited(&past)), (1, 10_000));
    assert_eq!(cost(&mut store, &counting(&past)), (0, 10_000));
    assert_eq!(cost(&mut store, &counting(&newest)), (0, 0));
    let (records, visited) = cost(&mut store, &limited(&newest));
    assert_eq!(records, 1);
    assert!(visited < 300, "{visited} visited keys");
    let (records, visited) = cost(&mut store, &descending(&newest));
    assert_eq!(records, 16);
    assert!(visited < 2000, "{visited} visited keys");
    let one = RangeQuery { key: b"k"[..].into(), revision, ..RangeQuery::default() };
    assert_eq!(cost(&mut store, &one), (0, 0));
}

#[test]
fn later_pages_of_a_list_use_the_pinned_index() {
    let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
    for n in 0..100_u8 {
        put(&mut store, &mut batch, &[b'k', n], &[n]);
    }
    store.publish();
    let first = store.reader().view().range(&RangeQuery { limit: 10, ..whole(0) }).unwrap();
    assert_eq!((first.kvs.len(), first.more, first.count), (10, true, 100));
    for n in 0..100_u8 {
        store.write(&mut batch).delete_range(KeyRange::One(&[b'k', n]));
    }
    store.publish();
    let next = RangeQuery { key: vec![b'k', 10].into(), limit: 10, ..whole(first.revision) };
    let page = store.reader().view().range(&next).unwrap();
    assert_eq!((page.kvs[0].value(), page.more, page.count), (&[10][..], true, 90));
    assert_eq!(page.revision, store.current_revision());
    // A compaction above the pinned revision drops the pinned index, so the next page is refused.
    store.schedule_compaction(first.revision + 50, &mut batch).unwrap();
    store.publish();
    let refused = store.reader().view().range(&next);
    assert!(matches!(refused, Err(MvccError::Refusal(MvccRefusal::Compacted))));
}

#[test]
fn existing_readers_switch_to_the_new_store_after_a_replacement() {
    let (mut old, mut new) =
        (Store::new(StoreOptions::default()), Store::new(StoreOptions::default()));
    let reader = old.reader();
    let mut batch = Batch::new();
    put(&mut old, &mut batch, b"old", b"");
    old.publish();
    for _ in 0..3 {
        put(&mut new, &mut batch, b"new", b"");
    }
    new.replace(old);
    let view = reader.view();
    assert_eq!(view.current_revision(), 4);
    assert!(view.snapshot().get(b"new").is_some() && view.snapshot().get(b"old").is_none());
}

#[test]
fn the_backend_hash_excludes_member_specific_rows() {
    let bed = Bed::new();
    let before = bed.backend.read().hash().unwrap();
    let mut batch = Batch::new();
    batch.set_consistent_index(7, 2);
    batch.put(Bucket::Meta, meta::STORAGE_VERSION, &b"3.7.0"[..]);
    let committed = bed.backend.commit(&batch).unwrap();
    assert_eq!(committed.view.consistent_index().unwrap(), (7, 2));
    assert_eq!(committed.view.hash().unwrap(), before);
    let mut batch = Batch::new();
    batch.set_conf_state(&b"{}"[..]);
    let committed = bed.backend.commit(&batch).unwrap();
    assert_eq!(committed.view.conf_state().unwrap(), Some(Bytes::from_static(b"{}")));
    let mut expected = 0;
    for bucket in Bucket::ALL {
        expected = crc32c::crc32c_append(expected, bucket.name());
        for (key, value) in committed.view.entries(bucket).unwrap() {
            if bucket != Bucket::Meta || &key[..] == meta::CONF_STATE {
                expected = crc32c::crc32c_append(crc32c::crc32c_append(expected, &key), &value);
            }
        }
    }
    assert_ne!(expected, before);
    assert_eq!(committed.view.hash().unwrap(), expected);
}

#[test]
fn an_unknown_sort_order_or_target_counts_as_the_default() {
    use quorate_api::etcdserverpb::RangeRequest;

    let request = |sort_order, sort_target| RangeRequest {
        sort_order,
        sort_target,
        ..RangeRequest::default()
    };
    let query = RangeQuery::from_request(&request(2, 4));
    assert_eq!((query.sort_order, query.sort_target), (SortOrder::Descend, SortTarget::Value));
    for (order, target) in [(3, 0), (0, 5), (-1, 0)] {
        assert_eq!(RangeQuery::from_request(&request(order, target)), RangeQuery::default());
    }
}
