//! Tests of served connections over an in-memory pipe.

mod turns;

use std::convert::Infallible;
use std::pin::Pin;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use quorate_http2::frame::{Header, PREFACE, WINDOW_DEFAULT, flag, kind, read_u32, setting};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;
use crate::listen::{Activity, Ends, IncomingBody, Pace, ReadLimit, ResponseDeadline};

/// A service that returns the request body, or never responds if the path requests this.
#[derive(Clone, Default)]
struct Echo {
    dropped: Arc<AtomicU64>,
}

struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Service<Request<IncomingBody>> for Echo {
    type Response = Response<BoxBody<Bytes, crate::listen::BodyError>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let counted = Counted(Arc::clone(&self.dropped));
        Box::pin(async move {
            let _counted = counted;
            match request.uri().path() {
                "/never" => std::future::pending().await,
                "/idle" => {
                    let mut response = Response::new(BoxBody::new(ThenIdle { is_sent: false }));
                    response.extensions_mut().insert(ReadLimit(Arc::new(PACE)));
                    Ok(response)
                }
                "/grpc" => Ok(grpc(request.into_body().boxed())),
                "/grpc-trailers" => Ok(grpc(BoxBody::new(OnlyTrailers(request.into_body())))),
                "/timed" => {
                    let deadline = Box::pin(tokio::time::sleep(RESPONSE_TIME));
                    let ends_at = ResponseDeadline(deadline.deadline());
                    let body = Timed { rest: ThenIdle { is_sent: false }, deadline };
                    let mut response = Response::new(BoxBody::new(body));
                    response.extensions_mut().insert(ends_at);
                    Ok(response)
                }
                "/exact" => Ok(Response::new(BoxBody::new(Exact { is_sent: false }))),
                "/limited" => {
                    let body = Full::new(Bytes::from(vec![0; LIMITED_BYTES]));
                    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
                    response.extensions_mut().insert(ReadLimit(Arc::new(PACE)));
                    Ok(response)
                }
                "/collect" => {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    Ok(Response::new(Full::new(body).map_err(|never| match never {}).boxed()))
                }
                _ => Ok(Response::new(request.into_body().boxed())),
            }
        })
    }
}

impl Http2Service for Echo {
    fn for_connection(&self, _: Ends) -> Self {
        self.clone()
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// Answers a call that ends with its first part with a message of [`MESSAGE_BYTES`].
    fn call_whole(
        &self,
        head: &Arc<Head>,
        _: Option<&Arc<crate::listen::ClientCertificate>>,
        _: &[u8],
    ) -> Option<WholeCall<Self::ResponseBody>> {
        let is_whole = head.uri.path() == "/whole";
        is_whole.then(|| -> WholeCall<_> { Box::pin(async { Ok(vec![0; MESSAGE_BYTES].into()) }) })
    }
}

const MESSAGE_BYTES: usize = 4_000;
/// The size of a response with a read limit, which exceeds the windows of a connection and the pipe.
const LIMITED_BYTES: usize = 1 << 20;
/// The time until the deadline of a timed response.
const RESPONSE_TIME: Duration = Duration::from_secs(5);
const PACE: Pace = Pace { bytes: 40_000, time: Duration::from_secs(30) };

const SETTINGS: Settings = Settings {
    limits: Limits {
        streams_max: 100,
        is_announced: true,
        header_list_bytes_max: 64 << 10,
        stream_window: 1 << 16,
        connection_window: 1 << 17,
        given_up_max: 100,
    },
    ping_floor: Some(Duration::from_secs(5)),
    head_timeout: Duration::from_secs(10),
    keepalive: None,
};

/// A body that fills the client's window exactly, and ends with trailers.
struct Exact {
    is_sent: bool,
}

impl hyper::body::Body for Exact {
    type Data = Bytes;
    type Error = crate::listen::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        let frame = if std::mem::replace(&mut self.is_sent, true) {
            hyper::body::Frame::trailers(http::HeaderMap::new())
        } else {
            hyper::body::Frame::data(vec![0; WINDOW_DEFAULT as usize].into())
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(if self.is_sent { 0 } else { WINDOW_DEFAULT.into() })
    }
}

fn grpc<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// A body that contains only trailers, which follow the end of the request.
struct OnlyTrailers(IncomingBody);

impl hyper::body::Body for OnlyTrailers {
    type Data = Bytes;
    type Error = crate::listen::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        while let Some(part) = std::task::ready!(Pin::new(&mut self.0).poll_frame(cx)) {
            part?;
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(hyper::body::Frame::trailers(trailers))))
    }
}

