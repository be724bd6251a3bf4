//! Tests of a connection: requests, responses, flow control and protocol violations.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::send::MESSAGE_FRAMES_MAX;
use super::*;
use crate::frame::flag::{ACK, END_HEADERS, END_STREAM, PADDED, PRIORITY};
use crate::frame::kind::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};

const LIMITS: Limits = Limits {
    streams_max: 3,
    is_announced: false,
    header_list_bytes_max: 4096,
    stream_window: 1 << 20,
    connection_window: 4 << 20,
    given_up_max: 10,
};

/// The encoded header fields `:method: POST`, `:scheme: http` and `:path: /x`.
const POST: &[u8] = b"\x83\x86\x04\x02/x";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Header { len: payload.len(), kind, flags, stream }.put(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = entries
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, POST)
}

/// Returns a connection after the exchange of settings, without pending output.
fn open() -> Connection {
    open_with(LIMITS)
}

fn open_with(limits: Limits) -> Connection {
    let mut connection = greeted(limits);
    receive(&mut connection, &settings(&[])).unwrap();
    sent(&mut connection);
    connection
}

/// Returns a connection that has received the preface.
fn greeted(limits: Limits) -> Connection {
    let mut connection = Connection::new(limits);
    receive(&mut connection, PREFACE).unwrap();
    connection
}

/// Passes bytes to the connection, and returns the events as text.
fn receive(connection: &mut Connection, bytes: &[u8]) -> Result<Vec<String>, Violation> {
    let mut rest = bytes;
    let mut events = Vec::new();
    while let Some(event) = connection.next(&mut rest)? {
        events.push(match event {
            Event::Request { stream, head, ends } => {
                format!("{stream} {} {} {ends}", head.method, head.uri)
            }
            Event::Data { stream, data, ends, .. } => {
                format!("{stream} data {} {ends}", data.len())
            }
            Event::Trailers { stream, .. } => format!("{stream} trailers"),
            Event::Reset { stream, code, .. } => format!("{stream} reset {}", code.0),
            Event::Room { stream, .. } => format!("{stream} room"),
            Event::NewWindow => "new window".to_owned(),
            Event::Ping { payload } => format!("ping {payload:?}"),
            Event::Pong { payload } => format!("pong {payload:?}"),
        });
    }
    assert!(rest.is_empty(), "all frames of the tests are complete");
    Ok(events)
}

/// Removes the output and returns its frames, each as kind, flags, stream and payload.
fn sent(connection: &mut Connection) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let output = connection.output().to_vec();
    connection.wrote(output.len());
    let (mut rest, mut frames) = (&output[..], Vec::new());
    while let Some(Header { len, kind, flags, stream }) = Header::parse(rest) {
        frames.push((kind, flags, stream, rest[HEADER_BYTES..][..len].to_vec()));
        rest = &rest[HEADER_BYTES + len..];
    }
    assert!(rest.is_empty());
    frames
}

fn code_of(result: Result<Vec<String>, Violation>) -> Code {
    result.expect_err("a violation").code
}

/// Returns the stream and the code if the only output is a reset.
fn reset_of(connection: &mut Connection) -> Option<(u32, u32)> {
    match &sent(connection)[..] {
        [(RST_STREAM, 0, stream, code)] => Some((*stream, read_u32(code)?)),
        _ => None,
    }
}

#[test]
fn the_settings_are_announced_and_acknowledged() {
    let mut connection = greeted(LIMITS);
    let frames = sent(&mut connection);
    assert_eq!(frames[0], (SETTINGS, 0, 0, b"\0\x04\0\x10\0\0\0\x06\0\0\x10\0".to_vec()));
    assert_eq!(frames[1], (WINDOW_UPDATE, 0, 0, ((4 << 20) - 65_535_u32).to_be_bytes().to_vec()));
    receive(&mut connection, &settings(&[(setting::ENABLE_PUSH, 0), (99, 7)])).unwrap();
    assert_eq!(sent(&mut connection), [(SETTINGS, ACK, 0, Vec::new())]);
    let mut announced = Connection::new(Limits { is_announced: true, ..LIMITS });
    assert!(sent(&mut announced)[0].3.ends_with(&[0, 3, 0, 0, 0, 3]));
}

