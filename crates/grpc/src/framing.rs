//! Messages on the wire: each stands behind a flag and its length.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tonic::Status;

/// The head of a message: a flag that says whether it is compressed, and the length.
pub const HEAD_BYTES: usize = 5;

/// The largest message whose length clients can be sent.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The least that is reserved at a time: small messages share it, one behind the other.
const BUFFER_BYTES: usize = 512;

/// Adds a message of `len` bytes, which `encode` appends, to what is to be sent.
pub fn put_message(
    chunk: &mut BytesMut,
    len: usize,
    encode: impl FnOnce(&mut BytesMut),
) -> Result<(), Status> {
    let head = message_head(len)?;
    let wanted = HEAD_BYTES + len;
    if chunk.capacity() - chunk.len() < wanted {
        chunk.reserve(wanted.max(BUFFER_BYTES));
    }
    chunk.extend_from_slice(&head);
    encode(chunk);
    Ok(())
}

/// The head of an uncompressed message of `len` bytes, unless that is more than a client may be sent.
pub fn message_head(len: usize) -> Result<[u8; HEAD_BYTES], Status> {
    let told = u32::try_from(len).ok().filter(|_| len <= MESSAGE_BYTES_MAX);
    let Some(told) = told else {
        let text =
            format!("grpc: trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    };
    let [a, b, c, d] = told.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// A message with its head.
///
/// # Panics
///
/// The message is longer than 2 GiB, which no message of a member is.
#[must_use]
pub fn framed(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + len);
    chunk.extend_from_slice(&message_head(len).expect(NOT_TOO_LONG));
    message.encode_raw(&mut chunk);
    chunk.freeze()
}

/// A message that is encoded already, with its head.
///
/// # Panics
///
/// As [`framed`].
#[must_use]
pub fn with_head(message: &[u8]) -> Bytes {
    let head = message_head(message.len()).expect(NOT_TOO_LONG);
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + message.len());
    chunk.extend_from_slice(&head);
    chunk.extend_from_slice(message);
    chunk.freeze()
}

/// Why messages of members have heads.
const NOT_TOO_LONG: &str = "no message of a member is longer than 2 GiB";

/// Writes the head of a message that is encoded behind [`HEAD_BYTES`] which were left for it.
pub fn fill_head(mut wire: Vec<u8>) -> Result<Bytes, Status> {
    let head = message_head(wire.len() - HEAD_BYTES)?;
    wire[..HEAD_BYTES].copy_from_slice(&head);
    Ok(wire.into())
}

/// The length of the message behind a head.
#[must_use]
pub fn message_len(head: &[u8; HEAD_BYTES]) -> usize {
    let [_, a, b, c, d] = *head;
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

/// The length of the message that these bytes are, with its head and nothing else.
#[must_use]
pub fn whole_message(bytes: &[u8]) -> Option<usize> {
    let (head, message) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    (message_len(head) == message.len()).then_some(message.len())
}

/// The message that stands first in these bytes, without its head, if all of it is there.
#[must_use]
pub fn first_message(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    rest.get(..message_len(head))
}

/// Follows messages on the wire, one behind the other, in whatever pieces they come.
#[derive(Debug, Default)]
pub struct Follower {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have passed.
    head_passed: usize,
    /// Bytes of the message that have not.
    missing: usize,
}

/// What has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Messages whose heads have.
    pub messages: u64,
    /// Bytes of messages without their heads.
    pub bytes: u64,
}

impl Follower {
    /// Lets the next bytes pass.
    pub fn pass(&mut self, mut bytes: &[u8]) -> Passed {
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
                let wanted = HEAD_BYTES - self.head_passed;
                let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
                self.head[self.head_passed..][..head.len()].copy_from_slice(head);
                self.head_passed += head.len();
                bytes = rest;
                if self.head_passed < HEAD_BYTES {
                    break;
                }
                self.missing = message_len(&self.head);
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
    fn heads_say_the_length_of_what_is_behind_them() {
        let wire = with_head(b"abc");
        assert_eq!(wire, &b"\0\0\0\0\x03abc"[..]);
        assert_eq!(fill_head(vec![7, 7, 7, 7, 7, b'a', b'b', b'c']).unwrap(), wire);
        assert_eq!((whole_message(&wire), whole_message(&wire[..7])), (Some(3), None));
        let two = [&wire[..], &wire[..]].concat();
        assert_eq!((first_message(&two), whole_message(&two)), (Some(&b"abc"[..]), None));
        for len in 0..wire.len() {
            assert_eq!(first_message(&wire[..len]), None);
        }
    }
}
