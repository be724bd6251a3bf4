//! Revoked permissions on `etcd grpc-proxy`: the proxy's own responses never contain more data than a member's
//! responses would.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Kind, Options, Proxy, Server, Watch, bytes, eventually, eventually_within, key, on_quorate,
    refused, watch_key,
};
use tonic::Code;

on_quorate! {
    alone:
    cached_responses_are_refused_after_a_permission_is_revoked,
    a_new_watch_with_a_revoked_token_is_refused,
}

/// Starts a member with the user `root`, which has all permissions, and the user `user`, which may read and write keys
/// with the prefix `a/`.
async fn with_users(kind: Kind) -> Server {
    let server = Options::new(kind).unguarded().start().await;
    let client = server.client();
    client.write("a/secret", "1").await;
    for name in ["root", "user"] {
        let user = pb::AuthUserAddRequest {
            name: name.into(),
            password: "p".into(),
            ..Default::default()
        };
        client.user_add(user).await.unwrap();
        client.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.ok();
        let role = pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        client.user_grant_role(role).await.unwrap();
    }
    let perm = quorate_api::authpb::Permission {
        perm_type: quorate_api::authpb::permission::Type::Readwrite as i32,
        key: bytes("a/"),
        range_end: bytes("a0"),
    };
    let perm = pb::AuthRoleGrantPermissionRequest { name: "user".into(), perm: Some(perm) };
    client.role_grant_permission(perm).await.unwrap();
    server
}

async fn cached_responses_are_refused_after_a_permission_is_revoked(kind: Kind) {
    let server = with_users(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let old = || pb::RangeRequest { serializable: true, ..key("a/secret") };
    let nobody = proxy.client();
    for _ in 0..2 {
        assert_eq!(nobody.range(old()).await.unwrap().kvs[0].value(), b"1");
    }
    // Authentication is enabled directly on the member, so the proxy does not see the request.
    server.client().auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    eventually_within(Duration::from_secs(5), "requests without a user are refused", async || {
        nobody.range(old()).await.err()
    })
    .await;
    let root = server.client().log_in("root", "p").await.unwrap();
    let user = proxy.client().log_in("user", "p").await.unwrap();
    let hits = "etcd_grpc_proxy_cache_hits_total";
    let before = proxy.metric(hits).unwrap();
    for _ in 0..2 {
        assert_eq!(user.range(old()).await.unwrap().kvs[0].value(), b"1");
    }
    assert_eq!(proxy.metric(hits).unwrap(), before + 1.0, "the response comes from the cache");
    let role = pb::AuthUserRevokeRoleRequest { name: "user".into(), role: "user".into() };
    root.user_revoke_role(role).await.unwrap();
    let text = "etcdserver: permission denied";
    refused(user.range(old()).await, Code::PermissionDenied, text);
    let role = pb::AuthUserGrantRoleRequest { user: "user".into(), role: "user".into() };
    root.user_grant_role(role).await.unwrap();
    for _ in 0..2 {
        assert_eq!(user.range(old()).await.unwrap().kvs[0].value(), b"1");
    }
    root.user_delete(pb::AuthUserDeleteRequest { name: "user".into() }).await.unwrap();
    refused(user.range(old()).await, Code::Unauthenticated, "etcdserver: invalid auth token");
}

async fn a_new_watch_with_a_revoked_token_is_refused(kind: Kind) {
    let server = with_users(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    server.client().auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    let root = server.client().log_in("root", "p").await.unwrap();
    let user = proxy.client().log_in("user", "p").await.unwrap();
    let mut first = Watch::open(&user);
    assert!(first.create(watch_key("a/secret")).await.created);
    let from = root.write("a/secret", "2").await + 1;
    first.events(1).await;
    // The second watch starts at the same revision as the first one, so the proxy serves both from one watch on the
    // member.
    let later = || pb::WatchCreateRequest { start_revision: from, ..watch_key("a/secret") };
    let mut second = Watch::open(&user);
    assert!(second.create(later()).await.created);
    eventually("two clients share a watch", async || {
        (proxy.metric("etcd_grpc_proxy_watchers_coalescing_total")? > 0.0).then_some(())
    })
    .await;
    root.user_delete(pb::AuthUserDeleteRequest { name: "user".into() }).await.unwrap();
    let mut third = Watch::open(&user);
    let response = third.create(later()).await;
    assert!(response.canceled, "{response:?}");
    root.write("a/secret", "3").await;
    // The cancelled watch receives no event.
    let left = tokio::time::timeout(Duration::from_millis(300), third.try_next()).await;
    assert!(!matches!(&left, Ok(Ok(Some(response))) if !response.events.is_empty()), "{left:?}");
}
