//! Writes that a Quorate member refuses, in a cluster whose other members run etcd. Those members would apply some of
//! these writes, because they do not check every part of a transaction when they apply it.

use quorate_api::authpb::{Permission, permission};
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_tests::{
    Client, ClusterOptions, Kind, bytes, delete, get_op, key, op, prefix_end, put, put_op, refused,
    txn, write_op,
};
use tonic::Code;

use crate::mixed::with_flags;

const USER: &str = "writer";
const ROOT: &str = "root";
/// Keys that the user may write.
const SHELF: &str = "w/";

/// A transaction that is refused because of one of its ranges changes nothing on any member, and an empty range needs
/// the same permission on all members.
pub(crate) async fn refused_transactions_change_nothing_in_a_mixed_cluster(kind: Kind) {
    let options = (0..3).fold(ClusterOptions::new(Kind::Etcd, 3), |options, number| {
        let kind = if number == 1 { kind } else { Kind::Etcd };
        options.member(number, |member| with_flags(member, kind))
    });
    let cluster = options.start().await;
    let client = cluster.client(1);
    client.write("a", "1").await;
    let newest = client.write("a", "2").await;
    client.compact_to(newest).await;
    for (revision, text) in [
        (newest + 1_000, "etcdserver: mvcc: required revision is a future revision"),
        (newest - 1, "etcdserver: mvcc: required revision has been compacted"),
    ] {
        let range = op(Request::RequestRange(pb::RangeRequest { revision, ..key("a") }));
        let answer = client.txn(txn(vec![put_op("refused", "v"), range])).await;
        refused(answer, Code::OutOfRange, text);
    }
    cluster.check_same_content().await;

    enable_users(&client).await;
    let root = client.log_in(ROOT, ROOT).await.unwrap();
    let user = client.log_in(USER, USER).await.unwrap();
    let book = || put_op("w/book", "v");
    let answer = user.txn(txn(vec![book(), get_op("a")])).await;
    refused(answer, Code::PermissionDenied, "etcdserver: permission denied");
    for member in 0..3 {
        let user = cluster.client(member).log_in(USER, USER).await.unwrap();
        let deleted = user.delete_range(delete("w/b", "w/b")).await.unwrap();
        assert_eq!(deleted.deleted, 0, "m{member}");
        user.txn(txn(vec![book(), write_op(delete("w/b", "w/b"))])).await.unwrap();
    }
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    cluster.check_same_content().await;
    assert_eq!(client.read("refused").await, None);
    assert_eq!(client.put(put("a", "3")).await.unwrap().header.unwrap().revision, newest + 4);
}

/// Creates root and a user that may write the keys under [`SHELF`], and enables authentication.
async fn enable_users(client: &Client) {
    for name in [ROOT, USER] {
        let (name, password) = (name.to_owned(), name.to_owned());
        client.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await.unwrap();
        let user = pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
        client.user_add(user).await.unwrap();
        let grant = pb::AuthUserGrantRoleRequest { user: name.clone(), role: name };
        client.user_grant_role(grant).await.unwrap();
    }
    let perm = Permission {
        perm_type: permission::Type::Write.into(),
        key: bytes(SHELF),
        range_end: prefix_end(SHELF.as_bytes()).into(),
    };
    let grant = pb::AuthRoleGrantPermissionRequest { name: USER.to_owned(), perm: Some(perm) };
    client.role_grant_permission(grant).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}
