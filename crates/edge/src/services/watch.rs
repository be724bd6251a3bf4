//! The Watch service: requests and responses are independent of each other on one HTTP/2 stream.
//!
//! The response body is written by hand for speed: it takes frames from the hub's stream and encodes all available
//! frames into one buffer, so that ten thousand small responses become a few large writes. The stream needs no task and
//! no channel of its own. The transport polls the body only while the client grants flow-control credit, so the body of
//! a client that does not read is not polled. The hub limits the responses that accumulate in the meantime.
//!
//! The same poll reads the client's requests, so requests are read only while the client reads the responses.
//!
//! # Not here
//!
//! The events of a watcher (`state::watch`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body::{Body, Frame};
use quorate_api::code;
use quorate_api::etcdserverpb::WatchRequest;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_state::watch::{HeaderFields, WatchStream};
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Code, Status};

use crate::calls::access::client_by;
use crate::calls::asked;
use crate::calls::call::ResponseFuture;
use crate::calls::client_body::ClientBody;
use crate::calls::large_reply::{COUNTED_BYTES_MIN, hold};
use crate::calls::request_body::RequestBody;
use crate::calls::spans;
use crate::calls::status::status;
use crate::calls::streams::{self, Api, Requests};
use quorate_grpc::ending::Ending;
use quorate_grpc::framing::put_message;
use quorate_grpc::head::requires_leader;
use quorate_grpc::methods::Kind;
use quorate_grpc::status::code_name;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_requests::access::{AccessControl, Client};
use quorate_requests::{DataStore, RequestError, ServerHandles, ServerInfo, StreamEnd, StreamEnds};
use quorate_state::apply::{AuthRefusal, Refusal};
use quorate_telemetry::audit::Outcome;

/// Number of response bytes collected before they are passed to the transport.
const CHUNK_BYTES: usize = 64 * 1024;

/// The Watch service.
#[derive(Debug)]
pub(crate) struct WatchService {
    access_control: Arc<AccessControl>,
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
    streams: Arc<StreamEnds>,
    message_bytes_max: usize,
}

impl WatchService {
    pub(crate) fn new(handles: &ServerHandles, message_bytes_max: usize) -> Self {
        Self {
            access_control: Arc::clone(&handles.access_control),
            info: Arc::clone(&handles.info),
            store: Arc::clone(&handles.store),
            streams: Arc::clone(&handles.streams),
            message_bytes_max,
        }
    }

    pub(crate) fn call(&self, request: Request<RequestBody<ClientBody>>) -> ResponseFuture {
        let (head, requests) = streams::requests(request, self.message_bytes_max);
        let stream = self.store.hub().open_stream(self.message_bytes_max);
        streams::respond(Session {
            stream,
            client: client_by(&head),
            access_control: Arc::clone(&self.access_control),
            requests: Some(requests),
            info: Arc::clone(&self.info),
            store: Arc::clone(&self.store),
            progress: progress_timer(self.info.limits().progress_interval),
            end: self.streams.wait(requires_leader(&head.headers)),
            chunk: BytesMut::new(),
            ending: Ending::Open,
            watched: spans::Watched::default(),
        })
    }
}

