//! A connection whose writes are gathered and go out once per flush.
//!
//! The HTTP/2 layer issues one write for every DATA frame of 256 bytes or more. Gathering the frames of
//! one poll into a buffer and writing them together was measured to save a third of the CPU of a small
//! read and half of a large list.
//!
//! # Invariants
//!
//! * Bytes leave in the order they were written, and `poll_flush` returns `Ready` only when all of them
//!   have been handed to the kernel.
//! * At most [`GATHERED_BYTES_MAX`] bytes are held back; beyond that a write waits for the socket, so a
//!   peer that does not read holds its own stream up and nothing else.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that wait for a flush.
pub(crate) const GATHERED_BYTES_MAX: usize = 256 * 1024;

/// Buffers that a thread keeps for the next connection that needs one.
const SPARE_COUNT_MAX: usize = 16;

thread_local! {
    /// A connection holds a buffer only from a write to its flush. Handing it on, instead of allocating and
    /// freeing it each time, saves a large reply most of its page faults.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_spare() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn keep_spare(mut buffer: Vec<u8>) {
    buffer.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_COUNT_MAX {
            spare.push(buffer);
        }
    });
}

/// Wraps a connection; see the module.
#[derive(Debug)]
pub(crate) struct Buffered<T> {
    inner: T,
    /// What was read from the connection before it was wrapped.
    prefix: Bytes,
    gathered: Vec<u8>,
    /// How much of `gathered` the kernel has taken.
    sent: usize,
}

impl<T> Buffered<T> {
    #[cfg(test)]
    pub(crate) const fn new(inner: T) -> Self {
        Self { inner, prefix: Bytes::new(), gathered: Vec::new(), sent: 0 }
    }

    /// Wraps a connection of which `prefix` has already been read; it is read again first.
    pub(crate) fn with_prefix(inner: T, prefix: Vec<u8>) -> Self {
        Self { inner, prefix: prefix.into(), gathered: Vec::new(), sent: 0 }
    }
}

impl<T: AsyncWrite + Unpin> Buffered<T> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let rest = &self.gathered[self.sent..];
            let count = ready!(Pin::new(&mut self.inner).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        self.sent = 0;
        if self.gathered.capacity() > 0 {
            keep_spare(std::mem::take(&mut self.gathered));
        }
        Poll::Ready(Ok(()))
    }

    /// The buffer, with a place to gather in.
    fn gathering(&mut self) -> &mut Vec<u8> {
        if self.gathered.capacity() == 0 {
            self.gathered = take_spare();
        }
        &mut self.gathered
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Buffered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let count = self.prefix.len().min(buf.remaining());
            buf.put_slice(&self.prefix.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Buffered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.gathered.len() + buf.len() > GATHERED_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
        }
        let count = buf.len().min(GATHERED_BYTES_MAX);
        self.gathering().extend_from_slice(&buf[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        if self.gathered.len() + offered > GATHERED_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
        }
        let mut count = 0;
        for buf in bufs {
            let room = GATHERED_BYTES_MAX - self.gathered.len();
            let taken = buf.len().min(room);
            self.gathering().extend_from_slice(&buf[..taken]);
            count += taken;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_arrive_in_order_however_they_were_written() {
        let (near, mut far) = tokio::io::duplex(1000);
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            let mut io = Buffered::new(near);
            let mut rest = &sent[..];
            for len in (1..).map(|i| i * 37 % 300_000) {
                let (head, tail) = rest.split_at(len.min(rest.len()));
                io.write_all(head).await?;
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            io.shutdown().await
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        writer.await.unwrap().unwrap();
        assert!(received == expected);
    }

    #[tokio::test]
    async fn nothing_leaves_before_the_flush() {
        let (near, mut far) = tokio::io::duplex(1000);
        let mut io = Buffered::new(near);
        io.write_all(b"ab").await.unwrap();
        io.write_all(b"cd").await.unwrap();
        let mut byte = [0; 8];
        let early = std::future::poll_fn(|cx| {
            Poll::Ready(Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut byte)).is_pending())
        });
        assert!(early.await);
        io.flush().await.unwrap();
        assert_eq!(far.read(&mut byte).await.unwrap(), 4);
        assert_eq!(&byte[..4], b"abcd");
    }
}
