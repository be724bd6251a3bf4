//! Log lines about slow or refused requests, which must be equal on etcd and Quorate, including their fields.

use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Kind, Options, Server, compare, eventually, get_op, on_both_servers,
    on_quorate, put, put_leased, put_op, range, txn, txn_when,
};
use serde_json::Value;

use super::flag_effects::millis;

on_both_servers! {
    alone:
    slow_requests_are_logged_with_their_text,
    requests_refused_at_apply_are_logged,
}

on_quorate! {
    alone:
    a_slow_quorum_is_logged_as_a_stage_of_the_write,
}

const SLOW: &str = "apply request took too long";
const REFUSED: &str = "failed to apply request";

/// Returns the log lines with this message.
fn lines(server: &Server, message: &str) -> Vec<Value> {
    let log = server.log_of_this_run();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["msg"] == message).collect()
}

/// Returns the log line with this message about the request that contains this text.
async fn line_about(server: &Server, message: &str, about: &str) -> Value {
    eventually(&format!("a line about {about}"), async || {
        let is_about = |line: &Value| line["request"].as_str().unwrap().contains(about);
        lines(server, message).into_iter().find(is_about)
    })
    .await
}

/// Splits a string such as `key:"a" value_size:1` into names and values, at each run of spaces, because etcd's protobuf
/// library varies the spaces on purpose. The request id is left out, and so are angle brackets, because etcd 3.5 writes
/// some messages as `name:<…>`.
fn words(text: &Value) -> Vec<String> {
    let text = text.as_str().unwrap().replace(['<', '>'], " ");
    let words = text.split_whitespace().filter(|word| !word.starts_with("ID:"));
    words.map(str::to_owned).collect()
}

/// Returns the names of a line's fields in order, except the fields that every line has.
fn fields(line: &Value) -> Vec<&str> {
    let names = line.as_object().unwrap().keys().map(String::as_str);
    let mut names: Vec<_> =
        names.filter(|name| !["level", "ts", "caller", "msg"].contains(name)).collect();
    names.sort_unstable();
    names
}

