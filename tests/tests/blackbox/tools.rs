//! Tools and a library in common use: Debian's `etcdctl` and `etcdutl`, and an independent client library.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use etcd_client as ec;
use quorate_tests::{
    Ctl, Kind, Place, Server, Tool, etcdutl, eventually, has_etcd_tools, on_both_servers,
    run_to_end, with_both_tools,
};

with_both_tools! {
    ctl_puts_gets_and_deletes,
    ctl_get_supports_ranges_limits_and_orders,
    ctl_txn_executes_the_entered_transaction,
    ctl_grants_renews_and_revokes_leases,
    ctl_watch_prints_events,
    ctl_compacts_and_defragments,
    ctl_reports_health_and_status_of_endpoints,
    ctl_saves_a_snapshot,
    ctl_saves_a_snapshot_in_a_directory_that_it_cannot_read,
    ctl_prints_the_errors_of_refused_requests,
}

on_both_servers! {
    etcdctl_lists_and_disarms_alarms,
    etcdutl_accepts_the_backend_file_of_a_stopped_member,
    an_independent_client_can_read_and_write_keys,
    an_independent_client_can_watch,
    an_independent_client_can_use_leases,
    an_independent_client_can_use_maintenance_calls,
}

async fn ctl_puts_gets_and_deletes(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    assert_eq!(ctl.run(&["put", "k", "one"]).success(), "OK\n");
    assert_eq!(ctl.run(&["put", "k", "two", "--prev-kv"]).success(), "OK\nk\none\n");
    assert_eq!(ctl.run_with_input(&["put", "stdin"], "line\n").success(), "OK\n");
    assert_eq!(ctl.run(&["get", "k"]).success(), "k\ntwo\n");
    assert_eq!(ctl.run(&["get", "stdin", "--print-value-only"]).success(), "line\n\n");
    assert_eq!(ctl.run(&["get", "k", "--rev=2"]).success(), "k\none\n");
    assert_eq!(ctl.run(&["get", "k", "--consistency=s"]).success(), "k\ntwo\n");
    assert_eq!(ctl.run(&["del", "k", "--prev-kv"]).success(), "1\nk\ntwo\n");
    assert_eq!(ctl.run(&["del", "k"]).success(), "0\n");
    assert_eq!(ctl.run(&["get", "k"]).success(), "");
    let seen = ctl.run(&["get", "stdin", "-w", "json"]).success();
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!((&seen["count"], &seen["kvs"][0]["mod_revision"]), (&1.into(), &4.into()));
}

async fn ctl_get_supports_ranges_limits_and_orders(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let client = server.client();
    for (name, value) in [("a", "3"), ("b", "1"), ("c", "2"), ("other", "x")] {
        client.write(name, value).await;
    }
    let get = |args: &[&str]| {
        let args = [&["get", "--keys-only"], args].concat();
        ctl.run(&args).success().split_whitespace().collect::<Vec<_>>().join("")
    };
    assert_eq!(get(&["a", "c"]), "ab");
    assert_eq!(get(&["o", "--prefix"]), "other");
    assert_eq!(get(&["", "--prefix"]), "abcother");
    assert_eq!(get(&["b", "--from-key"]), "bcother");
    assert_eq!(get(&["a", "d", "--limit=2"]), "ab");
    assert_eq!(get(&["a", "d", "--order=DESCEND", "--sort-by=KEY"]), "cba");
    assert_eq!(get(&["a", "d", "--order=ASCEND", "--sort-by=VALUE"]), "bca");
    assert_eq!(get(&["a", "d", "--order=DESCEND", "--sort-by=MODIFY", "--limit=1"]), "c");
    if tool == Tool::Etcdctl {
        let count = ctl.run(&["get", "", "--prefix", "--count-only", "-w", "fields"]).success();
        assert!(count.contains("\"Count\" : 4"), "{count}");
    }
    assert_eq!(ctl.run(&["del", "a", "c", "--prev-kv"]).success(), "2\na\n3\nb\n1\n");
    assert_eq!(ctl.run(&["del", "", "--prefix"]).success(), "2\n");
}

