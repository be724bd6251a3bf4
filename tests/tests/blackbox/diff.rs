//! `quorate ctl diff`, which compares clusters of either program, and snapshots of them.

use std::path::Path;
use std::sync::Arc;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{Ctl, Finished, Kind, Server, Tool, on_both_servers, put};
use serde_json::{Value, json};

on_both_servers! {
    differences_between_two_clusters_are_printed,
    keys_can_be_compared_with_keys_under_another_prefix,
    a_snapshot_is_compared_with_its_cluster,
    failures_and_differences_have_different_exit_codes,
    each_side_is_read_at_one_revision,
}

const SAME: i32 = 0;
const DIFFERENT: i32 = 1;
const TROUBLE: i32 = 2;

/// Returns `quorate ctl` with a server as its endpoint.
fn tool(server: &Server) -> Ctl {
    Ctl::of(Tool::QuorateCtl, server).unwrap()
}

/// Compares the keys of two servers.
fn diff(source: &Server, destination: &Server, flags: &[&str]) -> Finished {
    let address = format!("127.0.0.1:{}", destination.port());
    let user = destination.user_of_tools().map(|user| format!("--dest-user={user}"));
    let args = [&["diff", &address], flags].concat();
    tool(source).run(&args.into_iter().chain(user.as_deref()).collect::<Vec<_>>())
}

/// Compares a server's keys with the keys in a file.
fn diff_file(source: &Server, file: &Path, flags: &[&str]) -> Finished {
    let file = format!("--snapshot={}", file.display());
    tool(source).run(&[&["diff", &file], flags].concat())
}

/// Returns all lines except the last.
fn listed(finished: &Finished) -> Vec<&str> {
    let mut lines: Vec<_> = finished.stdout.lines().collect();
    lines.pop();
    lines
}

/// Returns the totals from the last line of the JSON output.
fn totals(finished: &Finished) -> Value {
    let last = finished.stdout.lines().last().unwrap_or_else(|| panic!("{finished:?}"));
    serde_json::from_str(last).unwrap()
}

async fn fill(server: &Server, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        server.client().write(key, value).await;
    }
}

async fn differences_between_two_clusters_are_printed(kind: Kind) {
    let (source, destination) = (Server::start(kind).await, Server::start(kind).await);
    assert_eq!(diff(&source, &destination, &[]).code, Some(SAME), "both servers are empty");
    fill(&source, &[("a", "1"), ("b", "22"), ("c", "3"), ("e\n", "5")]).await;
    fill(&destination, &[("b", "2"), ("c", "3"), ("d", "4")]).await;

    let output = diff(&source, &destination, &[]);
    assert_eq!(output.code, Some(DIFFERENT), "{output:?}");
    let changed = "~ \"b\"  value (2 bytes, 1 bytes), create_revision (3, 2), mod_revision (3, 2)";
    assert_eq!(listed(&output), ["- \"a\"", changed, "+ \"d\"", "- \"e\\n\""]);
    let last = output.stdout.lines().last().unwrap();
    assert_eq!(
        last,
        "2 keys only in the source (revision 5), 1 only in the destination (revision 4), 1 differ, 1 are the same"
    );
    assert_eq!(output.stderr, "");

    let output = diff(&source, &destination, &["-w", "json"]);
    let lines: Vec<Value> =
        listed(&output).into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!((&lines[0]["key"], &lines[0]["destination"]), (&json!("YQ=="), &Value::Null));
    let record = json!({"create_revision": 2, "mod_revision": 2, "version": 1, "lease": 0, "value_bytes": 1});
    assert_eq!(lines[1]["destination"], record);
    assert_eq!(totals(&output)["same"], 1);

    let output = diff(&source, &destination, &["--limit=1"]);
    assert_eq!((listed(&output), output.code), (vec!["- \"a\""], Some(DIFFERENT)));
    let output = diff(&source, &destination, &["--count-only"]);
    assert_eq!((listed(&output).len(), output.code), (0, Some(DIFFERENT)));
    // The values are equal, but were written at different times.
    assert_eq!(diff(&source, &destination, &["--prefix=c"]).code, Some(SAME));
    let output = diff(&source, &destination, &["--prefix=c", "--metadata"]);
    assert_eq!(output.code, Some(DIFFERENT), "{output:?}");
    // Changes between two revisions of one cluster are reported as well.
    let output = diff(&source, &source, &["--rev=2", "--dest-rev=4"]);
    assert_eq!(listed(&output), ["+ \"b\"", "+ \"c\""], "{output:?}");
}

async fn keys_can_be_compared_with_keys_under_another_prefix(kind: Kind) {
    let (source, destination) = (Server::start(kind).await, Server::start(kind).await);
    fill(&source, &[("a/1", "one"), ("a/2", "two"), ("b", "other")]).await;
    fill(&destination, &[("1", "one"), ("m/1", "one"), ("m/2", "two")]).await;
    let moved = ["--prefix=a/", "--dest-prefix=m/"];
    assert_eq!(diff(&source, &destination, &moved).code, Some(SAME));
    let output = diff(&source, &destination, &["--prefix=a/", "--no-dest-prefix"]);
    // Each key is printed with the name that it has in the cluster that contains it.
    assert_eq!(listed(&output), ["- \"a/2\"", "+ \"m/1\"", "+ \"m/2\""]);
}

