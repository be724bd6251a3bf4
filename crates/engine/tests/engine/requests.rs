//! Tests requests to one server: their responses, and the data after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_engine::{Engine, EngineError, EngineOptions};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{Refusal, Response};
use quorate_state::backend::Batch;
use quorate_state::lease::{LeaseRecord, LeaseRefusal};
use quorate_state::mvcc::{RangeQuery, SortOrder, SortTarget};
use quorate_state::schema::Bucket;
use quorate_state::units::LeaseId;

use crate::postgres::{shared, worker_count};
use crate::proxy::{Action, Fault, Proxy};
use crate::support::{
    compaction, delete, eventually, nobody, options, propose, put, put_at, put_request, range_of,
    read, shown, start_one,
};

const ALL: &[u8] = &[0];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_survive_a_restart_of_the_server() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("keys_survive");
    let engine = start_one(&url).await;
    assert_eq!(put_at(&engine, "a", "1").await, 2);
    assert_eq!(put_at(&engine, "b", "2").await, 3);
    assert_eq!(put_at(&engine, "a", "3").await, 4);
    let found = read(&engine, &range_of("a", ALL)).await.unwrap();
    assert_eq!(
        (shown(&found), found.revision, found.count),
        (vec!["a=3".into(), "b=2".into()], 4, 2)
    );
    let fields = found.kvs[0].fields();
    assert_eq!((fields.create_revision, fields.mod_revision, fields.version), (2, 4, 2));
    let deleted = propose(&engine, delete("b", b"")).await.unwrap();
    let Response::DeleteRange(deleted) = deleted else { panic!("{deleted:?}") };
    assert_eq!((deleted.deleted, deleted.prev_kvs[0].value()), (1, &b"2"[..]));
    engine.stop().await;
    drop(engine);

    let engine = start_one(&url).await;
    let found = read(&engine, &range_of("a", ALL)).await.unwrap();
    assert_eq!((shown(&found), found.revision), (vec!["a=3".into()], 5));
    for (revision, expected) in
        [(2, vec!["a=1"]), (3, vec!["a=1", "b=2"]), (4, vec!["a=3", "b=2"]), (5, vec!["a=3"])]
    {
        let query = RangeQuery { revision, ..range_of("a", ALL) };
        assert_eq!(shown(&read(&engine, &query).await.unwrap()), expected, "at {revision}");
    }
    let future = RangeQuery { revision: 6, ..range_of("a", ALL) };
    assert_eq!(read(&engine, &future).await, Err(Refusal::FutureRevision));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_truncates_the_page_but_not_the_count() {
    let Some(postgres) = shared() else { return };
    let engine = start_one(&postgres.url("pages")).await;
    for number in 0..50 {
        put_at(&engine, &format!("k{number:02}"), "v").await;
    }
    propose(&engine, delete("k01", b"")).await.unwrap();
    // The responses must be the same while the changes are in the tail and after they have been written
    // to the tables.
    for round in 0..2 {
        let page = RangeQuery { limit: 3, ..range_of("k", b"l") };
        let found = read(&engine, &page).await.unwrap();
        assert_eq!(shown(&found), ["k00=v", "k02=v", "k03=v"], "round {round}");
        assert_eq!((found.more, found.count), (true, 49));
        let descending = RangeQuery {
            limit: 2,
            sort_order: SortOrder::Descend,
            keys_only: true,
            ..range_of("k", b"l")
        };
        let found = read(&engine, &descending).await.unwrap();
        assert_eq!((shown(&found), found.more), (vec!["k49=".into(), "k48=".into()], true));
        let newest = RangeQuery {
            limit: 1,
            sort_order: SortOrder::Descend,
            sort_target: SortTarget::Mod,
            min_mod_revision: 5,
            max_mod_revision: 20,
            ..range_of("k", b"l")
        };
        let found = read(&engine, &newest).await.unwrap();
        assert_eq!((shown(&found), found.count), (vec!["k18=v".into()], 49));
        let old = RangeQuery { revision: 4, limit: 2, ..range_of("k", b"l") };
        let found = read(&engine, &old).await.unwrap();
        assert_eq!(
            (shown(&found), found.more, found.count),
            (vec!["k00=v".into(), "k01=v".into()], true, 3)
        );
        // Lists the range in pages at one revision, while a key changes between the pages.
        let revision = engine.status().revision;
        let (mut listed, mut next) = (Vec::new(), Bytes::from_static(b"k"));
        loop {
            let page = RangeQuery { key: next, limit: 10, revision, ..range_of("k", b"l") };
            let found = read(&engine, &page).await.unwrap();
            assert_eq!(found.count, 49 - i64::try_from(listed.len()).unwrap());
            listed.extend(shown(&found));
            if !found.more {
                break;
            }
            next = [found.kvs[9].key(), &[0]].concat().into();
            put_at(&engine, "k02", "v").await;
        }
        assert_eq!(listed.len(), 49);
        let count = RangeQuery { count_only: true, ..range_of("k1", b"k3") };
        assert_eq!(read(&engine, &count).await.unwrap().count, 20);
        wait_written(&engine).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_counts_a_range_only_once_even_if_its_keys_change() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "counts")).await;
    for number in 0..20 {
        put_at(&engine, &format!("k{number:02}"), "v").await;
    }
    proxy.set_faults(vec![Fault { text: counting(), action: Action::Count, period: 1 }]);
    let page = RangeQuery { limit: 3, ..range_of("k", b"l") };
    let count = RangeQuery { count_only: true, ..range_of("k", b"l") };
    assert_eq!(read(&engine, &page).await.unwrap().count, 20);
    let first = engine.status().revision;
    for round in 0..10 {
        put_at(&engine, &format!("new{round}"), "outside the range").await;
        put_at(&engine, "k19", "changed").await;
        put_at(&engine, &format!("k1{round}x"), "created").await;
        propose(&engine, delete(&format!("k1{round}x"), b"")).await.unwrap();
        propose(&engine, delete(&format!("k0{round}"), b"")).await.unwrap();
        assert_eq!(read(&engine, &page).await.unwrap().count, 19 - round, "round {round}");
        assert_eq!(read(&engine, &count).await.unwrap().count, 19 - round, "round {round}");
        wait_written(&engine).await;
    }
    let old = RangeQuery { revision: first, ..page };
    assert_eq!(read(&engine, &old).await.unwrap().count, 20);
    assert_eq!(proxy.injected(), 1, "statements that counted the range");
    engine.stop().await;
}

