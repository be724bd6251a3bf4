//! A body that reports the data passing through it and the end of its call.
//!
//! The status of a gRPC call is in the trailers, or in the headers if the response has no messages. A client that
//! disconnects ends the call without a status. In each case, the end is reported exactly once.
//!
//! All responses of members and proxies pass through such a body, which also writes their statuses as grpc-go does.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::status::with_grpc_gos_text;

/// Receives the events of a body.
pub trait Observer: Send + Unpin + 'static {
    /// Called when a part of the body is passed to the transport.
    fn passed(&mut self, _part: &[u8]) {}

    /// Called when the call ends, with its status.
    fn ended(&mut self, _code: Code, _message: &str) {}
}

/// The status of a call whose body ends without a status. grpc-go's clients report the same status.
const NO_STATUS: (Code, &str) =
    (Code::Internal, "server closed the stream without sending trailers");

/// A body with its observer.
#[expect(missing_debug_implementations, reason = "a body in progress has no useful debug output")]
pub struct Observed<O: Observer> {
    inner: Body,
    /// `None` once the end has been reported.
    observer: Option<O>,
}

impl<O: Observer> Observed<O> {
    /// Observes the body of a response with these headers. The headers contain the status if the response has no
    /// messages.
    pub fn new(headers: &mut HeaderMap, inner: Body, observer: Option<O>) -> Self {
        let mut observed = Self { inner, observer };
        if let Some(status) = with_grpc_gos_text(headers) {
            observed.end((status.code(), status.message()));
        }
        observed
    }

    /// Observes a body without headers.
    pub fn of_body(inner: Body, observer: O) -> Body {
        Body::new(Self { inner, observer: Some(observer) })
    }

    fn end(&mut self, (code, message): (Code, &str)) {
        if let Some(mut observer) = self.observer.take() {
            observer.ended(code, message);
        }
    }
}

impl<O: Observer> HttpBody for Observed<O> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &mut frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(observer)) = (frame.data_ref(), &mut self.observer) {
                    observer.passed(data);
                } else if let Some(trailers) = frame.trailers_mut() {
                    match with_grpc_gos_text(trailers) {
                        None => self.end(NO_STATUS),
                        Some(status) => self.end((status.code(), status.message())),
                    }
                }
            }
            Some(Err(status)) => self.end((status.code(), status.message())),
            None => self.end(NO_STATUS),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<O: Observer> Drop for Observed<O> {
    fn drop(&mut self) {
        self.end((Code::Cancelled, ""));
    }
}
