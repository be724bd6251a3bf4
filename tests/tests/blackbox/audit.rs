//! The audit log: the recorded calls, the secrets that it must never contain, and the behaviour when it cannot be
//! written.

use prost::Message as _;
use quorate_api::authpb::Permission;
use quorate_api::authpb::permission::Type;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::v3electionpb::{CampaignRequest, LeaderRequest};
use quorate_api::v3lockpb::{LockRequest, UnlockRequest};
use quorate_tests::pki::Leaf;
use quorate_tests::{
    Client, JsonStream, Kind, Options, RawHttp2, Server, Tool, Watch, call_head, compare, delete,
    eventually, eventually_within, framed, get_op, key, on_quorate, op, put, put_op, range,
    read_answer, request_with, txn, txn_when, watch_key,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Code;

use super::tls::{Files, ctl};

on_quorate! {
    alone:
    calls_of_every_kind_are_audited,
    writes_are_audited_before_reads_and_compares,
    refused_calls_are_audited_without_secrets,
    no_calls_are_audited_without_the_flag,
    audit_rules_select_the_recorded_calls,
    audit_rules_about_keys_match_locks_elections_and_leases,
    a_full_audit_file_is_rotated,
    the_common_name_of_a_client_certificate_is_audited,
    a_blocked_audit_file_causes_dropped_lines_or_refused_calls,
    an_executed_call_is_audited_with_its_result_if_its_response_is_not_read,
    each_json_connection_is_audited_with_its_own_address,
}

/// A server, and the folder that contains its audit log.
struct Audited {
    server: Server,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Audited {
    async fn start(kind: Kind, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let options = Options::new(kind).flag(format!("--audit-log={}", path.display()));
        let options = flags.iter().fold(options, |options, flag| options.flag(*flag));
        Self { server: options.start().await, path, _dir: dir }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }

    fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for a line about this method that satisfies a condition, and returns the newest such line.
    async fn line(&self, method: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("a line about {method}"), async || {
            let of_method = |line: &&Value| line["method"] == format!("/{method}") && holds(line);
            self.lines().iter().rev().find(of_method).cloned()
        })
        .await
    }
}

fn is_ok(line: &Value) -> bool {
    line["code"] == "OK"
}

async fn calls_of_every_kind_are_audited(kind: Kind) {
    let audited = Audited::start(kind, &[]).await;
    let client = audited.server.client();
    let revision = client.write("a", "v").await;
    let line = audited.line("etcdserverpb.KV/Put", is_ok).await;
    assert_eq!(line["requests"], json!([{"op": "put", "key": "a"}]));
    assert_eq!(line["revision"], revision);
    assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(line["ts"].is_string() && line["took"].is_string());

    client.range(range("a", "b")).await.unwrap();
    let line =
        audited.line("etcdserverpb.KV/Range", |line| line["requests"][0]["key"] == "a").await;
    assert_eq!(line["requests"], json!([{"op": "range", "key": "a", "range-end": "b"}]));
    client.txn(txn(vec![put_op("c", "v"), get_op("d")])).await.unwrap();
    let line = audited.line("etcdserverpb.KV/Txn", is_ok).await;
    assert_eq!(line["requests"], json!([{"op": "put", "key": "c"}, {"op": "range", "key": "d"}]));
    client.delete_range(delete("c", "")).await.unwrap();
    audited.line("etcdserverpb.KV/DeleteRange", is_ok).await;
    client.compact_to(revision).await;
    audited.line("etcdserverpb.KV/Compact", |line| line["requests"][0]["at"] == revision).await;

    let id = client.grant(7, 60).await;
    client.renew(id).await.unwrap();
    client.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap();
    for method in ["LeaseGrant", "LeaseKeepAlive", "LeaseRevoke"] {
        let of_lease = |line: &Value| line["requests"][0]["lease"] == 7;
        audited.line(&format!("etcdserverpb.Lease/{method}"), of_lease).await;
    }

    let mut watch = Watch::open(&client);
    assert!(watch.create(watch_key("a")).await.created);
    let line = audited.line("etcdserverpb.Watch/Watch", |line| line["requests"].is_array()).await;
    assert_eq!(line["requests"], json!([{"op": "watch", "key": "a"}]));

    client.lock(LockRequest { name: "l".into(), lease: 0 }).await.unwrap();
    audited.line("v3lockpb.Lock/Lock", |line| line["requests"][0]["key"] == "l/").await;
    let campaign = CampaignRequest { name: "e".into(), value: "secret".into(), lease: 0 };
    client.campaign(campaign).await.unwrap();
    audited.line("v3electionpb.Election/Campaign", is_ok).await;

    client.move_leader(pb::MoveLeaderRequest { target_id: 0xabc }).await.unwrap_err();
    let line = audited.line("etcdserverpb.Maintenance/MoveLeader", |line| !is_ok(line)).await;
    assert_eq!(line["requests"][0]["member"], "abc");
    assert!(line["error"].is_string(), "{line}");
    client.member_remove(pb::MemberRemoveRequest { id: 0xdef }).await.unwrap_err();
    let line = audited.line("etcdserverpb.Cluster/MemberRemove", |line| !is_ok(line)).await;
    assert_eq!(
        (&line["code"], &line["requests"][0]["member"]),
        (&json!("NOT_FOUND"), &json!("def"))
    );

    let metadata = client.metadata();
    let token = metadata.get("token").map(|token| token.to_str().unwrap());
    let fields: Vec<_> = token.into_iter().map(|token| ("Authorization", token)).collect();
    let body = br#"{"key":"anNvbg==","value":"c2VjcmV0"}"#;
    let answer = request_with(audited.server.port(), "POST", "/v3/kv/put", &fields, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    audited.line("etcdserverpb.KV/Put", |line| line["requests"][0]["key"] == "json").await;
    assert!(!audited.text().contains("secret"));
    assert!(audited.server.metric("quorate_audit_lines_written_total").unwrap() > 0.0);
}

async fn an_executed_call_is_audited_with_its_result_if_its_response_is_not_read(kind: Kind) {
    let audited = Audited::start(kind, &[]).await;
    let revision = audited.server.client().write("k", "v").await;
    let mut connection = RawHttp2::connect_without_room(audited.server.port());
    let id = connection.open(&call_head("/etcdserverpb.KV/DeleteRange"));
    let request = pb::DeleteRangeRequest { prev_kv: true, ..delete("k", "") };
    connection.send_body(id, &framed(&request.encode_to_vec()), true);
    let handled = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"DeleteRange\",\
                   grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
    eventually("the key is deleted", async || {
        (audited.server.metric(handled) == Some(1.0)).then_some(())
    })
    .await;
    drop(connection);
    let line = audited.line("etcdserverpb.KV/DeleteRange", |_| true).await;
    assert_eq!((&line["code"], &line["revision"]), (&json!("OK"), &json!(revision + 1)));
}

async fn each_json_connection_is_audited_with_its_own_address(kind: Kind) {
    let audited = Audited::start(kind, &[]).await;
    let mut connections = Vec::new();
    for (key, base64) in [("a", "YQ=="), ("b", "Yg==")] {
        let body = json!({"key": base64}).to_string();
        let mut connection = JsonStream::send(audited.server.port(), "/v3/kv/put", &[], &body);
        assert_eq!(read_answer(&mut connection).unwrap().status, 200);
        let line =
            audited.line("etcdserverpb.KV/Put", |line| line["requests"][0]["key"] == key).await;
        assert_eq!(line["remote"], connection.local_addr().unwrap().to_string());
        connections.push(connection);
    }
}

async fn writes_are_audited_before_reads_and_compares(kind: Kind) {
    let audited = Audited::start(kind, &[]).await;
    let version = |number: i64| {
        compare(format!("c{number:02}"), CompareResult::Equal, TargetUnion::Version(0))
    };
    let inner = txn(vec![get_op("inner"), op(Request::RequestDeleteRange(delete("a", "b")))]);
    let operations = vec![get_op("outer"), op(Request::RequestTxn(inner))];
    let request = txn_when((0..40).map(version).collect(), operations, vec![]);
    audited.server.client().txn(request).await.unwrap();
    let line = audited.line("etcdserverpb.KV/Txn", is_ok).await;
    let requests = line["requests"].as_array().unwrap();
    assert_eq!(requests[0], json!({"op": "delete_range", "key": "a", "range-end": "b"}));
    assert_eq!(requests[1], json!({"op": "range", "key": "outer"}));
    assert_eq!(requests[2], json!({"op": "range", "key": "inner"}));
    assert_eq!((requests.len(), &line["requests-left-out"]), (32, &json!(11)));
    let rest = json!([{"op": "compare", "count": 11, "first-key": "c29", "last-key": "c39"}]);
    assert_eq!(line["left-out"], rest);
}

/// Adds a user that may read the prefix `/own/`.
async fn add_user(client: &Client, name: &str, password: &str) {
    let (name, password) = (name.to_owned(), password.to_owned());
    let add = pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    client.user_add(add).await.unwrap();
    client.role_add(pb::AuthRoleAddRequest { name: "own".to_owned() }).await.unwrap();
    let (key, range_end) = ("/own/".into(), "/own0".into());
    let perm = Some(Permission { perm_type: Type::Read.into(), key, range_end });
    let grant = pb::AuthRoleGrantPermissionRequest { name: "own".to_owned(), perm };
    client.role_grant_permission(grant).await.unwrap();
    let role = "own".to_owned();
    client.user_grant_role(pb::AuthUserGrantRoleRequest { user: name, role }).await.unwrap();
}

async fn refused_calls_are_audited_without_secrets(kind: Kind) {
    let audited = Audited::start(kind, &[]).await;
    if audited.server.user_of_tools().is_some() {
        // In a secured run the users already exist.
        return;
    }
    let client = audited.server.client();
    client.write("/other/k", "SECRET value").await;
    add_user(&client, "ann", "SECRET password").await;
    let line = audited.line("etcdserverpb.Auth/RoleGrantPermission", is_ok).await;
    let granted = json!({"op": "role_grant_permission", "role": "own", "permission": "READ",
        "key": "/own/", "range-end": "/own0"});
    assert_eq!(line["requests"][0], granted);
    let root = pb::AuthUserAddRequest {
        name: "root".to_owned(),
        password: "SECRET too".to_owned(),
        ..Default::default()
    };
    client.user_add(root).await.unwrap();
    let (user, role) = ("root".to_owned(), "root".to_owned());
    client.role_add(pb::AuthRoleAddRequest { name: role.clone() }).await.unwrap();
    client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role }).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();

    client.log_in("ann", "SECRET guess").await.unwrap_err();
    let line = audited.line("etcdserverpb.Auth/Authenticate", |line| !is_ok(line)).await;
    assert_eq!(line["requests"], json!([{"op": "login", "name": "ann"}]));
    client.log_in("SECRET typed as a name", "x").await.unwrap_err();
    let unnamed = |line: &Value| line["requests"] == json!([{"op": "login"}]);
    audited.line("etcdserverpb.Auth/Authenticate", unnamed).await;

    let ann = client.log_in("ann", "SECRET password").await.unwrap();
    audited.line("etcdserverpb.Auth/Authenticate", is_ok).await;
    ann.range(key("/other/k")).await.unwrap_err();
    let line = audited.line("etcdserverpb.KV/Range", |line| line["user"] == "ann").await;
    assert_eq!(line["code"], "PERMISSION_DENIED");
    assert_eq!(line["requests"][0]["key"], "/other/k");
    let refused = ann.put(put("/own/k", "SECRET value")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    audited.line("etcdserverpb.KV/Put", |line| line["user"] == "ann" && !is_ok(line)).await;
    ann.compact(pb::CompactionRequest { revision: 1, physical: false }).await.unwrap_err();
    audited.line("etcdserverpb.KV/Compact", |line| line["user"] == "ann" && !is_ok(line)).await;
    let mut watch = Watch::open(&ann);
    assert!(watch.create(watch_key("/other/k")).await.canceled);
    let line = audited.line("etcdserverpb.Watch/Watch", |line| !is_ok(line)).await;
    assert_eq!((&line["user"], &line["code"]), (&json!("ann"), &json!("PERMISSION_DENIED")));

    let token = ann.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    let text = audited.text();
    assert!(!text.contains("SECRET") && !text.contains(&token), "{text}");
    // The log must not contain the password in hashed or encoded form either.
    assert!(!text.contains("$2a$") && !text.contains("JDJ"), "{text}");
}

async fn the_common_name_of_a_client_certificate_is_audited(kind: Kind) {
    let files = Files::new();
    files.write("ann", &Leaf::new("ann"));
    let path = files.path("audit.log");
    let server = files.closed(kind).flag(format!("--audit-log={}", path.display())).start().await;
    let shown = files.shown("ann");
    for (line, code) in [("put a v", 0), ("user add ann --no-password", 0), ("auth enable", 1)] {
        let args: Vec<&str> = shown.iter().map(String::as_str).chain(line.split(' ')).collect();
        let done = ctl(Tool::QuorateCtl, &server.url(), &args);
        assert_eq!(done.code, Some(code), "{line}: {done:?}");
    }
    let lines = eventually("three lines are in the audit log", async || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().any(|line| line["method"] == "/etcdserverpb.Auth/AuthEnable").then_some(lines)
    })
    .await;
    for line in &lines {
        assert_eq!(line["certificate"], "ann", "{line}");
        // While authentication is disabled, a certificate identifies no user.
        assert!(line.get("user").is_none_or(|user| user == ""), "{line}");
    }
    let put = lines.iter().find(|line| line["method"] == "/etcdserverpb.KV/Put").unwrap();
    assert_eq!((&put["code"], &put["requests"][0]["key"]), (&json!("OK"), &json!("a")), "{put}");
}