/// Returns the beginning of the statement that counts the keys of a range.
pub(crate) fn counting() -> &'static str {
    if worker_count() == 0 { "SELECT l.place" } else { "SELECT count(*)" }
}

/// Creates keys in one transaction for every hundred keys.
pub(crate) async fn create(engine: &Engine, names: &[String]) {
    for names in names.chunks(100) {
        let success = names.iter().map(|name| pb::RequestOp {
            request: put(name, "v").put.map(pb::request_op::Request::RequestPut),
        });
        let txn = pb::TxnRequest { success: success.collect(), ..pb::TxnRequest::default() };
        let txn = Some(txn);
        propose(engine, pb::InternalRaftRequest { txn, ..Default::default() }).await.unwrap();
    }
}

/// The database counts only the keys outside of the spans into which an earlier count has divided the
/// range. The spans follow all changes, whether they are in the tail or in the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_ranges_that_overlap_a_counted_range_are_exact() {
    const KEYS: usize = 7_000;
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "spans")).await;
    let key = |number: usize| format!("k{number:05}");
    let mut live: BTreeSet<String> = (0..KEYS).map(key).collect();
    create(&engine, &live.iter().cloned().collect::<Vec<_>>()).await;
    let all = RangeQuery { limit: 1, ..range_of(&key(10), ALL) };
    assert_eq!(read(&engine, &all).await.unwrap().count, 6_990);
    proxy.set_faults(vec![Fault { text: counting(), action: Action::Count, period: 1 }]);
    let mut random = SplitMix64::new(7);
    for round in 0..60 {
        for _ in 0..5 {
            // Half of the keys do not exist at the start.
            let name = format!("{}{}", key(random.position(KEYS)), ["", "x"][random.position(2)]);
            if live.remove(&name) {
                propose(&engine, delete(&name, b"")).await.unwrap();
            } else {
                put_at(&engine, &name, "v").await;
                live.insert(name);
            }
        }
        if round % 7 == 0 {
            wait_written(&engine).await;
        }
        let (start, end) = (key(10 + random.position(KEYS)), key(random.position(KEYS)));
        let (query, has_end) = match round % 3 {
            0 => (RangeQuery { limit: 1, ..range_of(&start, ALL) }, false),
            1 => (RangeQuery { count_only: true, ..range_of(&start, ALL) }, false),
            _ => (RangeQuery { count_only: true, ..range_of(&start, end.as_bytes()) }, true),
        };
        let is_in = |name: &&String| **name >= start && (!has_end || **name < end);
        let expected = live.iter().filter(is_in).count();
        let found = read(&engine, &query).await.unwrap().count;
        assert_eq!(usize::try_from(found).unwrap(), expected, "round {round}: {query:?}");
    }
    let bound = if worker_count() == 0 { 2 * 60 } else { u64::MAX };
    assert!((1..=bound).contains(&proxy.injected()), "{} statements", proxy.injected());
    engine.stop().await;
}

