//! Commands about users and roles, and the commands that enable and disable authentication.

use quorate_api::etcdserverpb as pb;

use super::{AuthCommand, EntryMeta, Fault, Refusal, Response, State};
use crate::auth::{AuthRefusal, Caller, PlainPassword, Tokens};

impl State {
    /// Applies a command that has passed the guards. For most commands, the guards have checked
    /// that the caller is an administrator.
    pub(super) fn apply_auth(
        &mut self,
        entry: &EntryMeta,
        caller: Caller<'_>,
        command: &AuthCommand,
    ) -> Result<Result<Response, Refusal>, Fault> {
        let plain = |_: PlainPassword| Fault::PlainPassword { index: entry.index };
        let batch = &mut self.batch;
        let done = match command {
            AuthCommand::Status => return Ok(Ok(self.auth_status())),
            AuthCommand::Authenticate(request) => return Ok(self.authenticate(entry, request)),
            AuthCommand::UserGet(request) => return Ok(self.user_get(caller, &request.name)),
            AuthCommand::RoleGet(request) => return Ok(self.role_get(caller, &request.role)),
            AuthCommand::UserList => return Ok(Ok(self.user_list())),
            AuthCommand::RoleList => return Ok(Ok(self.role_list())),
            AuthCommand::Enable => self.auth.enable(batch),
            AuthCommand::Disable => {
                self.auth.disable(batch);
                Ok(())
            }
            AuthCommand::UserAdd(request) => self.auth.add_user(request, batch).map_err(plain)?,
            AuthCommand::UserDelete(request) => self.auth.delete_user(&request.name, batch),
            AuthCommand::UserChangePassword(request) => {
                self.auth.change_password(request, batch).map_err(plain)?
            }
            AuthCommand::UserGrantRole(request) => {
                self.auth.grant_role(&request.user, &request.role, batch)
            }
            AuthCommand::UserRevokeRole(request) => {
                self.auth.revoke_role(&request.name, &request.role, batch)
            }
            AuthCommand::RoleAdd(request) => self.auth.add_role(&request.name, batch),
            AuthCommand::RoleDelete(request) => self.auth.delete_role(&request.role, batch),
            AuthCommand::RoleGrantPermission(request) => {
                self.auth.grant_permission(&request.name, request.perm.as_ref(), batch)
            }
            AuthCommand::RoleRevokePermission(request) => {
                self.auth.revoke_permission(request, batch)
            }
        };
        Ok(done.map(|()| Response::AuthDone(self.header())).map_err(Refusal::from))
    }

    fn auth_status(&self) -> Response {
        let view = self.auth.view();
        Response::AuthStatus(pb::AuthStatusResponse {
            header: self.header(),
            enabled: view.is_enabled(),
            auth_revision: view.revision(),
        })
    }

    /// Authenticates a user whose password was checked by the member that received the request. If the entry contains
    /// no simple token, no token is created here, because the receiving member signs the user's token itself (JWT).
    fn authenticate(
        &self,
        entry: &EntryMeta,
        request: &pb::InternalAuthenticateRequest,
    ) -> Result<Response, Refusal> {
        let view = self.auth.view();
        if !view.is_enabled() {
            return Err(AuthRefusal::NotEnabled.into());
        }
        if view.user(&request.name).is_none_or(|user| user.has_no_password()) {
            return Err(AuthRefusal::AuthenticationFailed.into());
        }
        let mut token = String::new();
        if !request.simple_token.is_empty() {
            token = Tokens::text(&request.simple_token, entry.index);
            self.published.auth.tokens().add(&token, &request.name, entry.now);
        }
        let response = pb::AuthenticateResponse { header: self.header(), token };
        Ok(Response::Authenticated { response, auth_revision: view.revision() })
    }

    /// Returns a user's roles. The caller must be an administrator or that user.
    fn user_get(&self, caller: Caller<'_>, name: &str) -> Result<Response, Refusal> {
        let view = self.auth.view();
        if let Err(refusal) = view.check_admin(caller)
            && name != caller.name
        {
            return Err(refusal.into());
        }
        let user = view.user(name).ok_or(AuthRefusal::UserNotFound)?;
        let roles = user.roles().to_vec();
        Ok(Response::AuthUserGet(pb::AuthUserGetResponse { header: self.header(), roles }))
    }

    /// Returns a role's permissions. The caller must be an administrator or have that role.
    fn role_get(&self, caller: Caller<'_>, role: &str) -> Result<Response, Refusal> {
        let view = self.auth.view();
        if let Err(refusal) = view.check_admin(caller)
            && !view.has_role(caller, role)
        {
            return Err(refusal.into());
        }
        let perm = view.role_permissions(role).ok_or(AuthRefusal::RoleNotFound)?;
        Ok(Response::AuthRoleGet(pb::AuthRoleGetResponse { header: self.header(), perm }))
    }

    fn user_list(&self) -> Response {
        let users = self.auth.view().user_names().map(str::to_owned).collect();
        Response::AuthUserList(pb::AuthUserListResponse { header: self.header(), users })
    }

    fn role_list(&self) -> Response {
        let roles = self.auth.view().role_names().map(str::to_owned).collect();
        Response::AuthRoleList(pb::AuthRoleListResponse { header: self.header(), roles })
    }
}
