//! The Cluster service. A member without peers lists itself; changing the membership comes with clusters.

use std::sync::Arc;

use quorate_api::etcdserverpb::cluster_server::Cluster;
use quorate_api::etcdserverpb::{Member as MemberMessage, MemberListRequest, MemberListResponse};
use tonic::{Request, Response, Status};

use crate::member::Member;

/// The service.
#[derive(Debug)]
pub(crate) struct ClusterService {
    member: Arc<Member>,
}

impl ClusterService {
    pub(super) const fn new(member: Arc<Member>) -> Self {
        Self { member }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.member.read_barrier().await?;
        }
        let facts = self.member.facts();
        let members = facts.members.iter().map(|member| MemberMessage {
            id: member.id.0,
            name: member.name.clone(),
            peer_urls: member.peer_urls.clone(),
            client_urls: member.client_urls.clone(),
            is_learner: member.is_learner,
        });
        Ok(Response::new(MemberListResponse {
            header: Some(self.member.header(0)),
            members: members.collect(),
        }))
    }
}