#[test]
fn a_unary_call_is_answered_with_three_frames() {
    let mut connection = open();
    for stream in [1, 3] {
        let bytes = [request(stream), frame(DATA, END_STREAM, stream, b"\0\0\0\0\x01x")].concat();
        let expected = [format!("{stream} POST /x false"), format!("{stream} data 6 true")];
        assert_eq!(receive(&mut connection, &bytes).unwrap(), expected);
        assert!(connection.reply(stream, b"\0\0\0\0\x01y"));
        let (head, trailers) = if stream == 1 {
            let trailers = b"\x40\x0bgrpc-status\x010\x40\x0cgrpc-message\x00";
            (b"\x88\x5f\x10application/grpc".to_vec(), trailers.to_vec())
        } else {
            (b"\x88\xc0".to_vec(), b"\xbf\xbe".to_vec())
        };
        let frames = [
            (HEADERS, END_HEADERS, stream, head),
            (DATA, 0, stream, b"\0\0\0\0\x01y".to_vec()),
            (HEADERS, END_HEADERS | END_STREAM, stream, trailers),
        ];
        assert_eq!(sent(&mut connection), frames);
        assert!(!connection.has_stream(stream));
    }
}

#[test]
fn a_response_waits_until_the_flow_control_window_has_room() {
    let mut connection = open();
    receive(&mut connection, &settings(&[(setting::INITIAL_WINDOW_SIZE, 5)])).unwrap();
    receive(&mut connection, &request(1)).unwrap();
    sent(&mut connection);
    assert!(!connection.reply(1, b"\0\0\0\0\x01y"));
    assert_eq!(connection.room(1), 5);
    connection.respond_grpc(1);
    connection.data(1, b"\0\0\0\0\x01", false);
    assert_eq!(connection.room(1), 0);
    let more = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]);
    assert_eq!(receive(&mut connection, &more).unwrap(), ["1 room"]);
    assert_eq!(connection.room(1), 9);
    // A smaller initial window can make the window of an open stream negative.
    receive(&mut connection, &settings(&[(setting::INITIAL_WINDOW_SIZE, 0)])).unwrap();
    receive(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).unwrap();
    assert_eq!(connection.room(1), 5);
}

#[test]
fn data_is_split_into_frames_that_the_client_accepts() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    sent(&mut connection);
    connection.data(1, &[7; 40_000], true);
    let frames: Vec<_> = sent(&mut connection)
        .into_iter()
        .map(|(kind, flags, _, payload)| (kind, flags, payload.len()))
        .collect();
    // The request is still open, so the client is asked to stop.
    assert_eq!(
        frames,
        [(DATA, 0, 16_384), (DATA, 0, 16_384), (DATA, END_STREAM, 7_232), (RST_STREAM, 0, 4)]
    );
}

#[test]
fn parts_of_a_response_share_frames_until_they_are_written() {
    let mut connection = open();
    receive(&mut connection, &[request(1), request(3)].concat()).unwrap();
    for part in [&b"a"[..], b"bc", b""] {
        connection.data(1, part, false);
    }
    // Only the last frame of the output can grow.
    connection.data(3, b"d", false);
    connection.data(1, b"e", false);
    connection.ping([1; 8]);
    connection.data(1, b"f", false);
    let frames = [
        (DATA, 0, 1, b"abc".to_vec()),
        (DATA, 0, 3, b"d".to_vec()),
        (DATA, 0, 1, b"e".to_vec()),
        (PING, 0, 0, vec![1; 8]),
        (DATA, 0, 1, b"f".to_vec()),
    ];
    assert_eq!(sent(&mut connection), frames);

    // A frame that is partly written does not change any more.
    connection.data(1, b"gh", false);
    let first = connection.output()[0];
    connection.wrote(1);
    connection.data(1, b"i", true);
    let output = [&[first], connection.output()].concat();
    let rest = [frame(DATA, 0, 1, b"gh"), frame(DATA, END_STREAM, 1, b"i")].concat();
    assert!(output.starts_with(&rest), "{output:?}");
    connection.wrote(output.len() - 1);

    // The end of the response is set on the frame that holds the last part.
    connection.data(3, &[7; 16_000], false);
    connection.data(3, &[7; 1_000], false);
    connection.data(3, b"", true);
    let frames: Vec<_> = sent(&mut connection)
        .into_iter()
        .map(|(kind, flags, _, payload)| (kind, flags, payload.len()))
        .collect();
    assert_eq!(frames, [(DATA, 0, 16_384), (DATA, END_STREAM, 616), (RST_STREAM, 0, 4)]);
}

