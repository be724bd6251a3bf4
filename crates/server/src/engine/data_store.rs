//! The engine as the data store of the services: implements the interface of `requests::data_store` with an [`Engine`].
//!
//! # Not here
//!
//! The execution of requests (the crate `engine`), and the transport between servers (`forward`).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{
    AlarmMember, InternalRaftRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    RequestHeader, TxnRequest, TxnResponse,
};
use quorate_core::request::{QuotaHeadroom, no_space_alarm};
use quorate_engine::{Engine, EngineError};
use quorate_member::RequestIds;
use quorate_requests::access::{AccessControl, Credentials};
use quorate_requests::admission::OwnedPermit;
use quorate_requests::{
    ConsensusStatus, DataStore, Defragmented, HashPermit, HashPermits, Image, Listed, Progress,
    RequestError, ServerInfo, Sizes, Status, StoreFuture, StoreResult, Write, WriteFuture,
};
use quorate_state::alarm::Cause;
use quorate_state::apply::{Refusal, Response};
use quorate_state::members::Member;
use quorate_state::mvcc::{HashKv, RangeQuery, RangeResult};
use quorate_state::units::{LeaseId, Millis};
use quorate_state::versions::Version;
use quorate_state::watch::{HistoryFault, Hub};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use tokio::sync::{oneshot, watch};
use tokio::time::error::Elapsed;

use super::row_permit::{RowBounds, RowPermit};

/// Reports the progress of the engine to the services.
#[derive(Clone, Debug)]
pub(super) struct EngineProgress(pub(super) Engine);

/// The engine, which executes the requests of the services.
#[derive(Debug)]
pub(super) struct EngineStore {
    pub(super) engine: Engine,
    pub(super) info: Arc<ServerInfo>,
    pub(super) access_control: Arc<AccessControl>,
    pub(super) ids: RequestIds,
    pub(super) hashes: HashPermits,
    pub(super) rows: RowBounds,
    /// Whether the health service reports this server as serving. The value never changes.
    pub(super) serving: watch::Sender<bool>,
}

impl Status for EngineProgress {
    fn progress(&self) -> Progress {
        let status = self.0.status();
        Progress {
            term: status.epoch,
            committed: status.index,
            applied: status.index,
            leader: status.sequencer_id,
        }
    }

    fn term(&self) -> u64 {
        self.0.status().epoch
    }

    fn has_leader(&self) -> bool {
        self.0.status().sequencer_id != 0
    }

    fn now(&self) -> Millis {
        self.0.now()
    }

    fn storage_version(&self) -> Option<Version> {
        self.0.published().facts().versions.cluster()
    }

    /// Returns the sequencer as the leader. There are no votes, and no other server has a log.
    fn consensus(&self) -> ConsensusStatus {
        let status = self.0.status();
        let leads = status.sequencer_id == self.0.server_id();
        ConsensusStatus {
            term: status.epoch,
            vote: 0,
            committed: status.index,
            applied: status.index,
            leader: status.sequencer_id,
            role: if leads { "StateLeader" } else { "StateFollower" }.to_owned(),
            progress: Vec::new(),
            transferee: 0,
        }
    }

    fn wait_applied(&self, index: u64, deadline: Instant) -> StoreFuture<'_, bool> {
        StoreFuture::pending(async move {
            let applied = self.0.wait_applied(index);
            tokio::time::timeout_at(deadline.into(), applied).await.is_ok()
        })
    }

    fn wait_for_leader(&self, timeout: Duration) -> StoreFuture<'_, bool> {
        StoreFuture::pending(async move {
            tokio::time::timeout(timeout, self.0.wait_sequencer()).await.is_ok()
        })
    }
}

