//! The command-line tools when they cannot connect to the server: they print the reason on standard error before they
//! exit.

use std::time::{Duration, SystemTime};

use quorate_tests::pki::{Authority, Leaf};
use quorate_tests::{Finished, Kind, Tool, on_quorate};
use serde_json::Value;

use super::tls::{Files, ctl, tools};

on_quorate! {
    alone:
    a_failed_dial_is_reported_with_its_cause,
    a_failed_handshake_is_reported_with_its_cause,
    every_failed_request_is_reported_with_its_cause,
    a_refused_request_is_reported_only_once,
}

const TIMING: [&str; 2] = ["--command-timeout=1s", "--dial-timeout=1s"];

/// Returns the warnings of a run.
fn warnings(finished: &Finished) -> Vec<Value> {
    let lines = finished.stderr.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the cause in a warning, without the parts that differ between tools.
fn cause(warning: &Value) -> String {
    let error = warning["error"].as_str().unwrap_or_else(|| panic!("{warning}"));
    let end = error.find(": current time").unwrap_or(error.len());
    error[..end].to_owned()
}

/// Returns the causes that the tools print.
fn causes(endpoint: &str, more: &[&str]) -> Vec<(Tool, String)> {
    let cause_of = |tool| {
        let finished = ctl(tool, endpoint, &[&TIMING[..], more, &["get", "k"]].concat());
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(finished.stdout, "");
        let last = finished.stderr.lines().last();
        assert_eq!(last, Some("Error: context deadline exceeded"), "{finished:?}");
        let warnings = warnings(&finished);
        let [warning] = &warnings[..] else { panic!("{finished:?}") };
        assert_eq!(warning["level"], "warn");
        assert_eq!(warning["logger"], "etcd-client");
        assert_eq!(warning["msg"], "retrying of unary invoker failed");
        assert!(warning["caller"].as_str().unwrap().contains(".rs:") || tool == Tool::Etcdctl);
        assert!(warning["ts"].is_string() && warning["attempt"].is_u64(), "{warning}");
        let address = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
        let target = warning["target"].as_str().unwrap();
        assert!(target.starts_with("etcd-endpoints://0x"), "{target}");
        assert!(target.ends_with(&format!("/{address}")), "{target}");
        (tool, cause(warning))
    };
    tools().into_iter().map(cause_of).collect()
}

const BEFORE: &str = "rpc error: code = DeadlineExceeded desc = latest balancer error: \
                      last connection error: connection error: desc = \"";

#[track_caller]
fn assert_causes(endpoint: &str, more: &[&str], cause: &str) {
    for (tool, error) in causes(endpoint, more) {
        let error = error.strip_prefix(BEFORE).unwrap_or_else(|| panic!("{tool:?}: {error}"));
        assert_eq!(error.trim_end_matches('"'), cause, "{tool:?} {endpoint} {more:?}");
    }
}

async fn a_failed_dial_is_reported_with_its_cause(_: Kind) {
    for (endpoint, reason) in [
        ("127.0.0.1:1", "dial tcp 127.0.0.1:1: connect: connection refused"),
        ("http://127.0.0.1:1", "dial tcp 127.0.0.1:1: connect: connection refused"),
        ("127.0.0.1", "dial tcp: address 127.0.0.1: missing port in address"),
        ("https://127.0.0.1", "dial tcp: address 127.0.0.1: missing port in address"),
        ("1:2:3", "dial tcp: address 1:2:3: too many colons in address"),
        ("127.0.0.1:99999", "dial tcp: address 99999: invalid port"),
    ] {
        assert_causes(endpoint, &[], &format!("transport: Error while dialing: {reason}"));
    }
    for (tool, error) in causes("nothing.invalid:1", &[]) {
        assert!(error.contains("dial tcp: lookup nothing.invalid"), "{tool:?}: {error}");
    }
}

async fn a_failed_handshake_is_reported_with_its_cause(kind: Kind) {
    let files = Files::new();
    std::fs::write(files.path("other"), Authority::new().pem()).unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now();
    let ca = format!("--cacert={}", files.text("ca"));
    let other = format!("--cacert={}", files.text("other"));
    let failed = "transport: authentication handshake failed: ";
    let unverified = format!("{failed}tls: failed to verify certificate: x509: ");

    let server = files.closed(kind).start().await;
    let unknown = format!("{unverified}certificate signed by unknown authority");
    assert_causes(&server.url(), &[&other], &unknown);
    for (tool, error) in causes(&server.url(), &[&ca]) {
        // The client may notice either the TLS alert or the end of the connection first.
        let is_ours = error.contains("error reading server preface: ");
        assert!(tool == Tool::Etcdctl || is_ours, "{error}");
    }
    // The client sends plaintext to a server that expects a handshake.
    for (tool, error) in causes(&server.url().replace("https", "http"), &[]) {
        assert!(error.contains("error reading server preface: "), "{tool:?}: {error}");
    }

    // The server reads the files again in every handshake.
    files.write("server", &Leaf { from: now - 2 * day, until: now - day, ..Leaf::new("server") });
    let out_of_time = format!("{unverified}certificate has expired or is not yet valid");
    assert_causes(&server.url(), &[&ca], &out_of_time);
    files.write("server", &Leaf { hosts: vec!["a.example".to_owned()], ..Leaf::new("server") });
    let name = "cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs";
    assert_causes(&server.url(), &[&ca], &format!("{unverified}{name}"));
    files.write("server", &Leaf { hosts: vec!["127.0.0.3".to_owned()], ..Leaf::new("server") });
    let name = "certificate is valid for 127.0.0.3, not 127.0.0.1";
    assert_causes(&server.url(), &[&ca], &format!("{unverified}{name}"));

    let plain = quorate_tests::Server::start(kind).await;
    let record = format!("{failed}tls: first record does not look like a TLS handshake");
    let bare = plain.url().replace("http://", "");
    assert_causes(&bare, &[&ca], &record);
}

async fn every_failed_request_is_reported_with_its_cause(_: Kind) {
    let dead = "127.0.0.1:1,127.0.0.1:2";
    for (args, expected) in [
        (&["endpoint", "health"][..], 2),
        (&["endpoint", "status"], 2),
        (&["member", "list"], 1),
        (&["put", "k", "v"], 1),
        (&["--user=a:b", "get", "k"], 1),
    ] {
        for tool in tools() {
            let finished = ctl(tool, dead, &[&TIMING[..], args].concat());
            let warnings = warnings(&finished);
            assert_eq!(warnings.len(), expected, "{args:?}: {finished:?}");
            for warning in warnings {
                assert!(cause(&warning).contains("connect: connection refused"), "{warning}");
            }
        }
    }
}

async fn a_refused_request_is_reported_only_once(kind: Kind) {
    let server = quorate_tests::Server::start(kind).await;
    let finished = ctl(Tool::QuorateCtl, &server.url(), &["get", "k", "--rev=100"]);
    let text = "Error: etcdserver: mvcc: required revision is a future revision\n";
    assert_eq!((finished.code, &*finished.stderr), (Some(1), text));
}
