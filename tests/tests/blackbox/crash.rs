//! A server that is killed at any moment keeps all acknowledged writes and never keeps half of a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, History, Kind, Options, Random, Server, delete, eventually, eventually_ok, is_long,
    on_both_servers, put_op, txn, write_op,
};
use tokio::task::JoinSet;

on_both_servers! {
    alone:
    a_member_killed_under_load_keeps_acknowledged_writes,
    kills_during_segment_cuts_and_snapshots_lose_no_acknowledged_writes,
    a_member_stopped_under_load_keeps_acknowledged_writes,
    a_restart_does_not_change_the_keys_the_revision_or_the_hash,
    a_member_killed_while_compacting_keeps_its_data,
    members_take_snapshots_and_start_from_them,
    old_snapshot_and_log_files_are_purged,
}

/// Returns the number of interruptions.
fn rounds() -> u64 {
    if is_long() { 200 } else { 5 }
}

/// Attempts of one writer and their results.
#[derive(Debug, Default)]
struct Progress {
    attempted: AtomicI64,
    acknowledged: AtomicI64,
}

/// Writers that count upwards, each in its own keys, until the server exits. Every step is a transaction that puts the
/// same value under three keys, so their values must always be equal.
struct Load {
    tasks: JoinSet<()>,
}

const WRITERS: usize = 8;
const PARTS: [&str; 3] = ["left", "middle", "right"];

impl Load {
    fn start(client: &Client, progress: &[Arc<Progress>], size: usize) -> Self {
        let mut tasks = JoinSet::new();
        for (writer, progress) in progress.iter().enumerate() {
            let client = client.clone();
            let progress = Arc::clone(progress);
            tasks.spawn(async move {
                loop {
                    let step = progress.attempted.load(Ordering::Relaxed) + 1;
                    progress.attempted.store(step, Ordering::Relaxed);
                    let request = step_of(writer, step, size);
                    if client.txn(request).await.is_err() {
                        return;
                    }
                    progress.acknowledged.store(step, Ordering::Relaxed);
                }
            });
        }
        Self { tasks }
    }