async fn no_calls_are_audited_without_the_flag(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().write("k", "v").await;
    assert_eq!(server.metric("quorate_audit_lines_written_total"), Some(0.0));
    assert_eq!(server.metric("quorate_audit_lines_bytes"), Some(0.0));
}

async fn audit_rules_select_the_recorded_calls(kind: Kind) {
    let rules = "--audit-rules=exclude method=KV/Range; include key=/a/; exclude";
    let audited = Audited::start(kind, &[rules]).await;
    let client = audited.server.client();
    for name in ["/b/k", "/a/k"] {
        client.write(name, "v").await;
        client.range(key(name)).await.unwrap();
    }
    client.txn(txn(vec![put_op("/b/x", "v"), put_op("/a/x", "v")])).await.unwrap();
    audited.line("etcdserverpb.KV/Txn", is_ok).await;
    let methods: Vec<_> = audited.lines().iter().map(|line| line["method"].clone()).collect();
    assert_eq!(methods, ["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"]);

    for (rules, why) in [
        ("drop everything", "must start with include or exclude"),
        ("exclude method=KV/Frob", "there is no service or method KV/Frob"),
    ] {
        let options = Options::new(kind).flag("--audit-log=stderr");
        let mut server = options.flag(format!("--audit-rules={rules}")).prepare();
        server.launch();
        server.ready().await.unwrap_err();
        server.wait_for_log(why).await;
    }
}

