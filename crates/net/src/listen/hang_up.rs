//! Detects that an HTTP/1 client has disconnected while waiting for a response.
//!
//! The HTTP library does not read between a request and its response, because some clients close their sending side and
//! still expect the response. However, an endless response, or a response that waits for other events, must end when
//! its client disconnects. A service can request this ([`EndsWithClient`]). The connection then reads one byte ahead.
//! The byte belongs to the next request. If there is no byte because the client has closed its side, the connection is
//! closed.
//!
//! A client may also stay connected and hardly read. If the response has a [`ReadLimit`], [`Unstalled`] closes the
//! connection if the client reads more slowly than the limit permits.
//!
//! # Not here
//!
//! HTTP/2, where clients reset cancelled streams.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::read_limit::{CHECKED_EVERY, ReadLimit, Reading};

/// A request extension by which a service requests that the response end when the client disconnects.
#[derive(Clone, Debug, Default)]
pub struct EndsWithClient(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    ends: AtomicBool,
    is_limited: AtomicBool,
    limit: Mutex<Option<ReadLimit>>,
}

impl EndsWithClient {
    /// Ends the response to the current request when its client disconnects.
    pub fn ask(&self) {
        self.0.ends.store(true, Ordering::Relaxed);
    }

    /// Closes the connection if its client reads the response more slowly than the limit permits.
    pub(super) fn limit_reading(&self, limit: ReadLimit) {
        *self.0.limit.lock() = Some(limit);
        self.0.is_limited.store(true, Ordering::Relaxed);
    }

    /// Withdraws the service's requests. Disconnects and slow clients are ignored until the service requests their
    /// detection again. The service and the connection run in the same task, so relaxed ordering is sufficient.
    pub(super) fn reset(&self) {
        self.0.ends.store(false, Ordering::Relaxed);
        if self.0.is_limited.swap(false, Ordering::Relaxed) {
            *self.0.limit.lock() = None;
        }
    }

    fn is_asked(&self) -> bool {
        self.0.ends.load(Ordering::Relaxed)
    }

    fn limit(&self) -> Option<ReadLimit> {
        if self.0.is_limited.load(Ordering::Relaxed) { self.0.limit.lock().clone() } else { None }
    }
}

/// A connection that ends if its client reads too slowly.
///
/// The kernel buffers a few megabytes for a client that does not read. The limit applies once the kernel accepts no more
/// data.
pub(super) struct Unstalled<'a, C, P> {
    connection: C,
    /// Returns the number of bytes sent so far, and whether more are waiting.
    progress: P,
    asked: &'a EndsWithClient,
    /// The progress of a client for which data is waiting, and the timer of the next check.
    waiting: Option<(Reading, Pin<Box<Sleep>>)>,
}

impl<'a, C, P: Fn() -> (u64, bool)> Unstalled<'a, C, P> {
    pub(super) const fn new(connection: C, progress: P, asked: &'a EndsWithClient) -> Self {
        Self { connection, progress, asked, waiting: None }
    }
}

impl<C, P, E> Future for Unstalled<'_, C, P>
where
    C: Future<Output = Result<(), E>> + Unpin,
    P: Fn() -> (u64, bool) + Unpin,
    E: From<io::Error>,
{
    type Output = Result<(), E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(done) = Pin::new(&mut this.connection).poll(cx) {
            return Poll::Ready(done);
        }
        let (sent, is_waiting) = (this.progress)();
        let Some(limit) = is_waiting.then(|| this.asked.limit()).flatten() else {
            this.waiting = None;
            return Poll::Pending;
        };
        let (reading, timer) = this.waiting.get_or_insert_with(|| {
            (Reading::new(sent, sent), Box::pin(tokio::time::sleep(CHECKED_EVERY)))
        });
        while timer.as_mut().poll(cx).is_ready() {
            if reading.is_too_slow(limit.0.required_pace(), sent, None) {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            }
            timer.as_mut().reset(Instant::now() + CHECKED_EVERY);
        }
        Poll::Pending
    }
}

/// A connection that detects disconnects if a service requests it.
#[derive(Debug)]
pub(super) struct HangUp<T> {
    inner: T,
    asked: EndsWithClient,
    /// The byte read ahead, if any.
    ahead: Option<u8>,
}

impl<T> HangUp<T> {
    pub(super) const fn new(inner: T, asked: EndsWithClient) -> Self {
        Self { inner, asked, ahead: None }
    }

