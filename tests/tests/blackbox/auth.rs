//! Users, roles and permissions: logins, the lifetime of tokens, and changes while clients are active. `permissions`
//! covers the permissions that each method requires.

use quorate_api::authpb;
use quorate_api::etcdserverpb as pb;
use quorate_api::{v3electionpb as el, v3lockpb as lk};
use quorate_tests::{
    Client, Cluster, ClusterOptions, DEADLINE, Kind, Options, Watch, delete, eventually,
    eventually_ok, key, on_both_servers, on_quorate, put, put_leased, put_op, refused, txn,
    watch_key,
};
use tempfile::TempDir;
use tonic::Code;

on_both_servers! {
    enabling_authentication_requires_root,
    logins_return_tokens_only_for_correct_passwords,
    invalid_credentials_are_refused,
    deleting_a_user_invalidates_its_tokens_but_revoking_a_role_does_not,
    permission_changes_take_effect_at_once,
    a_watch_requires_read_permission,
    a_watcher_continues_after_its_permission_is_revoked,
    a_lease_expires_while_authentication_is_enabled,
}

on_both_servers! {
    alone:
    users_survive_a_restart,
    passwords_are_hashed_with_the_configured_cost,
    an_unused_token_expires_after_its_ttl,
    a_token_is_valid_on_every_member,
    a_cluster_with_authentication_survives_the_loss_of_its_leader,
    users_survive_a_change_between_etcd_and_quorate,
    signed_tokens_are_verified_and_become_invalid_when_users_change,
    the_token_key_may_be_read_from_a_certificate,
}

on_quorate! {
    alone:
    users_and_permissions_apply_on_all_members_of_a_mixed_cluster,
    names_that_no_member_could_store_are_refused,
    continual_logins_from_one_source_do_not_delay_other_logins,
    failed_logins_lock_out_neither_the_user_nor_an_administrator,
    requests_with_invalid_tokens_do_not_count_as_waiting_reads,
    passwords_and_tokens_are_in_neither_the_log_nor_the_metrics,
    token_keys_are_reloaded_while_the_member_runs,
    requests_without_credentials_are_not_written_to_the_log,
    a_snapshot_invalidates_tokens_of_deleted_users,
}

on_both_servers! {
    alone:
    disabling_authentication_applies_on_every_member,
}

pub(super) const NOBODY: &str = "etcdserver: user name is empty";
pub(super) const BAD: &str = "etcdserver: invalid auth token";
pub(super) const DENIED: &str = "etcdserver: permission denied";
pub(super) const OLD: &str = "etcdserver: revision of auth store is old";
pub(super) const WRONG: &str = "etcdserver: authentication failed, invalid user ID or password";

/// Returns the options of a server with cheap password hashing.
pub(super) fn options(kind: Kind) -> Options {
    Options::new(kind).flag("--bcrypt-cost=4")
}

pub(super) fn user(name: &str) -> pb::AuthUserAddRequest {
    pb::AuthUserAddRequest {
        name: name.to_owned(),
        password: format!("{name}-password"),
        ..pb::AuthUserAddRequest::default()
    }
}

pub(super) async fn add_user(client: &Client, name: &str) {
    client.user_add(user(name)).await.unwrap();
}

pub(super) async fn log_in(client: &Client, name: &str) -> Client {
    client.log_in(name, &format!("{name}-password")).await.unwrap()
}

pub(super) async fn grant(client: &Client, user: &str, role: &str) {
    let (user, role) = (user.to_owned(), role.to_owned());
    client.user_grant_role(pb::AuthUserGrantRoleRequest { user, role }).await.unwrap();
}

async fn revoke(client: &Client, name: &str, role: &str) {
    let (name, role) = (name.to_owned(), role.to_owned());
    client.user_revoke_role(pb::AuthUserRevokeRoleRequest { name, role }).await.unwrap();
}

pub(super) fn permission(
    role: &str,
    kind: i32,
    key: &str,
    end: &str,
) -> pb::AuthRoleGrantPermissionRequest {
    let perm = authpb::Permission {
        perm_type: kind,
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
    };
    pb::AuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(perm) }
}