/// A statement that counts keys visits a bounded number of keys. Therefore no count of a large range
/// exceeds the time limit of a statement, and the spans remain if the request reaches its own time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_range_is_counted_by_several_statements() {
    const KEYS: i64 = 450_000;
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "large_range")).await;
    let database = connect(&postgres.url("large_range")).await;
    let rows = format!(
        "INSERT INTO large_range.newest SELECT convert_to('k' || lpad(n::text, 7, '0'), 'UTF8'), 1, n, \
         1, 1, 0, false, '' FROM generate_series(1, {KEYS}) n"
    );
    database.execute(&rows, &[]).await.unwrap();
    put_at(&engine, "a", "before").await;
    put_at(&engine, "k0300000x", "between").await;
    proxy.set_faults(vec![Fault { text: counting(), action: Action::Count, period: 1 }]);
    let count = |key| RangeQuery { count_only: true, ..range_of(key, b"l") };
    let all = count("k");
    let (first, second) = tokio::join!(read(&engine, &all), read(&engine, &all));
    assert_eq!([first.unwrap().count, second.unwrap().count], [KEYS + 1; 2]);
    // Both requests may execute the first statement, and one of them executes the other two.
    let whole = proxy.injected();
    put_at(&engine, "k0400000x", "later").await;
    assert_eq!(read(&engine, &count("k0100001")).await.unwrap().count, KEYS + 2 - 100_000);
    if worker_count() == 0 {
        assert!((3..=4).contains(&whole), "{whole} statements that count keys");
        assert_eq!(proxy.injected(), whole + 1);
    }
    engine.stop().await;
}

