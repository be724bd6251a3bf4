//! Tests of the connection with hand-written frames.

use super::*;

type Log = Vec<String>;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHeader { len: payload.len(), kind, flags, stream }.put(&mut out);
    out.extend_from_slice(payload);
    out
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[0][..], &(body.len() as u32).to_be_bytes(), body].concat()
}

/// Returns trailers with grpc-status `code`, encoded as a literal that is not added to the dynamic table.
fn trailers(code: &str) -> Vec<u8> {
    let mut block = vec![0, 11];
    block.extend_from_slice(b"grpc-status");
    block.push(code.len() as u8);
    block.extend_from_slice(code.as_bytes());
    block
}

fn ready() -> Connection<u8> {
    let mut connection = Connection::new("test".to_owned(), false, None);
    assert!(!connection.has_room());
    assert_eq!(receive(&mut connection, &frame(kind::SETTINGS, 0, 0, &[])), Log::new());
    assert!(connection.has_room());
    written(&mut connection);
    connection
}

fn receive(connection: &mut Connection<u8>, bytes: &[u8]) -> Log {
    let mut log = Log::new();
    let used = connection
        .receive(bytes, &mut |event| {
            log.push(match event {
                Event::Message { tag, body } => format!("{tag}: {}", body.escape_ascii()),
                Event::Closed { tag, status, reply_bytes } => {
                    format!("{tag} closed {} {:?} {reply_bytes}", status.code, status.message)
                }
            });
        })
        .unwrap();
    assert_eq!(used, bytes.len());
    log
}

/// Takes the output, and lists the type, flags, stream and length of its frames.
fn written(connection: &mut Connection<u8>) -> Vec<(u8, u8, u32, usize)> {
    let mut frames = Vec::new();
    let mut rest = connection.output();
    rest = rest.strip_prefix(PREFACE).unwrap_or(rest);
    while let Some(header) = FrameHeader::parse(rest) {
        frames.push((header.kind, header.flags, header.stream, header.len));
        rest = &rest[HEADER_LEN + header.len..];
    }
    connection.wrote(connection.output().len());
    frames
}

#[test]
fn a_unary_call_sends_two_frames_and_ends_with_trailers() {
    let mut connection = ready();
    connection.unary("/s/M", b"hello", Replies::Collect, 7);
    let frames = written(&mut connection);
    assert_eq!(frames[1], (kind::DATA, flag::END_STREAM, 1, 10));
    assert_eq!((frames[0].0, frames[0].1, frames[0].2), (kind::HEADERS, flag::END_HEADERS, 1));
    let reply = [
        frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x88]),
        frame(kind::DATA, 0, 1, &message(b"world")),
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &trailers("0")),
    ];
    assert_eq!(receive(&mut connection, &reply.concat()), ["7: world", "7 closed 0 \"\" 10"]);
}

#[test]
fn messages_split_at_any_byte_are_joined() {
    let body = [message(b"one"), message(b""), message(b"three")].concat();
    for size in 1..=body.len() {
        let mut connection = ready();
        connection.open("/s/M", Replies::Collect, 1);
        let mut log = Log::new();
        for part in body.chunks(size) {
            log.extend(receive(&mut connection, &frame(kind::DATA, 0, 1, part)));
        }
        assert_eq!(log, ["1: one", "1: ", "1: three"], "response split into parts of {size} bytes");
    }
}

#[test]
fn data_waits_in_order_for_the_flow_control_window() {
    let mut connection = ready();
    connection.unary("/s/M", &[0; 65_000], Replies::Discard, 1);
    connection.unary("/s/M", &[0; 1_000], Replies::Discard, 2);
    assert!(!connection.has_room());
    let sent = |connection: &mut Connection<u8>| {
        let data = |frame: &&(u8, u8, u32, usize)| frame.0 == kind::DATA;
        let frames = written(connection);
        frames.iter().filter(data).map(|frame| (frame.2, frame.3, frame.1)).collect::<Vec<_>>()
    };
    let first = sent(&mut connection);
    assert_eq!(first.iter().map(|frame| frame.1).sum::<usize>(), 65_535);
    assert_eq!(first.last(), Some(&(3, 530, 0)));
    // The window of stream 3 is now large enough, but the connection's window is used up.
    receive(&mut connection, &frame(kind::WINDOW_UPDATE, 0, 3, &9_u32.to_be_bytes()));
    assert_eq!(sent(&mut connection), []);
    receive(&mut connection, &frame(kind::WINDOW_UPDATE, 0, 0, &9_999_u32.to_be_bytes()));
    assert_eq!(sent(&mut connection), [(3, 475, flag::END_STREAM)]);
    assert!(connection.has_room());
}

