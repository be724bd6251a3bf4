//! WebSocket on the JSON gateway: calls, streams, credentials, and closing from either side.

use quorate_api::etcdserverpb as pb;
use quorate_tests::web_socket::first;
use quorate_tests::{
    Kind, Message, Options, Server, WebSocket, eventually, on_both_servers, on_quorate, request,
    request_with,
};
use serde_json::{Value, json};

use super::tls::Files;
use super::tls_hostile::ask;

on_both_servers! {
    alone:
    a_unary_call_is_one_websocket_message_in_each_direction,
    a_watch_continues_until_its_client_closes_the_connection,
    the_token_is_read_from_the_protocol_or_the_cookie,
    errors_and_unknown_paths_are_reported_as_messages,
    invalid_websocket_handshakes_are_refused,
    fragments_are_joined_and_pings_are_answered,
    a_protocol_violation_is_reported,
    websockets_work_over_tls,
    websocket_requires_the_gateway,
}

on_quorate! {
    alone:
    a_watch_is_removed_when_its_client_disconnects,
    clients_are_notified_when_the_member_stops,
    websockets_count_against_the_limit_of_their_address,
    other_origins_are_refused_if_origins_are_listed,
    messages_beyond_the_maximum_size_are_refused,
    many_messages_sent_at_once_are_all_answered,
}

async fn start(kind: Kind) -> Server {
    Options::new(kind).unguarded().start().await
}

fn open(server: &Server, path: &str) -> WebSocket {
    WebSocket::connect(server.port(), path, &[]).unwrap()
}

/// Returns the next message, parsed as JSON.
#[track_caller]
fn next(socket: &mut WebSocket) -> Value {
    match socket.next_message() {
        Message::Text(text) => {
            assert!(!text.ends_with('\n'), "{text:?}");
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
        }
        other => panic!("{other:?}"),
    }
}