/// Returns a gRPC message of `bytes` bytes with its prefix.
fn message(bytes: u16) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    [&[0, 0, 0, high, low][..], &vec![7; bytes.into()]].concat()
}

#[test]
fn data_frames_end_at_message_boundaries_until_many_frames_are_unsent() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/grpc".parse().unwrap());
    connection.respond(1, StatusCode::OK, &headers, false);
    sent(&mut connection);
    let lengths = |connection: &mut Connection| -> Vec<usize> {
        sent(connection).into_iter().map(|(.., payload)| payload.len()).collect()
    };
    // The parts do not end at the boundaries of the messages.
    let body = [message(1), message(0), message(2), message(20_000)].concat();
    connection.data(1, &body[..8], false);
    connection.data(1, &body[8..10], false);
    connection.data(1, &body[10..], false);
    assert_eq!(lengths(&mut connection), [6, 5, 7, 16_384, 20_005 - 16_384]);
    // A message that is partly sent continues in a new frame, which still ends at the boundary.
    let body = message(3).repeat(2);
    connection.data(1, &body[..7], false);
    assert_eq!(lengths(&mut connection), [7]);
    connection.data(1, &body[7..], false);
    assert_eq!(lengths(&mut connection), [1, 8]);

    let max = MESSAGE_FRAMES_MAX as usize;
    connection.data(1, &message(3).repeat(max), false);
    connection.data(1, &message(3).repeat(10), false);
    assert_eq!(lengths(&mut connection), [vec![8; max - 1], vec![8 * 11]].concat());
    connection.data(1, &message(3).repeat(2), true);
    assert_eq!(lengths(&mut connection), [8, 8, 4]);
}

#[test]
fn the_output_buffer_does_not_grow_while_a_slow_client_never_reads_all_of_it() {
    let mut connection = open();
    let settings = settings(&[(setting::INITIAL_WINDOW_SIZE, MAX_31_BITS)]);
    let window = frame(WINDOW_UPDATE, 0, 0, &(MAX_31_BITS - WINDOW_DEFAULT).to_be_bytes());
    receive(&mut connection, &[settings, window, request(1)].concat()).unwrap();
    let part = [7; 16_000];
    let framed = frame(DATA, 0, 1, &part);
    connection.data(1, &part, false);
    let mut expected = connection.output().to_vec();
    for _ in 0..1000 {
        connection.wrote(1);
        expected.remove(0);
        connection.data(1, &part, false);
        expected.extend_from_slice(&framed);
        assert!(connection.output() == expected, "the output is not the rest of the frames");
        connection.wrote(framed.len() - 1);
        expected.drain(..framed.len() - 1);
    }
    assert!(connection.buffer_capacity() < 16 * part.len(), "{}", connection.buffer_capacity());
}

#[test]
fn long_header_blocks_are_split_and_joined() {
    let mut connection = open();
    let bytes = [
        frame(HEADERS, END_STREAM, 1, &POST[..2]),
        frame(CONTINUATION, 0, 1, &POST[2..4]),
        frame(CONTINUATION, END_HEADERS, 1, &POST[4..]),
    ];
    assert_eq!(receive(&mut connection, &bytes.concat()).unwrap(), ["1 POST /x true"]);
    let mut headers = HeaderMap::new();
    headers.insert("x", "y".repeat(40_000).parse().unwrap());
    connection.respond(1, StatusCode::OK, &headers, true);
    let frames: Vec<_> = sent(&mut connection)
        .into_iter()
        .map(|(kind, flags, _, payload)| (kind, flags, payload.len()))
        .collect();
    assert_eq!(frames[0], (HEADERS, END_STREAM, 16_384));
    assert_eq!(frames[1], (CONTINUATION, 0, 16_384));
    assert_eq!(frames[2].1, END_HEADERS);
}