/// Creates the role `role`, which may read and write a key range, and the user `name` with that role.
async fn allow(client: &Client, name: &str, role: &str, key: &str, end: &str) {
    client.role_add(pb::AuthRoleAddRequest { name: role.to_owned() }).await.unwrap();
    client.role_grant_permission(permission(role, 2, key, end)).await.unwrap();
    add_user(client, name).await;
    grant(client, name, role).await;
}

/// Creates root, ann with permission to read and write the keys in [a, b), and eve without permissions, and enables
/// authentication. Returns root's client.
pub(super) async fn guard(client: &Client) -> Client {
    allow(client, "ann", "app", "a", "b").await;
    add_user(client, "eve").await;
    add_user(client, "root").await;
    grant(client, "root", "root").await;
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    log_in(client, "root").await
}

async fn revision(client: &Client) -> u64 {
    client.auth_status(pb::AuthStatusRequest {}).await.unwrap().auth_revision
}

async fn enabling_authentication_requires_root(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let enable = async || client.auth_enable(pb::AuthEnableRequest {}).await;
    let (no_user, no_role) =
        ("etcdserver: root user does not exist", "etcdserver: root user does not have root role");
    refused(enable().await, Code::FailedPrecondition, no_user);
    add_user(&client, "root").await;
    refused(enable().await, Code::FailedPrecondition, no_role);
    grant(&client, "root", "root").await;
    let before = revision(&client).await;
    enable().await.unwrap();
    let root = log_in(&client, "root").await;
    assert_eq!(revision(&root).await, before);
    for refusal in [
        root.user_delete(pb::AuthUserDeleteRequest { name: "root".into() }).await.map(drop),
        root.role_delete(pb::AuthRoleDeleteRequest { role: "root".into() }).await.map(drop),
        root.user_revoke_role(pb::AuthUserRevokeRoleRequest {
            name: "root".into(),
            role: "root".into(),
        })
        .await
        .map(drop),
    ] {
        refused(refusal, Code::InvalidArgument, "etcdserver: invalid auth management");
    }
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    assert_eq!(revision(&client).await, before + 1);
    // Disabling authentication again has no effect.
    client.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    assert_eq!(revision(&client).await, before + 1);
}

async fn logins_return_tokens_only_for_correct_passwords(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let options = Some(authpb::UserAddOptions { no_password: true });
    client.user_add(pb::AuthUserAddRequest { options, ..user("tim") }).await.unwrap();
    client
        .user_add(pb::AuthUserAddRequest { password: String::new(), ..user("blank") })
        .await
        .unwrap();
    guard(&client).await;
    for (name, password) in
        [("ann", "wrong"), ("ann", ""), ("ghost", "x"), ("", ""), ("blank", "x")]
    {
        refused(client.log_in(name, password).await, Code::InvalidArgument, WRONG);
    }
    client.log_in("blank", "").await.unwrap();
    refused(
        client.log_in("tim", "tim-password").await,
        Code::Unknown,
        "auth: authentication failed, password was given for no password user",
    );
    let (name, password) = ("ann".to_owned(), "ann-password".to_owned());
    let answer = client.authenticate(pb::AuthenticateRequest { name, password }).await.unwrap();
    let (prefix, index) = answer.token.split_once('.').unwrap();
    assert!(prefix.len() == 16 && prefix.bytes().all(|byte| byte.is_ascii_alphabetic()));
    assert!(index.parse::<u64>().unwrap() > 0);
    // The token is accepted under either header name, with or without a scheme before it.
    let mut shown = vec![("token", answer.token.clone()), ("authorization", answer.token.clone())];
    if server.is_3_7() {
        shown.push(("authorization", format!("Bearer {}", answer.token)));
        shown.push(("token", format!("Bearer {}", answer.token)));
    }
    for (name, value) in shown {
        let mut request = tonic::Request::new(put("a1", "v"));
        request.metadata_mut().insert(name, value.parse().unwrap());
        client.kv().put(request).await.unwrap();
    }
    let (spelt, later) = (format!("bearer {}", answer.token), format!("{}1", answer.token));
    let mut bad = vec!["", "x", "x.y", "x.1", &spelt];
    if kind == Kind::Quorate {
        // Quorate refuses a token that names a later log entry; etcd waits for this entry until the client's deadline.
        bad.push(&later);
    }
    for bad in bad {
        let answer = client.with_token(bad).put(put("a1", "v")).await;
        refused(answer, Code::Unauthenticated, BAD);
    }
}

