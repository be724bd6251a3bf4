//! The KV service: reads from the newest view, writes through the log.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::response_op::Response as OpResponse;
use quorate_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    ResponseHeader, TxnRequest, TxnResponse,
};
use quorate_state::apply::Response as Outcome;
use quorate_state::mvcc::{RangeQuery, SortOrder, SortTarget};
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::range_stream::ChunkedRange;
use crate::calls::authorized::Authorized;
use crate::calls::large_reply::{COUNTED_BYTES_MIN, Large, Reply, StreamRooms};
use crate::calls::request_stats::{self, RequestStats, WriteResponse};
use crate::calls::spans;
use crate::calls::status::status;
use crate::calls::status::unexpected;
use quorate_member::access::{Client, Gate, Pass};
use quorate_member::admission::{Bound, Room};
use quorate_member::{
    Administrator, Ask, Handles, Profile, Proposer, ReadKind, ReadTimes, Reader, Ready,
    RequestError, StreamEnds, Weight, request_text,
};
use quorate_net::runtime::blocking;
use quorate_telemetry::metrics::RequestKind;

/// The service.
#[derive(Debug)]
pub(crate) struct Kv {
    profile: Arc<Profile>,
    gate: Arc<Gate>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    administrator: Arc<Administrator>,
    streams: Arc<StreamEnds>,
}

