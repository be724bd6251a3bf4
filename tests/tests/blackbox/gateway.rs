//! The JSON gateway: every path, error responses, streams and their ends, and the requests that Patroni sends.

use std::io::Write as _;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, JsonStream, Kind, Options, Response, Server, eventually, notice, on_both_servers,
    on_quorate, read_answer, request_with,
};
use serde_json::{Value, json};

on_both_servers! {
    alone:
    unknown_paths_and_methods_are_refused,
    gateway_errors_contain_the_grpc_code_and_message,
    each_watch_response_is_one_line,
    a_watch_is_removed_when_its_client_disconnects,
    a_disconnected_client_stops_waiting_for_its_lock,
    each_keepalive_request_in_a_body_gets_its_own_response,
    a_snapshot_is_sent_as_a_stream_of_lines,
    tokens_are_read_from_the_authorization_header,
    requests_from_patroni_are_answered_correctly,
    the_gateway_can_be_disabled,
    a_connection_remains_usable_after_a_body_that_ends_after_its_json,
    invalid_chunks_are_refused_as_an_invalid_request,
    a_stream_ends_at_its_deadline,
    a_stream_ends_after_its_deadline_while_its_client_does_not_read,
}

on_quorate! {
    alone:
    every_gateway_path_returns_the_same_response_as_etcd,
    invalid_requests_are_refused,
    a_stream_ends_when_the_member_stops,
    a_watch_stream_accepts_more_requests_after_the_first_response,
    requests_beyond_the_maximum_size_are_refused,
    an_invalid_body_of_a_streaming_call_returns_the_error,
    many_requests_are_served_concurrently,
    gateway_calls_are_counted_like_grpc_calls,
}

/// Sends a request with header fields, and returns the response.
fn post_with(server: &Server, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
    request_with(server.port(), "POST", path, headers, body.as_bytes())
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = post_with(server, path, &[], &body.to_string());
    (answer.status, parse(&answer))
}