/// A body that exceeds the client's window by one byte, and is then idle.
struct ThenIdle {
    is_sent: bool,
}

impl hyper::body::Body for ThenIdle {
    type Data = Bytes;
    type Error = crate::listen::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.is_sent, true) {
            return Poll::Pending;
        }
        let data = Bytes::from(vec![0; WINDOW_DEFAULT as usize + 1]);
        Poll::Ready(Some(Ok(hyper::body::Frame::data(data))))
    }
}

/// A body that exceeds the client's window by one byte, and ends with trailers at its deadline.
struct Timed {
    rest: ThenIdle,
    deadline: Pin<Box<Sleep>>,
}

impl hyper::body::Body for Timed {
    type Data = Bytes;
    type Error = crate::listen::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Ok(hyper::body::Frame::trailers(http::HeaderMap::new()))));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }
}

/// Serves a connection, and returns the client's end of it.
fn serve(service: &Echo, settings: Settings) -> DuplexStream {
    let (client, server) = tokio::io::duplex(64 << 10);
    tokio::spawn(Server::new(server, Vec::new(), service.clone(), settings));
    client
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Header { len: payload.len(), kind, flags, stream }.put(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

/// Returns a POST request for this path, which must be short.
fn request(stream: u32, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let block = [&[0x83, 0x86, 0x04, length][..], path.as_bytes()].concat();
    frame(kind::HEADERS, flag::END_HEADERS, stream, &block)
}

async fn read_frame(client: &mut DuplexStream) -> (Header, Vec<u8>) {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.unwrap();
    let header = Header::parse(&head).unwrap();
    let mut payload = vec![0; header.len];
    client.read_exact(&mut payload).await.unwrap();
    (header, payload)
}

/// Reads until a frame of this kind arrives.
async fn read_until(client: &mut DuplexStream, kind: u8) -> (Header, Vec<u8>) {
    loop {
        let (header, payload) = read_frame(client).await;
        if header.kind == kind {
            return (header, payload);
        }
    }
}

async fn greet(client: &mut DuplexStream) {
    client.write_all(PREFACE).await.unwrap();
    client.write_all(&frame(kind::SETTINGS, 0, 0, b"")).await.unwrap();
}

#[tokio::test]
async fn a_body_arrives_unchanged_however_the_bytes_are_split() {
    let wire = [
        PREFACE.to_vec(),
        frame(kind::SETTINGS, 0, 0, b""),
        request(1, "/collect"),
        frame(kind::DATA, 0, 1, b"ab"),
        frame(kind::DATA, 0, 1, b"cd"),
        frame(kind::DATA, flag::END_STREAM, 1, b""),
    ]
    .concat();
    for piece in [1, 5, 10, 33, wire.len()] {
        let mut client = serve(&Echo::default(), SETTINGS);
        for bytes in wire.chunks(piece) {
            client.write_all(bytes).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(
            read_until(&mut client, kind::DATA).await.1,
            b"abcd",
            "input split into pieces of {piece} bytes"
        );
    }
}

#[tokio::test]
async fn large_bodies_are_transferred_in_both_directions_at_the_same_time() {
    let client = serve(&Echo::default(), SETTINGS);
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await;
    let (sender, connection) = handshake.unwrap();
    tokio::spawn(connection);
    let calls = (0..20_usize).map(|index| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let sent = Bytes::from(vec![index.to_le_bytes()[0]; index * 100_000]);
            let path = if index % 2 == 0 { "http://x/echo" } else { "http://x/collect" };
            let request = Request::post(path).body(Full::new(sent.clone())).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert!(
                answer.into_body().collect().await.unwrap().to_bytes() == sent,
                "request {index}"
            );
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn a_reset_drops_the_request() {
    let service = Echo::default();
    let mut client = serve(&service, SETTINGS);
    greet(&mut client).await;
    client.write_all(&request(1, "/never")).await.unwrap();
    client.write_all(&request(3, "/never")).await.unwrap();
    client.write_all(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])).await.unwrap();
    client
        .write_all(&[request(5, "/collect"), frame(kind::DATA, flag::END_STREAM, 5, b"x")].concat())
        .await
        .unwrap();
    read_until(&mut client, kind::DATA).await;
    assert_eq!(
        service.dropped.load(Ordering::Relaxed),
        2,
        "the reset request and the answered request must be dropped"
    );
    drop(client);
    while service.dropped.load(Ordering::Relaxed) < 3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_protocol_violation_is_answered_with_its_error_code() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    client.write_all(&frame(kind::PING, 0, 7, &[0; 8])).await.unwrap();
    let (_, payload) = read_until(&mut client, kind::GOAWAY).await;
    assert_eq!(read_u32(&payload[4..]), Some(Code::PROTOCOL_ERROR.0));
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_pings_is_disconnected() {
    let keepalive = Some((Duration::from_secs(60), Duration::from_secs(20)));
    let mut client = serve(&Echo::default(), Settings { keepalive, ..SETTINGS });
    greet(&mut client).await;
    let begun = Instant::now();
    read_until(&mut client, kind::PING).await;
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(begun.elapsed().as_secs(), 80);
}

#[tokio::test]
async fn unread_bodies_do_not_use_up_the_connection_window() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    // The connection's window is as large as two stream windows, and each of these requests fills its stream's window.
    for stream in (1..40).step_by(2) {
        let mut bytes = request(stream, "/never");
        for _ in 0..4 {
            bytes.extend(frame(kind::DATA, 0, stream, &[0; 16_000]));
        }
        bytes.extend(frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        client.write_all(&bytes).await.unwrap();
    }
    client
        .write_all(
            &[request(41, "/collect"), frame(kind::DATA, flag::END_STREAM, 41, b"x")].concat(),
        )
        .await
        .unwrap();
    assert_eq!(read_until(&mut client, kind::DATA).await.1, b"x");
}

/// Tests the `MadeYouReset` attack (CVE-2025-8671), in which the client provokes resets by the server.
#[tokio::test]
async fn provoked_resets_drop_the_requests_and_end_the_connection() {
    let service = Echo::default();
    let mut client = serve(&service, SETTINGS);
    greet(&mut client).await;
    for stream in (1..).step_by(2).take(101) {
        let provoked = frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4]);
        client.write_all(&[request(stream, "/never"), provoked].concat()).await.unwrap();
    }
    let (_, payload) = read_until(&mut client, kind::GOAWAY).await;
    assert_eq!(read_u32(&payload[4..]), Some(Code::ENHANCE_YOUR_CALM.0));
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(service.dropped.load(Ordering::Relaxed), 100, "the last request must not start");
}

/// Tests a client that opens the connection's window one byte at a time while many streams wait for it.
#[tokio::test]
async fn a_small_window_update_polls_few_of_the_waiting_streams() {
    const STREAMS: usize = 1000;
    let limits = Limits { streams_max: STREAMS, ..SETTINGS.limits };
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let settings = Settings { limits, ..SETTINGS };
    let mut server = Server::new(server, Vec::new(), Echo::default(), settings);
    let mut cx = Context::from_waker(Waker::noop());
    greet(&mut client).await;
    for stream in (1..).step_by(2).take(STREAMS) {
        let body = frame(kind::DATA, flag::END_STREAM, stream, &[0; 100]);
        client.write_all(&[request(stream, "/echo"), body].concat()).await.unwrap();
    }
    let waiting = STREAMS - WINDOW_DEFAULT as usize / 100;
    while server.waiting_for_room.len() < waiting {
        assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
    }
    assert_eq!(server.waiting_for_room.len(), waiting);
    for _ in 0..100 {
        server.process(&frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).unwrap();
        server.poll_waiting_for_room();
        assert!(!server.connection.has_room(), "no stream used the byte");
        assert!(
            waiting - server.waiting_for_room.len() <= 1,
            "the other streams do not wait any longer"
        );
        assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
    }
}

#[tokio::test]
async fn the_output_for_a_client_that_does_not_read_is_bounded() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let mut server = Server::new(server, Vec::new(), Echo::default(), SETTINGS);
    let mut cx = Context::from_waker(Waker::noop());
    greet(&mut client).await;
    let window = (1_u32 << 20).to_be_bytes();
    client.write_all(&frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &window].concat())).await.unwrap();
    client
        .write_all(&frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()))
        .await
        .unwrap();
    // The socket accepts 1 MiB, which is less than the streams' windows allow in total.
    for stream in (1..).step_by(2).take(60) {
        for bytes in [
            request(stream, "/echo"),
            frame(kind::DATA, 0, stream, &[0; 16_000]),
            frame(kind::DATA, 0, stream, &[0; 16_000]),
            frame(kind::DATA, flag::END_STREAM, stream, &[0; 16_000]),
        ] {
            client.write_all(&bytes).await.unwrap();
            assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
            assert!(server.connection.output().len() <= OUTPUT_BYTES_MAX + READ_BYTES);
        }
        if server.is_output_full() {
            let before = server.connection.output().len();
            let settings = frame(kind::SETTINGS, 0, 0, b"").repeat(1000);
            client.write_all(&settings).await.unwrap();
            assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
            assert_eq!(
                server.connection.output().len(),
                before,
                "the server read although its output was full"
            );
            return;
        }
    }
    panic!("the output is not full: {} bytes", server.connection.output().len());
}