async fn a_snapshot_is_compared_with_its_cluster(kind: Kind) {
    let server = Server::start(kind).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.db");
    fill(&server, &[("a", "1"), ("b", "2")]).await;
    let lease = server.client().grant(0, 3_600).await;
    let leased = pb::PutRequest { lease, ..put("leased", "v") };
    server.client().put(leased).await.unwrap();
    // After a linearizable read through the member whose file is fetched, the file contains all writes.
    drop(tool(&server).run(&["get", "a"]).success());
    drop(tool(&server).run(&["snapshot", "save", file.to_str().unwrap()]).success());
    assert_eq!(diff_file(&server, &file, &["--metadata"]).code, Some(SAME));

    fill(&server, &[("b", "3"), ("c", "4")]).await;
    let output = diff_file(&server, &file, &["-w", "json"]);
    assert_eq!(output.code, Some(DIFFERENT), "{output:?}");
    let revision = totals(&output)["destination_revision"].as_i64().unwrap();
    let then = format!("--rev={revision}");
    let output = diff_file(&server, &file, &[&then, "--metadata"]);
    assert_eq!(output.code, Some(SAME), "{output:?}");
    // The file also contains the history.
    let output = diff_file(&server, &file, &["--rev=2", "--dest-rev=2", "--metadata"]);
    assert_eq!(output.code, Some(SAME), "{output:?}");

    let newest = revision + 2;
    let compaction = pb::CompactionRequest { revision: newest, physical: true };
    server.client().compact(compaction).await.unwrap();
    let output = diff_file(&server, &file, &[&then]);
    assert_eq!(output.code, Some(TROUBLE), "{output:?}");
    let why = "Error: source: etcdserver: mvcc: required revision has been compacted\n";
    assert!(output.stderr.ends_with(why), "{output:?}");
}

async fn failures_and_differences_have_different_exit_codes(kind: Kind) {
    let server = Server::start(kind).await;
    let folder = tempfile::tempdir().unwrap();
    let (missing, damaged) = (folder.path().join("missing.db"), folder.path().join("damaged.db"));
    std::fs::write(&damaged, "no database, but long enough for a page of one".repeat(400)).unwrap();
    let in_use = server.data().join("member/snap/db");
    for (file, why) in [
        (&missing, "no such file or directory"),
        (&damaged, "damaged.db"),
        (&in_use, "member/snap/db"),
    ] {
        let output = diff_file(&server, file, &[]);
        assert_eq!(output.code, Some(TROUBLE), "{output:?}");
        assert!(output.stderr.contains(why) && output.stdout.is_empty(), "{output:?}");
    }
    for args in [
        &["diff"][..],
        &["diff", "127.0.0.1:1", "127.0.0.1:2"],
        &["diff", "127.0.0.1:1", "--snapshot=file"],
        &["diff", "--unknown"],
        &["diff", "--limit=-1", "127.0.0.1:1"],
        &["diff", "-w", "table", "127.0.0.1:1"],
        &["diff", "127.0.0.1:1", "--dial-timeout=10ms", "--command-timeout=10ms"],
        &["diff", "127.0.0.1:1", "--dest-prefix=a", "--no-dest-prefix"],
    ] {
        let output = tool(&server).run(args);
        assert_eq!(output.code, Some(TROUBLE), "{args:?}: {output:?}");
        assert!(output.stderr.contains("Error: "), "{args:?}: {output:?}");
    }
    let future = diff(&server, &server, &["--rev=1000"]);
    assert_eq!(future.code, Some(TROUBLE), "{future:?}");
    assert!(future.stderr.contains("source: etcdserver: mvcc: required revision is a future"));
}

/// Compares thousands of keys and some large values, which are read in many pages while other clients write.
async fn each_side_is_read_at_one_revision(kind: Kind) {
    let server = Arc::new(Server::start(kind).await);
    let client = server.client();
    for group in 0..30 {
        let puts = (0..100).map(|number| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(put(
                format!("k/{group:02}/{number:02}"),
                "v".repeat(number),
            ))),
        });
        let request = pb::TxnRequest { success: puts.collect(), ..Default::default() };
        client.txn(request).await.unwrap();
    }
    let mut revision = 0;
    for number in 0..12 {
        let reply = client.put(put(format!("k/15/large/{number}"), vec![b'v'; 1 << 20])).await;
        revision = reply.unwrap().header.unwrap().revision;
    }
    let comparing = {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            let flags = [format!("--rev={revision}"), format!("--dest-rev={revision}")];
            diff(&server, &server, &[&flags[0], &flags[1], "--metadata", "-w", "json"])
        })
    };
    let mut written = 0;
    while !comparing.is_finished() {
        let key = format!("k/{:02}/{:02}", written % 30, written % 100);
        client.put(put(key, "w")).await.unwrap();
        written += 1;
    }
    let output = comparing.await.unwrap();
    assert!(written > 0);
    assert_eq!(output.code, Some(SAME), "{output:?}");
    assert_eq!(totals(&output)["same"], 3_012);
}