#[test]
fn errors_contain_the_message_from_the_server() {
    let mut connection = ready();
    for tag in [1, 2, 3] {
        connection.unary("/s/M", b"", Replies::Discard, tag);
    }
    let mut block = trailers("14");
    block.extend_from_slice(b"\x00\x0cgrpc-message\x04gone");
    let end = flag::END_HEADERS | flag::END_STREAM;
    let log = receive(&mut connection, &frame(kind::HEADERS, end, 1, &block));
    assert_eq!(log, ["1 closed 14 \"gone\" 0"]);
    // HTTP status 404 as an indexed field, without a gRPC status.
    let log = receive(&mut connection, &frame(kind::HEADERS, end, 3, &[0x8d]));
    assert_eq!(log, ["2 closed 2 \"HTTP status 404\" 0"]);
    let log = receive(&mut connection, &frame(kind::RST_STREAM, 0, 5, &[0, 0, 0, 8]));
    assert_eq!(log, ["3 closed 14 \"the server reset the stream (HTTP/2 error 8)\" 0"]);
}

#[test]
fn header_blocks_may_be_split_and_padded() {
    let mut connection = ready();
    connection.unary("/s/M", b"", Replies::Discard, 1);
    let block = trailers("0");
    let padded = [&[3][..], &block[..4], &[0; 3]].concat();
    let flags = flag::PADDED | flag::END_STREAM;
    assert_eq!(receive(&mut connection, &frame(kind::HEADERS, flags, 1, &padded)), Log::new());
    let rest = frame(kind::CONTINUATION, flag::END_HEADERS, 1, &block[4..]);
    assert_eq!(receive(&mut connection, &rest), ["1 closed 0 \"\" 0"]);
}

#[test]
fn pings_are_answered_and_the_stream_limit_is_obeyed() {
    let mut connection = ready();
    receive(&mut connection, &frame(kind::PING, 0, 0, &[1; 8]));
    assert_eq!(written(&mut connection), [(kind::PING, flag::ACK, 0, 8)]);
    receive(&mut connection, &frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]));
    assert!(connection.has_room());
    connection.unary("/s/M", b"", Replies::Discard, 1);
    assert!(!connection.has_room());
}

#[test]
fn an_incomplete_frame_waits_for_the_next_read() {
    let mut connection = ready();
    let ping = frame(kind::PING, 0, 0, &[1; 8]);
    for len in 0..ping.len() {
        let used = connection.receive(&ping[..len], &mut |_| {}).unwrap();
        assert_eq!(used, 0);
    }
}

#[test]
fn accepted_calls_are_still_answered_after_goaway() {
    let mut connection = ready();
    let mut ended = Vec::new();
    for tag in 0..3 {
        connection.unary("/a", b"", Replies::Discard, tag);
    }
    let mut each = |event: Event<'_, u8>| {
        if let Event::Closed { tag, status, .. } = event {
            ended.push((tag, status.code, status.message));
        }
    };
    // Streams 1 and 3 are in progress, and the server did not accept stream 5.
    let payload = [&[0, 0, 0, 3, 0, 0, 0, 11][..], b"too_many_pings"].concat();
    connection.receive(&frame(kind::GOAWAY, 0, 0, &payload), &mut each).unwrap();
    assert!(!connection.has_room() && !connection.is_spent());
    let reset = frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    connection.receive(&reset, &mut each).unwrap();
    connection.end("the connection broke", &mut each);
    assert!(!connection.is_busy());
    let farewell = "the server sent GOAWAY (HTTP/2 error 11: too_many_pings)".to_owned();
    let reset = "the server reset the stream (HTTP/2 error 8)".to_owned();
    assert_eq!(ended, [(2, 14, farewell.clone()), (0, 14, reset), (1, 14, farewell)]);
}