async fn audit_rules_about_keys_match_locks_elections_and_leases(kind: Kind) {
    let rules = "--audit-rules=exclude key=/b/; include key=/a/; exclude";
    let audited = Audited::start(kind, &[rules]).await;
    let client = audited.server.client();
    for name in ["/b", "/a"] {
        let lock = LockRequest { name: name.into(), lease: 0 };
        let lock = client.lock(lock).await.unwrap();
        client.unlock(UnlockRequest { key: lock.key }).await.unwrap();
        let campaign =
            CampaignRequest { name: name.into(), lease: 0, value: b"v".as_slice().into() };
        client.campaign(campaign).await.unwrap();
        client.leader(LeaderRequest { name: name.into() }).await.unwrap();
    }
    client.grant(7, 600).await;
    client.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap();
    client.write("/c", "v").await;
    client.write("/a/last", "v").await;
    audited.line("etcdserverpb.KV/Put", is_ok).await;
    let methods = audited.lines();
    let methods: Vec<_> = methods.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(
        methods,
        [
            "/v3lockpb.Lock/Lock",
            "/v3lockpb.Lock/Unlock",
            "/v3electionpb.Election/Campaign",
            "/v3electionpb.Election/Leader",
            "/etcdserverpb.Lease/LeaseGrant",
            "/etcdserverpb.Lease/LeaseRevoke",
            "/etcdserverpb.KV/Put",
        ]
    );
    let lock = &audited.lines()[0]["requests"][0];
    assert_eq!((&lock["key"], &lock["range-end"]), (&json!("/a/"), &json!("/a0")), "{lock}");
}

