//! Unusual gRPC requests, which no library sends, but which a proxy, a fuzzer or a hand-written client may send.
//!
//! A table contains the answer to each request. If Debian's release or Quorate answers differently from etcd 3.7, the
//! row contains that answer, too.

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_tests::{
    Kind, Proxy, RawHttp2, Server, bytes, call_head, eventually, framed, literal, on_both_servers,
    string, watch_key,
};

on_both_servers! {
    unusual_methods_and_paths_get_the_same_responses_as_from_etcd,
    unusual_content_types_get_the_same_responses_as_from_etcd,
    unusual_timeouts_and_header_bytes_get_the_same_responses_as_from_etcd,
    unusual_compressions_get_the_same_responses_as_from_etcd,
    a_proxy_checks_request_headers_like_a_member,
    requests_that_http_forbids_are_refused,
    malformed_messages_get_the_same_errors_as_from_etcd,
    a_unary_call_is_answered_before_its_request_ends,
    fields_of_the_wrong_wire_type_are_skipped_as_unknown,
    a_watch_continues_after_a_field_of_the_wrong_type,
    requests_with_any_authority_header_are_answered,
    streams_of_a_member_and_of_a_proxy_end_at_their_deadlines,
    a_stream_ends_at_its_deadline_while_its_client_grants_no_room,
}

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// The encoded message `PutRequest{key: "k", value: "v"}`.
const MESSAGE: &[u8] = b"\x0a\x01k\x12\x01v";
const GOOD: &str = "200 0";
const DEADLINE: &str = "200 4 context deadline exceeded";
/// Index of the path among the fields.
const PATH_FIELD: usize = 2;

/// An unusual put and the answer to it.
struct Odd {
    what: &'static str,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    answer: String,
    /// Answer of etcd 3.5, if it differs.
    in_3_5: Option<String>,
    /// Answer of Quorate, if it differs deliberately.
    here: Option<String>,
}

fn odd(what: &'static str) -> Odd {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PUT),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let fields = fields.map(|(name, value)| (name.into(), value.into())).to_vec();
    let (body, answer) = (framed(MESSAGE), GOOD.to_owned());
    Odd { what, fields, body, answer, in_3_5: None, here: None }
}

impl Odd {
    /// Sets or adds a field.
    fn set(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref().to_vec();
        match self.fields.iter_mut().find(|(present, _)| present == name.as_bytes()) {
            Some((_, old)) => *old = value,
            None => self.fields.push((name.into(), value)),
        }
        self
    }

    fn add(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(present, _)| present != name.as_bytes());
        self
    }

    fn path(self, path: &str) -> Self {
        self.set(":path", path)
    }

    fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the compression flag in the message header.
    fn flag(mut self, flag: u8) -> Self {
        self.body[0] = flag;
        self
    }

    fn answer(mut self, answer: &str) -> Self {
        answer.clone_into(&mut self.answer);
        self
    }

    fn in_3_5(mut self, answer: &str) -> Self {
        self.in_3_5 = Some(answer.to_owned());
        self
    }

    fn here(mut self, answer: &str) -> Self {
        self.here = Some(answer.to_owned());
        self
    }

    fn refused_method(self, method: &str) -> Self {
        let text = "Received a HEADERS frame with :method";
        let answer = format!("405 13 {text} {method:?} which should be POST");
        self.set(":method", method).answer(&answer)
    }

    fn refused_type(self, given: &str) -> Self {
        let answer = format!("415 3 invalid gRPC request content-type {given:?}");
        self.set("content-type", given).answer(&answer)
    }

    fn refused_timeout(self, given: &str, reason: &str) -> Self {
        let answer = format!("400 13 malformed grpc-timeout: {reason}");
        self.set("grpc-timeout", given).answer(&answer)
    }

    fn refused_binary(self, given: &str, offset: usize) -> Self {
        let answer = format!(
            "400 13 malformed binary metadata {given:?} in header \"x-bin\": illegal base64 data at input byte {offset}"
        );
        self.set("x-bin", given).answer(&answer)
    }

    fn refused_encoding(self, given: &str) -> Self {
        let text = "grpc: Decompressor is not installed for grpc-encoding";
        let answer = format!("200 12 {text} {given:?}");
        self.set("grpc-encoding", given).answer(&answer)
    }
}

/// Sends all requests to a server.
async fn check(kind: Kind, table: Vec<Odd>) {
    let server = Server::start(kind).await;
    check_at(kind, &server, server.port(), table).await;
}