/// Sends a request that must succeed, and returns the body of the response.
#[track_caller]
fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = post(server, path, body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

fn parse(answer: &Response) -> Value {
    let text = answer.text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// Encodes a few letters as standard base64.
fn b64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Values that differ between runs or servers.
const VARYING: &[&str] = &[
    "cluster_id",
    "member_id",
    "raft_term",
    "raftTerm",
    "raftIndex",
    "raftAppliedIndex",
    "dbSize",
    "dbSizeInUse",
    "leader",
    "token",
    "version",
    "memberID",
    "peerURLs",
    "clientURLs",
    "hash",
];

/// Fields that only etcd 3.5 or only etcd 3.7 returns. etcd 3.5 repeats the error message as `error`, and returns none
/// of the other fields.
const NOT_IN_BOTH: &[&str] =
    &["storageVersion", "downgradeInfo", "dbSizeQuota", "hash_revision", "error"];

fn normalized(mut answer: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !NOT_IN_BOTH.contains(&name.as_str()));
                for (name, value) in fields {
                    let is_member = name == "ID" && value.as_str().is_some_and(|id| id.len() > 9);
                    if VARYING.contains(&name.as_str()) || is_member {
                        *value = json!("~");
                    } else {
                        walk(value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    walk(&mut answer);
    answer
}

/// A path and the body sent to it.
type Step = (&'static str, Value);

fn key_steps() -> Vec<Step> {
    let put = |key: &str, value: &str| json!({"key": b64(key), "value": b64(value)});
    vec![
        ("/v3/kv/put", put("a", "1")),
        ("/v3/kv/put", json!({"key": b64("a"), "value": b64("2"), "prev_kv": true})),
        ("/v3/kv/put", json!({"key": b64("a"), "ignoreValue": true, "prevKv": true})),
        ("/v3/kv/put", put("b", "<&>\u{7}")),
        ("/v3/kv/put", put("c", "")),
        ("/v3/kv/range", json!({"key": b64("a")})),
        ("/v3/kv/range", json!({"key": b64("a"), "range_end": b64("z"), "limit": "2"})),
        ("/v3/kv/range", json!({"key": b64("a"), "rangeEnd": b64("z"), "limit": 2})),
        ("/v3/kv/range", json!({"key": "AA==", "range_end": "AA==", "count_only": true})),
        (
            "/v3/kv/range",
            json!({"key": b64("a"), "range_end": b64("z"), "sort_order": "DESCEND", "sort_target": "CREATE", "keys_only": true}),
        ),
        (
            "/v3/kv/range",
            json!({"key": b64("a"), "range_end": b64("z"), "sort_order": 2, "sort_target": 3}),
        ),
        ("/v3/kv/range", json!({"key": b64("none")})),
        ("/v3/kv/range", json!({"key": b64("a"), "revision": "2", "serializable": true})),
        ("/v3/kv/range", json!({"key": b64("a"), "revision": "99"})),
        ("/v3/kv/range", json!({})),
        (
            "/v3/kv/txn",
            json!({
                "compare": [{"key": b64("a"), "target": "VALUE", "value": b64("2"), "result": "EQUAL"}],
                "success": [
                    {"request_put": {"key": b64("d"), "value": b64("4")}},
                    {"request_range": {"key": b64("a"), "range_end": b64("z")}},
                    {"request_delete_range": {"key": b64("b"), "prev_kv": true}},
                    {"request_txn": {"failure": [{"request_range": {"key": b64("x")}}], "compare": [{"key": b64("a"), "target": "VERSION", "version": "99", "result": 1}]}},
                ],
            }),
        ),
        (
            "/v3/kv/txn",
            json!({"compare": [{"key": b64("a"), "target": "CREATE", "createRevision": "1"}], "failure": [{"requestRange": {"key": b64("d")}}]}),
        ),
        ("/v3/kv/txn", json!({})),
        ("/v3/kv/txn", json!({"success": [{"request_put": {}}]})),
        ("/v3/kv/deleterange", json!({"key": b64("c"), "prev_kv": true})),
        ("/v3/kv/deleterange", json!({"key": b64("none")})),
        ("/v3/kv/deleterange", json!({"key": b64("a"), "range_end": b64("z"), "prevKv": true})),
        ("/v3/kv/compaction", json!({"revision": "4", "physical": true})),
        ("/v3/kv/compaction", json!({"revision": "4"})),
        ("/v3/kv/compaction", json!({"revision": "99"})),
        ("/v3/kv/range", json!({"key": b64("a"), "revision": 2})),
    ]
}

fn lease_steps() -> Vec<Step> {
    vec![
        ("/v3/lease/grant", json!({"TTL": "60", "ID": "7"})),
        ("/v3/lease/grant", json!({"TTL": 60, "ID": 8})),
        ("/v3/lease/grant", json!({"TTL": "60", "ID": "7"})),
        ("/v3/kv/put", json!({"key": b64("leased"), "lease": "7"})),
        ("/v3/kv/put", json!({"key": b64("leased"), "lease": "99"})),
        ("/v3/lease/revoke", json!({"ID": "8"})),
        ("/v3/kv/lease/revoke", json!({"ID": "8"})),
        ("/v3/lease/leases", json!({})),
        ("/v3/kv/lease/leases", json!({})),
        ("/v3/lease/timetolive", json!({"ID": "99", "keys": true})),
        ("/v3/kv/lease/timetolive", json!({"ID": 99})),
        ("/v3/lock/lock", json!({"name": b64("l"), "lease": "7"})),
        ("/v3/lock/unlock", json!({"key": b64("l/7")})),
        ("/v3/lock/unlock", json!({})),
        ("/v3/lock/lock", json!({"name": b64("l"), "lease": "99"})),
        ("/v3/election/leader", json!({"name": b64("e")})),
        ("/v3/election/campaign", json!({"name": b64("e"), "lease": "7", "value": b64("v")})),
        ("/v3/election/leader", json!({"name": b64("e")})),
        ("/v3/election/proclaim", json!({})),
        (
            "/v3/election/proclaim",
            json!({"leader": {"name": b64("e"), "key": b64("e/7"), "rev": "1", "lease": "7"}, "value": b64("w")}),
        ),
        (
            "/v3/election/resign",
            json!({"leader": {"name": b64("e"), "key": b64("e/7"), "rev": "1", "lease": "7"}}),
        ),
        ("/v3/election/resign", json!({})),
        ("/v3/lease/revoke", json!({"ID": "7"})),
    ]
}

fn other_steps() -> Vec<Step> {
    vec![
        ("/v3/cluster/member/list", json!({})),
        ("/v3/cluster/member/list", json!({"linearizable": true})),
        ("/v3/cluster/member/add", json!({"peerURLs": ["nonsense"]})),
        ("/v3/cluster/member/remove", json!({"ID": "99"})),
        ("/v3/cluster/member/update", json!({"ID": "99", "peerURLs": ["http://127.0.0.1:1"]})),
        ("/v3/cluster/member/promote", json!({"ID": "99"})),
        (
            "/v3/maintenance/alarm",
            json!({"action": "ACTIVATE", "memberID": "5", "alarm": "NOSPACE"}),
        ),
        ("/v3/maintenance/alarm", json!({"action": "GET"})),
        ("/v3/maintenance/alarm", json!({"action": 2, "memberID": 5, "alarm": 1})),
        ("/v3/maintenance/alarm", json!({})),
        ("/v3/maintenance/status", json!({})),
        ("/v3/maintenance/defragment", json!({})),
        ("/v3/maintenance/hash", json!({})),
        ("/v3/maintenance/hashkv", json!({"revision": "0"})),
        ("/v3/maintenance/hashkv", json!({"revision": "999"})),
        ("/v3/maintenance/transfer-leadership", json!({"targetID": "99"})),
        ("/v3/maintenance/downgrade", json!({"action": "VALIDATE", "version": "x"})),
        ("/v3/auth/status", json!({})),
        ("/v3/auth/enable", json!({})),
        ("/v3/auth/disable", json!({})),
        ("/v3/auth/authenticate", json!({"name": "root", "password": "p"})),
        ("/v3/auth/user/add", json!({"name": "root", "password": "p"})),
        ("/v3/auth/user/add", json!({"name": "root", "password": "p"})),
        ("/v3/auth/user/add", json!({"name": "ann", "options": {"no_password": true}})),
        ("/v3/auth/user/add", json!({"name": ""})),
        ("/v3/auth/user/list", json!({})),
        ("/v3/auth/user/changepw", json!({"name": "root", "password": "q"})),
        ("/v3/auth/role/add", json!({"name": "r"})),
        (
            "/v3/auth/role/grant",
            json!({"name": "r", "perm": {"permType": "READWRITE", "key": b64("a"), "range_end": b64("b")}}),
        ),
        ("/v3/auth/role/grant", json!({"name": "r", "perm": {"key": b64("x")}})),
        ("/v3/auth/role/get", json!({"role": "r"})),
        ("/v3/auth/role/get", json!({"role": "none"})),
        ("/v3/auth/role/list", json!({})),
        ("/v3/auth/user/grant", json!({"user": "ann", "role": "r"})),
        ("/v3/auth/user/get", json!({"name": "ann"})),
        ("/v3/auth/user/revoke", json!({"name": "ann", "role": "r"})),
        ("/v3/auth/role/revoke", json!({"role": "r", "key": b64("x")})),
        ("/v3/auth/role/delete", json!({"role": "r"})),
        ("/v3/auth/user/delete", json!({"name": "ann"})),
        ("/v3/auth/user/delete", json!({"name": "ann"})),
        ("/v3/auth/role/add", json!({"name": "root"})),
        ("/v3/auth/user/grant", json!({"user": "root", "role": "root"})),
        ("/v3/auth/enable", json!({})),
        ("/v3/auth/authenticate", json!({"name": "root", "password": "wrong"})),
        ("/v3/auth/authenticate", json!({"name": "root", "password": "q"})),
        ("/v3/auth/status", json!({})),
        ("/v3/kv/range", json!({"key": b64("a")})),
    ]
}

async fn every_gateway_path_returns_the_same_response_as_etcd(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let start = async |kind| Options::new(kind).flag("--bcrypt-cost=4").start().await;
    let (server, etcd) = (start(kind).await, start(Kind::Etcd).await);
    let mut differences = Vec::new();
    for (path, body) in key_steps().into_iter().chain(lease_steps()).chain(other_steps()) {
        let [mut ours, mut theirs] = [&server, &etcd].map(|one| post(one, path, &body));
        ours.1 = normalized(ours.1);
        theirs.1 = normalized(theirs.1);
        // These answers changed in etcd 3.7.
        if path == "/v3/auth/status" && theirs.0 == 400 {
            assert_eq!(theirs.1["message"], json!("etcdserver: user name is empty"));
            assert_eq!(ours.1["enabled"], json!(true), "the status is available to everyone");
            continue;
        }
        if ours != theirs {
            differences.push(format!("{path} {body}\n  {ours:?}\n  {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    notice("every path of the gateway was compared");
}

async fn unknown_paths_and_methods_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let method = |method: &str, path: &str| {
        let answer = request_with(server.port(), method, path, &[], b"");
        (answer.status, answer.text())
    };
    for path in ["/v3/kv/frob", "/v3/kv/range/", "/v3/", "/v3/KV/range"] {
        let (status, text) = method("POST", path);
        assert_eq!((status, text.contains("Not Found")), (404, true), "{path}: {text}");
    }
    for other in ["GET", "PUT", "DELETE"] {
        let (status, text) = method(other, "/v3/kv/range");
        assert_eq!((status, text.contains("Method Not Allowed")), (501, true), "{other}: {text}");
    }
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let overridden = [form, ("X-HTTP-Method-Override", "put")];
    assert_eq!(post_with(&server, "/v3/kv/put", &overridden, r#"{"key":"aw=="}"#).status, 501);
    assert_eq!(method("OPTIONS", "/v3/kv/range").0, 200);
    assert_eq!(method("POST", "/v3alpha/kv/range").0, 404);
    assert_eq!(method("POST", "/v3beta/kv/frob").0, 404);
    for path in ["/v3", "/v3//kv/range", "/v3/kv/../kv/range"] {
        assert!([301, 307].contains(&method("POST", path).0), "{path}");
    }
    let answer = post_with(&server, "/v3beta/kv/put", &[], r#"{"key":"aw==","value":"dg=="}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("grpc-metadata-content-type"), Some("application/grpc"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    assert_eq!(length, answer.body.len());
    assert_eq!(server.client().read("k").await.as_deref(), Some(&b"v"[..]));
}

async fn gateway_errors_contain_the_grpc_code_and_message(kind: Kind) {
    let server = Server::start(kind).await;
    let error_of = |path: &str, headers: &[(&str, &str)], body: &str| {
        let answer = post_with(&server, path, headers, body);
        let json = parse(&answer);
        (
            answer.status,
            json["code"].as_i64().unwrap(),
            json["message"].as_str().unwrap().to_owned(),
        )
    };
    for (path, body, status, code, text) in [
        ("/v3/kv/range", "{}", 400, 3, "etcdserver: key is not provided"),
        ("/v3/kv/range", "", 400, 3, "etcdserver: key is not provided"),
        (
            "/v3/kv/range",
            r#"{"key":"aw==","revision":"9"}"#,
            400,
            11,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        ("/v3/lease/revoke", r#"{"ID":"9"}"#, 404, 5, "etcdserver: requested lease not found"),
        ("/v3/auth/enable", "{}", 400, 9, "etcdserver: root user does not exist"),
        ("/v3/lock/unlock", "{}", 500, 2, "etcdserver: key is not provided"),
    ] {
        assert_eq!(error_of(path, &[], body), (status, code, text.to_owned()), "{path}");
    }
    for body in ["{", "zzz", r#"{"key":"!!"}"#, r#"{"key":5}"#, "[]", r#"{"count_only":"yes"}"#] {
        let (status, code, text) = error_of("/v3/kv/range", &[], body);
        assert_eq!((status, code), (400, 3), "{body}: {text}");
    }
    let (status, code, _) = error_of("/v3/kv/range", &[("Grpc-Timeout", "zz")], "{}");
    assert_eq!((status, code), (400, 3));
    let (status, code, _) = error_of("/v3/kv/range", &[("Grpc-Metadata-X-Bin", "!!")], "{}");
    assert_eq!((status, code), (400, 3));
    // A waiting call ends at its deadline.
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    ask(&server, "/v3/lock/lock", &json!({"name": b64("l"), "lease": "1"}));
    let body = json!({"name": b64("l"), "lease": "2"}).to_string();
    let (status, code, _) = error_of("/v3/lock/lock", &[("Grpc-Timeout", "200m")], &body);
    assert_eq!((status, code), (504, 4));
}

async fn invalid_requests_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let nested = |depth: usize| {
        format!(
            "{}{}",
            r#"{"success":[{"request_txn":"#.repeat(depth),
            "0".to_owned() + &"}]}".repeat(depth)
        )
    };
    for (body, text) in [
        (&b"{"[..], "unexpected EOF"),
        (b"zzz", "invalid character 'z' looking for beginning of value"),
        (b"{\"limit\":NaN}", "invalid character 'N' looking for beginning of value"),
        (b"{\"key\":\"aw==\",\"key\":\"aw==\"}", "proto: (line 1:15): duplicate field \"key\""),
        (b"{\"key\":\"!!\"}", "proto: (line 1:8): invalid value for bytes field key: \"!!\""),
        (b"{\"limit\":1e40}", "proto: (line 1:10): invalid value for int64 field limit: 1e40"),
        (b"{\"key\":\"\xff\"}", "proto: syntax error (line 1:8): invalid UTF-8 in string"),
        (b"[1]", "proto: syntax error (line 1:1): unexpected token ["),
        (b"[", "unexpected EOF"),
    ] {
        let answer = request_with(server.port(), "POST", "/v3/kv/range", &[], body);
        let expected = json!({"code": 3, "message": text});
        assert_eq!((answer.status, parse(&answer)), (400, expected));
    }
    let brackets = "[".repeat(20_000);
    for (body, text) in [
        (nested(50), "unexpected token 0"),
        (nested(2_000), "exceeded max recursion depth"),
        (brackets.clone(), "exceeded max depth"),
        (format!("{{\"x\":{brackets}"), "exceeded max depth"),
    ] {
        let answer = post_with(&server, "/v3/kv/txn", &[], &body);
        let message = parse(&answer)["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 400);
        assert!(message.contains(text), "{message}");
    }
    // Unknown fields are ignored, and so is everything after the first JSON value.
    let body = r#"{"key":"aw==","frob":[{"a":null}],"sort_order":"SIDEWAYS"} and more"#;
    assert_eq!(post_with(&server, "/v3/kv/range", &[], body).status, 200);
    assert_eq!(server.client().revision().await, 1);
}

async fn requests_beyond_the_maximum_size_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let put = |len: usize| {
        let body = format!("{{\"key\":\"aw==\",\"value\":\"{}\"}}", "AAAA".repeat(len / 3));
        let answer = post_with(&server, "/v3/kv/put", &[], &body);
        (answer.status, parse(&answer))
    };
    assert_eq!(put(1 << 20).0, 200);
    let (status, answer) = put(1_600_000);
    assert_eq!((status, &answer["message"]), (400, &json!("etcdserver: request is too large")));
    let (status, answer) = put(3_000_000);
    assert_eq!((status, &answer["code"]), (429, &json!(8)), "{answer}");
    let (status, answer) = put(9_000_000);
    assert_eq!((status, &answer["code"]), (429, &json!(8)), "{answer}");
    // A large response arrives completely.
    let answer = post_with(&server, "/v3/kv/range", &[], r#"{"key":"aw=="}"#);
    let value = parse(&answer)["kvs"][0]["value"].as_str().unwrap().len();
    assert_eq!(value, ((1 << 20) / 3) * 4);
}

async fn a_connection_remains_usable_after_a_body_that_ends_after_its_json(kind: Kind) {
    let server = Server::start(kind).await;
    let mut stream = JsonStream::begin(server.port(), "/v3/kv/put");
    for rest in ["{\"key\":\"aw==\",\"value\":\"dg==\"}", "\n", "\n"] {
        JsonStream::send_chunk(&stream, rest);
        // Meanwhile, the server could answer and close the connection.
        for _ in 0..20 {
            ask(&server, "/v3/kv/range", &json!({"key": b64("other")}));
        }
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().status, 200);
    let range =
        "POST /v3/kv/range HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n{\"key\":\"aw==\"}";
    stream.write_all(range.as_bytes()).unwrap();
    let answer = read_answer(&mut stream).unwrap();
    assert_eq!(parse(&answer)["kvs"][0]["value"], json!(b64("v")));
}

async fn invalid_chunks_are_refused_as_an_invalid_request(kind: Kind) {
    let server = Server::start(kind).await;
    let mut stream = JsonStream::begin(server.port(), "/v3/kv/put");
    stream.write_all(b"zz\r\n").unwrap();
    let answer = read_answer(&mut stream).unwrap();
    assert_eq!((answer.status, &parse(&answer)["code"]), (400, &json!(3)));
}

async fn a_stream_ends_at_its_deadline(kind: Kind) {
    let server = Server::start(kind).await;
    let body = json!({"create_request": {"key": b64("k")}}).to_string();
    let mut watched =
        JsonStream::post(server.port(), "/v3/watch", &[("Grpc-Timeout", "500m")], &body);
    assert_eq!(result(&mut watched)["created"], json!(true));
    let line: Value = serde_json::from_str(&watched.next_line().unwrap()).unwrap();
    assert_eq!(line["error"]["code"], json!(4), "{line}");
    assert_eq!(watched.next_line(), None);
    let gone = async || (server.metric(WATCHERS) == Some(0.0)).then_some(());
    eventually("the watcher is removed at the deadline", gone).await;
}

async fn a_stream_ends_after_its_deadline_while_its_client_does_not_read(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let body = json!({"create_request": {"key": b64("k")}}).to_string();
    let _unread = JsonStream::send(server.port(), "/v3/watch", &[("Grpc-Timeout", "5S")], &body);
    let watchers = || server.metric(WATCHERS);
    eventually("the watch starts", async || (watchers() == Some(1.0)).then_some(())).await;
    // The events exceed the buffers of the kernel.
    let value = "v".repeat(1 << 20);
    for _ in 0..16 {
        client.write("k", &value).await;
    }
    eventually("the watch ends", async || (watchers() == Some(0.0)).then_some(())).await;
}

/// Returns the `result` of the next line.
fn result(stream: &mut JsonStream) -> Value {
    let line = stream.next_line().expect("the stream contains another line");
    let mut line: Value = serde_json::from_str(&line).unwrap();
    assert!(line["error"].is_null(), "{line}");
    line["result"].take()
}

fn watch(server: &Server, key: &str) -> JsonStream {
    let body = json!({"create_request": {"key": b64(key), "progress_notify": true}}).to_string();
    let mut stream = JsonStream::post(server.port(), "/v3/watch", &[], &body);
    assert_eq!(stream.status, 200);
    assert_eq!(result(&mut stream)["created"], json!(true));
    stream
}

async fn each_watch_response_is_one_line(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watched = watch(&server, "k");
    let revision = client.write("k", "v").await;
    let response = result(&mut watched);
    let expected = json!([{"kv": {
        "key": b64("k"), "value": b64("v"), "version": "1",
        "create_revision": revision.to_string(), "mod_revision": revision.to_string(),
    }}]);
    assert_eq!(response["events"], expected);
    assert_eq!(response["header"]["revision"], json!(revision.to_string()));
    let deleted = json!({"key": b64("k")});
    ask(&server, "/v3/kv/deleterange", &deleted);
    assert_eq!(result(&mut watched)["events"][0]["type"], json!("DELETE"));
}

async fn a_watch_stream_accepts_more_requests_after_the_first_response(kind: Kind) {
    let server = Server::start(kind).await;
    let stream = JsonStream::begin(server.port(), "/v3/watch");
    JsonStream::send_chunk(&stream, "{\"create_request\":{\"key\":\"aw==\",\"watch_id\":5}}");
    let mut watched = JsonStream::read_head(stream.try_clone().unwrap());
    assert_eq!(result(&mut watched)["watch_id"], json!("5"));
    JsonStream::send_chunk(&stream, "\n{\"create_request\":{\"key\":\"bQ==\",");
    JsonStream::send_chunk(&stream, "\"watch_id\":\"6\"}} {\"progress_request\":{}}");
    assert_eq!(result(&mut watched)["watch_id"], json!("6"));
    let progress = result(&mut watched);
    assert!(progress["events"].is_null() && !progress["header"].is_null(), "{progress}");
    JsonStream::send_chunk(&stream, "{\"cancel_request\":{\"watch_id\":5}}");
    let canceled = result(&mut watched);
    assert_eq!((&canceled["watch_id"], &canceled["canceled"]), (&json!("5"), &json!(true)));
}

const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

async fn a_watch_is_removed_when_its_client_disconnects(kind: Kind) {
    let server = Server::start(kind).await;
    let watched = watch(&server, "k");
    assert_eq!(server.metric(WATCHERS), Some(1.0));
    drop(watched);
    let gone = async || (server.metric(WATCHERS) == Some(0.0)).then_some(());
    eventually("the watcher of the disconnected client is removed", gone).await;
}

async fn a_disconnected_client_stops_waiting_for_its_lock(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(1, 60).await;
    client.grant(2, 60).await;
    ask(&server, "/v3/lock/lock", &json!({"name": b64("l"), "lease": "1"}));
    let body = json!({"name": b64("l"), "lease": "2"}).to_string();
    let waiting = JsonStream::send(server.port(), "/v3/lock/lock", &[], &body);
    eventually("the waiter has created its key", async || client.read("l/2").await).await;
    drop(waiting);
    let gone = async || client.read("l/2").await.is_none().then_some(());
    eventually("the key of the disconnected client is deleted", gone).await;
}

async fn a_stream_ends_when_the_member_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let mut watched = watch(&server, "k");
    server.signal("TERM");
    let line = watched.next_line().unwrap();
    let parsed: Value = serde_json::from_str(&line).unwrap();
    let expected = json!({"error": {"code": 14, "message": "etcdserver: server stopped"}});
    assert_eq!(parsed, expected);
    assert_eq!(watched.next_line(), None);
    server.ended().await;
}

async fn an_invalid_body_of_a_streaming_call_returns_the_error(kind: Kind) {
    let server = Server::start(kind).await;
    let answer = post_with(&server, "/v3/watch", &[], "zzz");
    let message = "invalid character 'z' looking for beginning of value";
    assert_eq!(parse(&answer), json!({"error": {"code": 3, "message": message}}));
    assert_eq!(answer.status, 400);
    let answer = post_with(&server, "/v3/lease/keepalive", &[], "");
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    let answer = post_with(&server, "/v3/lease/keepalive", &[], "{\"ID\":");
    assert_eq!(parse(&answer), json!({"error": {"code": 3, "message": "unexpected EOF"}}));
}

async fn each_keepalive_request_in_a_body_gets_its_own_response(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().grant(7, 60).await;
    let answer = post_with(&server, "/v3/lease/keepalive", &[], "{\"ID\":\"7\"}\n{\"ID\":99}");
    assert_eq!(answer.status, 200);
    let lines: Vec<Value> =
        answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids_and_ttls: Vec<_> =
        lines.iter().map(|line| (&line["result"]["ID"], &line["result"]["TTL"])).collect();
    assert_eq!(ids_and_ttls, [(&json!("7"), &json!("60")), (&json!("99"), &Value::Null)]);
}

async fn a_snapshot_is_sent_as_a_stream_of_lines(kind: Kind) {
    let server = Server::start(kind).await;
    let mut stream = JsonStream::post(server.port(), "/v3/maintenance/snapshot", &[], "{}");
    assert_eq!(stream.status, 200);
    let mut digits = 0;
    let mut first_rest = None;
    while let Some(line) = stream.next_line() {
        let line: Value = serde_json::from_str(&line).unwrap();
        let rest =
            line["result"]["remaining_bytes"].as_str().unwrap_or("0").parse::<usize>().unwrap();
        digits += line["result"]["blob"].as_str().unwrap().trim_end_matches('=').len();
        first_rest.get_or_insert(rest + digits / 4 * 3);
    }
    assert!(digits / 4 * 3 > first_rest.unwrap() / 2, "{digits} {first_rest:?}");
}

async fn guarded(server: &Server) {
    for (path, body) in [
        ("/v3/auth/user/add", json!({"name": "root", "password": "p"})),
        ("/v3/auth/user/add", json!({"name": "ann", "password": "p"})),
        ("/v3/auth/role/add", json!({"name": "root"})),
        ("/v3/auth/user/grant", json!({"user": "root", "role": "root"})),
        ("/v3/auth/enable", json!({})),
    ] {
        ask(server, path, &body);
    }
}

fn log_in(server: &Server, name: &str) -> String {
    let answer = ask(server, "/v3/auth/authenticate", &json!({"name": name, "password": "p"}));
    answer["token"].as_str().unwrap().to_owned()
}

async fn tokens_are_read_from_the_authorization_header(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=4").start().await;
    guarded(&server).await;
    let (root, ann) = (log_in(&server, "root"), log_in(&server, "ann"));
    let put = |headers: &[(&str, &str)]| {
        let answer = post_with(&server, "/v3/kv/put", headers, r#"{"key":"aw=="}"#);
        (answer.status, parse(&answer)["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(put(&[("Authorization", &root)]), (200, String::new()));
    assert_eq!(put(&[("Grpc-Metadata-Token", &root)]), (200, String::new()));
    let denied = (403, "etcdserver: permission denied".to_owned());
    assert_eq!(put(&[("Authorization", &ann)]), denied);
    assert_eq!(put(&[]), (400, "etcdserver: user name is empty".to_owned()));
    assert_eq!(put(&[("Token", &root)]), (400, "etcdserver: user name is empty".to_owned()));
    let bad = (401, "etcdserver: invalid auth token".to_owned());
    assert_eq!(put(&[("Authorization", "bad.1")]), bad);
    // A stream checks the permission for each of its watchers.
    let body = r#"{"create_request":{"key":"aw=="}}"#;
    let mut watched =
        JsonStream::post(server.port(), "/v3/watch", &[("Authorization", &ann)], body);
    let response = result(&mut watched);
    assert_eq!(response["canceled"], json!(true));
    assert!(
        response["cancel_reason"].as_str().unwrap().contains("permission denied"),
        "{response}"
    );
    let mut watched =
        JsonStream::post(server.port(), "/v3/watch", &[("Authorization", &root)], body);
    assert!(result(&mut watched)["canceled"].is_null());
}

/// Sends the requests that Patroni sends, in the same order and format.
async fn requests_from_patroni_are_answered_correctly(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=4").start().await;
    let decided = async || {
        let version: Value = serde_json::from_str(&server.get("/version").text()).unwrap();
        version["etcdcluster"].as_str().unwrap().starts_with("3.").then_some(())
    };
    eventually("the cluster version is decided", decided).await;
    guarded(&server).await;
    let token = log_in(&server, "root");
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let ask = |path: &str, body: Value| {
        let answer = post_with(&server, path, &headers, &body.to_string());
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        parse(&answer)
    };
    let members = ask("/v3/cluster/member/list", json!({}));
    assert!(members["members"][0]["clientURLs"][0].as_str().unwrap().starts_with("http://"));
    let prefix = (b64("/service/batman/"), b64("/service/batman0"));
    let all = json!({"key": prefix.0, "range_end": prefix.1});
    let empty = ask("/v3/kv/range", all.clone());
    assert!(empty["kvs"].is_null());
    let revision: i64 = empty["header"]["revision"].as_str().unwrap().parse().unwrap();

    let watch = json!({"create_request": {
        "key": prefix.0, "range_end": prefix.1, "start_revision": (revision + 1).to_string(),
        "progress_notify": true,
    }});
    let mut watched = JsonStream::post(server.port(), "/v3/watch", &headers, &watch.to_string());
    assert_eq!(result(&mut watched)["created"], json!(true));

    let lease = ask("/v3/lease/grant", json!({"TTL": 30}))["ID"].as_str().unwrap().to_owned();
    let leader = b64("/service/batman/leader");
    let acquire = json!({
        "compare": [{"target": "CREATE", "create_revision": "0", "key": leader}],
        "success": [{"request_put": {"key": leader, "value": b64("pg1"), "lease": lease}}],
    });
    assert_eq!(ask("/v3/kv/txn", acquire.clone())["succeeded"], json!(true));
    assert!(ask("/v3/kv/txn", acquire)["succeeded"].is_null());
    let event = result(&mut watched)["events"][0]["kv"].clone();
    assert_eq!((&event["key"], &event["lease"]), (&json!(leader), &json!(lease)));

    let renewed = ask("/v3/lease/keepalive", json!({"ID": lease}));
    assert_eq!(renewed["result"]["TTL"], json!("30"));
    let changed = json!({
        "compare": [{"target": "MOD", "mod_revision": event["mod_revision"], "key": leader}],
        "success": [{"request_put": {"key": b64("/service/batman/status"), "value": b64("{}")}}],
    });
    assert_eq!(ask("/v3/kv/txn", changed)["succeeded"], json!(true));
    let put = ask(
        "/v3/kv/put",
        json!({"key": b64("/service/batman/members/pg1"), "value": b64("{}"), "lease": lease}),
    );
    assert!(!put["header"].is_null());
    assert_eq!(ask("/v3/kv/range", all.clone())["count"], json!("3"));
    let released = json!({
        "compare": [{"target": "VALUE", "value": b64("pg1"), "key": leader}],
        "success": [{"request_delete_range": {"key": leader}}],
    });
    let released = ask("/v3/kv/txn", released);
    assert_eq!(released["responses"][0]["response_delete_range"]["deleted"], json!("1"));
    ask("/v3/lease/revoke", json!({"ID": lease}));
    assert_eq!(ask("/v3/kv/range", all)["count"], json!("1"));
}

async fn the_gateway_can_be_disabled(kind: Kind) {
    let server = Options::new(kind).flag("--enable-grpc-gateway=false").start().await;
    let answer = post_with(&server, "/v3/kv/range", &[], "{}");
    assert_eq!((answer.status, answer.text().as_str()), (404, "404 page not found\n"));
    assert_eq!(server.get("/version").status, 200);
}

async fn many_requests_are_served_concurrently(kind: Kind) {
    const WATCHERS_MAX: usize = 300;
    let server = Server::start(kind).await;
    let mut streams: Vec<_> = (0..WATCHERS_MAX).map(|_| watch(&server, "k")).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let expected = Some(WATCHERS_MAX as f64);
    assert_eq!(server.metric(WATCHERS), expected);
    ask(&server, "/v3/kv/put", &json!({"key": b64("k"), "value": b64("v")}));
    for stream in &mut streams {
        assert_eq!(result(stream)["events"][0]["kv"]["value"], json!(b64("v")));
    }
    drop(streams);
    let gone = async || (server.metric(WATCHERS) == Some(0.0)).then_some(());
    eventually("all watchers are removed", gone).await;
}

async fn gateway_calls_are_counted_like_grpc_calls(kind: Kind) {
    let server = Server::start(kind).await;
    let count = |server: &Server| {
        let series = r#"grpc_server_handled_total{grpc_code="OK",grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"}"#;
        server.metric(series)
    };
    let client: Client = server.client();
    client.put(pb::PutRequest { key: "k".into(), ..Default::default() }).await.unwrap();
    let before = count(&server).unwrap();
    ask(&server, "/v3/kv/put", &json!({"key": b64("k")}));
    let counted = async || (count(&server) == Some(before + 1.0)).then_some(());
    eventually("the call is counted", counted).await;
    assert_eq!(server.metric("quorate_calls_in_progress"), Some(0.0));
}
