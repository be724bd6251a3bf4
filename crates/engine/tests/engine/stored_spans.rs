//! Tests that the counts of keys in parts of a large keyspace survive the server that determined them.

use quorate_engine::Engine;
use quorate_state::mvcc::RangeQuery;
use tokio_postgres::Client;

use crate::postgres::{Postgres, shared, worker_count};
use crate::proxy::{Action, Fault, Proxy};
use crate::requests::{connect, counting, create, wait_written};
use crate::support::{
    Network, compaction, delete, eventually, propose, put_at, range_of, read, start, start_one,
};

/// The number of keys that are in the tables from the start. Three statements divide them.
const KEYS: i64 = 450_000;

/// A keyspace with many keys, and a proxy that counts the statements that count keys.
struct Large {
    schema: &'static str,
    direct: String,
    proxied: String,
    proxy: Proxy,
    database: Client,
}

impl Large {
    /// Returns `None` without PostgreSQL, and on a Citus database, which has no spans.
    async fn new(postgres: Option<&Postgres>, schema: &'static str) -> Option<Self> {
        let postgres = postgres.filter(|_| worker_count() == 0)?;
        let proxy = Proxy::start(postgres.port()).await;
        let direct = postgres.url(schema);
        let proxied = postgres.url_through(proxy.port, schema);
        start_one(&direct).await.stop().await;
        let database = connect(&direct).await;
        let rows = format!(
            "INSERT INTO {schema}.newest SELECT convert_to('k' || lpad(n::text, 7, '0'), 'UTF8'), 1, n, \
             1, 1, 0, false, '' FROM generate_series(1, {KEYS}) n"
        );
        database.execute(&rows, &[]).await.unwrap();
        proxy.set_faults(vec![Fault { text: counting(), action: Action::Count, period: 1 }]);
        Some(Self { schema, direct, proxied, proxy, database })
    }

    async fn execute(&self, text: &str) {
        let changed = self.database.execute(&text.replace("{s}", self.schema), &[]).await.unwrap();
        assert_ne!(changed, 0, "{text}");
    }

    /// Starts a server, and returns its count of all keys and the number of statements that it needed.
    async fn count(&self) -> (i64, u64) {
        let before = self.proxy.injected();
        let engine = start_one(&self.proxied).await;
        let count = count(&engine, "k").await;
        engine.abandon().await;
        (count, self.proxy.injected() - before)
    }
}

async fn count(engine: &Engine, key: &str) -> i64 {
    let all = RangeQuery { count_only: true, ..range_of(key, b"l") };
    read(engine, &all).await.unwrap().count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_counts_keys_with_the_stored_spans_and_later_changes() {
    let Some(large) = Large::new(shared(), "stored_spans").await else { return };
    let engine = start_one(&large.proxied).await;
    assert_eq!(count(&engine, "k").await, KEYS);
    engine.stop().await;
    assert_eq!(large.proxy.injected(), 3);

    // A server that has not counted any keys makes changes in many spans, some of them twice.
    let engine = start_one(&large.direct).await;
    let names: Vec<String> = (0..300).map(|number| format!("k{:07}x", number * 1_500)).collect();
    create(&engine, &names).await;
    create(&engine, &names[..100]).await;
    for end in ["k0110000", "k0120000"] {
        let mut request = delete("k0100000", end.as_bytes());
        // The rows that the test has added have no records.
        request.delete_range.as_mut().unwrap().prev_kv = false;
        propose(&engine, request).await.unwrap();
    }
    let mut expected = KEYS + 300 - 20_000 - 13;
    wait_written(&engine).await;
    assert_eq!(put_at(&engine, "k0105000", "v").await, engine.status().revision);
    expected += 1;
    engine.abandon().await;
    assert_eq!(large.count().await, (expected, 0));
}

/// The sequencer counts the keys before any client asks, and another server reads the counts instead of dividing the
/// keyspace itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sequencer_divides_a_large_keyspace_in_the_background() {
    let Some(large) = Large::new(shared(), "background").await else { return };
    large.execute(&format!("UPDATE {{s}}.progress SET records = {KEYS}")).await;
    let network = Network::default();
    let one = start(&large.proxied, 1, &network).await;
    eventually("the spans are stored", async || {
        let rows = large.database.query("SELECT seq FROM background.spans", &[]).await.unwrap();
        !rows.is_empty()
    })
    .await;
    assert_eq!(large.proxy.injected(), 3);
    let two = start(&large.proxied, 2, &network).await;
    put_at(&two, "k0000001x", "v").await;
    assert_eq!(count(&two, "k").await, KEYS + 1);
    // The first and the last span extend beyond the range.
    assert_eq!(large.proxy.injected(), 3 + 2);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_spans_are_not_used_after_a_compaction_has_removed_their_batch_from_the_log() {
    let Some(large) = Large::new(shared(), "compacted_spans").await else { return };
    let engine = start_one(&large.direct).await;
    count(&engine, "k").await;
    engine.stop().await;
    large.execute("CREATE TABLE {s}.earlier_spans AS TABLE {s}.spans").await;
    let engine = start_one(&large.direct).await;
    put_at(&engine, "k0000001x", "v").await;
    put_at(&engine, "k0000002x", "v").await;
    let last = put_at(&engine, "k0000003x", "v").await;
    propose(&engine, compaction(last)).await.unwrap();
    engine.wait_compacted().await.unwrap();
    engine.abandon().await;
    // The server may have stored its own spans in the meantime.
    large.execute("DELETE FROM {s}.spans").await;
    large.execute("INSERT INTO {s}.spans TABLE {s}.earlier_spans").await;
    assert_eq!(large.count().await, (KEYS + 3, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_spans_of_a_lost_batch_are_not_used() {
    let Some(large) = Large::new(shared(), "lost_spans").await else { return };
    let engine = start_one(&large.direct).await;
    put_at(&engine, "k0000001x", "v").await;
    count(&engine, "k").await;
    engine.stop().await;
    // The batch at the position of the spans is from another term.
    large.execute("UPDATE {s}.spans SET nonce = nonce + 1, counts[1] = 1").await;
    assert_eq!(large.count().await, (KEYS + 1, 3));
}

/// The rows that the test has added have no records. Previously, the sequencer read the first page of such rows again and
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_fails_if_the_key_of_a_record_differs_from_the_key_of_its_row() {
    let Some(large) = Large::new(shared(), "other_keys").await else { return };
    let engine = start_one(&large.direct).await;
    let deleted = engine.propose(delete("k0100000", b"k0110000")).await;
    assert!(deleted.is_err(), "{deleted:?}");
    engine.stop().await;
}
