//! Target of the fuzzer: the messages of a request's body, in pieces.

use super::{GZIP_LENGTH_BYTES, HEAD_BYTES, Message};

/// More than a message may become.
const BYTES_MAX: u64 = 1 << 20;

/// A body of any bytes is followed as a reader of the whole would: where its messages end, and what the last one holds.
/// The first byte says how long the pieces are.
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

/// Where the message that these bytes begin ends, once its head says so.
fn end(bytes: &[u8]) -> Option<usize> {
    let (head, _) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let [_, length @ ..] = *head;
    Some(HEAD_BYTES.saturating_add(u32::from_be_bytes(length) as usize))
}

/// How many messages are whole, and what there is of the one that is not.
fn messages(mut bytes: &[u8]) -> (usize, &[u8]) {
    let mut count = 0;
    while let Some(rest) = end(bytes).and_then(|end| bytes.get(end..)) {
        bytes = rest;
        count += 1;
    }
    (count, bytes)
}

/// What a call that takes one message holds: what has come, or what that becomes, which its last bytes say.
fn held_of_one(seen: &[u8], end: usize) -> u64 {
    let passed = seen.len() as u64;
    if seen.first().is_none_or(|flag| *flag == 0) || seen.len() < end {
        return passed;
    }
    let payload = &seen[HEAD_BYTES..end];
    let mut tail = [0; GZIP_LENGTH_BYTES];
    // Of a shorter one the bytes before it count, which are no length that a client means.
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
    fn any_body_is_followed() {
        let plain = b"\x03\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x01c".to_vec();
        let compressed = b"\x02\x01\0\0\0\x06zz\x10\x27\0\0\0\0\0\0\x01x".to_vec();
        let samples = [("plain", plain), ("compressed", compressed)];
        bounded("grpc_body", &samples, 20_000, super::body);
    }
}