/// Returns the timer of a stream's progress notifications. Each stream has its own phase, so that a thousand streams do
/// not send notifications at the same time.
fn progress_timer(interval: Duration) -> Interval {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let jitter = interval.mul_f64(f64::from(nanos) / 1e9 / 10.0);
    let period = interval + jitter;
    let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

/// One client's watch stream, as a response body.
struct Session {
    stream: WatchStream,
    /// The client that opened the stream. The client's permissions are checked only when a watcher is created.
    client: Client,
    access_control: Arc<AccessControl>,
    /// `None` after the client has closed its side of the stream. Events are still sent.
    requests: Option<Requests<WatchRequest>>,
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
    progress: Interval,
    /// Resolves when the server ends the stream.
    end: StreamEnd,
    chunk: BytesMut,
    ending: Ending,
    watched: spans::Watched,
}

impl Session {
    /// Reads the client's requests.
    fn take_requests(&mut self, cx: &mut Context<'_>) {
        while self.stream.accepts_requests()
            && let Some(requests) = &mut self.requests
        {
            match requests.poll_next(cx) {
                Poll::Ready(Some(Ok(request))) => self.take_request(request),
                Poll::Ready(None) => self.requests = None,
                Poll::Ready(Some(Err(failure))) => {
                    self.requests = None;
                    streams::count_receive_failure(self.info.metrics(), Api::Watch, &failure);
                    self.ending = Ending::With(match failure.code() {
                        Code::Cancelled => status(RequestError::WatchCanceled),
                        _ => in_grpc_gos_words(failure, Kind::BidiStream),
                    });
                }
                Poll::Pending => return,
            }
        }
    }

    fn take_request(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                let (access_control, credentials) =
                    (&self.access_control, &self.client.credentials);
                let span = self.client.trace.as_ref().map(|trace| (trace, spans::watch(&create)));
                let account = self.client.account.as_ref();
                let account = account.map(|account| (account, asked::watch(&create)));
                let is_admitted = account.as_ref().is_none_or(|(account, _)| account.admits());
                let mut denied = None;
                let created = self.stream.create(create, |key, end| {
                    if !is_admitted {
                        return Err(RequestError::TooManyRequests.to_string());
                    }
                    let checked = access_control.check_watch(credentials, key, end);
                    checked.map_err(|error| denied.insert(denial(&error)).clone())
                });
                if is_admitted && let Some((account, asked)) = account {
                    account.log_part(asked, outcome(created, denied.as_deref()));
                }
                if let (Some((trace, span)), Some(watch_id)) = (span, created) {
                    self.watched.begin(watch_id, trace.operation_beside("watch", span));
                }
            }
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.stream.cancel(cancel.watch_id);
                self.watched.end(cancel.watch_id);
            }
            Some(RequestUnion::ProgressRequest(_)) => self.stream.request_progress(),
            None => {}
        }
    }

    /// Encodes responses into the chunk until it is full or no response is available.
    fn gather(&mut self, cx: &Context<'_>) -> Result<(), Status> {
        let header = HeaderFields {
            cluster_id: self.info.cluster_id(),
            member_id: self.info.id(),
            raft_term: self.info.status().term(),
        };
        let (mut begun, mut event_count) = (None, 0);
        while self.chunk.len() < CHUNK_BYTES {
            match self.stream.poll_next(cx, &header) {
                Poll::Ready(Ok(frame)) => {
                    begun.get_or_insert_with(Instant::now);
                    event_count += frame.event_count();
                    let len = frame.encoded_len();
                    let put = |chunk: &mut BytesMut| frame.encode(chunk);
                    put_message(&mut self.chunk, len, put).inspect_err(|_| {
                        streams::count_send_failure(self.info.metrics(), Api::Watch);
                    })?;
                }
                Poll::Ready(Err(fault)) => {
                    let status = Status::unknown(fault.to_string());
                    self.store.report_history_fault(fault);
                    return Err(status);
                }
                Poll::Pending => break,
            }
        }
        if let Some(begun) = begun {
            self.count_sent(event_count, begun.elapsed());
        }
        Ok(())
    }

    /// Counts the events that were encoded together, and records the time that encoding took.
    fn count_sent(&self, event_count: usize, took: Duration) {
        let metrics = self.info.metrics();
        let Ok(events @ 1..) = u32::try_from(event_count) else {
            return metrics.server.watch_send_control.observe(took);
        };
        metrics.mvcc.events.add(events.into());
        metrics.server.watch_send.observe(took);
        metrics.server.watch_send_per_event.observe(took / events);
    }
}

/// Returns the audit result of a request to create a watcher.
fn outcome(created: Option<i64>, denied: Option<&str>) -> Outcome<'_> {
    let (code, error) = match (created, denied) {
        (Some(_), _) => (Code::Ok, ""),
        (None, Some(why)) => (Code::PermissionDenied, why),
        (None, None) => (Code::InvalidArgument, "the watcher was not created"),
    };
    let method = "/etcdserverpb.Watch/Watch";
    Outcome { method, code: code_name(code), error, took: None }
}

/// Returns the reason why a watcher was not created, in etcd's format, which is the text form of a gRPC status. If etcd
/// has no text for the error, the reason is "permission denied".
pub(crate) fn denial(error: &RequestError) -> String {
    let refused = status(error.clone());
    let status = match error {
        RequestError::InvalidAuthToken => refused,
        RequestError::Refused(Refusal::Auth(AuthRefusal::OldRevision | AuthRefusal::UserEmpty)) => {
            refused
        }
        _ => status(AuthRefusal::PermissionDenied),
    };
    format!("rpc error: code = {} desc = {}", code::name(status.code()), status.message())
}

impl Body for Session {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.ending.is_open() {
            this.take_requests(cx);
            while this.progress.poll_tick(cx).is_ready() {
                let begun = Instant::now();
                this.stream.tick_progress();
                let took = begun.elapsed();
                this.info.metrics().server.watch_send_progress.observe(took);
            }
            if let Poll::Ready(why) = this.end.as_mut().poll(cx) {
                this.ending = Ending::With(status(why));
            }
            if let Err(status) = this.gather(cx) {
                this.ending = Ending::With(status);
            }
        }
        if !this.chunk.is_empty() {
            let mut chunk = this.chunk.split().freeze();
            if chunk.len() >= COUNTED_BYTES_MIN {
                let held = this.store.hub().hold(chunk.len());
                chunk = hold(chunk, held);
            }
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        this.ending.poll_frame()
    }
}
