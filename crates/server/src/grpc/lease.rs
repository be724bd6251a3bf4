//! The Lease service but for its stream (`keep_alive`): grants and revokes through the log, lookups at the leader.

use std::sync::Arc;

use quorate_api::etcdserverpb::lease_server::Lease;
use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use quorate_state::apply::Response as Outcome;
use quorate_state::quota::LEASE_COST;
use tonic::{Request, Response, Status};

use super::unexpected;
use crate::member::Member;
use crate::metrics::RequestKind;

/// The service.
#[derive(Debug)]
pub(crate) struct LeaseService {
    member: Arc<Member>,
}

impl LeaseService {
    pub(super) const fn new(member: Arc<Member>) -> Self {
        Self { member }
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let mut grant = request.into_inner();
        self.member.check_quota(LEASE_COST).await?;
        if grant.id == 0 {
            grant.id = self.member.next_lease_id();
        }
        let request =
            InternalRaftRequest { lease_grant: Some(grant), ..InternalRaftRequest::default() };
        match self.member.propose(request, RequestKind::LeaseGrant).await? {
            Outcome::LeaseGrant(mut response) => {
                response.header = self.member.complete(response.header);
                self.member.metrics().lease.granted.inc();
                let ttl_secs = u64::try_from(response.ttl).unwrap_or_default();
                self.member.metrics().lease.ttl.observe_number(ttl_secs);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let request = InternalRaftRequest {
            lease_revoke: Some(request.into_inner()),
            ..InternalRaftRequest::default()
        };
        match self.member.propose(request, RequestKind::LeaseRevoke).await? {
            Outcome::LeaseRevoke(mut response) => {
                response.header = self.member.complete(response.header);
                self.member.metrics().lease.revoked.inc();
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let found = self.member.lease_time_to_live(&request).await?;
        let response = found.unwrap_or_else(|| LeaseTimeToLiveResponse {
            id: request.id,
            ttl: -1,
            ..LeaseTimeToLiveResponse::default()
        });
        let header = Some(self.member.current_header());
        Ok(Response::new(LeaseTimeToLiveResponse { header, ..response }))
    }

    async fn lease_leases(
        &self,
        _: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let ids = self.member.leases().list();
        Ok(Response::new(LeaseLeasesResponse {
            header: Some(self.member.current_header()),
            leases: ids.into_iter().map(|id| LeaseStatus { id: id.0 }).collect(),
        }))
    }
}