async fn invalid_credentials_are_refused(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let add = async |length| {
        let password = "x".repeat(length);
        client.user_add(pb::AuthUserAddRequest { password, ..user(&format!("u{length}")) }).await
    };
    add(72).await.unwrap();
    refused(add(73).await, Code::Unknown, "bcrypt: password length exceeds 72 bytes");
    let nameless = client.user_add(user("")).await;
    refused(nameless, Code::InvalidArgument, "etcdserver: user name is empty");
}

async fn names_that_no_member_could_store_are_refused(kind: Kind) {
    let mut server = Options::new(kind).start().await;
    let client = server.client();
    let name = "n".repeat(32_769);
    let text = "etcdserver: name is too long";
    let role = pb::AuthRoleAddRequest { name: name.clone() };
    refused(client.role_add(role).await, Code::InvalidArgument, text);
    let user = pb::AuthUserAddRequest { name, password: "p".to_owned(), ..Default::default() };
    refused(client.user_add(user).await, Code::InvalidArgument, text);
    client.write("k", "v").await;
    server.kill();
    server.start_again().await;
    assert_eq!(server.client().read("k").await.unwrap(), b"v");
}

async fn deleting_a_user_invalidates_its_tokens_but_revoking_a_role_does_not(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let (ann, eve) = (log_in(&client, "ann").await, log_in(&client, "eve").await);
    grant(&root, "eve", "app").await;
    eve.range(key("a1")).await.unwrap();
    revoke(&root, "eve", "app").await;
    refused(eve.range(key("a1")).await, Code::PermissionDenied, DENIED);
    let change = pb::AuthUserChangePasswordRequest {
        name: "ann".into(),
        password: "another".into(),
        ..pb::AuthUserChangePasswordRequest::default()
    };
    root.user_change_password(change).await.unwrap();
    refused(ann.range(key("a1")).await, Code::Unauthenticated, BAD);
    refused(client.log_in("ann", "ann-password").await, Code::InvalidArgument, WRONG);
    let ann = client.log_in("ann", "another").await.unwrap();
    ann.range(key("a1")).await.unwrap();
    if !server.is_3_7() {
        // etcd 3.5 sometimes denies root's next request.
        return;
    }
    root.user_delete(pb::AuthUserDeleteRequest { name: "ann".into() }).await.unwrap();
    refused(ann.put(put("a1", "v")).await, Code::Unauthenticated, BAD);
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    refused(root.user_list(pb::AuthUserListRequest {}).await, Code::Unauthenticated, BAD);
}

async fn permission_changes_take_effect_at_once(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    // Adjacent ranges are merged.
    refused(ann.put(put("b", "v")).await, Code::PermissionDenied, DENIED);
    root.role_grant_permission(permission("app", 2, "b", "c")).await.unwrap();
    ann.put(put("b", "v")).await.unwrap();
    ann.delete_range(delete("a", "c")).await.unwrap();
    refused(ann.delete_range(delete("a", "d")).await, Code::PermissionDenied, DENIED);
    // Write permission does not include read permission.
    root.role_grant_permission(permission("app", 1, "x", "")).await.unwrap();
    ann.put(put("x", "v")).await.unwrap();
    refused(ann.range(key("x")).await, Code::PermissionDenied, DENIED);
    let previous = pb::PutRequest { prev_kv: true, ..put("x", "v") };
    refused(ann.put(previous).await, Code::PermissionDenied, DENIED);
    let before = revision(&root).await;
    let revoked = pb::AuthRoleRevokePermissionRequest {
        role: "app".into(),
        key: "b".into(),
        range_end: "c".into(),
    };
    root.role_revoke_permission(revoked).await.unwrap();
    assert_eq!(revision(&root).await, before + 1);
    refused(ann.put(put("b", "v")).await, Code::PermissionDenied, DENIED);
    root.role_delete(pb::AuthRoleDeleteRequest { role: "app".into() }).await.unwrap();
    refused(ann.range(key("a1")).await, Code::PermissionDenied, DENIED);
}

