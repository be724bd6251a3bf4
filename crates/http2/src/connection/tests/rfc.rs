//! Tests the rules of RFC 9113, by section: the cases of h2spec that other tests do not cover.

use super::*;

/// Returns the error code with which these bytes end the connection.
fn fatal(bytes: &[u8]) -> Code {
    code_of(receive(&mut open(), bytes))
}

/// Returns the stream and the code of the only reset that these frames cause.
fn reset_by(frames: &[Vec<u8>]) -> Option<(u32, u32)> {
    let mut connection = open();
    receive(&mut connection, &frames.concat()).unwrap();
    reset_of(&mut connection)
}

/// Returns whether the connection accepts these frames without an error.
fn accepts(frames: &[Vec<u8>]) -> bool {
    let mut connection = open();
    let is_accepted = receive(&mut connection, &frames.concat()).is_ok();
    is_accepted && !sent(&mut connection).iter().any(|(kind, ..)| *kind == RST_STREAM)
}

/// Returns a request without a body.
fn complete(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, POST)
}

/// Returns a literal header field.
fn field(name: &str, value: &str) -> Vec<u8> {
    let len = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, len(name)], name.as_bytes(), &[len(value)], value.as_bytes()].concat()
}

/// Returns a request whose head consists of these fields.
fn request_of(fields: &[(&str, &str)]) -> Vec<u8> {
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
    frame(HEADERS, END_HEADERS, 1, &block)
}

const METHOD: (&str, &str) = (":method", "POST");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/x");
const MALFORMED: Option<(u32, u32)> = Some((1, Code::PROTOCOL_ERROR.0));

/// Returns a request with these fields in addition to the required fields.
fn request_with(fields: &[(&str, &str)]) -> Vec<u8> {
    request_of(&[&[METHOD, SCHEME, PATH], fields].concat())
}

#[test]
fn section_3_4_the_preface_is_followed_by_settings() {
    let mut connection = Connection::new(LIMITS);
    let mut rest = &PREFACE[..10];
    assert!(connection.next(&mut rest).unwrap().is_none());
    assert_eq!(rest.len(), 10, "an incomplete preface remains");
    assert!(connection.next(&mut &b"GET / HTTP/1.1\r\n"[..]).is_err());
    let mut connection = greeted(LIMITS);
    receive(&mut connection, &frame(SETTINGS, ACK, 0, b"")).unwrap();
    assert_eq!(
        code_of(receive(&mut connection, &request(1))),
        Code::PROTOCOL_ERROR,
        "a SETTINGS acknowledgement is not accepted as the first frame"
    );
}

#[test]
fn section_4_1_unknown_kinds_and_flags_and_the_reserved_bit_are_ignored() {
    assert!(accepts(&[frame(0xfa, 0xff, 1, b"unknown"), frame(0xfa, 0, 0, b"")]));
    let mut connection = open();
    assert_eq!(receive(&mut connection, &frame(PING, 0xfe, 0, &[0; 8])).unwrap().len(), 1);
    let mut reserved = request(1);
    reserved[5] |= 0x80;
    assert_eq!(receive(&mut connection, &reserved).unwrap(), ["1 POST /x false"]);
}

#[test]
fn section_4_2_the_length_of_frames_is_limited() {
    assert!(accepts(&[request(1), frame(DATA, 0, 1, &[0; PAYLOAD_BYTES_DEFAULT])]));
    let too_long = [0; PAYLOAD_BYTES_DEFAULT + 1];
    for kind in [DATA, HEADERS, SETTINGS, PING, CONTINUATION, 0xfa] {
        let bytes = frame(kind, END_HEADERS, 1, &too_long);
        assert_eq!(fatal(&bytes), Code::FRAME_SIZE_ERROR, "kind {kind}");
        assert_eq!(
            fatal(&bytes[..HEADER_BYTES]),
            Code::FRAME_SIZE_ERROR,
            "a frame that is too long is refused before its payload arrives"
        );
    }
}

#[test]
fn section_4_3_header_blocks_are_contiguous_and_decodable() {
    for between in [request(3), frame(DATA, 0, 1, b"x"), frame(0xfa, 0, 1, b""), settings(&[])] {
        let interrupted = [frame(HEADERS, 0, 1, POST), between].concat();
        assert_eq!(fatal(&interrupted), Code::PROTOCOL_ERROR);
    }
    let bad = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\xff");
    assert_eq!(fatal(&bad), Code::COMPRESSION_ERROR);
    assert_eq!(fatal(&[request(1), bad.clone()].concat()), Code::COMPRESSION_ERROR, "trailers");
    let closed = [complete(1), frame(RST_STREAM, 0, 1, &[0; 4]), bad];
    assert_eq!(fatal(&closed.concat()), Code::COMPRESSION_ERROR, "headers on a closed stream");
}

