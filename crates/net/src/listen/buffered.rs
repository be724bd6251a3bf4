//! An HTTP/1 connection that collects its writes and sends them once per poll. The HTTP/2 server has an output buffer
//! of its own.
//!
//! A write to the kernel costs more than all other work of the HTTP library for a small request. Therefore a flush does
//! not call the kernel. Instead, the written bytes accumulate until the connection's task has done all its work, and
//! are then sent together.
//!
//! While the connection's task sleeps, other threads may write to the connection ([`DirectWriter`]), which saves waking
//! the task.
//!
//! # Invariants
//!
//! * Bytes are sent in the order in which they were written, and before the connection's task sleeps. [`Sending`]
//!   ensures this. A shutdown waits until the kernel has accepted all bytes.
//! * Another thread writes only while the connection's task sleeps and the protocol has no unsent bytes.
//! * At most [`GATHERED_BYTES_MAX`] bytes are buffered. Beyond that a write waits for the socket, so a client that does
//!   not read blocks only its own connection.

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of bytes buffered until the data is sent.
const GATHERED_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of buffers that a thread keeps for reuse.
const SPARE_COUNT_MAX: usize = 16;

thread_local! {
    /// Buffers for reuse. A connection holds a buffer only from a write until the written bytes are sent. Reusing
    /// buffers, instead of allocating and freeing them, avoids most page faults of a large reply.
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

/// Wraps a socket from which `prefix` was already read. Reads return the prefix first. The first result is for the
/// protocol, the second for the task that polls the protocol.
pub(super) fn wrap<T>(inner: T, prefix: Vec<u8>) -> (Buffered<T>, Outlet<T>) {
    let socket = Socket {
        inner,
        prefix: prefix.into(),
        gathered: Vec::new(),
        sent: 0,
        sent_in_all: 0,
        is_task_asleep: false,
    };
    let socket = Arc::new(Mutex::new(socket));
    (Buffered { socket: Arc::clone(&socket) }, Outlet { socket })
}

/// The socket as seen by the protocol.
#[derive(Debug)]
pub(super) struct Buffered<T> {
    /// Shared with the outlet in the same task, and with writers on other threads, which hold the lock only while they
    /// write.
    socket: Arc<Mutex<Socket<T>>>,
}

/// The sending side of the buffer.
#[derive(Debug)]
pub(super) struct Outlet<T> {
    socket: Arc<Mutex<Socket<T>>>,
}

impl<T> Outlet<T> {
    /// Returns the number of bytes that the kernel has accepted so far.
    pub(super) fn sent(&self) -> u64 {
        self.socket.lock().sent_in_all
    }

    /// Returns the number of bytes that the kernel has accepted so far, and whether more bytes are waiting to be
    /// accepted.
    pub(super) fn progress(&self) -> (u64, bool) {
        let socket = self.socket.lock();
        (socket.sent_in_all, !socket.gathered.is_empty())
    }
}

impl<T: AsyncWrite + Send + Unpin + 'static> Outlet<T> {
    /// Returns a writer for other threads.
    pub(super) fn writer(&self) -> DirectWriter {
        DirectWriter(Arc::clone(&self.socket) as Arc<dyn WriteDirectly>)
    }
}

/// The result of a [direct](DirectWriter) write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The kernel has accepted all bytes.
    Complete,
    /// Some bytes are unsent, or the write has failed. The caller must wake the connection's task, which sends the
    /// remaining bytes or finds the error.
    Partly,
    /// Nothing was written, because the connection's task runs or still has bytes to send.
    Busy,
}

/// Writes to an HTTP/1 connection from any thread, without waiting and without waking the connection's task. Services
/// find the writer in the extensions of the connection's requests.
///
/// The written bytes are part of the response in progress. The caller therefore writes whole chunks of a chunked body,
/// and only after the first poll of the body, because the head has been sent by then.
#[derive(Clone)]
pub struct DirectWriter(Arc<dyn WriteDirectly>);

impl std::fmt::Debug for DirectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectWriter").finish_non_exhaustive()
    }
}