/// Sends each request on its own connection to this port, which belongs to a server or to a proxy in front of it.
/// Refused requests must have no effect.
async fn check_at(kind: Kind, server: &Server, port: u16, table: Vec<Odd>) {
    let client = server.client();
    let mut revision = client.revision().await;
    for odd in table {
        let Odd { what, mut fields, body, answer, in_3_5, here } = odd;
        let expected = match kind {
            Kind::Quorate => here.unwrap_or(answer),
            Kind::Etcd if server.is_3_7() => answer,
            Kind::Etcd => in_3_5.unwrap_or(answer),
        };
        if !server.is_3_7() && expected == DEADLINE {
            // etcd 3.5 reports a timeout but may still execute the call, so the test sends a read instead of a put.
            fields[PATH_FIELD].1 = RANGE.into();
        }
        let is_put = fields.iter().any(|(_, value)| {
            let path = value.strip_prefix(b"/").unwrap_or(value);
            path.split(|byte| *byte == b'#').next() == Some(&PUT.as_bytes()[1..])
        });
        let fields: Vec<(&[u8], &[u8])> =
            fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let found = RawHttp2::connect(port).ask(&fields, &body).summary();
        assert_eq!(found, expected, "{what}");
        revision += i64::from(is_put && found == GOOD);
        assert_eq!(client.revision().await, revision, "{what}");
    }
}

async fn unusual_methods_and_paths_get_the_same_responses_as_from_etcd(kind: Kind) {
    let unknown_method = |name| format!("200 12 unknown method {name} for service etcdserverpb.KV");
    let table = vec![
        odd("nothing"),
        odd("the method GET").refused_method("GET"),
        odd("the method PUT").refused_method("PUT"),
        odd("the method HEAD").refused_method("HEAD"),
        odd("the method OPTIONS").refused_method("OPTIONS"),
        odd("a method in lower case").refused_method("post"),
        odd("a query").path("/etcdserverpb.KV/Put?x=1").answer(&unknown_method("Put?x=1")),
        odd("an empty query").path("/etcdserverpb.KV/Put?").answer(&unknown_method("Put?")),
        odd("an escape").path("/etcdserverpb.KV/P%75t").answer(&unknown_method("P%75t")),
        odd("a trailing slash")
            .path("/etcdserverpb.KV/Put/")
            .answer("200 12 unknown service etcdserverpb.KV/Put"),
        odd("two slashes")
            .path("//etcdserverpb.KV/Put")
            .answer("200 12 unknown service /etcdserverpb.KV"),
        odd("a star").path("*").answer("200 12 malformed method name: \"*\""),
        odd("only a slash").path("/").answer("200 12 malformed method name: \"/\""),
        odd("another scheme").set(":scheme", "https"),
        odd("no authority").without(":authority"),
        odd("two hosts").set("host", "x").add("host", "y").answer(
            "400 13 num values of :authority: 1, num values of host: 2, both must only have 1 value as per HTTP/2 spec",
        ),
    ];
    check(kind, table).await;
}

async fn unusual_content_types_get_the_same_responses_as_from_etcd(kind: Kind) {
    check(kind, content_types()).await;
}

fn content_types() -> Vec<Odd> {
    vec![
        odd("a gRPC subtype").set("content-type", "application/grpc+proto"),
        odd("a parameter").set("content-type", "application/grpc;charset=x"),
        odd("a content type that starts with gRPC's").refused_type("application/grpcx"),
        odd("gRPC-Web").refused_type("application/grpc-web"),
        odd("a content type in upper case").refused_type("application/GRPC"),
        odd("a content type other than gRPC's").refused_type("application/json"),
        odd("an empty content type").refused_type(""),
        odd("no content type").refused_type("").without("content-type"),
        odd("a second, invalid content type").add("content-type", "text/plain"),
        odd("an invalid content type before a valid one")
            .set("content-type", "text/plain")
            .add("content-type", "application/grpc"),
    ]
}

async fn unusual_timeouts_and_header_bytes_get_the_same_responses_as_from_etcd(kind: Kind) {
    let mut table = times_and_bytes();
    for kib in [8, 16, 64, 200] {
        table.push(odd("a long header").set("x", vec![b'a'; kib << 10]));
    }
    check(kind, table).await;
}

