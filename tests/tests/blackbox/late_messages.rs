//! Calls whose headers are sent while the caller has permission, but whose messages follow after the permission was
//! revoked.

use std::path::Path;

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::{v3electionpb as el, v3lockpb as lk};
use quorate_tests::{
    Kind, RawAnswer, RawHttp2, Server, WebSocket, call_head, framed, literal, on_both_servers,
    on_quorate, put, put_leased, put_op, txn, watch_key, web_socket::Message,
};

use super::auth::{BAD, NOBODY, add_user, grant, guard, log_in, options, permission, user};
use super::permissions::BEFORE_3_7;

on_both_servers! {
    alone:
    a_call_opened_by_a_deleted_administrator_is_refused_when_the_message_arrives,
    calls_opened_before_authentication_was_enabled_are_refused_when_the_message_arrives,
}

on_quorate! {
    alone:
    a_snapshot_over_a_websocket_is_authorized_when_its_message_arrives,
}

/// Returns the paths of all methods of etcd's services.
fn methods() -> Vec<String> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/proto/etcd");
    let files = [
        ("etcdserverpb", "api/etcdserverpb/rpc.proto"),
        ("v3lockpb", "server/etcdserver/api/v3lock/v3lockpb/v3lock.proto"),
        ("v3electionpb", "server/etcdserver/api/v3election/v3electionpb/v3election.proto"),
    ];
    let (mut paths, mut service) = (Vec::new(), String::new());
    for (package, file) in files {
        for line in std::fs::read_to_string(protos.join(file)).unwrap().lines() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.split([' ', '{']).next().unwrap().to_owned();
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                let method = rest.split('(').next().unwrap();
                paths.push(format!("/{package}.{service}/{method}"));
            }
        }
    }
    assert!(paths.len() > 40, "{paths:?}");
    paths
}

fn method_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Returns a message that is valid for the method, so that the call can only be refused for lack of permission.
fn message(method: &str) -> Vec<u8> {
    let name = || "ghost".to_owned();
    let leader = || {
        let (name, key) = (b"a1".as_slice().into(), b"a1".as_slice().into());
        Some(el::LeaderKey { name, key, rev: 999, lease: 1 })
    };
    match method {
        "Range" | "RangeStream" | "DeleteRange" | "Unlock" => b"\x0a\x02a1".to_vec(),
        "Put" => put("a1", "v").encode_to_vec(),
        "Txn" => txn(vec![put_op("a1", "v")]).encode_to_vec(),
        "Compact" => pb::CompactionRequest { revision: 1, physical: false }.encode_to_vec(),
        "UserGet" => pb::AuthUserGetRequest { name: "ann".into() }.encode_to_vec(),
        "LeaseRevoke" => pb::LeaseRevokeRequest { id: 1 }.encode_to_vec(),
        "LeaseGrant" => pb::LeaseGrantRequest { id: 7, ttl: 60 }.encode_to_vec(),
        "Watch" => {
            let create = Some(RequestUnion::CreateRequest(watch_key("a1")));
            pb::WatchRequest { request_union: create }.encode_to_vec()
        }
        "MemberAdd" => {
            let peer_urls = vec!["http://127.0.0.1:1".to_owned()];
            pb::MemberAddRequest { peer_urls, is_learner: true }.encode_to_vec()
        }
        "MemberUpdate" => {
            let peer_urls = vec!["http://127.0.0.1:1".to_owned()];
            pb::MemberUpdateRequest { id: 9, peer_urls }.encode_to_vec()
        }
        "MemberRemove" => pb::MemberRemoveRequest { id: 9 }.encode_to_vec(),
        "MemberPromote" => pb::MemberPromoteRequest { id: 9 }.encode_to_vec(),
        "MoveLeader" => pb::MoveLeaderRequest { target_id: 9 }.encode_to_vec(),
        "Downgrade" => pb::DowngradeRequest { action: 0, version: "9.9.0".into() }.encode_to_vec(),
        "UserAdd" => user("ghost").encode_to_vec(),
        "RoleAdd" => pb::AuthRoleAddRequest { name: name() }.encode_to_vec(),
        "RoleGrantPermission" => permission("app", 0, "k", "").encode_to_vec(),
        "Lock" => lk::LockRequest { name: b"a1".as_slice().into(), lease: 1 }.encode_to_vec(),
        "Campaign" => {
            let name = b"a1".as_slice().into();
            el::CampaignRequest { name, lease: 1, value: Default::default() }.encode_to_vec()
        }
        "Proclaim" => {
            el::ProclaimRequest { leader: leader(), value: Default::default() }.encode_to_vec()
        }
        "Resign" => el::ResignRequest { leader: leader() }.encode_to_vec(),
        "Leader" | "Observe" => el::LeaderRequest { name: b"a1".as_slice().into() }.encode_to_vec(),
        // Messages of the other methods have no required fields.
        _ => Vec::new(),
    }
}

