//! Detects that an HTTP/1 client has disconnected while waiting for an answer.
//!
//! The HTTP library does not read between a request and its answer, because some clients close their sending side and
//! still expect the answer. However, an endless answer, or an answer that waits for other events, must end when its
//! client disconnects. A service can request this ([`EndsWithClient`]). The connection then reads one byte ahead. The
//! byte belongs to the next request. If there is no byte because the client has closed its side, the connection is
//! closed.
//!
//! # Not here
//!
//! HTTP/2, where clients reset cancelled streams.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A request extension by which a service requests that the answer end when the client disconnects.
#[derive(Clone, Debug, Default)]
pub struct EndsWithClient(Arc<AtomicBool>);

impl EndsWithClient {
    /// Ends the answer to the current request when its client disconnects.
    pub fn ask(&self) {
        self.set(true);
    }

    /// Sets whether disconnects are detected. The service and the connection run in the same task, so relaxed ordering
    /// is sufficient.
    pub(super) fn set(&self, asked: bool) {
        self.0.store(asked, Ordering::Relaxed);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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

    /// Detects disconnects, because the library flushes in every poll, even if there is no data.
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
    async fn a_disconnect_is_detected_if_requested() {
        let (mut client, server) = tokio::io::duplex(64);
        let asked = EndsWithClient::default();
        let mut server = HangUp::new(server, asked.clone());
        client.write_all(b"ab").await.unwrap();
        server.flush().await.unwrap();
        asked.ask();
        server.flush().await.unwrap();
        let mut both = [0; 3];
        assert_eq!(server.read(&mut both).await.unwrap(), 2, "both bytes are returned by one read");
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
}
