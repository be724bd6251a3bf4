//! Tests advertised HTTP/2 settings, refusals, and timeouts of connections. The clients send hand-written bytes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http_body_util::Empty;
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::runtime::Threads;

mod closing;
mod secured;

/// A service that never answers.
#[derive(Clone)]
struct Silent;

impl Service<Request<IncomingBody>> for Silent {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, _: Request<IncomingBody>) -> Self::Future {
        Box::pin(std::future::pending())
    }
}

impl Http2Service for Silent {
    fn for_connection(&self, _: Ends) -> Self {
        self.clone()
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

/// A service that answers immediately, or after twice the head timeout for the path `/slow`.
#[derive(Clone)]
struct Answering;

impl Service<Request<IncomingBody>> for Answering {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let pause =
            if request.uri().path() == "/slow" { TIMEOUTS.head * 2 } else { Duration::ZERO };
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            Ok(Response::new(Empty::new()))
        })
    }
}

impl Http1Service for Answering {
    const ANSWERS_HALF_CLOSED: bool = true;
}

pub(super) const TIMEOUTS: ConnectionTimeouts =
    ConnectionTimeouts { head: Duration::from_millis(100), ..ConnectionTimeouts::FOR_CLIENTS };

/// Returns limits with `permits` connection permits.
pub(super) fn limits(permits: u64) -> ConnectionLimits {
    ConnectionLimits {
        max_concurrent_streams: None,
        timeouts: TIMEOUTS,
        permits: Arc::new(ConnectionPermits::new(ConnectionKind::Client, permits)),
        per_address: None,
        keepalive: None,
        ping_floor: Some(Duration::ZERO),
    }
}

/// Returns the client's end of a served connection.
async fn connect(max_concurrent_streams: Option<u32>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let served = Arrived::Tcp(listener.accept().await.unwrap().0.into_std().unwrap());
    let services = Services { grpc: Some(Silent), http: Some(Answering) };
    let limits = ConnectionLimits { max_concurrent_streams, ..limits(1) };
    let (stopper, stop) = watch::channel(false);
    tokio::spawn(async move {
        let _stopper = stopper;
        drop(serve_arrived(served, Security::Plain, services, limits, stop).await);
    });
    stream
}

async fn read_answer(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_request_with_too_many_header_fields_is_refused() {
    for (count, code) in [(HTTP1_FIELDS_MAX - 1, "200"), (HTTP1_FIELDS_MAX, "431")] {
        let mut stream = connect(None).await;
        let fields: String = (0..count).map(|number| format!("x-{number}: y\r\n")).collect();
        let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, *format!("HTTP/1.1 {code}").as_bytes(), "{count} fields");
    }
}

