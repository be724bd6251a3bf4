//! The KV service: adds the namespace prefix, and answers range requests from the cache or from keys owned by this
//! proxy if the guarantees below permit this.
//!
//! # Guarantees
//!
//! * After a write through this proxy, the cache returns no response for the written keys if the request for that
//!   response was sent before the write ended, except responses at past revisions.
//! * A cached response is returned to a client with a token only if a member would answer that client at the same
//!   moment. `authority` handles clients without a token.
//! * With `--experimental-serializable-ordering`, the revisions of range responses never decrease.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use prost::Message as _;
use quorate_api::deep_txn;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response as Answer;
use quorate_api::etcdserverpb::{CompactionRequest, RangeRequest, RangeResponse, TxnResponse};
use quorate_grpc::methods::Method;
use quorate_telemetry::log;
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Status;
use tonic::body::Body;

use crate::cache::{Cache, CacheKey, CachedAnswer};
use crate::cache_fill::{CacheFill, report_load};
use crate::call::{Caller, forwarded};
use crate::framing;
use crate::leasing::Leasing;
use crate::namespace::Namespace;
use crate::relay;
use crate::span::{Span, Spans, written_or_compared};
use crate::upstream::Upstream;

/// Maximum number of attempts to obtain a sufficiently recent response, per endpoint.
const ATTEMPTS_PER_MEMBER: usize = 5;

/// Pause between two attempts to find the current revision.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of different spans in a write that invalidates only the responses for these spans. A write with more
/// spans invalidates all responses. The default limits of members permit a few hundred spans.
const OUTDATED_SPANS_MAX: usize = 4096;

/// The KV service of the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Kv {
    upstream: Arc<Upstream>,
    metrics: Arc<ProxyMetrics>,
    namespace: Option<Namespace>,
    cache: Arc<Cache>,
    /// The highest revision of any range response so far; present only if revisions must not decrease.
    seen: Option<Arc<AtomicI64>>,
    leasing: Option<Arc<Leasing>>,
}

