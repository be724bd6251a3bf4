//! Listeners: accept connections, detect their protocol, and serve HTTP/1 and gRPC on one port.
//!
//! The first bytes of a connection select the service: the HTTP/2 preface selects gRPC (`http2`), and anything else
//! selects the HTTP endpoints. Over TLS, an HTTP/2 connection carries requests to both services (`mixed`); a listener
//! without gRPC serves HTTP/2 only if it was negotiated. Accepted connections are distributed over the connection
//! runtimes.
//!
//! # Bound
//!
//! * The number of connections is limited by their budget (`descriptors`). Further connections wait, and connections
//!   that are not needed are asked to close ([`ConnectionPermits`]). [`AddressLimit`], if configured, limits the
//!   connections from one address.
//! * The streams of a connection are limited to [`STREAMS_HELD_MAX`] if the flags set no limit.
//! * The data waiting to be sent on an HTTP/2 connection is limited (`http2`). Received data that no service has
//!   read is limited by the connection's window, which is small if too many connections have large windows. The
//!   services account for the data that they have read.
//! * [`ConnectionTimeouts`] limits the time until a connection's first bytes identify its protocol, and the time for
//!   each HTTP/1 head to arrive. A head that starts to arrive during the previous request has the time limit of an idle
//!   connection. The idle connection of a client has no time limit. It stays open while its permit is not needed and,
//!   over HTTP/2, while it answers pings.

mod addresses;
mod buffered;
mod hang_up;
mod head_deadline;
mod host;
mod http2;
mod incoming_body;
mod mixed;
mod permits;
mod ping_floor;
mod read_limit;
mod requests;
mod socket;
mod takeover;
mod write_through;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use quorate_http2::connection::Limits as StreamLimits;
use quorate_http2::head::Head;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

pub use self::addresses::AddressLimit;
use self::buffered::{Buffered, Sending};
pub use self::buffered::{DirectWriter, Written};
pub use self::hang_up::EndsWithClient;
use self::hang_up::{HangUp, Unstalled};
use self::head_deadline::{Announcing, HeadDeadline};
use self::http2::{Ended, Until};
pub use self::http2::{Lost, StreamBody, WholeAnswer, WholeCall};
use self::incoming_body::FromLibrary;
pub use self::incoming_body::{BodyError, IncomingBody};
pub use self::mixed::Encrypted;
use self::mixed::{Mixed, WithConnection};
pub use self::permits::{Activity, ConnectionKind, ConnectionPermits, ConnectionPermitsLoad};
pub use self::read_limit::{Pace, ReadLimit, ReadPolicy, ResponseDeadline};
use self::requests::Requests;
use self::socket::{Arrived, OtherStream, Socket, Source, Stream, Wire};
pub use self::socket::{Ends, Listener, Reuse, Security};
pub use self::takeover::{Duplex, TakenOver, Takeover};
use crate::runtime::Runtimes;
use quorate_telemetry::log;
pub use quorate_tls::ClientCertificate;
use quorate_tls::{Accepted, Acceptor};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum number of streams per connection if the flags set no limit. Real clients stay far below it, because they use
/// one stream for many watches and one stream for each call in progress.
const STREAMS_HELD_MAX: u32 = 1 << 15;

/// Minimum time between two log lines about waiting connections.
const FULL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Receive window of a stream. A request of up to 1 MiB arrives without waiting for a window update, which would take a
/// round trip.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Receive window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Maximum total amount of unread data on the connections of one budget that have large windows.
const WINDOW_BYTES_MAX: usize = 1 << 30;

/// Size of both receive windows of a new connection once [`WINDOW_BYTES_MAX`] is used up. This is the default of
/// HTTP/2.
const SMALL_WINDOW_BYTES: u32 = (1 << 16) - 1;

/// Maximum size of the headers of a request, which may contain a token of a few thousand bytes. A request with larger
/// headers is refused. If the headers exceed twice the limit, the connection is closed.
const HEADER_LIST_BYTES_MAX: usize = 256 << 10;