#[test]
fn padding_and_priority_are_ignored() {
    let mut connection = open();
    let padded = [&b"\x03\0\0\0\0\x10"[..], POST, b"\0\0\0"].concat();
    let bytes = [
        frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, &padded),
        frame(DATA, PADDED | END_STREAM, 1, b"\x02ab\0\0"),
    ];
    assert_eq!(
        receive(&mut connection, &bytes.concat()).unwrap(),
        ["1 POST /x false", "1 data 2 true"]
    );
}

#[test]
fn a_head_with_many_fields_is_not_remembered() {
    let mut connection = open_with(Limits { header_list_bytes_max: 1 << 20, ..LIMITS });
    // Each of these bytes stands for the field `accept-charset`.
    for (stream, fields, remembered) in [(1, 30, 1), (3, 300, 1), (5, 31, 2)] {
        let block = [POST, &vec![0x8f; fields]].concat();
        let bytes = frame(HEADERS, END_HEADERS, stream, &block);
        let mut rest = &bytes[..];
        let event = connection.next(&mut rest).unwrap();
        assert!(matches!(event, Some(Event::Request { .. })), "{fields} fields");
        assert_eq!(connection.known_heads.len(), remembered, "{fields} fields");
    }
}

#[test]
fn equal_header_blocks_share_one_decoded_head() {
    let mut connection = open_with(Limits { streams_max: 100, ..LIMITS });
    let mut heads = Vec::new();
    let remembered = [POST, b"\x40\x01a\x01b"].concat();
    for (stream, block) in
        [(1, POST), (3, POST), (5, &remembered), (7, POST), (9, &remembered), (11, POST)]
    {
        let bytes = frame(HEADERS, END_HEADERS, stream, block);
        let mut rest = &bytes[..];
        let Some(Event::Request { head, .. }) = connection.next(&mut rest).unwrap() else {
            panic!("a request")
        };
        heads.push(head);
    }
    assert!(Arc::ptr_eq(&heads[0], &heads[1]));
    assert!(!Arc::ptr_eq(&heads[1], &heads[3]), "the table has changed");
    assert!(!Arc::ptr_eq(&heads[2], &heads[4]), "the header block changes the table");
    assert_eq!(heads[4].headers.get("a").unwrap(), "b");
    assert!(!Arc::ptr_eq(&heads[3], &heads[5]));
}

#[test]
fn a_flow_control_window_is_refilled_after_half_of_it_is_read() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    let part = frame(DATA, 0, 1, &[0; 16_384]);
    for _ in 0..32 {
        receive(&mut connection, &part).unwrap();
    }
    assert!(sent(&mut connection).is_empty());
    connection.release(1, 31 * 16_384);
    assert!(sent(&mut connection).is_empty());
    connection.release(1, 16_384);
    assert_eq!(
        sent(&mut connection),
        [(WINDOW_UPDATE, 0, 1, (1_u32 << 19).to_be_bytes().to_vec())]
    );
    connection.release_of_connection(2 << 20);
    assert_eq!(sent(&mut connection)[0].2, 0);
}

#[test]
fn data_beyond_a_window_is_refused() {
    let mut connection = open();
    receive(&mut connection, &[request(1), request(3), request(5)].concat()).unwrap();
    let part = |stream| frame(DATA, 0, stream, &[0; 16_384]);
    for _ in 0..64 {
        receive(&mut connection, &part(1)).unwrap();
    }
    assert_eq!(receive(&mut connection, &part(1)).unwrap(), ["1 reset 3"]);
    let mut connection = open_with(Limits { stream_window: 1 << 30, ..LIMITS });
    receive(&mut connection, &request(1)).unwrap();
    for _ in 0..256 {
        receive(&mut connection, &part(1)).unwrap();
    }
    assert_eq!(code_of(receive(&mut connection, &part(1))), Code::FLOW_CONTROL_ERROR);
}

#[test]
fn streams_beyond_the_limit_are_refused_but_their_headers_update_the_dynamic_table() {
    let mut connection = open();
    receive(&mut connection, &[request(1), request(3), request(5)].concat()).unwrap();
    let with_entry = [POST, b"\x40\x01a\x01b"].concat();
    let refused = frame(HEADERS, END_HEADERS | END_STREAM, 7, &with_entry);
    assert!(receive(&mut connection, &refused).unwrap().is_empty());
    assert_eq!(reset_of(&mut connection), Some((7, 7)));
    connection.reset(1, Code::CANCEL);
    let by_index = frame(HEADERS, END_HEADERS, 9, &[POST, b"\xbe"].concat());
    assert_eq!(receive(&mut connection, &by_index).unwrap(), ["9 POST /x false"]);
}

