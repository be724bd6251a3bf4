//! Effects of flags and environment variables that no other test covers: log files and log lines, pings, memory,
//! defragmentation at start, notifications of the init system, and the log line with the configuration.

use std::path::Path;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Kind, Options, RawHttp2, Server, call_head, delete, eventually, on_both_servers, on_quorate,
    put,
};
use serde_json::{Value, json};
use tempfile::TempDir;

on_both_servers! {
    alone:
    a_full_log_file_is_rotated,
    an_invalid_log_rotation_configuration_prevents_the_start,
    a_client_with_too_many_pings_is_disconnected,
    pings_are_accepted_at_the_configured_minimum,
    the_backend_is_defragmented_at_start,
    the_backend_file_is_locked_in_memory,
    the_configuration_is_logged_at_start,
}

on_quorate! {
    alone:
    log_lines_have_the_configured_level_and_format,
    the_backend_file_stays_locked_in_memory_as_it_grows,
    the_init_system_receives_readiness_and_watchdog_notifications,
}

/// Returns a flag with a value, under the server's name for the flag. Some flags have a different name in etcd 3.5.
fn flag(kind: Kind, name: &str, value: &str) -> String {
    match kind {
        Kind::Quorate => format!("--{name}={value}"),
        Kind::Etcd => format!("--experimental-{name}={value}"),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn a_full_log_file_is_rotated(kind: Kind) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("member.log");
    // The log file has already reached its maximum size.
    std::fs::write(&path, "an old line\n".repeat((1 << 20) / 12 + 1)).unwrap();
    for backup in ["member-2006-01-02T15-04-05.000.log", "member-2006-01-02T15-04-06.000.log.gz"] {
        std::fs::write(dir.path().join(backup), backup).unwrap();
    }
    let _server = Options::new(kind)
        .flag(format!("--log-outputs=stderr,{}", path.display()))
        .flag("--enable-log-rotation")
        .flag(r#"--log-rotation-config-json={"maxsize":1,"maxbackups":2,"compress":true}"#)
        .start()
        .await;
    let backups = eventually(
        "a log file is set aside and compressed, and the oldest is removed",
        async || {
            let mut backups = names(dir.path());
            backups.retain(|name| name.starts_with("member-"));
            backups.sort();
            let is_done = backups.len() == 2 && backups.iter().all(|name| name.ends_with(".gz"));
            is_done.then_some(backups)
        },
    )
    .await;
    assert_eq!(backups[0], "member-2006-01-02T15-04-06.000.log.gz");
    let now = std::fs::read_to_string(&path).unwrap();
    assert!(now.contains("starting an etcd server") && !now.contains("an old line"), "{now}");
}

async fn an_invalid_log_rotation_configuration_prevents_the_start(kind: Kind) {
    for (flags, text) in [
        (
            &["--enable-log-rotation"][..],
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            &["--enable-log-rotation", "--log-outputs=a,b"],
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            &["--enable-log-rotation", "--log-outputs=a", "--log-rotation-config-json={"],
            "improperly formatted log rotation config: unexpected end of JSON input",
        ),
        (
            &[
                "--enable-log-rotation",
                "--log-outputs=a",
                r#"--log-rotation-config-json={"maxsize":"1"}"#,
            ],
            "invalid log rotation config: json: cannot unmarshal string into Go struct field \
             logRotationConfig.",
        ),
    ] {
        let home = TempDir::new().unwrap();
        let mut command = std::process::Command::new(kind.program());
        command.args(flags).current_dir(home.path());
        let ended = quorate_tests::run_to_end(command, "");
        assert_eq!(ended.code, Some(1), "{flags:?}");
        let said = ended.stdout + &ended.stderr;
        assert!(said.contains(text), "{flags:?}: {said}");
    }
}

async fn a_client_with_too_many_pings_is_disconnected(kind: Kind) {
    let server = Options::new(kind).unguarded().start().await;
    let mut client = RawHttp2::connect(server.port());
    for _ in 0..3 {
        assert_eq!(client.ping(), Ok(()));
    }
    // This is the third early ping. etcd answers it before it closes the connection.
    let logged = client.ping().err().unwrap_or_else(|| client.read_farewell());
    assert_eq!(logged, (Some(11), "too_many_pings".to_owned()));
}

async fn pings_are_accepted_at_the_configured_minimum(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--grpc-keepalive-min-time=1ns").start().await;
    let mut client = RawHttp2::connect(server.port());
    // Without an open stream, the minimum is two hours, regardless of `--grpc-keepalive-min-time`.
    client.open(&call_head("/etcdserverpb.Watch/Watch"));
    for _ in 0..10 {
        assert_eq!(client.ping(), Ok(()));
    }
}

async fn log_lines_have_the_configured_level_and_format(kind: Kind) {
    let flags = ["--log-level=debug", "--log-format=console"];
    let server = flags.into_iter().fold(Options::new(kind), Options::flag).start().await;
    assert_eq!(server.get("/health").status, 200);
    let line = eventually("a line of level debug", async || {
        server.log().lines().find(|line| line.contains("/health OK")).map(str::to_owned)
    })
    .await;
    assert!(serde_json::from_str::<Value>(&line).is_err(), "{line}");
}

fn size(server: &Server) -> f64 {
    server.metric("etcd_mvcc_db_total_size_in_bytes").unwrap()
}

async fn the_backend_is_defragmented_at_start(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    // The keys that remain are written last. Otherwise the file could shrink on its own by the free space at its end.
    for name in (0..40).map(|n| format!("key {n}")).chain((0..20).map(|n| format!("stays {n}"))) {
        client.put(put(name, vec![b'v'; 200_000])).await.unwrap();
    }
    let deleted = client.delete_range(delete("key", "kez")).await.unwrap();
    let revision = deleted.header.unwrap().revision;
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    eventually("much of the file is free", async || {
        let in_use = server.metric("etcd_mvcc_db_total_size_in_use_in_bytes").unwrap();
        (in_use < 6e6 && size(&server) > 11e6).then_some(())
    })
    .await;
    server.stop().await;
    // There is less free space than the threshold, so the file is not defragmented.
    server.set_flags(&[&flag(kind, "bootstrap-defrag-threshold-megabytes", "100")]);
    server.start_again().await;
    assert!(size(&server) > 11e6, "{}", size(&server));
    server.wait_for_log("Skipping defragmentation").await;
    server.stop().await;
    server.set_flags(&[&flag(kind, "bootstrap-defrag-threshold-megabytes", "5")]);
    server.start_again().await;
    assert!(size(&server) < 7e6, "{}", size(&server));
    server.wait_for_log("finished defragmenting directory").await;
    server.client().write("after", "v").await;
    assert_eq!(server.client().read("after").await.unwrap(), b"v");
    // With this flag, a member logs at every start, including the first, whether it defragments the file.
    let of_new = flag(kind, "bootstrap-defrag-threshold-megabytes", "100");
    let new = Options::new(kind).flag(of_new).start().await;
    new.wait_for_log("Skipping defragmentation").await;
}

async fn the_backend_file_is_locked_in_memory(kind: Kind) {
    let plain = Server::start(kind).await;
    assert_eq!(plain.memory("VmLck"), 0);
    let server = Options::new(kind).flag(flag(kind, "memory-mlock", "true")).start().await;
    assert!(server.memory("VmLck") > 0);
}

async fn the_backend_file_stays_locked_in_memory_as_it_grows(kind: Kind) {
    let server = Options::new(kind).flag("--memory-mlock").start().await;
    let locked = server.memory("VmLck") as f64;
    let client = server.client();
    // From the start, the file contains space for growth, and that space is locked, too.
    let count = (locked / 200_000.0) as usize + 10;
    for number in 0..count {
        client.put(put(format!("key {number}"), vec![b'v'; 200_000])).await.unwrap();
    }
    eventually("the larger file is locked", async || {
        let bytes = size(&server);
        (bytes > locked && server.memory("VmLck") as f64 >= bytes).then_some(())
    })
    .await;
}

async fn the_init_system_receives_readiness_and_watchdog_notifications(kind: Kind) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let _server = Options::new(kind)
        .environment("NOTIFY_SOCKET", path.to_str().unwrap())
        .environment("WATCHDOG_USEC", "200000")
        .start()
        .await;
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let mut message = [0; 64];
        let count = socket.recv(&mut message).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&message[..count]), expected);
    }
}

