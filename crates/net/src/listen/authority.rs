//! An HTTP/2 connection that accepts requests with any authority.
//!
//! The HTTP library resets a stream whose `:authority` is invalid in a URI. This program does not use the authority,
//! but etcd's Go clients before 3.6, clients of Unix sockets and some proxies send invalid ones. Therefore requests are
//! inspected as they are read from the socket, and an invalid authority is replaced (see `field_section`).
//!
//! # Cost
//!
//! Frames other than HEADERS are skipped by their length. If one read contains the whole header block, the block is
//! inspected in place. It is copied only if it must be changed or arrives in pieces. At most one frame is buffered, of
//! at most [`FRAME_BYTES_MAX`] bytes.
//!
//! # Not here
//!
//! Header blocks longer than a frame. Their continuation frames pass unchanged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use super::field_section;
use super::write_through::write_to_inner;

/// Maximum payload of a frame that the library accepts.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Length of a frame header: three bytes of payload length, type, flags, four bytes of stream id.
const HEAD_BYTES: usize = 9;
/// The type of the frame that opens a request.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

/// A connection that replaces invalid authorities in the data read from it.
#[derive(Debug)]
pub(super) struct AnyAuthority<T> {
    inner: T,
    frames: Frames,
    /// The start of a frame that must be inspected as a whole.
    held: Vec<u8>,
    /// Inspected data that has not been read yet.
    ready: BytesMut,
}

impl<T> AnyAuthority<T> {
    /// Wraps a connection whose frames start after `preface_bytes`.
    pub(super) fn new(inner: T, preface_bytes: usize) -> Self {
        let frames = Frames { passing: preface_bytes };
        Self { inner, frames, held: Vec::new(), ready: BytesMut::new() }
    }

    /// Inspects the buffered data and releases the part that may be read.
    fn release(&mut self) {
        let mut at = 0;
        loop {
            let (passed, stop) = self.frames.look(&self.held[at..]);
            self.ready.extend_from_slice(&self.held[at..at + passed]);
            at += passed;
            match stop {
                Stop::End | Stop::Incomplete => break,
                Stop::Mended { found_bytes, frame } => {
                    self.ready.extend_from_slice(&frame);
                    at += found_bytes;
                }
            }
        }
        self.held.drain(..at);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AnyAuthority<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let start = buf.filled().len();
        while buf.remaining() > 0 {
            if this.ready.has_remaining() {
                let count = this.ready.len().min(buf.remaining());
                buf.put_slice(&this.ready.split_to(count));
                break;
            }
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            let fresh = &buf.filled()[start..];
            if fresh.is_empty() {
                // The client has disconnected. The library handles the incomplete frame.
                this.ready.extend_from_slice(&std::mem::take(&mut this.held));
                if this.ready.is_empty() {
                    break;
                }
            } else if this.held.is_empty() {
                let (passed, stop) = this.frames.look(fresh);
                if let Stop::End = stop {
                    break;
                }
                this.held.extend_from_slice(&fresh[passed..]);
                buf.set_filled(start + passed);
                this.release();
                if passed > 0 {
                    break;
                }
            } else {
                this.held.extend_from_slice(fresh);
                buf.set_filled(start);
                this.release();
            }
        }
        Poll::Ready(Ok(()))
    }
}

write_to_inner!(AnyAuthority);

/// The position within the sequence of frames.
#[derive(Debug)]
struct Frames {
    /// Number of bytes before the next frame header.
    passing: usize,
}

/// The reason why the inspection stopped.
#[derive(Debug)]
enum Stop {
    /// The end of the data was reached.
    End,
    /// The frame starting here must be inspected as a whole, or its header is incomplete.
    Incomplete,
    /// The frame starting here, with `found_bytes` bytes, is replaced by `frame`.
    Mended { found_bytes: usize, frame: Vec<u8> },
}

impl Frames {
    /// Inspects the next bytes. Returns the number of bytes that may pass unchanged, and the reason why it stopped
    /// there.
    fn look(&mut self, bytes: &[u8]) -> (usize, Stop) {
        let mut at = 0;
        loop {
            let count = self.passing.min(bytes.len() - at);
            self.passing -= count;
            at += count;
            if at == bytes.len() {
                return (at, Stop::End);
            }
            let Some(head) = bytes[at..].first_chunk::<HEAD_BYTES>() else {
                return (at, Stop::Incomplete);
            };
            let payload_bytes = payload_bytes(head);
            if head[3] != HEADERS || payload_bytes > FRAME_BYTES_MAX {
                self.passing = HEAD_BYTES + payload_bytes;
                continue;
            }
            let Some(frame) = bytes.get(at..at + HEAD_BYTES + payload_bytes) else {
                return (at, Stop::Incomplete);
            };
            if let Some(mended) = mend(frame) {
                return (at, Stop::Mended { found_bytes: frame.len(), frame: mended });
            }
            at += frame.len();
        }
    }
}