#[tokio::test]
async fn an_incomplete_request_head_closes_the_connection_at_its_deadline() {
    for part in ["P", "GET", "GET /health HTTP/1.1\r\nHost: x\r\n"] {
        let mut stream = connect(None).await;
        stream.write_all(part.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        // The idle timeout is much longer, so the deadline of the head must have closed the connection.
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
        drop(ended.await.expect("the connection ends"));
    }
}

#[tokio::test]
async fn an_incomplete_request_head_after_a_response_closes_the_connection() {
    let mut stream = connect(None).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    read_answer(&mut stream).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
    drop(ended.await.expect("the connection ends"));
}

#[tokio::test]
async fn slow_responses_and_pauses_between_requests_have_no_head_deadline() {
    let mut stream = connect(None).await;
    for path in ["/slow", "/", "/slow"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_answer(&mut stream).await;
        // The pause before the next request exceeds the head timeout.
        tokio::time::sleep(TIMEOUTS.head * 2).await;
    }
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_receives_its_response() {
    for path in ["/", "/slow"] {
        let mut stream = connect(None).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        read_answer(&mut stream).await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
        assert_eq!(ended.await.expect("the connection ends").unwrap(), 0);
    }
}

#[tokio::test]
async fn http_1_requests_without_exactly_one_valid_host_are_refused() {
    const MISSING: &str = "400 Bad Request: missing required Host header";
    for (start, hosts, refusal) in [
        ("GET / HTTP/1.1", &[][..], Some(MISSING)),
        ("GET / HTTP/1.1", &["a", "b"], Some("400 Bad Request")),
        ("GET / HTTP/1.1", &["a b"], Some("400 Bad Request: malformed Host header")),
        ("GET / HTTP/1.1", &["[::1]:2379"], None),
        ("GET http://a/ HTTP/1.1", &[], None),
        ("GET / HTTP/1.0", &[], None),
        ("GET / HTTP/1.0", &["a", "b"], Some("400 Bad Request")),
    ] {
        let mut stream = connect(None).await;
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        stream.write_all(format!("{start}\r\n{hosts}\r\n").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        match refusal {
            Some(text) => {
                assert!(answer.contains(" 400 Bad Request\r\n"), "{answer}");
                assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
                assert!(answer.ends_with(&format!("\r\n\r\n{text}")), "{answer}");
            }
            None => assert!(answer.contains(" 200 OK\r\n"), "{start} {hosts}: {answer}"),
        }
    }
}

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const SETTINGS: u8 = 4;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

async fn read_frame(stream: &mut TcpStream) -> (u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let [high, middle, low, kind, _, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (kind, u32::from_be_bytes(id), payload)
}

/// Sends the client's preface, and returns the stream limit advertised by the server.
async fn greet(stream: &mut TcpStream) -> Option<u32> {
    stream.write_all(HTTP2_PREFACE).await.unwrap();
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    let (kind, _, payload) = read_frame(stream).await;
    assert_eq!(kind, SETTINGS);
    assert!(!payload.is_empty(), "the server advertised no settings");
    let limit = payload.chunks(6).find_map(|setting| setting.strip_prefix(&[0, 3]));
    limit.map(|limit| u32::from_be_bytes(limit.try_into().unwrap()))
}

/// Opens streams with identical headers and leaves them open.
async fn open_streams(stream: &mut TcpStream, count: u32) {
    // The header block has `:method POST`, `:scheme http` and `:path /` from the static table. The flags contain
    // END_HEADERS.
    let frames: Vec<u8> = (0..count)
        .flat_map(|number| {
            let [a, b, c, d] = (2 * number + 1).to_be_bytes();
            [0, 0, 3, 1, 4, a, b, c, d, 0x83, 0x86, 0x84]
        })
        .collect();
    stream.write_all(&frames).await.unwrap();
}

/// Returns the id of the first stream refused by the server.
async fn first_refused(stream: &mut TcpStream) -> u32 {
    loop {
        let (kind, id, payload) = read_frame(stream).await;
        if kind == RST_STREAM {
            assert_eq!(payload, REFUSED_STREAM);
            return id;
        }
    }
}

#[tokio::test]
async fn the_stream_limit_is_enforced_whether_or_not_it_is_advertised() {
    let mut stream = connect(Some(7)).await;
    assert_eq!(greet(&mut stream).await, Some(7));
    open_streams(&mut stream, 8).await;
    assert_eq!(first_refused(&mut stream).await, 15);

    let mut stream = connect(None).await;
    assert_eq!(greet(&mut stream).await, None);
    open_streams(&mut stream, STREAMS_HELD_MAX + 1).await;
    assert_eq!(first_refused(&mut stream).await, 2 * STREAMS_HELD_MAX + 1);
}

/// Opens a stream with a header field of `bytes` bytes and leaves it open.
async fn open_with_field(stream: &mut TcpStream, id: u32, bytes: usize) {
    // The header block of `open_streams`, followed by a field that is not added to the table: the name "x" and a value
    // whose length does not fit in seven bits.
    let mut block = vec![0x83, 0x86, 0x84, 0, 1, b'x', 0x7f];
    let mut length = bytes - 0x7f;
    while length >= 0x80 {
        block.push(u8::try_from(length % 0x80).unwrap() | 0x80);
        length /= 0x80;
    }
    block.push(u8::try_from(length).unwrap());
    block.resize(block.len() + bytes, b'x');
    let pieces: Vec<&[u8]> = block.chunks(16_384).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let kind = if number == 0 { HEADERS } else { CONTINUATION };
        let ends = if number + 1 == pieces.len() { 4 } else { 0 };
        let [_, high, middle, low] = u32::try_from(piece.len()).unwrap().to_be_bytes();
        let [a, b, c, d] = id.to_be_bytes();
        stream.write_all(&[high, middle, low, kind, ends, a, b, c, d]).await.unwrap();
        stream.write_all(piece).await.unwrap();
    }
}

#[tokio::test]
async fn an_overlong_request_head_is_refused_and_the_connection_stays_open() {
    let mut stream = connect(None).await;
    greet(&mut stream).await;
    let most = HEADER_LIST_BYTES_MAX;
    // The service does not answer. The size of the header list includes 32 bytes for each of its four fields.
    for (id, bytes) in [(1, most - 1_000), (3, most + 1), (5, most - 1_000), (7, most + 20_000)] {
        open_with_field(&mut stream, id, bytes).await;
    }
    let mut answered = Vec::new();
    while answered.last() != Some(&7) {
        let (kind, id, _) = read_frame(&mut stream).await;
        if kind == HEADERS {
            answered.push(id);
        }
    }
    assert_eq!(answered, [3, 7]);
}

/// An endless response that counts the bytes taken from it.
struct Endless(Arc<AtomicU64>);

impl Endless {
    const PIECE: &[u8] = &[7; 16 << 10];
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(Self::PIECE.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(Self::PIECE)))))
    }
}

