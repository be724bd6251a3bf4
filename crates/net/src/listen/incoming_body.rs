//! The body of a request over HTTP/1 or HTTP/2.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};

use super::http2::{Lost, StreamBody};

/// The body of a request.
#[derive(Debug)]
pub enum IncomingBody {
    /// The body of an HTTP/1 request.
    Http1(Incoming),
    /// The body of an HTTP/2 request.
    Http2(StreamBody),
}

impl From<StreamBody> for IncomingBody {
    fn from(body: StreamBody) -> Self {
        Self::Http2(body)
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Http1(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|read| read.map_err(Into::into))),
            Self::Http2(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|read| read.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// The body of a request cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body of an HTTP/1 request cannot be read.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// The body of an HTTP/2 request cannot be read.
    #[error(transparent)]
    Http2(#[from] Lost),
}

impl BodyError {
    /// Returns whether the client sent a body with an invalid chunked encoding, as opposed to a lost connection.
    pub fn is_malformed(&self) -> bool {
        let Self::Http1(error) = self else { return false };
        let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        // The HTTP/1 library reports faults in chunks as errors of these kinds.
        let is_fault =
            |kind| matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
        cause.is_some_and(|cause| is_fault(cause.kind()))
    }
}

/// Adapts a service to the request type of the HTTP/1 library.
#[derive(Clone, Debug)]
pub(super) struct FromLibrary<S>(pub(super) S);

impl<S, B> Service<Request<Incoming>> for FromLibrary<S>
where
    S: Service<Request<IncomingBody>, Response = Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<Incoming>) -> S::Future {
        self.0.call(request.map(IncomingBody::Http1))
    }
}
