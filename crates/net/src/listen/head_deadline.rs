//! A deadline for the head of an HTTP/1 request. The time starts with the first byte of the head.
//!
//! A connection may be idle between two requests for minutes, but a head must arrive quickly. The HTTP library has only
//! one timer for both cases. This wrapper therefore observes the reads. The deadline starts with the first byte that
//! arrives while no request is in progress, and ends when the service is called. Bytes that arrive during a request
//! have no deadline. They belong to the body of that request, which may continue to arrive until the response ends, or
//! to the next request, which is read only after the response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::service::Service;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::buffered::DirectWriter;
use super::hang_up::EndsWithClient;
use super::host::refuse_bad_host;
use super::incoming_body::IncomingBody;
use super::read_limit::ReadLimit;
use super::requests::{AnswerBody, Requests};
use super::socket::Ends;
use super::takeover::Takeover;
use super::write_through::write_to_inner;

/// A connection whose reads fail if a request head takes too long.
#[derive(Debug)]
pub(super) struct HeadDeadline<T> {
    inner: T,
    requests: Requests,
    timeout: Duration,
    /// The timer for an incomplete head, and the number of requests begun before that head.
    timer: Option<(u64, Pin<Box<Sleep>>)>,
}

impl<T> HeadDeadline<T> {
    pub(super) const fn new(inner: T, requests: Requests, timeout: Duration) -> Self {
        Self { inner, requests, timeout, timer: None }
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
        let begun = this.requests.begun();
        if this.timer.as_ref().is_some_and(|(before, _)| *before != begun) {
            this.timer = None;
        }
        let filled = buf.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        let is_in_request = this.requests.under_way() > 0;
        if buf.filled().len() > filled && !is_in_request {
            let timeout = this.timeout;
            this.timer.get_or_insert_with(|| (begun, Box::pin(tokio::time::sleep(timeout))));
        }
        let timer = this.timer.as_mut().map(|(_, timer)| timer.as_mut());
        match timer.map(|timer| timer.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Some(Poll::Pending) | None => read,
        }
    }
}

write_to_inner!(HeadDeadline);

/// Wraps a service. Refuses requests without a valid host, counts the connection's requests, adds the connection's
/// properties to each request, and passes the read limit of each response to the connection.
#[derive(Clone, Debug)]
pub(super) struct Announcing<S> {
    pub(super) inner: S,
    pub(super) ends: Ends,
    pub(super) requests: Requests,
    pub(super) ends_with_client: EndsWithClient,
    pub(super) takeover: Takeover,
    pub(super) writer: DirectWriter,
}

impl<S, B> Service<Request<IncomingBody>> for Announcing<S>
where
    S: Service<Request<IncomingBody>, Response = Response<B>, Future: Send + 'static>,
{
    type Response = Response<AnswerBody<Either<B, Full<Bytes>>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn call(&self, mut request: Request<IncomingBody>) -> Self::Future {
        self.ends_with_client.reset();
        request.extensions_mut().insert(self.ends_with_client.clone());
        request.extensions_mut().insert(self.ends);
        request.extensions_mut().insert(self.takeover.clone());
        request.extensions_mut().insert(self.writer.clone());
        let under_way = self.requests.begin();
        if let Some(refusal) = refuse_bad_host(&request) {
            return Box::pin(async move {
                Ok(refusal.map(|body| AnswerBody::new(Either::Right(body), under_way)))
            });
        }
        let answer = self.inner.call(request);
        let ends_with_client = self.ends_with_client.clone();
        Box::pin(async move {
            let mut answer = answer.await?;
            if let Some(limit) = answer.extensions_mut().remove::<ReadLimit>() {
                ends_with_client.limit_reading(limit);
            }
            Ok(answer.map(|body| AnswerBody::new(Either::Left(body), under_way)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use hyper::body::{Body, Frame};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::sync::watch;

    use super::super::tests::{TIMEOUTS, limits};
    use super::super::{Http1Service, serve_http1};
    use super::*;

    /// A service that answers with the request body, piece by piece.
    #[derive(Clone)]
    struct Echoing {
        /// Whether the response ends together with the request body.
        does_end: bool,
    }

    struct Echo {
        request: IncomingBody,
        does_end: bool,
    }

    impl Body for Echo {
        type Data = Bytes;
        type Error = crate::listen::BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, crate::listen::BodyError>>> {
            match Pin::new(&mut self.request).poll_frame(cx) {
                Poll::Ready(None) if !self.does_end => Poll::Pending,
                other => other,
            }
        }
    }

    impl Service<Request<IncomingBody>> for Echoing {
        type Response = Response<Echo>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn call(&self, mut request: Request<IncomingBody>) -> Self::Future {
            if let Some(client) = request.extensions_mut().remove::<EndsWithClient>() {
                client.ask();
            }
            let body = Echo { request: request.into_body(), does_end: self.does_end };
            ready(Ok(Response::new(body)))
        }
    }

    impl Http1Service for Echoing {
        const ANSWERS_HALF_CLOSED: bool = true;
    }

    /// Returns the client's end of a connection with a request in progress, after its first piece was echoed.
    async fn begin(does_end: bool) -> DuplexStream {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (stopper, stop) = watch::channel(false);
        tokio::spawn(async move {
            let _stopper = stopper;
            let service = (Echoing { does_end }, Ends::default());
            drop(serve_http1(Box::new(server), Vec::new(), service, limits(1), stop).await);
        });
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write_all(head).await.unwrap();
        client.write_all(b"1\r\na\r\n").await.unwrap();
        read_until(&mut client, b"1\r\na\r\n").await;
        client
    }

    async fn read_until(client: &mut DuplexStream, end: &[u8]) {
        let mut read = Vec::new();
        while !read.ends_with(end) {
            read.push(client.read_u8().await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_body_that_arrives_during_the_response_has_no_deadline() {
        for (sent, echoed) in [(&b"1\r\nb\r\n"[..], &b"1\r\nb\r\n"[..]), (b"0\r\n\r\n", b"")] {
            let mut client = begin(false).await;
            client.write_all(sent).await.unwrap();
            read_until(&mut client, echoed).await;
            let ended = tokio::time::timeout(TIMEOUTS.head * 10, client.read_u8()).await;
            assert!(ended.is_err(), "the connection ended after {sent:?}: {ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_of_a_client_stays_open_between_requests() {
        let mut client = begin(true).await;
        client.write_all(b"0\r\n\r\n").await.unwrap();
        read_until(&mut client, b"0\r\n\r\n").await;
        let ended = tokio::time::timeout(TIMEOUTS.idle * 10, client.read_u8()).await;
        assert!(ended.is_err(), "the idle connection ended: {ended:?}");
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        read_until(&mut client, b"HTTP/1.1 200 OK\r\n").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_request_head_after_a_streamed_response_closes_the_connection() {
        let mut client = begin(true).await;
        client.write_all(b"0\r\n\r\n").await.unwrap();
        read_until(&mut client, b"0\r\n\r\n").await;
        // The clock advances only while the client waits.
        let (started, mut rest) = (tokio::time::Instant::now(), Vec::new());
        for byte in b"GET / HTTP/1.1\r\nHost: x\r\n" {
            drop(client.write_all(&[*byte]).await);
            let ended = tokio::time::timeout(TIMEOUTS.head / 4, client.read_to_end(&mut rest));
            if ended.await.is_ok() {
                assert!(started.elapsed() <= TIMEOUTS.head * 2, "{:?}", started.elapsed());
                return;
            }
        }
        panic!("the connection was not closed");
    }
}
