//! Log lines about changes of the cluster and of its users, which operators search for. Both servers write the same
//! lines, and each member writes them.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Cluster, ClusterOptions, Kind, changed, eventually, eventually_within, key,
    on_both_servers, put,
};
use tokio::task::JoinSet;

use super::auth::{add_user, grant, log_in, permission};

on_both_servers! {
    alone:
    changes_to_members_and_users_are_logged_by_every_member,
    leases_are_counted_by_every_member,
    reads_without_a_leader_are_counted_once_per_round,
}

/// Waits until each member has logged each line, which is given by its message and a text in the same line.
async fn await_lines(cluster: &Cluster, lines: &[(&str, String)]) {
    for member in cluster.members() {
        for (message, text) in lines {
            let message = format!("\"msg\":\"{message}\"");
            eventually(&format!("member {member} logs {message} with {text}"), async || {
                let log = cluster.server(member).log();
                let mut lines = log.lines();
                lines.any(|line| line.contains(&message) && line.contains(text)).then_some(())
            })
            .await;
        }
    }
}

async fn changes_to_members_and_users_are_logged_by_every_member(kind: Kind) {
    let options = ClusterOptions::new(kind, 3).flag("--strict-reconfig-check=false");
    let cluster = options.flag("--bcrypt-cost=4").start().await;
    let client = cluster.client(0);
    let (old, new) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
    let add = pb::MemberAddRequest { peer_urls: vec![old.to_owned()], is_learner: true };
    let added = changed(async || client.member_add(add.clone()).await).await.unwrap();
    let id = added.member.unwrap().id;
    let update = pb::MemberUpdateRequest { id, peer_urls: vec![new.to_owned()] };
    changed(async || client.member_update(update.clone()).await).await.unwrap();
    changed(async || client.member_remove(pb::MemberRemoveRequest { id }).await).await.unwrap();
    let field = |name: &str| format!("\"{name}\":\"{id:x}\"");
    let lines = [
        ("added member", field("added-peer-id")),
        ("added member", format!("\"added-peer-peer-urls\":[\"{old}\"]")),
        ("updated member", field("updated-remote-peer-id")),
        ("updated member", format!("\"updated-remote-peer-urls\":[\"{new}\"]")),
        ("removed member", field("removed-remote-peer-id")),
        ("removed member", format!("\"removed-remote-peer-urls\":[\"{new}\"]")),
    ];
    await_lines(&cluster, &lines).await;
    for change in ["ConfChangeAddLearnerNode", "ConfChangeUpdateNode", "ConfChangeRemoveNode"] {
        let fields = format!("\"raft-conf-change\":\"{change}\",\"raft-conf-change-node-id\":");
        let text = format!("{fields}\"{id:x}\"");
        eventually(&format!("member 0 logs the applied change {text}"), async || {
            let log = cluster.server(0).log();
            let mut applied =
                log.lines().filter(|line| line.contains("applied a configuration change"));
            applied.any(|line| line.contains(&text)).then_some(())
        })
        .await;
    }
    change_users(&client).await;
    let lines = [
        ("added a user", r#""user-name":"ann""#),
        ("created a role", r#""role-name":"app""#),
        (
            "granted/updated a permission to a user",
            r#""user-name":"app","permission-name":"READWRITE""#,
        ),
        (
            "granted a role to a user",
            r#""user-name":"ann","user-roles":["app"],"added-role-name":"app""#,
        ),
        ("changed a password of a user", r#""user-name":"ann","user-roles":["app"]"#),
        ("enabled authentication", ""),
        ("disabled authentication", ""),
        ("revoked a permission on range", r#""role-name":"app","key":"a","range-end":"b""#),
        (
            "revoked a role from a user",
            r#""user-name":"ann","old-user-roles":["app"],"new-user-roles":[]"#,
        ),
        ("deleted a role", r#""role-name":"app""#),
        ("deleted a user", r#""user-name":"ann""#),
    ];
    await_lines(&cluster, &lines.map(|(message, text)| (message, text.to_owned()))).await;
}

/// Makes each kind of change to users and roles.
async fn change_users(client: &Client) {
    let (name, role) = ("ann".to_owned(), "app".to_owned());
    add_user(client, "root").await;
    grant(client, "root", "root").await;
    add_user(client, "ann").await;
    client.role_add(pb::AuthRoleAddRequest { name: role.clone() }).await.unwrap();
    client.role_grant_permission(permission("app", 2, "a", "b")).await.unwrap();
    grant(client, "ann", "app").await;
    let password = pb::AuthUserChangePasswordRequest {
        name: name.clone(),
        password: "new".to_owned(),
        ..pb::AuthUserChangePasswordRequest::default()
    };
    client.user_change_password(password).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    let root = log_in(client, "root").await;
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    let (key, range_end) = ("a".into(), "b".into());
    let revoke = pb::AuthRoleRevokePermissionRequest { role: role.clone(), key, range_end };
    client.role_revoke_permission(revoke).await.unwrap();
    let revoke = pb::AuthUserRevokeRoleRequest { name: name.clone(), role: role.clone() };
    client.user_revoke_role(revoke).await.unwrap();
    client.role_delete(pb::AuthRoleDeleteRequest { role }).await.unwrap();
    client.user_delete(pb::AuthUserDeleteRequest { name }).await.unwrap();
}

async fn leases_are_counted_by_every_member(kind: Kind) {
    let cluster = Cluster::start(kind, 3).await;
    for id in 1..=3 {
        cluster.client(0).grant(id, 60).await;
    }
    cluster.client(1).lease_revoke(pb::LeaseRevokeRequest { id: 1 }).await.unwrap();
    cluster.client(2).grant(4, 1).await;
    let names = ["granted_total", "revoked_total", "ttl_total_count"];
    for member in cluster.members() {
        eventually_within(Duration::from_secs(30), "the counters include all leases", async || {
            let server = cluster.server(member);
            let of = |name| server.metric(&format!("etcd_debugging_lease_{name}"));
            (names.map(of) == [4.0, 2.0, 4.0].map(Some)).then_some(())
        })
        .await;
    }
}

/// The first round of the read barrier begins with the first read, and all other reads wait for the second round.
async fn reads_without_a_leader_are_counted_once_per_round(kind: Kind) {
    const READS: usize = 20;
    let mut cluster = Cluster::start(kind, 3).await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    cluster.kill(1);
    cluster.kill(2);
    let mut reads = JoinSet::new();
    for _ in 0..READS {
        let client = cluster.client(0);
        reads.spawn(async move { client.range(key("k")).await });
    }
    while let Some(read) = reads.join_next().await {
        assert!(read.unwrap().is_err(), "there is no leader");
    }
    let server = cluster.server(0);
    let slow = eventually("a round of the read barrier times out", async || {
        server.metric("etcd_server_slow_read_indexes_total").filter(|count| *count > 0.0)
    })
    .await;
    assert!(slow <= 3.0, "{slow} rounds are counted for {READS} reads");
    for text in [
        "waiting for ReadIndex response took too long, retrying",
        "timed out waiting for read index response (local node might have slow network)",
    ] {
        server.wait_for_log(text).await;
    }
}
