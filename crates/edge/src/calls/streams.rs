//! Code shared by message streams: ending them from the server's side and, for hand-written bodies, reading requests
//! and starting responses.

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body::Body;
use prost::{Message, Name};
use quorate_api::codec::Half;
use quorate_grpc::ending::answer;
use quorate_grpc::head::compression;
use tokio_stream::Stream;
use tonic::codec::Streaming;
use tonic::{Code, Status};

use super::call::ResponseFuture;
use super::client_body::ClientBody;
use super::request_body::RequestBody;
use super::status::status;
use quorate_requests::StreamEnd;
use quorate_telemetry::metrics::Metrics;

/// Returns a client's message stream and its request headers.
pub(crate) fn requests<M: Message + Name + Default + 'static>(
    request: Request<RequestBody<ClientBody>>,
    message_bytes_max: usize,
) -> (Parts, Streaming<M>) {
    let (head, body) = request.into_parts();
    let encoding = compression(&head.headers);
    let decoder = Half::<M>::default();
    (head, Streaming::new_request(decoder, body, encoding, Some(message_bytes_max)))
}

/// The API label in the metrics of failed streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Watch,
    LeaseKeepAlive,
}

impl Api {
    const fn name(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::LeaseKeepAlive => "lease-keepalive",
        }
    }
}

/// Counts a request that could not be read, unless the client has disconnected.
pub(crate) fn count_receive_failure(metrics: &Metrics, api: Api, failure: &Status) {
    // A status with a source is a transport error, which means that the client has disconnected.
    if failure.code() != Code::Cancelled && failure.source().is_none() {
        metrics.network.stream_failures.with(&[api.name(), "receive"]).inc();
    }
}

/// Counts a response that could not be sent.
pub(crate) fn count_send_failure(metrics: &Metrics, api: Api) {
    metrics.network.stream_failures.with(&[api.name(), "send"]).inc();
}

/// Returns a response with this body, from which the messages are sent.
pub(crate) fn respond(
    body: impl Body<Data = Bytes, Error = Status> + Send + 'static,
) -> ResponseFuture {
    Box::pin(std::future::ready(Ok(answer(tonic::body::Body::new(body)))))
}

/// Wraps a stream so that the member can end it: when `end` resolves to a reason, the stream returns the reason as an
/// error and ends.
pub(crate) fn until<T>(
    inner: impl Stream<Item = Result<T, Status>> + Send,
    end: StreamEnd,
) -> impl Stream<Item = Result<T, Status>> + Send {
    Until { inner: Box::pin(inner), end: Some(end) }
}

struct Until<S> {
    inner: Pin<Box<S>>,
    /// `None` after the member has ended the stream.
    end: Option<StreamEnd>,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for Until<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(why) = end.as_mut().poll(cx) {
            self.end = None;
            return Poll::Ready(Some(Err(status(why))));
        }
        self.inner.as_mut().poll_next(cx)
    }
}
