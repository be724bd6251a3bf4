//! The Auth service: users, roles, turning authentication on and off, and login.
//!
//! All changes are writes, which are checked when they are executed. A token is returned only to the client that
//! logs in, and passwords are never returned.

use std::sync::Arc;

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
use tonic::{Response, Status};

use crate::calls::asked;
use crate::calls::authorized::Authorized;
use crate::calls::status::status;
use crate::calls::status::unexpected;
use quorate_requests::access::Client;
use quorate_requests::accounts::Accounts;
use quorate_requests::{ServerHandles, ServerInfo, Writer};
use quorate_telemetry::metrics::RequestKind;

/// The Auth service.
#[derive(Debug)]
pub(crate) struct AuthService {
    info: Arc<ServerInfo>,
    writer: Arc<Writer>,
    accounts: Arc<Accounts>,
}

impl AuthService {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            writer: Arc::clone(&handles.writer),
            accounts: Arc::clone(&handles.accounts),
        }
    }

    async fn write(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Outcome, Status> {
        self.writer.write_for(client, request, kind).await.map_err(status)
    }

    /// Executes a change and returns the response header with its revision.
    async fn change(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Option<ResponseHeader>, Status> {
        match self.write(client, request, kind).await? {
            Outcome::AuthDone(header) => Ok(self.info.complete(header)),
            other => Err(unexpected(&other)),
        }
    }
}

/// Executes a change whose response consists only of a header.
macro_rules! change {
    ($service:ident, $request:ident, $field:ident, $kind:ident, $response:ident) => {{
        let (client, message) = $request.into_parts();
        let $field = Some(Box::new(message));
        let request = InternalRaftRequest { $field, ..InternalRaftRequest::default() };
        let header = $service.change(&client, request, RequestKind::$kind).await?;
        Ok(Response::new($response { header }))
    }};
}

/// Reads users or roles.
macro_rules! look_up {
    ($service:ident, $request:ident, $field:ident, $kind:ident) => {{
        let (client, message) = $request.into_parts();
        let $field = Some(Box::new(message));
        let request = InternalRaftRequest { $field, ..InternalRaftRequest::default() };
        match $service.write(&client, request, RequestKind::$kind).await? {
            Outcome::$kind(mut response) => {
                response.header = $service.info.complete(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }};
}

/// The methods of the service, which `guarded` calls.
impl AuthService {
    pub(crate) async fn auth_enable(
        &self,
        request: Authorized<AuthEnableRequest>,
    ) -> Result<Response<AuthEnableResponse>, Status> {
        change!(self, request, auth_enable, AuthEnable, AuthEnableResponse)
    }

    pub(crate) async fn auth_disable(
        &self,
        request: Authorized<AuthDisableRequest>,
    ) -> Result<Response<AuthDisableResponse>, Status> {
        change!(self, request, auth_disable, AuthDisable, AuthDisableResponse)
    }

    pub(crate) async fn auth_status(
        &self,
        request: Authorized<AuthStatusRequest>,
    ) -> Result<Response<AuthStatusResponse>, Status> {
        let (client, _) = request.into_parts();
        let answer = self.accounts.status(&client).await;
        answer.map(Response::new).map_err(status)
    }

    pub(crate) async fn authenticate(
        &self,
        request: Authorized<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let (client, AuthenticateRequest { name, password }) = request.into_parts();
        if let Some(account) = &client.account {
            let known = self.accounts.has(&name).then_some(name.as_str());
            account.note_asked(asked::login(known));
        }
        let login = self.accounts.authenticate(&client, &name, &password);
        let mut response = login.await.map_err(status)?;
        response.header = self.info.complete(response.header);
        Ok(Response::new(response))
    }

    pub(crate) async fn user_add(
        &self,
        request: Authorized<AuthUserAddRequest>,
    ) -> Result<Response<AuthUserAddResponse>, Status> {
        let (client, mut add) = request.into_parts();
        self.accounts.hash_new(&client.credentials, &mut add).await.map_err(status)?;
        let request = InternalRaftRequest {
            auth_user_add: Some(Box::new(add)),
            ..InternalRaftRequest::default()
        };
        let header = self.change(&client, request, RequestKind::AuthUserAdd).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    pub(crate) async fn user_change_password(
        &self,
        request: Authorized<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        let (client, mut change) = request.into_parts();
        self.accounts.hash_other(&client.credentials, &mut change).await.map_err(status)?;
        let request = InternalRaftRequest {
            auth_user_change_password: Some(Box::new(change)),
            ..InternalRaftRequest::default()
        };
        let header = self.change(&client, request, RequestKind::AuthUserChangePassword).await?;
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    pub(crate) async fn user_get(
        &self,
        request: Authorized<AuthUserGetRequest>,
    ) -> Result<Response<AuthUserGetResponse>, Status> {
        look_up!(self, request, auth_user_get, AuthUserGet)
    }

    pub(crate) async fn user_list(
        &self,
        request: Authorized<AuthUserListRequest>,
    ) -> Result<Response<AuthUserListResponse>, Status> {
        look_up!(self, request, auth_user_list, AuthUserList)
    }

    pub(crate) async fn user_delete(
        &self,
        request: Authorized<AuthUserDeleteRequest>,
    ) -> Result<Response<AuthUserDeleteResponse>, Status> {
        change!(self, request, auth_user_delete, AuthUserDelete, AuthUserDeleteResponse)
    }

    pub(crate) async fn user_grant_role(
        &self,
        request: Authorized<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        change!(self, request, auth_user_grant_role, AuthUserGrantRole, AuthUserGrantRoleResponse)
    }

    pub(crate) async fn user_revoke_role(
        &self,
        request: Authorized<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        change!(
            self,
            request,
            auth_user_revoke_role,
            AuthUserRevokeRole,
            AuthUserRevokeRoleResponse
        )
    }

    pub(crate) async fn role_add(
        &self,
        request: Authorized<AuthRoleAddRequest>,
    ) -> Result<Response<AuthRoleAddResponse>, Status> {
        change!(self, request, auth_role_add, AuthRoleAdd, AuthRoleAddResponse)
    }

    pub(crate) async fn role_get(
        &self,
        request: Authorized<AuthRoleGetRequest>,
    ) -> Result<Response<AuthRoleGetResponse>, Status> {
        look_up!(self, request, auth_role_get, AuthRoleGet)
    }

    pub(crate) async fn role_list(
        &self,
        request: Authorized<AuthRoleListRequest>,
    ) -> Result<Response<AuthRoleListResponse>, Status> {
        look_up!(self, request, auth_role_list, AuthRoleList)
    }

    pub(crate) async fn role_delete(
        &self,
        request: Authorized<AuthRoleDeleteRequest>,
    ) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        change!(self, request, auth_role_delete, AuthRoleDelete, AuthRoleDeleteResponse)
    }

    pub(crate) async fn role_grant_permission(
        &self,
        request: Authorized<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        change!(
            self,
            request,
            auth_role_grant_permission,
            AuthRoleGrantPermission,
            AuthRoleGrantPermissionResponse
        )
    }

    pub(crate) async fn role_revoke_permission(
        &self,
        request: Authorized<AuthRoleRevokePermissionRequest>,
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