impl DirectWriter {
    /// Writes the bytes that `fill` appends. `fill` is called only if the bytes can be written now.
    pub fn write(&self, fill: &mut dyn FnMut(&mut Vec<u8>)) -> Written {
        self.0.write_directly(fill)
    }
}

trait WriteDirectly: Send + Sync {
    fn write_directly(&self, fill: &mut dyn FnMut(&mut Vec<u8>)) -> Written;
}

impl<T: AsyncWrite + Send + Unpin> WriteDirectly for Mutex<Socket<T>> {
    fn write_directly(&self, fill: &mut dyn FnMut(&mut Vec<u8>)) -> Written {
        let Some(mut socket) = self.try_lock() else { return Written::Busy };
        if !socket.is_task_asleep {
            return Written::Busy;
        }
        fill(socket.gathering());
        // This poll registers no waker. If the socket is not writable, the caller wakes the connection's task, which
        // then waits for the socket.
        let sent = socket.poll_drain(&mut Context::from_waker(Waker::noop()));
        socket.is_task_asleep = matches!(sent, Poll::Ready(Ok(())));
        if socket.is_task_asleep { Written::Complete } else { Written::Partly }
    }
}

/// A connection that sends its buffered data after each poll.
#[derive(Debug)]
pub(super) struct Sending<'a, C, T> {
    pub(super) connection: Pin<&'a mut C>,
    pub(super) outlet: &'a Outlet<T>,
}

impl<C, T, E> Future for Sending<'_, C, T>
where
    C: Future<Output = Result<(), E>>,
    T: AsyncWrite + Unpin,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = Result<(), Box<dyn Error + Send + Sync>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.outlet.socket.lock().is_task_asleep = false;
        let done = self.connection.as_mut().poll(cx);
        // Data that does not fit in the socket's buffer now is sent when the socket becomes writable, which also wakes
        // this task.
        let sent = {
            let mut socket = self.outlet.socket.lock();
            let sent = socket.poll_drain(cx);
            socket.is_task_asleep = done.is_pending() && matches!(sent, Poll::Ready(Ok(())));
            sent
        };
        match (done, sent) {
            (Poll::Ready(done), _) => Poll::Ready(done.map_err(Into::into)),
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error.into())),
            (Poll::Pending, _) => Poll::Pending,
        }
    }
}

#[derive(Debug)]
struct Socket<T> {
    inner: T,
    /// Data that was read from the socket before the socket was wrapped.
    prefix: Bytes,
    gathered: Vec<u8>,
    /// Number of bytes of `gathered` that the kernel has accepted.
    sent: usize,
    /// Total number of bytes that the kernel has accepted.
    sent_in_all: u64,
    /// Whether the connection's task is waiting and has passed all its bytes to the kernel.
    is_task_asleep: bool,
}

