//! Lease keep-alives. While a keep-alive of a lease is in flight, the proxy does not send keep-alives of the same lease
//! from other clients with the same identity, but answers them with the same response.
//!
//! All callers with the same identity share one stream to a member. A lost stream is opened again, and unanswered
//! keep-alives are sent again, which is harmless because renewing a lease twice has the same effect as renewing it
//! once. For an expired lease the member returns a TTL of zero.
//!
//! # Bound
//!
//! A client may have [`OUTSTANDING_MAX`] keep-alives in flight. Further requests of the client are not read until a
//! keep-alive is answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use quorate_grpc::ending;
use quorate_grpc::framing::framed;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_telemetry::metrics::ProxyMetrics;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::call::Caller;
use crate::framing::{self, Messages};
use crate::outbox::{Outbox, OutboxMessage};
use crate::relay::REQUEST_BYTES_MAX;
use crate::upstream::{Upstream, receive_error};

const PATH: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// Maximum number of unanswered keep-alives per client.
const OUTSTANDING_MAX: usize = 1024;

/// Maximum number of requests queued for the stream to a member.
const AHEAD: usize = 64;

/// Time without requests after which a stream is closed.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Initial pause before a stream is opened again. The pause grows up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The Lease keep-alive service of the proxy.
#[derive(Debug)]
pub(crate) struct Leases {
    upstream: Arc<Upstream>,
    metrics: Arc<ProxyMetrics>,
    renewers: Mutex<HashMap<Caller, Renewer>>,
}

/// The shared stream of all callers with the same identity.
#[derive(Debug, Default)]
struct Renewer {
    /// The clients waiting for a response, by lease.
    waiting: HashMap<i64, Vec<Arc<Client>>>,
    unsent: VecDeque<i64>,
    wake: Arc<Notify>,
}

/// One client stream that sends keep-alives.
#[derive(Debug, Default)]
pub(crate) struct Client {
    outbox: Arc<Outbox>,
    /// The client's unanswered requests, in order. Each entry contains the lease id, and the response if it has
    /// arrived while an earlier request is still unanswered.
    outstanding: Mutex<VecDeque<(i64, Option<Bytes>)>>,
}

impl Client {
    fn add_request(&self, lease: i64) {
        self.outstanding.lock().push_back((lease, None));
    }

    fn outstanding(&self) -> usize {
        self.outstanding.lock().len()
    }

    /// Records the response to one request for the lease. The client receives the responses in request order, as from a
    /// member.
    fn record_answer(&self, lease: i64, message: &Bytes) {
        let mut outstanding = self.outstanding.lock();
        let mut waiting =
            outstanding.iter_mut().filter(|(of, answer)| *of == lease && answer.is_none());
        if let Some((_, answer)) = waiting.next() {
            *answer = Some(message.clone());
        }
        while let Some((_, Some(_))) = outstanding.front()
            && let Some((_, Some(answer))) = outstanding.pop_front()
        {
            self.outbox.put(OutboxMessage::of(answer));
        }
        drop(outstanding);
        self.outbox.wake();
    }
}

impl Leases {
    pub(crate) fn new(upstream: Arc<Upstream>, metrics: Arc<ProxyMetrics>) -> Self {
        Self { upstream, metrics, renewers: Mutex::default() }
    }

    /// Serves a keep-alive call.
    pub(crate) fn serve(self: &Arc<Self>, headers: &HeaderMap, body: Body) -> Response<Body> {
        let client = Arc::new(Client::default());
        let requests = framing::requests(headers, body, REQUEST_BYTES_MAX);
        let caller = Caller::of(headers);
        let serving = Arc::clone(self).run(Arc::clone(&client), caller, requests);
        let task = tokio::spawn(serving);
        ending::answer(Body::new(client.outbox.body(task.abort_handle())))
    }

    async fn run(self: Arc<Self>, client: Arc<Client>, caller: Caller, mut requests: Messages) {
        let mut is_open = true;
        loop {
            let outstanding = client.outstanding();
            if !is_open && outstanding == 0 {
                return client.outbox.end(Status::ok(""));
            }
            let may_read = is_open && outstanding < OUTSTANDING_MAX && !client.outbox.is_full();
            tokio::select! {
                () = client.outbox.woken() => {}
                request = requests.message(), if may_read => match request {
                    Ok(Some(request)) => match framing::decode::<LeaseKeepAliveRequest>(request) {
                        Ok(request) => self.renew(&caller, request.id, &client),
                        Err(status) => return client.outbox.end(status),
                    },
                    Ok(None) => is_open = false,
                    Err(status) => return client.outbox.end(in_grpc_gos_words(status, Kind::BidiStream)),
                },
            }
        }
    }

    /// Tries to renew a lease that belongs to this proxy.
    pub(crate) async fn renew_own(self: &Arc<Self>, lease: i64) {
        let client = Arc::new(Client::default());
        self.renew(&Caller::default(), lease, &client);
        let answered = async {
            while client.outstanding() > 0 {
                client.outbox.woken().await;
            }
        };
        // A missing response is not an error: the caller tries again later, because the lease may still be alive.
        drop(tokio::time::timeout(PAUSE_MAX, answered).await);
    }