/// Sends requests that cause lines of about 16 KiB each.
async fn send_many_requests(client: &Client) -> Result<(), tonic::Status> {
    let name = "k".repeat(480);
    let puts = (0..32).map(|number| put_op(format!("{name}{number}"), "v")).collect();
    client.txn(txn(puts)).await.map(drop)
}

async fn a_full_audit_file_is_rotated(kind: Kind) {
    let rotation = r#"--audit-log-rotation-config-json={"maxsize":1}"#;
    let audited = Audited::start(kind, &[rotation]).await;
    let client = audited.server.client();
    let dir = audited.path.parent().unwrap().to_owned();
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    eventually("a full audit log file is set aside", async || {
        send_many_requests(&client).await.unwrap();
        (names().len() == 2).then_some(())
    })
    .await;
    let aside = names().into_iter().find(|name| name != "audit.log").unwrap();
    assert!(aside.starts_with("audit-") && aside.ends_with(".log"), "{aside}");
    let text = std::fs::read_to_string(dir.join(aside)).unwrap();
    assert!(text.len() <= 1 << 20 && text.ends_with("}\n"));
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
}

/// Creates a pipe without a reader, which is full after 64 KiB.
fn full_pipe(path: &Path) -> std::fs::File {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

async fn a_blocked_audit_file_causes_dropped_lines_or_refused_calls(kind: Kind) {
    let server = Options::new(kind).flag("--audit-log=/dev/full").start().await;
    server.client().write("k", "v").await;
    eventually("lost lines are counted", async || {
        let dropped = server.metric("quorate_audit_lines_dropped_total").unwrap();
        let is_logged = server.log_of_this_run().contains("audit log lines are lost");
        (dropped > 0.0 && is_logged).then_some(())
    })
    .await;

    let dir = tempfile::tempdir().unwrap();
    for (overflow, is_refused) in [("drop", false), ("refuse", true)] {
        let path = dir.path().join(overflow);
        let _nobody_reads = full_pipe(&path);
        let options = Options::new(kind).flag(format!("--audit-log={}", path.display()));
        let server = options.flag(format!("--audit-log-overflow={overflow}")).start().await;
        let client = server.client();
        let mut watch = Watch::open(&client);
        assert!(watch.create(watch_key("before")).await.created);
        let metric = |name: &str| server.metric(&format!("quorate_audit_{name}")).unwrap();
        eventually_within(Duration::from_secs(90), "the queue is full", async || {
            for _ in 0..64 {
                let methods = send_many_requests(&client).await;
                if is_refused && let Err(refused) = methods {
                    assert_eq!(refused.message(), "etcdserver: too many requests");
                    return Some(());
                }
            }
            (metric("lines_dropped_total") > 0.0).then_some(())
        })
        .await;
        // Requests on a stream that is already open need space in the queue as well.
        for _ in 0..10 {
            let created = watch.create(watch_key("k".repeat(480))).await;
            assert_eq!(created.canceled, is_refused, "{overflow}: {created:?}");
            if is_refused {
                assert_eq!(created.cancel_reason, "etcdserver: too many requests");
            }
        }
        assert!(metric("lines_bytes") <= f64::from(16 << 20));
        assert_eq!(metric("requests_refused_total") > 0.0, is_refused, "{overflow}");
        assert_eq!(metric("lines_dropped_total") > 0.0, !is_refused, "{overflow}");
    }
}
