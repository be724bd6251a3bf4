//! The Maintenance service: alarms, status, hashes, snapshots, defragmentation, leader transfer, downgrades.

use std::sync::Arc;
use std::time::Instant;

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::downgrade_request::DowngradeAction;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    InternalRaftRequest, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use quorate_state::alarm::Alarm;
use quorate_state::apply::Response as Outcome;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use crate::calls::authorized::Authorized;
use crate::calls::status::status;
use crate::calls::status::unexpected;
use crate::snapshot_stream::{STREAM_BYTES, SnapshotStream};
use quorate_member::access::{AccessControl, Client};
use quorate_member::admission::Bound;
use quorate_member::versions::Downgrades;
use quorate_member::{
    Administrator, Handles, MemberInfo, Proposer, Reader, RequestError, StreamEnds,
};
use quorate_net::runtime::blocking;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// The Maintenance service.
#[derive(Debug)]
pub(crate) struct MaintenanceService {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    administrator: Arc<Administrator>,
    downgrades: Downgrades,
    streams: Arc<StreamEnds>,
}

impl MaintenanceService {
    pub(crate) fn new(handles: &Handles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            administrator: Arc::clone(&handles.administrator),
            downgrades: Downgrades::new(handles),
            streams: Arc::clone(&handles.streams),
        }
    }

    /// Waits until all applied entries are committed to the backend file. This may take a long time if the disk is
    /// full, so the client is authorized again afterwards.
    async fn commit_backend(&self, client: &Client) -> Result<(), RequestError> {
        self.administrator.commit_backend().await?;
        self.access_control.check_admin(&client.credentials)
    }
}

