//! The `make-mirror` and `check` commands of both command-line tools.

use std::process::{Child, Stdio};

use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest,
};
use quorate_tests::{Ctl, Kind, Server, Tool, eventually, send_signal, with_both_tools};

with_both_tools! {
    a_mirror_follows_its_source,
    make_mirror_reports_invalid_arguments,
    checks_refuse_invalid_arguments,
    check_datascale_reports_megabytes,
    an_interrupted_check_perf_deletes_its_keys,
}

/// A running tool, killed when dropped.
struct Working(Child);

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns keys and values, in order.
fn pairs(ctl: &Ctl, prefix: &str) -> Vec<String> {
    let shown = ctl.run(&["get", prefix, "--prefix"]).success();
    shown.lines().map(str::to_owned).collect()
}

async fn a_mirror_follows_its_source(kind: Kind, tool: Tool) {
    let (source, destination) = (Server::start(kind).await, Server::start(kind).await);
    let (Some(from), Some(to)) = (Ctl::of(tool, &source), Ctl::of(tool, &destination)) else {
        return;
    };
    let client = source.client();
    for (key, value) in [("a/1", "one"), ("a/2", "two"), ("b", "other")] {
        client.write(key, value).await;
    }
    let address = format!("127.0.0.1:{}", destination.port());
    let mut args = vec!["make-mirror", &address, "--prefix=a/", "--dest-prefix=m/"];
    let user = destination.user_of_tools().map(|user| format!("--dest-user={user}"));
    args.extend(user.as_deref());
    let mut command = from.command(&args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut working = Working(command.spawn().unwrap());
    let reaches = async |expected: &[&str]| {
        eventually("the mirror contains the expected keys", async || {
            (pairs(&to, "m/") == expected).then_some(())
        })
        .await;
    };
    reaches(&["m/1", "one", "m/2", "two"]).await;
    let put = PutRequest { key: "a/3".into(), value: "three".into(), ..Default::default() };
    let delete = DeleteRangeRequest { key: "a/1".into(), ..Default::default() };
    let elsewhere = PutRequest { key: "c".into(), ..Default::default() };
    let operations = [
        Request::RequestPut(put),
        Request::RequestDeleteRange(delete),
        Request::RequestPut(elsewhere),
    ];
    let success = operations.map(|request| RequestOp { request: Some(request) }).to_vec();
    client.txn(TxnRequest { success, ..Default::default() }).await.unwrap();
    reaches(&["m/2", "two", "m/3", "three"]).await;
    assert_eq!(pairs(&to, "").len(), 4);
    assert_eq!(working.0.try_wait().unwrap(), None);
}

async fn make_mirror_reports_invalid_arguments(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let client = server.client();
    for value in ["1", "2", "3"] {
        client.write("k", value).await;
    }
    let compaction = CompactionRequest { revision: 4, ..Default::default() };
    client.compact(compaction).await.unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let (both, before) = (["--dest-prefix=x", "--no-dest-prefix"], ["--rev=2", "--prefix=k"]);
    for (flags, code, text) in [
        (&both[..], 128, "Error: `--dest-prefix` and `--no-dest-prefix` cannot be set at the same"),
        (&before, 1, "Error: etcdserver: mvcc: required revision has been compacted"),
    ] {
        if tool == Tool::Etcdctl && flags == before {
            // etcdctl did not have this flag before 3.6.
            continue;
        }
        let user = server.user_of_tools().map(|user| format!("--dest-user={user}"));
        let mut args = vec!["make-mirror", &address];
        args.extend(flags.iter().copied().chain(user.as_deref()));
        let ended = ctl.run(&args);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.lines().any(|line| line.starts_with(text)), "{ended:?}");
    }
    let ended = ctl.run(&["make-mirror"]);
    assert_eq!(ended.code, Some(128), "{ended:?}");
}

async fn checks_refuse_invalid_arguments(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    server.client().write("full/k", "v").await;
    for check in ["perf", "datascale"] {
        let ended = ctl.run(&["check", check, "--load=tiny"]);
        let text = "Error: unknown load option tiny";
        assert!(ended.code == Some(4) && ended.stderr.contains(text), "{ended:?}");
        let ended = ctl.run(&["check", check, "--prefix=full/"]);
        let text = "Error: prefix \"full/\" has keys. Delete with ";
        assert!(ended.code == Some(3) && ended.stderr.contains(text), "{ended:?}");
        assert!(ended.stderr.contains("etcdctl del --prefix full/"), "{ended:?}");
    }
    assert_eq!(pairs(&ctl, "full/"), ["full/k", "v"]);
}

async fn check_datascale_reports_megabytes(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let output = ctl.run(&["check", "datascale", "--auto-compact", "--auto-defrag"]).success();
    let lines: Vec<&str> = output.lines().collect();
    let start = "Start data scale check for work load [10000 key-value pairs, 1024 bytes per key-value, 50 concurrent clients].";
    assert_eq!(lines[0], start, "{output}");
    let endpoint = format!("\"127.0.0.1:{}\"", server.front_port());
    let after = [
        "Compacting with revision ",
        "Compacted with revision ",
        &format!("Defragmenting {endpoint}"),
        &format!("Defragmented {endpoint}"),
        "PASS: Approximate system memory used : ",
    ];
    let last = &lines[lines.len() - after.len()..];
    assert!(last.iter().zip(after).all(|(line, text)| line.starts_with(text)), "{output}");
    assert!(pairs(&ctl, "/etcdctl-check-datascale/").is_empty());
    assert_eq!(server.client().revision().await, 10_002);
}

async fn an_interrupted_check_perf_deletes_its_keys(kind: Kind, tool: Tool) {
    if tool == Tool::Etcdctl {
        // etcdctl may leave keys behind.
        return;
    }
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut command = ctl.command(&["check", "perf", "--prefix=p/"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut working = Working(command.spawn().unwrap());
    eventually("the check puts keys", async || {
        (server.client().revision().await > 100).then_some(())
    })
    .await;
    send_signal(working.0.id(), "INT");
    let status = working.0.wait().unwrap();
    let output = std::io::read_to_string(working.0.stdout.take().unwrap()).unwrap();
    // The verdict depends on the machine.
    let verdict = if status.code() == Some(0) { "PASS" } else { "FAIL" };
    assert_eq!(output.lines().last(), Some(verdict), "{output}");
    assert!(output.contains("Throughput") && output.contains("Slowest request"), "{output}");
    assert!(pairs(&ctl, "p/").is_empty());
}