    async fn end(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

fn step_of(writer: usize, step: i64, size: usize) -> pb::TxnRequest {
    let value = format!("{step:<size$}");
    let mut operations: Vec<_> =
        PARTS.iter().map(|part| put_op(format!("{part}/{writer}"), &value)).collect();
    // Every third step deletes a fourth key. The other steps write it.
    operations.push(if step % 3 == 0 {
        write_op(delete(format!("even/{writer}"), ""))
    } else {
        put_op(format!("even/{writer}"), &value)
    });
    txn(operations)
}

/// Compares the server's contents with the writers' results. Each writer continues with the step after the step found
/// in the store.
async fn verify(client: &Client, progress: &[Arc<Progress>]) {
    for (writer, progress) in progress.iter().enumerate() {
        let mut steps = Vec::new();
        for part in PARTS {
            let value = client.read(format!("{part}/{writer}")).await;
            let text = value.map_or_else(String::new, |value| String::from_utf8(value).unwrap());
            steps.push(text.trim().parse::<i64>().unwrap_or(0));
        }
        assert!(steps.iter().all(|step| *step == steps[0]), "half a transaction: {steps:?}");
        let acknowledged = progress.acknowledged.load(Ordering::Relaxed);
        let attempted = progress.attempted.load(Ordering::Relaxed);
        let step = steps[0];
        assert!(
            step >= acknowledged,
            "writer {writer}: step {acknowledged} was acknowledged, but the store has step {step}"
        );
        assert!(
            step <= attempted,
            "writer {writer}: step {attempted} was attempted last, but the store has step {step}"
        );
        let even = client.read(format!("even/{writer}")).await.is_some();
        assert_eq!(even, step % 3 != 0, "half a transaction at step {step}");
        progress.attempted.store(step, Ordering::Relaxed);
        progress.acknowledged.store(step, Ordering::Relaxed);
    }
}

/// Checks that the server's hash follows from the history that its watch returns.
async fn verify_hash(client: &Client) -> u32 {
    let revision = client.revision().await;
    let history = History::read(client, revision).await;
    let answer = client.hash_kv(pb::HashKvRequest { revision }).await.unwrap();
    assert_eq!(answer.hash, history.hash_kv(None, revision), "at {revision}");
    answer.hash
}

/// The parameters of a test that repeatedly interrupts a server.
struct Ordeal {
    flags: &'static [&'static str],
    /// Size of each value, in bytes.
    size: usize,
    /// Whether the history is compacted after each round, so that large values do not accumulate. Otherwise the history
    /// stays complete, and the hash is computed from it.
    compact: bool,
}

impl Ordeal {
    async fn run(self, kind: Kind, mut interruption: impl AsyncFnMut(&mut Server)) {
        let mut random = Random::by_chance();
        let options = self.flags.iter().fold(Options::new(kind), |all, flag| all.flag(*flag));
        let mut server = options.start().await;
        let progress: Vec<Arc<Progress>> = (0..WRITERS).map(|_| Arc::default()).collect();
        for round in 0..rounds() {
            let client = server.client();
            let load = Load::start(&client, &progress, self.size);
            // The moment is random, regardless of what the server is doing.
            tokio::time::sleep(random.millis_below(400)).await;
            interruption(&mut server).await;
            load.end().await;
            server.start_again().await;
            let client = server.client();
            verify(&client, &progress).await;
            if self.compact {
                let request = client.revision().await - 1;
                // The compaction is refused if nothing was written since the last compaction, so its result does not
                // matter.
                drop(
                    client
                        .compact(pb::CompactionRequest { revision: request, physical: true })
                        .await,
                );
            } else if round % 20 == 4 {
                verify_hash(&client).await;
            }
        }
        let done: i64 = progress.iter().map(|one| one.acknowledged.load(Ordering::Relaxed)).sum();
        assert!(done > 0, "no write was acknowledged");
    }
}

async fn a_member_killed_under_load_keeps_acknowledged_writes(kind: Kind) {
    let ordeal = Ordeal { flags: &[], size: 100, compact: false };
    ordeal.run(kind, async |server| server.kill()).await;
}

async fn kills_during_segment_cuts_and_snapshots_lose_no_acknowledged_writes(kind: Kind) {
    // Large steps fill a log segment within one or two rounds.
    let ordeal = Ordeal { flags: &["--snapshot-count=50"], size: 60_000, compact: true };
    ordeal.run(kind, async |server| server.kill()).await;
}

async fn a_member_stopped_under_load_keeps_acknowledged_writes(kind: Kind) {
    let ordeal = Ordeal { flags: &[], size: 100, compact: false };
    ordeal
        .run(kind, async |server| {
            server.stop().await;
        })
        .await;
}

async fn a_restart_does_not_change_the_keys_the_revision_or_the_hash(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    for number in 0..200 {
        client.write(format!("k{}", number % 17), number.to_string()).await;
        if number % 9 == 0 {
            client.delete_range(delete("k3", "k5")).await.unwrap();
        }
    }
    client.grant(7, 600).await;
    let before = client.range(quorate_tests::from_key("\0")).await.unwrap();
    let status = client.status(pb::StatusRequest {}).await.unwrap();
    let hash = verify_hash(&client).await;
    for clean in [false, true, false] {
        if clean {
            server.stop().await;
        } else {
            server.kill();
        }
        server.start_again().await;
        let client = server.client();
        let after = client.range(quorate_tests::from_key("\0")).await.unwrap();
        assert_eq!(after.kvs, before.kvs);
        assert_eq!(after.header.unwrap().revision, before.header.as_ref().unwrap().revision);
        assert_eq!(verify_hash(&client).await, hash);
        let again = client.status(pb::StatusRequest {}).await.unwrap();
        assert_eq!(again.leader, status.leader, "the member keeps its id");
        assert!(again.raft_term > status.raft_term);
        assert!(again.raft_applied_index > status.raft_applied_index);
    }
}

async fn a_member_killed_while_compacting_keeps_its_data(kind: Kind) {
    let mut random = Random::by_chance();
    let mut server = Server::start(kind).await;
    let rounds = if is_long() { 40 } else { 2 };
    for _ in 0..rounds {
        let client = server.client();
        let mut tasks = JoinSet::new();
        for writer in 0..20 {
            let client = client.clone();
            tasks.spawn(async move {
                for number in 0..100 {
                    client.write(format!("k{writer}"), number.to_string()).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let revision = client.revision().await;
        let before = client.range(quorate_tests::from_key("\0")).await.unwrap();
        let request = pb::CompactionRequest { revision: revision - 3, physical: false };
        client.compact(request).await.unwrap();
        let hash = client.hash_kv(pb::HashKvRequest { revision }).await.unwrap();
        tokio::time::sleep(random.millis_below(40)).await;
        server.kill();
        server.start_again().await;
        let client = server.client();
        let after = client.range(quorate_tests::from_key("\0")).await.unwrap();
        assert_eq!(after.kvs, before.kvs);
        let again = client.hash_kv(pb::HashKvRequest { revision }).await.unwrap();
        assert_eq!((again.hash, again.compact_revision), (hash.hash, revision - 3));
        let past = pb::RangeRequest { revision: revision - 4, ..quorate_tests::key("k1") };
        assert_eq!(client.range(past).await.unwrap_err().code(), tonic::Code::OutOfRange);
    }
}

async fn members_take_snapshots_and_start_from_them(kind: Kind) {
    let mut server = Options::new(kind).flag("--snapshot-count=20").start().await;
    for round in 0..3 {
        let client = server.client();
        for number in 0..50 {
            client.write(format!("k{number}"), round.to_string()).await;
        }
        let saved = "saved snapshot";
        eventually("the log contains the line that tools wait for", async || {
            server.log().contains(saved).then_some(())
        })
        .await;
        server.kill();
        server.start_again().await;
        let client = server.client();
        assert_eq!(client.revision().await, 51 + round * 50);
        verify_hash(&client).await;
    }
    let folder = server.data().join("member").join("snap");
    let snapshots = std::fs::read_dir(folder).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "snap")
    });
    assert!(snapshots.count() > 0);
}

async fn old_snapshot_and_log_files_are_purged(kind: Kind) {
    if !is_long() {
        return;
    }
    let flags = ["--snapshot-count=10", "--max-snapshots=2", "--max-wals=2"];
    let options = flags.iter().fold(Options::new(kind), |all, flag| all.flag(*flag));
    let mut server = options.start().await;
    let client = server.client();
    for number in 0..400 {
        client.write(format!("k{}", number % 3), vec![b'v'; 1_000_000]).await;
    }
    let folder = server.data().join("member").join("snap");
    // The member checks its files every half minute.
    eventually_ok(Duration::from_secs(90), "old files are purged", async || {
        let snapshots = std::fs::read_dir(&folder).unwrap().filter(|entry| {
            entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "snap")
        });
        let (snapshots, logs) = (snapshots.count(), server.wal_files());
        if snapshots <= 2 && logs.len() <= 2 { Ok(()) } else { Err((snapshots, logs)) }
    })
    .await;
    server.kill();
    server.start_again().await;
    assert_eq!(server.client().revision().await, 401);
}