fn times_and_bytes() -> Vec<Odd> {
    let mut table = vec![
        odd("a timeout of zero").set("grpc-timeout", "0S").answer(DEADLINE),
        odd("a timeout of one nanosecond").set("grpc-timeout", "1n").answer(DEADLINE),
        odd("a timeout of zero for an unknown method")
            .set("grpc-timeout", "0S")
            .path("/a/b")
            .answer(DEADLINE)
            .in_3_5("200 12 unknown service a"),
        odd("the longest timeout").set("grpc-timeout", "99999999H"),
        odd("a negative timeout")
            .refused_timeout("-5S", "strconv.ParseUint: parsing \"-5\": invalid syntax")
            .in_3_5(DEADLINE),
        odd("a timeout with a sign")
            .refused_timeout("+5S", "strconv.ParseUint: parsing \"+5\": invalid syntax")
            .in_3_5(GOOD),
        odd("an invalid timeout for an unknown method")
            .path("/a/b")
            .refused_timeout("5", "transport: timeout string is too short: \"5\""),
    ];
    for (given, reason) in [
        ("", "transport: timeout string is too short: \"\""),
        ("S", "transport: timeout string is too short: \"S\""),
        ("1x", "transport: timeout unit is not recognized: \"1x\""),
        ("123456789S", "transport: timeout string is too long: \"123456789S\""),
    ] {
        table.push(odd("an invalid timeout").refused_timeout(given, reason));
    }
    for good in ["AAEC", "AA==", "AA", "", "AB"] {
        table.push(odd("valid base64 in a binary header").set("x-bin", good));
    }
    for (bad, offset) in
        [("A", 0), ("!!!!", 0), ("abcd!", 4), ("-_-_", 0), ("AA==AA==", 4), ("AAA=A", 3)]
    {
        table.push(odd("invalid base64 in a binary header").refused_binary(bad, offset));
    }
    table
}

async fn unusual_compressions_get_the_same_responses_as_from_etcd(kind: Kind) {
    check(kind, compressions()).await;
}

fn compressions() -> Vec<Odd> {
    vec![
        odd("no compression").set("grpc-encoding", "identity"),
        odd("an empty compression").set("grpc-encoding", ""),
        odd("a compression that the message does not use").set("grpc-encoding", "gzip"),
        odd("an unsupported compression").refused_encoding("snappy"),
        odd("a compression in upper case").refused_encoding("GZIP"),
        odd("an unsupported compression on a stream").refused_encoding("snappy").path(WATCH),
        odd("an unsupported compression for an unknown method")
            .set("grpc-encoding", "snappy")
            .path("/a/b")
            .answer("200 12 unknown service a"),
    ]
}

async fn a_proxy_checks_request_headers_like_a_member(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    for table in [content_types(), times_and_bytes(), compressions()] {
        check_at(kind, &server, proxy.port(), table).await;
    }
}

/// HTTP/2 requires servers to refuse such requests, but etcd accepts many of them (decision record 7).
async fn requests_that_http_forbids_are_refused(kind: Kind) {
    let reset = "reset 1";
    let unknown_method = |name| format!("200 12 unknown method {name} for service etcdserverpb.KV");
    let no_method = "405 13 Received a HEADERS frame with :method \"\" which should be POST";
    let malformed = |path: &str| format!("200 12 malformed method name: {path:?}");
    let mut table = vec![
        odd("no method").without(":method").answer(no_method).here(reset),
        odd("no scheme").without(":scheme").here(reset),
        odd("no path").without(":path").answer(&malformed("")).here(reset),
        odd("an empty path").path("").answer(&malformed("")).here(reset),
        odd("a path without a slash")
            .path(&PUT[1..])
            .answer(&malformed(&PUT[1..]))
            .in_3_5(GOOD)
            .here(reset),
        odd("a space").path("/etcdserverpb.KV/P ut").answer(&unknown_method("P ut")).here(reset),
        odd("a fragment")
            .path("/etcdserverpb.KV/Put#f")
            .answer(&unknown_method("Put#f"))
            .here(GOOD),
        odd("a te header other than trailers").set("te", "gzip").here(reset),
        odd("a connection-specific header").set("connection", "close").answer(reset),
        odd("another connection-specific header").set("transfer-encoding", "chunked").here(reset),
        odd("two authorities").add(":authority", "x").answer(reset),
        odd("a wrong content length").set("content-length", "3").here(reset),
        odd("a header beyond the limit").set("x", vec![b'a'; 300 << 10]).here("431 none"),
    ];
    for (name, value) in [("x", "a\nb"), ("X", "a"), (":x", "y")] {
        table.push(odd("an invalid header field").set(name, value).answer(reset));
    }
    check(kind, table).await;
}

