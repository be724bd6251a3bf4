//! Fuzz target: bytes from a WebSocket client.

use bytes::BytesMut;

use super::frame::{CONTROL_BYTES_MAX, Decoder, Event, Violation};

/// Decodes arbitrary bytes as frames. The first byte selects the size of the pieces in which the other bytes arrive.
/// The events must not depend on that size, and all data that can be passed on must have been passed on.
pub fn frames(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, usize::from(*piece) + 1), whole);
    assert_eq!(read(bytes, 1), whole);
}

/// Returns the events, with adjacent data joined, and the protocol violation that ended decoding.
fn read(bytes: &[u8], piece: usize) -> (Vec<Event>, Option<Violation>) {
    let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
    let mut events: Vec<Event> = Vec::new();
    for piece in bytes.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            match (decoder.next(&mut input), events.last_mut()) {
                (Err(violation), _) => return (events, Some(violation)),
                (Ok(None), _) => break,
                (Ok(Some(Event::Data(more))), Some(Event::Data(before))) => {
                    *before = [&before[..], &more[..]].concat().into();
                }
                (Ok(Some(event)), _) => events.push(event),
            }
        }
        assert!(
            input.len() <= CONTROL_BYTES_MAX,
            "only a frame header or a control frame may be buffered"
        );
    }
    (events, None)
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    #[test]
    fn websocket_events_do_not_depend_on_how_bytes_are_split() {
        let text = b"\x02\x81\x85\x01\x02\x03\x04iglhn\x89\x80\0\0\0\0\x88\x82\0\0\0\0\x03\xe8";
        let parts = b"\x00\x01\x81\0\0\0\0a\x8a\x81\0\0\0\0p\x80\xfe\x00\x03\0\0\0\0bcd";
        let long = b"\x05\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03\x04abcdef";
        let samples = [("text", text.to_vec()), ("parts", parts.to_vec()), ("long", long.to_vec())];
        bounded("websocket_frames", &samples, 20_000, super::frames);
    }
}
