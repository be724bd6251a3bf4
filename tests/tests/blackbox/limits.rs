//! Exhausted disk space and memory.

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Kind, Options, Server, SmallDisk, Watch, eventually, is_long, on_both_servers,
    on_quorate, prefix, put, watch_prefix,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

on_both_servers! {
    alone:
    no_acknowledged_write_is_lost_on_a_full_disk,
    no_acknowledged_write_is_lost_at_a_file_size_limit,
    parallel_lists_use_bounded_memory,
    a_watcher_that_never_reads_uses_bounded_memory,
}

on_quorate! {
    alone:
    writing_the_backend_continues_when_disk_space_is_available_again,
    a_backend_without_disk_space_does_not_delay_shutdown,
    a_disk_full_alarm_is_cleared_after_a_kill,
    etcd_reads_a_disk_full_alarm,
}

/// Writes until the server refuses a write or exits. Returns the number of acknowledged writes.
async fn write_until_refused(client: &Client, size: usize) -> usize {
    let value = vec![b'v'; size];
    for number in 0..10_000 {
        let write = tokio::time::timeout(
            std::time::Duration::from_secs(10),
            client.put(put(format!("k{number:05}"), &value)),
        );
        match write.await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return number,
        }
    }
    panic!("no write was refused");
}

async fn check_acknowledged(client: &Client, acknowledged: usize) {
    let answer = client.range(pb::RangeRequest { keys_only: true, ..prefix("k") }).await.unwrap();
    // The refused write may exist, because its outcome is unknown.
    let count = answer.kvs.len();
    assert!(
        (acknowledged..=acknowledged + 1).contains(&count),
        "{acknowledged} keys were acknowledged, and {count} keys exist"
    );
    for (number, record) in answer.kvs.iter().enumerate() {
        assert_eq!(record.key(), format!("k{number:05}").as_bytes());
    }
}

async fn no_acknowledged_write_is_lost_on_a_full_disk(kind: Kind) {
    // Two log segments are preallocated, which leaves little space for the backend.
    let Some(disk) = SmallDisk::new(150) else { return };
    let mut server = disk.prepare(Options::new(kind)).start().await;
    let acknowledged = write_until_refused(&server.client(), 100_000).await;
    assert!(acknowledged > 10, "only {acknowledged} writes fit");
    // The server must not continue as usual. It exits, or it refuses further writes.
    eventually("the server exits or refuses writes", async || {
        let refused = client_refused(&server).await;
        (!server.is_running() || refused).then_some(())
    })
    .await;
    if kind == Kind::Quorate {
        // Clients lose their connections just before the process logs the reason for exiting.
        eventually("the log contains the reason", async || {
            server.log().contains("No space left on device").then_some(())
        })
        .await;
        let log = server.log();
        assert!(!log.contains("panicked at"), "{log}");
    }
    server.kill();
    disk.resize(1_000);
    server.start_again().await;
    let client = server.client();
    check_acknowledged(&client, acknowledged).await;
    // A Quorate member clears the alarm that it may have raised. An etcd member has raised none.
    no_alarm(&client).await;
    client.write("after", "v").await;
}

/// Waits until there is no alarm.
async fn no_alarm(client: &Client) {
    eventually("there is no alarm", async || {
        client.alarm(pb::AlarmRequest::default()).await.unwrap().alarms.is_empty().then_some(())
    })
    .await;
}

/// Starts a member whose log has disk space and whose backend file has none. Also returns the number of acknowledged
/// writes.
async fn without_space_for_the_backend(kind: Kind) -> Option<(SmallDisk, Server, usize)> {
    let disk = SmallDisk::new(300)?;
    let server = disk.prepare(Options::new(kind)).start().await;
    // The log segment is preallocated, so only the backend file needs space.
    disk.fill_but(0);
    let acknowledged = write_until_refused(&server.client(), 100_000).await;
    let refused = server.client().put(put("another", b"v")).await.unwrap_err();
    let log = server.log();
    assert!(refused.message().contains("database space exceeded"), "{refused}: {log}");
    // Clients receive the refusal just before the process logs the reason.
    eventually("the log contains the reason", async || {
        server.log().contains("no disk space for the backend file").then_some(())
    })
    .await;
    Some((disk, server, acknowledged))
}