#[test]
fn a_request_with_an_overlong_head_is_answered_with_status_431() {
    let mut connection = open();
    let entry = [&b"\x40\x01a\x7f\x81\x1d"[..], &[b'x'; 3840]].concat();
    let block = [POST, &entry, &[0xbe; 1000]].concat();
    assert!(
        receive(&mut connection, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &block))
            .unwrap()
            .is_empty()
    );
    let frames = sent(&mut connection);
    assert_eq!(frames[0].3, b"\x08\x03431");
    assert_eq!(receive(&mut connection, &request(3)).unwrap(), ["3 POST /x false"]);
}

#[test]
fn malformed_requests_are_reset() {
    for (index, block) in [
        &b"\x83\x86"[..],
        b"\x86\x04\x02/x",
        b"\x83\x04\x02/x",
        b"\x83\x86\x04\0",
        b"\x83\x83\x86\x04\x02/x",
        b"\x83\x86\x04\x02/x\0\x01A\x01b",
        b"\x83\x86\x04\x02/x\0\x01a\x01b\x83",
        b"\x83\x86\x04\x02/x\x00\x0aconnection\x01x",
        b"\x83\x86\x04\x02/x\x00\x02te\x04gzip",
        b"\x83\x86\x04\x02/x\x00\x05:what\x01x",
        b"\x83\x86\x04\x02/x\x88",
        b"\x83\x86\x04\x02/x\0\x01a\x01\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut connection = open();
        assert!(
            receive(&mut connection, &frame(HEADERS, END_HEADERS, 1, block)).unwrap().is_empty()
        );
        assert_eq!(reset_of(&mut connection), Some((1, 1)), "block {index}");
        assert_eq!(receive(&mut connection, &request(3)).unwrap(), ["3 POST /x false"]);
    }
}

#[test]
fn a_request_whose_body_contradicts_its_content_length_is_reset() {
    let head = [POST, b"\x0f\x0d\x014"].concat();
    for (parts, is_valid) in
        [(&[4][..], true), (&[2, 2], true), (&[3], false), (&[5], false), (&[2, 3], false)]
    {
        let mut connection = open();
        receive(&mut connection, &frame(HEADERS, END_HEADERS, 1, &head)).unwrap();
        let mut events = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let flags = if index + 1 == parts.len() { END_STREAM } else { 0 };
            events
                .extend(receive(&mut connection, &frame(DATA, flags, 1, &vec![0; *part])).unwrap());
        }
        assert_eq!(!events.contains(&"1 reset 1".to_owned()), is_valid, "{parts:?}");
    }
}