impl Kv {
    pub(crate) fn new(handles: &Handles) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            gate: Arc::clone(&handles.gate),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            administrator: Arc::clone(&handles.administrator),
            streams: Arc::clone(&handles.streams),
        }
    }

    /// Answers a range of a client's.
    pub(crate) async fn range_for(
        &self,
        client: &Client,
        request: &RangeRequest,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        if !request.serializable && self.profile.is_learner() {
            return Err(RequestError::NotSupportedForLearner);
        }
        let ready = self.proposer.prepare(client, Ask::Range(request)).await?;
        let _operation = client.operation("range", || spans::range(request));
        let mut times = ReadTimes::start();
        let result = self.read_range(client, request, ready, &mut times).await;
        let took = times.elapsed();
        self.profile.metrics().server.request_duration.observe(
            RequestKind::Range,
            result.is_ok(),
            took,
        );
        times.tell(client, took);
        self.reader.note_done(ReadKind::Range, times, took, || {
            let response = result.as_ref().map(|reply| {
                let (count, bytes) = (reply.message().kvs.len(), reply.encoded_len());
                format!("range_response_count:{count} size:{bytes}")
            });
            (request_text::of_range(request), response)
        });
        result
    }

    /// Carries out a client's put. Like every write, it leaves in `kept` what it has asked the log for.
    async fn put_for(
        &self,
        client: &Client,
        put: PutRequest,
        kept: &mut Bytes,
    ) -> Result<PutResponse, Status> {
        self.proposer.prepare(client, Ask::Put(&put)).await.map_err(status)?;
        let _operation = client.operation("put", || spans::put(&put));
        let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
        let outcome = self.proposer.propose_and_keep(client, request, RequestKind::Put, kept).await;
        match outcome.map_err(status)? {
            Outcome::Put(mut response) => {
                response.header = self.profile.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Carries out a client's deletion.
    pub(crate) async fn delete_for(
        &self,
        client: &Client,
        delete: DeleteRangeRequest,
        kept: &mut Bytes,
    ) -> Result<DeleteRangeResponse, Status> {
        self.proposer.prepare(client, Ask::DeleteRange(&delete)).await.map_err(status)?;
        let _operation = client.operation("delete_range", || spans::delete_range(&delete));
        let request =
            InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() };
        let kind = RequestKind::DeleteRange;
        let outcome = self.proposer.propose_and_keep(client, request, kind, kept).await;
        match outcome.map_err(status)? {
            Outcome::DeleteRange(mut response) => {
                response.header = self.profile.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Carries out a client's transaction that may write.
    pub(crate) async fn write_txn_for(
        &self,
        client: &Client,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        self.proposer.prepare(client, Ask::Txn(&txn)).await.map_err(status)?;
        self.write_txn(client, txn, &mut Bytes::new()).await
    }

    async fn write_txn(
        &self,
        client: &Client,
        txn: TxnRequest,
        kept: &mut Bytes,
    ) -> Result<TxnResponse, Status> {
        let _operation = client.operation("txn", || spans::txn(&txn, false));
        let request = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
        let outcome = self.proposer.propose_and_keep(client, request, RequestKind::Txn, kept).await;
        match outcome.map_err(status)? {
            Outcome::Txn(mut response) => {
                response.header = self.profile.complete(response.header);
                Ok(response)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Answers a range that was checked. When there is no room for the reply, what was read is let go and, once
    /// there is, read again.
    async fn read_range(
        &self,
        client: &Client,
        request: &RangeRequest,
        ready: Ready,
        times: &mut ReadTimes,
    ) -> Result<Reply<RangeResponse>, RequestError> {
        self.pass_barrier(ready, times).await?;
        let query = to_query(request);
        let pass = self.gate.pass_to_read(&client.shown, |may| may.check_range(request)).await?;
        let replies = &self.reader.admission().replies;
        let reply = match self.gather_range(&query).await?.admit(replies) {
            Ok(reply) => reply,
            Err(bytes) => {
                let room = self.wait_for_room(bytes).await?;
                self.gather_range(&query).await?.admit_to(room)
            }
        };
        self.gate.confirm(pass).await?;
        Ok(reply)
    }

    /// Waits until a read is not stale, where that is needed.
    async fn pass_barrier(&self, ready: Ready, times: &mut ReadTimes) -> Result<(), RequestError> {
        if ready == (Ready::Read { needs_barrier: true }) {
            self.reader.read_barrier().await?;
            times.note_barrier();
        }
        Ok(())
    }

    async fn gather_range(&self, query: &RangeQuery) -> Result<Reply<RangeResponse>, RequestError> {
        let weight = self.reader.weigh([query]).await?;
        let query = query.clone();
        let (result, room) = gather(&self.reader, weight, move |reader| reader.range(&query)).await;
        let result = result?;
        let response = RangeResponse {
            header: Some(self.profile.header(result.revision)),
            kvs: result.kvs,
            more: result.more,
            count: result.count,
        };
        Ok(Reply::new(response, room))
    }

    /// The same for a transaction.
    async fn read_txn_for(
        &self,
        client: &Client,
        request: TxnRequest,
        ready: Ready,
        started: Instant,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        let _operation = client.operation("txn", || spans::txn(&request, true));
        let (request, mut times) = (Arc::new(request), ReadTimes::start());
        let result = self.read_txn(client, &request, ready, &mut times).await;
        let (kind, took) = (RequestKind::ReadonlyTxn, times.elapsed());
        self.profile.metrics().server.request_duration.observe(kind, result.is_ok(), took);
        times.tell(client, took);
        self.reader.note_done(ReadKind::Txn, times, took, || {
            let response = result.as_ref().map(txn_response_text);
            (request_text::of_txn(&request), response)
        });
        if request_stats::is_wanted(&self.profile, started) {
            let response = result.as_ref().ok().map(Reply::message);
            request_stats::leave(RequestStats::of_txn(&request, response));
        }
        result
    }

    async fn read_txn(
        &self,
        client: &Client,
        request: &Arc<TxnRequest>,
        ready: Ready,
        times: &mut ReadTimes,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        self.pass_barrier(ready, times).await?;
        let pass = self.gate.pass_to_read(&client.shown, |may| may.check_txn(request)).await?;
        let replies = &self.reader.admission().replies;
        let reply = match self.gather_txn(request).await?.admit(replies) {
            Ok(reply) => reply,
            Err(bytes) => {
                let room = self.wait_for_room(bytes).await?;
                self.gather_txn(request).await?.admit_to(room)
            }
        };
        self.gate.confirm(pass).await?;
        Ok(reply)
    }

    async fn gather_txn(
        &self,
        request: &Arc<TxnRequest>,
    ) -> Result<Reply<TxnResponse>, RequestError> {
        // Which of the branches it will be is not known yet.
        let queries: Vec<_> = request
            .success
            .iter()
            .chain(&request.failure)
            .filter_map(|operation| match &operation.request {
                Some(Operation::RequestRange(range)) => RangeQuery::from_request(range),
                _ => None,
            })
            .collect();
        let weight = self.reader.weigh(&queries).await?;
        let request = Arc::clone(request);
        let read = move |reader: &Reader| reader.txn(&request);
        let (response, room) = gather(&self.reader, weight, read).await;
        let mut response = response?;
        response.header = self.profile.complete(response.header);
        Ok(Reply::new(response, room))
    }

    /// A range in chunks, each read when it is asked for. What a chunk takes is counted until it has been
    /// sent; where there is no room for it, or users and roles have changed, the stream ends.
    fn chunks(
        &self,
        query: RangeQuery,
        pass: Pass,
        rooms: StreamRooms,
    ) -> impl Iterator<Item = Result<RangeStreamResponse, Status>> + use<> {
        let (profile, reader) = (Arc::clone(&self.profile), Arc::clone(&self.reader));
        let gate = Arc::clone(&self.gate);
        let mut range = ChunkedRange::new(query, profile.limits().request_bytes_max);
        let mut next = move || {
            let mut chunk = match range.next(|query| reader.range(query))? {
                Ok(chunk) => chunk,
                Err(error) => return Some(Err(status(error))),
            };
            if let Err(error) = gate.still_holds(pass) {
                return Some(Err(status(error)));
            }
            if chunk.header.is_some() {
                chunk.header = profile.complete(chunk.header);
            }
            let len = chunk.encoded_len();
            if len >= COUNTED_BYTES_MIN {
                // The library's buffer may be twice as large as what is in it.
                match Bound::take_owned(&reader.admission().replies, 2 * len as u64) {
                    Ok(room) => rooms.push(room),
                    Err(full) => return Some(Err(status(full))),
                }
            }
            Some(Ok(RangeStreamResponse { range_response: Some(chunk) }))
        };
        let mut has_failed = false;
        std::iter::from_fn(move || {
            let chunk = if has_failed { None } else { next() };
            has_failed = matches!(chunk, Some(Err(_)));
            chunk
        })
    }

    /// The reply to something that has been done.
    fn reply_regardless<M: Large>(&self, response: M) -> Result<Response<M>, Status> {
        Reply::new(response, None)
            .admit_regardless(&self.reader.admission().replies)
            .into_response()
    }

    /// Leaves what is to be said of a write, if that is anything.
    fn tell_of_write(
        &self,
        started: Instant,
        kept: &Bytes,
        result: &Result<impl WriteResponse, Status>,
    ) {
        if request_stats::is_wanted(&self.profile, started) {
            request_stats::leave(RequestStats::of_write(kept, result.as_ref().ok()));
        }
    }

    async fn wait_for_room(&self, bytes: u64) -> Result<Room, RequestError> {
        let patience = self.profile.limits().request_timeout;
        Ok(Bound::take_within(&self.reader.admission().replies, bytes, patience).await?)
    }
}

/// Reads on the spot, or, where that takes long, off the connection threads.
async fn gather<T: Send + 'static>(
    reader: &Arc<Reader>,
    weight: Weight,
    read: impl FnOnce(&Reader) -> T + Send + 'static,
) -> (T, Option<Room>) {
    let Weight { is_long, room } = weight;
    if !is_long {
        return (read(reader), room);
    }
    let reader = Arc::clone(reader);
    // The room goes along: the work goes on when the client has gone.
    blocking(move || (read(&reader), room)).await
}

/// What came of a transaction that reads, for the log.
fn txn_response_text(reply: &Reply<TxnResponse>) -> String {
    let counts = reply.message().responses.iter().map(|response| match &response.response {
        Some(OpResponse::ResponseRange(range)) => {
            format!("range_response_count:{}", range.kvs.len())
        }
        _ => "range_response:nil".to_owned(),
    });
    let counts = counts.collect::<Vec<_>>().join(" ");
    format!("responses:<{counts}> size:{}", reply.encoded_len())
}

fn to_query(request: &RangeRequest) -> RangeQuery {
    RangeQuery::from_request(request).expect("the sort was checked")
}

/// The methods; `guarded` calls them.
impl Kv {
    pub(crate) async fn range(
        &self,
        request: Authorized<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let started = Instant::now();
        let (client, request) = request.into_parts();
        let result = self.range_for(&client, &request).await;
        if request_stats::is_wanted(&self.profile, started) {
            let response = result.as_ref().ok().map(Reply::message);
            request_stats::leave(RequestStats::of_range(&request, response));
        }
        result.map_err(status)?.into_response()
    }

    pub(crate) async fn range_stream(
        &self,
        request: Authorized<RangeRequest>,
    ) -> Result<Response<BoxStream<RangeStreamResponse>>, Status> {
        let (client, request) = request.into_parts();
        let ready = self.proposer.prepare(&client, Ask::Range(&request)).await.map_err(status)?;
        let query = to_query(&request);
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
        let operation = client.operation("range_streaming", || spans::range_stream(&request));
        self.pass_barrier(ready, &mut ReadTimes::start()).await.map_err(status)?;
        let pass = self.gate.pass_to_read(&client.shown, |may| may.check_range(&request)).await;
        let pass = pass.map_err(status)?;
        let end = self.streams.wait(false);
        let rooms = StreamRooms::default();
        let mut chunks = self.chunks(query, pass, rooms.clone());
        // The first chunk is read now: its refusal is the call's.
        let mut first = chunks.next().transpose()?;
        let chunks = std::iter::from_fn(move || {
            // It lasts as long as the stream.
            let _lasting = &operation;
            first.take().map(Ok).or_else(|| chunks.next())
        });
        let chunks = crate::calls::streams::until(tokio_stream::iter(chunks), end);
        let mut response: Response<BoxStream<_>> = Response::new(Box::pin(chunks));
        response.extensions_mut().insert(rooms);
        Ok(response)
    }

    pub(crate) async fn put(
        &self,
        request: Authorized<PutRequest>,
    ) -> Result<Response<PutResponse>, Status> {
        let started = Instant::now();
        let (client, put) = request.into_parts();
        let mut kept = Bytes::new();
        let result = self.put_for(&client, put, &mut kept).await;
        self.tell_of_write(started, &kept, &result);
        result.map(Response::new)
    }

    pub(crate) async fn delete_range(
        &self,
        request: Authorized<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let started = Instant::now();
        let (client, delete) = request.into_parts();
        let mut kept = Bytes::new();
        let result = self.delete_for(&client, delete, &mut kept).await;
        self.tell_of_write(started, &kept, &result);
        self.reply_regardless(result?)
    }

    pub(crate) async fn txn(
        &self,
        request: Authorized<TxnRequest>,
    ) -> Result<Response<TxnResponse>, Status> {
        let started = Instant::now();
        let (client, txn) = request.into_parts();
        let ready = self.proposer.prepare(&client, Ask::Txn(&txn)).await.map_err(status)?;
        if ready != Ready::Propose {
            let reply = self.read_txn_for(&client, txn, ready, started).await;
            return reply.map_err(status)?.into_response();
        }
        let mut kept = Bytes::new();
        let result = self.write_txn(&client, txn, &mut kept).await;
        self.tell_of_write(started, &kept, &result);
        self.reply_regardless(result?)
    }

    pub(crate) async fn compact(
        &self,
        request: Authorized<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let (client, mut compaction) = request.into_parts();
        let _operation = client.operation("compact", || spans::compact(&compaction));
        compaction.revision = self.proposer.compaction_point(compaction.revision);
        let is_physical = compaction.physical;
        let request =
            InternalRaftRequest { compaction: Some(compaction), ..InternalRaftRequest::default() };
        let outcome = self.proposer.propose_for(&client, request, RequestKind::Compaction).await;
        if is_physical {
            // Also when somebody else had compacted: the answer says that the history is gone.
            self.administrator.wait_compacted().await.map_err(status)?;
        }
        match outcome.map_err(status)? {
            Outcome::Compaction(response) => {
                let revision = response.header.map_or(0, |header: ResponseHeader| header.revision);
                let header = Some(self.profile.header(revision));
                Ok(Response::new(CompactionResponse { header }))
            }
            other => Err(unexpected(&other)),
        }
    }
}
