//! The KV service: requests in the namespace, if there is one, and ranges from the cache where that will do, or of keys
//! that this proxy owns.
//!
//! # Guarantees
//!
//! * A client that has written through this proxy is not answered from before its write, unless it writes by other ways too.
//! * An answer from the cache is given to a client with a token only if a member would answer him at that moment. For clients
//!   without one see `authority`.
//! * With `--experimental-serializable-ordering` no range is answered from before another that was.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use prost::Message as _;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response as Answer;
use quorate_api::etcdserverpb::{CompactionRequest, RangeRequest, RangeResponse, TxnResponse};
use quorate_grpc::methods::Method;
use quorate_telemetry::log;
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Status;
use tonic::body::Body;

use crate::cache::{Cache, Kept, Question};
use crate::call::{Asker, forwarded};
use crate::framing;
use crate::keeping::{Asking, tell_load};
use crate::leasing::Leasing;
use crate::namespace::Namespace;
use crate::relay;
use crate::span::{Span, written};
use crate::upstream::Upstream;

/// How often each member is asked for an answer that is not older than another.
const ATTEMPTS_PER_MEMBER: usize = 5;

/// Between two looks for a cluster that answers.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Kv {
    upstream: Arc<Upstream>,
    metrics: Arc<ProxyMetrics>,
    namespace: Option<Namespace>,
    cache: Arc<Cache>,
    /// The latest revision that a range was answered from, where that matters.
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

    /// Learns how far the cluster is, before anybody is answered who could have known.
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
        tell_load(&self.cache, &self.metrics);
        Ok(framing::answer(answer))
    }

    /// Asks a member for one message, and takes note of how far the store is.
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
        let question = Question { asker: Asker::of(headers), request: request_bytes };
        if !wants_present {
            if let Some(kept) = self.cache.get(&question).filter(|kept| self.is_new_enough(kept)) {
                if !question.asker.is_nobody()
                    && let Err(status) = self.check_right(method, headers, &request).await
                {
                    self.cache.remove_of(|asker| *asker == question.asker);
                    return Err(status);
                }
                self.metrics.cache_hits.inc();
                return Ok(framing::answer(kept.answer));
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
        let asking = Asking::begin(cache, span, question, asked_revision, latest);
        if self.namespace.is_none() && self.seen.is_none() {
            // However long it is, it passes at the pace of its client.
            let answer = relay::relay(&self.upstream, method, forwarded(headers), message).await?;
            return Ok(answer.map(|body| asking.keep_passing(body)));
        }
        let (answer, revision) = self.ask_range(method, headers, &message).await?;
        let answer = match &self.namespace {
            None => answer,
            Some(namespace) => stripped::<RangeResponse>(answer, |it| namespace.strip_range(it))?,
        };
        asking.keep(Kept { answer: answer.clone(), revision });
        Ok(framing::answer(answer))
    }

    /// Asks members, until one answers that is not behind what others have answered, where that matters.
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

    /// Asks a member whether a client may still read a range, by its token: with a question whose answer is short.
    async fn check_right(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        request: &RangeRequest,
    ) -> Result<(), Status> {
        let mut question = RangeRequest {
            key: request.key.clone(),
            range_end: request.range_end.clone(),
            serializable: true,
            count_only: true,
            limit: 1,
            ..RangeRequest::default()
        };
        if let Some(namespace) = &self.namespace {
            namespace.range(&mut question)?;
        }
        self.ask(method, headers, question.encode_to_vec().into()).await.map(drop)
    }

    /// Drops all answers: who may read what has changed.
    pub(crate) fn drop_answers(&self) {
        self.cache.clear();
        tell_load(&self.cache, &self.metrics);
    }

    /// Drops the answers that clients without a user got: members would not answer them any more.
    pub(crate) fn drop_answers_for_nobody(&self) {
        self.cache.remove_of(Asker::is_nobody);
        tell_load(&self.cache, &self.metrics);
    }

    /// Whether no answer is kept.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.cache.load().0 == 0
    }

    fn is_new_enough(&self, kept: &Kept) -> bool {
        self.seen.as_ref().is_none_or(|seen| kept.revision >= seen.load(Ordering::SeqCst))
    }

    async fn write(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
        mut request: Request,
    ) -> Result<Response<Body>, Status> {
        // A transaction may claim to know what it does not write.
        let writing = Writing { kv: self, spans: written(&request, true) };
        writing.outdate();
        if let Some(leasing) = &self.leasing
            && let Some(answer) = leased(leasing, headers, &request).await?
        {
            return Ok(framing::answer(answer));
        }
        let Some(namespace) = &self.namespace else {
            if self.leasing.is_some() {
                return Ok(framing::answer(self.ask(method, headers, message).await?));
            }
            // What it answers, and in how many pieces, is the member's affair; it has written by then.
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

/// The answer of this proxy, where keys have owners and it has one.
async fn leased(
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
        Request::RequestTxn(it) => it.encode_to_vec().into(),
    }
}

/// A write: what it is about is outdated before it, for what is kept already, and after it, for what was asked meanwhile.
struct Writing<'a> {
    kv: &'a Kv,
    spans: Vec<Span>,
}

impl Writing<'_> {
    fn outdate(&self) {
        for span in &self.spans {
            self.kv.cache.outdate(span);
        }
        tell_load(&self.kv.cache, &self.kv.metrics);
    }
}

impl Drop for Writing<'_> {
    // Also where its client has given it up: it may be carried out all the same.
    fn drop(&mut self) {
        self.outdate();
    }
}

/// An answer with its keys as clients know them.
fn stripped<M: prost::Message + prost::Name + Default + 'static>(
    answer: Bytes,
    strip: impl FnOnce(&mut M),
) -> Result<Bytes, Status> {
    let mut message: M = framing::decode(answer)?;
    strip(&mut message);
    Ok(message.encode_to_vec().into())
}