impl EngineStore {
    /// Waits for an operation of the engine, but at most for the request timeout.
    async fn within<T>(
        &self,
        operation: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, RequestError> {
        match tokio::time::timeout(self.info.limits().request_timeout, operation).await {
            Ok(result) => result.map_err(request_error),
            Err(_) => Err(RequestError::Timeout),
        }
    }

    /// Executes a range request with a permit that grows with the rows.
    async fn list(&self, query: &RangeQuery) -> Result<Listed<RangeResult>, RequestError> {
        let mut rows = RowPermit::new(&self.rows, self.info.limits().request_timeout);
        loop {
            let deadline = rows.deadline();
            let mut reserve = |bytes| rows.set(bytes);
            let read = self.engine.range(query, &mut reserve);
            let read = tokio::time::timeout_at(deadline, read).await;
            if let Some(result) = settle(read, &mut rows).await? {
                return Ok(Listed { result, permit: rows.finish() });
            }
        }
    }

    /// Executes a read-only transaction with a permit that grows with the rows of all its ranges.
    async fn list_txn(&self, request: &TxnRequest) -> Result<Listed<TxnResponse>, RequestError> {
        let mut rows = RowPermit::new(&self.rows, self.info.limits().request_timeout);
        loop {
            let deadline = rows.deadline();
            let mut reserve = |bytes| rows.set(bytes);
            let read = self.engine.read_txn(request, &mut reserve);
            let read = tokio::time::timeout_at(deadline, read).await;
            if let Some(result) = settle(read, &mut rows).await? {
                return Ok(Listed { result, permit: rows.finish() });
            }
        }
    }

    async fn write_measured(
        &self,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        let metrics = &self.info.metrics().server;
        let alarm_action = request.alarm.as_ref().map(|alarm| alarm.action());
        let started = Instant::now();
        metrics.proposals_pending.inc();
        let outcome = self.within(self.engine.propose(request)).await;
        metrics.proposals_pending.dec();
        metrics.request_duration.observe(kind, outcome.is_ok(), started.elapsed());
        if outcome.is_err() {
            metrics.proposals_failed.inc();
        }
        let response = outcome?.map_err(RequestError::Refused)?;
        if let (Response::Alarm(changed), Some(action)) = (&response, alarm_action) {
            self.count_alarms(&changed.alarms, action);
        }
        Ok(response)
    }

    /// Updates the metric of active alarms. As in etcd, the metric counts the activation of an alarm even if the alarm
    /// is already active.
    fn count_alarms(&self, alarms: &[AlarmMember], action: AlarmAction) {
        let step = match action {
            AlarmAction::Activate => 1,
            AlarmAction::Deactivate => -1,
            AlarmAction::Get => return,
        };
        for alarm in alarms {
            let (kind, server) = (alarm.alarm().as_str_name(), format!("{:x}", alarm.member_id));
            self.info.metrics().server.alarms.with(&[kind, &server]).add(step);
        }
    }

    /// Waits for a permit to read the whole keyspace on behalf of an administrator. The client's role is checked before
    /// the wait and again after it, because the client may lose its role during the wait.
    async fn hash_permit(&self, client: &Credentials) -> Result<HashPermit, RequestError> {
        self.access_control.check_admin(client)?;
        let permit = self.hashes.take(self.info.limits().request_timeout).await?;
        self.access_control.check_admin(client)?;
        Ok(permit)
    }

    /// Refuses an administrator's request that is not supported with the engine. A client that is not an administrator
    /// receives the error of the permission check instead.
    fn refuse<T>(&self, client: &Credentials, what: &'static str) -> StoreResult<'_, T> {
        let refused = self.access_control.check_admin(client);
        StoreFuture::ready(Err(refused.err().unwrap_or(RequestError::NotWithEngine(what))))
    }
}

/// Returns the result of a read. If there was no room for its rows, waits until there is more room, and returns `None`.
/// Then the read must be repeated.
async fn settle<T>(
    read: Result<Result<Result<T, Refusal>, EngineError>, Elapsed>,
    rows: &mut RowPermit<'_>,
) -> Result<Option<T>, RequestError> {
    match read {
        Ok(Err(EngineError::NoRoom)) => {
            rows.wait_for_room().await?;
            Ok(None)
        }
        Ok(answer) => Ok(Some(answer.map_err(request_error)?.map_err(RequestError::Refused)?)),
        Err(_) => Err(RequestError::Timeout),
    }
}

/// Executes an operation that reads the whole keyspace on a blocking thread, because such an operation also needs CPU
/// time. The argument of `operation` is ready once the caller has dropped this future. The permit is returned when the
/// operation has ended, which may be later.
async fn with_permit<T: Send + 'static, F: Future<Output = Result<T, EngineError>>>(
    permit: HashPermit,
    operation: impl FnOnce(CallerGone) -> F + Send + 'static,
) -> Result<T, RequestError> {
    let runtime = tokio::runtime::Handle::current();
    let (_caller, gone) = oneshot::channel();
    let gone = CallerGone(gone);
    permit.compute(move || runtime.block_on(operation(gone))).await.map_err(request_error)
}

/// Is ready once the sender has been dropped.
struct CallerGone(oneshot::Receiver<Infallible>);

impl Future for CallerGone {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx).map(drop)
    }
}

