//! Limits how often an HTTP/2 client may ping.
//!
//! Clients ping to check that the server is alive. Pings cost as much as requests if they are too frequent. grpc-go has
//! rules against frequent pings that its clients know: a client that violates them receives `too_many_pings` and halves
//! its ping rate. A ping is early if the time since the previous ping is less than the floor, or less than two hours if
//! no request is in progress. The third early ping closes the connection. Sending any part of an answer resets the
//! count of early pings.
//!
//! # Cost
//!
//! Only the nine header bytes of each frame are inspected, in both directions. They are inspected in place unless they
//! arrive in pieces.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Minimum time between pings if no request is in progress.
const IDLE_FLOOR: Duration = Duration::from_secs(2 * 60 * 60);
/// Number of early pings that are tolerated.
const EARLY_MAX: u32 = 2;

const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const ACK: u8 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";

/// A connection with a ping limit. `A` returns the number of requests in progress.
#[derive(Debug)]
pub(super) struct PingFloor<T, A> {
    inner: T,
    requests_under_way: A,
    rules: Rules,
    incoming: FrameHeads,
    outgoing: FrameHeads,
}

/// `A` is never pinned.
impl<T: Unpin, A> Unpin for PingFloor<T, A> {}

impl<T, A> PingFloor<T, A> {
    /// Wraps a connection whose client frames start after `preface_bytes`.
    pub(super) fn new(
        inner: T,
        preface_bytes: usize,
        floor: Duration,
        requests_under_way: A,
    ) -> Self {
        Self {
            inner,
            requests_under_way,
            rules: Rules { floor, last_ping: None, early_count: 0, has_answered: false },
            incoming: FrameHeads { passing: preface_bytes, ..FrameHeads::default() },
            outgoing: FrameHeads::default(),
        }
    }
}

impl<T, A: Fn() -> u64> PingFloor<T, A> {
    /// Inspects data read from the client. Returns whether the client may continue.
    fn admits(&mut self, bytes: &[u8]) -> bool {
        let Self { rules, incoming, requests_under_way, .. } = self;
        let mut admits = true;
        // A request in the same data is in progress, although the service has not counted it yet.
        let mut has_request = false;
        incoming.walk(bytes, |head| match head.kind {
            HEADERS => has_request = true,
            PING if head.flags & ACK == 0 => {
                let is_busy = has_request || requests_under_way() > 0;
                admits &= rules.admit(Instant::now(), is_busy);
            }
            _ => {}
        });
        admits
    }
}

/// The ping rules, and the count of early pings.
#[derive(Debug)]
struct Rules {
    floor: Duration,
    last_ping: Option<Instant>,
    early_count: u32,
    /// Whether part of an answer was sent since the last ping.
    has_answered: bool,
}

impl Rules {
    fn admit(&mut self, now: Instant, is_busy: bool) -> bool {
        let last = self.last_ping.replace(now);
        if std::mem::take(&mut self.has_answered) {
            self.early_count = 0;
            return true;
        }
        let floor = if is_busy { self.floor } else { IDLE_FLOOR };
        if last.is_some_and(|last| now < last + floor) {
            self.early_count += 1;
        }
        self.early_count <= EARLY_MAX
    }
}

/// The relevant parts of a frame header.
#[derive(Clone, Copy, Debug)]
struct Head {
    kind: u8,
    flags: u8,
}

/// The position of one direction within its sequence of frames.
#[derive(Debug, Default)]
struct FrameHeads {
    /// Number of bytes before the next frame header.
    passing: usize,
    /// The first bytes of a frame header that arrives in pieces.
    partial: [u8; HEAD_BYTES],
    partial_bytes: usize,
    /// The highest stream id in any frame so far.
    last_stream: u32,
}

impl FrameHeads {
    /// Processes bytes and passes each complete frame header to `show`.
    fn walk(&mut self, mut bytes: &[u8], mut show: impl FnMut(Head)) {
        loop {
            let count = self.passing.min(bytes.len());
            self.passing -= count;
            bytes = &bytes[count..];
            if bytes.is_empty() {
                return;
            }
            let head = match bytes.first_chunk::<HEAD_BYTES>() {
                Some(head) if self.partial_bytes == 0 => {
                    bytes = &bytes[HEAD_BYTES..];
                    *head
                }
                Some(_) | None => {
                    let count = (HEAD_BYTES - self.partial_bytes).min(bytes.len());
                    let end = self.partial_bytes + count;
                    self.partial[self.partial_bytes..end].copy_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    self.partial_bytes = end % HEAD_BYTES;
                    if end < HEAD_BYTES {
                        return;
                    }
                    self.partial
                }
            };
            let [high, middle, low, kind, flags, stream @ ..] = head;
            self.passing = u32::from_be_bytes([0, high, middle, low]) as usize;
            self.last_stream = self.last_stream.max(u32::from_be_bytes(stream) & (u32::MAX >> 1));
            show(Head { kind, flags });
        }
    }