async fn slow_requests_are_logged_with_their_text(kind: Kind) {
    let flag = match kind {
        Kind::Quorate => "--warning-apply-duration=1ns",
        Kind::Etcd => "--experimental-warning-apply-duration=1ns",
    };
    let server = Options::new(kind).flag(flag).start().await;
    let client = server.client();
    let before = server.metric("etcd_server_slow_apply_total").unwrap();

    client.put(put("a\"\n", "12345")).await.unwrap();
    let line = line_about(&server, SLOW, "value_size:5").await;
    assert_eq!(line["level"], "warn");
    assert_eq!(line["prefix"], "");
    assert_eq!(line["expected-duration"], "1ns");
    assert_eq!(words(&line["request"]), ["header:", "put:", r#"key:"a\"\n""#, "value_size:5"]);
    let expected = ["expected-duration", "prefix", "request", "response", "took"];
    assert_eq!(fields(&line), expected);

    let read = client.range(range("a", "b")).await.unwrap();
    let line = line_about(&server, SLOW, "range_end").await;
    assert_eq!(line["prefix"], "read-only range ");
    assert_eq!(words(&line["request"]), [r#"key:"a""#, r#"range_end:"b""#]);
    let response = line["response"].as_str().unwrap();
    assert_eq!(read.kvs.len(), 1);
    assert!(response.starts_with("range_response_count:1 size:"), "{response}");

    client.txn(txn(vec![get_op("a\"\n"), get_op("none")])).await.unwrap();
    let line = line_about(&server, SLOW, "none").await;
    assert_eq!(line["prefix"], "read-only txn ");
    let response = line["response"].as_str().unwrap();
    let counts = "responses:<range_response_count:1 range_response_count:0> size:";
    assert!(response.starts_with(counts), "{response}");

    let equals = pb::compare::CompareResult::Equal;
    let value = pb::compare::TargetUnion::Value("123".into());
    let txn = txn_when(vec![compare("t", equals, value)], vec![put_op("t", "1234567")], vec![]);
    client.txn(txn).await.unwrap();
    let line = line_about(&server, SLOW, "value_size:7").await;
    assert_eq!(line["prefix"], "");
    let text = words(&line["request"]).join(" ");
    assert!(text.contains(r#"target:VALUE key:"t" value_size:3 success:"#), "{text}");
    let size: usize = line["response"].as_str().unwrap()["size:".len()..].parse().unwrap();
    assert!(size > 0);

    let logged = lines(&server, SLOW).len();
    let counted = server.metric("etcd_server_slow_apply_total").unwrap() - before;
    assert!(counted >= 4.0 && logged >= 4, "{counted} counted, {logged} logged");
}

async fn requests_refused_at_apply_are_logged(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.put(put_leased("k", "1234", 77)).await.unwrap_err();
    let line = line_about(&server, REFUSED, "value_size:4").await;
    assert_eq!(line["level"], "warn");
    assert_eq!(
        words(&line["request"]),
        ["header:", "put:", r#"key:"k""#, "value_size:4", "lease:77"]
    );
    assert_eq!(fields(&line), ["error", "request", "response", "took"]);
    assert!(line["error"].as_str().unwrap().contains("lease not found"), "{line}");

    // Compacting a compacted revision is an ordinary error and is not logged.
    client.put(put("k", "v")).await.unwrap();
    client.compact(pb::CompactionRequest { revision: 2, physical: true }).await.unwrap();
    client.compact(pb::CompactionRequest { revision: 1, physical: true }).await.unwrap_err();
    client.put(put_leased("k", "12345", 77)).await.unwrap_err();
    line_about(&server, REFUSED, "value_size:5").await;
    assert_eq!(lines(&server, REFUSED).len(), 2);
}

async fn a_slow_quorum_is_logged_as_a_stage_of_the_write(kind: Kind) {
    const WAIT: Duration = Duration::from_millis(150);
    // The timeout is long, so that the leader keeps waiting for the paused members.
    let mut cluster = ClusterOptions::new(kind, 3).flag("--election-timeout=10000").start().await;
    cluster.settle().await;
    let leader = cluster.leader().await;
    let others: Vec<_> = cluster.running().into_iter().filter(|other| *other != leader).collect();
    let client = cluster.client(leader);
    client.put(put("k", "before")).await.unwrap();
    for other in &others {
        cluster.pause(*other).await;
    }
    // On a busy machine, earlier writes may have been slow as well.
    let traced = |cluster: &Cluster| {
        let mut traced = lines(cluster.server(leader), "trace");
        traced.retain(|trace| trace["operation"] == "put");
        traced
    };
    let before = traced(&cluster).len();
    let begun = Instant::now();
    let write = tokio::spawn(async move { client.put(put("k", "v")).await });
    eventually("the write has waited long enough", async || {
        let pending = cluster.server(leader).metric("etcd_server_proposals_pending")?;
        (pending == 1.0 && begun.elapsed() > WAIT).then_some(())
    })
    .await;
    for other in &others {
        cluster.resume(*other);
    }
    write.await.unwrap().unwrap();
    let trace = eventually("a trace", async || traced(&cluster).into_iter().nth(before)).await;
    let steps: Vec<_> =
        trace["steps"].as_array().unwrap().iter().map(|step| step.as_str().unwrap()).collect();
    assert_eq!(trace["step_count"], steps.len());
    let named = |part: &str| steps.iter().position(|step| step.contains(part)).unwrap();
    let (queued, synced) = (named("passed to the log"), named("written to this member's disk"));
    let (committed, applied) = (named("known to be committed"), named("applied"));
    assert!(queued < synced && synced < committed && committed < applied, "{steps:?}");
    let (_, took) = steps[committed].split_once("(duration: ").unwrap();
    // The stage must include most of the time for which the leader waited for the other members.
    assert!(millis(took.trim_end_matches(')')) > 100.0, "{steps:?}");
}