fn payload_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Returns the frame with a valid authority, if it opens a request whose authority is invalid.
fn mend(frame: &[u8]) -> Option<Vec<u8>> {
    let (flags, mut start, mut end) = (frame[4], HEAD_BYTES, frame.len());
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(start)?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += PRIORITY_BYTES;
    }
    let (place, line) = field_section::mend(frame.get(start..end)?)?;
    let mut mended = frame[..start + place.start].to_vec();
    mended.extend_from_slice(&line);
    mended.extend_from_slice(&frame[start + place.end..]);
    let payload = mended.len() - HEAD_BYTES;
    let [_, length @ ..] = u32::try_from(payload).ok()?.to_be_bytes();
    mended[..3].copy_from_slice(&length);
    (payload <= FRAME_BYTES_MAX).then_some(mended)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0";

    /// A socket whose reads return one piece at a time.
    struct Pieces(VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                let rest = piece.split_off(piece.len().min(buf.remaining()));
                buf.put_slice(&piece);
                if !rest.is_empty() {
                    self.0.push_front(rest);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn request(authority: &[u8]) -> Vec<u8> {
        let length = u8::try_from(authority.len()).unwrap();
        [b"\x83\x86\x41", &[length][..], authority, b"\xbe"].concat()
    }

    /// Returns the output for bytes that arrive in pieces of size `piece` and are read in pieces of size `room`.
    async fn pass(bytes: &[u8], piece: usize, room: usize) -> Vec<u8> {
        let pieces = Pieces(bytes.chunks(piece).map(<[u8]>::to_vec).collect());
        let mut connection = AnyAuthority::new(pieces, PREFACE.len());
        let (mut passed, mut read) = (Vec::new(), vec![0; room]);
        loop {
            match connection.read(&mut read).await.unwrap() {
                0 => return passed,
                count => passed.extend_from_slice(&read[..count]),
            }
        }
    }

    async fn check(bytes: &[u8], expected: &[u8]) {
        for piece in (1..50).chain([bytes.len()]) {
            for room in [1, 7, 64, 100_000] {
                let passed = pass(bytes, piece, room).await;
                assert!(passed == expected, "pieces of {piece}, read by {room}: {passed:x?}");
            }
        }
    }

    /// Returns the client data of a connection with two requests and other frames between them.
    fn connection(authority: &[u8]) -> Vec<u8> {
        let request = request(authority);
        let padded = [&b"\x03\0\0\0\0\x10"[..], &request, b"\0\0\0"].concat();
        [
            PREFACE.to_vec(),
            frame(4, 0, b"\x00\x03\x00\x00\x00\x64"),
            frame(HEADERS, 4, &request),
            // A body with the same bytes as a request.
            frame(0, 1, &frame(HEADERS, 4, &self::request(b"a:b:c"))),
            frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            frame(0, 1, b""),
            frame(0, 1, &[b'#'; 1000]),
        ]
        .concat()
    }

    #[tokio::test]
    async fn an_invalid_authority_is_replaced_however_the_bytes_are_split() {
        check(&connection(b"unix:/run/etcd.sock"), &connection(b"xxxxxxxxxxxxxxxxxxx")).await;
    }

    #[tokio::test]
    async fn data_without_an_invalid_authority_is_forwarded_unchanged() {
        let good = connection(b"localhost:2379");
        check(&good, &good).await;
        let cut = &connection(b"#")[..PREFACE.len() + 15 + 12];
        check(cut, cut).await;
        let too_long = frame(HEADERS, 4, &[b'#'; FRAME_BYTES_MAX + 1]);
        check(&[PREFACE, &too_long].concat(), &[PREFACE, &too_long].concat()).await;
        let all_padding = frame(HEADERS, 4 | PADDED, b"\xff\x41\x01#");
        check(&[PREFACE, &all_padding].concat(), &[PREFACE, &all_padding].concat()).await;
    }

    #[tokio::test]
    async fn removing_an_empty_authority_shortens_the_frame() {
        let with = frame(HEADERS, 4, b"\x83\x81\x86");
        let without = frame(HEADERS, 4, b"\x83\x86");
        check(&[PREFACE, &with].concat(), &[PREFACE, &without].concat()).await;
    }
}
