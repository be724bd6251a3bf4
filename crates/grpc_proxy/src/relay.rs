//! Forwards calls unchanged: one request message, and the member's response in any format.
//!
//! The request message is not decoded. The response is forwarded frame by frame, so a snapshot occupies only the memory
//! of its in-flight frames.
//!
//! # Bound
//!
//! A request is at most [`REQUEST_BYTES_MAX`] bytes long, the default limit of grpc-go's servers.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame};
use quorate_grpc::ending::{self, trailers};
use quorate_grpc::framing::with_head;
use quorate_grpc::methods::{Kind, Method};
use quorate_grpc::wording::in_grpc_gos_words;
use tokio_stream::Stream as _;
use tonic::Status;
use tonic::body::Body;

use crate::framing::{self, Messages};
use crate::unread::MemberBody;
use crate::upstream::{MemberRequest, Upstream, receive_error};

/// Maximum length of a request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 << 20;

/// The gRPC library's error text for a request without a message.
const NO_MESSAGE: &str = "Missing request message.";

/// The default limit on the length of a response, in bytes: the length of the longest possible message.
const UNLIMITED_BYTES: usize = i32::MAX as usize;

/// Reads the single message of a request.
pub(crate) async fn only(kind: Kind, mut messages: Messages) -> Result<Bytes, Status> {
    match messages.message().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(in_grpc_gos_words(Status::internal(NO_MESSAGE), kind)),
        Err(status) => Err(in_grpc_gos_words(status, kind)),
    }
}

/// Sends the request to a member and returns its response.
pub(crate) async fn relay(
    upstream: &Upstream,
    method: &'static Method,
    headers: HeaderMap,
    message: Bytes,
) -> Result<Response<Body>, Status> {
    let answer = send(upstream, method, headers, message).await?;
    if upstream.limits.receive_bytes < UNLIMITED_BYTES {
        let messages = framing::replies(answer, upstream.limits.receive_bytes)?;
        return Ok(ending::answer(Body::new(LimitedBody { messages, has_ended: false })));
    }
    let (head, body) = answer.into_parts();
    let mut answer = Response::from_parts(head, Body::new(RelayedBody(body)));
    answer.headers_mut().remove(http::header::DATE);
    Ok(answer)
}

/// Sends the request to a member and returns the single message of its response.
pub(crate) async fn ask(
    upstream: &Upstream,
    method: &'static Method,
    headers: HeaderMap,
    message: Bytes,
) -> Result<Bytes, Status> {
    let answer = send(upstream, method, headers, message).await?;
    let mut messages = framing::replies(answer, upstream.limits.receive_bytes)?;
    let message = messages.message().await.map_err(receive_error)?;
    let message = message.ok_or_else(|| Status::internal("grpc: the response has no message"))?;
    // The response is valid only if its trailers report success.
    messages.trailers().await.map_err(receive_error)?;
    Ok(message)
}

async fn send(
    upstream: &Upstream,
    method: &'static Method,
    headers: HeaderMap,
    message: Bytes,
) -> Result<Response<MemberBody>, Status> {
    let (path, only_reads, is_unary) = (method.path, method.only_reads, method.kind == Kind::Unary);
    upstream.ask(&MemberRequest { path, headers, message, only_reads, is_unary }).await
}

/// The body of a member's response, forwarded to a client.
#[derive(Debug)]
struct RelayedBody(MemberBody);

impl HttpBody for RelayedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.0).poll_frame(cx) {
            // The client receives the status that grpc-go reports for a lost connection.
            Poll::Ready(Some(Err(status))) => Poll::Ready(Some(trailers(&status))),
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// The body of a member's response, with a limit on the size of its messages.
#[derive(Debug)]
struct LimitedBody {
    messages: Messages,
    has_ended: bool,
}

impl LimitedBody {
    fn end(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.has_ended = true;
        Poll::Ready(Some(trailers(status)))
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.messages).poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => self.end(&Status::ok("")),
            Poll::Ready(Some(Err(status))) => self.end(&receive_error(status)),
            Poll::Ready(Some(Ok(message))) => {
                Poll::Ready(Some(Ok(Frame::data(with_head(&message)))))
            }
        }
    }
}
