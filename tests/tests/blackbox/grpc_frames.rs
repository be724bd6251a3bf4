//! The header fields and frames of gRPC responses, exactly as a server sends them.
//!
//! gRPC libraries hide most differences. Some clients compare raw header fields, decode one message per DATA frame, or
//! treat a call as accepted when its headers arrive.

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_tests::{Kind, Proxy, RawFrame, RawHttp2, Server, call_head, framed, on_both_servers};

on_both_servers! {
    statuses_have_the_fields_that_grpc_go_sends_in_the_same_order,
    a_proxy_sends_statuses_like_a_member,
    a_stream_sends_nothing_before_its_first_message,
    each_message_of_a_stream_has_its_own_data_frame,
    each_message_of_a_stream_through_a_proxy_has_its_own_data_frame,
}

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";
/// The encoded message `PutRequest{key: "k", value: "v"}`.
const PUT_MESSAGE: &[u8] = b"\x0a\x01k\x12\x01v";
/// The encoded message `RangeRequest{key: "k"}`.
const RANGE_MESSAGE: &[u8] = b"\x0a\x01k";
/// The encoded message `WatchRequest{create_request: {key: "k"}}`.
const WATCH_MESSAGE: &[u8] = b"\x0a\x03\x0a\x01k";
/// The encoded message `LeaseGrantRequest{TTL: 60, ID: 5}`.
const GRANT_MESSAGE: &[u8] = b"\x08\x3c\x10\x05";
/// The encoded message `LeaseKeepAliveRequest{ID: 5}`.
const RENEWAL: &[u8] = b"\x08\x05";
/// The encoded message `CampaignRequest{name: "e", lease: 5}`.
const CAMPAIGN_MESSAGE: &[u8] = b"\x0a\x01e\x10\x05";
/// The encoded message `LeaderRequest{name: "e"}`.
const OBSERVE_MESSAGE: &[u8] = b"\x0a\x01e";

fn headers(fields: &[(&str, &str)], ends: bool) -> RawFrame {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    RawFrame::Headers(fields.iter().map(owned).collect(), ends)
}

/// Returns the only frame of a response without messages.
fn only_status(code: &str, message: &str) -> RawFrame {
    let (status, kind) = ((":status", "200"), ("content-type", "application/grpc"));
    headers(&[status, kind, ("grpc-status", code), ("grpc-message", message)], true)
}

fn head() -> RawFrame {
    headers(&[(":status", "200"), ("content-type", "application/grpc")], false)
}

/// Sends a request, and returns the frames of the response.
fn frames(raw: &mut RawHttp2, path: &str, body: &[u8]) -> Vec<RawFrame> {
    let id = raw.open(&call_head(path));
    raw.send_body(id, body, true);
    let mut frames = Vec::new();
    loop {
        frames.push(raw.read_frame_of(id));
        if let Some(RawFrame::Headers(_, true)) = frames.last() {
            return frames;
        }
    }
}

async fn statuses_have_the_fields_that_grpc_go_sends_in_the_same_order(kind: Kind) {
    let server = Server::start(kind).await;
    check_statuses(server.port(), "3");
    check_empty_stream(server.port());
}

async fn a_proxy_sends_statuses_like_a_member(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    match kind {
        Kind::Quorate => {
            check_statuses(proxy.port(), "3");
            check_empty_stream(proxy.port());
        }
        // etcd's proxy replaces the codes of some errors, and the status of a stream that its client ends.
        Kind::Etcd => check_statuses(proxy.port(), "2"),
    }
}

fn check_empty_stream(port: u16) {
    let mut raw = RawHttp2::connect(port);
    assert_eq!(frames(&mut raw, KEEP_ALIVE, b""), [only_status("0", "")]);
}