    /// Renews a lease for a client, or joins an in-flight keep-alive of that lease.
    fn renew(self: &Arc<Self>, caller: &Caller, lease: i64, client: &Arc<Client>) {
        client.add_request(lease);
        let mut renewers = self.renewers.lock();
        if !renewers.contains_key(caller) {
            let renewer = Renewer::default();
            tokio::spawn(Arc::clone(self).keep_renewing(caller.clone(), Arc::clone(&renewer.wake)));
            renewers.insert(caller.clone(), renewer);
        }
        let Some(renewer) = renewers.get_mut(caller) else { return };
        let waiting = renewer.waiting.entry(lease).or_default();
        // Remove disconnected clients.
        waiting.retain(|other| !other.outbox.is_closed());
        if waiting.is_empty() {
            renewer.unsent.push_back(lease);
            renewer.wake.notify_one();
        } else {
            self.metrics.keep_alives_coalescing.inc();
        }
        waiting.push(Arc::clone(client));
    }

    /// Runs a shared stream until it has been idle for [`IDLE_MAX`].
    async fn keep_renewing(self: Arc<Self>, caller: Caller, wake: Arc<Notify>) {
        let mut pause = PAUSE;
        loop {
            let (frames, receiver) = mpsc::channel(AHEAD);
            let body = Body::new(StreamBody::new(ReceiverStream::new(receiver)));
            let mut has_answered = false;
            let reading = async {
                let answer = self.upstream.open(PATH, &caller.headers(), body).await?;
                let messages = framing::replies(answer, self.upstream.limits.receive_bytes)?;
                self.read(&caller, messages, &mut has_answered).await
            };
            let ended = tokio::select! {
                ended = reading => ended,
                () = self.write(&caller, &wake, &frames) => return,
            };
            match ended {
                Ok(()) => {}
                Err(status) if is_retryable(&status, caller.requires_leader()) => {}
                Err(status) => return self.fail(&caller, &status),
            }
            pause = if has_answered { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            sleep(pause).await;
            if self.retire(&caller) {
                return;
            }
            self.send_again(&caller);
        }
    }

    /// Marks all unanswered keep-alives to be sent again on the next stream.
    fn send_again(&self, caller: &Caller) {
        if let Some(renewer) = self.renewers.lock().get_mut(caller) {
            renewer.waiting.retain(|_, clients| {
                clients.retain(|client| !client.outbox.is_closed());
                !clients.is_empty()
            });
            renewer.unsent = renewer.waiting.keys().copied().collect();
            renewer.wake.notify_one();
        }
    }

    /// Sends queued keep-alives until the stream has been idle for [`IDLE_MAX`].
    async fn write(
        &self,
        caller: &Caller,
        wake: &Notify,
        frames: &mpsc::Sender<Result<Frame<Bytes>, Status>>,
    ) {
        loop {
            if tokio::time::timeout(IDLE_MAX, wake.notified()).await.is_err() && self.retire(caller)
            {
                return;
            }
            loop {
                let next = {
                    let mut renewers = self.renewers.lock();
                    renewers.get_mut(caller).and_then(|renewer| renewer.unsent.pop_front())
                };
                let Some(id) = next else { break };
                let request = framed(&LeaseKeepAliveRequest { id });
                if frames.send(Ok(Frame::data(request))).await.is_err() {
                    // The stream is lost. The reading half returns the reason.
                    return std::future::pending().await;
                }
            }
        }
    }

    async fn read(
        &self,
        caller: &Caller,
        mut messages: Messages,
        has_answered: &mut bool,
    ) -> Result<(), Status> {
        while let Some(message) = messages.message().await.map_err(receive_error)? {
            *has_answered = true;
            let response: LeaseKeepAliveResponse = framing::decode(message.clone())?;
            let waiting = {
                let mut renewers = self.renewers.lock();
                let renewer = renewers.get_mut(caller);
                renewer.and_then(|renewer| renewer.waiting.remove(&response.id))
            };
            for client in waiting.unwrap_or_default() {
                client.record_answer(response.id, &message);
            }
        }
        Ok(())
    }

    /// Removes a shared stream if no clients wait for it.
    fn retire(&self, caller: &Caller) -> bool {
        let mut renewers = self.renewers.lock();
        let is_idle = renewers.get(caller).is_none_or(|renewer| renewer.waiting.is_empty());
        if is_idle {
            renewers.remove(caller);
        }
        is_idle
    }

    /// Ends the streams of all waiting clients with the given status.
    fn fail(&self, caller: &Caller, status: &Status) {
        let renewer = self.renewers.lock().remove(caller);
        for client in renewer.into_iter().flat_map(|it| it.waiting.into_values()).flatten() {
            client.outbox.end(status.clone());
        }
    }
}

/// Returns whether another attempt may succeed, on another member or later on the same member.
fn is_retryable(status: &Status, requires_leader: bool) -> bool {
    let has_no_leader = status.message() == "etcdserver: no leader";
    status.code() == Code::Unavailable && !(requires_leader && has_no_leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_responses_are_sent_in_request_order() {
        let client = Client::default();
        for lease in [5, 6, 5] {
            client.add_request(lease);
        }
        assert_eq!(client.outstanding(), 3);
        // The member received one keep-alive for both requests for lease 5.
        client.record_answer(5, &Bytes::from_static(b"five"));
        client.record_answer(5, &Bytes::from_static(b"five"));
        assert_eq!(client.outstanding(), 2, "the third request waits for the second");
        client.record_answer(6, &Bytes::from_static(b"six"));
        assert_eq!(client.outstanding(), 0);
    }
}
