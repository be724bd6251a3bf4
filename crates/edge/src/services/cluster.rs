//! The Cluster service: the member list and membership changes.

use std::sync::Arc;

use quorate_api::etcdserverpb::{
    Member as MemberMessage, MemberAddRequest, MemberAddResponse, MemberListRequest,
    MemberListResponse, MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest,
    MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use quorate_state::members::Member;
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use crate::calls::authorized::Authorized;
use crate::calls::large_reply::counted;
use crate::calls::status::status;
use quorate_requests::access::AccessControl;
use quorate_requests::{DataStore, ServerHandles, ServerInfo};

/// The Cluster service.
#[derive(Debug)]
pub(crate) struct ClusterService {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
}

impl ClusterService {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            store: Arc::clone(&handles.store),
        }
    }
}

/// The methods of the service, which `guarded` calls.
impl ClusterService {
    pub(crate) async fn member_add(
        &self,
        request: Authorized<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let (client, request) = request.into_parts();
        let added = self
            .store
            .add_member(&client.credentials, &request.peer_urls, request.is_learner)
            .await;
        let (row, rows) = added.map_err(status)?;
        Ok(Response::new(MemberAddResponse {
            header: Some(self.info.header(0)),
            member: Some(to_message(row)),
            members: to_messages(rows),
        }))
    }

    pub(crate) async fn member_remove(
        &self,
        request: Authorized<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let (client, request) = request.into_parts();
        let rows =
            self.store.remove_member(&client.credentials, request.id).await.map_err(status)?;
        let header = Some(self.info.header(0));
        Ok(Response::new(MemberRemoveResponse { header, members: to_messages(rows) }))
    }

    pub(crate) async fn member_update(
        &self,
        request: Authorized<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let (client, request) = request.into_parts();
        let updated =
            self.store.update_member(&client.credentials, request.id, &request.peer_urls).await;
        let rows = updated.map_err(status)?;
        let header = Some(self.info.header(0));
        Ok(Response::new(MemberUpdateResponse { header, members: to_messages(rows) }))
    }

    pub(crate) async fn member_list(
        &self,
        request: Authorized<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let (client, request) = request.into_parts();
        if request.linearizable {
            self.store.read_barrier().await.map_err(status)?;
            self.access_control.check_user(&client.credentials).map_err(status)?;
        }
        let (header, rows) = (Some(self.info.header(0)), self.info.rows());
        let response = MemberListResponse { header, members: to_messages(rows) };
        counted(response, &self.info.admission().replies).map_err(status)
    }

    pub(crate) async fn member_promote(
        &self,
        request: Authorized<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let token = token_of(request.metadata()).map(str::to_owned);
        let (client, request) = request.into_parts();
        let promoted =
            self.store.promote_member(&client.credentials, request.id, token.as_deref()).await;
        let rows = promoted.map_err(status)?;
        let header = Some(self.info.header(0));
        Ok(Response::new(MemberPromoteResponse { header, members: to_messages(rows) }))
    }
}

/// Returns the client's token, which is stored under one of two metadata keys.
fn token_of(metadata: &MetadataMap) -> Option<&str> {
    metadata.get("token").or_else(|| metadata.get("authorization"))?.to_str().ok()
}

fn to_messages(rows: Vec<Member>) -> Vec<MemberMessage> {
    rows.into_iter().map(to_message).collect()
}

fn to_message(row: Member) -> MemberMessage {
    MemberMessage {
        id: row.id.0,
        name: row.name,
        peer_urls: row.peer_urls,
        client_urls: row.client_urls,
        is_learner: row.is_learner,
    }
}