/// Converts an engine error into the error that the client receives.
fn request_error(error: EngineError) -> RequestError {
    match error {
        EngineError::NoSequencer => RequestError::NoLeader,
        EngineError::SequencerChanged => RequestError::LeaderChanged,
        EngineError::OutcomeUnknown => RequestError::TimeoutDueToLeaderFailure,
        EngineError::TooManyRequests | EngineError::NoRoom => RequestError::TooManyRequests,
        error @ (EngineError::TooLarge { .. } | EngineError::KeyTooLong { .. }) => {
            RequestError::EngineLimit(error.to_string().into())
        }
        EngineError::Stopped => RequestError::Stopped,
        EngineError::Database(fault) => RequestError::Database(fault.to_string().into()),
        EngineError::DatabaseOfSequencer(text) => RequestError::Database(text.into()),
        error @ (EngineError::Malformed(_)
        | EngineError::Content(_)
        | EngineError::Failed(_)
        | EngineError::Cancelled
        | EngineError::Thread(_)
        | EngineError::Random(_)) => RequestError::Fault(error.to_string().into()),
    }
}

/// Describes membership changes in the message of a refusal.
const MEMBERSHIP: &str =
    "changing members (a server is a member while it runs on the same database)";
const DOWNGRADE: &str = "a downgrade of the cluster version";