/// Fields that etcd 3.5 does not log or logs differently.
const SINCE_3_5: &[&str] = &["local-address", "feature-gates", "max-learners", "v2-deprecation"];

async fn the_configuration_is_logged_at_start(kind: Kind) {
    let mut server = Options::new(kind)
        .unguarded()
        .name("teller")
        .flag("--snapshot-count=7000")
        .flag("--quota-backend-bytes=4000000000")
        .flag("--max-request-bytes=1000000")
        .flag("--max-concurrent-streams=50")
        .flag("--pre-vote=false")
        .flag("--auto-compaction-retention=90m")
        .flag("--cors=http://a:1,http://b:2")
        .flag("--host-whitelist=one,two")
        .flag(flag(kind, "snapshot-catchup-entries", "600"))
        .start()
        .await;
    let logged = |server: &Server| {
        let log = server.log_of_this_run();
        let line = log.lines().find(|line| line.contains("\"starting an etcd server\"")).unwrap();
        serde_json::from_str::<Value>(line).unwrap()
    };
    let line = logged(&server);
    let data = server.data().to_str().unwrap();
    let expected = json!({
        "max-cpu-set": std::thread::available_parallelism().unwrap().get(),
        "member-initialized": false,
        "name": "teller", "data-dir": data, "wal-dir": "", "wal-dir-dedicated": "",
        "member-dir": format!("{data}/member"),
        "force-new-cluster": false, "heartbeat-interval": "10ms", "election-timeout": "100ms",
        "initial-election-tick-advance": true, "snapshot-count": 7000,
        "max-wals": 5, "max-snapshots": 5, "snapshot-catchup-entries": 600,
        "initial-advertise-peer-urls": [server.peer_url()], "listen-peer-urls": [server.peer_url()],
        "advertise-client-urls": [server.url()], "listen-client-urls": [server.listen_url()],
        "listen-metrics-urls": [], "local-address": "",
        "cors": ["http://a:1", "http://b:2"], "host-whitelist": ["one", "two"],
        "initial-cluster": format!("teller={}", server.peer_url()),
        "initial-cluster-state": "new", "initial-cluster-token": "etcd-cluster",
        "quota-backend-bytes": 4_000_000_000_u64, "max-request-bytes": 1_000_000,
        "max-concurrent-streams": 50, "pre-vote": false, "feature-gates": "",
        "initial-corrupt-check": false, "corrupt-check-time-interval": "0s",
        "compact-check-time-interval": "1m0s", "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h30m0s", "auto-compaction-interval": "1h30m0s",
        "downgrade-check-interval": "5s", "max-learners": 1, "v2-deprecation": "write-only",
    });
    for (key, value) in expected.as_object().unwrap() {
        if kind == Kind::Quorate || !SINCE_3_5.contains(&key.as_str()) {
            assert_eq!(&line[key], value, "{key} in {line}");
        }
    }
    server.stop().await;
    server.start_again().await;
    // A member with data ignores the initial cluster.
    let line = logged(&server);
    let found = ["member-initialized", "initial-cluster", "initial-cluster-token"];
    assert_eq!(found.map(|key| line[key].clone()), [json!(true), json!(""), json!("")], "{line}");
}
