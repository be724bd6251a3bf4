//! Maintains one connection to each endpoint and chooses a member for each call.
//!
//! Each configured endpoint has a task that keeps it connected. Calls are distributed over the connected members in
//! turn. If no member is connected, a call waits until every endpoint has been dialed again, and then fails with
//! grpc-go's status.
//!
//! # Guarantees
//!
//! * A request that may have reached a member is sent again only if it is read-only.
//!
//! # Bound
//!
//! Data sent by members and not yet read by clients is limited to [`STREAM_WINDOW_BYTES`] per call and
//! [`CONNECTION_WINDOW_BYTES`] per member. `unread` ensures that unread responses do not use up the latter.
//!
//! # Not here
//!
//! The content of requests (`relay`, `kv`, `watch`, `lease`).

use std::collections::BTreeMap;
use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::{Mutex, RwLock};
use quorate_gotext::quote::go_dial_reason;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_telemetry::log;
use quorate_tls::ChannelConnector;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::framing::{self, innermost, transport_error};
use crate::target::{Target, TargetError, Targets};
use crate::unread::{CONNECTION_WINDOW_BYTES, MemberBody, STREAM_WINDOW_BYTES, UnreadResponses};

/// Initial pause between two dials of an unreachable endpoint. The pause grows up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Maximum duration of a dial, including handshakes.
const DIAL_TIME_MAX: Duration = Duration::from_secs(5);

/// Keep-alive settings for connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Time without data from the member after which it is pinged; zero disables pings.
    pub(crate) time: Duration,
    /// Maximum wait for the response to a ping.
    pub(crate) timeout: Duration,
    /// Whether to send pings even if no call is in flight.
    pub(crate) without_calls: bool,
}

/// Maximum sizes of messages to and from members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) send_bytes: usize,
    pub(crate) receive_bytes: usize,
}

/// The connections to all members.
#[derive(Debug)]
pub(crate) struct Upstream {
    targets: Targets,
    keep_alive: KeepAlive,
    pub(crate) limits: Limits,
    links: RwLock<Vec<Arc<Link>>>,
    turn: AtomicUsize,
    /// Changes after each dial.
    changes: watch::Sender<u64>,
    /// The runtime that drives the connections.
    runtime: Handle,
}

/// An endpoint and its connection.
#[derive(Debug)]
struct Link {
    target: Target,
    state: Mutex<LinkState>,
    unread: Arc<UnreadResponses>,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug, Default)]
struct LinkState {
    connection: Option<SendRequest<Body>>,
    /// Number of failed dials since the last successful dial.
    failures: u64,
    /// Error of the last failed dial.
    reason: String,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

/// A request to a member: the method, the headers and one message.
#[derive(Clone, Debug)]
pub(crate) struct MemberRequest {
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) message: Bytes,
    /// Whether the request may be sent to another member if no response arrives.
    pub(crate) only_reads: bool,
    /// Whether the response is a single message.
    pub(crate) is_unary: bool,
}

impl Upstream {
    /// Starts dialing these endpoints.
    pub(crate) fn new(
        endpoints: &[String],
        targets: Targets,
        keep_alive: KeepAlive,
        limits: Limits,
        runtime: Handle,
    ) -> Result<Arc<Self>, TargetError> {
        let upstream = Arc::new(Self {
            targets,
            keep_alive,
            limits,
            links: RwLock::default(),
            turn: AtomicUsize::new(0),
            changes: watch::Sender::new(0),
            runtime,
        });
        upstream.set_endpoints(endpoints)?;
        Ok(upstream)
    }

