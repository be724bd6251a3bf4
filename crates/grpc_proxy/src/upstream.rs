//! The way to the members: one connection to each, and who gets the next call.
//!
//! Each endpoint has a task that keeps a connection to it, as long as the endpoint is wanted. Calls go to those that are
//! connected, in turn. A call that finds nobody waits until everybody has been dialed once more, and then fails as
//! grpc-go has it.
//!
//! # Guarantees
//!
//! * A request that may have reached a member is not sent again, unless it only reads.
//!
//! # Bound
//!
//! What members have sent and clients have not taken: [`STREAM_WINDOW_BYTES`] of a call, [`CONNECTION_WINDOW_BYTES`] of a
//! member.
//!
//! # Not here
//!
//! What is asked (`relay`, `kv`, `watch`, `lease`).

use std::collections::BTreeMap;
use std::error::Error as _;
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
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::framing;
use crate::target::{Target, TargetError, Targets};

/// Between two dials to an endpoint that cannot be reached: the first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// How long a dial may take, handshakes included.
const DIAL_TIME_MAX: Duration = Duration::from_secs(5);

/// What a member may send ahead on one call, and on all of a connection: so many calls whose clients take nothing leave
/// room for the others.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 20;

/// How connections are looked after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Without a sign of the member, until it is asked for one; zero for never.
    pub(crate) time: Duration,
    /// Until that is answered.
    pub(crate) timeout: Duration,
    /// Also while nothing is under way.
    pub(crate) without_calls: bool,
}

/// Largest messages to members and from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) send_bytes: usize,
    pub(crate) receive_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Upstream {
    targets: Targets,
    keep_alive: KeepAlive,
    pub(crate) limits: Limits,
    links: RwLock<Vec<Arc<Link>>>,
    turn: AtomicUsize,
    /// Changes whenever a link does.
    changes: watch::Sender<u64>,
    /// Where connections live.
    runtime: Handle,
}

/// An endpoint and its connection.
#[derive(Debug)]
struct Link {
    target: Target,
    state: Mutex<LinkState>,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug, Default)]
struct LinkState {
    connection: Option<SendRequest<Body>>,
    /// Dials that failed so far, and why the last one did.
    failures: u64,
    reason: String,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

/// A request that members are sent: where to, with what, and one message.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) message: Bytes,
    /// Whether it may be asked again of another where an answer fails to come.
    pub(crate) only_reads: bool,
}

impl Upstream {
    /// Begins to dial these endpoints.
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

    /// Replaces the endpoints; connections to those that stay stay.
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
            let link = Arc::new(Link { target, state: Mutex::default(), task: Mutex::default() });
            let (keeping, changes) = (Arc::downgrade(&link), self.changes.clone());
            let keep_alive = self.keep_alive;
            let task = self.runtime.spawn(async move {
                let mut pause = PAUSE;
                while let Some(connector) =
                    keeping.upgrade().map(|link| link.target.connector.clone())
                {
                    let dialed = dial(&connector, keep_alive).await;
                    let Some(link) = keeping.upgrade() else { return };
                    let connection = link.dialed(dialed, &mut pause);
                    drop(link);
                    changes.send_modify(|count| *count = count.wrapping_add(1));
                    match connection {
                        // How it ended is seen by the calls on it.
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

    /// The endpoints as they were given.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.links.read().iter().map(|link| link.target.text.clone()).collect()
    }

    /// Any endpoint, for who speaks HTTP/1 with it.
    pub(crate) fn any_target(&self) -> Option<Target> {
        let links = self.links.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        links.get(turn % links.len().max(1)).map(|link| link.target.clone())
    }

    /// How many members there are to ask.
    pub(crate) fn count(&self) -> usize {
        self.links.read().len()
    }

    /// The next connection.
    fn choose(&self) -> Option<(SendRequest<Body>, Uri)> {
        let links = self.links.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..links.len()).find_map(|step| {
            let link = &links[(turn.wrapping_add(step)) % links.len()];
            let connection = link.state.lock().connection.clone()?;
            (!connection.is_closed()).then(|| (connection, link.target.uri.clone()))
        })
    }

    /// Waits for a connection, until each endpoint has been dialed in vain.
    async fn connection(&self) -> Result<(SendRequest<Body>, Uri), Status> {
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
                return Err(self.nobody());
            }
            if changes.changed().await.is_err() {
                return Err(self.nobody());
            }
        }
    }

