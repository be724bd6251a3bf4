//! Counts the requests to the HTTP endpoints on a connection, to determine whether the connection is idle.
//!
//! A request is in progress until the body of its response is dropped, not just until the head is ready, because the
//! streams between members are responses that start immediately and never end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

/// The request counts of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    under_way: AtomicU64,
}

impl Requests {
    /// Counts a new request.
    pub(super) fn begin(&self) -> UnderWay {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(&self.0))
    }

    pub(super) fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    pub(super) fn under_way(&self) -> u64 {
        self.0.under_way.load(Ordering::Relaxed)
    }
}

/// A request in progress. Dropping it ends the request.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Counts>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response, which keeps its request in progress.
#[derive(Debug)]
pub(super) struct AnswerBody<B> {
    inner: B,
    _request: UnderWay,
}

impl<B> AnswerBody<B> {
    pub(super) const fn new(inner: B, request: UnderWay) -> Self {
        Self { inner, _request: request }
    }
}

impl<B: Body + Unpin> Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