#[test]
fn protocol_violations_end_the_connection() {
    let open_and = |bytes: &[u8]| code_of(receive(&mut open(), bytes));
    let protocol = Code::PROTOCOL_ERROR;
    assert_eq!(code_of(receive(&mut greeted(LIMITS), &request(1))), protocol, "no SETTINGS");
    assert_eq!(code_of(receive(&mut Connection::new(LIMITS), b"PRI * HTTP/1")), protocol);
    assert_eq!(open_and(&request(0)), protocol);
    assert_eq!(open_and(&request(2)), protocol);
    assert_eq!(open_and(&frame(DATA, 0, 0, b"x")), protocol);
    assert_eq!(open_and(&frame(DATA, 0, 1, b"x")), protocol);
    assert_eq!(open_and(&frame(RST_STREAM, 0, 1, &[0; 4])), protocol);
    assert_eq!(open_and(&frame(RST_STREAM, 0, 1, &[0; 3])), Code::FRAME_SIZE_ERROR);
    assert_eq!(open_and(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])), protocol);
    assert_eq!(open_and(&frame(WINDOW_UPDATE, 0, 0, &[0; 4])), protocol);
    assert_eq!(open_and(&frame(WINDOW_UPDATE, 0, 0, &[0; 5])), Code::FRAME_SIZE_ERROR);
    assert_eq!(
        open_and(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        Code::FLOW_CONTROL_ERROR
    );
    assert_eq!(open_and(&frame(SETTINGS, 0, 1, &[])), protocol);
    assert_eq!(open_and(&frame(SETTINGS, 0, 0, &[0; 5])), Code::FRAME_SIZE_ERROR);
    assert_eq!(open_and(&frame(SETTINGS, ACK, 0, &[0; 6])), Code::FRAME_SIZE_ERROR);
    assert_eq!(open_and(&settings(&[(setting::ENABLE_PUSH, 2)])), protocol);
    assert_eq!(open_and(&settings(&[(setting::MAX_FRAME_SIZE, 16_383)])), protocol);
    assert_eq!(
        open_and(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)])),
        Code::FLOW_CONTROL_ERROR
    );
    assert_eq!(open_and(&frame(PING, 0, 1, &[0; 8])), protocol);
    assert_eq!(open_and(&frame(PING, 0, 0, &[0; 7])), Code::FRAME_SIZE_ERROR);
    assert_eq!(open_and(&frame(GOAWAY, 0, 1, &[0; 8])), protocol);
    assert_eq!(open_and(&frame(kind::PUSH_PROMISE, 0, 1, &[0; 8])), protocol);
    assert_eq!(open_and(&frame(CONTINUATION, END_HEADERS, 1, b"")), protocol);
    assert_eq!(
        open_and(&[frame(HEADERS, 0, 1, POST), frame(PING, 0, 0, &[0; 8])].concat()),
        protocol
    );
    assert_eq!(
        open_and(&[frame(HEADERS, 0, 1, POST), frame(CONTINUATION, 0, 3, b"")].concat()),
        protocol
    );
    assert_eq!(open_and(&frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff")), Code::COMPRESSION_ERROR);
    assert_eq!(open_and(&frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff\x83")), protocol);
    let ended =
        [frame(HEADERS, END_HEADERS | END_STREAM, 1, POST), frame(RST_STREAM, 0, 1, &[0; 4])]
            .concat();
    assert_eq!(open_and(&[&ended[..], &frame(DATA, 0, 1, b"x")].concat()), Code::STREAM_CLOSED);
    assert_eq!(open_and(&[&ended[..], &request(1)].concat()), Code::STREAM_CLOSED);
    let mut header = frame(DATA, 0, 1, b"");
    header[..3].copy_from_slice(&[0, 0x40, 1]);
    assert_eq!(open_and(&header), Code::FRAME_SIZE_ERROR);
}

#[test]
fn stream_errors_leave_the_connection_open() {
    let mut connection = open();
    receive(&mut connection, &frame(HEADERS, END_HEADERS | END_STREAM, 1, POST)).unwrap();
    assert_eq!(receive(&mut connection, &frame(DATA, 0, 1, b"x")).unwrap(), ["1 reset 5"]);
    receive(&mut connection, &request(3)).unwrap();
    assert_eq!(
        receive(&mut connection, &frame(HEADERS, END_HEADERS, 3, b"\0\x01a\x01b")).unwrap(),
        ["3 reset 1"]
    );
    assert!(receive(&mut connection, &frame(DATA, END_STREAM, 3, b"late")).unwrap().is_empty());
    receive(&mut connection, &request(5)).unwrap();
    assert_eq!(
        receive(&mut connection, &frame(WINDOW_UPDATE, 0, 5, &[0; 4])).unwrap(),
        ["5 reset 1"]
    );
    receive(&mut connection, &request(7)).unwrap();
    let too_much = frame(WINDOW_UPDATE, 0, 7, &[0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(receive(&mut connection, &too_much).unwrap(), ["7 reset 3"]);
    let itself = frame(HEADERS, END_HEADERS | PRIORITY, 9, &[b"\0\0\0\x09\0", POST].concat());
    assert!(receive(&mut connection, &itself).unwrap().is_empty());
    receive(&mut connection, &request(11)).unwrap();
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 11, b"\0\x01a\x01b");
    assert_eq!(receive(&mut connection, &trailers).unwrap(), ["11 trailers"]);
}

#[test]
fn rapid_resets_end_the_connection() {
    let mut connection = open();
    let pair = |stream| [request(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat();
    let mut streams = (1..).step_by(2);
    for stream in streams.by_ref().take(10) {
        receive(&mut connection, &pair(stream)).unwrap();
    }
    connection.forgive();
    for stream in streams.by_ref().take(5) {
        receive(&mut connection, &pair(stream)).unwrap();
    }
    let stream = streams.next().unwrap();
    assert_eq!(code_of(receive(&mut connection, &pair(stream))), Code::ENHANCE_YOUR_CALM);
}

#[test]
fn floods_of_useless_frames_end_the_connection() {
    let block = frame(HEADERS, 0, 1, POST);
    let flood = |begin: &[u8], each: &[u8]| {
        let mut connection = open();
        receive(&mut connection, begin).unwrap();
        let flooded = (0..100_000).find_map(|_| {
            sent(&mut connection);
            receive(&mut connection, each).err()
        });
        flooded.map(|violation| violation.code)
    };
    let calm = Some(Code::ENHANCE_YOUR_CALM);
    assert_eq!(flood(b"", &settings(&[])), calm);
    assert_eq!(flood(b"", &frame(PING, 0, 0, &[0; 8])), calm);
    assert_eq!(flood(b"", &frame(99, 0, 0, b"")), calm);
    assert_eq!(flood(b"", &frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\0")), calm);
    assert_eq!(flood(&request(1), &frame(DATA, 0, 1, b"")), calm);
    assert_eq!(flood(&block, &frame(CONTINUATION, 0, 1, b"")), calm);
    assert_eq!(flood(&block, &frame(CONTINUATION, 0, 1, &[0; 4000])), calm);
}

/// A client library may measure the round-trip time with a ping for each burst of data, and may return the window of
/// each DATA frame separately.
#[test]
fn pings_and_window_updates_of_a_client_that_receives_many_responses_are_not_a_flood() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    connection.respond_grpc(1);
    sent(&mut connection);
    let one_byte = 1_u32.to_be_bytes();
    let answers = [
        frame(PING, 0, 0, &[0; 8]),
        frame(WINDOW_UPDATE, 0, 1, &one_byte),
        frame(WINDOW_UPDATE, 0, 0, &one_byte),
    ]
    .concat();
    for _ in 0..2 * IDLE_FRAMES_MAX {
        connection.data(1, b"x", false);
        assert_eq!(sent(&mut connection).len(), 1);
        receive(&mut connection, &answers).unwrap();
    }
    // Frames that have been sent earlier do not permit a flood.
    let ping = frame(PING, 0, 0, &[0; 8]);
    let count =
        (0..2 * IDLE_FRAMES_MAX).take_while(|_| receive(&mut connection, &ping).is_ok()).count();
    assert!(count <= IDLE_FRAMES_MAX as usize, "{count} pings without data were accepted");
}

#[test]
fn requests_after_the_final_goaway_are_ignored() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    connection.announce_end();
    connection.ping(*b"12345678");
    assert_eq!(sent(&mut connection)[0], (GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0".to_vec()));
    let pong = frame(PING, ACK, 0, b"12345678");
    let late = [request(3), pong].concat();
    assert_eq!(
        receive(&mut connection, &late).unwrap(),
        ["3 POST /x false", "pong [49, 50, 51, 52, 53, 54, 55, 56]"]
    );
    connection.end();
    assert_eq!(sent(&mut connection), [(GOAWAY, 0, 0, b"\0\0\0\x03\0\0\0\0".to_vec())]);
    assert!(receive(&mut connection, &request(5)).unwrap().is_empty());
    assert!(receive(&mut connection, &frame(DATA, END_STREAM, 5, b"x")).unwrap().is_empty());
    assert_eq!(connection.stream_count(), 2);
}

#[test]
fn incomplete_frames_wait_for_more_input() {
    let bytes = [request(1), frame(DATA, END_STREAM, 1, b"abc")].concat();
    for end in 0..bytes.len() {
        let mut connection = open();
        let mut rest = &bytes[..end];
        while connection.next(&mut rest).unwrap().is_some() {}
        let used = end - rest.len();
        let mut rest = &bytes[used..];
        while connection.next(&mut rest).unwrap().is_some() {}
        assert!(rest.is_empty(), "input split after {end} bytes");
    }
}

mod attacks;
mod properties;
mod rfc;
