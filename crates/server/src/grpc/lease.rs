//! The Lease service: grants and revokes through the log, renewals and lookups from memory.

use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb::lease_server::Lease;
use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use quorate_state::apply::Response as Outcome;
use quorate_state::lease::Renewal;
use quorate_state::quota::LEASE_COST;
use quorate_state::units::LeaseId;
use tokio_stream::StreamExt;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::unexpected;
use crate::member::{Member, RequestError};
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

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<BoxStream<LeaseKeepAliveResponse>>, Status> {
        let requires_leader =
            request.metadata().get("hasleader").is_some_and(|value| value == "true");
        let member = Arc::clone(&self.member);
        let leader_lost = requires_leader.then(|| member.leader_lost());
        let requests = request.into_inner();
        let responses = requests.then(move |request| {
            let member = Arc::clone(&member);
            async move {
                // The revision is that before the renewal.
                let header = member.current_header();
                let id = request?.id;
                let ttl = renew(&member, LeaseId(id)).await?;
                Ok(LeaseKeepAliveResponse { header: Some(header), id, ttl })
            }
        });
        Ok(Response::new(match leader_lost {
            None => Box::pin(responses),
            Some(lost) => Box::pin(super::streams::until_leader_lost(responses, lost)),
        }))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        self.member.wait_applied().await?;
        let leases = self.member.leases();
        let id = LeaseId(request.id);
        let header = Some(self.member.current_header());
        let id_and_header = LeaseTimeToLiveResponse {
            header,
            id: request.id,
            ..LeaseTimeToLiveResponse::default()
        };
        let Some(found) = leases.time_to_live(id, self.member.now()) else {
            return Ok(Response::new(LeaseTimeToLiveResponse { ttl: -1, ..id_and_header }));
        };
        let keys = if request.keys { leases.keys(id).unwrap_or_default() } else { Vec::new() };
        let remaining_secs =
            found.remaining_secs.ok_or(RequestError::LeaderChanged).map_err(Status::from)?;
        Ok(Response::new(LeaseTimeToLiveResponse {
            ttl: remaining_secs,
            granted_ttl: found.granted_secs,
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            ..id_and_header
        }))
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

/// Renews a lease; 0 when there is none of that id any more.
async fn renew(member: &Member, id: LeaseId) -> Result<i64, RequestError> {
    let mut waited = !member.limits().renews_at_once;
    if waited {
        member.wait_applied().await?;
    }
    loop {
        match member.leases().renew(id, member.now()) {
            Renewal::Renewed { ttl_secs } => {
                member.metrics().lease.renewed.inc();
                return Ok(ttl_secs);
            }
            // It may just have been granted, by an entry that is not applied here yet.
            Renewal::NotFound if !waited => {
                waited = true;
                member.wait_applied().await?;
            }
            Renewal::NotFound => return Ok(0),
            Renewal::NotPrimary => return Err(RequestError::NotPrimaryLessor),
            Renewal::Expired => {
                std::future::poll_fn(|cx| member.leases().poll_gone(id, cx)).await;
            }
            Renewal::CheckpointFirst => {
                let checkpoints = vec![LeaseCheckpoint { id: id.0, remaining_ttl: 0 }];
                let request = InternalRaftRequest {
                    lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
                    ..InternalRaftRequest::default()
                };
                member.propose(request, RequestKind::LeaseCheckpoint).await?;
            }
        }
    }
}