/// Returns the methods to test. Methods that require no permission are omitted. For a server older than etcd 3.7,
/// methods that etcd 3.5 checked less strictly are omitted as well.
fn asked_of(server: &Server, token: Option<&str>) -> Vec<String> {
    let name = |row: &'static str| row.split([' ', ',']).next();
    let older = |method: &str| {
        let rows = BEFORE_3_7.iter().flat_map(|(rows, _)| *rows);
        rows.into_iter().any(|row| name(row) == Some(method))
    };
    let is_asked = |path: &String| match method_of(path) {
        "Authenticate" => false,
        "AuthStatus" if token.is_none() => false,
        "RangeStream" => server.is_3_7(),
        // Before etcd 3.7, these calls are refused with a message on the stream, or end without a reason.
        "Watch" | "Observe" => server.is_3_7(),
        method => server.is_3_7() || !older(method),
    };
    methods().into_iter().filter(is_asked).collect()
}

/// Sends the headers of the calls, without messages.
fn open(server: &Server, token: Option<&str>) -> (RawHttp2, Vec<(String, u32)>) {
    let mut connection = RawHttp2::connect(server.port());
    let open = |path: String| {
        let mut head = call_head(&path);
        if let Some(token) = token {
            head.extend(literal(b"token", token.as_bytes()));
        }
        let id = connection.open(&head);
        (path, id)
    };
    let calls = asked_of(server, token).into_iter().map(open).collect();
    // The server reads frames in order, so the response to the last call shows that the server has read the other
    // calls.
    let last = connection.open(&call_head("/grpc.health.v1.Health/Check"));
    connection.send_body(last, &framed(b""), true);
    assert!(connection.read_answer(last).summary().starts_with("200 0"));
    (connection, calls)
}

/// Sends the messages of the calls, and returns the calls that are not refused with this text.
fn finish(
    (mut connection, calls): (RawHttp2, Vec<(String, u32)>),
    refusal: &str,
) -> Vec<(String, RawAnswer)> {
    let mut wrong = Vec::new();
    for (path, id) in calls {
        let method = method_of(&path);
        let message = framed(&message(method));
        if method == "Watch" {
            connection.send_body(id, &message, false);
            let head = connection.read_body(id, 5);
            let len = u32::from_be_bytes(head[1..5].try_into().unwrap()) as usize;
            let rest = len.saturating_sub(head.len() - 5);
            let message = [&head[5..], &connection.read_body(id, rest)].concat();
            let answer = pb::WatchResponse::decode(&message[..]).unwrap();
            let reason = &answer.cancel_reason;
            assert!(answer.canceled && reason.ends_with(refusal), "{answer:?}");
            continue;
        }
        connection.send_body(id, &message, true);
        let answer = connection.read_answer(id);
        let is_refused = match &answer {
            RawAnswer::Response(response) if method == "Observe" => response.body.is_empty(),
            // Before etcd 3.7, some methods return the lower layer's error, which starts with `auth: `.
            answer => answer.summary().ends_with(refusal.trim_start_matches("etcdserver:")),
        };
        if !is_refused {
            wrong.push((path, answer));
        }
    }
    wrong
}

async fn a_call_opened_by_a_deleted_administrator_is_refused_when_the_message_arrives(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    add_user(&root, "boss").await;
    grant(&root, "boss", "root").await;
    root.grant(1, 600).await;
    root.put(put_leased("a1", "v", 1)).await.unwrap();
    let boss = log_in(&client, "boss").await;
    let token = boss.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    let calls = open(&server, Some(&token));
    root.user_delete(pb::AuthUserDeleteRequest { name: "boss".into() }).await.unwrap();
    let wrong = finish(calls, BAD);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn calls_opened_before_authentication_was_enabled_are_refused_when_the_message_arrives(
    kind: Kind,
) {
    let server = options(kind).start().await;
    let client = server.client();
    client.grant(1, 600).await;
    client.put(put_leased("a1", "v", 1)).await.unwrap();
    let calls = open(&server, None);
    guard(&client).await;
    let wrong = finish(calls, NOBODY);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn a_snapshot_over_a_websocket_is_authorized_when_its_message_arrives(kind: Kind) {
    let server = options(kind).unguarded().start().await;
    let client = server.client();
    let path = "/v3/maintenance/snapshot";
    let mut socket = WebSocket::connect(server.port(), path, &[]).unwrap();
    guard(&client).await;
    socket.send("{}");
    let answer = socket.next_message();
    assert!(matches!(&answer, Message::Text(text) if text.contains(NOBODY)), "{answer:?}");
}