#[tokio::test]
async fn the_responses_to_complete_calls_do_not_exceed_the_bound_on_the_output() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let settings =
        Settings { limits: Limits { streams_max: 1_000, ..SETTINGS.limits }, ..SETTINGS };
    let mut server = Server::new(server, Vec::new(), Echo::default(), settings);
    let mut cx = Context::from_waker(Waker::noop());
    greet(&mut client).await;
    let room = frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    client.write_all(&room).await.unwrap();
    let mut calls = Vec::new();
    for stream in (1..).step_by(2).take(500) {
        calls.extend(request(stream, "/whole"));
        calls.extend(frame(kind::DATA, flag::END_STREAM, stream, b"x"));
    }
    client.write_all(&calls).await.unwrap();
    // The responses take 2 MB, and the pipe accepts 1 MiB.
    for _ in 0..10 {
        assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
        assert!(server.connection.output().len() <= OUTPUT_BYTES_MAX + 2 * MESSAGE_BYTES);
    }
    assert!(server.is_output_full());
    // Once the client reads, it receives every response.
    let server = tokio::spawn(server);
    for _ in 0..500 {
        assert_eq!(read_until(&mut client, kind::DATA).await.0.len, MESSAGE_BYTES);
    }
    server.abort();
}

#[tokio::test]
async fn a_connection_with_more_data_yields_after_a_bounded_number_of_reads() {
    const PIPE_BYTES: usize = 2 * READ_BYTES * READS_PER_TURN_MAX as usize;
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let mut server = Server::new(server, Vec::new(), Echo::default(), SETTINGS);
    greet(&mut client).await;
    let wire = frame(99, 0, 0, &[0; 16_000]).repeat(100);
    let mut unsent = &wire[..];
    let mut fill = |client: &mut DuplexStream| {
        let (before, mut cx) = (unsent.len(), Context::from_waker(Waker::noop()));
        while let Poll::Ready(count) = Pin::new(&mut *client).poll_write(&mut cx, unsent) {
            unsent = &unsent[count.unwrap()..];
        }
        before - unsent.len()
    };
    fill(&mut client);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
    assert_eq!(fill(&mut client), READ_BYTES * READS_PER_TURN_MAX as usize);
    // The task has woken itself, so it continues without a further event.
    let served = tokio::time::timeout(Duration::from_millis(100), &mut server).await;
    assert!(served.is_err(), "the connection ended");
    assert_eq!(fill(&mut client), PIPE_BYTES, "further turns did not read all data");
}

