//! Tests that hashes and snapshots end when their caller has gone.

use std::task::Poll;

use quorate_engine::EngineError;
use tokio::sync::oneshot;

use crate::postgres::shared;
use crate::requests::{connect, wait_written};
use crate::support::{eventually, put_at, start_one};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_or_snapshot_whose_caller_has_gone_ends_while_the_database_is_busy() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("gone");
    let engine = start_one(&url).await;
    put_at(&engine, "k", "1").await;
    wait_written(&engine).await;
    let locking = connect(&url).await;
    let lock = "BEGIN; LOCK TABLE gone.versions IN ACCESS EXCLUSIVE MODE";
    locking.batch_execute(lock).await.unwrap();
    let observing = connect(&url).await;
    let waiting = async || {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                    AND query LIKE '%gone.versions%'";
        observing.query_one(text, &[]).await.unwrap().get::<_, i64>(0)
    };
    let dir = tempfile::tempdir().unwrap();
    let (hash_caller, hash_gone) = oneshot::channel::<()>();
    let (snapshot_caller, snapshot_gone) = oneshot::channel::<()>();
    let hash = engine.hash_kv(0, async { drop(hash_gone.await) });
    let snapshot = engine.snapshot(dir.path(), async { drop(snapshot_gone.await) });
    let leave = async {
        eventually("both statements wait for the lock", async || waiting().await == 2).await;
        drop((hash_caller, snapshot_caller));
    };
    let (hash, snapshot, ()) = tokio::join!(hash, snapshot, leave);
    assert!(matches!(hash, Err(EngineError::Cancelled)), "{hash:?}");
    assert!(matches!(snapshot, Err(EngineError::Cancelled)), "{snapshot:?}");
    eventually("the statements have ended", async || waiting().await == 0).await;
    locking.batch_execute("ROLLBACK").await.unwrap();
    engine.hash_kv(0, std::future::pending()).await.unwrap().unwrap();
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_of_a_snapshot_whose_caller_has_gone_is_removed() {
    let Some(postgres) = shared() else { return };
    let engine = start_one(&postgres.url("gone_file")).await;
    put_at(&engine, "k", "1").await;
    let dir = tempfile::tempdir().unwrap();
    let is_open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        targets.any(|target| target.starts_with(dir.path()))
    };
    // The caller goes as soon as the file has been created.
    let gone = std::future::poll_fn(|_| if is_open() { Poll::Ready(()) } else { Poll::Pending });
    let snapshot = engine.snapshot(dir.path(), gone).await;
    assert!(matches!(snapshot, Err(EngineError::Cancelled)), "{snapshot:?}");
    assert!(!is_open());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    engine.stop().await;
}