async fn writing_the_backend_continues_when_disk_space_is_available_again(kind: Kind) {
    let Some((disk, mut server, acknowledged)) = without_space_for_the_backend(kind).await else {
        return;
    };
    check_acknowledged(&server.client(), acknowledged).await;
    disk.resize(1_000);
    eventually("the log reports that disk space is available", async || {
        server.log().contains("disk space is available again for the backend file").then_some(())
    })
    .await;
    let client = server.client();
    no_alarm(&client).await;
    client.write("after", "v").await;
    server.kill();
    server.start_again().await;
    check_acknowledged(&server.client(), acknowledged).await;
    assert!(server.client().read("after").await.is_some());
}

async fn a_backend_without_disk_space_does_not_delay_shutdown(kind: Kind) {
    let Some((disk, mut server, acknowledged)) = without_space_for_the_backend(kind).await else {
        return;
    };
    server.stop().await;
    disk.resize(1_000);
    server.start_again().await;
    check_acknowledged(&server.client(), acknowledged).await;
}

async fn a_disk_full_alarm_is_cleared_after_a_kill(kind: Kind) {
    let Some((disk, mut server, acknowledged)) = without_space_for_the_backend(kind).await else {
        return;
    };
    assert!(is_out_of_space(&server.client()).await);
    server.kill();
    disk.resize(1_000);
    server.start_again().await;
    let client = server.client();
    check_acknowledged(&client, acknowledged).await;
    no_alarm(&client).await;
    client.write("after", "v").await;
    // The alarm does not return when the log is replayed.
    server.kill();
    server.start_again().await;
    let client = server.client();
    assert!(!is_out_of_space(&client).await);
    client.write("later", "v").await;
}

async fn etcd_reads_a_disk_full_alarm(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let Some(disk) = SmallDisk::new(300) else { return };
    let held = |kind| disk.prepare(Options::new(kind));
    let server = held(kind).flag("--hold-cluster-version=3.5").start().await;
    disk.fill_but(0);
    let acknowledged = write_until_refused(&server.client(), 100_000).await;
    eventually("an alarm is raised", async || {
        is_out_of_space(&server.client()).await.then_some(())
    })
    .await;
    drop(server);
    disk.resize(1_000);
    let server = held(Kind::Etcd).start().await;
    let client = server.client();
    check_acknowledged(&client, acknowledged).await;
    assert!(is_out_of_space(&client).await, "etcd reads the NOSPACE alarm");
    let refused = client.put(put("another", b"v")).await.unwrap_err();
    assert!(refused.message().contains("database space exceeded"), "{refused}");
    disarm(&client).await;
    client.write("after", "v").await;
    drop(server);
    let server = held(kind).flag("--hold-cluster-version=3.5").start().await;
    let client = server.client();
    assert!(!is_out_of_space(&client).await);
    assert!(client.read("after").await.is_some());
}

async fn is_out_of_space(client: &Client) -> bool {
    let raised = client.alarm(pb::AlarmRequest::default()).await.unwrap().alarms;
    raised.iter().any(|alarm| alarm.alarm() == pb::AlarmType::Nospace)
}

/// Disarms the alarm that was raised because of the full disk.
async fn disarm(client: &Client) {
    for raised in client.alarm(pb::AlarmRequest::default()).await.unwrap().alarms {
        let disarm = pb::AlarmRequest {
            action: pb::alarm_request::AlarmAction::Deactivate.into(),
            member_id: raised.member_id,
            alarm: raised.alarm,
        };
        client.alarm(disarm).await.unwrap();
    }
}

async fn client_refused(server: &Server) -> bool {
    let limit = std::time::Duration::from_secs(2);
    let write = tokio::time::timeout(limit, async {
        server.client().put(put("another", vec![b'v'; 100_000])).await
    });
    !matches!(write.await, Ok(Ok(_)))
}