async fn a_watch_requires_read_permission(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    root.role_grant_permission(permission("app", 0, "x", "")).await.unwrap();
    let ann = log_in(&client, "ann").await;
    let bad = client.with_token("nobodygavethisout.1");
    let from = |name: &str| pb::WatchCreateRequest { range_end: vec![0].into(), ..watch_key(name) };
    let status = |code: &str, text: &str| format!("rpc error: code = {code} desc = {text}");
    let mut cases = vec![
        (&client, watch_key("a1"), status("InvalidArgument", NOBODY)),
        (&bad, watch_key("a1"), status("Unauthenticated", BAD)),
        (&ann, watch_key("b1"), status("PermissionDenied", DENIED)),
        (&ann, from("b1"), status("PermissionDenied", DENIED)),
    ];
    if server.is_3_7() {
        // A watch of a key and all later keys requires permission for all these keys. Older releases of etcd checked
        // only the permission for the first key.
        cases.push((&ann, from("x"), status("PermissionDenied", DENIED)));
    }
    for (caller, request, reason) in cases {
        let mut watch = Watch::open(caller);
        let answer = watch.create(request.clone()).await;
        assert!(answer.canceled && answer.created && answer.watch_id == -1, "{answer:?}");
        assert!(answer.cancel_reason.ends_with(&reason), "{request:?}: {}", answer.cancel_reason);
        // The stream stays usable.
        let again = watch.create(request).await;
        assert!(again.canceled);
    }
    for request in [watch_key("a1"), watch_key("x")] {
        assert!(!Watch::open(&ann).create(request).await.canceled);
    }
    assert!(!Watch::open(&root).create(from("\0")).await.canceled);
}

async fn a_watcher_continues_after_its_permission_is_revoked(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    let mut watch = Watch::open(&ann);
    assert!(!watch.create(watch_key("a1")).await.canceled);
    revoke(&root, "ann", "app").await;
    root.put(put("a1", "later")).await.unwrap();
    let events = watch.events(1).await;
    assert_eq!(events[0].kv.as_ref().unwrap().value(), b"later");
    assert!(watch.create(watch_key("a1")).await.canceled, "a new watch is refused");
}

async fn a_lease_expires_while_authentication_is_enabled(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    let lease = ann.grant(0, 1).await;
    ann.put(put_leased("a1", "v", lease)).await.unwrap();
    gone(&root, "a1").await;
}

async fn passwords_are_hashed_with_the_configured_cost(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=5").start().await;
    add_user(&server.client(), "ann").await;
    eventually("the backend file contains a hash of this cost", async || {
        let file = std::fs::read(server.backend()).unwrap();
        file.windows(7).any(|bytes| bytes == b"$2a$05$").then_some(())
    })
    .await;
}

async fn users_survive_a_restart(kind: Kind) {
    let mut server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    ann.put(put("a1", "v")).await.unwrap();
    let before = revision(&root).await;
    server.kill();
    server.start_again().await;
    let client = server.client();
    refused(client.range(key("a1")).await, Code::InvalidArgument, NOBODY);
    let root = log_in(&client, "root").await;
    assert_eq!(revision(&root).await, before);
    let ann = log_in(&client, "ann").await;
    assert_eq!(ann.read("a1").await.unwrap(), b"v");
    refused(ann.range(key("b")).await, Code::PermissionDenied, DENIED);
}

async fn an_unused_token_expires_after_its_ttl(kind: Kind) {
    let server = options(kind).flag("--auth-token-ttl=1").start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    ann.range(key("a1")).await.unwrap();
    // A lease expiry shows that enough time has passed. Checking with the token itself would extend the token's
    // lifetime.
    let lease = root.grant(0, 4).await;
    root.put(put_leased("k", "v", lease)).await.unwrap();
    gone(&root, "k").await;
    refused(ann.range(key("a1")).await, Code::Unauthenticated, BAD);
}