/// A service whose responses never end. It counts the bytes of their bodies.
#[derive(Clone)]
struct Flooding(Arc<AtomicU64>);

impl Service<Request<IncomingBody>> for Flooding {
    type Response = Response<Endless>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn call(&self, _: Request<IncomingBody>) -> Self::Future {
        std::future::ready(Ok(Response::new(Endless(Arc::clone(&self.0)))))
    }
}

impl Http2Service for Flooding {
    fn for_connection(&self, _: Ends) -> Self {
        self.clone()
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

// With paused time, the clock advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn response_bytes_encoded_ahead_of_a_slow_client_are_bounded() {
    const WIRE_BYTES: usize = 64 << 10;
    const WINDOW: [u8; 4] = (1_u32 << 30).to_be_bytes();
    let (mut client, server) = tokio::io::duplex(WIRE_BYTES);
    let taken = Arc::new(AtomicU64::new(0));
    let body = Arc::clone(&taken);
    let (_stopper, stop) = watch::channel(false);
    tokio::spawn(serve_http2(server, Vec::new(), Flooding(body), limits(1), stop));
    // The windows of the stream and of the connection are large, but the client does not read.
    client.write_all(HTTP2_PREFACE).await.unwrap();
    client.write_all(&[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 4]).await.unwrap();
    client.write_all(&WINDOW).await.unwrap();
    client.write_all(&[0, 0, 4, WINDOW_UPDATE, 0, 0, 0, 0, 0]).await.unwrap();
    client.write_all(&WINDOW).await.unwrap();
    client.write_all(&[0, 0, 3, HEADERS, 5, 0, 0, 0, 1, 0x83, 0x86, 0x84]).await.unwrap();
    let mut read = 0;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The last piece may exceed the limit, and another piece is being written.
        let most = http2::OUTPUT_BYTES_MAX + WIRE_BYTES + 2 * Endless::PIECE.len();
        let ahead = usize::try_from(taken.load(Ordering::Relaxed)).unwrap() - read;
        assert!(
            (http2::OUTPUT_BYTES_MAX..=most).contains(&ahead),
            "the server encoded {ahead} bytes ahead of the client"
        );
        // For each byte that the client reads, the server can encode another byte.
        let mut piece = vec![0; 100_000];
        client.read_exact(&mut piece).await.unwrap();
        read += piece.len();
    }
}