impl DataStore for EngineStore {
    fn read_barrier(&self) -> StoreResult<'_, ()> {
        let Ok(permit) = self.info.admission().reads.take(1) else {
            return StoreFuture::ready(Err(RequestError::TooManyRequests));
        };
        StoreFuture::pending(async move {
            let _permit = permit;
            self.within(self.engine.barrier()).await.inspect_err(|_| {
                self.info.metrics().server.read_indexes_failed.inc();
            })
        })
    }

    fn current_revision(&self) -> i64 {
        self.engine.status().revision
    }

    fn range(&self, query: &RangeQuery) -> StoreResult<'_, Listed<RangeResult>> {
        let query = query.clone();
        StoreFuture::pending(async move {
            self.info.metrics().mvcc.range.inc();
            let started = Instant::now();
            let result = self.list(&query).await;
            let success = if result.is_ok() { "true" } else { "false" };
            self.info.metrics().server.range_duration.with(&[success]).observe(started.elapsed());
            result
        })
    }

    fn check_alive(&self) -> StoreResult<'_, ()> {
        StoreFuture::pending(async move {
            // Reading the status takes the locks that every request needs, so this check blocks if requests block.
            let _status = self.engine.status();
            Ok(())
        })
    }

    fn read_txn(&self, request: &Arc<TxnRequest>) -> StoreResult<'_, Listed<TxnResponse>> {
        let request = Arc::clone(request);
        StoreFuture::pending(async move {
            let metrics = &self.info.metrics().mvcc;
            metrics.txn.inc();
            let listed = self.list_txn(&request).await?;
            metrics.range.add(listed.result.responses.len() as u64);
            Ok(listed)
        })
    }

    /// Returns no permit: the database executes the reads of a transaction, and does so while other writes continue.
    fn reserve_lists(&self, _: &TxnRequest) -> StoreResult<'_, Option<OwnedPermit>> {
        StoreFuture::ready(Ok(None))
    }

    fn hub(&self) -> &Hub {
        &self.engine.published().hub
    }

    fn report_history_fault(&self, fault: HistoryFault) {
        log::warn!("cannot read history for a watch stream", "error" = fault.to_string());
    }

    fn check_load(&self, _: RequestKind) -> Result<(), RequestError> {
        // The engine itself refuses a write if too many writes wait for the sequencer.
        Ok(())
    }

    fn has_room(&self, cost: u64) -> bool {
        let status = self.engine.status();
        if status.sequencer_id != self.engine.server_id() {
            // The size known to this server may be half a second old, so the check is left to the sequencer, which
            // receives the forwarded write.
            return true;
        }
        let quota = self.engine.published().quota;
        let headroom = QuotaHeadroom { quota, headroom_bytes: self.info.limits().quota_headroom };
        headroom.allows(status.stored_bytes, cost)
    }

    fn raise_no_space(&self) -> StoreFuture<'_, ()> {
        StoreFuture::pending(async move {
            if self.info.facts().alarms.is_out_of_space() {
                return;
            }
            log::warn!(
                "the data in the database exceeds the quota",
                "stored-bytes" = self.engine.status().stored_bytes,
                "quota-bytes" = self.engine.published().quota.bytes_max()
            );
            let (username, auth_revision) = self.access_control.user_for_own_write();
            let header = RequestHeader { id: 0, username, auth_revision };
            let alarm = no_space_alarm(self.info.id(), AlarmAction::Activate, Cause::Other);
            let request = InternalRaftRequest { header: Some(header), ..alarm };
            // The write is refused even if raising the alarm fails.
            drop(self.write_measured(request, RequestKind::Alarm).await);
        })
    }

    fn check_write(&self, _: &Write<'_>) -> StoreResult<'_, ()> {
        StoreFuture::ready(Ok(()))
    }

    fn write<'a>(
        &'a self,
        Write { request, kind, user: (username, auth_revision), trace: _ }: Write<'a>,
        kept: Option<&mut Bytes>,
    ) -> WriteFuture<'a, Result<Response, RequestError>> {
        let header = RequestHeader { id: self.ids.next(), username, auth_revision };
        let request = InternalRaftRequest { header: Some(header), ..request };
        if request.encoded_len() > self.info.limits().request_bytes_max {
            return WriteFuture::from(std::future::ready(Err(RequestError::TooLarge)));
        }
        if let Some(kept) = kept {
            *kept = request.encode_to_vec().into();
        }
        WriteFuture::from_or_box(self.write_measured(request, kind))
    }

    fn next_lease_id(&self) -> i64 {
        self.ids.next_lease()
    }

    fn compaction_point(&self, revision: i64) -> i64 {
        revision
    }

    fn wait_compacted(&self) -> StoreResult<'_, ()> {
        // As on a member, only the client's deadline limits the wait.
        StoreFuture::pending(
            async move { self.engine.wait_compacted().await.map_err(request_error) },
        )
    }

    fn renew_lease<'a>(
        &'a self,
        client: &'a Credentials,
        id: LeaseId,
    ) -> StoreResult<'a, Option<i64>> {
        StoreFuture::pending(async move {
            self.access_control.check_renewal(client, id).await?;
            let user = self.access_control.user_for_write(client)?;
            let renewed = self.within(self.engine.renew(id, user)).await?;
            let renewed = renewed.map_err(RequestError::Refused)?;
            if renewed.is_some() {
                self.info.metrics().lease.renewed.inc();
            }
            Ok(renewed)
        })
    }

    fn time_to_live<'a>(
        &'a self,
        request: &'a LeaseTimeToLiveRequest,
    ) -> StoreResult<'a, Option<LeaseTimeToLiveResponse>> {
        StoreFuture::pending(async move {
            let id = LeaseId(request.id);
            let Some(times) = self.within(self.engine.time_to_live(id)).await? else {
                return Ok(None);
            };
            if request.keys {
                // The sequencer's reply may reflect changes that this server has not applied yet.
                self.within(self.engine.barrier()).await?;
            }
            let keys = request.keys.then(|| self.engine.published().leases.keys(id)).flatten();
            Ok(Some(LeaseTimeToLiveResponse {
                header: None,
                id: request.id,
                ttl: times.remaining_secs,
                granted_ttl: times.granted_secs,
                keys: keys.into_iter().flatten().map(|key| Bytes::copy_from_slice(&key)).collect(),
            }))
        })
    }

    fn lease_ids(&self) -> Vec<LeaseId> {
        self.engine.leases()
    }

    fn sizes(&self) -> Sizes {
        let bytes = self.engine.status().stored_bytes;
        Sizes { total_bytes: bytes, in_use_bytes: bytes }
    }

    fn hash<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, u32> {
        StoreFuture::pending(async move {
            let (_, HashKv { hash, .. }) = self.hash_kv(client, 0).await?;
            // The hash includes the number of applied requests. Therefore, it also reflects changes to users, roles,
            // leases and alarms, because every such change is a request.
            let index = self.engine.status().index;
            let [a, b, c, d, e, f, g, h] = index.to_be_bytes();
            Ok(hash ^ u32::from_be_bytes([a, b, c, d]) ^ u32::from_be_bytes([e, f, g, h]))
        })
    }

    fn hash_kv<'a>(
        &'a self,
        client: &'a Credentials,
        revision: i64,
    ) -> StoreResult<'a, (i64, HashKv)> {
        StoreFuture::pending(async move {
            let permit = self.hash_permit(client).await?;
            let started = Instant::now();
            let current = self.current_revision();
            let engine = self.engine.clone();
            let hash = move |gone| async move { engine.hash_kv(revision, gone).await };
            let hashed = with_permit(permit, hash).await?;
            let hashed = hashed.map_err(RequestError::Refused)?;
            self.info.metrics().mvcc.hash_revision.observe(started.elapsed());
            Ok((current, hashed))
        })
    }

    fn snapshot<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, Image> {
        StoreFuture::pending(async move {
            let permit = self.hash_permit(client).await?;
            let engine = self.engine.clone();
            let parent = std::env::temp_dir();
            let write = move |gone| async move { engine.snapshot(&parent, gone).await };
            let file = with_permit(permit, write).await?;
            // Writing the file can take a long time, so the client's permission is checked again.
            self.access_control.check_admin(client)?;
            let version = self.info.status().storage_version();
            Ok(Image { file: file.db().read(), version })
        })
    }

    fn defragment(&self) -> StoreResult<'_, Defragmented> {
        // The database reclaims space automatically, so there is nothing to do.
        let bytes = self.engine.status().stored_bytes;
        StoreFuture::ready(Ok(Defragmented { bytes_before: bytes, bytes_after: bytes }))
    }

    fn serving(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    fn move_leader(&self, _: u64) -> StoreResult<'_, ()> {
        StoreFuture::ready(Err(RequestError::NotWithEngine("moving the leader")))
    }

    fn validate_downgrade<'a>(&'a self, _: &'a str) -> StoreResult<'a, Version> {
        StoreFuture::ready(Err(RequestError::NotWithEngine(DOWNGRADE)))
    }

    fn enable_downgrade<'a>(
        &'a self,
        client: &'a Credentials,
        _: &'a str,
    ) -> StoreResult<'a, Version> {
        self.refuse(client, DOWNGRADE)
    }

    fn cancel_downgrade<'a>(&'a self, _: &'a Credentials) -> StoreFuture<'a, Option<Version>> {
        // There is never a downgrade in progress. As in etcd, the failure is only logged.
        let error = RequestError::NoDowngradeInProgress.to_string();
        log::warn!("failed to cancel downgrade", "error" = error);
        StoreFuture::ready(self.info.facts().versions.cluster())
    }

    fn add_member<'a>(
        &'a self,
        client: &'a Credentials,
        _: &'a [String],
        _: bool,
    ) -> StoreResult<'a, (Member, Vec<Member>)> {
        self.refuse(client, MEMBERSHIP)
    }

    fn remove_member<'a>(
        &'a self,
        client: &'a Credentials,
        _: u64,
    ) -> StoreResult<'a, Vec<Member>> {
        self.refuse(client, MEMBERSHIP)
    }

    fn update_member<'a>(
        &'a self,
        client: &'a Credentials,
        _: u64,
        _: &'a [String],
    ) -> StoreResult<'a, Vec<Member>> {
        self.refuse(client, MEMBERSHIP)
    }

    fn promote_member<'a>(
        &'a self,
        client: &'a Credentials,
        _: u64,
        _: Option<&'a str>,
    ) -> StoreResult<'a, Vec<Member>> {
        self.refuse(client, MEMBERSHIP)
    }
}
