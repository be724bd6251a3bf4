//! Endings of response streams.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::Status;

use crate::member::RequestError;

/// A stream that ends with "no leader" when `lost` is done.
pub(super) fn until_leader_lost<T>(
    inner: impl Stream<Item = Result<T, Status>> + Send,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> impl Stream<Item = Result<T, Status>> + Send {
    UntilLeaderLost { inner: Box::pin(inner), lost: Some(lost) }
}

struct UntilLeaderLost<S> {
    inner: Pin<Box<S>>,
    /// `None` once it has ended the stream.
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for UntilLeaderLost<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(lost) = &mut self.lost else { return Poll::Ready(None) };
        if lost.as_mut().poll(cx).is_ready() {
            self.lost = None;
            return Poll::Ready(Some(Err(RequestError::NoLeader.into())));
        }
        self.inner.as_mut().poll_next(cx)
    }
}
