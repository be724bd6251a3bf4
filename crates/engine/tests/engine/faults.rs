//! Tests that faults of the database and of the connections to it neither lose an acknowledged request
//! nor apply a request twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate_engine::{DatabaseFault, DatabaseUrl, Engine, EngineError};
use quorate_state::mvcc::RangeQuery;

use crate::postgres::{Postgres, shared};
use crate::proxy::{Action, Fault, Proxy};
use crate::support::{
    Network, eventually, is_unknown, options, propose, put, put_at, range_of, read, shown, start,
    start_one,
};

/// Tasks that put each of their keys once, and record the outcome of each put.
#[derive(Default)]
struct Writers {
    tasks: Vec<tokio::task::JoinHandle<BTreeMap<String, Fate>>>,
    acknowledged: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Refused,
    Unknown,
}

impl Writers {
    fn start(engines: &[&Engine], count: usize) -> Self {
        let mut writers = Self::default();
        for (writer, engine) in engines.iter().cycle().take(8).enumerate() {
            let engine = (*engine).clone();
            let acknowledged = Arc::clone(&writers.acknowledged);
            writers.tasks.push(tokio::spawn(async move {
                let mut fates = BTreeMap::new();
                for number in 0..count {
                    let key = format!("k{writer}-{number}");
                    let fate = match engine.propose(put(&key, "v")).await {
                        Ok(Ok(_)) => {
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                            Fate::Acknowledged
                        }
                        Err(error) if is_unknown(&error) => Fate::Unknown,
                        Ok(Err(_)) | Err(_) => Fate::Refused,
                    };
                    fates.insert(key, fate);
                }
                fates
            }));
        }
        writers
    }

    fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits for the writers. Checks that every acknowledged key exists, that no refused key exists,
    /// and that no key was written twice. Returns the number of acknowledged puts.
    async fn check(self, engine: &Engine) -> usize {
        let mut fates = BTreeMap::new();
        for task in self.tasks {
            let done = tokio::time::timeout(Duration::from_secs(120), task);
            fates.extend(done.await.unwrap().unwrap());
        }
        eventually("reads work again", async || engine.barrier().await.is_ok()).await;
        let found = read(engine, &range_of("k", b"l")).await.unwrap();
        let mut found: BTreeMap<String, i64> = found
            .kvs
            .iter()
            .map(|kv| (String::from_utf8(kv.key().to_vec()).unwrap(), kv.fields().version))
            .collect();
        for (key, fate) in &fates {
            let version = found.remove(key);
            match fate {
                Fate::Acknowledged => assert_eq!(version, Some(1), "{key} was acknowledged"),
                Fate::Refused => assert_eq!(version, None, "{key} was refused"),
                Fate::Unknown => assert!(version.is_none_or(|version| version == 1), "{key}"),
            }
        }
        assert!(found.is_empty(), "no writer put these keys: {found:?}");
        fates.values().filter(|fate| **fate == Fate::Acknowledged).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_commits_are_retried_without_writing_twice() {
    let Some(postgres) = shared() else { return };
    for (name, action) in [
        ("cut_before", Action::CutBefore),
        ("cut_after", Action::CutAfter),
        ("conflict", Action::Conflict),
    ] {
        let schema = format!("log_{name}");
        let proxy = Proxy::start(postgres.port()).await;
        let engine = start_one(&postgres.url_through(proxy.port, &schema)).await;
        put_at(&engine, "first", "1").await;
        proxy.set_faults(vec![Fault { text: ".log (seq", action, period: 2 }]);
        let count = Writers::start(&[&engine], 10).check(&engine).await;
        assert_eq!(count, 80, "{name}: every put is acknowledged in the end");
        assert!(proxy.injected() >= 5, "{name}: {}", proxy.injected());
        assert_eq!(engine.status().revision, 82, "{name}: each put created one revision");
        proxy.set_faults(Vec::new());
        engine.stop().await;
        let engine = start_one(&postgres.url(&schema)).await;
        assert_eq!(read(&engine, &range_of("k", b"l")).await.unwrap().count, 80);
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_writes_to_the_tables_are_retried() {
    let Some(postgres) = shared() else { return };
    let texts =
        ["COMMIT", "BEGIN", ".progress SET", "INTO tables_x.versions", "INTO tables_x.newest"];
    for text in texts {
        for action in [Action::CutBefore, Action::CutAfter, Action::Conflict] {
            let proxy = Proxy::start(postgres.port()).await;
            let engine = start_one(&postgres.url_through(proxy.port, "tables_x")).await;
            // In a Citus database, a part is written in two transactions, and the first one is repeated if the second
            // one fails. If every second commit failed, no part would ever be written.
            proxy.set_faults(vec![Fault { text, action, period: 3 }]);
            for number in 0..10 {
                put_at(&engine, &format!("t{number}"), "v").await;
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            eventually("a fault is injected", async || proxy.injected() > 0).await;
            eventually("the tables catch up", async || engine.status().backlog_batches == 0).await;
            let found = read(&engine, &range_of("t", b"u")).await.unwrap();
            assert_eq!(found.count, 10, "{text} {action:?}");
            proxy.set_faults(Vec::new());
            engine.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_conflicts_neither_lose_nor_repeat_writes() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "conflicts")).await;
    put_at(&engine, "first", "1").await;
    proxy.set_faults(vec![Fault { text: "", action: Action::Conflict, period: 5 }]);
    let writers = Writers::start(&[&engine], 15);
    let mut reads = 0;
    while writers.acknowledged() < 60 && reads < 2_000 {
        if let Ok(found) =
            engine.range(&RangeQuery { limit: 5, ..range_of("k", b"l") }, &mut |_| true).await
        {
            assert!(found.unwrap().kvs.len() <= 5);
        }
        reads += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set_faults(Vec::new());
    assert!(writers.check(&engine).await >= 60);
    assert!(proxy.injected() > 10, "{}", proxy.injected());
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_database_loses_no_acknowledged_write() {
    let Some(mut postgres) = Postgres::start() else { return };
    let url = postgres.url("crash");
    let network = Network::default();
    let one = start(&url, 1, &network).await;
    let two = start(&url, 2, &network).await;
    put_at(&two, "first", "1").await;
    let writers = Writers::start(&[&one, &two], 60);
    for crash in 1..=2 {
        eventually("writes succeed", async || writers.acknowledged() > crash * 100).await;
        postgres = tokio::task::spawn_blocking(move || {
            postgres.crash_and_restart();
            postgres
        })
        .await
        .unwrap();
    }
    let count = writers.check(&two).await;
    assert!(count > 200, "{count}");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequencer_without_its_database_is_replaced() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let network = Network::default();
    let one = start(&postgres.url_through(proxy.port, "partition"), 1, &network).await;
    put_at(&one, "first", "1").await;
    let two = start(&postgres.url("partition"), 2, &network).await;
    let writers = Writers::start(&[&one, &two], 40);
    eventually("writes succeed", async || writers.acknowledged() > 50).await;
    proxy.set_open(false);
    eventually("the other server takes over", async || two.status().sequencer_id == 2).await;
    put_at(&two, "second", "1").await;
    proxy.set_open(true);
    eventually("server 1 sees the new sequencer", async || one.status().sequencer_id == 2).await;
    let count = writers.check(&two).await;
    assert!(count > 50, "{count}");
    assert_eq!(shown(&read(&one, &range_of("second", b"")).await.unwrap()), ["second=1"]);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_retried_after_a_lost_connection() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "reads")).await;
    put_at(&engine, "k", "1").await;
    crate::requests::wait_written(&engine).await;
    for action in [Action::CutBefore, Action::CutAfter, Action::Conflict] {
        proxy.set_faults(vec![Fault { text: "CASE WHEN n.mod", action, period: 2 }]);
        for _ in 0..6 {
            let found = engine.range(&range_of("k", b"l"), &mut |_| true).await.unwrap().unwrap();
            assert_eq!(shown(&found), ["k=1"]);
        }
    }
    assert!(proxy.injected() > 3);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_database_is_reported_with_the_reason() {
    let Some(postgres) = shared() else { return };
    let started = async |url: &str| -> EngineError {
        let options = options(url, 1);
        Engine::start(options, Arc::new(Network::default())).await.unwrap_err()
    };
    let closed = "postgres://quorate:geheim@127.0.0.1:1/postgres?sslmode=disable&connect_timeout=2";
    let error = started(closed).await;
    assert!(matches!(error, EngineError::Database(DatabaseFault::Unreachable { .. })), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:1") && !error.to_string().contains("geheim"));
    let url = postgres.url("x");
    let error = started(&url.replace("/postgres?", "/missing?")).await;
    assert!(matches!(error, EngineError::Database(DatabaseFault::NoDatabase(_))), "{error:?}");
    let error = started(&url.replace("quorate@", "nobody@")).await;
    assert!(matches!(error, EngineError::Database(DatabaseFault::Login(_))), "{error:?}");
    let error = started(&url.replace("sslmode=disable", "sslmode=require")).await;
    assert!(error.to_string().contains("TLS") || error.to_string().contains("SSL"), "{error}");
    assert!(DatabaseUrl::parse("postgres://", |_| None).is_err());
    // A server refuses tables in the format of a newer version.
    let engine = start_one(&postgres.url("newer")).await;
    put_at(&engine, "k", "1").await;
    engine.stop().await;
    let database = crate::requests::connect(&postgres.url("newer")).await;
    database.execute("UPDATE newer.format SET format = 999", &[]).await.unwrap();
    let error = started(&postgres.url("newer")).await;
    let is_newer =
        matches!(error, EngineError::Database(DatabaseFault::NewerFormat { found: 999, .. }));
    assert!(is_newer, "{error:?}");
    let ready = propose(&start_one(&postgres.url("older")).await, put("k", "1")).await;
    assert!(ready.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_read_does_not_delay_later_reads() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "cancelled")).await;
    put_at(&engine, "k", "1").await;
    crate::requests::wait_written(&engine).await;
    let query = range_of("k", b"l");
    engine.range(&query, &mut |_| true).await.unwrap().unwrap();
    // The proxy holds the first read, so that it does not reach the database.
    proxy.set_faults(vec![Fault { text: "CASE WHEN", action: Action::Hold, period: 1_000 }]);
    let cancelled =
        tokio::time::timeout(Duration::from_millis(300), engine.range(&query, &mut |_| true)).await;
    assert!(cancelled.is_err() && proxy.injected() == 1);
    for _ in 0..20 {
        let found =
            tokio::time::timeout(Duration::from_secs(2), engine.range(&query, &mut |_| true)).await;
        assert_eq!(shown(&found.unwrap().unwrap().unwrap()), ["k=1"]);
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_ends_the_statement_of_a_cancelled_read() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("cancelled_statement");
    let engine = start_one(&url).await;
    put_at(&engine, "k", "1").await;
    crate::requests::wait_written(&engine).await;
    let query = range_of("k", b"l");
    engine.range(&query, &mut |_| true).await.unwrap().unwrap();
    let locking = crate::requests::connect(&url).await;
    let lock = "BEGIN; LOCK TABLE cancelled_statement.newest IN ACCESS EXCLUSIVE MODE";
    locking.batch_execute(lock).await.unwrap();
    let observing = crate::requests::connect(&url).await;
    let waiting = async || {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                    AND query LIKE '%cancelled_statement.newest%'";
        observing.query_one(text, &[]).await.unwrap().get::<_, i64>(0)
    };
    let (reader, cancelled) = (engine.clone(), query.clone());
    let read = tokio::spawn(async move { reader.range(&cancelled, &mut |_| true).await.is_ok() });
    eventually("the statement waits for the lock", async || waiting().await == 1).await;
    read.abort();
    eventually("the statement has ended", async || waiting().await == 0).await;
    locking.batch_execute("ROLLBACK").await.unwrap();
    engine.range(&query, &mut |_| true).await.unwrap().unwrap();
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_accepts_connections_but_does_not_respond_is_skipped() {
    let Some(postgres) = shared() else { return };
    // The operating system accepts the connections, as it does for a database that is suspended.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let hosts = format!("127.0.0.1:{silent_port},127.0.0.1:{}", postgres.port());
    let url = postgres.url("silent").replace(&format!("127.0.0.1:{}", postgres.port()), &hosts);
    let url = format!("{url}&connect_timeout=1");
    let starting = start_one(&url);
    let engine = tokio::time::timeout(Duration::from_secs(60), starting).await.unwrap();
    put_at(&engine, "k", "1").await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_does_not_read_from_a_database_that_has_become_a_standby() {
    let Some(postgres) = shared() else { return };
    let admin = crate::requests::connect(&postgres.url("none")).await;
    admin.batch_execute("CREATE DATABASE standby").await.unwrap();
    let url = postgres.url("x").replace("/postgres?", "/standby?");
    let engine = start_one(&url).await;
    put_at(&engine, "k", "1").await;
    // New sessions are read-only, as on a standby.
    admin
        .batch_execute("ALTER DATABASE standby SET default_transaction_read_only = on")
        .await
        .unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'standby'";
    admin.query(end, &[]).await.unwrap();
    eventually("the sessions have ended", async || engine.barrier().await.is_err()).await;
    for _ in 0..20 {
        assert!(engine.barrier().await.is_err(), "a linearizable read succeeded on a standby");
        assert!(engine.range(&range_of("k", b"l"), &mut |_| true).await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let error = Engine::start(options(&url, 2), Arc::new(Network::default())).await.unwrap_err();
    assert!(matches!(error, EngineError::Database(DatabaseFault::ReadOnly(_))), "{error:?}");
    admin
        .batch_execute("ALTER DATABASE standby RESET default_transaction_read_only")
        .await
        .unwrap();
    eventually("reads work again", async || engine.barrier().await.is_ok()).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicting_reads_are_repeated_without_ending_the_term() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let engine = start_one(&postgres.url_through(proxy.port, "read_conflicts")).await;
    put_at(&engine, "first", "1").await;
    let conflict = |text| Fault { text, action: Action::Conflict, period: 2 };
    proxy.set_faults(vec![
        conflict("n.key = ANY"),
        conflict("FROM read_conflicts.log WHERE seq >="),
        conflict("SELECT written_seq"),
    ]);
    for number in 0..20 {
        put_at(&engine, &format!("k{number}"), "v").await;
        engine.barrier().await.unwrap();
    }
    assert!(proxy.injected() > 20, "{}", proxy.injected());
    assert_eq!(engine.status().epoch, 1);
    proxy.set_faults(Vec::new());
    assert_eq!(read(&engine, &range_of("k", b"l")).await.unwrap().count, 20);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_wait_for_a_standby_is_cancelled_is_not_acknowledged() {
    let Some(postgres) = Postgres::start() else { return };
    let url = postgres.url("standbys");
    let engine = start_one(&url).await;
    put_at(&engine, "k", "1").await;
    crate::requests::wait_written(&engine).await;
    let admin = crate::requests::connect(&url).await;
    let configure = async |text: &str, expected: &str| {
        admin.batch_execute(text).await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        eventually("the setting is read", async || {
            let row = admin.query_one("SHOW synchronous_standby_names", &[]).await.unwrap();
            row.get::<_, &str>(0) == expected
        })
        .await;
    };
    configure("ALTER SYSTEM SET synchronous_standby_names = 'missing'", "missing").await;
    let writing = engine.clone();
    let mut written = tokio::spawn(async move { writing.propose(put("k", "2")).await });
    eventually("the append's wait for the standby is cancelled", async || {
        let text = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
                    WHERE wait_event = 'SyncRep' AND query LIKE 'INSERT INTO standbys.log%'";
        !admin.query(text, &[]).await.unwrap().is_empty()
    })
    .await;
    let acknowledged = tokio::time::timeout(Duration::from_secs(1), &mut written).await;
    assert!(acknowledged.is_err(), "put acknowledged without standby: {acknowledged:?}");
    configure("ALTER SYSTEM RESET synchronous_standby_names", "").await;
    written.await.unwrap().unwrap().unwrap();
    engine.stop().await;
}