async fn no_acknowledged_write_is_lost_at_a_file_size_limit(kind: Kind) {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    // A segment just fits within the limit, but the backend and the end of the log do not. The process ignores the
    // signal for exceeding the limit, so that only the write fails.
    let script = "trap '' XFSZ; ulimit -f 62600; exec \"$@\"";
    let mut server =
        Options::new(kind).wrapper(&["bash", "-c", script, "limited"]).data(&data).start().await;
    let acknowledged = write_until_refused(&server.client(), 500_000).await;
    assert!(acknowledged > 10, "only {acknowledged} writes fit");
    if kind == Kind::Quorate {
        let log = server.log();
        assert!(!log.contains("panicked at"), "{log}");
    }
    server.kill();
    let server = Options::new(kind).data(&data).start().await;
    let client = server.client();
    check_acknowledged(&client, acknowledged).await;
    disarm(&client).await;
    client.write("after", "v").await;
}

async fn parallel_lists_use_bounded_memory(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // The values amount to 10 MB, or 100 MB in a long run.
    let (count, size) = (1_000, if is_long() { 100_000 } else { 10_000 });
    let mut writers = JoinSet::new();
    for writer in 0..10 {
        let client = client.clone();
        writers.spawn(async move {
            let value = vec![b'v'; size];
            for number in 0..count / 10 {
                client.write(format!("k{writer}/{number:03}"), &value).await;
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let before = server.memory("RssAnon");
    let mut readers = JoinSet::new();
    for _ in 0..50 {
        let client = server.client();
        readers.spawn(async move {
            // In a long run, the lists exceed the limit on concurrent lists, and a list that waits too long is
            // refused.
            let answer = loop {
                match client.range(prefix("k")).await {
                    Err(refused) if refused.message() == "etcdserver: too many requests" => {}
                    answer => break answer.unwrap(),
                }
            };
            assert_eq!(answer.kvs.len(), count);
        });
    }
    let mut highest = 0;
    while let Some(done) = readers.join_next().await {
        done.unwrap();
        highest = highest.max(server.memory("RssAnon"));
    }
    let whole = 50 * (count * size) as u64;
    let grown = highest.saturating_sub(before);
    show_figure("parallel lists", whole, grown);
    if kind == Kind::Quorate {
        assert!(grown < whole / 2, "memory grew by {grown} bytes for {whole} bytes of answers");
    }
}

#[expect(clippy::print_stdout, reason = "the test prints a measured figure")]
fn show_figure(what: &str, moved: u64, grown: u64) {
    let (moved, grown) = (moved >> 20, grown >> 20);
    println!("{what}: {moved} MiB moved, memory grew by {grown} MiB");
}

async fn a_watcher_that_never_reads_uses_bounded_memory(kind: Kind) {
    let server = Server::start(kind).await;
    let idle = server.client();
    let mut watch = Watch::open(&idle);
    watch.create(watch_prefix("k")).await;
    let client = server.client();
    let (count, size) = (if is_long() { 30_000 } else { 4_000 }, 20_000);
    let before = server.memory("RssAnon");
    let value = vec![b'v'; size];
    for number in 0..count {
        client.write(format!("k{}", number % 10), &value).await;
    }
    let moved = u64::try_from(count * size).unwrap();
    let grown = server.memory("RssAnon").saturating_sub(before);
    show_figure("an idle watcher", moved, grown);
    if kind == Kind::Quorate {
        // The newest records are always in memory, in addition to the events queued for the watcher.
        assert!(
            grown < moved + (64 << 20),
            "memory grew by {grown} bytes for {moved} bytes of events"
        );
    }
    // The events arrive late, but completely and in order.
    let mut next = 2;
    while next <= i64::try_from(count).unwrap() + 1 {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        for event in response.events {
            assert_eq!(event.kv.unwrap().fields().mod_revision, next);
            next += 1;
        }
    }
}
