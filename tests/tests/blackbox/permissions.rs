//! The permission that each method requires while authentication is enabled. One table contains the answers of every
//! method to every kind of caller. The answers are the same as etcd's. A list contains the answers that differ in etcd
//! 3.5.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_api::healthpb::HealthCheckRequest;
use quorate_api::{v3electionpb as el, v3lockpb as lk};
use quorate_tests::{
    Client, Kind, Server, Watch, changed, delete, from_key, get_op, key, on_both_servers,
    on_quorate, put, put_leased, put_op, refused, txn, watch_key,
};
use tonic::{Code, Status};

use super::auth::{BAD, DENIED, NOBODY, gone, guard, log_in, options, permission, user};

on_both_servers! {
    every_method_requires_its_permission,
    logins_are_refused_while_authentication_is_disabled,
}

on_quorate! {
    alone:
    the_permission_table_has_every_method,
}

type Answer = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// A method, its call, and its answers to the callers while authentication is enabled.
type Row = (&'static str, Box<dyn Fn(Client) -> Answer>, Outcomes);

/// The expected error for each caller: without a token, with an invalid token, with an expired token, and as eve, ann
/// and root. An empty string means that the call is accepted.
pub(super) type Outcomes = [&'static str; 6];

/// Descriptions of the callers, in the order of [`Outcomes`].
const CALLERS: [&str; 6] = ["nobody", "a wrong token", "an expired token", "eve", "ann", "root"];
/// Index of the caller with an expired token.
const EXPIRED: usize = 2;

macro_rules! row {
    ($what:literal, $outcomes:expr, |$client:ident| $call:expr) => {
        (
            $what,
            Box::new(move |$client: Client| {
                Box::pin(async move { $call.await.map(drop) }) as Answer
            }) as Box<dyn Fn(Client) -> Answer>,
            $outcomes,
        )
    };
}

/// Only administrators are accepted.
const ADMIN: Outcomes = [NOBODY, BAD, BAD, DENIED, DENIED, ""];
/// Users that may read and write the key are accepted.
const KEYS: Outcomes = [NOBODY, BAD, BAD, DENIED, "", ""];
/// Every user is accepted.
const USER: Outcomes = [NOBODY, BAD, BAD, "", "", ""];
/// Every caller is accepted, but a token must be valid if there is one.
const TOKEN: Outcomes = ["", BAD, BAD, "", "", ""];
/// Every caller is accepted, with any token.
const OPEN: Outcomes = [""; 6];

fn key_methods() -> Vec<Row> {
    let empty = || pb::TxnRequest::default();
    let lease = |id, keys| pb::LeaseTimeToLiveRequest { id, keys };
    vec![
        row!("Range", KEYS, |c| c.range(key("a1"))),
        row!("Range of all later keys", ADMIN, |c| c.range(from_key("a1"))),
        row!("Put", KEYS, |c| c.put(put("a1", "v"))),
        row!("Put with a lease", KEYS, |c| c.put(put_leased("a2", "v", 1))),
        row!("DeleteRange", KEYS, |c| c.delete_range(delete("a5", "a9"))),
        row!("Txn that writes", KEYS, |c| c.txn(txn(vec![put_op("a3", "v")]))),
        row!("Txn that reads", KEYS, |c| c.txn(txn(vec![get_op("a3")]))),
        row!("Txn without operations", TOKEN, |c| c.txn(empty())),
        row!("Compact", ADMIN, |c| c
            .compact(pb::CompactionRequest { revision: 1, physical: false })),
        row!("LeaseGrant", USER, |c| c.lease_grant(pb::LeaseGrantRequest { id: 0, ttl: 60 })),
        row!("LeaseKeepAlive", KEYS, |c| c.renew(1)),
        row!("LeaseKeepAlive of a missing lease", USER, |c| c.renew(99)),
        row!("LeaseTimeToLive", USER, |c| c.lease_time_to_live(lease(1, false))),
        row!("LeaseTimeToLive, keys", KEYS, |c| c.lease_time_to_live(lease(1, true))),
        row!("LeaseLeases", KEYS, |c| c.lease_leases(pb::LeaseLeasesRequest {})),
        row!("Watch", KEYS, |c| watch(c, watch_key("a1"))),
        row!("Watch of all later keys", ADMIN, |c| watch(
            c,
            pb::WatchCreateRequest { range_end: Bytes::from_static(&[0]), ..watch_key("a1") }
        )),
        row!("LeaseRevoke", KEYS, |c| c.lease_revoke(pb::LeaseRevokeRequest { id: 2 })),
    ]
}

/// Returns the methods of locks and elections, which need the permissions of the key operations that they perform.
/// `Observe` is not listed because it starts like `Leader`.
fn recipes() -> Vec<Row> {
    // Each request uses another name, so that no caller waits for another's lock.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = || -> Bytes { format!("a1/{}", NUMBER.fetch_add(1, Relaxed)).into() };
    let campaign = move || el::CampaignRequest { name: name(), lease: 1, value: Bytes::from("v") };
    let leader = || {
        let (name, key) = (Bytes::from("a1"), Bytes::from("a1"));
        Some(el::LeaderKey { name, key, rev: 999, lease: 1 })
    };
    let proclaim = move || el::ProclaimRequest { leader: leader(), value: Bytes::from("v") };
    vec![
        row!("Lock", KEYS, |c| c.lock(lk::LockRequest { name: name(), lease: 1 })),
        row!("Unlock", KEYS, |c| c.unlock(lk::UnlockRequest { key: Bytes::from("a5") })),
        row!("Campaign", KEYS, |c| c.campaign(campaign())),
        row!("Proclaim", KEYS, |c| c.proclaim(proclaim())),
        row!("Leader", KEYS, |c| c.leader(el::LeaderRequest { name: Bytes::from("a1") })),
        row!("Resign", KEYS, |c| c.resign(el::ResignRequest { leader: leader() })),
    ]
}

fn cluster_methods(peer_url: String) -> Vec<Row> {
    let alarm = |action| pb::AlarmRequest { action, member_id: 0, alarm: 0 };
    let add = move || pb::MemberAddRequest { peer_urls: vec![peer_url.clone()], is_learner: false };
    let update = || pb::MemberUpdateRequest { id: 9, peer_urls: vec!["http://127.0.0.1:1".into()] };
    vec![
        (
            "MemberAdd",
            Box::new(move |c: Client| {
                let request = add();
                Box::pin(async move {
                    changed(async || c.member_add(request.clone()).await).await.map(drop)
                }) as Answer
            }) as Box<dyn Fn(Client) -> Answer>,
            ADMIN,
        ),
        row!("MemberRemove", ADMIN, |c| changed(async || {
            c.member_remove(pb::MemberRemoveRequest { id: 9 }).await
        })),
        row!("MemberUpdate", ADMIN, |c| changed(async || c.member_update(update()).await)),
        row!("MemberPromote", ADMIN, |c| changed(async || {
            c.member_promote(pb::MemberPromoteRequest { id: 9 }).await
        })),
        row!("MemberList", USER, |c| c.member_list(pb::MemberListRequest { linearizable: true })),
        row!("Alarm, get", USER, |c| c.alarm(alarm(0))),
        row!("Alarm, disarm", ADMIN, |c| c.alarm(alarm(2))),
        row!("Status", USER, |c| c.status(pb::StatusRequest {})),
        row!("Defragment", ADMIN, |c| c.defragment(pb::DefragmentRequest {})),
        row!("Hash", ADMIN, |c| c.hash(pb::HashRequest {})),
        row!("HashKV", ADMIN, |c| c.hash_kv(pb::HashKvRequest { revision: 0 })),
        row!("Snapshot", ADMIN, |c| c.snapshot()),
        row!("MoveLeader", ADMIN, |c| c.move_leader(pb::MoveLeaderRequest { target_id: 9 })),
        row!("Downgrade", ADMIN, |c| c
            .downgrade(pb::DowngradeRequest { action: 0, version: "9.9.0".into() })),
    ]
}

fn user_methods() -> Vec<Row> {
    let ghost = || "ghost".to_owned();
    vec![
        row!("AuthEnable", ADMIN, |c| c.auth_enable(pb::AuthEnableRequest {})),
        row!("UserAdd", ADMIN, |c| c.user_add(user("ann"))),
        row!("UserGet", KEYS, |c| c.user_get(pb::AuthUserGetRequest { name: "ann".into() })),
        row!("UserList", ADMIN, |c| c.user_list(pb::AuthUserListRequest {})),
        row!("UserDelete", ADMIN, |c| c.user_delete(pb::AuthUserDeleteRequest { name: ghost() })),
        row!("UserChangePassword", ADMIN, |c| c.user_change_password(
            pb::AuthUserChangePasswordRequest {
                name: ghost(),
                password: "p".into(),
                ..pb::AuthUserChangePasswordRequest::default()
            }
        )),
        row!("UserGrantRole", ADMIN, |c| c
            .user_grant_role(pb::AuthUserGrantRoleRequest { user: ghost(), role: "app".into() })),
        row!("UserRevokeRole", ADMIN, |c| c
            .user_revoke_role(pb::AuthUserRevokeRoleRequest { name: ghost(), role: "app".into() })),
        row!("RoleAdd", ADMIN, |c| c.role_add(pb::AuthRoleAddRequest { name: "app".into() })),
        row!("RoleGet", KEYS, |c| c.role_get(pb::AuthRoleGetRequest { role: "app".into() })),
        row!("RoleList", ADMIN, |c| c.role_list(pb::AuthRoleListRequest {})),
        row!("RoleDelete", ADMIN, |c| c.role_delete(pb::AuthRoleDeleteRequest { role: ghost() })),
        row!("RoleGrantPermission", ADMIN, |c| c
            .role_grant_permission(permission("ghost", 0, "k", ""))),
        row!("RoleRevokePermission", ADMIN, |c| c.role_revoke_permission(
            pb::AuthRoleRevokePermissionRequest { role: ghost(), ..Default::default() }
        )),
    ]
}

/// Creates a watch, and returns its refusal, which arrives as a message on the stream.
async fn watch(client: Client, request: pb::WatchCreateRequest) -> Result<(), Status> {
    let answer = Watch::open(&client).create(request).await;
    if !answer.canceled {
        return Ok(());
    }
    let (code, text) = answer.cancel_reason.split_once(" desc = ").unwrap();
    let code = match code.trim_start_matches("rpc error: code = ") {
        "InvalidArgument" => Code::InvalidArgument,
        "Unauthenticated" => Code::Unauthenticated,
        "PermissionDenied" => Code::PermissionDenied,
        other => panic!("{other}"),
    };
    Err(Status::new(code, text))
}

/// Returns the text of a permission error, or an empty string for every other answer.
fn refusal(answer: Result<(), Status>) -> String {
    let Err(status) = answer else { return String::new() };
    // Before etcd 3.7, some methods return their internal error text.
    if let Some(text) = status.message().strip_prefix("auth: ") {
        return format!("etcdserver: {text}");
    }
    let code = match status.message() {
        NOBODY => Code::InvalidArgument,
        BAD => Code::Unauthenticated,
        DENIED => Code::PermissionDenied,
        // Every other answer means that the call was accepted.
        _ => return String::new(),
    };
    // Locks and elections do not assign codes to the errors of their operations.
    assert!([code, Code::Unknown].contains(&status.code()), "{status}");
    status.message().to_owned()
}

/// Methods whose requirements differ between etcd 3.5 and 3.7, with the requirements of etcd 3.5.
pub(super) const BEFORE_3_7: &[(&[&str], Outcomes)] = &[
    // Callers without a token and callers with a valid token were accepted, because these requests went through the log
    // without a permission check.
    (&["Compact", "LeaseGrant", "Alarm, get", "Alarm, disarm"], TOKEN),
    // The token was not checked. Since etcd 3.6, lease requests require permission for the attached keys. Since etcd
    // 3.7, requests about the member list, and maintenance requests to a member, require permission as well.
    (
        &[
            "LeaseKeepAlive",
            "LeaseKeepAlive of a missing lease",
            "LeaseTimeToLive",
            "LeaseLeases",
            "MemberList",
            "Status",
            "MoveLeader",
            "Downgrade",
        ],
        OPEN,
    ),
    // Before etcd 3.7.1, a user that could read a key could also watch all later keys.
    (&["Watch of all later keys"], KEYS),
    // Only administrators could query whether authentication was enabled.
    (&["AuthStatus"], ADMIN),
];

fn rows(server: &Server) -> Vec<Row> {
    let login = || pb::AuthenticateRequest { name: "ann".into(), password: "wrong".into() };
    let mut rows = key_methods();
    rows.extend(recipes());
    rows.extend(cluster_methods(server.peer_url()));
    rows.extend(user_methods());
    rows.push(row!("AuthStatus", TOKEN, |c| c.auth_status(pb::AuthStatusRequest {})));
    rows.push(row!("Authenticate", OPEN, |c| c.authenticate(login())));
    rows.push(row!("health Check", OPEN, |c| async move {
        c.health().check(c.signed(HealthCheckRequest::default())).await
    }));
    if server.is_3_7() {
        rows.push(row!("RangeStream", KEYS, |c| c.range_stream(key("a1"))));
        return rows;
    }
    for (what, _, outcomes) in &mut rows {
        let older = BEFORE_3_7.iter().find(|(methods, _)| methods.contains(what));
        *outcomes = older.map_or(*outcomes, |(_, older)| *older);
    }
    rows
}

/// Calls a method as one of the callers, and records the answer if it is unexpected.
async fn ask(
    (what, call, outcomes): &Row,
    caller: usize,
    client: &Client,
    wrong: &mut Vec<String>,
) {
    let (name, expected) = (CALLERS[caller], outcomes[caller]);
    let answer = refusal(call(client.clone()).await);
    if answer != expected {
        wrong.push(format!("{what} by {name}: {answer:?} instead of {expected:?}"));
    }
}

async fn every_method_requires_its_permission(kind: Kind) {
    let server = options(kind).flag("--auth-token-ttl=6").start().await;
    let client = server.client();
    for (lease, name) in [(1, "a1"), (2, "a4")] {
        client.grant(lease, 600).await;
        client.put(put_leased(name, "v", lease)).await.unwrap();
    }
    let root = guard(&client).await;
    let expired = log_in(&client, "ann").await;
    // A lease expiry shows that enough time has passed. Checking with the token itself would extend the token's
    // lifetime.
    let lease = root.grant(0, 8).await;
    root.put(put_leased("a9", "v", lease)).await.unwrap();
    let (ann, eve) = (log_in(&client, "ann").await, log_in(&client, "eve").await);
    let wrong_token = client.with_token("nobodygavethisout.1");
    let callers = [client.clone(), wrong_token, expired, eve, ann, root];
    let (rows, mut wrong) = (rows(&server), Vec::new());
    for row in &rows {
        for (caller, client) in callers.iter().enumerate() {
            if caller != EXPIRED {
                ask(row, caller, client, &mut wrong).await;
            }
        }
    }
    // This waits until the token in `expired` has expired. The requests keep root's token valid.
    gone(&callers[5], "a9").await;
    for row in &rows {
        ask(row, EXPIRED, &callers[EXPIRED], &mut wrong).await;
    }
    let disable = row!("AuthDisable", ADMIN, |c| c.auth_disable(pb::AuthDisableRequest {}));
    let [nobody, wrong_token, expired, ..] = &callers;
    let again = async |name| log_in(&client, name).await;
    let (eve, ann, root) = (again("eve").await, again("ann").await, again("root").await);
    let callers = [nobody, wrong_token, expired, &eve, &ann, &root];
    for (caller, client) in callers.iter().enumerate() {
        ask(&disable, caller, client, &mut wrong).await;
    }
    // While authentication is disabled, no permission is required and no token is checked.
    for (what, call, _) in rows {
        for (client, caller) in callers.iter().zip(CALLERS) {
            let answer = refusal(call(Client::clone(client)).await);
            if !answer.is_empty() && what != "AuthEnable" {
                wrong.push(format!("{what} by {caller}, with authentication disabled: {answer:?}"));
            }
            if what == "AuthEnable" {
                // The remaining calls must again run with authentication disabled.
                let root = log_in(nobody, "root").await;
                root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn logins_are_refused_while_authentication_is_disabled(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    let off = "etcdserver: authentication is not enabled";
    refused(client.log_in("ann", "ann-password").await, Code::FailedPrecondition, off);
}

async fn the_permission_table_has_every_method(kind: Kind) {
    let server = options(kind).start().await;
    let rows = rows(&server);
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/proto/etcd");
    let proto: String = [
        "api/etcdserverpb/rpc.proto",
        "server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
        "server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    ]
    .iter()
    .map(|name| std::fs::read_to_string(protos.join(name)).unwrap())
    .collect();
    let calls = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    let names: Vec<&str> = calls.map(|call| call.split('(').next().unwrap()).collect();
    assert!(names.len() > 40, "{names:?}");
    let is_there = |name: &&&str| {
        let of_name = |what: &str| what.split([' ', ',']).next() == Some(**name);
        ["AuthDisable", "Observe"].contains(*name) || rows.iter().any(|(what, ..)| of_name(what))
    };
    let left_out: Vec<_> = names.iter().filter(|name| !is_there(name)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}