/// Tests that the memory does not grow if a client repeatedly opens streams, leaves them waiting for the window, and
/// resets them.
#[tokio::test]
async fn resetting_all_streams_empties_the_slots_and_the_waiting_lists() {
    // About 650 responses fit into the connection's window, so more than 1,024 streams wait.
    const STREAMS: usize = 1800;
    let limits = Limits { streams_max: STREAMS, ..SETTINGS.limits };
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let settings = Settings { limits, ..SETTINGS };
    let mut server = Server::new(server, Vec::new(), Echo::default(), settings);
    let mut cx = Context::from_waker(Waker::noop());
    greet(&mut client).await;
    let streams = || (1..).step_by(2).take(STREAMS);
    for stream in streams() {
        let body = frame(kind::DATA, flag::END_STREAM, stream, &[0; 100]);
        client.write_all(&[request(stream, "/echo"), body].concat()).await.unwrap();
    }
    while server.waiting_for_room.len() < STREAMS - WINDOW_DEFAULT as usize / 100 {
        assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
    }
    for stream in streams() {
        server.process(&frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])).unwrap();
    }
    assert_eq!(server.connection.stream_count(), 0);
    assert!(server.slots.is_empty() && server.waiting_for_room.is_empty());
    client.write_all(&request(4001, "/never")).await.unwrap();
    assert!(Pin::new(&mut server).poll(&mut cx).is_pending());
    assert_eq!(server.slots.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_header_block_ends_the_connection_at_its_deadline() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    let started = Instant::now();
    client.write_all(&frame(kind::HEADERS, 0, 1, &[0x83])).await.unwrap();
    // More frames of the same block do not extend the deadline.
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.write_all(&frame(kind::CONTINUATION, 0, 1, &[0x86])).await.unwrap();
    }
    let (_, payload) = read_until(&mut client, kind::GOAWAY).await;
    assert_eq!(read_u32(&payload[4..]), Some(Code::ENHANCE_YOUR_CALM.0));
    assert_eq!(started.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_completed_header_block_has_no_deadline() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    client.write_all(&frame(kind::HEADERS, 0, 1, &[0x83, 0x86])).await.unwrap();
    client.write_all(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, &[0x84])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    client.write_all(&frame(kind::DATA, flag::END_STREAM, 1, b"ab")).await.unwrap();
    let (_, body) = read_until(&mut client, kind::DATA).await;
    assert_eq!(body, b"ab");
}