/// Checks the responses to good and bad requests. A put without a key is refused with the code `refused`.
fn check_statuses(port: u16, refused: &str) {
    let mut raw = RawHttp2::connect(port);
    // The second response may refer to fields of the first one.
    for _ in 0..2 {
        let success = frames(&mut raw, PUT, &framed(PUT_MESSAGE));
        assert_eq!(success.first(), Some(&head()));
        let trailers = headers(&[("grpc-status", "0"), ("grpc-message", "")], true);
        assert_eq!(success.last(), Some(&trailers));
        assert_eq!(success.len(), 3, "{success:?}");
    }
    let no_key = frames(&mut raw, PUT, &framed(b""));
    assert_eq!(no_key, [only_status(refused, "etcdserver: key is not provided")]);
    let unknown = frames(&mut raw, "/a%/b", b"");
    assert_eq!(unknown, [only_status("12", "unknown service a%25")]);
    let unknown = frames(&mut raw, "/\u{e9}/b", b"");
    assert_eq!(unknown, [only_status("12", "unknown service %C3%A9")]);
    let mut malformed = framed(RENEWAL);
    malformed[0] = 2;
    let malformed = frames(&mut raw, KEEP_ALIVE, &malformed);
    assert_eq!(malformed, [only_status("13", "grpc: received unexpected payload format 2")]);
}

async fn a_stream_sends_nothing_before_its_first_message(kind: Kind) {
    let server = Server::start(kind).await;
    let mut raw = RawHttp2::connect(server.port());
    frames(&mut raw, GRANT, &framed(GRANT_MESSAGE));
    for (path, request, first) in [
        (WATCH, &b""[..], Some(framed(WATCH_MESSAGE))),
        (KEEP_ALIVE, b"", Some(framed(RENEWAL))),
        (OBSERVE, &framed(OBSERVE_MESSAGE), None),
    ] {
        let id = raw.open(&call_head(path));
        raw.send_body(id, request, first.is_none());
        // Another call on the connection gives the server time to start the stream.
        let other = raw.open(&call_head(RANGE));
        raw.send_body(other, &framed(RANGE_MESSAGE), true);
        loop {
            let (stream, frame) = raw.read_response_frame();
            assert_eq!(stream, other, "{path}: {frame:?}");
            if let RawFrame::Headers(_, true) = frame {
                break;
            }
        }
        raw.send_ping();
        assert_eq!(raw.read_frame_of(id), RawFrame::Pong, "{path}");
        match first {
            Some(message) => raw.send_body(id, &message, false),
            None => {
                let mut candidate = RawHttp2::connect(server.port());
                frames(&mut candidate, CAMPAIGN, &framed(CAMPAIGN_MESSAGE));
            }
        }
        assert_eq!(raw.read_frame_of(id), head(), "{path}");
        assert!(matches!(raw.read_frame_of(id), RawFrame::Data(_)), "{path}");
    }
}

async fn each_message_of_a_stream_has_its_own_data_frame(kind: Kind) {
    let server = Server::start(kind).await;
    check_messages(server.port());
}

async fn each_message_of_a_stream_through_a_proxy_has_its_own_data_frame(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    check_messages(proxy.port());
}

/// Reads one DATA frame, and returns the only message in it.
fn read_message(raw: &mut RawHttp2, id: u32) -> Vec<u8> {
    let RawFrame::Data(data) = raw.read_frame_of(id) else { panic!("the stream has ended") };
    let message = data[5..].to_vec();
    assert_eq!(data, framed(&message), "the frame does not contain exactly one message");
    message
}

fn check_messages(port: u16) {
    let mut raw = RawHttp2::connect(port);
    frames(&mut raw, GRANT, &framed(GRANT_MESSAGE));
    let renewals = raw.open(&call_head(KEEP_ALIVE));
    raw.send_body(renewals, &framed(RENEWAL).repeat(4), false);
    assert_eq!(raw.read_frame_of(renewals), head());
    for _ in 0..4 {
        let renewed = pb::LeaseKeepAliveResponse::decode(&read_message(&mut raw, renewals)[..]);
        assert_eq!(renewed.unwrap().id, 5);
    }

    let watch = raw.open(&call_head(WATCH));
    raw.send_body(watch, &framed(WATCH_MESSAGE).repeat(4), false);
    assert_eq!(raw.read_frame_of(watch), head());
    let next =
        |raw: &mut RawHttp2| pb::WatchResponse::decode(&read_message(raw, watch)[..]).unwrap();
    for _ in 0..4 {
        assert!(next(&mut raw).created);
    }
    for _ in 0..6 {
        let put = raw.open(&call_head(PUT));
        raw.send_body(put, &framed(PUT_MESSAGE), true);
    }
    let mut missing = 4 * 6;
    while missing > 0 {
        missing -= next(&mut raw).events.len();
    }
}