async fn malformed_messages_get_the_same_errors_as_from_etcd(kind: Kind) {
    let internal = |text: &str| format!("200 13 grpc: {text}");
    let no_compression = internal("compressed flag set with identity or empty encoding");
    let too_large = "200 8 grpc: received message larger than max (2130706432 vs. 2097152)";
    let unparsable = "proto: cannot parse invalid wire-format data";
    let older = "unexpected EOF";
    let cut = &b"\0\0\0\0\x09\x0a\x01k"[..];
    let gzip = |what| odd(what).set("grpc-encoding", "gzip").flag(1);
    let older_gzip = internal("failed to decompress the received message: unexpected EOF");
    let several =
        "cardinality violation: received multiple request messages for non-client-streaming RPC";
    let none = "cardinality violation: received no request message from non-client-streaming RPC";
    let mut table = vec![
        odd("no message").body("").answer("200 2 EOF"),
        odd("no message on a bidirectional stream").body("").path(KEEP_ALIVE),
        odd("no message for a server stream")
            .body("")
            .path(SNAPSHOT)
            .answer(&format!("200 13 {none}"))
            .in_3_5("200 2 EOF"),
        odd("half a message").body(cut).answer("200 2 unexpected EOF"),
        odd("half a message header").body(&cut[..3]).answer("200 2 unexpected EOF"),
        odd("two messages").body([framed(MESSAGE), framed(MESSAGE)].concat()),
        odd("two messages for a server stream")
            .body([framed(b""), framed(b"")].concat())
            .path(SNAPSHOT)
            .answer(&format!("200 13 {several}"))
            .in_3_5(GOOD),
        gzip("an uncompressed message with the compressed flag")
            .answer(&internal("failed to decompress the message: unexpected EOF"))
            .in_3_5(&older_gzip),
        gzip("half a compressed message")
            .body(framed(b"\x1f\x8b\x08\0\0\0\0\0\0\0"))
            .flag(1)
            .answer(&internal("failed to read decompressed data: unexpected EOF"))
            .in_3_5(&older_gzip),
        odd("an unparsable message")
            .body(framed(b"\x0a\x7fabc"))
            .answer(&internal(&format!("error unmarshalling request: {unparsable}")))
            .in_3_5(&internal(&format!("error unmarshalling request: {older}"))),
    ];
    for path in [SNAPSHOT, KEEP_ALIVE, WATCH] {
        let refused =
            |reason| internal(&format!("failed to unmarshal the received message: {reason}"));
        table.extend([
            odd("half a message on a stream").path(path).body(cut).answer("200 13 unexpected EOF"),
            odd("an unparsable message on a stream")
                .path(path)
                .body(framed(b"\x12\x7fabc"))
                .answer(&refused(unparsable))
                .in_3_5(&refused(older)),
        ]);
    }
    for path in [PUT, SNAPSHOT, KEEP_ALIVE, WATCH] {
        table.extend([
            odd("the compressed flag without a compression")
                .path(path)
                .flag(1)
                .answer(&no_compression),
            odd("an unknown flag")
                .path(path)
                .flag(2)
                .answer(&internal("received unexpected payload format 2")),
            odd("a very long message").path(path).body(&b"\0\x7f\0\0\0"[..]).answer(too_large),
        ]);
    }
    check(kind, table).await;
}

async fn a_unary_call_is_answered_before_its_request_ends(kind: Kind) {
    let server = Server::start(kind).await;
    let port = server.front_port();
    let answers = tokio::task::spawn_blocking(move || {
        let mut connection = RawHttp2::connect(port);
        let message = framed(MESSAGE);
        let behind = [&b""[..], b"\0\0\0", b"\0\0\0\0\x09\x0a\x01k", &message];
        let mut answers = Vec::new();
        for behind in behind {
            let id = connection.open(&call_head(PUT));
            connection.send_body(id, &[&message, behind].concat(), false);
            answers.push(connection.read_answer(id).summary());
        }
        // The messages are split into two frames, the second of which starts within the first message.
        let id = connection.open(&call_head(PUT));
        connection.send_body(id, &message[..7], false);
        connection.send_body(id, &[&message[7..], &message].concat(), false);
        answers.push(connection.read_answer(id).summary());
        // The connection can still be used for other calls.
        let id = connection.open(&call_head(RANGE));
        connection.send_body(id, &framed(b"\x0a\x01k"), true);
        answers.push(connection.read_answer(id).summary());
        answers
    });
    assert_eq!(answers.await.unwrap(), [GOOD; 6]);
}