async fn ctl_txn_executes_the_entered_transaction(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let input = "version(\"k\") = \"0\"\n\nput k first\n\nget k\n\n";
    let seen = ctl.run_with_input(&["txn"], input).success();
    assert_eq!(seen, "SUCCESS\n\nOK\n");
    let seen = ctl.run_with_input(&["txn"], input).success();
    assert_eq!(seen, "FAILURE\n\nk\nfirst\n");
    let input = "value(\"k\") = \"first\"\nmod(\"k\") < \"10\"\n\ndel k\nput l 1\n\n\n";
    assert_eq!(ctl.run_with_input(&["txn"], input).success(), "SUCCESS\n\n1\n\nOK\n");
    let abbreviated = "\np m 1\ng l\nde k\n\n\n";
    let seen = ctl.run_with_input(&["txn"], abbreviated).success();
    assert_eq!(seen, "SUCCESS\n\nOK\n\nl\n1\n\n0\n");
    let twice = "\nput k 1\nput k 2\n\n\n";
    let failed = ctl.run_with_input(&["txn"], twice);
    assert_ne!(failed.code, Some(0));
    let text = "etcdserver: duplicate key given in txn request";
    assert!(failed.stderr.contains(text), "{failed:?}");
}

async fn ctl_grants_renews_and_revokes_leases(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let granted = ctl.run(&["lease", "grant", "100"]).success();
    let id = granted.split(' ').nth(1).unwrap();
    assert_eq!(granted, format!("lease {id} granted with TTL(100s)\n"));
    let lease = format!("--lease={id}");
    assert_eq!(ctl.run(&["put", "k", "v", &lease]).success(), "OK\n");
    let look = ctl.run(&["lease", "timetolive", id, "--keys"]).success();
    let start = format!("lease {id} granted with TTL(100s), remaining(");
    assert!(look.starts_with(&start) && look.contains("attached keys([k])"), "{look}");
    let kept = ctl.run(&["lease", "keep-alive", "--once", id]).success();
    assert_eq!(kept, format!("lease {id} keepalived with TTL(100)\n"));
    let listed = ctl.run(&["lease", "list"]).success();
    assert_eq!(listed, format!("found 1 leases\n{id}\n"));
    assert_eq!(ctl.run(&["lease", "revoke", id]).success(), format!("lease {id} revoked\n"));
    assert_eq!(ctl.run(&["get", "k"]).success(), "");
    let gone = ctl.run(&["lease", "timetolive", id]).success();
    assert_eq!(gone, format!("lease {id} already expired\n"));
}

/// A watching process, killed when dropped.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn ctl_watch_prints_events(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let client = server.client();
    client.write("k1", "past").await;
    let mut command = ctl.command(&["watch", "k", "--prefix", "--rev=2", "--prev-kv"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut watching = Watching(command.spawn().unwrap());
    let lines = BufReader::new(watching.0.stdout.take().unwrap()).lines();
    client.write("k1", "now").await;
    client.write("else", "x").await;
    client.delete_range(quorate_tests::delete("k1", "")).await.unwrap();
    let seen: Vec<String> = lines.take(11).map(Result::unwrap).collect();
    let expected = ["PUT", "k1", "past", "PUT", "k1", "past", "k1", "now", "DELETE", "k1", "now"];
    assert_eq!(seen, expected);
}

async fn ctl_compacts_and_defragments(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let client = server.client();
    for number in 0..5 {
        client.write("k", number.to_string()).await;
    }
    assert_eq!(ctl.run(&["compaction", "4"]).success(), "compacted revision 4\n");
    assert_eq!(ctl.run(&["compaction", "5", "--physical"]).success(), "compacted revision 5\n");
    let failed = ctl.run(&["compaction", "5"]);
    assert_eq!(failed.code, Some(1));
    let text = "etcdserver: mvcc: required revision has been compacted";
    assert!(failed.stderr.contains(text), "{failed:?}");
    let done = ctl.run(&["defrag"]).success();
    assert!(done.starts_with("Finished defragmenting etcd member"), "{done}");
}

async fn ctl_reports_health_and_status_of_endpoints(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    server.client().write("k", "v").await;
    let health = ctl.run(&["endpoint", "health"]);
    assert_eq!(health.code, Some(0), "{health:?}");
    assert!((health.stdout + &health.stderr).contains("is healthy"));
    let status = ctl.run(&["endpoint", "status", "-w", "json"]).success();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let status = &status[0]["Status"];
    let leads = Place::of_suite().leads();
    assert_eq!(status["leader"] == status["header"]["member_id"], leads);
    if server.is_3_7() {
        assert_eq!(status["version"], "3.7.1");
    }
    let hash = ctl.run(&["endpoint", "hashkv", "-w", "json"]).success();
    let hash: serde_json::Value = serde_json::from_str(&hash).unwrap();
    let request = quorate_api::etcdserverpb::HashKvRequest { revision: 0 };
    let expected = server.client().hash_kv(request).await.unwrap().hash;
    assert_eq!(hash[0]["HashKV"]["hash"], expected);
    let members = ctl.run(&["member", "list"]).success();
    let own = format!(", started, {}, {}", server.name(), server.peer_url());
    assert!(members.contains(&own), "{members}");
    let table = ctl.run(&["endpoint", "status", "-w", "table"]).success();
    assert!(table.contains("IS LEADER"), "{table}");
}

async fn ctl_saves_a_snapshot(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let client = server.client();
    for number in 0..100 {
        client.write(format!("k{number}"), "v").await;
    }
    let file = server.scratch().join("saved.db");
    let path = file.to_str().unwrap();
    let saved = ctl.run(&["snapshot", "save", path]).success();
    assert!(saved.contains(&format!("Snapshot saved at {path}")), "{saved}");
    if tool == Tool::QuorateCtl {
        let old = server.scratch().join("saved-20000228T235959Z.db");
        std::fs::write(&old, "").unwrap();
        let kept = ctl.run(&["snapshot", "save", "--keep=1", path]).success();
        let name = kept.split_whitespace().nth(3).unwrap();
        let start = path.strip_suffix(".db").unwrap();
        assert!(name.starts_with(&format!("{start}-2")) && name.ends_with("Z.db"), "{kept}");
        assert!(std::path::Path::new(name).exists() && file.exists() && !old.exists(), "{kept}");
    }
    if !has_etcd_tools() {
        return;
    }
    let status = etcdutl(&["snapshot", "status", path, "-w", "json"]).success();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["revision"], 101);
    // The tool counts the entries of all buckets, most of which are keys.
    assert!(status["totalKey"].as_i64().unwrap() >= 100, "{status}");
}