/// The methods of the service, which `guarded` calls.
impl MaintenanceService {
    pub(crate) async fn alarm(
        &self,
        request: Authorized<AlarmRequest>,
    ) -> Result<Response<AlarmResponse>, Status> {
        let (client, request) = request.into_parts();
        let checked = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.access_control.check_user(&client.credentials),
            Ok(AlarmAction::Activate | AlarmAction::Deactivate) | Err(_) => {
                self.access_control.check_admin(&client.credentials)
            }
        };
        checked.map_err(status)?;
        let request =
            InternalRaftRequest { alarm: Some(request), ..InternalRaftRequest::default() };
        match self
            .proposer
            .propose_for(&client, request, RequestKind::Alarm)
            .await
            .map_err(status)?
        {
            Outcome::Alarm(mut response) => {
                response.header = Some(self.reader.current_header());
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn status(
        &self,
        _: Authorized<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let (facts, member_status) = (self.info.facts(), self.info.member_status());
        let downgrade = facts.versions.downgrade();
        let stats = self.reader.backend().stats();
        let mut errors = Vec::new();
        if !self.info.has_leader() {
            errors.push(RequestError::NoLeader.to_string());
        }
        errors.extend(facts.alarms.of_kind(AlarmType::None as i32).map(alarm_text));
        let quota = self.info.limits().quota_configured;
        let target = downgrade.target_version.clone();
        Ok(Response::new(StatusResponse {
            header: Some(self.reader.current_header()),
            version: self.info.version_text(),
            db_size: to_signed(stats.size_bytes),
            leader: member_status.leader(),
            raft_index: member_status.committed().get(),
            raft_term: member_status.applied_term().get(),
            raft_applied_index: member_status.applied().get(),
            errors,
            db_size_in_use: to_signed(stats.in_use_bytes),
            is_learner: self.info.is_learner(),
            storage_version: member_status
                .storage_version()
                .map_or_else(String::new, |v| v.to_string()),
            db_size_quota: quota,
            downgrade_info: Some(DowngradeInfo {
                enabled: downgrade.enabled,
                target_version: if downgrade.enabled { target } else { String::new() },
            }),
        }))
    }

    pub(crate) async fn defragment(
        &self,
        _: Authorized<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        log::info!("starting defragment");
        let started = Instant::now();
        let defragmented = self.administrator.defragment().await.map_err(status)?;
        self.info.metrics().disk.backend_defrag.observe(started.elapsed());
        log::info!(
            "finished defragment",
            "took" = started.elapsed(),
            "size-before-bytes" = defragmented.bytes_before,
            "size-after-bytes" = defragmented.bytes_after
        );
        Ok(Response::new(DefragmentResponse { header: None }))
    }

    pub(crate) async fn hash(
        &self,
        request: Authorized<HashRequest>,
    ) -> Result<Response<HashResponse>, Status> {
        let (client, _) = request.into_parts();
        self.commit_backend(&client).await.map_err(status)?;
        let backend = self.reader.backend().clone();
        let started = Instant::now();
        let hash = blocking(move || backend.read().hash()).await;
        let hash = hash.map_err(|fault| self.reader.fault(fault)).map_err(status)?;
        self.info.metrics().mvcc.hash.observe(started.elapsed());
        Ok(Response::new(HashResponse { header: Some(self.reader.current_header()), hash }))
    }

    pub(crate) async fn hash_kv(
        &self,
        request: Authorized<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        let (client, HashKvRequest { revision }) = request.into_parts();
        self.administrator.wait_hashed(revision).await;
        self.access_control.check_admin(&client.credentials).map_err(status)?;
        let view = self.reader.view();
        let started = Instant::now();
        let current = view.current_revision();
        let hashed = blocking(move || view.hash_kv(revision)).await;
        let hashed = hashed.map_err(|error| self.reader.read_error(error)).map_err(status)?;
        self.info.metrics().mvcc.hash_revision.observe(started.elapsed());
        Ok(Response::new(HashKvResponse {
            header: Some(self.info.header(current)),
            hash: hashed.hash,
            compact_revision: hashed.compact_revision,
            hash_revision: hashed.hash_revision,
        }))
    }

    pub(crate) async fn snapshot(
        &self,
        request: Authorized<SnapshotRequest>,
    ) -> Result<Response<BoxStream<SnapshotResponse>>, Status> {
        let (client, _) = request.into_parts();
        let replies = &self.reader.admission().replies;
        let permit = Bound::take_owned(replies, STREAM_BYTES).map_err(RequestError::from);
        let permit = permit.map_err(status)?;
        self.commit_backend(&client).await.map_err(status)?;
        let storage_version = self.info.member_status().storage_version();
        let version = storage_version.map_or_else(String::new, |version| version.to_string());
        let metrics = Arc::clone(self.info.metrics());
        let stream = SnapshotStream::new(self.reader.backend(), metrics, version, permit);
        let end = self.streams.wait(false);
        Ok(Response::new(Box::pin(crate::calls::streams::until(stream, end))))
    }

    pub(crate) async fn move_leader(
        &self,
        request: Authorized<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        let (_, request) = request.into_parts();
        self.administrator.move_leader(request.target_id).await.map_err(status)?;
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    pub(crate) async fn downgrade(
        &self,
        request: Authorized<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        let (Client { credentials, .. }, request) = request.into_parts();
        let downgrades = &self.downgrades;
        let cluster = match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Validate) => {
                Some(downgrades.validate(&request.version).await.map_err(status)?)
            }
            Ok(DowngradeAction::Enable) => {
                Some(downgrades.enable(&credentials, &request.version).await.map_err(status)?)
            }
            Ok(DowngradeAction::Cancel) => downgrades.cancel(&credentials).await,
            Err(_) => return Err(status(RequestError::UnknownMethod)),
        };
        let version = cluster.map(|version| format!("{}.{}", version.major, version.minor));
        let header = Some(self.reader.current_header());
        Ok(Response::new(DowngradeResponse { header, version: version.unwrap_or_default() }))
    }
}

fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Formats an alarm as Go prints the protobuf message on one line.
fn alarm_text(alarm: Alarm) -> String {
    let kind = AlarmType::try_from(alarm.kind)
        .map_or_else(|_| alarm.kind.to_string(), |kind| kind.as_str_name().to_owned());
    match alarm.member.0 {
        0 => format!("alarm:{kind}"),
        member => format!("memberID:{member} alarm:{kind}"),
    }
}