    /// Replaces the endpoints. Connections to remaining endpoints are kept.
    pub(crate) fn set_endpoints(self: &Arc<Self>, endpoints: &[String]) -> Result<(), TargetError> {
        let mut old: BTreeMap<String, Arc<Link>> = {
            let links = self.links.read();
            links.iter().map(|link| (link.target.text.clone(), Arc::clone(link))).collect()
        };
        let links = endpoints.iter().map(|text| {
            if let Some(link) = old.remove(text) {
                return Ok(link);
            }
            let target = self.targets.target(text)?;
            let (state, task, unread) =
                (Mutex::default(), Mutex::default(), UnreadResponses::new());
            let link = Arc::new(Link { target, state, unread, task });
            let (keeping, changes) = (Arc::downgrade(&link), self.changes.clone());
            let keep_alive = self.keep_alive;
            let task = self.runtime.spawn(async move {
                let mut pause = PAUSE;
                while let Some(connector) =
                    keeping.upgrade().map(|link| link.target.connector.clone())
                {
                    let dialed = dial(&connector, keep_alive).await;
                    let Some(link) = keeping.upgrade() else { return };
                    let connection = link.record_dial(dialed, &mut pause);
                    drop(link);
                    changes.send_modify(|count| *count = count.wrapping_add(1));
                    match connection {
                        // The result of the connection is ignored, because each call on the connection reports the
                        // error.
                        Some(connection) => drop(connection.await),
                        None => sleep(pause).await,
                    }
                    if let Some(link) = keeping.upgrade() {
                        link.state.lock().connection = None;
                    }
                }
            });
            *link.task.lock() = Some(task.abort_handle());
            Ok(link)
        });
        let links = links.collect::<Result<Vec<_>, TargetError>>()?;
        *self.links.write() = links;
        Ok(())
    }

    /// Returns the endpoints as configured.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.links.read().iter().map(|link| link.target.text.clone()).collect()
    }

    /// Returns any endpoint, for HTTP/1 requests.
    pub(crate) fn any_target(&self) -> Option<Target> {
        let links = self.links.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        links.get(turn % links.len().max(1)).map(|link| link.target.clone())
    }

    /// Returns the number of endpoints.
    pub(crate) fn count(&self) -> usize {
        self.links.read().len()
    }

    /// Chooses the next connected member.
    fn choose(&self) -> Option<Chosen> {
        let links = self.links.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..links.len()).find_map(|step| {
            let link = &links[(turn.wrapping_add(step)) % links.len()];
            let connection = link.state.lock().connection.clone()?;
            let (base, unread) = (link.target.uri.clone(), Arc::clone(&link.unread));
            (!connection.is_closed()).then_some(Chosen { connection, base, unread })
        })
    }

    /// Waits for a connection until every endpoint has been dialed without success.
    async fn connection(&self) -> Result<Chosen, Status> {
        let failures = || -> BTreeMap<String, u64> {
            let links = self.links.read();
            links
                .iter()
                .map(|link| (link.target.text.clone(), link.state.lock().failures))
                .collect()
        };
        if let Some(found) = self.choose() {
            return Ok(found);
        }
        let mut changes = self.changes.subscribe();
        let before = failures();
        loop {
            if let Some(found) = self.choose() {
                return Ok(found);
            }
            let now = failures();
            if now.iter().all(|(text, count)| before.get(text).is_none_or(|before| count > before))
            {
                return Err(self.no_endpoint());
            }
            if changes.changed().await.is_err() {
                return Err(self.no_endpoint());
            }
        }
    }

    fn no_endpoint(&self) -> Status {
        let links = self.links.read();
        let reason =
            links.iter().map(|link| link.state.lock().reason.clone()).find(|it| !it.is_empty());
        Status::unavailable(reason.unwrap_or_else(|| "no endpoints available".to_owned()))
    }

    /// Sends a request to a member. Returns the response as soon as its headers, and the part of it that is buffered,
    /// have arrived.
    pub(crate) async fn ask(&self, asked: &MemberRequest) -> Result<Response<MemberBody>, Status> {
        let limit = self.limits.send_bytes;
        let length = asked.message.len();
        if length > limit {
            let text = format!("trying to send message larger than max ({length} vs. {limit})");
            return Err(Status::resource_exhausted(text));
        }
        let mut attempts_left = self.count();
        loop {
            let body = framing::whole(asked.message.clone());
            let failed = match self.send(asked, body).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            attempts_left = attempts_left.saturating_sub(1);
            let may_repeat = asked.only_reads || !failed.may_have_arrived;
            if !may_repeat || attempts_left == 0 {
                return Err(failed.status);
            }
        }
    }

    async fn send(
        &self,
        asked: &MemberRequest,
        body: Body,
    ) -> Result<Response<MemberBody>, Failed> {
        let chosen = self.connection().await;
        let chosen = chosen.map_err(|status| Failed { status, may_have_arrived: false })?;
        let (unread, is_unary) = (Arc::clone(&chosen.unread), asked.is_unary);
        let sending = chosen.send(asked.path, &asked.headers, body);
        // The response is received by a task, because a call is not polled while its client does not read from its
        // connection.
        let mut task = AbortOnDrop(tokio::spawn(async move {
            let answer = sending.await?;
            Ok(unread.receive(answer, is_unary).await)
        }));
        (&mut task.0).await.unwrap_or_else(|error| {
            let status = Status::internal(format!("grpc: the call was aborted: {error}"));
            Err(Failed { status, may_have_arrived: true })
        })
    }

    /// Sends a request with a streaming body. The caller must read the response without waiting for clients.
    pub(crate) async fn open(
        &self,
        path: &'static str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response<Incoming>, Status> {
        let chosen = self.connection().await?;
        chosen.send(path, headers, body).await.map_err(|failed| failed.status)
    }
}

