//! A deadline for the head of an HTTP/1 request, from its first byte on.
//!
//! A connection may be idle between two requests for minutes, but a head must arrive quickly. The HTTP
//! library has one timer for both cases. This wrapper therefore observes the reads: the deadline starts with
//! the first byte while a head is expected, and ends when the service is called.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::hang_up::EndsWithClient;
use super::requests::{AnswerBody, Requests};
use super::socket::Ends;
use super::takeover::Takeover;
use super::write_through::write_to_inner;

/// A count shared by service and connection, which increases when the service is called and again when it
/// returns the head of the answer. It is odd in between.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<AtomicUsize>);

impl Turns {
    fn turn(&self) {
        // Service and connection run in the same task.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection whose reads fail when a head takes too long.
#[derive(Debug)]
pub(super) struct HeadDeadline<T> {
    inner: T,
    turns: Turns,
    patience: Duration,
    /// The timer while a head is incomplete, with the turn it belongs to.
    timer: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<T> HeadDeadline<T> {
    pub(super) const fn new(inner: T, turns: Turns, patience: Duration) -> Self {
        Self { inner, turns, patience, timer: None }
    }

    /// Returns the connection without the deadline.
    pub(super) fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadDeadline<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let turn = this.turns.count();
        if this.timer.as_ref().is_some_and(|(of, _)| *of != turn) {
            this.timer = None;
        }
        let filled = buf.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        let is_in_request = turn % 2 == 1;
        if buf.filled().len() > filled && !is_in_request {
            let patience = this.patience;
            this.timer.get_or_insert_with(|| (turn, Box::pin(tokio::time::sleep(patience))));
        }
        let timer = this.timer.as_mut().map(|(_, timer)| timer.as_mut());
        match timer.map(|timer| timer.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Some(Poll::Pending) | None => read,
        }
    }
}

write_to_inner!(HeadDeadline);

/// A service that notifies the connection when a head is complete, when the next head may arrive, and when an
/// answer is sent.
#[derive(Clone, Debug)]
pub(super) struct Announcing<S> {
    pub(super) inner: S,
    pub(super) ends: Ends,
    pub(super) turns: Turns,
    pub(super) requests: Requests,
    pub(super) ends_with_client: EndsWithClient,
    pub(super) takeover: Takeover,
}

impl<S, B> Service<Request<Incoming>> for Announcing<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Send + 'static>,
{
    type Response = Response<AnswerBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.turns.turn();
        self.ends_with_client.set(false);
        request.extensions_mut().insert(self.ends_with_client.clone());
        request.extensions_mut().insert(self.ends);
        request.extensions_mut().insert(self.takeover.clone());
        let under_way = self.requests.begin();
        let (answer, turns) = (self.inner.call(request), self.turns.clone());
        Box::pin(async move {
            let answer = answer.await;
            turns.turn();
            answer.map(|answer| answer.map(|body| AnswerBody::new(body, under_way)))
        })
    }
}
