//! Changes users, roles, permissions and authentication while requests whose permission depends on them are in
//! progress.

use quorate_api::authpb::{Permission, UserAddOptions, permission};
use quorate_api::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
    InternalRaftRequest,
};

use super::super::World;
use super::super::client::USERS;
use crate::member::{ClientRequest, ROOT};

/// Roles other than `root`.
const ROLES: [&str; 2] = ["reader", "writer"];

impl World {
    /// Takes the next step towards enabling authentication, or makes another change to users and roles.
    pub(super) fn change_accounts(&mut self) {
        let accounts = self.judge.accounts();
        let has_root = accounts.user(ROOT).is_some_and(|user| user.roles().contains(&ROOT.into()));
        let (is_enabled, has_user) = (accounts.is_enabled(), accounts.user(ROOT).is_some());
        let has_role = accounts.role_permissions(ROOT).is_some();
        let request = match () {
            () if self.one_in(3) => self.draw_account_change(),
            () if !has_user => add_user(ROOT),
            () if !has_role => add_role(ROOT),
            () if !has_root => grant_role(ROOT, ROOT),
            () if !is_enabled && self.one_in(2) => InternalRaftRequest {
                auth_enable: Some(Box::new(AuthEnableRequest {})),
                ..InternalRaftRequest::default()
            },
            () => self.draw_account_change(),
        };
        let is_enabling = request.auth_enable.is_some();
        let what = if is_enabling { "authentication is enabled" } else { "" };
        self.send_operator_request(ClientRequest::Internal(Box::new(request)), what);
    }

    fn draw_account_change(&mut self) -> InternalRaftRequest {
        let user = USERS[self.rng.position(USERS.len())];
        let role = ROLES[self.rng.position(ROLES.len())];
        let mut request = InternalRaftRequest::default();
        match self.rng.below(20) {
            0..4 => return add_user(user),
            4..7 => return add_role(role),
            7..11 => return grant_role(user, role),
            11..16 => {
                let keys = self.draw_keys();
                let types =
                    [permission::Type::Read, permission::Type::Write, permission::Type::Readwrite];
                let perm_type = types[self.rng.position(types.len())].into();
                let perm = Some(Permission { perm_type, key: keys.key, range_end: keys.end });
                let grant = AuthRoleGrantPermissionRequest { name: role.into(), perm };
                request.auth_role_grant_permission = Some(Box::new(grant));
            }
            16 => {
                let keys = self.draw_keys();
                let revoke = AuthRoleRevokePermissionRequest {
                    role: role.into(),
                    key: keys.key,
                    range_end: keys.end,
                };
                request.auth_role_revoke_permission = Some(Box::new(revoke));
            }
            17 => {
                let revoke = AuthUserRevokeRoleRequest { name: user.into(), role: role.into() };
                request.auth_user_revoke_role = Some(Box::new(revoke));
            }
            18 if self.one_in(2) => {
                let delete = AuthUserDeleteRequest { name: user.into() };
                request.auth_user_delete = Some(Box::new(delete));
            }
            18 => {
                let delete = AuthRoleDeleteRequest { role: role.into() };
                request.auth_role_delete = Some(Box::new(delete));
            }
            _ => request.auth_disable = Some(Box::new(AuthDisableRequest {})),
        }
        request
    }
}

fn add_user(name: &str) -> InternalRaftRequest {
    let options = Some(UserAddOptions { no_password: true });
    let add = AuthUserAddRequest { name: name.into(), options, ..AuthUserAddRequest::default() };
    InternalRaftRequest { auth_user_add: Some(Box::new(add)), ..InternalRaftRequest::default() }
}

fn add_role(name: &str) -> InternalRaftRequest {
    let add = AuthRoleAddRequest { name: name.into() };
    InternalRaftRequest { auth_role_add: Some(Box::new(add)), ..InternalRaftRequest::default() }
}

fn grant_role(user: &str, role: &str) -> InternalRaftRequest {
    let grant = AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
    InternalRaftRequest {
        auth_user_grant_role: Some(Box::new(grant)),
        ..InternalRaftRequest::default()
    }
}