#[tokio::test]
async fn two_listeners_serve_connections_with_a_single_shared_permit() {
    let threads = Threads { name: "test", count: 1, stack_bytes: 1 << 20 };
    let runtimes = Arc::new(Runtimes::start(threads, |_| std::future::pending::<()>()).unwrap());
    let limits = limits(1);
    let (_stopper, stop) = watch::channel(false);
    let (alive, _) = mpsc::channel(1);
    let addresses = [(); 2].map(|()| {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap();
        let address = listener.address().unwrap();
        let services = Services { grpc: Some(Silent), http: Some(Answering) };
        listener.spawn(&runtimes, services, &limits, &stop, &alive);
        address
    });
    let [one, other] = addresses;
    for address in [other, other, one, one] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(20), read_answer(&mut stream));
        answered.await.expect("the response arrives in time");
    }
}

/// Returns the receive window of each stream, as advertised in the server's first frame.
async fn stream_window(stream: &mut TcpStream) -> Option<u32> {
    stream.write_all(HTTP2_PREFACE).await.unwrap();
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    let (kind, _, payload) = read_frame(stream).await;
    assert_eq!(kind, SETTINGS);
    let window = payload.chunks(6).find_map(|setting| setting.strip_prefix(&[0, 4]));
    window.map(|window| u32::from_be_bytes(window.try_into().unwrap()))
}

/// Starts a listener with these limits. It serves until the first returned value is dropped.
fn listen(
    limits: &ConnectionLimits,
    http: impl Http1Service,
) -> ((watch::Sender<bool>, Arc<Runtimes>), SocketAddr) {
    let threads = Threads { name: "test", count: 1, stack_bytes: 1 << 20 };
    let runtimes = Arc::new(Runtimes::start(threads, |_| std::future::pending::<()>()).unwrap());
    let (stopper, stop) = watch::channel(false);
    let (alive, _) = mpsc::channel(1);
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap();
    let address = listener.address().unwrap();
    let services = Services { grpc: Some(Silent), http: Some(http) };
    listener.spawn(&runtimes, services, limits, &stop, &alive);
    ((stopper, runtimes), address)
}

#[tokio::test]
async fn new_connections_have_small_windows_while_the_limit_on_large_windows_is_reached() {
    let permits = Arc::new(ConnectionPermits::with_windows(ConnectionKind::Client, 10, 1));
    let limits = ConnectionLimits { permits, ..limits(10) };
    let (_listening, address) = listen(&limits, Answering);
    let mut first = TcpStream::connect(address).await.unwrap();
    assert_eq!(stream_window(&mut first).await, Some(STREAM_WINDOW_BYTES));
    assert_eq!(limits.permits.load().large_windows, 1);
    let mut second = TcpStream::connect(address).await.unwrap();
    // The server does not advertise a window of HTTP/2's default size.
    assert!(matches!(stream_window(&mut second).await, None | Some(SMALL_WINDOW_BYTES)));
    drop(first);
    while limits.permits.load().large_windows > 0 {
        tokio::task::yield_now().await;
    }
    let mut third = TcpStream::connect(address).await.unwrap();
    assert_eq!(stream_window(&mut third).await, Some(STREAM_WINDOW_BYTES));
}

#[tokio::test]
async fn an_idle_connection_closes_when_a_permit_is_needed() {
    for said in [&b""[..], HTTP2_PREFACE, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let limits = limits(1);
        let (_listening, address) = listen(&limits, Answering);
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(said).await.unwrap();
        while limits.permits.load().taken == 0 {
            tokio::task::yield_now().await;
        }
        let mut next = TcpStream::connect(address).await.unwrap();
        next.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(60), read_answer(&mut next));
        answered.await.expect("the response arrives in time");
        assert_eq!((limits.permits.load().waited, limits.permits.load().closed_idle), (1, 1));
    }
}

