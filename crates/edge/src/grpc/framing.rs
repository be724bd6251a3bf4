//! How messages stand on the wire, and how a body ends, for bodies that are made by hand.

use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tonic::Status;

/// What stands before a message: a flag and the length.
pub(super) const MESSAGE_HEAD_BYTES: usize = 5;

/// Largest message that clients can be told the length of.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// What is set aside at least: small messages share it, one behind the other, however often they are sent.
const BUFFER_BYTES: usize = 512;

/// Adds a message of `len` bytes, which `encode` appends, to what is to be sent.
pub(super) fn put_message(
    chunk: &mut BytesMut,
    len: usize,
    encode: impl FnOnce(&mut BytesMut),
) -> Result<(), Status> {
    let head = message_head(len)?;
    let wanted = MESSAGE_HEAD_BYTES + len;
    if chunk.capacity() - chunk.len() < wanted {
        chunk.reserve(wanted.max(BUFFER_BYTES));
    }
    chunk.extend_from_slice(&head);
    encode(chunk);
    Ok(())
}

/// What stands before a message of `len` bytes, unless that is more than a client may be sent.
pub(super) fn message_head(len: usize) -> Result<[u8; MESSAGE_HEAD_BYTES], Status> {
    let told = u32::try_from(len).ok().filter(|_| len <= MESSAGE_BYTES_MAX);
    let Some(told) = told else {
        let text =
            format!("grpc: trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    };
    let [a, b, c, d] = told.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// The length of the message that these bytes are, with its head and nothing else.
pub(super) fn whole_message(bytes: &[u8]) -> Option<usize> {
    let ([_, length @ ..], message) = bytes.split_first_chunk::<MESSAGE_HEAD_BYTES>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    (length == message.len()).then_some(length)
}

/// Follows messages on the wire, one behind the other, in whatever pieces they come.
#[derive(Debug, Default)]
pub(super) struct Follower {
    head: [u8; MESSAGE_HEAD_BYTES],
    /// Bytes of the head that have passed.
    head_passed: usize,
    /// Bytes of the message that have not.
    missing: usize,
}

/// What has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Messages whose heads have.
    pub(super) messages: u64,
    /// Bytes of messages without their heads.
    pub(super) bytes: u64,
}

impl Follower {
    /// Lets the next bytes pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> Passed {
        // Nearly every message passes whole and alone.
        if self.missing == 0
            && self.head_passed == 0
            && let Some(length) = whole_message(bytes)
        {
            return Passed { messages: 1, bytes: length as u64 };
        }
        let mut passed = Passed::default();
        while !bytes.is_empty() {
            if self.missing == 0 {
                let wanted = MESSAGE_HEAD_BYTES - self.head_passed;
                let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
                self.head[self.head_passed..][..head.len()].copy_from_slice(head);
                self.head_passed += head.len();
                bytes = rest;
                if self.head_passed < MESSAGE_HEAD_BYTES {
                    break;
                }
                let [_, length @ ..] = self.head;
                self.missing = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.head_passed = 0;
                passed.messages += 1;
            }
            let (now, rest) = bytes.split_at(self.missing.min(bytes.len()));
            self.missing -= now.len();
            passed.bytes += now.len() as u64;
            bytes = rest;
        }
        passed
    }
}

/// How far a body is from its end: its last frame says how the call went.
#[derive(Debug)]
pub(super) enum Ending {
    /// More may come.
    Open,
    /// What is gathered is still to be sent, and then this.
    With(Status),
    /// All has been sent.
    Sent,
}

impl Ending {
    pub(super) const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// The next frame, where there is nothing else to send.
    pub(super) fn poll_frame(&mut self) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let status = match self {
            Self::Open => return Poll::Pending,
            Self::Sent => return Poll::Ready(None),
            Self::With(status) => std::mem::replace(status, Status::ok("")),
        };
        *self = Self::Sent;
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_no_client_could_take_is_refused_in_the_words_of_the_library() {
        assert_eq!(message_head(MESSAGE_BYTES_MAX).unwrap(), [0, 0x7f, 0xff, 0xff, 0xff]);
        let refused = message_head(MESSAGE_BYTES_MAX + 1).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let text = "grpc: trying to send message larger than max (2147483648 vs. 2147483647)";
        assert_eq!(refused.message(), text);
    }

    #[test]
    fn messages_are_followed_in_whatever_pieces_they_come() {
        let mut wire = BytesMut::new();
        for len in [3, 0, 300] {
            put_message(&mut wire, len, |chunk| chunk.extend_from_slice(&vec![7; len])).unwrap();
        }
        for piece in 1..=wire.len() {
            let mut follower = Follower::default();
            let passed = wire.chunks(piece).map(|bytes| follower.pass(bytes));
            let (messages, bytes) = passed.fold((0, 0), |(messages, bytes), passed| {
                (messages + passed.messages, bytes + passed.bytes)
            });
            assert_eq!((messages, bytes), (3, 303), "pieces of {piece}");
        }
    }

    #[test]
    fn a_body_ends_once_with_its_status() {
        let mut ending = Ending::Open;
        assert!(ending.poll_frame().is_pending());
        ending = Ending::With(Status::cancelled("why"));
        let Poll::Ready(Some(Ok(frame))) = ending.poll_frame() else { panic!("no trailers") };
        assert_eq!(frame.trailers_ref().unwrap()["grpc-message"], "why");
        assert!(matches!(ending.poll_frame(), Poll::Ready(None)));
        assert!(!ending.is_open());
    }
}