pub(super) async fn gone(client: &Client, name: &str) {
    let gone = async || client.read(name).await.is_none().then_some(());
    eventually("the lease has expired", gone).await;
}

async fn a_token_is_valid_on_every_member(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).flag("--bcrypt-cost=4").start().await;
    let leader = cluster.leader().await;
    guard(&cluster.client(leader)).await;
    for member in cluster.members() {
        let ann = log_in(&cluster.client(member), "ann").await;
        let token = ann.metadata().get("token").unwrap().to_str().unwrap().to_owned();
        for other in cluster.members() {
            let ann = cluster.client(other).with_token(&token);
            if kind == Kind::Etcd {
                // The member may not yet have applied the entry that issued the token.
                let known = async || ann.range(key("a1")).await;
                eventually_ok(DEADLINE, "the token is valid", known).await;
            }
            ann.put(put("a1", "v")).await.unwrap();
            ann.range(key("a1")).await.unwrap();
            ann.renew(99).await.unwrap();
            refused(ann.range(key("b")).await, Code::PermissionDenied, DENIED);
        }
    }
}

/// Checks that all running members enforce the same permissions.
async fn check_permissions(cluster: &Cluster) {
    for member in cluster.running() {
        let client = cluster.client(member);
        let log_in = async || client.log_in("ann", "ann-password").await;
        let ann = eventually_ok(DEADLINE, "ann logs in", log_in).await;
        ann.put(put("a1", "v")).await.unwrap();
        refused(ann.put(put("b", "v")).await, Code::PermissionDenied, DENIED);
        refused(client.range(key("a1")).await, Code::InvalidArgument, NOBODY);
    }
}

async fn a_cluster_with_authentication_survives_the_loss_of_its_leader(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).flag("--bcrypt-cost=4").start().await;
    let leader = cluster.leader().await;
    guard(&cluster.client(leader)).await;
    cluster.kill(leader);
    check_permissions(&cluster).await;
    cluster.restart(leader).await;
    check_permissions(&cluster).await;
}

async fn users_survive_a_change_between_etcd_and_quorate(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let place = TempDir::new().unwrap();
    let data = place.path().join("data");
    let other = if kind == Kind::Etcd { Kind::Quorate } else { Kind::Etcd };
    let mut before = 0;
    // The directory is passed from one program to the other and back.
    for (round, kind) in [kind, other, kind].into_iter().enumerate() {
        let version = if kind == Kind::Quorate { &["--hold-cluster-version=3.5"][..] } else { &[] };
        let options = version.iter().fold(options(kind), |options, flag| options.flag(*flag));
        let mut server = options.data(&data).start().await;
        let client = server.client();
        let root = if round == 0 { guard(&client).await } else { log_in(&client, "root").await };
        if round > 0 {
            assert_eq!(revision(&root).await, before);
            add_user(&root, &format!("user-of-round-{round}")).await;
        }
        let ann = log_in(&client, "ann").await;
        ann.put(put("a1", "v")).await.unwrap();
        refused(ann.put(put("b", "v")).await, Code::PermissionDenied, DENIED);
        before = revision(&root).await;
        let users = root.user_list(pb::AuthUserListRequest {}).await.unwrap().users;
        assert_eq!(users.len(), 3 + round, "{users:?}");
        // After a kill, the last changes of this round may be only in the log.
        if round == 1 {
            server.kill();
        } else {
            server.stop().await;
        }
    }
}

/// Returns the leader that a member reports to root.
async fn leader(cluster: &Cluster) -> usize {
    let running = cluster.running();
    let ask = async || {
        let root = cluster.client(running[0]).log_in("root", "root-password").await.ok()?;
        cluster.by_id(root.status(pb::StatusRequest {}).await.ok()?.leader)
    };
    eventually("a leader", ask).await
}

