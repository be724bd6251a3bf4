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
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
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
use quorate_grpc::framing::put_small;
use quorate_grpc::head::requires_leader;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_requests::access::Client;
use quorate_requests::{DataStore, ServerHandles, ServerInfo, StreamEnd, StreamEnds};

/// Number of response bytes collected before they are passed to the transport.
const CHUNK_BYTES: usize = 32 * 1024;

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
            chunk: BytesMut::new(),
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
    /// Resolves when the server ends the stream.
    end: StreamEnd,
    chunk: BytesMut,
    ending: Ending,
}

impl Session {
    /// Processes renewals until one of them is pending.
    fn poll_renewals(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if let Poll::Ready(why) = self.end.as_mut().poll(cx) {
            return Poll::Ready(status(why));
        }
        while self.chunk.len() < CHUNK_BYTES {
            if self.is_renewing
                && let Some(renewal) = &mut self.renewal
            {
                let Poll::Ready(renewed) = renewal.poll(cx) else { break };
                self.is_renewing = false;
                let put = renewed.and_then(|response| put_small(&mut self.chunk, &response));
                if let Err(status) = put {
                    return Poll::Ready(status);
                }
            }
            match self.requests.poll_next(cx) {
                Poll::Ready(Some(Ok(request))) => {
                    if let Some(account) = &self.client.account {
                        request.note(account);
                    }
                    self.renew(request.id);
                }
                Poll::Ready(Some(Err(status))) => {
                    let metrics = self.info.metrics();
                    streams::count_receive_failure(metrics, Api::LeaseKeepAlive, &status);
                    return Poll::Ready(in_grpc_gos_words(status, Kind::BidiStream));
                }
                Poll::Ready(None) => return Poll::Ready(Status::ok("")),
                Poll::Pending => break,
            }
        }
        Poll::Pending
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
        if this.ending.is_open()
            && let Poll::Ready(status) = this.poll_renewals(cx)
        {
            this.ending = Ending::With(status);
        }
        if !this.chunk.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.chunk.split().freeze()))));
        }
        this.ending.poll_frame()
    }
}
