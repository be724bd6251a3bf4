//! The Lease service except keep-alive (`keep_alive`). Grants and revocations are writes.

use std::sync::Arc;

use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use quorate_state::apply::Response as Outcome;
use quorate_state::auth::Access;
use quorate_state::units::LeaseId;
use tonic::{Response, Status};

use crate::calls::authorized::Authorized;
use crate::calls::large_reply::counted;
use crate::calls::spans;
use crate::calls::status::status;
use crate::calls::status::unexpected;
use quorate_requests::access::{AccessControl, Client};
use quorate_requests::{Ask, DataStore, ServerHandles, ServerInfo, Writer};
use quorate_telemetry::metrics::RequestKind;

/// The Lease service.
#[derive(Debug)]
pub(crate) struct LeaseService {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
    writer: Arc<Writer>,
}

impl LeaseService {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            store: Arc::clone(&handles.store),
            writer: Arc::clone(&handles.writer),
        }
    }

    /// Grants a lease on behalf of another service.
    pub(crate) async fn grant_for(
        &self,
        client: &Client,
        mut grant: LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, Status> {
        self.writer.prepare(client, Ask::LeaseGrant).await.map_err(status)?;
        if grant.id == 0 {
            grant.id = self.store.next_lease_id();
        }
        let _operation = spans::begin(client, &grant);
        let request =
            InternalRaftRequest { lease_grant: Some(grant), ..InternalRaftRequest::default() };
        match self
            .writer
            .write_for(client, request, RequestKind::LeaseGrant)
            .await
            .map_err(status)?
        {
            Outcome::LeaseGrant(mut response) => {
                response.header = self.info.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// The methods of the service, which `guarded` calls.
impl LeaseService {
    pub(crate) async fn lease_grant(
        &self,
        request: Authorized<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let (client, grant) = request.into_parts();
        Ok(Response::new(self.grant_for(&client, grant).await?))
    }

    pub(crate) async fn lease_revoke(
        &self,
        request: Authorized<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let (client, revoke) = request.into_parts();
        self.access_control.check_user(&client.credentials).map_err(status)?;
        let _operation = spans::begin(&client, &revoke);
        let request =
            InternalRaftRequest { lease_revoke: Some(revoke), ..InternalRaftRequest::default() };
        match self
            .writer
            .write_for(&client, request, RequestKind::LeaseRevoke)
            .await
            .map_err(status)?
        {
            Outcome::LeaseRevoke(mut response) => {
                response.header = self.info.complete(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn lease_time_to_live(
        &self,
        request: Authorized<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let (client, request) = request.into_parts();
        let id = LeaseId(request.id);
        let pass = self.access_control.pass(&client.credentials, |may| {
            may.check_user()?;
            if request.keys { may.check_lease(Access::Read, id) } else { Ok(()) }
        });
        let pass = pass.await.map_err(status)?;
        let found = self.store.time_to_live(&request).await.map_err(status)?;
        if request.keys {
            self.access_control.confirm(pass).await.map_err(status)?;
            // The leader may return keys that this member has not applied yet, so permission to read the returned keys
            // is checked as well.
            let pass = self.access_control.pass(&client.credentials, |may| {
                may.check_lease_keys(found.iter().flat_map(|found| &found.keys))
            });
            let pass = pass.await.map_err(status)?;
            self.access_control.confirm(pass).await.map_err(status)?;
        }
        let response = found.unwrap_or_else(|| LeaseTimeToLiveResponse {
            id: request.id,
            ttl: -1,
            ..LeaseTimeToLiveResponse::default()
        });
        let header = Some(self.info.header(self.store.current_revision()));
        let response = LeaseTimeToLiveResponse { header, ..response };
        counted(response, &self.info.admission().replies).map_err(status)
    }

    pub(crate) async fn lease_leases(
        &self,
        request: Authorized<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let (client, _) = request.into_parts();
        let pass = self.access_control.pass(&client.credentials, |may| {
            may.check_user()?;
            let all = self.store.lease_ids();
            all.into_iter().try_for_each(|id| may.check_lease(Access::Read, id))
        });
        let pass = pass.await.map_err(status)?;
        let ids = self.store.lease_ids();
        self.access_control.confirm(pass).await.map_err(status)?;
        let response = LeaseLeasesResponse {
            header: Some(self.info.header(self.store.current_revision())),
            leases: ids.into_iter().map(|id| LeaseStatus { id: id.0 }).collect(),
        };
        counted(response, &self.info.admission().replies).map_err(status)
    }
}
