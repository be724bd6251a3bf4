//! Replies about users, roles and permissions, and their formatting as text.

use prost::Message as _;
use quorate_api::authpb::Permission;
use quorate_api::authpb::permission::Type;
use quorate_api::etcdserverpb::{
    AuthRoleAddResponse, AuthRoleDeleteResponse, AuthRoleGetResponse,
    AuthRoleGrantPermissionResponse, AuthRoleListResponse, AuthRoleRevokePermissionResponse,
    AuthStatusResponse, AuthUserAddResponse, AuthUserChangePasswordResponse,
    AuthUserDeleteResponse, AuthUserGetResponse, AuthUserGrantRoleResponse, AuthUserListResponse,
    AuthUserRevokeRoleResponse, ResponseHeader,
};

use super::Shown;
use crate::key_range::prefix_end;

/// Name of the role that has all permissions.
const ROOT: &str = "root";
/// Range end of an open-ended range.
const OPEN: &[u8] = b"\0";

/// A reply about users or roles. A string before a response is the name of the user or role in the request.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Status(AuthStatusResponse),
    RoleAdd(String, AuthRoleAddResponse),
    RoleDelete(String, AuthRoleDeleteResponse),
    RoleGet(String, AuthRoleGetResponse),
    RoleList(AuthRoleListResponse),
    RoleGrantPermission(String, AuthRoleGrantPermissionResponse),
    RoleRevokePermission {
        role: String,
        key: Vec<u8>,
        end: Vec<u8>,
        response: AuthRoleRevokePermissionResponse,
    },
    UserAdd(String, AuthUserAddResponse),
    UserDelete(String, AuthUserDeleteResponse),
    UserGet(String, AuthUserGetResponse),
    UserList(AuthUserListResponse),
    UserChangePassword(AuthUserChangePasswordResponse),
    UserGrantRole {
        user: String,
        role: String,
        response: AuthUserGrantRoleResponse,
    },
    UserRevokeRole {
        user: String,
        role: String,
        response: AuthUserRevokeRoleResponse,
    },
}

impl Access {
    pub(super) const fn header(&self) -> Option<&ResponseHeader> {
        match self {
            Self::Status(response) => response.header.as_ref(),
            Self::RoleAdd(_, response) => response.header.as_ref(),
            Self::RoleDelete(_, response) => response.header.as_ref(),
            Self::RoleGet(_, response) => response.header.as_ref(),
            Self::RoleList(response) => response.header.as_ref(),
            Self::RoleGrantPermission(_, response) => response.header.as_ref(),
            Self::RoleRevokePermission { response, .. } => response.header.as_ref(),
            Self::UserAdd(_, response) => response.header.as_ref(),
            Self::UserDelete(_, response) => response.header.as_ref(),
            Self::UserGet(_, response) => response.header.as_ref(),
            Self::UserList(response) => response.header.as_ref(),
            Self::UserChangePassword(response) => response.header.as_ref(),
            Self::UserGrantRole { response, .. } => response.header.as_ref(),
            Self::UserRevokeRole { response, .. } => response.header.as_ref(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Status(response) => response.encode_to_vec(),
            Self::RoleAdd(_, response) => response.encode_to_vec(),
            Self::RoleDelete(_, response) => response.encode_to_vec(),
            Self::RoleGet(_, response) => response.encode_to_vec(),
            Self::RoleList(response) => response.encode_to_vec(),
            Self::RoleGrantPermission(_, response) => response.encode_to_vec(),
            Self::RoleRevokePermission { response, .. } => response.encode_to_vec(),
            Self::UserAdd(_, response) => response.encode_to_vec(),
            Self::UserDelete(_, response) => response.encode_to_vec(),
            Self::UserGet(_, response) => response.encode_to_vec(),
            Self::UserList(response) => response.encode_to_vec(),
            Self::UserChangePassword(response) => response.encode_to_vec(),
            Self::UserGrantRole { response, .. } => response.encode_to_vec(),
            Self::UserRevokeRole { response, .. } => response.encode_to_vec(),
        }
    }

    /// Formats the reply in sentences.
    pub(super) fn tell(&self, shown: &mut Shown) {
        match self {
            Self::Status(response) => {
                shown.line(format!("Authentication Status: {}", response.enabled));
                shown.line(format!("AuthRevision: {}", response.auth_revision));
            }
            Self::RoleAdd(role, _) => shown.line(format!("Role {role} created")),
            Self::RoleDelete(role, _) => shown.line(format!("Role {role} deleted")),
            Self::RoleGet(role, response) => permissions(role, &response.perm, shown),
            Self::RoleList(response) => response.roles.iter().for_each(|role| shown.line(role)),
            Self::RoleGrantPermission(role, _) => shown.line(format!("Role {role} updated")),
            Self::RoleRevokePermission { role, key, end, .. } => {
                let (what, range) = match &end[..] {
                    b"" => ("key ", key.clone()),
                    _ => ("range ", range(key, end)),
                };
                let rest = format!(" is revoked from role {role}");
                shown.line([b"Permission of ", what.as_bytes(), &range, rest.as_bytes()].concat());
            }
            Self::UserAdd(user, _) => shown.line(format!("User {user} created")),
            Self::UserDelete(user, _) => shown.line(format!("User {user} deleted")),
            Self::UserGet(user, response) => {
                shown.line(format!("User: {user}"));
                let roles = response.roles.iter().map(|role| format!(" {role}"));
                shown.line(format!("Roles:{}", roles.collect::<String>()));
            }
            Self::UserList(response) => response.users.iter().for_each(|user| shown.line(user)),
            Self::UserChangePassword(_) => shown.line("Password updated"),
            Self::UserGrantRole { user, role, .. } => {
                shown.line(format!("Role {role} is granted to user {user}"));
            }
            Self::UserRevokeRole { user, role, .. } => {
                shown.line(format!("Role {role} is revoked from user {user}"));
            }
        }
    }
}

/// Lists the keys that a role may read, and the keys that it may write.
fn permissions(role: &str, permissions: &[Permission], shown: &mut Shown) {
    shown.line(format!("Role {role}"));
    for (title, kind) in [("KV Read:", Type::Read), ("KV Write:", Type::Write)] {
        shown.line(title);
        if role == ROOT && permissions.is_empty() {
            shown.line("\t[, <open ended>");
        }
        let kinds = [kind as i32, Type::Readwrite as i32];
        for permission in permissions.iter().filter(|found| kinds.contains(&found.perm_type)) {
            let (key, end) = (&permission.key, &permission.range_end);
            let mut line = b"\t".to_vec();
            match &end[..] {
                b"" => line.extend_from_slice(key),
                _ => line.extend_from_slice(&range(key, end)),
            }
            if !key.is_empty() && !end.is_empty() && prefix_end(key) == end[..] {
                line.extend_from_slice(&[b" (prefix ", &key[..], b")"].concat());
            }
            shown.line(line);
        }
    }
}

/// Formats a range in interval notation.
fn range(key: &[u8], end: &[u8]) -> Vec<u8> {
    match end {
        OPEN => [b"[", key, b", <open ended>"].concat(),
        _ => [b"[", key, b", ", end, b")"].concat(),
    }
}

/// Returns the name of a permission type as the protocol spells it.
pub(super) fn permission_name(kind: i32) -> String {
    match Type::try_from(kind) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => kind.to_string(),
    }
}
