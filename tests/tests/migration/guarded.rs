//! Users and permissions, which must be equal on every member of either kind at each step.

use quorate_api::authpb::{Permission, permission};
use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Cluster, TIMEOUT, bytes, eventually_ok, key, prefix, prefix_end, put, refused,
};
use tonic::Code;

const READER: &str = "reader";
const PASSWORD: &str = "a password of the reader";
/// Keys that the reader may read.
const SHELF: &str = "shelf/";

/// Creates the reader, a user that may read the keys under [`SHELF`].
pub(crate) async fn prepare(cluster: &Cluster) {
    let client = cluster.client(0);
    client.write(format!("{SHELF}book"), "text").await;
    let name = || READER.to_owned();
    client.role_add(pb::AuthRoleAddRequest { name: name() }).await.unwrap();
    let perm = Permission {
        perm_type: permission::Type::Read.into(),
        key: bytes(SHELF),
        range_end: prefix_end(SHELF.as_bytes()).into(),
    };
    let grant = pb::AuthRoleGrantPermissionRequest { name: name(), perm: Some(perm) };
    client.role_grant_permission(grant).await.unwrap();
    let password = PASSWORD.to_owned();
    let user = pb::AuthUserAddRequest { name: name(), password, ..Default::default() };
    client.user_add(user).await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: name(), role: name() };
    client.user_grant_role(grant).await.unwrap();
    // The changes above have raised the auth revision, and a signed token contains the revision at which it was issued,
    // so root must log in again.
    for member in cluster.members() {
        cluster.server(member).log_in().await;
    }
}

/// Checks that all members have the same users and auth revision, and enforce the same permissions.
pub(crate) async fn check(cluster: &Cluster) {
    eventually_ok(TIMEOUT, "all members have the same users", async || {
        let answers = cluster.ask_running(|client| async move { users(&client).await }).await;
        let same = answers.iter().all(|(_, users)| users.is_some() && *users == answers[0].1);
        if same { Ok(()) } else { Err(answers) }
    })
    .await;
    for member in cluster.running() {
        let root = cluster.client(member);
        let reader = root.log_in(READER, PASSWORD).await.unwrap();
        let book = reader.range(prefix(SHELF)).await.unwrap();
        assert_eq!(book.count, 1, "m{member}");
        let denied = "etcdserver: permission denied";
        refused(reader.put(put(SHELF, "v")).await, Code::PermissionDenied, denied);
        refused(reader.range(key("other")).await, Code::PermissionDenied, denied);
        let stranger = cluster.server(member).client_without_token();
        let nobody = stranger.range(key(SHELF)).await.unwrap_err();
        // etcd uses the name in the certificate as the user, even if that user does not exist.
        let is_refusal = matches!(nobody.code(), Code::InvalidArgument | Code::PermissionDenied);
        assert!(is_refusal, "m{member}: {nobody:?}");
        let wrong = root.log_in(READER, "guessed").await;
        assert_eq!(wrong.unwrap_err().code(), Code::InvalidArgument, "m{member}");
    }
}

/// Returns all of a member's answers about users: whether authentication is enabled, the auth revision, the users and
/// their permissions.
async fn users(
    client: &Client,
) -> Result<impl PartialEq + std::fmt::Debug + Send + use<>, tonic::Status> {
    let status = client.auth_status(pb::AuthStatusRequest {}).await?;
    let users = client.user_list(pb::AuthUserListRequest {}).await?.users;
    let roles = client.role_list(pb::AuthRoleListRequest {}).await?.roles;
    let reader = client.user_get(pb::AuthUserGetRequest { name: READER.to_owned() }).await?.roles;
    let role = client.role_get(pb::AuthRoleGetRequest { role: READER.to_owned() }).await?.perm;
    assert!(status.enabled);
    Ok((status.auth_revision, users, roles, reader, role))
}