impl Kv {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        metrics: Arc<ProxyMetrics>,
        namespace: Option<Namespace>,
        keeps_order: bool,
        leasing: Option<Arc<Leasing>>,
    ) -> Self {
        let seen = keeps_order.then(Arc::default);
        Self { upstream, metrics, namespace, cache: Arc::default(), seen, leasing }
    }

    /// Reads the current revision of the cluster before the proxy answers the first range request.
    pub(crate) async fn recover_order(&self, range: &'static Method) {
        if self.seen.is_none() {
            return;
        }
        log::info!("waiting for linearized read from cluster to recover ordering");
        let key = Bytes::from_static(b"_");
        let request = RangeRequest { key, keys_only: true, ..RangeRequest::default() };
        let message: Bytes = request.encode_to_vec().into();
        while let Err(status) = self.ask_range(range, &HeaderMap::new(), &message).await {
            log::warn!("ordering recovery failed, retrying in 1s", "error" = status.message());
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    pub(crate) async fn call(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        let encoded = message.clone();
        let request = match method.name {
            "Range" => return self.range(method, headers, message).await,
            "Put" => Request::RequestPut(framing::decode(encoded)?),
            "DeleteRange" => Request::RequestDeleteRange(framing::decode(encoded)?),
            "Txn" => Request::RequestTxn(framing::decode(encoded)?),
            _ => return self.compact(method, headers, message).await,
        };
        self.write(method, headers, message, request).await
    }

    async fn compact(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        let request: CompactionRequest = framing::decode(message.clone())?;
        let answer = self.ask(method, headers, message).await?;
        self.cache.compact(request.revision);
        report_load(&self.cache, &self.metrics);
        Ok(framing::answer(answer))
    }

    /// Sends a request to a member. If leasing is on, records the response's revision.
    async fn ask(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let answer = relay::ask(&self.upstream, method, forwarded(headers), message).await?;
        if let Some(leasing) = &self.leasing {
            leasing.latest().see_message(&answer);
        }
        Ok(answer)
    }

    async fn range(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        let mut request: RangeRequest = framing::decode(message.clone())?;
        if let Some(leasing) = &self.leasing
            && let Some(answer) = leasing.range(headers, &request).await
        {
            if let (Some(seen), Some(header)) = (&self.seen, &answer.header) {
                seen.fetch_max(header.revision, Ordering::SeqCst);
            }
            return Ok(framing::answer(answer.encode_to_vec().into()));
        }
        let wants_present = !request.serializable;
        request.serializable = true;
        let request_bytes: Bytes =
            if wants_present { request.encode_to_vec().into() } else { message.clone() };
        let cache_key = CacheKey { caller: Caller::of(headers), request: request_bytes };
        if !wants_present {
            if let Some(cached) =
                self.cache.get(&cache_key).filter(|cached| self.is_new_enough(cached))
            {
                if !cache_key.caller.is_anonymous()
                    && let Err(status) = self.check_permission(method, headers, &request).await
                {
                    self.cache.remove_of(|caller| *caller == cache_key.caller);
                    return Err(status);
                }
                self.metrics.cache_hits.inc();
                return Ok(framing::answer(cached.answer));
            }
            self.metrics.cache_misses.inc();
        }
        let span = Span::new(&request.key, &request.range_end);
        let asked_revision = request.revision;
        let message = match &self.namespace {
            None => message,
            Some(namespace) => {
                namespace.range(&mut request)?;
                request.serializable = !wants_present;
                request.encode_to_vec().into()
            }
        };
        let cache = (&self.cache, &self.metrics);
        let latest = self.leasing.as_ref().map(|leasing| Arc::clone(leasing.latest()));
        let fill = CacheFill::begin(cache, span, cache_key, asked_revision, latest);
        if self.namespace.is_none() && self.seen.is_none() {
            // The response is forwarded as fast as the client reads it, however long it is.
            let answer = relay::relay(&self.upstream, method, forwarded(headers), message).await?;
            return Ok(answer.map(|body| fill.cache_body(body)));
        }
        let (answer, revision) = self.ask_range(method, headers, &message).await?;
        let answer = match &self.namespace {
            None => answer,
            Some(namespace) => stripped::<RangeResponse>(answer, |it| namespace.strip_range(it))?,
        };
        fill.keep(CachedAnswer { answer: answer.clone(), revision });
        Ok(framing::answer(answer))
    }

    /// Asks members until one returns a sufficiently recent response. Without ordering, the first response is
    /// sufficient.
    async fn ask_range(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: &Bytes,
    ) -> Result<(Bytes, i64), Status> {
        let before = self.seen.as_ref().map(|seen| seen.load(Ordering::SeqCst));
        let attempts = ATTEMPTS_PER_MEMBER * self.upstream.count().max(1);
        for _ in 0..attempts {
            let answer = self.ask(method, headers, message.clone()).await?;
            let response: RangeResponse = framing::decode(answer.clone())?;
            let revision = response.header.map_or(0, |header| header.revision);
            if before.is_none_or(|before| revision >= before) {
                if let Some(seen) = &self.seen {
                    seen.fetch_max(revision, Ordering::SeqCst);
                }
                return Ok((answer, revision));
            }
        }
        let text = "etcdclient: no cluster members have a revision higher than the previously received revision";
        Err(Status::unknown(text))
    }

    /// Asks a member whether the client's token still permits reading the range. The request asks only for a count, so
    /// that the response is short.
    async fn check_permission(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        request: &RangeRequest,
    ) -> Result<(), Status> {
        let mut check = RangeRequest {
            key: request.key.clone(),
            range_end: request.range_end.clone(),
            serializable: true,
            count_only: true,
            limit: 1,
            ..RangeRequest::default()
        };
        if let Some(namespace) = &self.namespace {
            namespace.range(&mut check)?;
        }
        self.ask(method, headers, check.encode_to_vec().into()).await.map(drop)
    }

    /// Drops all cached responses because permissions have changed.
    pub(crate) fn drop_answers(&self) {
        self.cache.clear();
        report_load(&self.cache, &self.metrics);
    }

    /// Drops the responses cached for anonymous clients, because members now refuse anonymous reads.
    pub(crate) fn drop_anonymous_answers(&self) {
        self.cache.remove_of(Caller::is_anonymous);
        report_load(&self.cache, &self.metrics);
    }

    /// Returns whether the cache is empty.
    pub(crate) fn is_cache_empty(&self) -> bool {
        self.cache.load().0 == 0
    }

    fn is_new_enough(&self, cached: &CachedAnswer) -> bool {
        self.seen.as_ref().is_none_or(|seen| cached.revision >= seen.load(Ordering::SeqCst))
    }

    async fn write(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
        mut request: Request,
    ) -> Result<Response<Body>, Status> {
        // The result of a transaction's conditions also reveals the state of keys that the transaction does not write,
        // so the cached responses for these keys are removed as well.
        let writing =
            Writing { kv: self, spans: written_or_compared(&request, OUTDATED_SPANS_MAX) };
        writing.outdate();
        if let Some(leasing) = &self.leasing
            && let Some(answer) = answer_by_lease(leasing, headers, &request).await?
        {
            return Ok(framing::answer(answer));
        }
        let Some(namespace) = &self.namespace else {
            if self.leasing.is_some() {
                return Ok(framing::answer(self.ask(method, headers, message).await?));
            }
            // The response is forwarded whatever its format and length, because the member has already performed the
            // write.
            return relay::relay(&self.upstream, method, forwarded(headers), message).await;
        };
        namespace.request(&mut request)?;
        let answer = self.ask(method, headers, encoded(&request)).await?;
        let answer = match request {
            Request::RequestRange(_) => answer,
            Request::RequestPut(_) => stripped(answer, |it| namespace.strip_put(it))?,
            Request::RequestDeleteRange(_) => stripped(answer, |it| namespace.strip_delete(it))?,
            Request::RequestTxn(_) => {
                stripped::<TxnResponse>(answer, |it| namespace.strip_txn(it))?
            }
        };
        Ok(framing::answer(answer))
    }
}

/// Answers a read-only transaction from the records of owned keys, or performs a write once no other proxy owns its
/// keys. Returns `None` if the request must be forwarded to a member.
async fn answer_by_lease(
    leasing: &Leasing,
    headers: &HeaderMap,
    request: &Request,
) -> Result<Option<Bytes>, Status> {
    if let Request::RequestTxn(txn) = request
        && let Some(answer) = leasing.txn(headers, txn)
    {
        return Ok(Some(answer.encode_to_vec().into()));
    }
    let answer = leasing.write(headers, request.clone()).await?;
    Ok(answer.map(|answer| match answer {
        Answer::ResponseRange(it) => it.encode_to_vec().into(),
        Answer::ResponsePut(it) => it.encode_to_vec().into(),
        Answer::ResponseDeleteRange(it) => it.encode_to_vec().into(),
        Answer::ResponseTxn(it) => it.encode_to_vec().into(),
    }))
}

fn encoded(request: &Request) -> Bytes {
    match request {
        Request::RequestRange(it) => it.encode_to_vec().into(),
        Request::RequestPut(it) => it.encode_to_vec().into(),
        Request::RequestDeleteRange(it) => it.encode_to_vec().into(),
        Request::RequestTxn(it) => deep_txn::encode(it).into(),
    }
}

/// A write in progress. The cached responses for its keys are removed twice: before the write is sent, and after the
/// write ends, for responses that arrived in the meantime.
struct Writing<'a> {
    kv: &'a Kv,
    spans: Spans,
}

impl Writing<'_> {
    fn outdate(&self) {
        self.kv.cache.outdate(&self.spans);
        report_load(&self.kv.cache, &self.kv.metrics);
    }
}

impl Drop for Writing<'_> {
    // This also runs for writes cancelled by the client, because members may still perform these writes.
    fn drop(&mut self) {
        self.outdate();
    }
}

/// Removes the namespace prefix from the keys of a response.
fn stripped<M: prost::Message + prost::Name + Default + 'static>(
    answer: Bytes,
    strip: impl FnOnce(&mut M),
) -> Result<Bytes, Status> {
    let mut message: M = framing::decode(answer)?;
    strip(&mut message);
    Ok(message.encode_to_vec().into())
}