/// Returns a request for a response with a read limit.
fn limited_request(stream: u32) -> Vec<u8> {
    [request(stream, "/limited"), frame(kind::DATA, flag::END_STREAM, stream, b"")].concat()
}

fn room(stream: u32, bytes: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_limited_response_that_is_not_read_is_reset() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    let begun = Instant::now();
    // The stream's window delays the first response, and the connection's window delays the second one.
    client.write_all(&[limited_request(1), limited_request(3)].concat()).await.unwrap();
    for _ in 0..2 {
        let (header, payload) = read_until(&mut client, kind::RST_STREAM).await;
        assert!([1, 3].contains(&header.stream));
        assert_eq!(read_u32(&payload), Some(Code::ENHANCE_YOUR_CALM.0));
    }
    assert!((PACE.time..PACE.time * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let next = [request(5, "/collect"), room(0, 1), frame(kind::DATA, flag::END_STREAM, 5, b"x")];
    client.write_all(&next.concat()).await.unwrap();
    assert_eq!(read_until(&mut client, kind::DATA).await.1, b"x", "the connection stays open");
}

#[tokio::test(start_paused = true)]
async fn a_limited_response_is_not_reset_while_its_client_reads_fast_enough() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    client.write_all(&limited_request(1)).await.unwrap();
    let mut read = 0;
    while read < LIMITED_BYTES {
        let (header, payload) = read_frame(&mut client).await;
        assert_ne!(header.kind, kind::RST_STREAM, "reset after {read} bytes");
        if header.kind == kind::DATA {
            read += payload.len();
            // A frame has 16 KiB, so the client reads 64 KiB in each period.
            tokio::time::sleep(PACE.time / 4).await;
            let bytes = u32::try_from(payload.len()).unwrap();
            client.write_all(&[room(0, bytes), room(1, bytes)].concat()).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_other_responses_on_its_connection_keeps_a_limited_response() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    let window = [&[0, 4][..], &(1_u32 << 30).to_be_bytes()].concat();
    client.write_all(&frame(kind::SETTINGS, 0, 0, &window)).await.unwrap();
    client.write_all(&[limited_request(1), limited_request(3)].concat()).await.unwrap();
    let end = Instant::now() + PACE.time * 10;
    while Instant::now() < end {
        while let Ok((header, _)) =
            tokio::time::timeout(Duration::from_secs(1), read_frame(&mut client)).await
        {
            assert_ne!(header.kind, kind::RST_STREAM, "stream {}", header.stream);
        }
        client.write_all(&room(0, 41_000)).await.unwrap();
        tokio::time::sleep(PACE.time / 2).await;
    }
}

/// Asserts that the server sends nothing before it answers a ping.
async fn check_silence(client: &mut DuplexStream) {
    client.write_all(&frame(kind::PING, 0, 0, &[0; 8])).await.unwrap();
    assert_eq!(read_frame(client).await.0.kind, kind::PING);
}

#[tokio::test]
async fn the_head_of_a_grpc_response_is_sent_with_the_first_frame_of_its_body() {
    const LITERAL: &[u8] = b"\x40\x0bgrpc-status\x010";
    let mut client = serve(&Echo::default(), Settings { ping_floor: None, ..SETTINGS });
    greet(&mut client).await;
    read_until(&mut client, kind::WINDOW_UPDATE).await;
    read_until(&mut client, kind::SETTINGS).await;
    client.write_all(&[request(1, "/grpc-trailers"), request(3, "/grpc")].concat()).await.unwrap();
    // The requests have been polled when the second ping arrives.
    check_silence(&mut client).await;
    check_silence(&mut client).await;
    client.write_all(&frame(kind::DATA, flag::END_STREAM, 1, b"x")).await.unwrap();
    let (header, fields) = read_frame(&mut client).await;
    let only_frame = (kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1);
    assert_eq!((header.kind, header.flags, header.stream), only_frame);
    assert!(fields.starts_with(b"\x88") && fields.ends_with(LITERAL), "{fields:?}");
    client.write_all(&frame(kind::DATA, 0, 3, b"x")).await.unwrap();
    for (kind, flags) in [(kind::HEADERS, flag::END_HEADERS), (kind::DATA, 0)] {
        let (header, _) = read_frame(&mut client).await;
        assert_eq!((header.kind, header.flags, header.stream), (kind, flags, 3));
    }
}

#[tokio::test]
async fn a_client_without_a_window_receives_the_head_of_a_grpc_response() {
    let mut client = serve(&Echo::default(), SETTINGS);
    client.write_all(PREFACE).await.unwrap();
    let window = [&setting::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[0; 4]].concat();
    client.write_all(&frame(kind::SETTINGS, 0, 0, &window)).await.unwrap();
    client.write_all(&request(1, "/grpc")).await.unwrap();
    let (header, _) = read_until(&mut client, kind::HEADERS).await;
    assert_eq!((header.stream, header.flags), (1, flag::END_HEADERS));
}

#[tokio::test]
async fn trailers_are_sent_although_the_window_is_used_up() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    let body = frame(kind::DATA, flag::END_STREAM, 1, b"");
    client.write_all(&[request(1, "/exact"), body].concat()).await.unwrap();
    let mut read = 0;
    loop {
        let (header, payload) = read_frame(&mut client).await;
        match header.kind {
            kind::DATA => read += payload.len(),
            kind::HEADERS if header.flags & flag::END_STREAM != 0 => break,
            _ => {}
        }
    }
    assert_eq!(read, WINDOW_DEFAULT as usize);
}

#[tokio::test(start_paused = true)]
async fn a_limited_response_that_is_idle_after_its_client_has_read_everything_is_not_reset() {
    let mut client = serve(&Echo::default(), SETTINGS);
    greet(&mut client).await;
    // The connection has room, so only the stream's window delays the first response.
    client.write_all(&room(0, 1 << 20)).await.unwrap();
    for stream in [1, 3] {
        let body = frame(kind::DATA, flag::END_STREAM, stream, b"");
        client.write_all(&[request(stream, "/idle"), body].concat()).await.unwrap();
        let mut read = 0;
        while read <= WINDOW_DEFAULT as usize {
            let (header, payload) = read_until(&mut client, kind::DATA).await;
            assert_eq!(header.stream, stream);
            read += payload.len();
            if read == WINDOW_DEFAULT as usize {
                client.write_all(&room(stream, 1 << 20)).await.unwrap();
            }
        }
        let next = tokio::time::timeout(PACE.time * 10, read_frame(&mut client)).await;
        assert!(next.is_err(), "{:?}", next.unwrap().0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_ends_at_its_deadline_while_its_client_grants_no_room() {
    let no_room = [&[0, 4][..], &0_u32.to_be_bytes()].concat();
    // The trailers are sent only if no part of a message is left.
    for (settings, expected) in [(&no_room[..], kind::HEADERS), (b"", kind::RST_STREAM)] {
        let mut client = serve(&Echo::default(), SETTINGS);
        let begun = Instant::now();
        client.write_all(PREFACE).await.unwrap();
        client.write_all(&frame(kind::SETTINGS, 0, 0, settings)).await.unwrap();
        client.write_all(&request(1, "/timed")).await.unwrap();
        let head = read_until(&mut client, kind::HEADERS).await.0;
        assert_eq!(head.flags & flag::END_STREAM, 0);
        let end = tokio::time::timeout(2 * RESPONSE_TIME, read_until(&mut client, expected));
        let (end, payload) = end.await.expect("the response ends at its deadline");
        assert_eq!(begun.elapsed().as_secs(), RESPONSE_TIME.as_secs());
        if expected == kind::RST_STREAM {
            assert_eq!(read_u32(&payload), Some(Code::CANCEL.0));
        } else {
            assert_eq!(end.flags & flag::END_STREAM, flag::END_STREAM);
        }
    }
}
