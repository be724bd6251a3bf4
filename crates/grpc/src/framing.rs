//! Messages on the wire: each message is preceded by a prefix, which contains a compression flag and the message
//! length.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tonic::Status;

/// Length of a message's prefix in bytes: one for the compression flag, and four for the message length.
pub const HEAD_BYTES: usize = 5;

/// Maximum length, in bytes, of a message that clients accept.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Minimum size of an allocation in bytes, so that consecutive small messages share an allocation.
const BUFFER_BYTES: usize = 512;

/// Appends a message of `len` bytes, which `encode` writes.
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

/// Encodes a message into a part of the chunk that already has its full length. Generated code writes single bytes, and
/// would check the capacity of the chunk before each of them.
fn encode(message: &impl Message, len: usize, chunk: &mut BytesMut) {
    let start = chunk.len();
    chunk.resize(start + len, 0);
    message.encode_raw(&mut &mut chunk[start..]);
}

/// Returns the prefix of an uncompressed message of `len` bytes, or an error if the message is too long for clients.
pub fn message_head(len: usize) -> Result<[u8; HEAD_BYTES], Status> {
    let length = u32::try_from(len).ok().filter(|_| len <= MESSAGE_BYTES_MAX);
    let Some(length) = length else {
        let text =
            format!("grpc: trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    };
    let [a, b, c, d] = length.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// Returns a message with its prefix.
///
/// # Panics
///
/// Panics if the message is longer than 2 GiB. Members never send a message of this length.
#[must_use]
pub fn framed(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + len);
    chunk.extend_from_slice(&message_head(len).expect(NOT_TOO_LONG));
    encode(message, len, &mut chunk);
    chunk.freeze()
}

/// Returns an encoded message with its prefix.
///
/// # Panics
///
/// Panics if the message is longer than 2 GiB, like [`framed`].
#[must_use]
pub fn with_head(message: &[u8]) -> Bytes {
    let head = message_head(message.len()).expect(NOT_TOO_LONG);
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + message.len());
    chunk.extend_from_slice(&head);
    chunk.extend_from_slice(message);
    chunk.freeze()
}

/// The panic text of [`framed`] and [`with_head`].
const NOT_TOO_LONG: &str = "no message from a member is longer than 2 GiB";

/// Fills in the prefix of a message that was encoded after [`HEAD_BYTES`] reserved bytes.
pub fn fill_head(mut wire: Vec<u8>) -> Result<Bytes, Status> {
    let head = message_head(wire.len() - HEAD_BYTES)?;
    wire[..HEAD_BYTES].copy_from_slice(&head);
    Ok(wire.into())
}

/// Returns the message length stated in a prefix.
#[must_use]
pub fn message_len(head: &[u8; HEAD_BYTES]) -> usize {
    let [_, a, b, c, d] = *head;
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

/// Returns the message length, if the bytes are exactly one message with its prefix.
#[must_use]
pub fn whole_message(bytes: &[u8]) -> Option<usize> {
    let (head, message) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    (message_len(head) == message.len()).then_some(message.len())
}

/// Returns the first message in the bytes, without its prefix, if the message is complete.
#[must_use]
pub fn first_message(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    rest.get(..message_len(head))
}

/// Tracks message boundaries in bytes that arrive in arbitrary pieces.
#[derive(Debug, Default)]
pub struct Follower {
    head: [u8; HEAD_BYTES],
    /// Number of received bytes of the current prefix.
    head_passed: usize,
    /// Number of missing bytes of the current message.
    missing: usize,
}

/// Counts of the data passed to a [`Follower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Number of messages whose prefix ends in this data.
    pub messages: u64,
    /// Number of message bytes, without prefixes.
    pub bytes: u64,
}

impl Follower {
    /// Processes the next bytes, and counts the messages and message bytes in them.
    pub fn pass(&mut self, mut bytes: &[u8]) -> Passed {
        // Fast path: a piece usually contains exactly one message.
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
    fn a_message_too_large_for_any_client_is_refused_with_the_error_of_grpc_go() {
        assert_eq!(message_head(MESSAGE_BYTES_MAX).unwrap(), [0, 0x7f, 0xff, 0xff, 0xff]);
        let refused = message_head(MESSAGE_BYTES_MAX + 1).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let text = "grpc: trying to send message larger than max (2147483648 vs. 2147483647)";
        assert_eq!(refused.message(), text);
    }

    #[test]
    fn messages_are_counted_however_the_bytes_are_split() {
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
            assert_eq!((messages, bytes), (3, 303), "body split into pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_message_prefix_contains_the_message_length() {
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