pub(crate) async fn wait_written(engine: &Engine) {
    for _ in 0..600 {
        if engine.status().backlog_batches == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("timeout: the tables catch up: {:?}", engine.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_removes_old_versions_and_keeps_the_current_ones() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("compaction");
    let engine = start_one(&url).await;
    for value in 1..=20 {
        put_at(&engine, "hot", &value.to_string()).await;
    }
    put_at(&engine, "cold", "1").await;
    put_at(&engine, "gone", "1").await;
    propose(&engine, delete("gone", b"")).await.unwrap();
    let last = put_at(&engine, "hot", "21").await;
    wait_written(&engine).await;
    let stored = engine.status().stored_bytes;
    propose(&engine, compaction(last)).await.unwrap();
    let old = RangeQuery { revision: last - 1, ..range_of("hot", b"") };
    assert_eq!(read(&engine, &old).await, Err(Refusal::Compacted));
    assert_eq!(propose(&engine, compaction(last)).await, Err(Refusal::Compacted));
    assert_eq!(propose(&engine, compaction(last + 100)).await, Err(Refusal::FutureRevision));
    let database = connect(&url).await;
    eventually("the garbage is removed", async || {
        let rows = database.query("SELECT count(*) FROM compaction.versions", &[]).await.unwrap();
        rows[0].get::<_, i64>(0) == 2
    })
    .await;
    let keys = database.query("SELECT key FROM compaction.newest ORDER BY key", &[]).await.unwrap();
    let keys: Vec<&[u8]> = keys.iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, [&b"cold"[..], b"hot"]);
    let at_compaction = RangeQuery { revision: last, ..range_of("a", ALL) };
    let found = read(&engine, &at_compaction).await.unwrap();
    assert_eq!(shown(&found), ["cold=1", "hot=21"]);
    engine.stop().await;
    let engine = start_one(&url).await;
    assert_eq!(shown(&read(&engine, &range_of("a", ALL)).await.unwrap()), ["cold=1", "hot=21"]);
    assert_eq!(read(&engine, &old).await, Err(Refusal::Compacted));
    eventually("a new sequencer reads the size", async || {
        let now = engine.status().stored_bytes;
        0 < now && now < stored
    })
    .await;
    assert_eq!(put_at(&engine, "gone", "2").await, last + 1);
    let found = read(&engine, &range_of("gone", b"")).await.unwrap();
    assert_eq!(found.kvs[0].fields().version, 1);
    engine.stop().await;
}

pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (base, _) = url.split_once('?').unwrap();
    let config: tokio_postgres::Config = base.parse().unwrap();
    let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_compare_read_and_write_in_order() {
    let Some(postgres) = shared() else { return };
    let engine = start_one(&postgres.url("transactions")).await;
    put_at(&engine, "a", "1").await;
    let compare = |value: &'static [u8]| pb::Compare {
        result: pb::compare::CompareResult::Equal.into(),
        target: pb::compare::CompareTarget::Value.into(),
        key: Bytes::from_static(b"a"),
        target_union: Some(pb::compare::TargetUnion::Value(Bytes::from_static(value))),
        ..pb::Compare::default()
    };
    let op = |request| pb::RequestOp { request: Some(request) };
    let write = |key: &'static [u8]| {
        op(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: Bytes::from_static(key),
            value: Bytes::from_static(b"x"),
            prev_kv: true,
            ..pb::PutRequest::default()
        }))
    };
    let all = |revision| {
        op(pb::request_op::Request::RequestRange(pb::RangeRequest {
            key: Bytes::from_static(b"a"),
            range_end: Bytes::from_static(&[0]),
            revision,
            ..pb::RangeRequest::default()
        }))
    };
    let txn = |value, success, failure| pb::InternalRaftRequest {
        txn: Some(pb::TxnRequest { compare: vec![compare(value)], success, failure }),
        ..pb::InternalRaftRequest::default()
    };
    // The first range sees the put of the transaction. The second range names an older revision.
    let request = txn(b"1", vec![write(b"b"), all(0), all(2)], vec![]);
    let Ok(Response::Txn(done)) = propose(&engine, request).await else { panic!("refused") };
    assert!(done.succeeded);
    let ranges: Vec<i64> = done
        .responses
        .iter()
        .filter_map(|response| match &response.response {
            Some(pb::response_op::Response::ResponseRange(range)) => Some(range.count),
            _ => None,
        })
        .collect();
    assert_eq!(ranges, [2, 1]);
    let request = txn(b"2", vec![write(b"c")], vec![all(0)]);
    let Ok(Response::Txn(done)) = propose(&engine, request).await else { panic!("refused") };
    assert!(!done.succeeded);
    let read_only =
        pb::TxnRequest { compare: vec![compare(b"1")], success: vec![all(0)], failure: vec![] };
    let done = engine.read_txn(&read_only, &mut |_| true).await.unwrap().unwrap();
    assert!(done.succeeded);
    assert_eq!(done.header.unwrap().revision, 3);
    let future = pb::TxnRequest { compare: vec![], success: vec![all(99)], failure: vec![] };
    assert_eq!(
        engine.read_txn(&future, &mut |_| true).await.unwrap(),
        Err(Refusal::FutureRevision)
    );
    engine.stop().await;
}

fn grant(id: i64, ttl: i64) -> pb::InternalRaftRequest {
    let lease_grant = Some(pb::LeaseGrantRequest { id, ttl });
    pb::InternalRaftRequest { lease_grant, ..pb::InternalRaftRequest::default() }
}

