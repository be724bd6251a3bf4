//! Lease keep-alive: a stream whose requests are answered in order.
//!
//! As in the Watch service, the response body is written by hand, because a renewal on the leader is only a memory
//! access, and generic stream layers would cost more than the renewal itself. One renewal runs at a time. Further
//! requests from the client wait in the stream's receive window.
//!
//! # Not here
//!
//! The renewal itself (`DataStore::renew_lease`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use quorate_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use quorate_state::units::LeaseId;
use tokio_util::sync::ReusableBoxFuture;
use tonic::Status;

use crate::calls::access::client_by;
use crate::calls::asked::Asks as _;
use crate::calls::call::ResponseFuture;
use crate::calls::client_body::ClientBody;
use crate::calls::request_body::RequestBody;
use crate::calls::spans;
use crate::calls::status::status;
use crate::calls::streams::{self, Api, Requests};
use quorate_grpc::ending::Ending;
use quorate_grpc::framing::framed;
use quorate_grpc::head::requires_leader;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_requests::access::Client;
use quorate_requests::{DataStore, ServerHandles, ServerInfo, StreamEnd, StreamEnds};

/// Number of responses after which a stream checks whether the server ends it, even if further responses are ready.
const UNCHECKED_MAX: u32 = 256;

/// The keep-alive service.
#[derive(Debug)]
pub(crate) struct KeepAliveService {
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
    streams: Arc<StreamEnds>,
    message_bytes_max: usize,
}

impl KeepAliveService {
    pub(crate) fn new(handles: &ServerHandles, message_bytes_max: usize) -> Self {
        let (store, streams) = (Arc::clone(&handles.store), Arc::clone(&handles.streams));
        let info = Arc::clone(&handles.info);
        Self { info, store, streams, message_bytes_max }
    }

    pub(crate) fn call(&self, request: Request<RequestBody<ClientBody>>) -> ResponseFuture {
        let (head, requests) = streams::requests(request, self.message_bytes_max);
        streams::respond(Session {
            requests,
            client: Arc::new(client_by(&head)),
            info: Arc::clone(&self.info),
            store: Arc::clone(&self.store),
            renewal: None,
            is_renewing: false,
            end: self.streams.wait(requires_leader(&head.headers)),
            last: None,
            unchecked_count: 0,
            ending: Ending::Open,
        })
    }
}

type Renewed = Result<LeaseKeepAliveResponse, Status>;

/// One client's keep-alive stream, as a response body.
struct Session {
    requests: Requests<LeaseKeepAliveRequest>,
    /// The client that opened the stream. The client's permissions are checked for each renewal.
    client: Arc<Client>,
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
    /// The current or the last renewal. All renewals reuse one allocation.
    renewal: Option<ReusableBoxFuture<'static, Renewed>>,
    is_renewing: bool,
    /// The last response and its encoding. Consecutive responses are usually equal: the client renews the same lease,
    /// and the revision changes only after a write.
    last: Option<(LeaseKeepAliveResponse, Bytes)>,
    /// Resolves when the server ends the stream.
    end: StreamEnd,
    /// The number of responses since `end` was polled.
    unchecked_count: u32,
    ending: Ending,
}

impl Session {
    /// Returns the next response, unless the server ends the stream. The error is the status with which the stream
    /// ends.
    ///
    /// The end is polled only when no response is ready, and after [`UNCHECKED_MAX`] responses, so that a client that
    /// keeps sending requests cannot delay it.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        if self.unchecked_count == UNCHECKED_MAX
            && let Poll::Ready(why) = self.poll_end(cx)
        {
            return Poll::Ready(Err(why));
        }
        if let Poll::Ready(response) = self.poll_response(cx) {
            self.unchecked_count += 1;
            return Poll::Ready(response);
        }
        self.poll_end(cx).map(Err)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        self.unchecked_count = 0;
        self.end.as_mut().poll(cx).map(status)
    }

    /// Returns the next response. The error is the status with which the stream ends.
    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        loop {
            if self.is_renewing
                && let Some(renewal) = &mut self.renewal
            {
                let renewed = ready!(renewal.poll(cx));
                self.is_renewing = false;
                return Poll::Ready(renewed.map(|response| self.encode(response)));
            }
            match ready!(self.requests.poll_next(cx)) {
                Some(Ok(request)) => {
                    if let Some(account) = &self.client.account {
                        request.note(account);
                    }
                    self.renew(request.id);
                }
                Some(Err(status)) => {
                    let metrics = self.info.metrics();
                    streams::count_receive_failure(metrics, Api::LeaseKeepAlive, &status);
                    return Poll::Ready(Err(in_grpc_gos_words(status, Kind::BidiStream)));
                }
                None => return Poll::Ready(Err(Status::ok(""))),
            }
        }
    }

    /// Returns the encoding of a response.
    fn encode(&mut self, response: LeaseKeepAliveResponse) -> Bytes {
        match &self.last {
            Some((last, encoded)) if *last == response => encoded.clone(),
            _ => {
                let encoded = framed(&response);
                self.last = Some((response, encoded.clone()));
                encoded
            }
        }
    }

    /// Starts a renewal.
    fn renew(&mut self, id: i64) {
        let (info, store) = (Arc::clone(&self.info), Arc::clone(&self.store));
        let client = Arc::clone(&self.client);
        let renewal = async move {
            // The header contains the revision before the renewal.
            let header = Some(info.header(store.current_revision()));
            let _renewal = spans::begin(&client, &LeaseKeepAliveRequest { id });
            // A missing lease is reported with a TTL of zero.
            let ttl = store
                .renew_lease(&client.credentials, LeaseId(id))
                .await
                .map_err(status)?
                .unwrap_or_default();
            Ok(LeaseKeepAliveResponse { header, id, ttl })
        };
        match &mut self.renewal {
            Some(last) => last.set(renewal),
            None => self.renewal = Some(ReusableBoxFuture::new(renewal)),
        }
        self.is_renewing = true;
    }
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
            let ending = match ready!(this.poll_open(cx)) {
                Ok(response) => return Poll::Ready(Some(Ok(Frame::data(response)))),
                Err(ending) => ending,
            };
            this.ending = Ending::With(ending);
        }
        this.ending.poll_frame()
    }
}
