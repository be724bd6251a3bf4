//! Tests servers whose database loses committed rows, as in a failover to an asynchronous standby or in a
//! restore to an earlier time. No server may return the lost rows, and no write that is acknowledged
//! after the loss may be lost.

use std::time::{Duration, Instant};

use quorate_engine::Engine;
use quorate_state::mvcc::RangeQuery;
use tokio_postgres::Client;

use crate::postgres::{Postgres, shared, worker_count};
use crate::proxy::Proxy;
use crate::requests::{connect, wait_written};
use crate::servers::Watcher;
use crate::support::{
    Network, compaction, eventually, propose, put, put_at, range_of, read, shown, start,
};

/// The tables of a keyspace.
const TABLES: [&str; 8] =
    ["log", "versions", "newest", "facts", "progress", "sequencer", "servers", "spans"];
/// The tables that are written from the log after a commit.
const LATE_TABLES: [&str; 4] = ["versions", "newest", "facts", "progress"];

/// A keyspace that servers reach through proxies, and a copy of its tables.
struct Loss {
    schema: &'static str,
    database: Client,
    proxies: Vec<Proxy>,
}

impl Loss {
    async fn new(postgres: &Postgres, schema: &'static str) -> Self {
        let database = connect(&postgres.url(schema)).await;
        Self { schema, database, proxies: Vec::new() }
    }

    /// Starts a server that reaches the database through a proxy of its own.
    async fn start(&mut self, postgres: &Postgres, id: u64, network: &Network) -> Engine {
        let proxy = Proxy::start(postgres.port()).await;
        let engine = start(&postgres.url_through(proxy.port, self.schema), id, network).await;
        self.proxies.push(proxy);
        engine
    }

    /// Copies the tables, as an asynchronous standby would.
    async fn save(&self) {
        let schema = self.schema;
        let mut text =
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE SCHEMA {schema}_saved;");
        for table in TABLES {
            text += &format!("CREATE TABLE {schema}_saved.{table} AS TABLE {schema}.{table};");
        }
        self.database.batch_execute(&(text + "COMMIT")).await.unwrap();
    }

    /// Closes the connections of the servers to the database, and refuses new ones.
    fn disconnect(&self) {
        self.proxies.iter().for_each(|proxy| proxy.set_open(false));
    }

    /// Replaces the content of the given tables with the copies.
    async fn lose(&self, tables: &[&str]) {
        let schema = self.schema;
        let mut text = "BEGIN;".to_owned();
        for table in tables {
            text += &format!(
                "TRUNCATE {schema}.{table}; INSERT INTO {schema}.{table} TABLE {schema}_saved.{table};"
            );
        }
        self.database.batch_execute(&(text + "COMMIT")).await.unwrap();
    }

    fn reconnect(&self) {
        self.proxies.iter().for_each(|proxy| proxy.set_open(true));
    }
}

/// Repeats a put until the server accepts it.
async fn put_eventually(engine: &Engine, key: &str, value: &str) {
    eventually("a put succeeds", async || {
        let done = tokio::time::timeout(Duration::from_secs(10), engine.propose(put(key, value)));
        matches!(done.await, Ok(Ok(Ok(_))))
    })
    .await;
}

