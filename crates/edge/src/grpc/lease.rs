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

use super::large_reply::counted;
use super::status::status;
use super::unexpected;
use quorate_member::lease_holder::LeaseHolder;
use quorate_member::{Handles, Profile, Proposer, Reader};
use quorate_telemetry::metrics::RequestKind;

/// The service.
#[derive(Debug)]
pub(crate) struct LeaseService {
    profile: Arc<Profile>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    leases: Arc<LeaseHolder>,
}

impl LeaseService {
    pub(super) fn new(handles: &Handles, leases: Arc<LeaseHolder>) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            leases,
        }
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let mut grant = request.into_inner();
        self.proposer.check_quota(LEASE_COST).await.map_err(status)?;
        if grant.id == 0 {
            grant.id = self.proposer.next_lease_id();
        }
        let request =
            InternalRaftRequest { lease_grant: Some(grant), ..InternalRaftRequest::default() };
        match self.proposer.propose(request, RequestKind::LeaseGrant).await.map_err(status)? {
            Outcome::LeaseGrant(mut response) => {
                response.header = self.profile.complete(response.header);
                self.profile.metrics().lease.granted.inc();
                let ttl_secs = u64::try_from(response.ttl).unwrap_or_default();
                self.profile.metrics().lease.ttl.observe_number(ttl_secs);
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
        match self.proposer.propose(request, RequestKind::LeaseRevoke).await.map_err(status)? {
            Outcome::LeaseRevoke(mut response) => {
                response.header = self.profile.complete(response.header);
                self.profile.metrics().lease.revoked.inc();
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
        let found = self.leases.time_to_live(&request).await.map_err(status)?;
        let response = found.unwrap_or_else(|| LeaseTimeToLiveResponse {
            id: request.id,
            ttl: -1,
            ..LeaseTimeToLiveResponse::default()
        });
        let header = Some(self.reader.current_header());
        let response = LeaseTimeToLiveResponse { header, ..response };
        Ok(counted(response, &self.reader.admission().replies).map_err(status)?)
    }

    async fn lease_leases(
        &self,
        _: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let ids = self.reader.leases().list();
        let response = LeaseLeasesResponse {
            header: Some(self.reader.current_header()),
            leases: ids.into_iter().map(|id| LeaseStatus { id: id.0 }).collect(),
        };
        Ok(counted(response, &self.reader.admission().replies).map_err(status)?)
    }
}
