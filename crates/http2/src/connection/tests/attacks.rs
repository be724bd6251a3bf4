//! Tests that a connection resists known attacks on HTTP/2 servers.

use super::*;
use crate::connection::limits::{
    BLOCK_FRAMES_MAX, IDLE_FRAMES_PER_NEW_WINDOW, KNOWN_BLOCK_BYTES_MAX, KNOWN_HEADS_MAX,
    RESET_KEPT_MAX,
};

/// Returns a connection that permits many streams.
fn wide() -> Connection {
    open_with(Limits { streams_max: 1000, ..LIMITS })
}

/// Opens streams and provokes an error on each until the connection ends. Returns the number of streams whose errors
/// the connection tolerated, and the error code with which it ended.
fn provoke(error: impl Fn(u32) -> Vec<u8>) -> (usize, Code) {
    let mut connection = wide();
    for (count, stream) in (1..1000).step_by(2).enumerate() {
        let result = receive(&mut connection, &[request(stream), error(stream)].concat());
        assert_eq!(connection.stream_count(), 0, "the stream has ended");
        if let Err(violation) = result {
            return (count, violation.code);
        }
    }
    panic!("no number of provoked errors ends the connection");
}

/// Tests the `MadeYouReset` attack (CVE-2025-8671): the client makes the server reset the streams, and sends no reset
/// itself.
#[test]
fn provoked_resets_are_counted_like_resets_by_the_client() {
    let expected = (10, Code::ENHANCE_YOUR_CALM);
    assert_eq!(provoke(|stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])), expected);
    assert_eq!(provoke(|stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4])), expected);
    assert_eq!(provoke(|stream| frame(WINDOW_UPDATE, 0, stream, &[0x7f, 255, 255, 255])), expected);
    let after_end =
        |stream| [frame(DATA, END_STREAM, stream, b"x"), frame(DATA, 0, stream, b"x")].concat();
    assert_eq!(provoke(after_end), expected);
    let second_trailers = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, b"").repeat(2);
    assert_eq!(provoke(second_trailers), expected);
    assert_eq!(provoke(|stream| frame(HEADERS, END_HEADERS, stream, b"")), expected);
    assert_eq!(provoke(|stream| frame(kind::PRIORITY, 0, stream, b"")), expected);
    let on_itself =
        |stream: u32| frame(kind::PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat());
    assert_eq!(provoke(on_itself), expected);
}

#[test]
fn resets_of_answered_streams_are_not_counted() {
    let mut connection = wide();
    for stream in (1..200).step_by(2) {
        receive(&mut connection, &request(stream)).unwrap();
        connection.respond_grpc(stream);
        receive(&mut connection, &frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])).unwrap();
    }
}

#[test]
fn a_setting_repeated_in_a_frame_changes_the_windows_once() {
    let mut connection = wide();
    receive(&mut connection, &request(1)).unwrap();
    let repeated: Vec<_> = (0..2000).map(|value| (setting::INITIAL_WINDOW_SIZE, value)).collect();
    let before = connection.idle_frames;
    assert_eq!(receive(&mut connection, &settings(&repeated)).unwrap(), ["new window"]);
    assert_eq!(connection.room(1), 1999);
    assert_eq!(connection.idle_frames - before, 1 + IDLE_FRAMES_PER_NEW_WINDOW);
    assert_eq!(sent(&mut connection).len(), 1, "one acknowledgement");
}

/// A change to the initial window is expensive, because it affects every open stream. It therefore counts as many idle
/// frames.
#[test]
fn a_change_to_the_initial_window_counts_as_many_idle_frames() {
    let mut connection = wide();
    let change = settings(&[(setting::INITIAL_WINDOW_SIZE, 7)]);
    let count = (0..10_000).take_while(|_| receive(&mut connection, &change).is_ok()).count();
    assert_eq!(count, 99, "each change counts as 101 frames, and the first SETTINGS as one");
}

