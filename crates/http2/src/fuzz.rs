//! Fuzz target: a connection that receives arbitrary bytes and responds to its requests.

use http::{HeaderMap, StatusCode};

use crate::connection::{Connection, Event, Limits, StreamId, Violation};
use crate::frame::{HEADER_BYTES, Header, kind};

const LIMITS: Limits = Limits {
    streams_max: 4,
    is_announced: true,
    header_list_bytes_max: 4096,
    stream_window: 1 << 10,
    connection_window: 1 << 17,
    given_up_max: 10,
};

/// The size in bytes of the initial settings, which are sent in addition to the responses.
const OUTPUT_BYTES: usize = 64;
/// The maximum number of output bytes for each received byte. A frame of 9 bytes can cause a reset frame of 13 bytes.
const OUTPUT_PER_BYTE: usize = 2;

/// Passes bytes to a connection in pieces and as a whole. The first byte of the input is the number of piece sizes, and
/// the sizes follow.
pub fn connection(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let Some((pieces, bytes)) = rest.split_at_checked(usize::from(*count)) else { return };
    check(pieces, bytes);
}

/// Checks that the events and the output do not depend on how the bytes are split, that the output consists of valid
/// frames, and that its length is limited by the length of the input.
pub(crate) fn check(pieces: &[u8], bytes: &[u8]) {
    let whole = run(&[], bytes, false);
    assert!(
        whole.output.len() <= OUTPUT_BYTES + OUTPUT_PER_BYTE * bytes.len(),
        "too much output: {} bytes for {} bytes of input",
        whole.output.len(),
        bytes.len()
    );
    let split = run(pieces, bytes, false);
    assert_eq!(
        whole, split,
        "the events or the output depend on how the bytes are split: {pieces:?}"
    );
    let answered = run(&[], bytes, true);
    assert_eq!(
        answered,
        run(pieces, bytes, true),
        "with responses, the events or the output depend on how the bytes are split: {pieces:?}"
    );
}

/// The events and the output that an input produces.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trace {
    events: Vec<String>,
    violation: Option<Violation>,
    output: Vec<u8>,
    open_streams: usize,
}

/// Passes the bytes to a connection, in pieces of these sizes in turn.
fn run(pieces: &[u8], bytes: &[u8], answers: bool) -> Trace {
    let mut trace = Trace::default();
    let mut connection = Connection::new(LIMITS);
    let mut sizes = pieces.iter().map(|size| usize::from(*size).max(1)).cycle();
    let (mut unread, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() && trace.violation.is_none() {
        let (now, later) = rest.split_at(sizes.next().unwrap_or(rest.len()).min(rest.len()));
        unread.extend_from_slice(now);
        rest = later;
        let mut input = &unread[..];
        loop {
            match connection.next(&mut input) {
                Ok(Some(event)) => {
                    trace.events.push(format!("{event:?}"));
                    take(&mut connection, &event, answers);
                }
                Ok(None) => break,
                Err(violation) => {
                    trace.violation = Some(violation);
                    break;
                }
            }
        }
        let used = unread.len() - input.len();
        unread.drain(..used);
    }
    trace.open_streams = connection.stream_count();
    assert!(
        trace.open_streams <= LIMITS.streams_max,
        "{} streams are open, but the limit is {}",
        trace.open_streams,
        LIMITS.streams_max
    );
    assert!(
        unread.len() < HEADER_BYTES + (1 << 14) || trace.violation.is_some(),
        "{} unread bytes remain, more than an incomplete frame",
        unread.len()
    );
    trace.output = connection.output().to_vec();
    check_frames(&trace.output);
    trace
}

/// Handles an event as a server does. Streams receive different kinds of responses.
fn take(connection: &mut Connection, event: &Event<'_>, answers: bool) {
    match *event {
        Event::Ping { payload } => connection.pong(payload),
        Event::Data { stream, data, .. } => connection.release(stream, data.len()),
        _ => {}
    }
    let (Event::Request { stream, .. } | Event::Room { stream, .. } | Event::Data { stream, .. }) =
        *event
    else {
        return;
    };
    if answers && connection.has_stream(stream) {
        answer(connection, stream);
    }
}

fn answer(connection: &mut Connection, stream: StreamId) {
    let room = connection.room(stream);
    match stream % 8 {
        1 => _ = connection.reply(stream, b"\0\0\0\0\x01x"),
        3 => {
            connection.respond(stream, StatusCode::NOT_FOUND, &HeaderMap::new(), false);
            connection.data(stream, &vec![0; room.min(20_000)], false);
            connection.trailers(stream, &HeaderMap::new());
        }
        5 => connection.reset(stream, crate::frame::Code::CANCEL),
        _ => {
            connection.data(stream, &vec![0; room.min(100)], false);
        }
    }
    assert!(connection.room(stream) <= room, "sending data has enlarged the window");
}

/// Checks that the output consists of complete frames that a server may send.
fn check_frames(mut output: &[u8]) {
    while !output.is_empty() {
        let header = Header::parse(output).expect("the output contains complete frame headers");
        assert!(
            header.kind <= kind::CONTINUATION && header.kind != kind::PUSH_PROMISE,
            "{header:?}"
        );
        output =
            output.get(HEADER_BYTES + header.len..).expect("the output contains complete frames");
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use crate::frame::{Header, PREFACE};

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = Header { len: payload.len(), kind, flags, stream }.bytes().to_vec();
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns an input with the piece sizes and these frames.
    fn sample(frames: &[Vec<u8>]) -> Vec<u8> {
        let start = [&[2, 5, 33], PREFACE, &frame(4, 0, 0, b"")].concat();
        [start, frames.concat()].concat()
    }

    #[test]
    fn the_events_of_any_connection_do_not_depend_on_how_the_bytes_are_split() {
        let post = b"\x83\x86\x04\x02/x";
        let coded = b"\x83\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let indexed = b"\x83\x86\x84\xbe\x40\x0bx-some-name\x01v\x0f\x0d\x014";
        let calls = [
            frame(1, 4, 1, post),
            frame(0, 0, 1, b"\0\0\0\0\x01x"),
            frame(0, 1, 1, b""),
            frame(1, 4, 3, coded),
            frame(1, 5, 3, b"\0\x01a\x01b"),
            frame(1, 0x2c, 5, &[&b"\x03\0\0\0\0\x10"[..], post, b"\0\0\0"].concat()),
            frame(0, 9, 5, b"\x02ab\0\0"),
            frame(1, 0, 7, indexed),
            frame(9, 0, 7, b"\x00\x01a"),
            frame(9, 4, 7, b"\x01b"),
            frame(0, 1, 7, b"1234"),
        ];
        let control = [
            frame(4, 0, 0, b"\0\x01\0\0\0\0\0\x01\0\0\x10\0\0\x04\0\0\0\x05\0\x05\0\0\x40\0"),
            frame(4, 1, 0, b""),
            frame(6, 0, 0, b"12345678"),
            frame(1, 4, 1, post),
            frame(8, 0, 0, &[0, 0, 0, 9]),
            frame(8, 0, 1, &[0, 0, 0, 9]),
            frame(2, 0, 1, b"\0\0\0\x03\0"),
            frame(3, 0, 1, &[0, 0, 0, 8]),
            frame(7, 0, 0, &[0; 8]),
            frame(8, 0, 1, &[0, 0, 0, 9]),
        ];
        let samples = [("calls", sample(&calls)), ("control", sample(&control))];
        bounded("http2_connection", &samples, 20_000, super::connection);
    }
}