impl<T: AsyncWrite + Unpin> Socket<T> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let rest = &self.gathered[self.sent..];
            let count = ready!(Pin::new(&mut self.inner).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
            self.sent_in_all += count as u64;
        }
        if !self.gathered.is_empty() {
            // The inner stream is flushed because TLS, unlike a plain socket, may buffer data itself.
            ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        }
        self.sent = 0;
        if self.gathered.capacity() > 0 {
            keep_spare(std::mem::take(&mut self.gathered));
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the buffer, allocating it first if necessary.
    fn gathering(&mut self) -> &mut Vec<u8> {
        if self.gathered.capacity() == 0 {
            self.gathered = take_spare();
        }
        &mut self.gathered
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Buffered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut socket = self.socket.lock();
        if !socket.prefix.is_empty() {
            let count = socket.prefix.len().min(buf.remaining());
            buf.put_slice(&socket.prefix.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut socket.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Buffered<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut socket = self.socket.lock();
        let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
        if socket.gathered.len() + offered > GATHERED_BYTES_MAX {
            ready!(socket.poll_drain(cx))?;
        }
        let mut count = 0;
        for buf in bufs {
            let room = GATHERED_BYTES_MAX - socket.gathered.len();
            let taken = buf.len().min(room);
            socket.gathering().extend_from_slice(&buf[..taken]);
            count += taken;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing, because [`Sending`] sends the buffered data.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.socket.lock();
        ready!(socket.poll_drain(cx))?;
        Pin::new(&mut socket.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_arrive_in_the_order_in_which_they_were_written() {
        let (near, mut far) = tokio::io::duplex(1000);
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            let (mut io, outlet) = wrap(near, Vec::new());
            let connection = std::pin::pin!(async move {
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
            Sending { connection, outlet: &outlet }.await
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        writer.await.unwrap().unwrap();
        assert!(received == expected);
    }

    #[tokio::test]
    async fn bytes_are_sent_together_after_a_poll() {
        let (near, mut far) = tokio::io::duplex(1000);
        let (mut io, outlet) = wrap(near, Vec::new());
        let outlet = &outlet;
        let connection = std::pin::pin!(async move {
            io.write_all(b"ab").await?;
            io.flush().await?;
            let mut byte = [0; 8];
            let early = std::future::poll_fn(|cx| {
                let read = Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut byte));
                Poll::Ready(read.is_pending())
            });
            assert!(early.await, "a flush alone sent data");
            assert_eq!(outlet.sent(), 0);
            io.write_all(b"cd").await?;
            io.flush().await?;
            // The task sleeps here, so the data is sent. The same happens on a connection that receives no further
            // requests.
            assert_eq!(far.read(&mut byte).await?, 4);
            assert_eq!(&byte[..4], b"abcd");
            assert_eq!(outlet.sent(), 4);
            io::Result::Ok(())
        });
        Sending { connection, outlet }.await.unwrap();
    }

    #[tokio::test]
    async fn other_threads_write_only_while_the_task_sleeps() {
        let (near, mut far) = tokio::io::duplex(10);
        let (mut io, outlet) = wrap(near, Vec::new());
        let writer = outlet.writer();
        let put = |bytes: &'static [u8]| {
            writer.write(&mut |out: &mut Vec<u8>| out.extend_from_slice(bytes))
        };
        assert_eq!(put(b"x"), Written::Busy, "the task has not run yet");
        let outlet = &outlet;
        let connection = std::pin::pin!(async move {
            io.write_all(b"ab").await?;
            let mut byte = [0];
            // The protocol waits here for a byte from the client.
            io.read_exact(&mut byte).await?;
            io.write_all(b"gh").await?;
            std::future::pending::<io::Result<()>>().await
        });
        let mut task = poller(Sending { connection, outlet });
        assert!(task().is_pending());
        assert_eq!(put(b"cdef"), Written::Complete);
        far.write_all(b"!").await.unwrap();
        assert!(task().is_pending());
        let mut bytes = [0; 8];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"abcdefgh");
        // The pipe has room for ten bytes. The task sends the remaining bytes.
        assert_eq!(put(b"0123456789AB"), Written::Partly);
        assert_eq!(put(b"x"), Written::Busy);
        let mut bytes = [0; 10];
        far.read_exact(&mut bytes).await.unwrap();
        assert!(task().is_pending());
        assert_eq!(put(b"CD"), Written::Complete);
        let mut bytes = [0; 4];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ABCD");
    }

    /// Returns a function that polls the future once.
    fn poller<F: Future + Unpin>(mut future: F) -> impl FnMut() -> Poll<F::Output> {
        move || Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_write_error_on_the_socket_ends_the_connection() {
        let (near, far) = tokio::io::duplex(1000);
        drop(far);
        let (mut io, outlet) = wrap(near, Vec::new());
        let connection = std::pin::pin!(async move {
            io.write_all(b"ab").await?;
            std::future::pending::<io::Result<()>>().await
        });
        assert!(Sending { connection, outlet: &outlet }.await.is_err());
    }

    #[tokio::test]
    async fn bytes_read_before_wrapping_are_returned_first() {
        let (near, mut far) = tokio::io::duplex(1000);
        far.write_all(b"cd").await.unwrap();
        let (mut io, _outlet) = wrap(near, b"ab".to_vec());
        let mut bytes = [0; 4];
        io.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"abcd");
    }
}