/// Encodes a field that has the number of a known field, but the wire type of a 32-bit number.
fn mistyped(number: u8) -> Vec<u8> {
    vec![number << 3 | 5, 1, 2, 3, 4]
}

async fn fields_of_the_wrong_wire_type_are_skipped_as_unknown(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // The requests are a put that starts with such a field, and a put in a nested transaction.
    let odd_put = [mistyped(1), MESSAGE.to_vec(), mistyped(5)].concat();
    let wrap = |number: u8, message: &[u8]| {
        let length = u8::try_from(message.len()).unwrap();
        [&[number << 3 | 2, length][..], message].concat()
    };
    let inner = wrap(2, &[wrap(2, &odd_put), mistyped(3)].concat());
    let outer = wrap(2, &wrap(4, &inner));
    let requests: [(&str, &[u8]); 5] = [
        (PUT, &odd_put),
        ("/etcdserverpb.KV/Txn", &outer),
        (RANGE, &[b"\x0a\x01k".to_vec(), mistyped(3)].concat()),
        ("/etcdserverpb.Lease/LeaseGrant", &[b"\x08\x0a".to_vec(), wrap(2, b"\x01")].concat()),
        ("/etcdserverpb.Maintenance/HashKV", &mistyped(1)),
    ];
    for (method, request) in requests {
        let answer = client.raw(method, request).await;
        if server.is_3_7() {
            answer.unwrap();
        } else {
            let status = answer.unwrap_err();
            let text = "grpc: error unmarshalling request: proto: wrong wireType";
            assert!(status.message().starts_with(text), "{method}: {status:?}");
        }
    }
    let revision = if server.is_3_7() { 3 } else { 1 };
    assert_eq!(client.revision().await, revision);
    if server.is_3_7() {
        assert_eq!(client.read("k").await.unwrap(), b"v");
    }
}

async fn a_watch_continues_after_a_field_of_the_wrong_type(kind: Kind) {
    let server = Server::start(kind).await;
    if !server.is_3_7() {
        // Debian's release ends the stream in this case.
        return;
    }
    let fields = odd("").path(WATCH).fields;
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
    let mut raw = RawHttp2::connect(server.port());
    let stream = raw.open(&block);
    let request = |key: &str| {
        let create = pb::WatchCreateRequest { key: bytes(key), ..Default::default() };
        let union = RequestUnion::CreateRequest(create);
        let request = pb::WatchRequest { request_union: Some(union) };
        prost::Message::encode_to_vec(&request)
    };
    let mut created = |body: &[u8]| {
        raw.send_body(stream, body, false);
        let head = raw.read_body(stream, 5);
        let length = usize::from(head[4]);
        let message = match head.len() - 5 {
            read if read < length => [&head[5..], &raw.read_body(stream, length - read)].concat(),
            _ => head[5..].to_vec(),
        };
        let answer: pb::WatchResponse = prost::Message::decode(&message[..]).unwrap();
        assert!(answer.created, "{answer:?}");
        answer.watch_id
    };
    assert_eq!(created(&framed(&request("a"))), 0);
    // The first message contains only this field, and therefore no request. In the second message, the field precedes a
    // valid request.
    let odd = framed(&mistyped(1));
    assert_eq!(created(&[odd, framed(&[mistyped(2), request("b")].concat())].concat()), 1);
}

/// Values of `:authority` that clients send: Go clients of etcd 3.4 to 3.7, clients on Unix sockets, clients in other
/// languages, and clients behind proxies. The second element of a pair is the Huffman code of the value, or empty.
const AUTHORITIES: &[(&[u8], &[u8])] = &[
    (b"#initially=[http://127.0.0.1:2379]", b"\xff\xa3\x54\x64\x98\x74\x51\xea\x0f\xfd\xce\x94\xd7\x71\x86\x02\x27\x57\x02\xe0\x5c\x37\x04\xcb\xaf\xff\xf3"),
    (b"unix:localhost:2379", b"\xb6\xa3\x79\xb9\x41\xc8\x3a\x27\x3a\x13\x70\x4c\xba\xff"),
    (b"a:b:c", b"\x1d\xc8\xee\x13"),
    (b"#initially=[https://a:2379;https://b:2379]", b""),
    (b"etcd-endpoints://0xc000123456/127.0.0.1:2379", b""),
    (b"unix:/run/etcd.sock", b""),
    (b"unix:///run/etcd.sock", b""),
    (b"unix-abstract:etcd", b""),
    (b"%2Ftmp%2Fx.sock", b""),
    (b"/tmp/x.sock", b""),
    (b"passthrough:///10.0.0.1:2379", b""),
    (b"10.0.0.1:2379,10.0.0.2:2379", b""),
    (b"[::1]:2379", b""),
    (b"::1", b""),
    (b"fe80::1%25eth0", b""),
    (b"localhost:", b""),
    (b"localhost:port", b""),
    (b"user@host", b""),
    (b"a b", b""),
    (b"<unknown>", b""),
];

