//! The Auth service: users, roles, the switch, and logging in.
//!
//! Everything goes through the log, and is judged there. No password and no token is told to anybody but who asked.

use std::sync::Arc;

use quorate_api::etcdserverpb::auth_server::Auth;
use quorate_api::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleGrantPermissionResponse, AuthRoleListRequest, AuthRoleListResponse,
    AuthRoleRevokePermissionRequest, AuthRoleRevokePermissionResponse, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse,
    AuthUserListRequest, AuthUserListResponse, AuthUserRevokeRoleRequest,
    AuthUserRevokeRoleResponse, AuthenticateRequest, AuthenticateResponse, InternalRaftRequest,
    ResponseHeader,
};
use quorate_state::apply::Response as Outcome;
use tonic::{Request, Response, Status};

use super::access::{client_by_name, client_of};
use super::asked;
use super::status::status;
use super::unexpected;
use quorate_member::access::Client;
use quorate_member::accounts::Accounts;
use quorate_member::{Handles, Profile, Proposer};
use quorate_telemetry::metrics::RequestKind;

/// The service.
#[derive(Debug)]
pub(crate) struct AuthService {
    profile: Arc<Profile>,
    proposer: Arc<Proposer>,
    accounts: Arc<Accounts>,
}

impl AuthService {
    pub(super) fn new(handles: &Handles) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            proposer: Arc::clone(&handles.proposer),
            accounts: Arc::clone(&handles.accounts),
        }
    }

    async fn propose(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Outcome, Status> {
        self.proposer.propose_for(client, request, kind).await.map_err(status)
    }

    /// Has a change made. Its answer says when.
    async fn change(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Option<ResponseHeader>, Status> {
        match self.propose(client, request, kind).await? {
            Outcome::AuthDone(header) => Ok(self.profile.complete(header)),
            other => Err(unexpected(&other)),
        }
    }
}

/// Has a change made whose answer is nothing but that it was.
macro_rules! change {
    ($service:ident, $request:ident, $field:ident, $kind:ident, $response:ident) => {{
        let client = client_of(&$request);
        let $field = Some($request.into_inner());
        let request = InternalRaftRequest { $field, ..InternalRaftRequest::default() };
        let header = $service.change(&client, request, RequestKind::$kind).await?;
        Ok(Response::new($response { header }))
    }};
}

/// Has something looked up.
macro_rules! look_up {
    ($service:ident, $request:ident, $field:ident, $kind:ident) => {{
        let client = client_of(&$request);
        let $field = Some($request.into_inner());
        let request = InternalRaftRequest { $field, ..InternalRaftRequest::default() };
        match $service.propose(&client, request, RequestKind::$kind).await? {
            Outcome::$kind(mut response) => {
                response.header = $service.profile.complete(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }};
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        request: Request<AuthEnableRequest>,
    ) -> Result<Response<AuthEnableResponse>, Status> {
        change!(self, request, auth_enable, AuthEnable, AuthEnableResponse)
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Response<AuthDisableResponse>, Status> {
        change!(self, request, auth_disable, AuthDisable, AuthDisableResponse)
    }

    async fn auth_status(
        &self,
        request: Request<AuthStatusRequest>,
    ) -> Result<Response<AuthStatusResponse>, Status> {
        look_up!(self, request, auth_status, AuthStatus)
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let client = client_by_name(&request);
        let AuthenticateRequest { name, password } = request.into_inner();
        if let Some(account) = &client.account {
            let known = self.accounts.has(&name).then_some(name.as_str());
            account.note_asked(asked::login(known));
        }
        let login = self.accounts.authenticate(&client, &name, &password);
        let mut response = login.await.map_err(status)?;
        response.header = self.profile.complete(response.header);
        Ok(Response::new(response))
    }

    async fn user_add(
        &self,
        request: Request<AuthUserAddRequest>,
    ) -> Result<Response<AuthUserAddResponse>, Status> {
        let client = client_of(&request);
        let mut add = request.into_inner();
        self.accounts.hash_new(&client.shown, &mut add).await.map_err(status)?;
        let request =
            InternalRaftRequest { auth_user_add: Some(add), ..InternalRaftRequest::default() };
        let header = self.change(&client, request, RequestKind::AuthUserAdd).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        let client = client_of(&request);
        let mut change = request.into_inner();
        self.accounts.hash_other(&client.shown, &mut change).await.map_err(status)?;
        let request = InternalRaftRequest {
            auth_user_change_password: Some(change),
            ..InternalRaftRequest::default()
        };
        let header = self.change(&client, request, RequestKind::AuthUserChangePassword).await?;
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<AuthUserGetRequest>,
    ) -> Result<Response<AuthUserGetResponse>, Status> {
        look_up!(self, request, auth_user_get, AuthUserGet)
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Result<Response<AuthUserListResponse>, Status> {
        look_up!(self, request, auth_user_list, AuthUserList)
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Response<AuthUserDeleteResponse>, Status> {
        change!(self, request, auth_user_delete, AuthUserDelete, AuthUserDeleteResponse)
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        change!(self, request, auth_user_grant_role, AuthUserGrantRole, AuthUserGrantRoleResponse)
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        change!(
            self,
            request,
            auth_user_revoke_role,
            AuthUserRevokeRole,
            AuthUserRevokeRoleResponse
        )
    }

    async fn role_add(
        &self,
        request: Request<AuthRoleAddRequest>,
    ) -> Result<Response<AuthRoleAddResponse>, Status> {
        change!(self, request, auth_role_add, AuthRoleAdd, AuthRoleAddResponse)
    }

    async fn role_get(
        &self,
        request: Request<AuthRoleGetRequest>,
    ) -> Result<Response<AuthRoleGetResponse>, Status> {
        look_up!(self, request, auth_role_get, AuthRoleGet)
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Result<Response<AuthRoleListResponse>, Status> {
        look_up!(self, request, auth_role_list, AuthRoleList)
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        change!(self, request, auth_role_delete, AuthRoleDelete, AuthRoleDeleteResponse)
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        change!(
            self,
            request,
            auth_role_grant_permission,
            AuthRoleGrantPermission,
            AuthRoleGrantPermissionResponse
        )
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<AuthRoleRevokePermissionResponse>, Status> {
        change!(
            self,
            request,
            auth_role_revoke_permission,
            AuthRoleRevokePermission,
            AuthRoleRevokePermissionResponse
        )
    }
}