async fn ctl_saves_a_snapshot_in_a_directory_that_it_cannot_read(kind: Kind, tool: Tool) {
    const NOBODY: u32 = 65534;
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o333)).unwrap();
    let save = |name: &str, more: &[&str]| {
        let file = directory.path().join(name);
        let mut command =
            ctl.command(&[&["snapshot", "save", file.to_str().unwrap()], more].concat());
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            // No directory is unreadable for root.
            command.uid(NOBODY).gid(NOBODY);
        }
        run_to_end(command, "")
    };
    let saved = save("saved.db", &[]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    assert!(saved.stdout.contains("Snapshot saved at"), "{saved:?}");
    assert!(directory.path().join("saved.db").exists());
    if tool == Tool::QuorateCtl {
        let kept = save("kept.db", &["--keep=1"]);
        assert_eq!(kept.code, Some(0), "{kept:?}");
        assert!(kept.stderr.contains("older snapshots are not removed"), "{kept:?}");
    }
    // Without this, the directory could not be removed.
    std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
}

async fn etcdctl_lists_and_disarms_alarms(kind: Kind) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(Tool::Etcdctl, &server) else { return };
    assert_eq!(ctl.run(&["alarm", "list"]).success(), "");
    let request = quorate_api::etcdserverpb::AlarmRequest { action: 1, member_id: 7, alarm: 1 };
    server.client().alarm(request).await.unwrap();
    let squeezed = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let listed = squeezed(ctl.run(&["alarm", "list"]).success());
    assert_eq!(listed, "memberID:7 alarm:NOSPACE");
    let disarmed = squeezed(ctl.run(&["alarm", "disarm"]).success());
    assert_eq!(disarmed, "memberID:7 alarm:NOSPACE");
    assert_eq!(ctl.run(&["alarm", "list"]).success(), "");
}

async fn ctl_prints_the_errors_of_refused_requests(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let failed = ctl.run(&["put", "k", "v", "--lease=1234"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("etcdserver: requested lease not found"), "{failed:?}");
    let failed = ctl.run(&["get", "k", "--rev=100"]);
    let text = "etcdserver: mvcc: required revision is a future revision";
    assert!(failed.stderr.contains(text), "{failed:?}");
}

async fn etcdutl_accepts_the_backend_file_of_a_stopped_member(kind: Kind) {
    let mut server = Server::start(kind).await;
    if !has_etcd_tools() {
        return;
    }
    let client = server.client();
    for number in 0..100 {
        client.write(format!("k{number}"), "v").await;
    }
    // After a clean stop, the file contains everything. The tool works on a copy without a digest.
    server.stop().await;
    let file = server.scratch().join("copy.db");
    std::fs::copy(server.backend(), &file).unwrap();
    let path = file.to_str().unwrap();
    let status = etcdutl(&["snapshot", "status", path, "-w", "json"]).success();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["revision"], 101);
    let data = server.data().to_str().unwrap();
    drop(etcdutl(&["defrag", "--data-dir", data]).success());
    server.start_again().await;
    assert_eq!(server.client().read("k99").await.unwrap(), b"v");
    assert_eq!(server.client().revision().await, 101);
}

async fn connect(server: &Server) -> ec::Client {
    let user = server.user_of_tools();
    let user = user.as_deref().and_then(|user| user.split_once(':'));
    let options = user.map(|(name, password)| ec::ConnectOptions::new().with_user(name, password));
    ec::Client::connect([format!("127.0.0.1:{}", server.port())], options).await.unwrap()
}