/// Sends one message and returns the answer.
#[track_caller]
fn call(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> Value {
    let mut socket = WebSocket::connect(server.port(), path, headers).unwrap();
    socket.send(&body.to_string());
    let answer = next(&mut socket);
    assert!(matches!(socket.next_message(), Message::Closed(_)));
    answer
}

/// The key `k` in base64, as JSON represents bytes.
const K: &str = "aw==";
/// The value `v` in base64.
const V: &str = "dg==";

async fn a_unary_call_is_one_websocket_message_in_each_direction(kind: Kind) {
    let server = start(kind).await;
    let answer = call(&server, "/v3/kv/put", &[], &json!({"key": K, "value": V}));
    let revision = answer["header"]["revision"].as_str().unwrap().to_owned();
    assert_eq!(server.client().read("k").await.unwrap(), b"v");
    // The method is POST, regardless of the query.
    let answer = call(&server, "/v3/kv/range?method=GET", &[], &json!({"key": K}));
    assert_eq!(answer["kvs"][0]["value"], json!(V));
    assert_eq!(answer["kvs"][0]["mod_revision"], json!(revision));
}

async fn a_watch_continues_until_its_client_closes_the_connection(kind: Kind) {
    let server = start(kind).await;
    let client = server.client();
    let mut socket = open(&server, "/v3/watch");
    socket.send(&json!({"create_request": {"key": K, "watch_id": 5}}).to_string());
    assert_eq!(next(&mut socket)["result"]["created"], json!(true));
    client.write("k", "v").await;
    let received = next(&mut socket);
    assert_eq!(received["result"]["events"][0]["kv"]["value"], json!(V), "{received}");
    client
        .delete_range(pb::DeleteRangeRequest { key: "k".into(), ..Default::default() })
        .await
        .unwrap();
    assert_eq!(next(&mut socket)["result"]["events"][0]["type"], json!("DELETE"));
    socket.send(&json!({"create_request": {"key": "bQ==", "watch_id": 6}}).to_string());
    let received = next(&mut socket);
    assert_eq!(received["result"]["watch_id"], json!("6"), "{received}");
    socket.send(&json!({"cancel_request": {"watch_id": 5}}).to_string());
    let received = next(&mut socket)["result"].take();
    assert_eq!((&received["watch_id"], &received["canceled"]), (&json!("5"), &json!(true)));
    assert_eq!(server.metric(WATCHERS), Some(1.0));
    socket.send_frame(first::CLOSE, &1000_u16.to_be_bytes());
    assert_eq!(socket.next_message(), Message::Closed(Some(1000)));
    // etcd does not remove the watcher.
    if kind == Kind::Quorate {
        has_no_watcher(&server).await;
    }
}

const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

async fn has_no_watcher(server: &Server) {
    let gone = async || (server.metric(WATCHERS) == Some(0.0)).then_some(());
    eventually("the watcher of the disconnected client is removed", gone).await;
}

async fn a_watch_is_removed_when_its_client_disconnects(kind: Kind) {
    let server = start(kind).await;
    let mut socket = open(&server, "/v3/watch");
    socket.send(&json!({"create_request": {"key": K}}).to_string());
    assert_eq!(next(&mut socket)["result"]["created"], json!(true));
    assert_eq!(server.metric(WATCHERS), Some(1.0));
    drop(socket);
    has_no_watcher(&server).await;
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let answer = request(server.port(), "POST", path, &body.to_string());
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    serde_json::from_str(&answer.text()).unwrap()
}

async fn the_token_is_read_from_the_protocol_or_the_cookie(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--bcrypt-cost=4").start().await;
    for (path, body) in [
        ("/v3/auth/user/add", json!({"name": "root", "password": "p"})),
        ("/v3/auth/role/add", json!({"name": "root"})),
        ("/v3/auth/user/grant", json!({"user": "root", "role": "root"})),
        ("/v3/auth/enable", json!({})),
    ] {
        post(&server, path, &body);
    }
    let user = json!({"name": "root", "password": "p"});
    let token = post(&server, "/v3/auth/authenticate", &user)["token"].as_str().unwrap().to_owned();
    let put = |headers: &[(&str, &str)]| {
        call(&server, "/v3/kv/put", headers, &json!({"key": K, "value": V}))
    };
    let protocol = format!("Bearer, {token}");
    let narrow = format!("Bearer,{token}");
    let cookie = format!("a=b; token={token}");
    for (name, value) in [
        ("Sec-WebSocket-Protocol", protocol.as_str()),
        ("Sec-WebSocket-Protocol", &narrow),
        ("Cookie", &cookie),
    ] {
        let answer = put(&[(name, value)]);
        // etcd 3.5 treats the text before a token as part of the token.
        let is_taken = answer["header"]["revision"].is_string();
        assert_eq!(is_taken, server.is_3_7(), "{value}: {answer}");
    }
    let message = |answer: &Value| answer["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(message(&put(&[])), "etcdserver: user name is empty");
    // No other header field is used for the token.
    assert_eq!(message(&put(&[("Authorization", &token)])), "etcdserver: user name is empty");
    let bad = [("Sec-WebSocket-Protocol", "Bearer, bad.1")];
    assert_eq!(message(&put(&bad)), "etcdserver: invalid auth token");
    let both = [("Sec-WebSocket-Protocol", protocol.as_str()), ("Cookie", "token=bad.1")];
    assert_eq!(message(&put(&both)), "etcdserver: invalid auth token");
    let chosen = |headers: &[(&str, &str)]| {
        let socket = WebSocket::connect(server.port(), "/v3/watch", headers).unwrap();
        socket.head.to_ascii_lowercase().contains("\r\nsec-websocket-protocol: bearer\r\n")
    };
    assert!(chosen(&[("Sec-WebSocket-Protocol", &protocol)]));
    assert!(!chosen(&[("Cookie", &cookie)]));
}

async fn errors_and_unknown_paths_are_reported_as_messages(kind: Kind) {
    let server = start(kind).await;
    let answer = call(&server, "/v3/kv/put", &[], &json!({}));
    assert_eq!(answer["message"], json!("etcdserver: key is not provided"), "{answer}");
    assert_eq!(answer["code"], json!(3));
    let mut unknown = open(&server, "/v3/nothing");
    assert_eq!(next(&mut unknown)["code"], json!(5));
    assert!(matches!(unknown.next_message(), Message::Closed(_)));
    let mut odd = open(&server, "/v3/kv/range");
    odd.send("zzz");
    let received = next(&mut odd);
    assert_eq!(received["message"], json!("invalid character 'z' looking for beginning of value"));
}

async fn invalid_websocket_handshakes_are_refused(kind: Kind) {
    let server = start(kind).await;
    let ask = |method: &str, path: &str, fields: &[(&str, &str)]| {
        let asked = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
        request_with(server.port(), method, path, &[&asked[..], fields].concat(), b"")
    };
    let version = ("Sec-WebSocket-Version", "13");
    let key = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let old = ask("GET", "/v3/watch", &[("Sec-WebSocket-Version", "8"), key]);
    assert_eq!((old.status, old.text().as_str()), (400, "Bad Request\n"));
    assert_eq!(old.header("sec-websocket-version"), Some("13"));
    assert_eq!(
        ask("GET", "/v3/watch", &[version]).status,
        400,
        "a handshake without a key is refused"
    );
    let post = ask("POST", "/v3/watch", &[version, key]);
    assert_eq!((post.status, post.text().as_str()), (405, "Method Not Allowed\n"));
    // On paths outside the gateway, the upgrade header has no effect.
    assert_eq!(ask("GET", "/version", &[version, key]).status, 200);
    let other = [("Connection", "Upgrade"), ("Upgrade", "h2c")];
    let answer = request_with(server.port(), "GET", "/v3/kv/range", &other, b"");
    assert_eq!(answer.status / 100, 5, "a GET without an upgrade to WebSocket: {}", answer.text());
}

async fn fragments_are_joined_and_pings_are_answered(kind: Kind) {
    let server = start(kind).await;
    let mut socket = open(&server, "/v3/kv/put");
    let body = json!({"key": K, "value": V}).to_string();
    let (head, tail) = body.split_at(10);
    socket.send_frame(first::TEXT_BEGINS, head.as_bytes());
    socket.send_frame(first::PING, b"there?");
    assert_eq!(socket.next_message(), Message::Pong(b"there?".to_vec()));
    socket.send_frame(first::ENDS, tail.as_bytes());
    assert!(next(&mut socket)["header"]["revision"].is_string());
    assert_eq!(server.client().read("k").await.unwrap(), b"v");
}

async fn a_protocol_violation_is_reported(kind: Kind) {
    let server = start(kind).await;
    for broken in [
        // The frames are: one without a mask, one with reserved bits, one with an unknown opcode, a fragmented ping,
        // and a continuation without a start.
        &[0x81, 0x02, b'{', b'}'][..],
        &[0xc1, 0x80, 0, 0, 0, 0],
        &[0x83, 0x80, 0, 0, 0, 0],
        &[0x09, 0x80, 0, 0, 0, 0],
        &[0x80, 0x80, 0, 0, 0, 0],
    ] {
        let mut socket = open(&server, "/v3/watch");
        socket.send_raw(broken);
        assert_eq!(socket.next_message(), Message::Closed(Some(1002)), "{broken:x?}");
    }
    assert_eq!(server.get("/health").status, 200);
}

async fn websockets_work_over_tls(kind: Kind) {
    let files = Files::new();
    let server = files.server(kind).start().await;
    let question = WebSocket::request("/v3/watch", &[]);
    let answer = ask(server.port(), &files, None, &question).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{answer}");
    assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
}

async fn websocket_requires_the_gateway(kind: Kind) {
    let options = Options::new(kind).unguarded().flag("--enable-grpc-gateway=false");
    let server = options.start().await;
    let refused = WebSocket::connect(server.port(), "/v3/watch", &[]).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 404 "), "{refused}");
}

async fn clients_are_notified_when_the_member_stops(kind: Kind) {
    let mut server = start(kind).await;
    let mut idle = open(&server, "/v3/kv/put");
    let mut watching = open(&server, "/v3/watch");
    watching.send(&json!({"create_request": {"key": K}}).to_string());
    assert_eq!(next(&mut watching)["result"]["created"], json!(true));
    server.signal("TERM");
    assert_eq!(idle.next_message(), Message::Closed(Some(1001)));
    let received = next(&mut watching);
    assert_eq!(received["error"]["message"], json!("etcdserver: server stopped"), "{received}");
    // The close code depends on which event is noticed first, the end of the call or the shutdown of the member.
    let end = watching.next_message();
    assert!(matches!(end, Message::Closed(Some(1000 | 1001))), "{end:?}");
    server.ended().await;
}

async fn websockets_count_against_the_limit_of_their_address(kind: Kind) {
    let options = Options::new(kind).unguarded().flag("--max-connections-per-address=1");
    let server = options.start().await;
    // The test does not connect until the connections of its readiness check are closed.
    let connected = async || WebSocket::try_connect(server.port(), "/v3/watch", &[]).ok();
    let mut first = eventually("a connection is accepted", connected).await.unwrap();
    first.send(&json!({"create_request": {"key": K}}).to_string());
    assert_eq!(next(&mut first)["result"]["created"], json!(true));
    assert!(
        WebSocket::try_connect(server.port(), "/v3/watch", &[]).is_err(),
        "a second connection is refused"
    );
    first.send(&json!({"progress_request": {}}).to_string());
    assert!(next(&mut first)["result"]["header"].is_object());
    drop(first);
    eventually("the next connection is accepted", connected).await.unwrap();
}

async fn other_origins_are_refused_if_origins_are_listed(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--cors=https://a.example:8443").start().await;
    let connect =
        |headers: &[(&str, &str)]| WebSocket::connect(server.port(), "/v3/kv/range", headers);
    let error = connect(&[("Origin", "https://b.example")]).unwrap_err();
    assert!(error.starts_with("HTTP/1.1 403"), "{error}");
    assert!(connect(&[("Origin", "https://a.example:8443")]).is_ok());
    assert!(connect(&[]).is_ok(), "a request without an origin is accepted");
    let open = start(kind).await;
    let origin = [("Origin", "https://b.example")];
    assert!(
        WebSocket::connect(open.port(), "/v3/kv/range", &origin).is_ok(),
        "without --cors, every origin is accepted"
    );
}

async fn messages_beyond_the_maximum_size_are_refused(kind: Kind) {
    /// Number of parts of 1 MiB, which together exceed four times the maximum request size.
    const PARTS: usize = 12;
    let server = start(kind).await;
    let mut socket = open(&server, "/v3/kv/put");
    socket.send_frame(first::TEXT_BEGINS, b"{\"key\":\"aw==\",\"value\":\"");
    let part = vec![b'A'; 1 << 20];
    for _ in 0..PARTS {
        socket.send_frame(0, &part);
    }
    let received = next(&mut socket);
    assert_eq!(received["code"], json!(8), "{received}");
    assert!(matches!(socket.next_message(), Message::Closed(_)));
    assert_eq!(server.get("/health").status, 200);
}

async fn many_messages_sent_at_once_are_all_answered(kind: Kind) {
    const MESSAGES: usize = 2_000;
    let server = start(kind).await;
    server.client().grant(7, 600).await;
    let mut socket = open(&server, "/v3/lease/keepalive");
    for _ in 0..MESSAGES {
        socket.send("{\"ID\":\"7\"}");
    }
    for _ in 0..MESSAGES {
        assert_eq!(next(&mut socket)["result"]["TTL"], json!("600"));
    }
}