/// A task that is aborted when its result is no longer needed.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connection to the member that was chosen for a call.
struct Chosen {
    connection: SendRequest<Body>,
    base: Uri,
    unread: Arc<UnreadResponses>,
}

impl Chosen {
    fn send(
        mut self,
        path: &'static str,
        headers: &HeaderMap,
        body: Body,
    ) -> impl Future<Output = Result<Response<Incoming>, Failed>> + use<> {
        let mut request = Request::new(body);
        *request.uri_mut() = framing::at(&self.base, path);
        *request.method_mut() = http::Method::POST;
        request.headers_mut().clone_from(headers);
        let own = request.headers_mut();
        own.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        own.insert(http::header::TE, HeaderValue::from_static("trailers"));
        own.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        async move {
            self.connection.try_send_request(request).await.map_err(|mut error| {
                let may_have_arrived = error.take_message().is_none();
                Failed { status: transport_error(&error.into_error()), may_have_arrived }
            })
        }
    }
}

const USER_AGENT: &str = concat!("quorate-grpc-proxy/", env!("CARGO_PKG_VERSION"));

/// A request that failed before a response arrived.
struct Failed {
    status: Status,
    may_have_arrived: bool,
}

impl Link {
    /// Records the result of a dial. The caller must poll the returned connection, because nothing else drives it.
    fn record_dial(
        &self,
        dialed: Result<DialedConnection, String>,
        pause: &mut Duration,
    ) -> Option<Http2Connection> {
        let mut state = self.state.lock();
        match dialed {
            Ok((sender, driven)) => {
                if state.failures > 0 {
                    log::info!("reconnected to an endpoint", "endpoint" = self.target.text);
                }
                *state = LinkState { connection: Some(sender), failures: 0, reason: String::new() };
                *pause = PAUSE;
                Some(driven)
            }
            Err(reason) => {
                if state.failures == 0 {
                    log::warn!(
                        "failed to connect to an endpoint",
                        "endpoint" = self.target.text,
                        "error" = reason
                    );
                }
                state.failures += 1;
                state.reason = format!("connection error: desc = \"transport: {reason}\"");
                *pause = (*pause * 2).min(PAUSE_MAX);
                None
            }
        }
    }
}

type Http2Connection = hyper::client::conn::http2::Connection<
    TokioIo<quorate_tls::ChannelStream>,
    Body,
    TokioExecutor,
>;
type DialedConnection = (SendRequest<Body>, Http2Connection);

async fn dial(
    connector: &ChannelConnector,
    keep_alive: KeepAlive,
) -> Result<DialedConnection, String> {
    let dialing = async {
        let stream = connector.connect().await.map_err(|error| {
            let place = format!("tcp {}", Target::shown(connector.place()));
            format!("Error while dialing: {}", go_dial_reason(place, &error))
        })?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        if !keep_alive.time.is_zero() {
            builder
                .keep_alive_interval(keep_alive.time)
                .keep_alive_timeout(keep_alive.timeout)
                .keep_alive_while_idle(keep_alive.without_calls);
        }
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| innermost(&error))
    };
    match tokio::time::timeout(DIAL_TIME_MAX, dialing).await {
        Ok(dialed) => dialed,
        Err(_) => Err(format!(
            "Error while dialing: dial tcp {}: i/o timeout",
            Target::shown(connector.place())
        )),
    }
}

/// Replaces the gRPC library's status for a transport error with grpc-go's status.
pub(crate) fn receive_error(status: Status) -> Status {
    match (status.source(), status.code()) {
        (Some(error), Code::Unknown | Code::Cancelled | Code::Internal) => {
            Status::unavailable(format!("error reading from server: {}", innermost(error)))
        }
        // grpc-go reads the responses to all kinds of calls as streams, so its error texts for streams are used for all
        // calls.
        _ => in_grpc_gos_words(status, Kind::ServerStream),
    }
}