#[tokio::test]
async fn a_probe_is_answered_while_other_metrics_connections_keep_asking() {
    const GET: &[u8] = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    let permits = Arc::new(ConnectionPermits::new(ConnectionKind::Metrics, 2));
    let limits = ConnectionLimits { permits, ..limits(2) };
    let (_listening, address) = listen(&limits, Answering);
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(GET).await.unwrap();
        read_answer(&mut stream).await;
        tokio::spawn(async move {
            while stream.write_all(GET).await.is_ok() {
                // The response, or nothing if the connection was closed.
                if matches!(stream.read(&mut [0; 1024]).await, Ok(0) | Err(_)) {
                    return;
                }
            }
        });
    }
    let mut probe = TcpStream::connect(address).await.unwrap();
    probe.write_all(GET).await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(20), read_answer(&mut probe));
    answered.await.expect("the response arrives in time");
}

/// A service that starts a response immediately and never ends it.
#[derive(Clone)]
struct Streaming;

/// A body that sends one piece of data and never ends.
struct EndlessBody(Option<Bytes>);

impl Body for EndlessBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |first| Poll::Ready(Some(Ok(Frame::data(first)))))
    }
}

impl Service<Request<IncomingBody>> for Streaming {
    type Response = Response<EndlessBody>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn call(&self, _: Request<IncomingBody>) -> Self::Future {
        let body = EndlessBody(Some(Bytes::from_static(b"begun")));
        std::future::ready(Ok(Response::new(body)))
    }
}

impl Http1Service for Streaming {
    const ANSWERS_HALF_CLOSED: bool = true;
}

#[tokio::test]
async fn a_connection_with_a_request_stays_open_when_a_permit_is_needed() {
    let limits = limits(2);
    let (_listening, address) = listen(&limits, Streaming);
    let begin = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"begun\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        stream
    };
    let mut streaming = begin().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    // The streaming connection is checked for idleness first, because it is older.
    tokio::select! {
        _ = streaming.read_u8() => panic!("a connection in use was closed"),
        _ = begin() => {}
    }
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(limits.permits.load().closed_idle, 1);
}

/// Represents a connection that ends after `timeouts` head timeouts.
async fn ends_after(timeouts: u32) -> Result<(), ()> {
    tokio::time::sleep(TIMEOUTS.head * timeouts).await;
    Err(())
}

#[tokio::test(start_paused = true)]
async fn a_closing_connection_whose_client_reads_too_slowly_is_aborted() {
    let sent = AtomicU64::new(0);
    let next = |bytes| sent.fetch_add(bytes, Ordering::Relaxed);
    let taking = || Activity { sent: next(TAKEN_BYTES_MIN), ..Activity::default() };
    let answering_pings = || Activity { sent: next(TAKEN_BYTES_MIN - 1), ..Activity::default() };
    let under_way = || Activity { under_way: 1, ..Activity::default() };
    assert_eq!(end(ends_after(10), Some(((), TIMEOUTS.head)), taking).await, Err(()));
    assert_eq!(end(ends_after(10), Some(((), TIMEOUTS.head)), under_way).await, Err(()));
    assert_eq!(end(ends_after(10), Some(((), TIMEOUTS.head)), answering_pings).await, Ok(()));
    assert_eq!(end(ends_after(10), Some(((), TIMEOUTS.head)), Activity::default).await, Ok(()));
    assert_eq!(end(ends_after(10), None::<((), Duration)>, Activity::default).await, Err(()));
}

#[test]
fn accepted_connections_inherit_the_tcp_user_timeout() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap();
    let timeout = Duration::from_millis(1234);
    listener.set_user_timeout(timeout).unwrap();
    let Socket::Tcp(socket, _) = &listener.socket else { panic!("the listener is not on TCP") };
    socket.set_nonblocking(false).unwrap();
    let _dialed = std::net::TcpStream::connect(listener.address().unwrap()).unwrap();
    let (accepted, _) = socket.accept().unwrap();
    let found = socket2::SockRef::from(&accepted).tcp_user_timeout().unwrap();
    assert_eq!(found, Some(timeout));
}
