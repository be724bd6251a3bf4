//! Tests the events that result from client frames.

use super::*;

const MASK: [u8; 4] = [1, 2, 3, 4];

/// Returns a frame from a client.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_head(Kind::Text, payload.len(), &mut out);
    out[0] = first;
    out[1] |= 0x80;
    out.extend(MASK);
    let start = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[start..], MASK);
    out
}

/// Returns the events decoded from bytes that arrive in pieces of this size, with adjacent data joined.
fn events(bytes: &[u8], piece: usize) -> Result<Vec<Event>, Violation> {
    let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
    let mut events: Vec<Event> = Vec::new();
    for piece in bytes.chunks(piece) {
        input.extend_from_slice(piece);
        while let Some(event) = decoder.next(&mut input)? {
            match (events.last_mut(), event) {
                (Some(Event::Data(before)), Event::Data(more)) => {
                    *before = [&before[..], &more[..]].concat().into();
                }
                (_, event) => events.push(event),
            }
        }
    }
    Ok(events)
}

#[track_caller]
fn check(bytes: &[u8], expected: &Result<Vec<Event>, Violation>) {
    for piece in [1, 2, 3, 7, bytes.len().max(1)] {
        assert_eq!(events(bytes, piece), *expected, "input split into pieces of {piece} bytes");
    }
}

fn data(text: &str) -> Event {
    Event::Data(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn fragments_are_unmasked_and_joined_into_messages() {
    check(&frame(0x81, b"hello"), &Ok(vec![data("hello"), Event::End]));
    check(&frame(0x82, b""), &Ok(vec![Event::End]));
    let parts = [frame(0x01, b"one, "), frame(0x00, b""), frame(0x80, b"two")].concat();
    check(&parts, &Ok(vec![data("one, two"), Event::End]));
    for len in [125, 126, 65_535, 65_536, 70_000] {
        let text = "x".repeat(len);
        let expected = vec![data(&text), Event::End];
        assert_eq!(events(&frame(0x81, text.as_bytes()), 4099), Ok(expected), "{len}");
    }
}

#[test]
fn control_frames_are_accepted_between_fragments() {
    let parts = [
        frame(0x01, b"a"),
        frame(0x89, b"are you there"),
        frame(0x8a, b"unasked"),
        frame(0x80, b"b"),
        frame(0x88, b""),
    ];
    let ping = Event::Ping(Bytes::from_static(b"are you there"));
    let expected = vec![data("a"), ping, data("b"), Event::End, Event::Close(None)];
    check(&parts.concat(), &Ok(expected));
}

#[test]
fn the_close_code_sent_by_a_client_is_validated() {
    let close = |code: u16, reason: &[u8]| frame(0x88, &[&code.to_be_bytes()[..], reason].concat());
    check(&close(1000, b"done"), &Ok(vec![Event::Close(Some(1000))]));
    check(&close(4999, b""), &Ok(vec![Event::Close(Some(4999))]));
    for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000] {
        check(&close(code, b""), &Err(Violation::CloseCode));
    }
    check(&close(1000, b"\xff"), &Err(Violation::CloseCode));
    check(&frame(0x88, b"x"), &Err(Violation::CloseCode));
}

#[test]
fn each_protocol_violation_has_a_specific_error() {
    check(&[0x81, 0x05, b'h'], &Err(Violation::Unmasked));
    check(&frame(0xc1, b"a"), &Err(Violation::ReservedBits));
    for opcode in [3, 7, 11, 15] {
        check(&frame(0x80 | opcode, b"a"), &Err(Violation::Opcode));
    }
    check(&frame(0x09, b"a"), &Err(Violation::Control));
    check(&frame(0x89, &[0; CONTROL_BYTES_MAX + 1]), &Err(Violation::Control));
    check(&frame(0x80, b"a"), &Err(Violation::Fragment));
    let within = [frame(0x01, b""), frame(0x81, b"b")].concat();
    check(&within, &Err(Violation::Fragment));
    let mut endless = vec![0x82, 0xff];
    endless.extend([0xff; 8]);
    endless.extend(MASK);
    check(&endless, &Err(Violation::Length));
}

#[test]
fn payload_bytes_are_forwarded_before_the_frame_is_complete() {
    let mut long = vec![0x82, 0xff];
    long.extend(i64::MAX.to_be_bytes());
    long.extend([0; 4]);
    long.extend(b"the beginning");
    let (mut decoder, mut input) = (Decoder::default(), BytesMut::from(&long[..]));
    assert_eq!(decoder.next(&mut input), Ok(Some(data("the beginning"))));
    assert_eq!(decoder.next(&mut input), Ok(None));
    assert!(input.is_empty());
}

#[test]
fn server_frame_headers_contain_the_payload_length() {
    let head = |kind, len| {
        let mut out = Vec::new();
        put_head(kind, len, &mut out);
        out
    };
    assert_eq!(head(Kind::Text, 5), [0x81, 5]);
    assert_eq!(head(Kind::Close, 125), [0x88, 125]);
    assert_eq!(head(Kind::Pong, 0), [0x8a, 0]);
    assert_eq!(head(Kind::Text, 126), [0x81, 126, 0, 126]);
    assert_eq!(head(Kind::Text, 65_535), [0x81, 126, 0xff, 0xff]);
    assert_eq!(head(Kind::Text, 65_536), [0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
}