async fn an_independent_client_can_read_and_write_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let mut client = connect(&server).await;
    client.put("a", "1", None).await.unwrap();
    let options = ec::PutOptions::new().with_prev_key();
    let answer = client.put("a", "2", Some(options)).await.unwrap();
    assert_eq!(answer.prev_key().unwrap().value(), b"1");
    client.put("b", "3", None).await.unwrap();
    let options =
        ec::GetOptions::new().with_prefix().with_sort(ec::SortTarget::Key, ec::SortOrder::Descend);
    let answer = client.get("", Some(options)).await.unwrap();
    let keys: Vec<_> = answer.kvs().iter().map(ec::KeyValue::key).collect();
    assert_eq!(keys, [b"b", b"a"]);
    let request = ec::Txn::new()
        .when([ec::Compare::value("a", ec::CompareOp::Equal, "2")])
        .and_then([ec::TxnOp::put("a", "4", None), ec::TxnOp::get("a", None)])
        .or_else([ec::TxnOp::delete("a", None)]);
    let answer = client.txn(request).await.unwrap();
    assert!(answer.succeeded());
    assert_eq!(answer.op_responses().len(), 2);
    let options = ec::DeleteOptions::new().with_from_key();
    assert_eq!(client.delete("a", Some(options)).await.unwrap().deleted(), 2);
    client.compact(4, None).await.unwrap();
    assert!(client.compact(4, None).await.is_err());
}

async fn an_independent_client_can_watch(kind: Kind) {
    let server = Server::start(kind).await;
    let mut client = connect(&server).await;
    let options = ec::WatchOptions::new().with_prefix().with_prev_key();
    let mut stream = client.watch("k", Some(options)).await.unwrap();
    assert!(stream.message().await.unwrap().unwrap().created());
    client.put("k1", "v", None).await.unwrap();
    client.delete("k1", None).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let message = stream.message().await.unwrap().unwrap();
        seen.extend(message.events().iter().map(|event| event.event_type()));
    }
    assert_eq!(seen, [ec::EventType::Put, ec::EventType::Delete]);
    stream.request_progress().await.unwrap();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.header().unwrap().revision(), 3);
    stream.cancel(0).await.unwrap();
    assert!(stream.message().await.unwrap().unwrap().canceled());
}

async fn an_independent_client_can_use_leases(kind: Kind) {
    let server = Server::start(kind).await;
    let mut client = connect(&server).await;
    let id = client.lease_grant(60, None).await.unwrap().id();
    client.put("k", "v", Some(ec::PutOptions::new().with_lease(id))).await.unwrap();
    let (mut keeper, mut stream) = client.lease_keep_alive(id).await.unwrap();
    for _ in 0..3 {
        keeper.keep_alive().await.unwrap();
        assert_eq!(stream.message().await.unwrap().unwrap().ttl(), 60);
    }
    let options = ec::LeaseTimeToLiveOptions::new().with_keys();
    let seen = client.lease_time_to_live(id, Some(options)).await.unwrap();
    assert_eq!(seen.keys(), [b"k"]);
    assert_eq!(client.leases().await.unwrap().leases().len(), 1);
    client.lease_revoke(id).await.unwrap();
    assert!(client.get("k", None).await.unwrap().kvs().is_empty());
}

async fn an_independent_client_can_use_maintenance_calls(kind: Kind) {
    let server = Server::start(kind).await;
    let mut client = connect(&server).await;
    client.put("k", "v", None).await.unwrap();
    let status = client.status().await.unwrap();
    let leads = Place::of_suite().leads();
    assert_eq!(status.leader() == status.header().unwrap().member_id(), leads);
    assert!(client.hash().await.unwrap().hash() != 0);
    assert!(client.hash_kv(0).await.unwrap().hash() != 0);
    client.defragment().await.unwrap();
    let mut snapshot = client.snapshot().await.unwrap();
    let mut size = 0;
    while let Some(message) = snapshot.message().await.unwrap() {
        size += message.blob().len();
    }
    assert_eq!(size % 512, 32, "the snapshot consists of database pages and a digest");
    let list = client.member_list().await.unwrap();
    assert_eq!(list.members().len(), Place::of_suite().members());
    let alarms = client.alarm(ec::AlarmAction::Get, ec::AlarmType::None, None).await.unwrap();
    assert!(alarms.alarms().is_empty());
    let answer = eventually("the member accepts another write", async || {
        client.put("k", "w", None).await.ok()
    })
    .await;
    assert_eq!(answer.header().unwrap().revision(), 3);
}