async fn users_and_permissions_apply_on_all_members_of_a_mixed_cluster(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let mut options = ClusterOptions::new(Kind::Etcd, 3).flag("--bcrypt-cost=4");
    options = options.member(1, |one| one.kind(ours).flag("--hold-cluster-version=3.5"));
    let mut cluster = options.start().await;
    // Users are created through members of both programs, and exist on all members.
    let root = guard(&cluster.client(0)).await;
    check_permissions(&cluster).await;
    let token = root.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    let root = cluster.client(1).with_token(&token);
    add_user(&root, "new").await;
    grant(&root, "new", "app").await;
    let new = log_in(&cluster.client(2), "new").await;
    new.put(put("a1", "v")).await.unwrap();
    let mut revisions = Vec::new();
    for member in cluster.members() {
        revisions.push(revision(&cluster.client(member).with_token(&token)).await);
    }
    assert!(revisions.iter().all(|revision| *revision == revisions[0]), "{revisions:?}");
    // All members enforce the same permissions, whichever member leads.
    for _ in 0..2 {
        let leader = leader(&cluster).await;
        cluster.kill(leader);
        check_permissions(&cluster).await;
        cluster.restart(leader).await;
    }
    check_permissions(&cluster).await;
}

async fn continual_logins_from_one_source_do_not_delay_other_logins(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=8").start().await;
    let client = server.client();
    let root = guard(&client).await;
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..800 {
        let client = client.clone();
        flood.spawn(async move { client.log_in("eve", "wrong").await.unwrap_err() });
    }
    // Ann's login is served next, ahead of the waiting logins, and requests of logged-in users are not delayed.
    log_in(&client, "ann").await;
    root.put(put("k", "v")).await.unwrap();
    let mut refused_early = 0;
    let mut answered = 0;
    while let Some(ended) = flood.join_next().await {
        match ended.unwrap().message() {
            WRONG => answered += 1,
            "etcdserver: too many requests" => refused_early += 1,
            other => panic!("{other}"),
        }
    }
    assert!(
        answered > 0 && refused_early > 0,
        "{answered} logins were answered, {refused_early} were refused early"
    );
    let metric = |name: &str| server.metric(name).unwrap();
    assert_eq!(metric("quorate_passwords_refused_total"), f64::from(refused_early));
    assert_eq!(metric("quorate_passwords_waiting"), 0.0);
    assert!(metric("quorate_tokens_held") >= 2.0, "the tokens of root and ann are counted");
}

async fn failed_logins_lock_out_neither_the_user_nor_an_administrator(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=8").start().await;
    let client = server.client();
    let root = guard(&client).await;
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let client = client.clone();
        flood.spawn(async move { client.log_in("root", "wrong").await.unwrap_err() });
    }
    let waiting = async || server.metric("quorate_passwords_waiting").unwrap() as usize;
    eventually("logins wait", async || (waiting().await >= 64).then_some(())).await;
    let elsewhere = Client::from_address(server.port(), [127, 0, 0, 2].into());
    log_in(&elsewhere, "root").await;
    let (name, password) = ("eve".to_owned(), "other".to_owned());
    let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
    root.user_change_password(change).await.unwrap();
    assert!(waiting().await >= 32, "a login from elsewhere and a password change are not delayed");
}

async fn requests_with_invalid_tokens_do_not_count_as_waiting_reads(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..2_000_u64 {
        // The log entry named by the token will never exist, but the member cannot know that yet.
        let client = client.with_token(&format!("nobodygavethisout.{}", (1 << 40) + number));
        flood.spawn(async move { client.range(key("k")).await.unwrap_err() });
    }
    let metric = |name: &str| server.metric(name).unwrap();
    eventually("tokens are refused", async || {
        (metric("quorate_tokens_refused_total") > 0.0).then_some(())
    })
    .await;
    let waiting = metric("quorate_tokens_waiting");
    assert!(waiting <= 1_024.0, "{waiting}");
    assert_eq!(metric("quorate_reads_waiting"), 0.0);
    root.put(put("k", "v")).await.unwrap();
    root.range(key("k")).await.unwrap();
    let refused = flood.join_next().await.unwrap().unwrap();
    assert_eq!(refused.message(), BAD);
    drop(flood);
    eventually("no requests with invalid tokens are waiting", async || {
        (metric("quorate_tokens_waiting") == 0.0).then_some(())
    })
    .await;
}