    /// Returns whether the position is between two frames.
    const fn is_between_frames(&self) -> bool {
        self.passing == 0 && self.partial_bytes == 0
    }
}

/// Returns the GOAWAY frame that asks a client to ping less often.
fn go_away(last_stream: u32) -> Vec<u8> {
    let payload_bytes = u8::try_from(8 + TOO_MANY_PINGS.len()).expect("the debug data is short");
    let mut frame = vec![0, 0, payload_bytes, GO_AWAY, 0, 0, 0, 0, 0];
    frame.extend(last_stream.to_be_bytes());
    frame.extend(ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend(TOO_MANY_PINGS);
    frame
}

impl<T: AsyncRead + AsyncWrite + Unpin, A: Fn() -> u64> AsyncRead for PingFloor<T, A> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let start = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        if this.admits(&buf.filled()[start..]) {
            return Poll::Ready(Ok(()));
        }
        if this.outgoing.is_between_frames() {
            let frame = go_away(this.incoming.last_stream);
            // The frame may be lost if the client does not read.
            let _outcome = Pin::new(&mut this.inner).poll_write(cx, &frame);
        }
        let reason = "got too many pings from the client";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason)))
    }
}

impl<T: AsyncWrite + Unpin, A> PingFloor<T, A> {
    /// Inspects the first `count` bytes of the written buffers.
    fn note_written(&mut self, bufs: &[IoSlice<'_>], mut count: usize) {
        let Self { rules, outgoing, .. } = self;
        for buf in bufs {
            let taken = count.min(buf.len());
            count -= taken;
            outgoing.walk(&buf[..taken], |head| {
                rules.has_answered |= matches!(head.kind, DATA | HEADERS);
            });
        }
    }
}

impl<T: AsyncWrite + Unpin, A> AsyncWrite for PingFloor<T, A> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.note_written(&[IoSlice::new(buf)], count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        self.note_written(bufs, count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(floor: Duration) -> Rules {
        Rules { floor, last_ping: None, early_count: 0, has_answered: false }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
        let mut frame = length.to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    #[test]
    fn the_third_early_ping_closes_the_connection() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let mut rules = rules(Duration::from_secs(5));
        let pings = [(0, true), (5, true), (9, true), (14, true), (18, true), (22, false)];
        for (secs, admitted) in pings {
            assert_eq!(rules.admit(after(secs), true), admitted, "{secs}");
        }
        // Without a request in progress, the floor is two hours, whatever the flag.
        let mut idle = self::rules(Duration::ZERO);
        let pings = [(0, true), (3600, true), (7199, true), (14_399, true), (21_000, false)];
        for (secs, admitted) in pings {
            assert_eq!(idle.admit(after(secs), false), admitted, "{secs}");
        }
    }

    #[test]
    fn a_response_resets_the_count_of_early_pings() {
        let now = Instant::now();
        let mut rules = rules(Duration::from_secs(5));
        for _ in 0..3 {
            assert!(rules.admit(now, true));
        }
        rules.has_answered = true;
        for _ in 0..3 {
            assert!(rules.admit(now, true));
        }
        assert!(!rules.admit(now, true));
    }

    #[test]
    fn frame_headers_are_found_however_the_bytes_are_split() {
        let mut bytes = b"preface".to_vec();
        bytes.extend(frame(HEADERS, 4, 3, b"block"));
        bytes.extend(frame(DATA, 1, 3, &[7; 300]));
        bytes.extend(frame(PING, 0, 0, &[PING; 8]));
        bytes.extend(frame(PING, ACK, 0, &[0; 8]));
        for piece_bytes in 1..bytes.len() {
            let mut heads = FrameHeads { passing: 7, ..FrameHeads::default() };
            let mut seen = Vec::new();
            for piece in bytes.chunks(piece_bytes) {
                heads.walk(piece, |head| seen.push((head.kind, head.flags)));
            }
            assert_eq!(seen, [(HEADERS, 4), (DATA, 1), (PING, 0), (PING, ACK)], "{piece_bytes}");
            assert!(heads.is_between_frames());
            assert_eq!(heads.last_stream, 3);
        }
    }

    #[tokio::test]
    async fn a_client_that_pings_too_often_receives_goaway() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let (mut client, server) = tokio::io::duplex(1000);
        let mut server = PingFloor::new(server, 0, Duration::from_secs(60), || 1);
        let mut buf = [0; 64];
        client.write_all(&frame(HEADERS, 4, 5, b"")).await.unwrap();
        assert_eq!(server.read(&mut buf).await.unwrap(), HEAD_BYTES);
        for _ in 0..3 {
            client.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
            assert_eq!(server.read(&mut buf).await.unwrap(), HEAD_BYTES + 8);
        }
        client.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
        let error = server.read(&mut buf).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        drop(server);
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        let mut payload = vec![0, 0, 0, 5, 0, 0, 0, 11];
        payload.extend(TOO_MANY_PINGS);
        assert_eq!(received, frame(GO_AWAY, 0, 0, &payload));
    }
}
