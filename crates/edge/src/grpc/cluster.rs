//! The Cluster service: who is a member, and changes of that.

use std::sync::Arc;

use quorate_api::etcdserverpb::cluster_server::Cluster;
use quorate_api::etcdserverpb::{
    Member as MemberMessage, MemberAddRequest, MemberAddResponse, MemberListRequest,
    MemberListResponse, MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest,
    MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use quorate_state::members::Member;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::access::client_of;
use super::large_reply::counted;
use super::status::status;
use quorate_member::membership::Membership;
use quorate_member::{Handles, Profile, Reader};

/// The service.
#[derive(Debug)]
pub(crate) struct ClusterService {
    profile: Arc<Profile>,
    reader: Arc<Reader>,
    membership: Membership,
}

impl ClusterService {
    pub(super) fn new(handles: &Handles) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            reader: Arc::clone(&handles.reader),
            membership: Membership::new(handles),
        }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let client = client_of(&request);
        let request = request.get_ref();
        let added =
            self.membership.add(&client.shown, &request.peer_urls, request.is_learner).await;
        let (row, rows) = added.map_err(status)?;
        Ok(Response::new(MemberAddResponse {
            header: Some(self.profile.header(0)),
            member: Some(to_message(row)),
            members: to_messages(rows),
        }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        _ = client_of(&request);
        let rows = self.membership.remove(request.get_ref().id).await.map_err(status)?;
        let header = Some(self.profile.header(0));
        Ok(Response::new(MemberRemoveResponse { header, members: to_messages(rows) }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        _ = client_of(&request);
        let request = request.get_ref();
        let rows = self.membership.update(request.id, &request.peer_urls).await.map_err(status)?;
        let header = Some(self.profile.header(0));
        Ok(Response::new(MemberUpdateResponse { header, members: to_messages(rows) }))
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.reader.read_barrier().await.map_err(status)?;
        }
        let (header, rows) = (Some(self.profile.header(0)), self.profile.rows());
        let response = MemberListResponse { header, members: to_messages(rows) };
        Ok(counted(response, &self.reader.admission().replies).map_err(status)?)
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        _ = client_of(&request);
        let id = request.get_ref().id;
        let rows =
            self.membership.promote(id, token_of(request.metadata())).await.map_err(status)?;
        let header = Some(self.profile.header(0));
        Ok(Response::new(MemberPromoteResponse { header, members: to_messages(rows) }))
    }
}

/// The client's token, under either of its names.
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