    fn nobody(&self) -> Status {
        let links = self.links.read();
        let reason =
            links.iter().map(|link| link.state.lock().reason.clone()).find(|it| !it.is_empty());
        Status::unavailable(reason.unwrap_or_else(|| "no endpoints available".to_owned()))
    }

    /// Asks a member; the answer is what it is, its body still to come.
    pub(crate) async fn ask(&self, asked: &Asked) -> Result<Response<Incoming>, Status> {
        let limit = self.limits.send_bytes;
        let length = asked.message.len();
        if length > limit {
            let text = format!("trying to send message larger than max ({length} vs. {limit})");
            return Err(Status::resource_exhausted(text));
        }
        let mut attempts_left = self.count();
        loop {
            let body = framing::whole(asked.message.clone());
            let failed = match self.send(asked.path, &asked.headers, body).await {
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

    /// Sends a request whose body is a stream of its own.
    pub(crate) async fn open(
        &self,
        path: &'static str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response<Incoming>, Status> {
        self.send(path, headers, body).await.map_err(|failed| failed.status)
    }

    async fn send(
        &self,
        path: &'static str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response<Incoming>, Failed> {
        let found = self.connection().await;
        let (mut connection, base) =
            found.map_err(|status| Failed { status, may_have_arrived: false })?;
        let mut request = Request::new(body);
        *request.uri_mut() = framing::at(&base, path);
        *request.method_mut() = http::Method::POST;
        request.headers_mut().clone_from(headers);
        let own = request.headers_mut();
        own.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        own.insert(http::header::TE, HeaderValue::from_static("trailers"));
        own.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        connection.try_send_request(request).await.map_err(|mut error| {
            let may_have_arrived = error.take_message().is_none();
            Failed { status: broken(&error.into_error()), may_have_arrived }
        })
    }
}

const USER_AGENT: &str = concat!("quorate-grpc-proxy/", env!("CARGO_PKG_VERSION"));

/// A request without an answer.
struct Failed {
    status: Status,
    may_have_arrived: bool,
}

impl Link {
    /// Takes note of how a dial went; the connection is to be driven.
    fn dialed(&self, dialed: Result<Dialed, String>, pause: &mut Duration) -> Option<Driven> {
        let mut state = self.state.lock();
        match dialed {
            Ok((sender, driven)) => {
                if state.failures > 0 {
                    log::info!("connected to an endpoint again", "endpoint" = self.target.text);
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

type Driven = hyper::client::conn::http2::Connection<
    TokioIo<quorate_tls::ChannelStream>,
    Body,
    TokioExecutor,
>;
type Dialed = (SendRequest<Body>, Driven);

async fn dial(connector: &ChannelConnector, keep_alive: KeepAlive) -> Result<Dialed, String> {
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

/// What a failure of the transport is told as.
pub(crate) fn broken(error: &hyper::Error) -> Status {
    Status::unavailable(format!("error reading from server: {}", innermost(error)))
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Tells a status that was made here, of an error of the transport, as grpc-go tells it.
pub(crate) fn told(status: Status) -> Status {
    match (status.source(), status.code()) {
        (Some(error), Code::Unknown | Code::Cancelled | Code::Internal) => {
            Status::unavailable(format!("error reading from server: {}", innermost(error)))
        }
        // Whatever the kind of call, grpc-go reads answers as it reads streams.
        _ => in_grpc_gos_words(status, Kind::ServerStream),
    }
}
