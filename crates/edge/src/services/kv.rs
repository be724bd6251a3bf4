//! The KV service: reads at a revision, and writes, which all replicas execute in the same order.

use std::sync::Arc;

use quorate_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    RequestOp, ResponseHeader, TxnRequest, TxnResponse, request_op,
};
use quorate_state::apply::Response as Outcome;
use quorate_state::mvcc::{RangeQuery, SortOrder, SortTarget};
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::range_stream::{ChunkedRange, Chunks};
use crate::calls::authorized::Authorized;
use crate::calls::large_reply::{Large, Reply, StreamPermits};
use crate::calls::request_scope::RequestScope;
use crate::calls::spans::{self, RangeStream, ReadTxn};
use crate::calls::status::status;
use crate::calls::status::unexpected;
use quorate_requests::access::{AccessControl, Client};
use quorate_requests::admission::{Bound, OwnedPermit};
use quorate_requests::{
    Ask, DataStore, Listed, Ready, RequestError, ServerHandles, ServerInfo, StreamEnds, Writer,
};
use quorate_telemetry::metrics::RequestKind;

/// The KV service.
#[derive(Debug)]
pub(crate) struct Kv {
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    store: Arc<dyn DataStore>,
    writer: Arc<Writer>,
    streams: Arc<StreamEnds>,
}

