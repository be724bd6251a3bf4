//! `etcd-client` from crates.io: locks, elections, users, and a connection with certificates.

use std::time::Duration;

use etcd_client as ec;
use quorate_tests::{Kind, on_both_servers};

use crate::servers::{plain, secured, with_users};

on_both_servers! {
    etcd_client_can_lock_and_unlock,
    etcd_client_can_campaign_and_resign,
    etcd_client_can_create_users_and_roles,
    etcd_client_can_log_in,
    etcd_client_connects_with_a_client_certificate,
}

async fn connect(port: u16) -> ec::Client {
    ec::Client::connect([format!("127.0.0.1:{port}")], None).await.unwrap()
}

async fn etcd_client_can_lock_and_unlock(kind: Kind) {
    let server = plain(kind).await;
    let mut client = connect(server.port()).await;
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let options = ec::LockOptions::new().with_lease(lease);
    let held = client.lock("name", Some(options)).await.unwrap();
    assert!(held.key().starts_with(b"name/"));
    let mut other = connect(server.port()).await;
    let waiting = tokio::task::spawn_local(async move { other.lock("name", None).await });
    let both = ec::GetOptions::new().with_prefix().with_count_only();
    while client.get("name/", Some(both.clone())).await.unwrap().count() < 2 {}
    assert!(!waiting.is_finished());
    client.unlock(held.key()).await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_ne!(next.key(), held.key());
    client.unlock(next.key()).await.unwrap();
    assert_eq!(client.get("name/", Some(both)).await.unwrap().count(), 0);
}

async fn etcd_client_can_campaign_and_resign(kind: Kind) {
    let server = plain(kind).await;
    let mut client = connect(server.port()).await;
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let leader = client.campaign("e", "one", lease).await.unwrap();
    let leader = leader.leader().unwrap().clone();
    let mut observed = client.observe("e").await.unwrap();
    let first = observed.message().await.unwrap().unwrap();
    assert_eq!(first.kv().unwrap().value(), b"one");
    let options = ec::ProclaimOptions::new().with_leader(leader.clone());
    client.proclaim("again", Some(options)).await.unwrap();
    let second = observed.message().await.unwrap().unwrap();
    assert_eq!(second.kv().unwrap().value(), b"again");
    assert_eq!(client.leader("e").await.unwrap().kv().unwrap().value(), b"again");
    client.resign(Some(ec::ResignOptions::new().with_leader(leader))).await.unwrap();
    let gone = client.leader("e").await.unwrap_err();
    assert!(gone.to_string().contains("election: no leader"), "{gone}");
}

async fn etcd_client_can_create_users_and_roles(kind: Kind) {
    let server = plain(kind).await;
    let mut client = connect(server.port()).await;
    client.role_add("r").await.unwrap();
    let permission = ec::Permission::read_write("r/").with_prefix();
    client.role_grant_permission("r", permission.clone()).await.unwrap();
    assert_eq!(client.role_get("r").await.unwrap().permissions(), [permission]);
    client.user_add("u", "password", None).await.unwrap();
    client.user_grant_role("u", "r").await.unwrap();
    assert_eq!(client.user_get("u").await.unwrap().roles(), ["r"]);
    client.user_change_password("u", "another").await.unwrap();
    let options = ec::RoleRevokePermissionOptions::new().with_prefix();
    client.role_revoke_permission("r", "r/", Some(options)).await.unwrap();
    client.user_revoke_role("u", "r").await.unwrap();
    client.role_delete("r").await.unwrap();
    client.user_delete("u").await.unwrap();
    assert!(client.user_list().await.unwrap().users().is_empty());
    let gone = client.user_get("u").await.unwrap_err();
    assert!(gone.to_string().contains("etcdserver: user name not found"), "{gone}");
}

async fn etcd_client_can_log_in(kind: Kind) {
    let server = plain(kind).await;
    with_users(&server, &[]);
    let address = format!("127.0.0.1:{}", server.port());
    let user = |password| Some(ec::ConnectOptions::new().with_user("app", password));
    let wrong = ec::Client::connect([&address], user("wrong")).await.map(drop).unwrap_err();
    assert!(wrong.to_string().contains("authentication failed"), "{wrong}");
    let mut client = ec::Client::connect([&address], user("secret")).await.unwrap();
    client.put("app/a", "v", None).await.unwrap();
    let refused = client.put("other", "v", None).await.unwrap_err();
    assert!(refused.to_string().contains("etcdserver: permission denied"), "{refused}");
    let mut stream = client.watch("app/a", None).await.unwrap();
    assert!(stream.message().await.unwrap().unwrap().created());
    client.put("app/a", "w", None).await.unwrap();
    let seen = stream.message().await.unwrap().unwrap();
    assert_eq!(seen.events()[0].kv().unwrap().value(), b"w");
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let (mut keeper, mut kept) = client.lease_keep_alive(lease).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert_eq!(kept.message().await.unwrap().unwrap().ttl(), 60);
    let held = client.lock("app/lock", None).await.unwrap();
    client.unlock(held.key()).await.unwrap();
}

async fn etcd_client_connects_with_a_client_certificate(kind: Kind) {
    let secured = secured(kind).await;
    let [ca, cert, key] = secured.files.each_ref().map(|path| std::fs::read(path).unwrap());
    let tls = ec::TlsOptions::new().ca_certificate(ec::Certificate::from_pem(ca));
    let address = format!("https://localhost:{}", secured.server.port());
    let connect = async |tls: ec::TlsOptions| {
        let limit = Duration::from_secs(30);
        let options = ec::ConnectOptions::new().with_tls(tls).with_timeout(limit);
        let mut client = ec::Client::connect([&address], Some(options)).await?;
        client.put("k", "v", None).await?;
        client.get("k", None).await
    };
    let seen = connect(tls.clone().identity(ec::Identity::from_pem(cert, key))).await.unwrap();
    assert_eq!(seen.kvs()[0].value(), b"v");
    assert!(connect(tls).await.is_err(), "a client without a certificate was accepted");
}