    /// Returns the connection and the byte read ahead.
    pub(super) fn into_parts(self) -> (T, Option<u8>) {
        (self.inner, self.ahead)
    }
}

impl<T: AsyncRead + Unpin> HangUp<T> {
    /// Returns an error if the client has disconnected and the service has requested detection.
    fn look(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.asked.is_asked() || self.ahead.is_some() {
            return Ok(());
        }
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
            Poll::Pending => Ok(()),
            Poll::Ready(read) => {
                read?;
                self.ahead = buf.filled().first().copied();
                if self.ahead.is_some() {
                    Ok(())
                } else {
                    Err(io::ErrorKind::ConnectionAborted.into())
                }
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HangUp<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(byte) = self.ahead.take()
        {
            buf.put_slice(&[byte]);
            // The byte is returned together with the data that follows it, because a read of one byte costs as much as
            // any other read. If this read fails, the next read returns the error.
            drop(Pin::new(&mut self.inner).poll_read(cx, buf));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HangUp<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Detects disconnects here, because the library calls this method in every poll, even if there is no data to
    /// flush.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Err(gone) = self.look(cx) {
            return Poll::Ready(Err(gone));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::time::Duration;

    use bytes::Bytes;
    use hyper::body::{Body, Frame};
    use hyper::service::Service;
    use hyper::{Request, Response};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    use super::super::read_limit::Pace;
    use super::super::tests::limits;
    use super::super::{Ends, Http1Service, IncomingBody, serve_http1};
    use super::*;

    #[tokio::test]
    async fn a_disconnect_is_detected_only_while_detection_is_requested() {
        let (mut client, server) = tokio::io::duplex(64);
        let asked = EndsWithClient::default();
        let mut server = HangUp::new(server, asked.clone());
        client.write_all(b"ab").await.unwrap();
        server.flush().await.unwrap();
        asked.ask();
        server.flush().await.unwrap();
        let mut both = [0; 3];
        assert_eq!(server.read(&mut both).await.unwrap(), 2, "one read must return both bytes");
        assert_eq!(&both[..2], b"ab");
        server.flush().await.unwrap();
        client.shutdown().await.unwrap();
        assert!(server.flush().await.is_err());
        asked.reset();
        server.flush().await.unwrap();
        server.write_all(b"still").await.unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).await.unwrap();
    }

    #[tokio::test]
    async fn a_disconnect_wakes_a_waiting_response() {
        let (client, server) = tokio::io::duplex(64);
        let asked = EndsWithClient::default();
        asked.ask();
        let mut server = HangUp::new(server, asked);
        let mut client = Some(client);
        let gone = std::future::poll_fn(|cx| {
            let flushed = Pin::new(&mut server).poll_flush(cx);
            client = None;
            match flushed {
                Poll::Ready(Ok(())) => Poll::Pending,
                other => other,
            }
        });
        assert!(gone.await.is_err());
    }

    /// A service with an endless response and a limit on the time for which its client accepts no data.
    #[derive(Clone)]
    struct Endless;

    const LIMIT: Duration = Duration::from_secs(30);

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1000])))))
        }
    }

    impl Service<Request<IncomingBody>> for Endless {
        type Response = Response<Self>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Self>, Infallible>>;

        fn call(&self, request: Request<IncomingBody>) -> Self::Future {
            assert!(request.extensions().get::<EndsWithClient>().is_some());
            let mut response = Response::new(Self);
            response.extensions_mut().insert(ReadLimit(Arc::new(Pace { bytes: 1, time: LIMIT })));
            ready(Ok(response))
        }
    }

    impl Http1Service for Endless {
        const ANSWERS_HALF_CLOSED: bool = true;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_is_disconnected_after_the_limit() {
        let (mut client, server) = tokio::io::duplex(1000);
        let (_stopper, stop) = watch::channel(false);
        let serving = tokio::spawn(async move {
            drop(
                serve_http1(
                    Box::new(server),
                    Vec::new(),
                    (Endless, Ends::default()),
                    limits(1),
                    stop,
                )
                .await,
            );
        });
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        // A connection stays open if its client occasionally reads a byte.
        for _ in 0..10 {
            tokio::time::sleep(LIMIT / 2).await;
            client.read_u8().await.unwrap();
        }
        assert!(!serving.is_finished());
        let begun = Instant::now();
        tokio::time::timeout(LIMIT * 100, serving).await.unwrap().unwrap();
        assert!(begun.elapsed() >= LIMIT && begun.elapsed() < LIMIT * 2, "{:?}", begun.elapsed());
    }
}