impl Kv {
    pub(crate) fn new(handles: &ServerHandles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            store: Arc::clone(&handles.store),
            writer: Arc::clone(&handles.writer),
            streams: Arc::clone(&handles.streams),
        }
    }

    fn scope<'a>(&'a self, client: &'a Client) -> RequestScope<'a> {
        RequestScope::of_call(&self.info, client)
    }

    fn scope_within<'a>(&'a self, client: &'a Client) -> RequestScope<'a> {
        RequestScope::within_call(&self.info, client)
    }

    /// Answers a range request on behalf of another service.
    pub(crate) async fn range_for(
        &self,
        client: &Client,
        request: &RangeRequest,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        self.answer_range(self.scope_within(client), request).await
    }

    /// Deletes keys on behalf of another service.
    pub(crate) async fn delete_for(
        &self,
        client: &Client,
        delete: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        self.writer.prepare(client, Ask::DeleteRange(&delete)).await.map_err(status)?;
        self.write_deletion(&mut self.scope_within(client), delete).await
    }

    /// Executes a transaction that may write, on behalf of another service.
    pub(crate) async fn write_txn_for(
        &self,
        client: &Client,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        self.writer.prepare(client, Ask::Txn(&txn)).await.map_err(status)?;
        self.write_txn(&mut self.scope_within(client), txn).await
    }

    async fn answer_range(
        &self,
        mut scope: RequestScope<'_>,
        request: &RangeRequest,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        let result = self.check_and_read_range(&mut scope, request).await;
        scope.end_read(request, &result);
        result
    }

    async fn check_and_read_range(
        &self,
        scope: &mut RequestScope<'_>,
        request: &RangeRequest,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        if !request.serializable && self.info.is_learner() {
            return Err(RequestError::NotSupportedForLearner);
        }
        let ready = self.writer.prepare(scope.client(), Ask::Range(request)).await?;
        scope.begin_read(request);
        self.read_range(scope, request, ready).await
    }

    async fn write_put(
        &self,
        scope: &mut RequestScope<'_>,
        put: PutRequest,
    ) -> Result<PutResponse, Status> {
        self.writer.prepare(scope.client(), Ask::Put(&put)).await.map_err(status)?;
        scope.begin(&put);
        let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
        match self.write(scope, request, RequestKind::Put).await? {
            Outcome::Put(mut response) => {
                response.header = self.info.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Executes a deletion that has passed its checks.
    async fn write_deletion(
        &self,
        scope: &mut RequestScope<'_>,
        delete: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        scope.begin(&delete);
        let request = InternalRaftRequest {
            delete_range: Some(Box::new(delete)),
            ..InternalRaftRequest::default()
        };
        match self.write(scope, request, RequestKind::DeleteRange).await? {
            Outcome::DeleteRange(mut response) => {
                response.header = self.info.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Executes a transaction that has passed its checks and may write.
    async fn write_txn(
        &self,
        scope: &mut RequestScope<'_>,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        scope.begin(&txn);
        let request = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
        match self.write(scope, request, RequestKind::Txn).await? {
            Outcome::Txn(mut response) => {
                response.header = self.info.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for the permit for the lists in the response to a write. Refuses the write if it reads too many keys.
    ///
    /// Both depend on the number of keys in the ranges, which is a secret. Therefore, the permissions for a write that
    /// reads ranges are checked first.
    async fn reserve_lists(
        &self,
        client: &Client,
        txn: &TxnRequest,
    ) -> Result<Option<OwnedPermit>, RequestError> {
        if reads_range(txn) {
            self.writer.check_permission(client, |may| may.check_txn(txn)).await?;
        }
        self.store.reserve_lists(txn).await
    }

    /// Executes a write and waits for its outcome.
    async fn write(
        &self,
        scope: &mut RequestScope<'_>,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Outcome, Status> {
        let (client, entry) = (scope.client(), scope.entry());
        self.writer.write_and_keep(client, request, kind, entry).await.map_err(status)
    }

    /// Answers a range that has passed its checks. If the limit on replies is reached, the records are dropped and read
    /// again once there is space for them.
    async fn read_range(
        &self,
        scope: &mut RequestScope<'_>,
        request: &RangeRequest,
        ready: Ready,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        self.await_barrier(ready, scope).await?;
        let query = RangeQuery::from_request(request);
        let credentials = &scope.client().credentials;
        let pass =
            self.access_control.pass_to_read(credentials, |may| may.check_range(request)).await?;
        let replies = &self.info.admission().replies;
        let reply = match self.gather_range(&query).await?.admit(replies) {
            Ok(reply) => reply,
            Err(bytes) => {
                let permit = self.wait_for_permit(bytes).await?;
                self.gather_range(&query).await?.admit_to(permit)
            }
        };
        self.access_control.confirm(pass).await?;
        Ok(reply)
    }

    /// Waits for the read barrier if the read is linearizable.
    async fn await_barrier(
        &self,
        ready: Ready,
        scope: &mut RequestScope<'_>,
    ) -> Result<(), RequestError> {
        if ready == (Ready::Read { needs_barrier: true }) {
            self.store.read_barrier().await?;
            scope.note_barrier();
        }
        Ok(())
    }

    async fn gather_range(&self, query: &RangeQuery) -> Result<Reply<RangeResponse>, RequestError> {
        let Listed { result, permit } = self.store.range(query).await?;
        let response = RangeResponse {
            header: Some(self.info.header(result.revision)),
            kvs: result.kvs,
            more: result.more,
            count: result.count,
        };
        Ok(Reply::new(response, permit))
    }

    /// Answers a read-only transaction that has passed its checks.
    async fn answer_txn(
        &self,
        mut scope: RequestScope<'_>,
        request: TxnRequest,
        ready: Ready,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        let request = ReadTxn(Arc::new(request));
        scope.begin_read(&request);
        let result = self.read_txn(&mut scope, &request.0, ready).await;
        scope.end_read(&request, &result);
        result
    }

    async fn read_txn(
        &self,
        scope: &mut RequestScope<'_>,
        request: &Arc<TxnRequest>,
        ready: Ready,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        self.await_barrier(ready, scope).await?;
        let credentials = &scope.client().credentials;
        let pass =
            self.access_control.pass_to_read(credentials, |may| may.check_txn(request)).await?;
        let replies = &self.info.admission().replies;
        let reply = match self.gather_txn(request).await?.admit(replies) {
            Ok(reply) => reply,
            Err(bytes) => {
                let permit = self.wait_for_permit(bytes).await?;
                self.gather_txn(request).await?.admit_to(permit)
            }
        };
        self.access_control.confirm(pass).await?;
        Ok(reply)
    }

    async fn gather_txn(
        &self,
        request: &Arc<TxnRequest>,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        let Listed { result: mut response, permit } = self.store.read_txn(request).await?;
        response.header = self.info.complete(response.header);
        Ok(Reply::new(response, permit))
    }

    /// Returns the reply to an executed request, even if the reply exceeds the limit on replies. `list` is the permit
    /// for the memory of its records.
    fn reply_regardless<M: Large>(
        &self,
        response: M,
        list: Option<OwnedPermit>,
    ) -> Result<Response<M>, Status> {
        Reply::new(response, list).admit_regardless(&self.info.admission().replies).into_response()
    }

    async fn wait_for_permit(&self, bytes: u64) -> Result<OwnedPermit, RequestError> {
        let timeout = self.info.limits().request_timeout;
        Ok(Bound::take_within(&self.info.admission().replies, bytes, timeout).await?)
    }
}

/// Returns whether a transaction may read a range, rather than only single keys.
fn reads_range(txn: &TxnRequest) -> bool {
    let is_read = |operation: &RequestOp| match &operation.request {
        Some(request_op::Request::RequestRange(range)) => !range.range_end.is_empty(),
        Some(request_op::Request::RequestDeleteRange(delete)) => {
            delete.prev_kv && !delete.range_end.is_empty()
        }
        // The decoder recursed at least as deeply when it decoded the message, so the stack is large enough.
        Some(request_op::Request::RequestTxn(nested)) => reads_range(nested),
        Some(request_op::Request::RequestPut(_)) | None => false,
    };
    txn.compare.iter().any(|compare| !compare.range_end.is_empty())
        || txn.success.iter().chain(&txn.failure).any(is_read)
}

/// The methods of the service, which `guarded` calls.
impl Kv {
    pub(crate) async fn range(
        &self,
        request: Authorized<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let (client, request) = request.into_parts();
        let reply = self.answer_range(self.scope(&client), &request).await;
        reply.map_err(status)?.into_response()
    }

    pub(crate) async fn range_stream(
        &self,
        request: Authorized<RangeRequest>,
    ) -> Result<Response<BoxStream<RangeStreamResponse>>, Status> {
        let (client, request) = request.into_parts();
        let ready = self.writer.prepare(&client, Ask::Range(&request)).await.map_err(status)?;
        let query = RangeQuery::from_request(&request);
        let in_key_order = query.sort_order == SortOrder::None
            || (query.sort_order == SortOrder::Ascend && query.sort_target == SortTarget::Key);
        if !in_key_order {
            return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
        }
        let is_filtered = query.min_mod_revision != 0
            || query.max_mod_revision != 0
            || query.min_create_revision != 0
            || query.max_create_revision != 0;
        if is_filtered {
            return Err(Status::unimplemented("RangeStream does not support revision filters"));
        }
        let mut scope = self.scope(&client);
        scope.begin(&RangeStream(&request));
        self.await_barrier(ready, &mut scope).await.map_err(status)?;
        let operation = scope.into_operation();
        let pass = self
            .access_control
            .pass_to_read(&client.credentials, |may| may.check_range(&request))
            .await;
        let pass = pass.map_err(status)?;
        let end = self.streams.wait(false);
        let permits = StreamPermits::new(&self.info.admission().replies);
        let mut chunks = Chunks {
            range: ChunkedRange::new(query, self.info.limits().request_bytes_max),
            info: Arc::clone(&self.info),
            store: Arc::clone(&self.store),
            access_control: Arc::clone(&self.access_control),
            pass,
            permits: permits.clone(),
        };
        // The first chunk is read now, so that an error while reading it becomes the error of the call.
        let first = chunks.next().await.transpose()?;
        let chunks = crate::calls::streams::until(chunks.after(first, operation), end);
        let mut response: Response<BoxStream<_>> = Response::new(Box::pin(chunks));
        response.extensions_mut().insert(permits);
        Ok(response)
    }

    pub(crate) async fn put(
        &self,
        request: Authorized<PutRequest>,
    ) -> Result<Response<PutResponse>, Status> {
        let (client, put) = request.into_parts();
        let mut scope = self.scope(&client);
        let result = self.write_put(&mut scope, put).await;
        scope.end_write(&result);
        let response = result?;
        // The previous record may be large.
        if response.prev_kv.is_some() {
            return self.reply_regardless(response, None);
        }
        Ok(Response::new(response))
    }

    pub(crate) async fn delete_range(
        &self,
        request: Authorized<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (client, delete) = request.into_parts();
        let mut scope = self.scope(&client);
        self.writer.prepare(&client, Ask::DeleteRange(&delete)).await.map_err(status)?;
        let lists_records = delete.prev_kv && !delete.range_end.is_empty();
        let list = if lists_records {
            let request = Some(request_op::Request::RequestDeleteRange(delete.clone()));
            let txn = TxnRequest { success: vec![RequestOp { request }], ..TxnRequest::default() };
            self.reserve_lists(&client, &txn).await.map_err(status)?
        } else {
            None
        };
        let result = self.write_deletion(&mut scope, delete).await;
        scope.end_write(&result);
        self.reply_regardless(result?, list)
    }

    pub(crate) async fn txn(
        &self,
        request: Authorized<TxnRequest>,
    ) -> Result<Response<TxnResponse>, Status> {
        let (client, txn) = request.into_parts();
        let mut scope = self.scope(&client);
        let ready = self.writer.prepare(&client, Ask::Txn(&txn)).await.map_err(status)?;
        if ready != Ready::Propose {
            let reply = self.answer_txn(scope, txn, ready).await;
            return reply.map_err(status)?.into_response();
        }
        let list = self.reserve_lists(&client, &txn).await.map_err(status)?;
        let result = self.write_txn(&mut scope, txn).await;
        scope.end_write(&result);
        self.reply_regardless(result?, list)
    }

    pub(crate) async fn compact(
        &self,
        request: Authorized<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let (client, mut compaction) = request.into_parts();
        let _operation = spans::begin(&client, &compaction);
        compaction.revision = self.store.compaction_point(compaction.revision);
        let is_physical = compaction.physical;
        let request =
            InternalRaftRequest { compaction: Some(compaction), ..InternalRaftRequest::default() };
        let outcome = self.writer.write_for(&client, request, RequestKind::Compaction).await;
        if is_physical {
            // The wait is also necessary if the revision was already compacted, because a request for a physical
            // compaction must not return before the history is deleted.
            self.store.wait_compacted().await.map_err(status)?;
        }
        match outcome.map_err(status)? {
            Outcome::Compaction(response) => {
                let revision = response.header.map_or(0, |header: ResponseHeader| header.revision);
                let header = Some(self.info.header(revision));
                Ok(Response::new(CompactionResponse { header }))
            }
            other => Err(unexpected(&other)),
        }
    }
}