#[test]
fn requests_do_not_make_up_for_changes_to_the_windows_of_many_streams() {
    const STREAMS: u32 = 1_000;
    let malformed = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, b"");
    let answered = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, POST);
    for next in [malformed as fn(u32) -> Vec<u8>, answered] {
        let mut connection = wide();
        for stream in (1..2 * STREAMS).step_by(2) {
            receive(&mut connection, &request(stream)).unwrap();
        }
        let is_accepted = |stream: &u32| {
            let change = settings(&[(setting::INITIAL_WINDOW_SIZE, stream % 7)]);
            let accepted = receive(&mut connection, &[change, next(*stream)].concat()).is_ok();
            connection.respond_grpc(*stream);
            connection.end_grpc(*stream);
            accepted
        };
        let count = (2 * STREAMS + 1..20_000).step_by(2).take_while(is_accepted).count();
        assert!(count < 100, "{count} changes were accepted");
    }
}

/// A small block can reference a long entry of the table many times (CVE-2016-6581).
#[test]
fn references_to_a_long_entry_do_not_exceed_the_header_list_limit() {
    let mut connection = wide();
    let entry = [&b"\x40\x01a\x7f\x81\x1d"[..], &[b'x'; 3840]].concat();
    let inserts = frame(HEADERS, END_HEADERS, 1, &[POST, &entry].concat());
    assert_eq!(receive(&mut connection, &inserts).unwrap().len(), 1);
    let bomb = frame(HEADERS, END_HEADERS, 3, &[POST, &[0xbe; 16_000]].concat());
    assert!(receive(&mut connection, &bomb).unwrap().is_empty());
    assert_eq!(sent(&mut connection)[0].3, b"\x08\x03431");
    assert!(!connection.has_stream(3));
}

#[test]
fn the_number_of_frames_and_the_size_of_a_header_block_are_limited() {
    let count = |part: &[u8]| {
        let mut connection = open();
        receive(&mut connection, &frame(HEADERS, 0, 1, b"")).unwrap();
        let part = frame(CONTINUATION, 0, 1, part);
        (0..1000).take_while(|_| receive(&mut connection, &part).is_ok()).count()
    };
    assert_eq!(count(b""), BLOCK_FRAMES_MAX as usize - 1);
    assert_eq!(count(&[0; 1000]), 2 * LIMITS.header_list_bytes_max / 1000);
}

#[test]
fn the_number_of_remembered_resets_is_bounded() {
    let mut connection = wide();
    for stream in (1..10_000).step_by(2) {
        receive(&mut connection, &request(stream)).unwrap();
        connection.reset(stream, Code::CANCEL);
        sent(&mut connection);
    }
    assert_eq!(connection.reset.len(), RESET_KEPT_MAX);
    assert_eq!(connection.stream_count(), 0);
    // The connection has forgotten some of its resets, including that of the first stream. Any closed stream may be one
    // of the forgotten ones, so the connection ignores late frames on all closed streams.
    assert!(receive(&mut connection, &frame(DATA, 0, 1, b"late")).unwrap().is_empty());
}

#[test]
fn the_number_and_length_of_remembered_heads_are_bounded() {
    let mut connection = wide();
    for stream in (1..500_u32).step_by(2) {
        let block = [b"\x83\x86\x04\x04", format!("/{stream:03}").as_bytes()].concat();
        receive(&mut connection, &frame(HEADERS, END_HEADERS, stream, &block)).unwrap();
    }
    assert_eq!(connection.known_heads.len(), KNOWN_HEADS_MAX);
    let long = [POST, b"\0\x01a\x7f\x81\x04", &[b'x'; 640]].concat();
    let bytes = frame(HEADERS, END_HEADERS, 501, &long);
    assert_eq!(receive(&mut connection, &bytes).unwrap(), ["501 POST /x false"]);
    assert!(connection.known_heads.iter().all(|known| known.block.len() <= KNOWN_BLOCK_BYTES_MAX));
}
