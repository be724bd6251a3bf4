//! Endings of response streams.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::Status;

use crate::member::StreamEnd;

/// A stream that ends when the member says so, and with why, if it has not ended before.
pub(super) fn until<T>(
    inner: impl Stream<Item = Result<T, Status>> + Send,
    end: StreamEnd,
) -> impl Stream<Item = Result<T, Status>> + Send {
    Until { inner: Box::pin(inner), end: Some(end) }
}

struct Until<S> {
    inner: Pin<Box<S>>,
    /// `None` once it has ended the stream.
    end: Option<StreamEnd>,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for Until<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(why) = end.as_mut().poll(cx) {
            self.end = None;
            return Poll::Ready(Some(Err(why.into())));
        }
        self.inner.as_mut().poll_next(cx)
    }
}