#[test]
fn section_5_1_idle_streams_accept_only_headers_and_priority() {
    for bytes in [
        frame(DATA, 0, 1, b"x"),
        frame(RST_STREAM, 0, 1, &[0; 4]),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        [request(3), frame(DATA, 0, 5, b"x")].concat(),
        [request(3), frame(DATA, 0, 2, b"x")].concat(),
        [request(3), frame(WINDOW_UPDATE, 0, 2, &[0, 0, 0, 1])].concat(),
        [request(3), frame(RST_STREAM, 0, 2, &[0; 4])].concat(),
    ] {
        assert_eq!(fatal(&bytes), Code::PROTOCOL_ERROR, "{bytes:x?}");
    }
    assert!(accepts(&[frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\0"), request(1)]));
}

#[test]
fn section_5_1_ended_requests_accept_no_data_and_no_headers() {
    let closed = Some((1, Code::STREAM_CLOSED.0));
    assert_eq!(reset_by(&[complete(1), frame(DATA, 0, 1, b"x")]), closed);
    assert_eq!(reset_by(&[complete(1), complete(1)]), closed);
    let update = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    assert!(accepts(&[complete(1), update, frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\0")]));
}

#[test]
fn section_5_1_closed_streams_accept_only_late_frames() {
    let reset = [complete(1), frame(RST_STREAM, 0, 1, &[0; 4])].concat();
    for bytes in [frame(DATA, 0, 1, b"x"), request(1)] {
        assert_eq!(fatal(&[&reset[..], &bytes].concat()), Code::STREAM_CLOSED);
    }
    let update = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    let priority = frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\0");
    assert!(accepts(&[reset, update, frame(RST_STREAM, 0, 1, &[0; 4]), priority]));
    // After a reset by this side, frames from the client may still be in transit.
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    connection.reset(1, Code::CANCEL);
    let late = [frame(DATA, 0, 1, b"x"), frame(HEADERS, END_HEADERS | END_STREAM, 1, b"")];
    assert!(receive(&mut connection, &late.concat()).unwrap().is_empty());
}

#[test]
fn section_5_1_1_ids_are_odd_and_increase() {
    assert_eq!(fatal(&request(2)), Code::PROTOCOL_ERROR);
    assert_eq!(fatal(&request(0)), Code::PROTOCOL_ERROR);
    assert_eq!(fatal(&[complete(5), complete(3)].concat()), Code::STREAM_CLOSED);
    assert!(accepts(&[complete(5), complete(MAX_31_BITS)]));
}

#[test]
fn section_5_1_2_requests_beyond_the_stream_limit_are_refused() {
    let mut frames: Vec<_> = (1..=7).step_by(2).map(request).collect();
    assert_eq!(reset_by(&frames), Some((7, Code::REFUSED_STREAM.0)));
    frames.insert(1, frame(RST_STREAM, 0, 1, &[0; 4]));
    assert!(accepts(&frames));
}

#[test]
fn section_5_3_a_stream_cannot_depend_on_itself() {
    let priority = |on: u32| [&on.to_be_bytes()[..], &[16]].concat();
    let headers = |on| frame(HEADERS, END_HEADERS | PRIORITY, 1, &[&priority(on), POST].concat());
    assert_eq!(reset_by(&[headers(1)]), MALFORMED);
    assert_eq!(reset_by(&[headers(0x8000_0001)]), MALFORMED, "exclusively");
    assert_eq!(reset_by(&[request(1), frame(kind::PRIORITY, 0, 1, &priority(1))]), MALFORMED);
    assert!(accepts(&[headers(0), frame(kind::PRIORITY, 0, 1, &priority(7))]));
}

#[test]
fn section_6_1_padding_is_shorter_than_its_frame() {
    assert!(accepts(&[request(1), frame(DATA, PADDED, 1, b"\x03abc")]));
    for payload in [&b"\x04abc"[..], b"\xff", b""] {
        let bytes = [request(1), frame(DATA, PADDED, 1, payload)].concat();
        assert_eq!(fatal(&bytes), Code::PROTOCOL_ERROR, "{payload:x?}");
    }
    let padded = [&[200], POST].concat();
    assert_eq!(fatal(&frame(HEADERS, END_HEADERS | PADDED, 1, &padded)), Code::PROTOCOL_ERROR);
    let short = frame(HEADERS, END_HEADERS | PRIORITY, 1, b"\0\0\0\0");
    assert_eq!(fatal(&short), Code::FRAME_SIZE_ERROR);
}

#[test]
fn section_6_1_padding_counts_against_the_windows_and_is_credited_back() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    let padded = frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat());
    for _ in 0..LIMITS.stream_window / 256 {
        receive(&mut connection, &padded).unwrap();
    }
    let half = (LIMITS.stream_window / 2).to_be_bytes().to_vec();
    assert_eq!(sent(&mut connection), [(); 2].map(|()| (WINDOW_UPDATE, 0, 1, half.clone())));
}

#[test]
fn section_6_3_and_6_4_priority_and_reset_have_fixed_lengths() {
    assert_eq!(fatal(&frame(kind::PRIORITY, 0, 0, &[0; 5])), Code::PROTOCOL_ERROR);
    let short = frame(kind::PRIORITY, 0, 1, &[0; 4]);
    assert_eq!(reset_by(&[request(1), short]), Some((1, Code::FRAME_SIZE_ERROR.0)));
    assert_eq!(fatal(&frame(RST_STREAM, 0, 0, &[0; 4])), Code::PROTOCOL_ERROR);
    for len in [0, 3, 5] {
        let bytes = [request(1), frame(RST_STREAM, 0, 1, &vec![0; len])].concat();
        assert_eq!(fatal(&bytes), Code::FRAME_SIZE_ERROR);
    }
}

#[test]
fn section_6_5_invalid_settings_end_the_connection() {
    for len in [1, 3, 7] {
        assert_eq!(fatal(&frame(SETTINGS, 0, 0, &vec![0; len])), Code::FRAME_SIZE_ERROR);
    }
    for value in [0, 16_383, 1 << 24] {
        assert_eq!(fatal(&settings(&[(setting::MAX_FRAME_SIZE, value)])), Code::PROTOCOL_ERROR);
    }
    let largest = (1 << 24) - 1;
    let valid = [(setting::MAX_FRAME_SIZE, 16_384), (setting::MAX_FRAME_SIZE, largest), (0xff, 1)];
    assert!(accepts(&[settings(&valid)]));
    let window = settings(&[(setting::INITIAL_WINDOW_SIZE, MAX_31_BITS + 1)]);
    assert_eq!(fatal(&window), Code::FLOW_CONTROL_ERROR);
}

#[test]
fn section_6_7_and_6_8_invalid_pings_and_goaways_end_the_connection() {
    for len in [0, 7, 9] {
        assert_eq!(fatal(&frame(PING, 0, 0, &vec![0; len])), Code::FRAME_SIZE_ERROR);
    }
    assert_eq!(fatal(&frame(PING, ACK, 1, &[0; 8])), Code::PROTOCOL_ERROR);
    assert_eq!(fatal(&frame(GOAWAY, 0, 1, &[0; 8])), Code::PROTOCOL_ERROR);
    assert_eq!(fatal(&frame(GOAWAY, 0, 0, &[0; 7])), Code::FRAME_SIZE_ERROR);
    assert!(accepts(&[request(1), frame(GOAWAY, 0, 0, &[0; 12]), frame(DATA, 0, 1, b"x")]));
}

#[test]
fn section_6_9_windows_are_bounded() {
    let update = |stream, more: u32| frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    assert_eq!(fatal(&update(0, 0)), Code::PROTOCOL_ERROR);
    assert_eq!(reset_by(&[request(1), update(1, 0)]), MALFORMED);
    let most = MAX_31_BITS - WINDOW_DEFAULT;
    assert!(accepts(&[request(1), update(0, most), update(1, most)]));
    assert_eq!(fatal(&[update(0, most), update(0, 1)].concat()), Code::FLOW_CONTROL_ERROR);
    let exceeded = reset_by(&[request(1), update(1, most), update(1, 1)]);
    assert_eq!(exceeded, Some((1, Code::FLOW_CONTROL_ERROR.0)));
    let larger = settings(&[(setting::INITIAL_WINDOW_SIZE, WINDOW_DEFAULT + 1)]);
    let bytes = [request(1), update(1, most), larger].concat();
    assert_eq!(fatal(&bytes), Code::FLOW_CONTROL_ERROR);
    for len in [0, 3, 5] {
        assert_eq!(fatal(&frame(WINDOW_UPDATE, 0, 0, &vec![0; len])), Code::FRAME_SIZE_ERROR);
    }
}

#[test]
fn section_6_9_2_a_window_can_be_negative() {
    let mut connection = open();
    receive(&mut connection, &request(1)).unwrap();
    connection.data(1, &[0; 10], false);
    receive(&mut connection, &settings(&[(setting::INITIAL_WINDOW_SIZE, 3)])).unwrap();
    for (more, room) in [(0, 0), (7, 0), (1, 1)] {
        if more > 0 {
            receive(&mut connection, &frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, more])).unwrap();
        }
        assert_eq!(connection.room(1), room);
    }
}

#[test]
fn section_6_10_continuations_follow_an_open_block() {
    let continued = [
        frame(HEADERS, 0, 1, &POST[..1]),
        frame(CONTINUATION, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 1, &POST[1..]),
    ];
    assert!(accepts(&continued));
    let last = frame(CONTINUATION, END_HEADERS, 1, b"");
    for bytes in [
        last.clone(),
        [request(1), last.clone()].concat(),
        [continued.concat(), last].concat(),
        [frame(HEADERS, 0, 1, POST), frame(CONTINUATION, END_HEADERS, 0, b"")].concat(),
        [frame(HEADERS, 0, 1, POST), frame(CONTINUATION, END_HEADERS, 3, b"")].concat(),
    ] {
        assert_eq!(fatal(&bytes), Code::PROTOCOL_ERROR, "{bytes:x?}");
    }
}

#[test]
fn section_8_1_trailers_end_the_request() {
    let trailers = |flags, fields: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, fields);
    let valid = field("x", "y");
    assert!(accepts(&[request(1), trailers(END_STREAM, &valid)]));
    assert_eq!(reset_by(&[request(1), trailers(0, &valid)]), MALFORMED);
    for name in [":method", ":path", ":unknown", "X", "connection"] {
        let frames = [request(1), trailers(END_STREAM, &field(name, "GET"))];
        assert_eq!(reset_by(&frames), MALFORMED, "{name}");
    }
    let incomplete = request_with(&[("content-length", "1")]);
    assert_eq!(reset_by(&[incomplete, trailers(END_STREAM, &valid)]), MALFORMED);
}

#[test]
fn section_8_1_1_the_length_of_a_body_equals_its_content_length() {
    let stated = |value| request_with(&[("content-length", value)]);
    let data = |flags, len| frame(DATA, flags, 1, &vec![0; len]);
    assert!(accepts(&[stated("3"), data(0, 1), data(END_STREAM, 2)]));
    assert!(accepts(&[stated("0"), data(END_STREAM, 0)]));
    for (value, len) in [("3", 2), ("3", 4), ("0", 1)] {
        assert_eq!(reset_by(&[stated(value), data(END_STREAM, len)]), MALFORMED, "{value} {len}");
    }
    for value in ["", "-1", "+1", "1 ", "1,1", "x", "99999999999999999999"] {
        assert_eq!(reset_by(&[stated(value)]), MALFORMED, "{value}");
    }
    let twice = |second| request_with(&[("content-length", "1"), ("content-length", second)]);
    assert!(accepts(&[twice("1"), data(END_STREAM, 1)]));
    assert_eq!(reset_by(&[twice("2")]), MALFORMED);
    let mut without_body = stated("1");
    without_body[4] |= END_STREAM;
    assert_eq!(reset_by(&[without_body]), MALFORMED);
}

#[test]
fn section_8_2_field_names_are_lowercase_and_connection_specific_fields_are_refused() {
    for (name, value) in [
        ("X", "y"),
        ("", "y"),
        ("a b", "y"),
        ("x", "a\nb"),
        ("x", "a\0b"),
        ("connection", "keep-alive"),
        ("proxy-connection", "x"),
        ("keep-alive", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "trailers, deflate"),
    ] {
        assert_eq!(reset_by(&[request_with(&[(name, value)])]), MALFORMED, "{name}: {value:?}");
    }
    assert!(accepts(&[request_with(&[("te", "trailers"), ("x", "a\tb"), ("x", "")])]));
}

#[test]
fn section_8_3_pseudo_headers_are_known_unique_complete_and_first() {
    let other = ("x", "y");
    for fields in [
        &[][..],
        &[SCHEME, PATH],
        &[METHOD, PATH],
        &[METHOD, SCHEME],
        &[METHOD, SCHEME, (":path", "")],
        &[METHOD, SCHEME, PATH, METHOD],
        &[METHOD, SCHEME, PATH, SCHEME],
        &[METHOD, SCHEME, PATH, PATH],
        &[METHOD, SCHEME, PATH, (":authority", "a"), (":authority", "a")],
        &[METHOD, SCHEME, PATH, (":status", "200")],
        &[METHOD, SCHEME, PATH, (":unknown", "x")],
        &[METHOD, SCHEME, other, PATH],
        &[other, METHOD, SCHEME, PATH],
    ] {
        assert_eq!(reset_by(&[request_of(fields)]), MALFORMED, "{fields:?}");
    }
    assert!(accepts(&[request_of(&[PATH, (":authority", "a"), METHOD, SCHEME, other])]));
}

#[test]
fn section_8_4_a_client_cannot_push() {
    let push = frame(kind::PUSH_PROMISE, END_HEADERS, 1, &[0; 4]);
    assert_eq!(fatal(&push), Code::PROTOCOL_ERROR);
}