async fn passwords_and_tokens_are_in_neither_the_log_nor_the_metrics(kind: Kind) {
    let server = options(kind).flag("--log-level=debug").start().await;
    let client = server.client();
    let root = guard(&client).await;
    let token = root.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    refused(client.log_in("ann", "Wr0ng-secret").await, Code::InvalidArgument, WRONG);
    let bad = client.with_token("VerySecretLetters.1");
    refused(bad.put(put("k", "v")).await, Code::Unauthenticated, BAD);
    let texts = server.log() + &server.get("/metrics").text();
    for secret in ["ann-password", "root-password", "Wr0ng", "VerySecret", "$2a$", &token] {
        assert!(!texts.contains(secret), "{secret} is logged");
    }
}

async fn signed_tokens_are_verified_and_become_invalid_when_users_change(kind: Kind) {
    let place = TempDir::new().unwrap();
    let secret = place.path().join("secret");
    std::fs::write(&secret, "not much of a secret").unwrap();
    let flag = format!("--auth-token=jwt,sign-method=HS256,priv-key={}", secret.display());
    let server = options(kind).flag(flag).start().await;
    let client = server.client();
    let root = guard(&client).await;
    let ann = log_in(&client, "ann").await;
    let token = ann.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    assert_eq!(token.split('.').count(), 3);
    ann.put(put("a1", "v")).await.unwrap();
    ann.range(key("a1")).await.unwrap();
    refused(ann.range(key("b")).await, Code::PermissionDenied, DENIED);
    // Each of these tokens is modified, lacks its signature, or is not a signed token.
    let (head, rest) = token.split_once('.').unwrap();
    let (claims, _) = rest.split_once('.').unwrap();
    for bad in [format!("{token}x"), format!("{head}.{claims}."), "a.b.c".into(), "a.1".into()] {
        let answer = client.with_token(&bad).put(put("a1", "v")).await;
        refused(answer, Code::Unauthenticated, BAD);
    }
    // The token contains the auth revision at which it was issued, so any change of users invalidates it for key
    // requests.
    add_user(&root, "new").await;
    refused(ann.range(key("a1")).await, Code::InvalidArgument, OLD);
    refused(ann.put(put("a1", "v")).await, Code::InvalidArgument, OLD);
    root.user_list(pb::AuthUserListRequest {}).await.unwrap();
    let ann = log_in(&client, "ann").await;
    ann.put(put("a1", "v")).await.unwrap();
}

async fn the_token_key_may_be_read_from_a_certificate(kind: Kind) {
    let place = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let private = write("ec.pem", &key.serialize_pem());
    let public = write("ec.crt.pem", &certificate.pem());
    let rsa_private = write("rsa.pem", include_str!("../../../crates/jwt/testdata/rsa.pem"));
    let rsa_public = write("rsa.crt.pem", include_str!("../../../crates/jwt/testdata/rsa.crt.pem"));
    for (method, private, public) in
        [("ES256", private, public), ("RS256", rsa_private, rsa_public)]
    {
        let keys = format!("priv-key={private},pub-key={public}");
        let flag = format!("--auth-token=jwt,sign-method={method},{keys}");
        let server = options(kind).flag(flag).start().await;
        let client = server.client();
        guard(&client).await;
        log_in(&client, "ann").await.put(put("a1", "v")).await.unwrap();
    }
}

async fn token_keys_are_reloaded_while_the_member_runs(kind: Kind) {
    let place = TempDir::new().unwrap();
    let secret = place.path().join("secret");
    std::fs::write(&secret, "the first").unwrap();
    let flag = format!("--auth-token=jwt,sign-method=HS512,priv-key={}", secret.display());
    let server = options(kind).flag(flag).start().await;
    let client = server.client();
    guard(&client).await;
    let ann = log_in(&client, "ann").await;
    std::fs::write(&secret, "the second").unwrap();
    let is_old = async || {
        let answer = ann.range(key("a1")).await;
        answer.is_err_and(|status| status.message() == BAD).then_some(())
    };
    eventually("the first key is no longer accepted", is_old).await;
    log_in(&client, "ann").await.put(put("a1", "v")).await.unwrap();
}