async fn requests_with_any_authority_header_are_answered(kind: Kind) {
    let server = Server::start(kind).await;
    let fields = odd("").without(":authority").fields;
    let block = |authority: &[u8]| -> Vec<u8> {
        let line = |(name, value): &(Vec<u8>, Vec<u8>)| literal(name, value);
        let (pseudo, rest) = fields.split_at(3);
        let pseudo: Vec<u8> = pseudo.iter().flat_map(line).collect();
        [pseudo, authority.to_vec(), rest.iter().flat_map(line).collect()].concat()
    };
    let ask = |raw: &mut RawHttp2, authority: &[u8]| {
        raw.ask_block(&block(authority), &framed(MESSAGE)).summary()
    };
    for (authority, coded) in AUTHORITIES {
        let what = String::from_utf8_lossy(authority);
        // The field is sent as never indexed, with its name as an index or a literal, and then as an indexed field that
        // a later request refers to, all on one connection.
        let plain = string(authority);
        let named = [&b"\x0a:authority"[..], &plain].concat();
        let mut raw = RawHttp2::connect(server.port());
        for head in [b"\x01", b"\x11", b"\x41"] {
            assert_eq!(ask(&mut raw, &[head, &plain[..]].concat()), GOOD, "{what} {head:x?}");
        }
        assert_eq!(ask(&mut raw, b"\xbe"), GOOD, "{what}, as an indexed field");
        for head in [b"\x00", b"\x10", b"\x40"] {
            assert_eq!(ask(&mut raw, &[head, &named[..]].concat()), GOOD, "{what} {head:x?}");
        }
        assert_eq!(ask(&mut raw, b"\xbf"), GOOD, "{what}, as an older indexed field");
        if !coded.is_empty() {
            let length = u8::try_from(coded.len()).unwrap() | 0x80;
            assert_eq!(
                ask(&mut raw, &[&[0x41, length], *coded].concat()),
                GOOD,
                "{what}, Huffman-coded"
            );
            assert_eq!(ask(&mut raw, b"\xbe"), GOOD, "{what}, Huffman-coded, as an indexed field");
        }
    }
    let mut raw = RawHttp2::connect(server.port());
    for empty in [&b"\x81"[..], b"\x01\x00", b"\x41\x00", b"\xbe", b"\x41\x01a", b"\xbf", b""] {
        assert_eq!(ask(&mut raw, empty), GOOD, "{empty:x?}");
    }
}

/// Returns the head of a call with this deadline.
fn head_until(path: &str, timeout: &str) -> Vec<u8> {
    [call_head(path), literal(b"grpc-timeout", timeout.as_bytes())].concat()
}

async fn streams_of_a_member_and_of_a_proxy_end_at_their_deadlines(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    for port in [server.port(), proxy.port()] {
        for path in [WATCH, KEEP_ALIVE] {
            let mut connection = RawHttp2::connect(port);
            let id = connection.open(&head_until(path, "500m"));
            assert_eq!(connection.read_answer(id).summary(), DEADLINE, "{path} at port {port}");
        }
    }
}

async fn a_stream_ends_at_its_deadline_while_its_client_grants_no_room(kind: Kind) {
    let server = Server::start(kind).await;
    let mut connection = RawHttp2::connect_without_room(server.port());
    let id = connection.open(&head_until(WATCH, "2S"));
    let create = RequestUnion::CreateRequest(watch_key("k"));
    let create = pb::WatchRequest { request_union: Some(create) };
    connection.send_body(id, &framed(&create.encode_to_vec()), false);
    let streams = || server.metric("etcd_debugging_mvcc_watch_stream_total");
    eventually("the stream starts", async || (streams() == Some(1.0)).then_some(())).await;
    eventually("the stream ends", async || (streams() == Some(0.0)).then_some(())).await;
    if kind == Kind::Quorate {
        assert_eq!(connection.read_answer(id).summary(), DEADLINE);
    }
}
