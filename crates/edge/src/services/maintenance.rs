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
use tokio_stream::StreamExt as _;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use crate::calls::authorized::Authorized;
use crate::calls::status::status;
use crate::calls::status::unexpected;
use quorate_requests::access::{AccessControl, Client};
use quorate_requests::admission::Bound;
use quorate_requests::{
    DataStore, RequestError, STREAM_BYTES, ServerHandles, ServerInfo, SnapshotStream, StreamEnds,
    Writer,
};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// The Maintenance service.
#[derive(Debug)]
pub(crate) struct MaintenanceService {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
    writer: Arc<Writer>,
    streams: Arc<StreamEnds>,
}

impl MaintenanceService {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            store: Arc::clone(&handles.store),
            writer: Arc::clone(&handles.writer),
            streams: Arc::clone(&handles.streams),
        }
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
        match self.writer.write_for(&client, request, RequestKind::Alarm).await.map_err(status)? {
            Outcome::Alarm(mut response) => {
                response.header = Some(self.info.header(self.store.current_revision()));
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn status(
        &self,
        _: Authorized<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let (facts, progress) = (self.info.facts(), self.info.status().progress());
        let downgrade = facts.versions.downgrade();
        let sizes = self.store.sizes();
        let mut errors = Vec::new();
        if !self.info.has_leader() {
            errors.push(RequestError::NoLeader.to_string());
        }
        errors.extend(facts.alarms.of_kind(AlarmType::None as i32).map(alarm_text));
        let quota = self.info.limits().quota_configured;
        let target = downgrade.target_version.clone();
        Ok(Response::new(StatusResponse {
            header: Some(self.info.header(self.store.current_revision())),
            version: self.info.version_text(),
            db_size: to_signed(sizes.total_bytes),
            leader: progress.leader,
            raft_index: progress.committed,
            raft_term: progress.term,
            raft_applied_index: progress.applied,
            errors,
            db_size_in_use: to_signed(sizes.in_use_bytes),
            is_learner: self.info.is_learner(),
            storage_version: self
                .info
                .status()
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
        let defragmented = self.store.defragment().await.map_err(status)?;
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
        let hash = self.store.hash(&client.credentials).await.map_err(status)?;
        Ok(Response::new(HashResponse {
            header: Some(self.info.header(self.store.current_revision())),
            hash,
        }))
    }

    pub(crate) async fn hash_kv(
        &self,
        request: Authorized<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        let (client, HashKvRequest { revision }) = request.into_parts();
        let hashed = self.store.hash_kv(&client.credentials, revision).await;
        let (current, hashed) = hashed.map_err(status)?;
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
        let replies = &self.info.admission().replies;
        let permit = Bound::take_owned(replies, STREAM_BYTES).map_err(RequestError::from);
        let permit = permit.map_err(status)?;
        let image = self.store.snapshot(&client.credentials).await.map_err(status)?;
        let stream = SnapshotStream::new(image, Arc::clone(self.info.metrics()), permit);
        let stream = stream.map(|part| part.map_err(status));
        let end = self.streams.wait(false);
        Ok(Response::new(Box::pin(crate::calls::streams::until(stream, end))))
    }

    pub(crate) async fn move_leader(
        &self,
        request: Authorized<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        let (_, request) = request.into_parts();
        self.store.move_leader(request.target_id).await.map_err(status)?;
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    pub(crate) async fn downgrade(
        &self,
        request: Authorized<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        let (Client { credentials, .. }, request) = request.into_parts();
        let store = &self.store;
        let cluster = match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Validate) => {
                Some(store.validate_downgrade(&request.version).await.map_err(status)?)
            }
            Ok(DowngradeAction::Enable) => {
                Some(store.enable_downgrade(&credentials, &request.version).await.map_err(status)?)
            }
            Ok(DowngradeAction::Cancel) => store.cancel_downgrade(&credentials).await,
            Err(_) => return Err(status(RequestError::UnknownMethod)),
        };
        let version = cluster.map(|version| format!("{}.{}", version.major, version.minor));
        let header = Some(self.info.header(self.store.current_revision()));
        Ok(Response::new(DowngradeResponse { header, version: version.unwrap_or_default() }))
    }
}

fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Formats an alarm in Go's one-line text format for protobuf messages.
fn alarm_text(alarm: Alarm) -> String {
    let kind = AlarmType::try_from(alarm.kind)
        .map_or_else(|_| alarm.kind.to_string(), |kind| kind.as_str_name().to_owned());
    match alarm.member.0 {
        0 => format!("alarm:{kind}"),
        member => format!("memberID:{member} alarm:{kind}"),
    }
}
