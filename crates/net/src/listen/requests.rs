//! Counts the requests to the HTTP endpoints on a connection, to determine whether it is idle.
//!
//! A request is in progress until the body of its answer is dropped, not only until the head is ready: the
//! streams between members are answers that start at once and never end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

/// The counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    under_way: AtomicU64,
}

impl Requests {
    /// Counts a request that starts.
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

/// A request that is in progress until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Counts>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer together with its request.
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