/// Checks that a server reads exactly these keys.
async fn assert_keys(engine: &Engine, expected: &[&str]) {
    eventually("the server serves linearizable reads", async || engine.barrier().await.is_ok())
        .await;
    let found = read(engine, &range_of("a", &[0])).await.unwrap();
    assert_eq!(shown(&found), expected, "on server {}", engine.server_id());
    assert_eq!(found.count, i64::try_from(expected.len()).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_after_the_loss_of_batches_are_read_by_every_server() {
    let Some(postgres) = shared() else { return };
    let network = Network::default();
    let mut loss = Loss::new(postgres, "lost_batches").await;
    let one = loss.start(postgres, 1, &network).await;
    let two = loss.start(postgres, 2, &network).await;
    put_at(&one, "kept", "1").await;
    wait_written(&one).await;
    loss.save().await;
    for number in 0..5 {
        put_at(&one, "wlost", &number.to_string()).await;
        put_at(&one, "kept", "2").await;
    }
    wait_written(&one).await;
    assert_keys(&two, &["kept=2", "wlost=4"]).await;
    let mut watchers =
        [(&one, Watcher::open(&one, 0, false)), (&two, Watcher::open(&two, 0, false))];
    put_at(&one, "wlost", "5").await;
    assert_keys(&two, &["kept=2", "wlost=5"]).await;
    for (engine, watcher) in &mut watchers {
        watcher.poll(engine);
        assert_eq!(watcher.events.len(), 1);
    }
    loss.disconnect();
    loss.lose(&TABLES).await;
    loss.reconnect();
    for number in 0..10 {
        put_eventually(&one, &format!("later{number}"), "1").await;
    }
    put_eventually(&two, "wafter", "1").await;
    let mut expected = vec!["kept=1".to_owned()];
    expected.extend((0..10).map(|number| format!("later{number}=1")));
    expected.push("wafter=1".to_owned());
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let three = start(&postgres.url("lost_batches"), 3, &network).await;
    for engine in [&one, &two, &three] {
        assert_keys(engine, &expected).await;
        assert_eq!(engine.status().revision, three.status().revision);
    }
    for (engine, watcher) in &mut watchers {
        watcher.poll(engine);
        let events = &watcher.events;
        assert!(watcher.compacted.is_some(), "the watcher was not cancelled: {events:?}");
        assert_eq!(events.len(), 1, "{events:?}");
    }
    let mut watcher = Watcher::open(&two, three.status().revision, false);
    let deadline = Instant::now() + Duration::from_secs(20);
    while watcher.events.is_empty() && Instant::now() < deadline {
        watcher.poll(&two);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(watcher.events.len(), 1, "{:?}", watcher.events);
    for engine in [&one, &two, &three] {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequencer_whose_epoch_was_given_to_another_server_acknowledges_only_its_own_batches() {
    let Some(postgres) = shared() else { return };
    let mut loss = Loss::new(postgres, "lost_epoch").await;
    // Each server has its own network, so the servers cannot forward requests to each other.
    let zero = start(&postgres.url("lost_epoch"), 9, &Network::default()).await;
    put_at(&zero, "kept", "1").await;
    wait_written(&zero).await;
    zero.stop().await;
    loss.save().await;
    let one = loss.start(postgres, 1, &Network::default()).await;
    for number in 0..4 {
        put_at(&one, "lost", &number.to_string()).await;
    }
    assert_eq!(one.status().epoch, 2);
    loss.disconnect();
    loss.lose(&TABLES).await;
    // The second server receives the same epoch as the first server, and writes its batches to the
    // positions of the lost batches.
    let two = start(&postgres.url("lost_epoch"), 2, &Network::default()).await;
    for number in 0..3 {
        put_at(&two, "two", &number.to_string()).await;
    }
    assert_eq!(two.status().epoch, 2);
    let last = two.status();
    loss.reconnect();
    // The first server does not know yet that it has lost the role. This put must not replace a batch of
    // the second server, which the reads below check.
    let done = tokio::time::timeout(Duration::from_secs(10), one.propose(put("one", "1")));
    let (Ok(_) | Err(_)) = done.await;
    two.abandon().await;
    // The first server becomes the sequencer once the second server's lease on this role has expired.
    eventually("server 1 becomes the sequencer", async || one.status().sequencer_id == 1).await;
    put_eventually(&one, "one", "2").await;
    let fresh = start(&postgres.url("lost_epoch"), 3, &Network::default()).await;
    assert_keys(&fresh, &["kept=1", "one=2", "two=2"]).await;
    assert_keys(&one, &["kept=1", "one=2", "two=2"]).await;
    let log = "SELECT count(*), max(seq) - min(seq) + 1 FROM lost_epoch.log";
    let log = loss.database.query_one(log, &[]).await.unwrap();
    assert_eq!(log.get::<_, i64>(0), log.get::<_, i64>(1), "the log has a gap");
    assert!(fresh.status().log_position > last.log_position);
    one.stop().await;
    fresh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_lost_from_the_tables_are_restored_from_the_log() {
    let Some(postgres) = shared() else { return };
    let network = Network::default();
    let mut loss = Loss::new(postgres, "lost_tables").await;
    let one = loss.start(postgres, 1, &network).await;
    let two = loss.start(postgres, 2, &network).await;
    put_at(&one, "a", "1").await;
    wait_written(&one).await;
    loss.save().await;
    put_at(&one, "a", "2").await;
    put_at(&one, "b", "1").await;
    wait_written(&one).await;
    // The next batch informs the second server that the tables contain the previous batches.
    let mut watcher = Watcher::open(&two, 0, false);
    put_at(&one, "w", "1").await;
    assert_keys(&two, &["a=2", "b=1", "w=1"]).await;
    wait_written(&one).await;
    loss.disconnect();
    loss.lose(&LATE_TABLES).await;
    loss.reconnect();
    for engine in [&two, &one] {
        assert_keys(engine, &["a=2", "b=1", "w=1"]).await;
    }
    put_eventually(&one, "w", "2").await;
    wait_written(&one).await;
    assert_keys(&two, &["a=2", "b=1", "w=2"]).await;
    watcher.poll(&two);
    assert_eq!(watcher.compacted, None);
    assert_eq!(watcher.events.len(), 2, "{:?}", watcher.events);
    let last = put_at(&one, "b", "2").await;
    propose(&one, compaction(last)).await.unwrap();
    one.wait_compacted().await.unwrap();
    let three = start(&postgres.url("lost_tables"), 3, &network).await;
    assert_keys(&three, &["a=2", "b=2", "w=2"]).await;
    for engine in [&one, &two, &three] {
        engine.stop().await;
    }
}

/// The server may count a range before it has noticed that the tables have lost changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_counted_right_after_a_loss_includes_the_lost_changes() {
    // On a Citus database, ranges are not divided, and a count does not check the position of the tables.
    let Some(postgres) = shared().filter(|_| worker_count() == 0) else { return };
    let mut loss = Loss::new(postgres, "counted_loss").await;
    let one = loss.start(postgres, 1, &Network::default()).await;
    put_at(&one, "a", "1").await;
    wait_written(&one).await;
    loss.save().await;
    put_at(&one, "b", "1").await;
    let revision = put_at(&one, "c", "1").await;
    // Each range is counted for the first time, so that the server does not remember its count.
    for (end, revision) in [(b"y", 0), (b"z", revision)] {
        wait_written(&one).await;
        loss.lose(&LATE_TABLES).await;
        let query = RangeQuery { count_only: true, revision, ..range_of("a", end) };
        assert_eq!(
            one.range(&query, &mut |_| true).await.unwrap().unwrap().count,
            3,
            "at revision {revision}"
        );
    }
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_synchronous_even_if_the_database_defaults_to_asynchronous_commits() {
    let Some(postgres) = shared() else { return };
    let admin = connect(&postgres.url("none")).await;
    admin.batch_execute("CREATE DATABASE asynchronous").await.unwrap();
    let url = postgres.url("commits").replace("/postgres?", "/asynchronous?");
    admin.batch_execute("ALTER DATABASE asynchronous SET synchronous_commit = off").await.unwrap();
    start(&url, 1, &Network::default()).await.stop().await;
    // A trigger records the setting of the session that appends to the log.
    let database = connect(&url).await;
    let trigger = "CREATE TABLE noted (setting text); \
                   CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                   INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$; \
                   CREATE TRIGGER note BEFORE INSERT ON commits.log FOR EACH ROW EXECUTE FUNCTION note()";
    database.batch_execute(trigger).await.unwrap();
    let engine = start(&url, 1, &Network::default()).await;
    put_at(&engine, "k", "1").await;
    let rows = database.query("SELECT DISTINCT setting FROM noted", &[]).await.unwrap();
    let settings: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(settings, ["on"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_the_first_format_are_migrated() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("first_format");
    let engine = start(&url, 1, &Network::default()).await;
    put_at(&engine, "k", "1").await;
    engine.stop().await;
    let database = connect(&url).await;
    let downgrade = "ALTER TABLE first_format.log DROP COLUMN nonce; \
                     ALTER TABLE first_format.sequencer DROP COLUMN nonce; \
                     DROP TABLE first_format.spans; \
                     UPDATE first_format.format SET format = 1";
    database.batch_execute(downgrade).await.unwrap();
    let engine = start(&url, 1, &Network::default()).await;
    put_at(&engine, "l", "1").await;
    assert_keys(&engine, &["k=1", "l=1"]).await;
    let format = database.query_one("SELECT format FROM first_format.format", &[]).await.unwrap();
    assert_eq!(format.get::<_, i32>(0), 3);
    engine.stop().await;
}
