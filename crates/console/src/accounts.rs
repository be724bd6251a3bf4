//! The roles and permissions of the logged-in user and, for an administrator, the lists of all users and roles.

use quorate_api::authpb::Permission;
use quorate_api::authpb::permission::Type;
use quorate_api::etcdserverpb::{
    AuthRoleGetRequest, AuthRoleListRequest, AuthStatusRequest, AuthUserGetRequest,
    AuthUserListRequest,
};
use quorate_client::key_range::prefix_end;
use serde_json::{Value, json};

use crate::cluster::Caller;
use crate::encode::base64;
use crate::input::Input;
use crate::refusal::Refusal;

/// The role with all permissions.
const ROOT: &str = "root";

/// Maximum number of users whose roles are listed. Reading the roles of one user takes one request.
const USERS_MAX: usize = 200;

/// Maximum number of roles that are read for one user.
const ROLES_MAX: usize = 50;

/// Returns the roles and permissions of the logged-in user.
pub(crate) async fn who_am_i(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    if !caller.is_logged_in {
        return Ok(json!({ "user": null, "roles": [], "is_root": true, "permissions": [] }));
    }
    let name = input.required_text("user")?;
    let roles = roles_of(caller, name).await?;
    let is_root = roles.iter().any(|role| role == ROOT);
    let mut permissions = Vec::new();
    for role in roles.iter().filter(|role| *role != ROOT).take(ROLES_MAX) {
        for mut permission in permissions_of(caller, role).await? {
            permission["role"] = role.clone().into();
            permissions.push(permission);
        }
    }
    Ok(json!({ "user": name, "roles": roles, "is_root": is_root, "permissions": permissions }))
}

/// Returns all users with their roles, and the names of all roles.
pub(crate) async fn list(caller: &Caller) -> Result<Value, Refusal> {
    let auth = |channel| caller.client.auth(channel);
    let status = async |channel, request| auth(channel).auth_status(request).await;
    let status = caller.read(AuthStatusRequest {}, status).await?;
    let users = async |channel, request| auth(channel).user_list(request).await;
    let names = caller.read(AuthUserListRequest {}, users).await?.users;
    let roles = async |channel, request| auth(channel).role_list(request).await;
    let roles = caller.read(AuthRoleListRequest {}, roles).await?.roles;
    let mut users = Vec::new();
    for name in names.iter().take(USERS_MAX) {
        users.push(json!({ "name": name, "roles": roles_of(caller, name).await? }));
    }
    Ok(json!({
        "enabled": status.enabled,
        "revision": status.auth_revision,
        "users": users,
        "roles": roles,
        "omitted": names.len() - users.len(),
    }))
}

/// Returns a role with its permissions.
pub(crate) async fn role(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let name = input.required_text("name")?;
    Ok(json!({ "name": name, "permissions": permissions_of(caller, name).await? }))
}

async fn roles_of(caller: &Caller, name: &str) -> Result<Vec<String>, Refusal> {
    let get = async |channel, request| caller.client.auth(channel).user_get(request).await;
    Ok(caller.read(AuthUserGetRequest { name: name.to_owned() }, get).await?.roles)
}

async fn permissions_of(caller: &Caller, role: &str) -> Result<Vec<Value>, Refusal> {
    let get = async |channel, request| caller.client.auth(channel).role_get(request).await;
    let found = caller.read(AuthRoleGetRequest { role: role.to_owned() }, get).await?;
    Ok(found.perm.iter().map(permission_json).collect())
}

fn permission_json(permission: &Permission) -> Value {
    let kind = match permission.perm_type() {
        Type::Read => "read",
        Type::Write => "write",
        Type::Readwrite => "readwrite",
    };
    let end = &permission.range_end;
    json!({
        "type": kind,
        "key": base64(&permission.key),
        "range_end": (!end.is_empty()).then(|| base64(end)),
        "is_prefix": !end.is_empty() && prefix_end(&permission.key) == end[..],
    })
}