fn put_with_lease(key: &str, lease: i64) -> pb::InternalRaftRequest {
    put_request(pb::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        lease,
        ..pb::PutRequest::default()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_deletes_its_keys_and_a_renewed_one_keeps_them() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("leases");
    let engine = start_one(&url).await;
    for (id, ttl) in [(1, 2), (2, 2), (3, 600)] {
        propose(&engine, grant(id, ttl)).await.unwrap();
        propose(&engine, put_with_lease(&format!("k{id}"), id)).await.unwrap();
    }
    let unknown = propose(&engine, put_with_lease("k", 99)).await;
    assert_eq!(unknown, Err(Refusal::Lease(LeaseRefusal::NotFound)));
    assert_eq!(engine.renew(LeaseId(99), nobody()).await.unwrap(), Ok(None));
    let renewed = engine.clone();
    let renewals = tokio::spawn(async move {
        loop {
            assert_eq!(renewed.renew(LeaseId(2), nobody()).await.unwrap(), Ok(Some(2)));
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    });
    eventually("the key of the expired lease is deleted", async || {
        shown(&read(&engine, &range_of("k1", b"")).await.unwrap()).is_empty()
    })
    .await;
    assert_eq!(shown(&read(&engine, &range_of("k", b"l")).await.unwrap()), ["k2=", "k3="]);
    assert_eq!(engine.time_to_live(LeaseId(1)).await.unwrap(), None);
    let times = engine.time_to_live(LeaseId(3)).await.unwrap().unwrap();
    assert_eq!(times.granted_secs, 600);
    assert!(times.remaining_secs <= 600 && times.remaining_secs > 500);
    renewals.abort();
    engine.stop().await;

    // A new sequencer loads the leases and the keys that are attached to them.
    let engine = start_one(&url).await;
    let keys = engine.published().leases.keys(LeaseId(3)).unwrap();
    assert_eq!(keys.iter().map(|key| &key[..]).collect::<Vec<_>>(), [b"k3"]);
    let revoke = Some(pb::LeaseRevokeRequest { id: 3 });
    let revoke = pb::InternalRaftRequest { lease_revoke: revoke, ..Default::default() };
    propose(&engine, revoke).await.unwrap();
    assert!(shown(&read(&engine, &range_of("k3", b"")).await.unwrap()).is_empty());
    assert!(!engine.published().leases.contains(LeaseId(3)));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_exceeds_the_quota_raises_the_nospace_alarm() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("quota");
    let mut limited = options(&url, 1);
    limited.state.quota_bytes = 2_000;
    let network = Arc::new(crate::support::Network::default());
    let engine = Engine::start(limited, network).await.unwrap();
    let value = "x".repeat(1_000);
    put_at(&engine, "a", &value).await;
    wait_written(&engine).await;
    assert_eq!(propose(&engine, put("b", &value)).await, Err(Refusal::NoSpace));
    assert!(engine.published().facts().alarms.is_out_of_space());
    assert_eq!(propose(&engine, put("c", "")).await, Err(Refusal::NoSpace));
    propose(&engine, delete("a", b"")).await.unwrap();
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schemas_hold_independent_keyspaces() {
    let Some(postgres) = shared() else { return };
    let blue = start_one(&postgres.url("blue")).await;
    let green = start_one(&postgres.url("green")).await;
    put_at(&blue, "k", "blue").await;
    assert!(shown(&read(&green, &range_of("k", b"")).await.unwrap()).is_empty());
    put_at(&green, "k", "green").await;
    assert_eq!(shown(&read(&blue, &range_of("k", b"")).await.unwrap()), ["k=blue"]);
    blue.stop().await;
    green.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_imported_into_an_empty_keyspace() {
    let Some(postgres) = shared() else { return };
    let source = start_one(&postgres.url("import_from")).await;
    propose(&source, grant(7, 600)).await.unwrap();
    propose(&source, put_with_lease("leased", 7)).await.unwrap();
    for number in 0..30 {
        put_at(&source, &format!("k{}", number % 10), &number.to_string()).await;
    }
    propose(&source, delete("k3", b"")).await.unwrap();
    create(&source, &["pair0".to_owned(), "pair1".to_owned()]).await;
    let dir = tempfile::tempdir().unwrap();
    let snapshot = source.snapshot(dir.path(), std::future::pending()).await.unwrap();
    let before = read(&source, &range_of("a", ALL)).await.unwrap();

    let url = postgres.url("import_to");
    let target = || options(&url, 1).database;
    let imported = quorate_engine::import(target(), 5, &snapshot).await.unwrap();
    assert_eq!((imported.keys, imported.revision), (12, before.revision));
    let again = quorate_engine::import(target(), 5, &snapshot).await.unwrap_err();
    assert!(again.to_string().contains("not empty"), "{again}");
    let engine = start_one(&url).await;
    let after = read(&engine, &range_of("a", ALL)).await.unwrap();
    assert_eq!(after, before);
    // A snapshot of the imported keyspace contains both keys that one transaction created.
    let copy = engine.snapshot(dir.path(), std::future::pending()).await.unwrap();
    let imported =
        quorate_engine::import(options(&postgres.url("import_copy"), 1).database, 5, &copy);
    assert_eq!(imported.await.unwrap().keys, 12);
    let keys = engine.published().leases.keys(LeaseId(7)).unwrap();
    assert_eq!(keys.iter().map(|key| &key[..]).collect::<Vec<_>>(), [b"leased"]);
    assert_eq!(put_at(&engine, "k3", "new").await, before.revision + 1);
    let old = RangeQuery { revision: before.revision - 1, ..range_of("k1", b"") };
    assert_eq!(read(&engine, &old).await, Err(Refusal::Compacted));
    engine.stop().await;

    // A server refuses a keyspace whose import was interrupted, and the import can be repeated.
    let url = postgres.url("import_broken");
    let target = || options(&url, 1).database;
    quorate_engine::import(target(), 5, &snapshot).await.unwrap();
    let database = connect(&url).await;
    database.batch_execute("UPDATE import_broken.format SET format = 0; DELETE FROM import_broken.log WHERE seq = 1; UPDATE import_broken.progress SET written_seq = 0").await.unwrap();
    let network = Arc::new(crate::support::Network::default());
    let refused = Engine::start(options(&url, 1), network).await.unwrap_err();
    assert!(refused.to_string().contains("has not finished"), "{refused}");
    // The repeated import uses a later snapshot, which does not contain one of the keys of the
    // interrupted import.
    propose(&source, delete("k5", b"")).await.unwrap();
    let later = source.snapshot(dir.path(), std::future::pending()).await.unwrap();
    let before = read(&source, &range_of("a", ALL)).await.unwrap();
    let imported = quorate_engine::import(target(), 5, &later).await.unwrap();
    assert_eq!((imported.keys, imported.revision), (11, before.revision));
    let engine = start_one(&url).await;
    assert_eq!(read(&engine, &range_of("a", ALL)).await.unwrap(), before);
    engine.stop().await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_creation_of_the_tables_is_completed_at_the_next_start() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("incomplete");
    start_one(&url).await.stop().await;
    // Simulates a first server that was killed after it had created a few tables.
    let database = connect(&url).await;
    let text = "DELETE FROM incomplete.format; DROP TABLE incomplete.servers, incomplete.sequencer, \
                incomplete.progress, incomplete.facts";
    database.batch_execute(text).await.unwrap();
    let engine = start_one(&url).await;
    put_at(&engine, "k", "1").await;
    assert_eq!(shown(&read(&engine, &range_of("k", b"")).await.unwrap()), ["k=1"]);
    engine.stop().await;
}

/// Returns random letters, which the database cannot compress.
fn random_letters(len: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'A' + u8::try_from(state % 58).unwrap())
    };
    (0..len).map(letter).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_database_cannot_index_is_refused() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("long_keys");
    let engine = start_one(&url).await;
    let long = random_letters(3_000);
    let op = pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(put(&long, "v").put.unwrap())),
    };
    let txn = pb::TxnRequest { failure: vec![op], ..pb::TxnRequest::default() };
    let role = pb::AuthRoleAddRequest { name: long.clone() };
    let hashed_password = "aGFzaA==".to_owned();
    let user = pb::AuthUserAddRequest { name: long.clone(), hashed_password, ..Default::default() };
    for (request, what) in [
        (put(&long, "v"), "a key"),
        (pb::InternalRaftRequest { txn: Some(txn), ..Default::default() }, "a key"),
        (
            pb::InternalRaftRequest { auth_role_add: Some(Box::new(role)), ..Default::default() },
            "a role name",
        ),
        (
            pb::InternalRaftRequest { auth_user_add: Some(Box::new(user)), ..Default::default() },
            "a user name",
        ),
    ] {
        let refused = engine.propose(request).await;
        let Err(error @ EngineError::KeyTooLong { .. }) = refused else { panic!("{refused:?}") };
        let expected =
            format!("{what} is 3000 bytes long, but the database can index at most 2048");
        assert_eq!(error.to_string(), expected);
    }
    put_at(&engine, &random_letters(2_048), "v").await;
    wait_written(&engine).await;
    engine.stop().await;
    let engine = start_one(&url).await;
    put_at(&engine, "after", "v").await;
    assert_eq!(read(&engine, &range_of("A", ALL)).await.unwrap().count, 2);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_versions_no_longer_count_towards_the_quota() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("quota_compaction");
    let mut limited = options(&url, 1);
    limited.state.quota_bytes = 1 << 20;
    let network = Arc::new(crate::support::Network::default());
    let engine = Engine::start(limited, network).await.unwrap();
    let value = "x".repeat(100_000);
    for number in 1..=30 {
        let last = put_at(&engine, "k", &value).await;
        if number % 5 == 0 {
            propose(&engine, compaction(last)).await.unwrap();
            engine.wait_compacted().await.unwrap();
            wait_written(&engine).await;
            assert!(engine.status().stored_bytes < 2 * 100_100, "{:?}", engine.status());
        }
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_deletion_is_written_and_compacted_in_small_statements() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "large_deletion")).await;
    for part in 0..50 {
        let op = |number| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(
                put(&format!("k{:05}", part * 100 + number), "").put.unwrap(),
            )),
        };
        let success = (0..100).map(op).collect();
        let txn = pb::TxnRequest { success, ..pb::TxnRequest::default() };
        let request = pb::InternalRaftRequest { txn: Some(txn), ..Default::default() };
        propose(&engine, request).await.unwrap();
    }
    wait_written(&engine).await;
    let counted = |text| vec![Fault { text, action: Action::Count, period: 1 }];
    proxy.set_faults(counted("INTO large_deletion."));
    propose(&engine, delete("k", b"l")).await.unwrap();
    wait_written(&engine).await;
    // Tables `versions` and `newest` receive 5,000 records each, in statements of at most 2,000
    // records. The log receives one batch.
    let statements = proxy.injected();
    assert!(statements >= 7, "{statements} statements wrote the deletion");
    let last = put_at(&engine, "other", "").await;
    proxy.set_faults(counted("DELETE FROM large_deletion.versions"));
    let before = proxy.injected();
    propose(&engine, compaction(last)).await.unwrap();
    engine.wait_compacted().await.unwrap();
    let statements = proxy.injected() - before;
    // In a Citus database, one step removes the garbage of all batches except the last one.
    assert!(statements >= 6, "{statements} statements removed the versions");
    assert_eq!(
        engine.hash_kv(0, std::future::pending()).await.unwrap().unwrap().compact_revision,
        last
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_lease_has_its_full_lifetime_despite_a_checkpoint() {
    let Some(postgres) = shared() else { return };
    let source = start_one(&postgres.url("checkpoint_from")).await;
    propose(&source, grant(7, 3_600)).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let snapshot = source.snapshot(dir.path(), std::future::pending()).await.unwrap();
    source.stop().await;
    let id = LeaseId(7);
    let lease = LeaseRecord { id, ttl_secs: 3_600, remaining_secs: 60 };
    let mut batch = Batch::new();
    batch.put(Bucket::Lease, LeaseRecord::key(id), lease.encode());
    snapshot.commit(&batch).unwrap();
    let url = postgres.url("checkpoint_to");
    quorate_engine::import(options(&url, 1).database, 5, &snapshot).await.unwrap();
    // Rows that an earlier version of Quorate imported still contain the checkpoint.
    for keeps_checkpoint in [false, true] {
        if keeps_checkpoint {
            let database = connect(&url).await;
            let text = "UPDATE checkpoint_to.facts SET value = $1 WHERE bucket = 7";
            database.execute(text, &[&&lease.encode()[..]]).await.unwrap();
        }
        let engine = start_one(&url).await;
        let times = engine.time_to_live(id).await.unwrap().unwrap();
        assert!(times.remaining_secs > 3_000, "{times:?}, keeps {keeps_checkpoint}");
        assert_eq!(engine.renew(id, nobody()).await.unwrap(), Ok(Some(3_600)));
        engine.stop().await;
    }
}

/// Returns a transaction that puts a key and reads all keys with a prefix.
fn put_and_read(key: &str, prefix: &str, revision: i64) -> pb::InternalRaftRequest {
    let mut range_end = prefix.as_bytes().to_vec();
    *range_end.last_mut().unwrap() += 1;
    let range = pb::RangeRequest {
        key: Bytes::copy_from_slice(prefix.as_bytes()),
        range_end: range_end.into(),
        revision,
        ..pb::RangeRequest::default()
    };
    let requests = [
        pb::request_op::Request::RequestPut(put(key, "v").put.unwrap()),
        pb::request_op::Request::RequestRange(range),
    ];
    let success = requests.map(|request| pb::RequestOp { request: Some(request) }).into();
    let txn = pb::TxnRequest { success, ..pb::TxnRequest::default() };
    pb::InternalRaftRequest { txn: Some(txn), ..Default::default() }
}

/// Starts a server whose batches may load at most 1 MiB of keys and values.
async fn start_with_little_memory(url: &str) -> Engine {
    let limited = EngineOptions { load_bytes_max: 1 << 20, ..options(url, 1) };
    let network = Arc::new(crate::support::Network::default());
    Engine::start(limited, network).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_stops_early_for_a_request_that_needs_too_many_keys() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_with_little_memory(&postgres.url_through(proxy.port, "too_large")).await;
    let value = "x".repeat(200_000);
    for number in 0..100 {
        put_at(&engine, &format!("k{number:02}"), &value).await;
    }
    let last = engine.status().revision;
    wait_written(&engine).await;
    for revision in [0, last] {
        let before = proxy.answered_bytes();
        let refused = engine.propose(put_and_read("other", "k", revision)).await;
        assert!(
            matches!(refused, Err(EngineError::TooLarge { bytes_max: 1_048_576, .. })),
            "{refused:?}"
        );
        // The values total 20 MB. The server tries to load them twice, first for the whole batch and then for the
        // request alone, but stops early both times.
        let bytes = proxy.answered_bytes() - before;
        assert!(bytes < 16_000_000, "the database sent {bytes} bytes");
    }
    put_at(&engine, "after", "1").await;
    assert_eq!(engine.status().epoch, 1);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_together_exceed_the_memory_limit_are_applied_one_by_one() {
    let Some(postgres) = shared() else { return };
    let engine = start_with_little_memory(&postgres.url("fits_alone")).await;
    let value = "x".repeat(50_000);
    for number in 0..60 {
        put_at(&engine, &format!("p{}-{number}", number / 10), &value).await;
    }
    wait_written(&engine).await;
    let read_all = async |index: usize| {
        let request = put_and_read(&format!("q{index}"), &format!("p{index}"), 0);
        let Response::Txn(done) = propose(&engine, request).await.unwrap() else { panic!() };
        let Some(pb::response_op::Response::ResponseRange(range)) = &done.responses[1].response
        else {
            panic!("{done:?}")
        };
        assert_eq!(range.count, 10);
    };
    // Each request needs half of the memory limit.
    for index in 0..6 {
        read_all(index).await;
    }
    tokio::join!(read_all(0), read_all(1), read_all(2), read_all(3), read_all(4), read_all(5));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_responses_list_many_keys_is_divided() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "many_answers")).await;
    for part in 0..50 {
        let op = |number| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(
                put(&format!("k{:05}", part * 100 + number), "").put.unwrap(),
            )),
        };
        let success = (0..100).map(op).collect();
        let txn = pb::TxnRequest { success, ..pb::TxnRequest::default() };
        let request = pb::InternalRaftRequest { txn: Some(txn), ..Default::default() };
        propose(&engine, request).await.unwrap();
    }
    let before = engine.status().log_position;
    // The commit of the first batch is held, so that the other requests wait and form large batches.
    proxy.set_faults(vec![Fault { text: ".log (seq", action: Action::Hold, period: 1 }]);
    let mut requests = tokio::task::JoinSet::new();
    let begun = Arc::<AtomicUsize>::default();
    for number in 0..200 {
        let (engine, begun) = (engine.clone(), Arc::clone(&begun));
        requests.spawn(async move {
            begun.fetch_add(1, Ordering::Relaxed);
            let request = put_and_read(&format!("other{number}"), "k", 0);
            matches!(propose(&engine, request).await, Ok(Response::Txn(_)))
        });
    }
    eventually("a request is being committed", async || {
        proxy.injected() > 0 && begun.load(Ordering::Relaxed) == 200
    })
    .await;
    proxy.set_faults(Vec::new());
    while let Some(done) = requests.join_next().await {
        assert!(done.unwrap());
    }
    // The responses list a million keys in total. A batch accepts no more requests once its responses
    // list 200,000 keys.
    let batches = engine.status().log_position - before;
    assert!(batches >= 5, "{batches} batches");
    engine.stop().await;
}