/// Maximum number of header fields of an HTTP/1 request. A request with more fields is refused. The library reserves
/// 64 bytes for each field while it parses a request.
const HTTP1_FIELDS_MAX: usize = 1024;

/// Maximum number of streams that a client may open and reset before they are processed. The limit is high because a
/// client may cancel many calls at once without being an attacker.
const STREAMS_GIVEN_UP_MAX: u32 = 1024;

/// Minimum amount of data that the client of a closing connection must accept within one timeout. It exceeds the size
/// of a few pings, so that a client that reads only pings counts as stalled.
const TAKEN_BYTES_MIN: u64 = 1024;

/// The connection limits set by flags.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of streams per connection. With `None`, no limit is advertised, as in etcd by default, but
    /// [`STREAMS_HELD_MAX`] applies.
    pub max_concurrent_streams: Option<u32>,
    /// The time limits of a connection.
    pub timeouts: ConnectionTimeouts,
    /// The connection permits. Each connection holds one.
    pub permits: Arc<ConnectionPermits>,
    /// The limit per address; `None` means no limit.
    pub per_address: Option<Arc<AddressLimit>>,
    /// The idle time after which a connection is pinged, and the time within which the client must answer before the
    /// connection is closed. With `None`, no pings are sent.
    pub keepalive: Option<(Duration, Duration)>,
    /// Minimum time between a client's pings while a request is in progress. With `None`, clients may ping as often as
    /// the limit on idle frames permits.
    pub ping_floor: Option<Duration>,
}

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Maximum time until the first byte of the first request.
    pub idle: Duration,
    /// Maximum time between a response and the head of the next HTTP/1 request; `None` means no limit.
    pub between: Option<Duration>,
    /// Maximum time from the first byte of a request until its head is complete.
    pub head: Duration,
}

impl ConnectionTimeouts {
    /// The limits for clients. As in etcd, a client may keep a connection open between requests.
    pub const FOR_CLIENTS: Self =
        Self { idle: Duration::from_secs(300), between: None, head: Duration::from_secs(10) };
}

/// The services of a listener. A protocol whose service is `None` is not served.
#[derive(Clone, Debug)]
pub struct Services<G, H> {
    /// The service for connections with the HTTP/2 preface.
    pub grpc: Option<G>,
    /// The service for all other connections.
    pub http: Option<H>,
}

impl Listener {
    /// Serves until `stop` becomes true. Connections then finish their requests. `alive` is held until the last
    /// connection has ended.
    pub fn spawn<G: Http2Service, H: Http1Service>(
        self,
        runtimes: &Arc<Runtimes>,
        services: Services<G, H>,
        limits: &ConnectionLimits,
        stop: &watch::Receiver<bool>,
        alive: &mpsc::Sender<()>,
    ) {
        let connections = Connections {
            runtimes: Arc::clone(runtimes),
            services,
            limits: limits.clone(),
            stop: stop.clone(),
            alive: alive.clone(),
        };
        let Self { socket, security } = self;
        runtimes.first().spawn(async move {
            if let Err(error) = connections.accept_from(socket, security).await {
                log::error!("listener failed", "error" = error.to_string());
            }
        });
    }
}

/// The data needed to serve connections.
struct Connections<G, H> {
    runtimes: Arc<Runtimes>,
    services: Services<G, H>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
}

