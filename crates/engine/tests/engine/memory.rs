//! Tests how the memory for the rows of reads is counted and bounded.

use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_engine::{Engine, EngineError, EngineOptions};
use quorate_state::mvcc::RangeQuery;

use crate::postgres::{Postgres, shared, worker_count};
use crate::proxy::Proxy;
use crate::requests::wait_written;
use crate::support::{Network, options, put_at, range_of, start_one};

const MIB: u64 = 1 << 20;

/// The length of a value of [`fill`].
const VALUE_BYTES: u64 = 200_000;

/// Adds keys with large values, and waits until they are in the tables.
async fn fill(engine: &Engine, count: usize) {
    let value = "x".repeat(usize::try_from(VALUE_BYTES).unwrap());
    for number in 0..count {
        put_at(engine, &format!("k{number:03}"), &value).await;
    }
    wait_written(engine).await;
}

/// Starts a server that holds 20 MB, and that reaches the database through a proxy.
async fn start_full(postgres: &Postgres, schema: &str) -> (Proxy, Engine) {
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, schema)).await;
    fill(&engine, 100).await;
    (proxy, engine)
}

fn ranges(queries: &[pb::RangeRequest]) -> pb::TxnRequest {
    let range = |range: &pb::RangeRequest| pb::RequestOp {
        request: Some(pb::request_op::Request::RequestRange(range.clone())),
    };
    let success = queries.iter().map(range).collect();
    pb::TxnRequest { success, ..pb::TxnRequest::default() }
}

fn some_keys() -> pb::RangeRequest {
    let (key, range_end) = (Bytes::from_static(b"k00"), Bytes::from_static(b"k01"));
    pb::RangeRequest { key, range_end, ..pb::RangeRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_ends_at_the_first_row_without_room() {
    let Some(postgres) = shared() else { return };
    let (proxy, engine) = start_full(postgres, "without_room").await;
    let before = proxy.answered_bytes();
    let mut most = 0;
    let mut up_to_1_mib = |bytes: u64| {
        most = most.max(bytes);
        bytes <= MIB
    };
    let query = range_of("k", b"l");
    let refused = engine.range(&query, &mut up_to_1_mib).await;
    assert!(matches!(refused, Err(EngineError::NoRoom)), "{refused:?}");
    assert!((MIB..MIB + 2 * VALUE_BYTES).contains(&most), "{most}");
    let bytes = proxy.answered_bytes() - before;
    assert!(bytes < 16_000_000, "the database sent {bytes} bytes");
    // The interrupted statement does not affect later reads.
    assert_eq!(engine.range(&query, &mut |_| true).await.unwrap().unwrap().kvs.len(), 100);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_counts_the_rows_of_all_its_ranges() {
    let Some(postgres) = shared() else { return };
    let engine = start_one(&postgres.url("rows_of_txn")).await;
    fill(&engine, 10).await;
    let (mut last, read) = (0, ranges(&vec![some_keys(); 8]));
    let mut count = |bytes| {
        last = bytes;
        true
    };
    engine.read_txn(&read, &mut count).await.unwrap().unwrap();
    // Each range lists ten keys.
    assert!((80 * VALUE_BYTES..81 * VALUE_BYTES).contains(&last), "{last}");
    let refused = engine.read_txn(&read, &mut |bytes| bytes <= 70 * VALUE_BYTES).await;
    assert!(matches!(refused, Err(EngineError::NoRoom)), "{refused:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_not_in_the_response_are_not_counted_in_the_end() {
    let Some(postgres) = shared() else { return };
    let engine = start_one(&postgres.url("rows_left")).await;
    fill(&engine, 10).await;
    let (mut last, mut most) = (0, 0);
    let mut count = |bytes| {
        (last, most) = (bytes, most.max(bytes));
        true
    };
    let query = RangeQuery { min_mod_revision: 11, ..range_of("k", b"l") };
    assert_eq!(engine.range(&query, &mut count).await.unwrap().unwrap().kvs.len(), 1);
    assert!(most > 10 * VALUE_BYTES && last < 2 * VALUE_BYTES, "{most}, {last}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_exceeds_the_memory_limit_alone_is_refused() {
    let Some(postgres) = shared() else { return };
    let limited =
        EngineOptions { load_bytes_max: 1 << 20, ..options(&postgres.url("read_max"), 1) };
    let engine = Engine::start(limited, Arc::new(Network::default())).await.unwrap();
    fill(&engine, 10).await;
    let mut most = 0;
    let mut count = |bytes: u64| {
        most = most.max(bytes);
        true
    };
    let refused = engine.range(&range_of("k", b"l"), &mut count).await;
    assert!(
        matches!(refused, Err(EngineError::TooLarge { bytes_max: 1_048_576, .. })),
        "{refused:?}"
    );
    assert!(most <= MIB, "{most}");
    let few = pb::RangeRequest { limit: 3, ..some_keys() };
    assert!(
        engine.read_txn(&ranges(std::slice::from_ref(&few)), &mut |_| true).await.unwrap().is_ok()
    );
    let refused = engine.read_txn(&ranges(&[few.clone(), few]), &mut |_| true).await;
    assert!(matches!(refused, Err(EngineError::TooLarge { .. })), "{refused:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_a_read_does_not_need_are_not_read() {
    let Some(postgres) = shared() else { return };
    let (proxy, engine) = start_full(postgres, "without_values").await;
    let (all, one) = (range_of("k", b"l"), range_of("k000", b""));
    let mut queries = Vec::new();
    // If Citus distributes the tables, a read of one key always reads the value.
    for query in if worker_count() == 0 { vec![all, one] } else { vec![all] } {
        queries.push(RangeQuery { keys_only: true, ..query.clone() });
        queries.push(RangeQuery { count_only: true, ..query });
    }
    let before = proxy.answered_bytes();
    for query in queries {
        let found = engine.range(&query, &mut |_| true).await.unwrap().unwrap();
        assert!(found.count > 0, "{query:?}");
    }
    let exists = pb::Compare {
        key: Bytes::from_static(b"k"),
        range_end: Bytes::from_static(b"l"),
        result: pb::compare::CompareResult::Greater as i32,
        target: pb::compare::CompareTarget::Version as i32,
        target_union: Some(pb::compare::TargetUnion::Version(0)),
    };
    let txn = pb::TxnRequest { compare: vec![exists], ..pb::TxnRequest::default() };
    assert!(engine.read_txn(&txn, &mut |_| true).await.unwrap().unwrap().succeeded);
    let bytes = proxy.answered_bytes() - before;
    assert!(bytes < VALUE_BYTES, "the database sent {bytes} bytes");
    engine.stop().await;
}