async fn requests_without_credentials_are_not_written_to_the_log(kind: Kind) {
    let server = options(kind).flag("--quota-backend-bytes=20000000").start().await;
    let client = server.client();
    let root = guard(&client).await;
    let index = async || root.status(pb::StatusRequest {}).await.unwrap().raft_index;
    let before = index().await;
    let large = vec![b'v'; 1_000_000];
    // Together these writes exceed the quota. No alarm is raised, because raising an alarm requires a proposal.
    for _ in 0..25 {
        let refusal = Code::InvalidArgument;
        refused(client.put(put("a1", large.clone())).await, refusal, NOBODY);
        refused(client.txn(txn(vec![put_op("a1", large.clone())])).await, refusal, NOBODY);
    }
    let nobody = Code::InvalidArgument;
    refused(client.delete_range(delete("a", "b")).await, nobody, NOBODY);
    refused(client.user_add(user("ghost")).await, nobody, NOBODY);
    refused(client.auth_disable(pb::AuthDisableRequest {}).await, nobody, NOBODY);
    assert!(client.auth_status(pb::AuthStatusRequest {}).await.unwrap().enabled);
    let stranger = client.with_token("unknown.1");
    let status = stranger.auth_status(pb::AuthStatusRequest {}).await;
    refused(status, Code::Unauthenticated, BAD);
    refused(client.lease_grant(pb::LeaseGrantRequest { id: 0, ttl: 60 }).await, nobody, NOBODY);
    refused(client.lease_revoke(pb::LeaseRevokeRequest { id: 1 }).await, nobody, NOBODY);
    let campaign = el::CampaignRequest { name: "a1".into(), lease: 1, value: "v".into() };
    refused(client.campaign(campaign).await, Code::Unknown, NOBODY);
    refused(client.unlock(lk::UnlockRequest { key: "a1".into() }).await, Code::Unknown, NOBODY);
    assert_eq!(index().await, before);
}

async fn disabling_authentication_applies_on_every_member(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).flag("--bcrypt-cost=4").start().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let mut root = guard(&client).await;
    for _ in 0..10 {
        root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
        for member in cluster.members() {
            cluster.client(member).put(put("k", "v")).await.unwrap();
        }
        client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
        root = log_in(&client, "root").await;
    }
}

async fn a_snapshot_invalidates_tokens_of_deleted_users(kind: Kind) {
    let options = ClusterOptions::new(kind, 3).flag("--bcrypt-cost=4").flag("--snapshot-count=50");
    let cluster = options.flag("--snapshot-catchup-entries=20").linked().start().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let root = guard(&cluster.client(leader)).await;
    add_user(&root, "boss").await;
    grant(&root, "boss", "root").await;
    let boss = log_in(&cluster.client(follower), "boss").await;
    boss.status(pb::StatusRequest {}).await.unwrap();
    cluster.links().isolate(follower);
    for _ in 0..100 {
        root.put(put("k", vec![b'v'; 20_000])).await.unwrap();
    }
    root.user_delete(pb::AuthUserDeleteRequest { name: "boss".into() }).await.unwrap();
    // The leader does not keep log entries for a follower that does not answer.
    eventually("the leader cuts its log", async || {
        root.put(put("k", "v")).await.unwrap();
        let held = cluster.server(leader).metric("quorate_log_memory_bytes").unwrap();
        (held < 1e6).then_some(())
    })
    .await;
    cluster.links().heal();
    eventually("the follower receives a snapshot", async || {
        let metrics = cluster.server(follower).get("/metrics").text();
        let received = metrics.lines().any(|line| {
            line.starts_with("etcd_network_snapshot_receive_success{") && !line.ends_with(" 0")
        });
        received.then_some(())
    })
    .await;
    // The snapshot has ended all sessions at the follower, because users have changed.
    let token = log_in(&cluster.client(leader), "root").await;
    let token = token.metadata().get("token").unwrap().to_str().unwrap().to_owned();
    let root = cluster.client(follower).with_token(&token);
    let read = async || root.range(key("k")).await;
    eventually_ok(DEADLINE, "the follower has caught up", read).await;
    refused(boss.status(pb::StatusRequest {}).await, Code::Unauthenticated, BAD);
}
