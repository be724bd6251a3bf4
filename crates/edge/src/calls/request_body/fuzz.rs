//! Fuzz target: the messages of a request body that arrives in pieces.

use super::{GZIP_LENGTH_BYTES, HEAD_BYTES, Message};

/// The maximum uncompressed size of a message, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Processes arbitrary bytes as a body. The message boundaries and the size of the last message must be the same as if
/// the whole body were read at once. The first byte selects the size of the pieces.
pub fn body(data: &[u8]) {
    let Some((piece, body)) = data.split_first() else { return };
    let mut follower = Message::default();
    let mut only = Message::default();
    let (mut passed, mut whole_count) = (0, 0);
    for bytes in body.chunks(usize::from(*piece).max(1)) {
        let is_whole = follower.pass_all(bytes, |_| whole_count += 1);
        let is_first = only.pass(bytes);
        passed += bytes.len();
        let seen = &body[..passed];
        let (count, last) = messages(seen);
        assert_eq!((whole_count, is_whole), (count, last.is_empty()));
        assert_eq!(follower.held_bytes(BYTES_MAX), last.len() as u64);
        let first = end(seen).unwrap_or(usize::MAX);
        assert_eq!(is_first, passed <= first);
        assert_eq!(only.held_bytes(BYTES_MAX), held_of_one(seen, first));
    }
}

/// Returns the end of the first message in the bytes, or `None` if its prefix is incomplete.
fn end(bytes: &[u8]) -> Option<usize> {
    let (head, _) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let [_, length @ ..] = *head;
    Some(HEAD_BYTES.saturating_add(u32::from_be_bytes(length) as usize))
}

/// Returns the number of complete messages, and the remaining bytes.
fn messages(mut bytes: &[u8]) -> (usize, &[u8]) {
    let mut count = 0;
    while let Some(rest) = end(bytes).and_then(|end| bytes.get(end..)) {
        bytes = rest;
        count += 1;
    }
    (count, bytes)
}

/// Returns the memory occupied by a unary call's message: the received bytes, or the uncompressed size stored in its
/// last bytes.
fn held_of_one(seen: &[u8], end: usize) -> u64 {
    let passed = seen.len() as u64;
    if seen.first().is_none_or(|flag| *flag == 0) || seen.len() < end {
        return passed;
    }
    let payload = &seen[HEAD_BYTES..end];
    let mut tail = [0; GZIP_LENGTH_BYTES];
    // In a compressed message of fewer than four bytes, bytes of the prefix are read as the size. No real client sends
    // such a message.
    let known = &seen[end - GZIP_LENGTH_BYTES..end];
    tail.copy_from_slice(if payload.len() < GZIP_LENGTH_BYTES {
        known
    } else {
        &payload[payload.len() - 4..]
    });
    passed.max(BYTES_MAX.min(u32::from_le_bytes(tail).into()))
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    #[test]
    fn message_boundaries_do_not_depend_on_how_a_body_is_split() {
        let plain = b"\x03\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x01c".to_vec();
        let compressed = b"\x02\x01\0\0\0\x06zz\x10\x27\0\0\0\0\0\0\x01x".to_vec();
        let samples = [("plain", plain), ("compressed", compressed)];
        bounded("grpc_body", &samples, 20_000, super::body);
    }
}
