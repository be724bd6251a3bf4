//! Detects whether a new connection has reached an HTTP/2 server: the server's first frame must be SETTINGS.
//!
//! A channel counts as connected once it has written its own preface. A server that closes accepted connections, or
//! uses another protocol, would therefore only be detected by the first request, and the client would not know whether
//! the request was executed. [`greeted`] reports the server's first frame, so that a client can wait for it before
//! sending a request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Length of a frame header.
const HEADER_BYTES: usize = 9;
/// Position of the frame type in a frame header.
const TYPE_AT: usize = 3;
/// The frame type of SETTINGS.
const SETTINGS: u8 = 4;

/// Receives success if the server's first frame is SETTINGS, and otherwise the error.
pub type Greeting = oneshot::Receiver<io::Result<()>>;

/// Wraps a stream and reports its first frame. The data passes unchanged.
pub(crate) fn greeted<S>(stream: S, report: oneshot::Sender<io::Result<()>>) -> Greeted<S> {
    Greeted { stream, header: Vec::with_capacity(HEADER_BYTES), report: Some(report) }
}

/// A stream that reports its first frame.
pub(crate) struct Greeted<S> {
    stream: S,
    /// The received part of the first frame header.
    header: Vec<u8>,
    /// The channel for the result; `None` after the result has been reported.
    report: Option<oneshot::Sender<io::Result<()>>>,
}

impl<S> Greeted<S> {
    fn report(&mut self, outcome: io::Result<()>) {
        if let Some(report) = self.report.take() {
            // The send fails if the client no longer waits for the report.
            drop(report.send(outcome));
        }
    }

    fn add(&mut self, read: &[u8]) {
        let missing = HEADER_BYTES - self.header.len();
        self.header.extend_from_slice(&read[..read.len().min(missing)]);
        if read.is_empty() {
            self.report(Err(io::ErrorKind::UnexpectedEof.into()));
        } else if self.header.len() == HEADER_BYTES {
            let is_settings = self.header[TYPE_AT] == SETTINGS;
            let other = || io::Error::other("the first frame is not SETTINGS");
            self.report(if is_settings { Ok(()) } else { Err(other()) });
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buf);
        if this.report.is_none() {
            return polled;
        }
        match polled {
            Poll::Ready(Ok(())) => this.add(&buf.filled()[before..]),
            Poll::Ready(Err(error)) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                this.report(Err(error));
                return Poll::Ready(Err(copy));
            }
            Poll::Pending => {}
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Returns the report about a server that sends these pieces and closes the connection.
    async fn outcome(pieces: &[&[u8]]) -> String {
        let (mut server, client) = duplex(1);
        let (report, greeting) = oneshot::channel();
        let mut client = greeted(client, report);
        let sending = async {
            for piece in pieces {
                server.write_all(piece).await.unwrap();
            }
            drop(server);
        };
        let mut read = Vec::new();
        let (_, ended) = tokio::join!(sending, client.read_to_end(&mut read));
        ended.unwrap();
        // All data must pass unchanged.
        assert_eq!(read, pieces.concat());
        match greeting.await.unwrap() {
            Ok(()) => "greeted".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn only_a_settings_frame_is_accepted_as_the_first_frame() {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        assert_eq!(outcome(&[&settings]).await, "greeted");
        assert_eq!(outcome(&[&settings[..2], &settings[2..], b"more"]).await, "greeted");
        assert_eq!(outcome(&[]).await, "unexpected end of file");
        assert_eq!(outcome(&[&settings[..8]]).await, "unexpected end of file");
        let other = "the first frame is not SETTINGS";
        assert_eq!(outcome(&[b"HTTP/1.1 400 Bad Request\r\n\r\n"]).await, other);
    }
}
