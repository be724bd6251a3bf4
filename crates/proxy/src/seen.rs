//! Bodies that somebody looks at as they pass.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// Who looks.
pub(crate) trait Onlooker: Send + Unpin + 'static {
    /// A piece has come.
    fn data(&mut self, _data: &Bytes) {}

    /// The end has come, and how.
    fn trailers(&mut self, _trailers: &HeaderMap) {}

    /// Nothing will come any more.
    fn failed(&mut self, _status: &Status) {}
}

/// The body, as somebody looks on.
pub(crate) fn by(onlooker: impl Onlooker, inner: Body) -> Body {
    Body::new(Seen { inner, onlooker })
}

struct Seen<O> {
    inner: Body,
    onlooker: O,
}

impl<O: Onlooker> HttpBody for Seen<O> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => self.onlooker.data(data),
                (None, Some(trailers)) => self.onlooker.trailers(trailers),
                (None, None) => {}
            },
            Poll::Ready(Some(Err(status))) => self.onlooker.failed(status),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
