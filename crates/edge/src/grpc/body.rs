//! A call's response body, watched until the call has ended.
//!
//! The status of a gRPC call travels at its end, in the trailers; a client that goes away ends it without
//! any. Either way the call is reported once, to [`CallObserver::ended`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tonic::{Code, Status};

/// Is told about one call.
pub trait CallObserver: Send + Unpin + 'static {
    /// A part of the response was handed to the transport.
    fn sent(&mut self, part: &[u8]);

    /// The call has ended, with these words.
    fn ended(&mut self, code: Code, message: &str);
}

/// Wraps a response body; see the module.
#[expect(missing_debug_implementations, reason = "a response under way prints nothing of use")]
pub struct Observed<O: CallObserver> {
    inner: tonic::body::Body,
    observer: Option<O>,
}

impl<O: CallObserver> Observed<O> {
    /// `headers` are the response's: a refusal carries its status there.
    pub(crate) fn new(headers: &HeaderMap, inner: tonic::body::Body, observer: Option<O>) -> Self {
        let mut observed = Self { inner, observer };
        if let Some(status) = Status::from_header_map(headers) {
            observed.end(status.code(), status.message());
        }
        observed
    }

    fn end(&mut self, code: Code, message: &str) {
        if let Some(mut observer) = self.observer.take() {
            observer.ended(code, message);
        }
    }
}

impl<O: CallObserver> Body for Observed<O> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(observer)) = (frame.data_ref(), &mut self.observer) {
                    observer.sent(data);
                } else if let Some(trailers) = frame.trailers_ref() {
                    match Status::from_header_map(trailers) {
                        None => self.end(Code::Ok, ""),
                        Some(status) => self.end(status.code(), status.message()),
                    }
                }
            }
            Some(Err(status)) => self.end(status.code(), status.message()),
            None => self.end(Code::Ok, ""),
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

impl<O: CallObserver> Drop for Observed<O> {
    fn drop(&mut self) {
        self.end(Code::Cancelled, "");
    }
}
