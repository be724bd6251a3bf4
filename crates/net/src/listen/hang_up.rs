//! Noticing that an HTTP/1 client has gone while it waits for an answer.
//!
//! The HTTP library reads nothing between a request and its answer where clients may shut their sending side down, as
//! some do that are answered still. But an answer that never ends, or that waits for others, has to end with its client.
//! So a service may ask for that ([`EndsWithClient`]), and then one byte is read ahead: it is the next request's, or there
//! is none because the client has shut down, and the connection is broken off.
//!
//! # Not here
//!
//! HTTP/2, which tells of streams that are given up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An extension of requests, by which a service asks that the answer ends with its client.
#[derive(Clone, Debug, Default)]
pub struct EndsWithClient(Arc<AtomicBool>);

impl EndsWithClient {
    /// Asks for it, for this request.
    pub fn ask(&self) {
        self.set(true);
    }

    /// Service and connection are one task's.
    pub(super) fn set(&self, asked: bool) {
        self.0.store(asked, Ordering::Relaxed);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that is looked at as long as an answer is to end with its client.
#[derive(Debug)]
pub(super) struct HangUp<T> {
    inner: T,
    asked: EndsWithClient,
    /// Read ahead.
    ahead: Option<u8>,
}

impl<T> HangUp<T> {
    pub(super) const fn new(inner: T, asked: EndsWithClient) -> Self {
        Self { inner, asked, ahead: None }
    }

    /// The connection, and what was read ahead of it.
    pub(super) fn into_parts(self) -> (T, Option<u8>) {
        (self.inner, self.ahead)
    }
}

impl<T: AsyncRead + Unpin> HangUp<T> {
    /// Fails if the client has gone.
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
            // With what is behind it: a read of one byte costs as much as any. What has failed fails again.
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

    /// The library flushes each time it is polled, whether or not there is anything to flush.
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_has_gone_is_noticed_where_that_was_asked_for() {
        let (mut client, server) = tokio::io::duplex(64);
        let asked = EndsWithClient::default();
        let mut server = HangUp::new(server, asked.clone());
        client.write_all(b"ab").await.unwrap();
        server.flush().await.unwrap();
        asked.ask();
        server.flush().await.unwrap();
        let mut both = [0; 3];
        assert_eq!(server.read(&mut both).await.unwrap(), 2, "in one read");
        assert_eq!(&both[..2], b"ab");
        server.flush().await.unwrap();
        client.shutdown().await.unwrap();
        assert!(server.flush().await.is_err());
        asked.set(false);
        server.flush().await.unwrap();
        server.write_all(b"still").await.unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).await.unwrap();
    }

    #[tokio::test]
    async fn who_waits_is_woken_when_the_client_goes() {
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
}
