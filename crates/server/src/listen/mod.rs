//! Client listeners: accepting connections, telling HTTP/1 from gRPC, serving both on one port.
//!
//! A connection's first bytes decide: the HTTP/2 preface goes to gRPC, by way of `authority`, anything else to
//! the HTTP endpoints. Accepted connections are dealt among the connection runtimes.
//!
//! # Bound
//!
//! At most (file descriptor limit - 150) connections per listener; more wait in the kernel's queue.

mod authority;
pub(crate) mod buffered;
mod field_section;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use self::authority::AnyAuthority;
use self::buffered::Sending;
use crate::log;
use crate::runtime::Runtimes;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Descriptors kept back from client connections.
const DESCRIPTORS_RESERVED: u64 = 150;

const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Receive windows. Large enough that a maximal request is not held up by round trips.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// What a stream may have encoded ahead of a client that does not read: a few chunks of a large reply.
const STREAM_SEND_BYTES_MAX: usize = 256 << 10;

/// What the field lines of one request may come to. Tokens take a few thousand bytes; a library's default
/// would cut the connection of a client that sends 64 kB.
const HEADER_LIST_BYTES_MAX: u32 = 256 << 10;

/// Streams that a client may open and give up before they were looked at. Many calls that are cancelled
/// together are no attack.
const STREAMS_GIVEN_UP_MAX: usize = 1024;

/// What the flags say about connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    /// `None` sends no limit, as etcd does by default.
    pub(crate) max_concurrent_streams: Option<u32>,
    /// Ping an idle connection after `.0`, close it when no answer came within `.1`.
    pub(crate) keepalive: Option<(Duration, Duration)>,
}

/// What a listener serves. `None` answers nothing on that protocol.
#[derive(Clone, Debug)]
pub(crate) struct Services<G, H> {
    pub(crate) grpc: Option<G>,
    pub(crate) http: Option<H>,
}

/// A bound listener.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr, reuse: Reuse) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        // As Go does for every listener: a restart must not wait for old connections to fade.
        socket.set_reuse_address(true)?;
        if reuse.port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        let socket = std::net::TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Gives connections up whose other end takes nothing of what was sent for so long.
    pub(crate) fn give_up_after(&self, patience: Duration) -> io::Result<()> {
        // Accepted connections have it from the listening socket.
        socket2::SockRef::from(&self.socket).set_tcp_user_timeout(Some(patience))
    }

    /// The bound address, with the port the system chose if none was asked for.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves from now on, until `stop` says so. Connections then finish what they are doing; `alive` is
    /// held until the last of them is gone.
    pub(crate) fn spawn<G: HttpService, H: HttpService>(
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
        let socket = self.socket;
        runtimes.first().spawn(async move {
            if let Err(error) = connections.accept_from(socket).await {
                log::error!("listener failed", "error" = error.to_string());
            }
        });
    }
}

/// What accepted connections are served with.
struct Connections<G, H> {
    runtimes: Arc<Runtimes>,
    services: Services<G, H>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
}

impl<G: HttpService, H: HttpService> Connections<G, H> {
    async fn accept_from(mut self, socket: std::net::TcpListener) -> io::Result<()> {
        let listener = TcpListener::from_std(socket)?;
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let count_max =
            descriptors.map_or(1 << 20, |limit| limit.saturating_sub(DESCRIPTORS_RESERVED));
        let count_max =
            usize::try_from(count_max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(count_max));
        loop {
            let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = self.stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let Ok(stream) = accepted.and_then(|(stream, _)| stream.into_std()) else {
                // The connection was gone already, or descriptors are short: neither ends the listener.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let (services, limits) = (self.services.clone(), self.limits.clone());
            let (stop, alive) = (self.stop.clone(), self.alive.clone());
            self.runtimes.deal().spawn(async move {
                // A broken connection is the peer's affair.
                drop(serve_connection(stream, services, limits, stop).await);
                drop((permit, alive));
            });
        }
    }
}

/// Which sharing of addresses the flags ask for, beyond what is always set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reuse {
    pub(crate) port: bool,
}

/// A service that both protocols can carry.
pub(crate) trait HttpService:
    Service<
        Request<Incoming>,
        Response = Response<Self::ResponseBody>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
    type ResponseBody: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type ResponseBody = B;
}

async fn serve_connection<G: HttpService, H: HttpService>(
    stream: std::net::TcpStream,
    services: Services<G, H>,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream)
        .set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(Duration::from_secs(30)))?;
    let (first, is_http2) = tokio::select! {
        // Whoever says nothing takes the place of somebody who would.
        sniffed = tokio::time::timeout(HEADER_READ_TIMEOUT, sniff(&mut stream)) => sniffed??,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let (io, outlet) = buffered::wrap(stream, first);
    if is_http2 {
        let Some(service) = services.grpc else { return Ok(()) };
        let io = TokioIo::new(AnyAuthority::new(io, HTTP2_PREFACE.len()));
        let connection = http2_builder(&limits).serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            done = (Sending { connection: connection.as_mut(), outlet: &outlet }) => return done,
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        Sending { connection, outlet: &outlet }.await
    } else {
        let Some(service) = services.http else { return Ok(()) };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .title_case_headers(true)
            .serve_connection(TokioIo::new(io), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            done = (Sending { connection: connection.as_mut(), outlet: &outlet }) => return done,
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        Sending { connection, outlet: &outlet }.await
    }
}

fn http2_builder(limits: &ConnectionLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        // As grpc-go: the date is of HTTP, not of gRPC.
        .auto_date_header(false)
        .max_concurrent_streams(limits.max_concurrent_streams)
        .max_pending_accept_reset_streams(STREAMS_GIVEN_UP_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buf_size(STREAM_SEND_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    if let Some((interval, timeout)) = limits.keepalive {
        builder.keep_alive_interval(interval).keep_alive_timeout(timeout);
    }
    builder
}

/// Reads until it is clear whether the peer speaks HTTP/2. Returns what was read.
async fn sniff(stream: &mut TcpStream) -> io::Result<(Vec<u8>, bool)> {
    let mut first = Vec::with_capacity(HTTP2_PREFACE.len());
    loop {
        if first.len() >= HTTP2_PREFACE.len() {
            return Ok((first, true));
        }
        let mut rest = [0; HTTP2_PREFACE.len()];
        let missing = HTTP2_PREFACE.len() - first.len();
        let count = stream.read(&mut rest[..missing]).await?;
        first.extend_from_slice(&rest[..count]);
        if count == 0 || !HTTP2_PREFACE.starts_with(&first) {
            return Ok((first, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_connections_have_the_listeners_patience() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap();
        let patience = Duration::from_millis(1234);
        listener.give_up_after(patience).unwrap();
        listener.socket.set_nonblocking(false).unwrap();
        let _dialed = std::net::TcpStream::connect(listener.address()).unwrap();
        let (accepted, _) = listener.socket.accept().unwrap();
        let found = socket2::SockRef::from(&accepted).tcp_user_timeout().unwrap();
        assert_eq!(found, Some(patience));
    }
}