impl<G: Http2Service, H: Http1Service> Connections<G, H> {
    async fn accept_from(self, socket: Socket, security: Security) -> io::Result<()> {
        let source = Source::new(socket)?;
        let mut full_logged_at = None;
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = source.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let Ok(arrived) = accepted else {
                // Either the connection was already closed or no descriptors are left. The listener continues in both
                // cases.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let held = match (&self.limits.per_address, arrived.host()) {
                (Some(limit), Some(host)) => match AddressLimit::take(limit, host) {
                    Some(held) => Some(held),
                    None => continue,
                },
                (None, _) | (_, None) => None,
            };
            // The permit is taken after a connection has arrived, so that an idle listener holds no permit.
            let permit = tokio::select! {
                permit = self.take_permit(&mut full_logged_at) => permit,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let (services, limits) = (self.services.clone(), self.limits.clone());
            let (stop, alive) = (self.stop.clone(), self.alive.clone());
            let security = security.clone();
            let (runtime, open) = self.runtimes.deal();
            runtime.spawn(async move {
                // An error on a connection affects only its peer.
                drop(serve_arrived(arrived, security, services, limits, stop).await);
                drop((permit, held, alive, open));
            });
        }
    }
}

impl<G, H> Connections<G, H> {
    /// Waits for a permit for the new connection.
    async fn take_permit(&self, full_logged_at: &mut Option<Instant>) -> OwnedSemaphorePermit {
        if let Some(permit) = self.limits.permits.try_take() {
            return permit;
        }
        if full_logged_at.is_none_or(|logged_at| logged_at.elapsed() >= FULL_LOG_INTERVAL) {
            *full_logged_at = Some(Instant::now());
            let (kind, count) = self.limits.permits.limit();
            log::warn!(
                "the connection limit is reached; new connections wait, and idle ones are asked to close; \
                 use fewer connections, or raise the file descriptor limit if it is low",
                "connections" = kind.name(),
                "limit" = count
            );
        }
        self.limits.permits.take().await
    }
}

/// A service for either HTTP version.
pub trait HttpService:
    Service<
        Request<IncomingBody>,
        Response = Response<Self::ResponseBody>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// The body of the service's responses.
    type ResponseBody: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<
            Request<IncomingBody>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static,
{
    type ResponseBody = B;
}

/// An HTTP/2 service, which reports the activity on its connection.
pub trait Http2Service: HttpService {
    /// Returns the service for a connection with these addresses.
    #[must_use]
    fn for_connection(&self, ends: Ends) -> Self;

    /// Returns the activity on this connection.
    fn activity(&self) -> Activity;

    /// Starts a complete call whose body is this data. Returns `None` if the call takes the ordinary path.
    fn call_whole(
        &self,
        _head: &Arc<Head>,
        _client: Option<&Arc<ClientCertificate>>,
        _data: &[u8],
    ) -> Option<WholeCall<Self::ResponseBody>> {
        None
    }
}

/// A service for plain HTTP requests, over HTTP/1 or HTTP/2. It defines what happens when an HTTP/1 client closes its
/// sending side.
pub trait Http1Service: HttpService {
    /// Whether a client that has closed its sending side still receives its response. Otherwise its connection is
    /// closed.
    const ANSWERS_HALF_CLOSED: bool;

    /// Returns the service for a connection with these addresses.
    #[must_use]
    fn for_connection(&self, _ends: Ends) -> Self {
        self.clone()
    }
}

type Served = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn serve_arrived<G: Http2Service, H: Http1Service>(
    arrived: Arrived,
    security: Security,
    services: Services<G, H>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) -> Served {
    let ends = arrived.ends();
    match (arrived, security) {
        (Arrived::Tcp(stream), Security::Plain) => {
            serve_plain(socket::take_tcp(stream)?, (services, ends), limits, stop).await
        }
        (Arrived::Tcp(stream), Security::Tls(acceptor)) => {
            serve_secured(socket::take_tcp(stream)?, &acceptor, (services, ends), limits, stop)
                .await
        }
        (Arrived::Tcp(stream), Security::Both(acceptor)) => {
            let stream = socket::take_tcp(stream)?;
            if begins_tls(&stream, &limits, &mut stop.clone()).await? {
                serve_secured(stream, &acceptor, (services, ends), limits, stop).await
            } else {
                serve_plain(stream, (services, ends), limits, stop).await
            }
        }
        (Arrived::Unix(stream), security) => {
            let stream = UnixStream::from_std(stream)?;
            let acceptor = match security {
                Security::Plain => None,
                Security::Tls(acceptor) => Some(acceptor),
                Security::Both(acceptor) => {
                    begins_tls(&stream, &limits, &mut stop.clone()).await?.then_some(acceptor)
                }
            };
            match acceptor {
                Some(acceptor) => {
                    serve_secured(stream, &acceptor, (services, ends), limits, stop).await
                }
                None => {
                    let stream: OtherStream = Box::new(stream);
                    serve_plain(stream, (services, ends), limits, stop).await
                }
            }
        }
    }
}

/// Waits for the first byte, and returns whether it starts a TLS handshake.
async fn begins_tls(
    wire: &impl Wire,
    limits: &ConnectionLimits,
    stop: &mut watch::Receiver<bool>,
) -> io::Result<bool> {
    let aborted = || io::Error::from(io::ErrorKind::ConnectionAborted);
    tokio::select! {
        begun = tokio::time::timeout(limits.timeouts.idle, wire.begins_tls()) => begun?,
        _ = stop.wait_for(|stop| *stop) => Err(aborted()),
        _ = limits.permits.close_requested(Activity::default) => Err(aborted()),
    }
}

async fn serve_secured<G: Http2Service, H: Http1Service>(
    wire: impl Wire,
    acceptor: &Acceptor,
    (services, ends): (Services<G, H>, Ends),
    mut limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> Served {
    let from = wire.origin();
    let accepted = tokio::select! {
        accepted = acceptor.accept(wire, from) => accepted,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
        _ = limits.permits.close_requested(Activity::default) => return Ok(()),
    };
    let Some(Accepted { stream, is_http2, client }) = accepted else { return Ok(()) };
    let (grpc, http) = (services.grpc, services.http);
    if grpc.is_some() && http.is_some() {
        // On such a listener, etcd serves gRPC through Go's HTTP server, which has no rules about pings.
        limits.ping_floor = None;
    }
    let http = http.map(|inner| WithConnection { inner, client: client.clone(), is_marked: true });
    let grpc = grpc.map(|inner| WithConnection { inner, client, is_marked: false });
    // A listener for HTTP alone serves HTTP/2 only if it was negotiated. The limits of the peer port apply to each
    // connection, so HTTP/2 would multiply them by the number of streams.
    let mixed = (grpc.is_some() || is_http2).then(|| Mixed {
        grpc,
        http: http.clone(),
        requests: Requests::default(),
        ends,
    });
    let stream: OtherStream = Box::new(stream);
    let services = Services { grpc: mixed, http };
    serve_connection(stream, (services, ends), limits, stop).await
}

async fn serve_plain<S: Stream, G: Http2Service, H: Http1Service>(
    stream: S,
    (services, ends): (Services<G, H>, Ends),
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) -> Served {
    let http = services.http.map(WithConnection::unencrypted);
    serve_connection(stream, (Services { grpc: services.grpc, http }, ends), limits, stop).await
}

async fn serve_connection<S: Stream, G: Http2Service, H: Http1Service>(
    mut stream: S,
    (services, ends): (Services<G, WithConnection<H>>, Ends),
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> Served {
    let (first, is_http2) = tokio::select! {
        sniffed = sniff(&mut stream, limits.timeouts) => sniffed?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
        _ = limits.permits.close_requested(Activity::default) => return Ok(()),
    };
    match (is_http2, services) {
        (true, Services { grpc: Some(shared), .. }) => {
            serve_http2(stream, first, shared.for_connection(ends), limits, stop).await
        }
        (false, Services { http: Some(shared), .. }) => {
            let service = shared.for_connection(ends);
            serve_http1(Box::new(stream), first, (service, ends), limits, stop).await
        }
        (true, Services { grpc: None, .. }) | (false, Services { http: None, .. }) => Ok(()),
    }
}

async fn serve_http2<S: Stream, G: Http2Service>(
    stream: S,
    first: Vec<u8>,
    service: G,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> Served {
    let own = service.clone();
    let window = take_window(&limits.permits);
    let (stream_window, connection_window) = if window.is_some() {
        (STREAM_WINDOW_BYTES, CONNECTION_WINDOW_BYTES)
    } else {
        (SMALL_WINDOW_BYTES, SMALL_WINDOW_BYTES)
    };
    let settings = http2::Settings {
        limits: StreamLimits {
            streams_max: limits.max_concurrent_streams.unwrap_or(STREAMS_HELD_MAX) as usize,
            is_announced: limits.max_concurrent_streams.is_some(),
            header_list_bytes_max: HEADER_LIST_BYTES_MAX,
            stream_window,
            connection_window,
            given_up_max: STREAMS_GIVEN_UP_MAX,
        },
        ping_floor: limits.ping_floor,
        head_timeout: limits.timeouts.head,
        keepalive: limits.keepalive,
    };
    let mut connection = http2::Server::new(stream, first, service, settings);
    let closing = {
        let order = async {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => None,
                closing = limits.permits.close_requested(|| own.activity()) => Some(closing),
            }
        };
        let order = std::pin::pin!(order);
        match (Until { server: &mut connection, order }).await {
            Ended::Itself(served) => return served,
            Ended::Ordered(closing) => closing,
        }
    };
    connection.graceful_shutdown();
    let sent = connection.sent_counter();
    let closing = closing.map(|closing| (closing, limits.timeouts.head));
    let activity =
        || Activity { sent: sent.load(std::sync::atomic::Ordering::Relaxed), ..own.activity() };
    end(connection, closing, activity).await
}

/// Serves an HTTP/1 connection over any stream. The HTTP library is large and HTTP/1 is not the fast path, so the
/// library is compiled once for each service instead of once for each pair of a stream and a service.
async fn serve_http1<H: Http1Service>(
    stream: OtherStream,
    first: Vec<u8>,
    (service, ends): (H, Ends),
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> Served {
    let (io, outlet) = buffered::wrap(stream, first);
    let requests = Requests::default();
    let own = requests.clone();
    let activity =
        || Activity { begun: own.begun(), under_way: own.under_way(), sent: outlet.sent() };
    let ends_with_client = EndsWithClient::default();
    let io = HeadDeadline::new(io, requests.clone(), limits.timeouts.head);
    let io = HangUp::new(io, ends_with_client.clone());
    let takeover = Takeover::default();
    let of_requests = takeover.clone();
    let service = Announcing {
        inner: service,
        ends,
        requests,
        ends_with_client: ends_with_client.clone(),
        takeover: of_requests,
        writer: outlet.writer(),
    };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.timeouts.between)
        .max_headers(HTTP1_FIELDS_MAX)
        .title_case_headers(true)
        .half_close(H::ANSWERS_HALF_CLOSED)
        .serve_connection(TokioIo::new(io), FromLibrary(service));
    let progress = || outlet.progress();
    let sending = Sending { connection: std::pin::Pin::new(&mut connection), outlet: &outlet };
    let closing = tokio::select! {
        done = Unstalled::new(sending, progress, &ends_with_client) => Err(done),
        _ = stop.wait_for(|stop| *stop) => Ok(None),
        closing = limits.permits.close_requested(activity) => Ok(Some(closing)),
    };
    let closing = match closing {
        Ok(closing) => closing,
        Err(done) => {
            done?;
            let Some(session) = takeover.take() else { return Ok(()) };
            let (io, read_ahead) = taken_apart(connection);
            let session = session(TakenOver { io: Box::new(io), read_ahead, stop });
            return Sending { connection: std::pin::pin!(session), outlet: &outlet }.await;
        }
    };
    let mut connection = std::pin::pin!(connection);
    connection.as_mut().graceful_shutdown();
    let ending = Sending { connection, outlet: &outlet };
    let ending = Unstalled::new(ending, progress, &ends_with_client);
    let closing = closing.map(|closing| (closing, limits.timeouts.head));
    end(ending, closing, activity).await
}

/// The wrapped socket of an HTTP/1 connection.
type Watched = TokioIo<HangUp<HeadDeadline<Buffered<OtherStream>>>>;

/// Returns the socket of a connection that leaves HTTP/1, and the data already read from it.
fn taken_apart<H: Http1Service>(
    connection: http1::Connection<Watched, FromLibrary<Announcing<H>>>,
) -> (Buffered<OtherStream>, Bytes) {
    let parts = connection.into_parts();
    let (io, ahead) = parts.io.into_inner().into_parts();
    // This byte was read before the data in the library's buffer.
    let read_ahead = ahead.into_iter().chain(parts.read_buf).collect();
    (io.into_inner(), read_ahead)
}

/// Waits for the end of a connection that was asked to close. The connection is aborted if, for the length of one
/// timeout, its client has no request in progress, starts no request and accepts fewer than [`TAKEN_BYTES_MIN`] bytes.
/// The number of accepted bytes matters because the last part of a response may still be waiting for the client after
/// the request has ended, even over HTTP/2.
///
/// `closing` contains the timeout, and a value that counts the connection as closing. If the connection is still open
/// after one timeout, the value is dropped, so that another connection is asked to close instead.
async fn end<T, C>(
    ending: impl Future<Output = Result<(), T>>,
    closing: Option<(C, Duration)>,
    activity: impl Fn() -> Activity,
) -> Result<(), T> {
    let mut ending = std::pin::pin!(ending);
    let Some((closing, timeout)) = closing else { return ending.await };
    let mut closing = Some(closing);
    let mut last_seen = activity();
    loop {
        if let Ok(ended) = tokio::time::timeout(timeout, ending.as_mut()).await {
            return ended;
        }
        drop(closing.take());
        let seen = activity();
        let is_taking = seen.sent - last_seen.sent >= TAKEN_BYTES_MIN;
        let is_same = seen == Activity { sent: seen.sent, ..last_seen };
        if seen.under_way == 0 && is_same && !is_taking {
            return Ok(());
        }
        last_seen = seen;
    }
}

/// Takes a permit for large receive windows, held for the lifetime of the connection because HTTP/2 cannot shrink a
/// window.
fn take_window(permits: &ConnectionPermits) -> Option<OwnedSemaphorePermit> {
    let window = permits.try_take_window();
    if window.is_none() && permits.is_first_small_window() {
        log::info!(
            "the limit on large receive windows is reached; further connections receive small windows, \
             so large requests on them take more round trips",
            "small-window-bytes" = SMALL_WINDOW_BYTES,
            "connections-with-large-windows" = permits.load().large_windows
        );
    }
    window
}

/// Reads until it is clear whether the peer uses HTTP/2. Returns the data read. The time is limited, because a silent
/// connection holds a permit.
async fn sniff(
    stream: &mut impl Stream,
    timeouts: ConnectionTimeouts,
) -> io::Result<(Vec<u8>, bool)> {
    let mut first = Vec::with_capacity(HTTP2_PREFACE.len());
    let mut deadline = tokio::time::Instant::now() + timeouts.idle;
    loop {
        if first.len() >= HTTP2_PREFACE.len() {
            return Ok((first, true));
        }
        let mut rest = [0; HTTP2_PREFACE.len()];
        let missing = HTTP2_PREFACE.len() - first.len();
        let read = stream.read(&mut rest[..missing]);
        let count = tokio::time::timeout_at(deadline, read).await??;
        if first.is_empty() {
            deadline = tokio::time::Instant::now() + timeouts.head;
        }
        first.extend_from_slice(&rest[..count]);
        if count == 0 || !HTTP2_PREFACE.starts_with(&first) {
            return Ok((first, false));
        }
    }
}

#[cfg(test)]
mod tests;
