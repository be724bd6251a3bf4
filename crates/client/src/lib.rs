//! The client of the command-line tools. It chooses an endpoint, applies timeouts, and reports errors with the same
//! texts as etcd's tools.
//!
//! A call tries the endpoints in order until a server sends its first frame (HTTP/2's SETTINGS) or the timeout expires.
//! A slow endpoint delays the next one only briefly. A call without a timeout tries each endpoint once, but waits
//! indefinitely for the client's first connection, unless [`Client::failing_fast`] is set. The request is not sent
//! before the server's first frame arrives, so if the connection fails earlier, any request can be retried. A request
//! that has been sent is sent again if its token was refused (`login`), or if the call is [`Repeat::Safe`] and has a
//! timeout or a [`Client::repeating`]. After a failure, the next endpoint is tried first and the failed endpoint last.
//!
//! # Not here
//!
//! Flags (`ctl::security`, `ctl::credentials`), and TLS itself (`tls`). The module `login` keeps tokens, `listed` decides
//! which URLs of the member list may receive them, `cause` formats connection errors, `warning` logs them, and `events`
//! contains watches that survive the loss of a connection.

mod cause;
pub mod credentials;
pub mod events;
pub mod failure;
pub mod key_range;
pub mod listed;
mod login;
pub mod transport;
mod warning;

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use quorate_api::etcdserverpb::auth_client::AuthClient;
use quorate_api::etcdserverpb::cluster_client::ClusterClient;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_api::etcdserverpb::lease_client::LeaseClient;
use quorate_api::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_api::etcdserverpb::watch_client::WatchClient;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_tls::{ChannelConnector, Place, authority_of_file, first_success, split_scheme};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::codegen::http::uri::InvalidUri;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status, TimeoutExpired};

use crate::credentials::{Credentials, Token};
use crate::failure::{Failure, exit, status_text};
use crate::transport::Transport;
use cause::broken;
pub use warning::Warning;

const SEND_BYTES_MAX: usize = 2 << 20;
const RECEIVE_BYTES_MAX: usize = i32::MAX as usize;
/// The minimum interval between pings. Servers close connections that ping more often than every five seconds. The
/// tools' default interval is shorter, so it is raised to this minimum, as in etcd's client library.
const KEEPALIVE_MIN: Duration = Duration::from_secs(10);
/// The prefix of the error for a broken connection.
const BROKEN: &str = "error reading from server: ";
const NO_ENDPOINTS: &str = "etcdclient: no available endpoints";
/// The maximum number of attempts at a call without a timeout. With the pauses, they take two and a half seconds, as
/// long as the 100 attempts of etcd's client.
const ATTEMPTS_MAX: u64 = 25;
/// The delay before all endpoints are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The time limit for connecting, until the server's first frame arrives; zero for no limit.
    pub dial_timeout: Duration,
    /// The idle time before a ping is sent; zero disables pings.
    pub keepalive_time: Duration,
    /// The time limit for the response to a ping.
    pub keepalive_timeout: Duration,
}

/// The maximum message sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    send_bytes: usize,
    receive_bytes: usize,
}

impl Limits {
    /// Creates limits from sizes in bytes. Zero means the default.
    pub fn new(send_bytes: usize, receive_bytes: usize) -> Result<Self, Failure> {
        if receive_bytes > 0 && receive_bytes < send_bytes {
            let text = format!(
                "gRPC message recv limit ({receive_bytes} bytes) must be greater than send limit ({send_bytes} bytes)"
            );
            return Err(Failure::new(exit::BAD_CONNECTION, text));
        }
        let or = |given, default| if given == 0 { default } else { given };
        Ok(Self {
            send_bytes: or(send_bytes, SEND_BYTES_MAX),
            receive_bytes: or(receive_bytes, RECEIVE_BYTES_MAX),
        })
    }

    /// Refuses a request that is too large, with the error text of grpc-go.
    pub fn check_request(&self, len: usize) -> Result<(), Status> {
        let limit = self.send_bytes;
        if len <= limit {
            return Ok(());
        }
        let text = format!("trying to send message larger than max ({len} vs. {limit})");
        Err(Status::resource_exhausted(text))
    }
}

/// Whether a call may be repeated after a connection failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The call may be repeated, because it is read-only or because a second execution does no harm: it fails, has no
    /// effect, or grants a lease that expires. The calls are those that etcd's client repeats.
    Safe,
    /// The call may have taken effect and must not be repeated.
    Never,
}

/// A client for a single cluster.
#[expect(missing_debug_implementations, reason = "an active client has no useful debug output")]
pub struct Client {
    targets: Rc<[Target]>,
    limits: Limits,
    state: Rc<RefCell<State>>,
    credentials: Rc<Credentials>,
    /// The user's token.
    token: RefCell<Option<Token>>,
    /// The time limit for connecting, which is also the time limit for a login.
    dial_timeout: Option<Duration>,
    /// Whether a call without a timeout waits for the first connection.
    awaits_server: bool,
    /// The maximum number of attempts at a repeatable call without a timeout.
    attempts_max: u64,
    logger: Logger,
}

/// A function that receives a message and its fields.
pub type Debug = Rc<dyn Fn(&str, &[(&str, String)])>;

/// Receives the log output of a client.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "closures have no useful debug output")]
pub struct Logger {
    /// Receives debug messages.
    pub debug: Debug,
    /// Receives the causes of failed calls.
    pub warn: Rc<dyn Fn(&Warning)>,
}

/// The default logger discards all output.
impl Default for Logger {
    fn default() -> Self {
        Self { debug: Rc::new(|_, _| {}), warn: Rc::new(|_| {}) }
    }
}

/// The state of the connections.
#[derive(Debug, Default)]
struct State {
    current: Option<Connection>,
    /// The number of connections opened so far.
    count: u64,
    /// The index of the endpoint to try first.
    first: usize,
    /// The number of the connection that last returned a response.
    answered: u64,
    /// The last connection error since the last response.
    trouble: Option<String>,
}

/// One attempt to make a call. A successful attempt stores its reply.
type Attempt<'a> = Pin<Box<dyn Future<Output = Result<(), Status>> + 'a>>;

/// A connection to one of the endpoints.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The channel for calls.
    pub channel: Channel,
    /// The number that distinguishes this connection from the client's other connections.
    number: u64,
}

#[derive(Debug)]
struct Target {
    /// The endpoint as given by the user.
    text: String,
    endpoint: Endpoint,
    connector: ChannelConnector,
    /// The error text if the address is invalid.
    fault: Option<String>,
    dial_timeout: Option<Duration>,
}

/// The reason why there is no connection.
#[derive(Debug)]
enum Unconnected {
    /// The connection failed. The text is worded as in Go's libraries.
    Failed(String),
    /// The server accepted the connection but did not send its first frame.
    Silent,
}

impl Client {
    /// Creates a client, which does not connect before its first call or login.
    pub fn new(
        endpoints: Vec<String>,
        transport: &Transport,
        credentials: Rc<Credentials>,
        timeouts: Timeouts,
        limits: Limits,
        logger: Logger,
    ) -> Result<Self, Failure> {
        if let [] | [""] = endpoints.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            return Err(Failure::new(exit::BAD_CONNECTION, NO_ENDPOINTS));
        }
        // Invalid TLS files are an error even if no endpoint uses TLS.
        let asked_for = transport.is_asked_for().then(|| transport.connector()).transpose()?;
        let dial_timeout = Some(timeouts.dial_timeout).filter(|timeout| !timeout.is_zero());
        let targets = endpoints.into_iter().map(|text| {
            let Address { place, is_secured } = Address::of(&text, transport)?;
            let tls = match &asked_for {
                _ if !is_secured => None,
                Some(connector) => Some(connector.clone()),
                None => Some(transport.connector()?),
            };
            let fault = match &place {
                Place::Host(authority) => cause::fault_of(authority),
                Place::File(_) => None,
            };
            let scheme = if is_secured { "https" } else { "http" };
            let authority = match &place {
                // The address is invalid, so calls never use this placeholder.
                _ if fault.is_some() => "localhost",
                Place::Host(authority) => authority,
                Place::File(path) => authority_of_file(path),
            };
            let bad_endpoint =
                |error: InvalidUri| Failure::bad_args(format!("bad endpoint {text}: {error}"));
            let origin: Uri = format!("{scheme}://{authority}").parse().map_err(bad_endpoint)?;
            // The connector handles TLS. With "https" here, tonic would refuse to connect in builds that include
            // tonic's own TLS, which any crate of the workspace can enable.
            let target: Uri = format!("http://{authority}").parse().map_err(bad_endpoint)?;
            let connector = ChannelConnector::new(place, tls);
            let mut endpoint = Endpoint::from(target)
                .origin(origin)
                .user_agent(concat!("quorate-ctl/", env!("CARGO_PKG_VERSION")))
                .map_err(|error| Failure::bad_args(error.to_string()))?
                .tcp_nodelay(true);
            if !timeouts.keepalive_time.is_zero() {
                endpoint = endpoint
                    .http2_keep_alive_interval(timeouts.keepalive_time.max(KEEPALIVE_MIN))
                    .keep_alive_timeout(timeouts.keepalive_timeout);
            }
            Ok(Target { text, endpoint, connector, fault, dial_timeout })
        });
        let targets = targets.collect::<Result<Rc<[_]>, Failure>>()?;
        let token = match &*credentials {
            Credentials::Token(token) => Some(token.clone()),
            Credentials::None | Credentials::Login { .. } => None,
        };
        Ok(Self {
            targets,
            limits,
            state: Rc::default(),
            credentials,
            token: RefCell::new(token),
            dial_timeout,
            awaits_server: true,
            attempts_max: 1,
            logger,
        })
    }

    /// Returns a client for another user. The two clients share their connections, because a connection has no user:
    /// each call carries its client's token, if there is one.
    #[must_use]
    pub fn for_user(&self, token: Option<Token>) -> Self {
        let credentials = token.clone().map_or(Credentials::None, Credentials::Token);
        Self {
            targets: Rc::clone(&self.targets),
            limits: self.limits,
            state: Rc::clone(&self.state),
            credentials: Rc::new(credentials),
            token: RefCell::new(token),
            dial_timeout: self.dial_timeout,
            awaits_server: self.awaits_server,
            attempts_max: self.attempts_max,
            logger: self.logger.clone(),
        }
    }

    /// Returns the token that each call carries.
    pub fn token(&self) -> Option<Token> {
        self.token.borrow().clone()
    }

    /// Limits the size of responses, in bytes. A larger response is refused as soon as its length has arrived.
    #[must_use]
    pub fn receiving_at_most(mut self, bytes: usize) -> Self {
        self.limits.receive_bytes = bytes;
        self
    }

    /// Makes calls without a timeout fail at once if no endpoint accepts a connection or the connection breaks.
    #[must_use]
    pub fn failing_fast(mut self) -> Self {
        self.awaits_server = false;
        self.attempts_max = 1;
        self
    }

    /// Repeats calls without a timeout that may be repeated, at most [`ATTEMPTS_MAX`] times.
    #[must_use]
    pub fn repeating(mut self) -> Self {
        self.attempts_max = ATTEMPTS_MAX;
        self
    }

    /// Returns the maximum size of a response, in bytes.
    #[must_use]
    pub const fn receive_bytes_max(&self) -> usize {
        self.limits.receive_bytes
    }

    /// Returns the client of the Auth service on a connection.
    pub fn auth(&self, channel: Channel) -> AuthClient<Channel> {
        AuthClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Returns the client of the KV service on a connection.
    pub fn kv(&self, channel: Channel) -> KvClient<Channel> {
        KvClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Returns the client of the Watch service on a connection.
    pub fn watch(&self, channel: Channel) -> WatchClient<Channel> {
        WatchClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Returns the client of the Lease service on a connection.
    pub fn lease(&self, channel: Channel) -> LeaseClient<Channel> {
        LeaseClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Returns the client of the Cluster service on a connection.
    pub fn cluster(&self, channel: Channel) -> ClusterClient<Channel> {
        ClusterClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Returns the client of the Maintenance service on a connection.
    pub fn maintenance(&self, channel: Channel) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(channel).max_decoding_message_size(self.limits.receive_bytes)
    }

    /// Makes a call, within the `timeout` if there is one. If a server refuses the call because of its token, repeats
    /// the call with a new token.
    pub async fn call<Message, Reply>(
        &self,
        timeout: Option<Duration>,
        repeat: Repeat,
        message: Message,
        make: impl AsyncFn(Channel, Request<Message>) -> Result<Response<Reply>, Status>,
    ) -> Result<Reply, Status>
    where
        Message: Clone + prost::Message,
    {
        self.limits.check_request(message.encoded_len())?;
        let reply = Cell::new(None);
        let (message, make) = (&message, &make);
        let attempt = |channel, head: Request<()>| -> Attempt<'_> {
            let request = head.map(|()| message.clone());
            let reply = &reply;
            Box::pin(async move {
                reply.set(Some(make(channel, request).await?.into_inner()));
                Ok(())
            })
        };
        self.repeat_attempts(timeout, repeat, &attempt).await?;
        Ok(reply.into_inner().expect("a successful attempt has stored its reply"))
    }

    /// Repeats a call's attempts until one succeeds or the call must not be repeated. Unlike [`Client::call`], this
    /// function is compiled only once, not for each method of the API.
    async fn repeat_attempts<'a>(
        &self,
        timeout: Option<Duration>,
        repeat: Repeat,
        attempt: &dyn Fn(Channel, Request<()>) -> Attempt<'a>,
    ) -> Result<(), Status> {
        let tries = Cell::new(0);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let calling = async {
            let mut logins = 0;
            loop {
                let status = match self.attempts(deadline, repeat, attempt, &tries).await {
                    Ok(()) => return Ok(()),
                    Err(status) => status,
                };
                if !self.renew_token(deadline, &status, logins).await? {
                    return Err(status);
                }
                logins += 1;
            }
        };
        within(deadline, calling).await.inspect_err(|status| self.warn(status, tries.get()))
    }

    /// Makes attempts with the current token.
    async fn attempts<'a>(
        &self,
        deadline: Option<Instant>,
        repeat: Repeat,
        attempt: &dyn Fn(Channel, Request<()>) -> Attempt<'a>,
        tries: &Cell<u64>,
    ) -> Result<(), Status> {
        let attempts_max = match (repeat, deadline) {
            (Repeat::Never, _) => 1,
            (Repeat::Safe, None) => self.attempts_max,
            (Repeat::Safe, Some(_)) => u64::MAX,
        };
        let mut made = 0;
        loop {
            let status = match self.attempt_once(deadline, attempt, tries).await {
                Ok(()) => return Ok(()),
                Err(status) => status,
            };
            made += 1;
            if status.code() != Code::Unavailable || made == attempts_max {
                return Err(status);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes one attempt. `tries` counts the attempts that failed because no server was available.
    async fn attempt_once<'a>(
        &self,
        deadline: Option<Instant>,
        attempt: &dyn Fn(Channel, Request<()>) -> Attempt<'a>,
        tries: &Cell<u64>,
    ) -> Result<(), Status> {
        let connection = self.connect(deadline).await?;
        let mut head = self.signed(());
        if let Some(deadline) = deadline {
            head.set_timeout(deadline.duration_since(Instant::now()));
        }
        let result = attempt(connection.channel.clone(), head).await.map_err(as_grpc_go);
        match &result {
            Ok(()) => self.answered(&connection),
            Err(status) if status.code() == Code::Unavailable => {
                self.leave(&connection, status);
                tries.set(tries.get() + 1);
            }
            Err(_) => {}
        }
        result
    }

    /// Returns a connection on which the server has sent its first frame. Tries endpoints until the `deadline`. Without
    /// a deadline, tries each endpoint once. The exception is the client's first connection: unless
    /// [`Self::failing_fast`] is set, this function logs one warning and then waits for the connection indefinitely.
    pub async fn connect(&self, deadline: Option<Instant>) -> Result<Connection, Status> {
        if let Some(connection) = &self.state.borrow().current {
            return Ok(connection.clone());
        }
        let mut has_warned = false;
        loop {
            let reason = match self.connect_once().await {
                Ok(connection) => return Ok(connection),
                Err(reason) => Status::unavailable(reason),
            };
            if deadline.is_none() {
                let is_first = self.state.borrow().count == 0;
                if !(self.awaits_server && is_first) {
                    return Err(reason);
                }
                if !std::mem::replace(&mut has_warned, true) {
                    self.warn(&reason, 0);
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Tries each endpoint once. An endpoint that does not respond delays the attempt at the next one only briefly.
    async fn connect_once(&self) -> Result<Connection, String> {
        let first = self.state.borrow().first;
        let attempts = (first..self.targets.len()).chain(0..first).map(|position| async move {
            let channel = self.connect_to(&self.targets[position]).await?;
            Ok((position, channel))
        });
        let (position, channel) = first_success(attempts)
            .await
            .unwrap_or_else(|| Err("no endpoints available".to_owned()))?;
        Ok(self.connected(position, channel))
    }

    async fn connect_to(&self, target: &Target) -> Result<Channel, String> {
        self.tell("connecting", target, None);
        let error = match target.connect().await {
            Ok(channel) => {
                self.tell("connected", target, None);
                return Ok(channel);
            }
            Err(Unconnected::Failed(error)) => {
                self.state.borrow_mut().trouble = Some(error.clone());
                error
            }
            Err(Unconnected::Silent) => cause::silent(),
        };
        self.tell("failed to connect", target, Some(&error));
        Err(error)
    }

    fn connected(&self, position: usize, channel: Channel) -> Connection {
        let mut state = self.state.borrow_mut();
        state.count += 1;
        state.first = position;
        let connection = Connection { channel, number: state.count };
        state.current = Some(connection.clone());
        connection
    }

    /// Records that a server has responded on this connection.
    fn answered(&self, connection: &Connection) {
        let mut state = self.state.borrow_mut();
        state.answered = state.answered.max(connection.number);
        state.trouble = None;
    }

    /// Abandons a connection because of an error, so that the next call opens another one. Several callers may report
    /// the same connection. Late reports do not affect a newer connection.
    pub fn leave(&self, connection: &Connection, reason: &Status) {
        let mut state = self.state.borrow_mut();
        let broke =
            reason.message().strip_prefix(BROKEN).filter(|_| state.answered < connection.number);
        if let Some(reason) = broke {
            state.trouble = Some(cause::no_answer(reason));
        }
        if state.current.take_if(|current| current.number == connection.number).is_some() {
            let target = &self.targets[state.first];
            state.first = (state.first + 1) % self.targets.len();
            self.tell(
                "closed the connection because of an error",
                target,
                Some(&status_text(reason)),
            );
        }
    }

    fn tell(&self, message: &str, target: &Target, error: Option<&str>) {
        let mut fields = vec![("endpoint", target.text.clone())];
        fields.extend(error.map(|error| ("error", error.to_owned())));
        (self.logger.debug)(message, &fields);
    }
}

/// Runs `doing`, until the deadline if there is one.
async fn within<T>(
    deadline: Option<Instant>,
    doing: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match deadline {
        None => doing.await,
        Some(deadline) => timeout_at(deadline, doing)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded"))),
    }
}

impl Target {
    /// Returns a channel on which the server has sent its first frame.
    async fn connect(&self) -> Result<Channel, Unconnected> {
        if let Some(fault) = &self.fault {
            return Err(Unconnected::Failed(cause::no_address(fault)));
        }
        let (connector, greeting) = self.connector.greeted();
        let place = self.connector.place();
        let is_dialed = Cell::new(false);
        let connecting = async {
            let channel = self.endpoint.connect_with_connector(connector).await;
            let channel = channel.map_err(|error| cause::not_connected(place, &error))?;
            is_dialed.set(true);
            match greeting.await {
                Ok(Ok(())) => Ok(channel),
                Ok(Err(error)) => Err(cause::not_greeted(&broken(&error))),
                // The connection was dropped before it reported the server's first frame.
                Err(_) => Err(cause::not_greeted("EOF")),
            }
        };
        let connected = match self.dial_timeout {
            None => Ok(connecting.await),
            Some(dial_timeout) => tokio::time::timeout(dial_timeout, connecting).await,
        };
        match connected {
            Ok(connected) => connected.map_err(Unconnected::Failed),
            Err(_) if is_dialed.get() => Err(Unconnected::Silent),
            Err(_) => Err(Unconnected::Failed(cause::too_late(place))),
        }
    }
}

/// Returns an HTTP/1 connector to an endpoint.
pub fn http_stream(endpoint: &str, transport: &Transport) -> Result<ChannelConnector, Failure> {
    let Address { place, is_secured } = Address::of(endpoint, transport)?;
    let place = match place {
        Place::Host(authority) if cause::fault_of(&authority).is_some() => {
            let port = if is_secured { 443 } else { 80 };
            Place::Host(format!("{authority}:{port}"))
        }
        place => place,
    };
    let tls = is_secured.then(|| transport.http_connector()).transpose()?;
    Ok(ChannelConnector::new(place, tls))
}

/// The address of an endpoint.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    place: Place,
    is_secured: bool,
}

impl Address {
    /// Parses an endpoint as etcd does. An endpoint without a scheme or with the scheme `unix` uses TLS if
    /// [`Transport::is_asked_for`] returns true.
    fn of(endpoint: &str, transport: &Transport) -> Result<Self, Failure> {
        let (scheme, rest) = split_scheme(endpoint);
        let is_secured = match scheme {
            "https" | "unixs" => true,
            "http" => false,
            "" | "unix" => transport.is_asked_for(),
            _ => {
                return Err(Failure::bad_args(format!("unknown scheme {scheme}: {endpoint}")));
            }
        };
        let place = match scheme {
            "unix" | "unixs" => Place::File(rest.into()),
            _ => {
                let authority = rest.split('/').next().unwrap_or(rest);
                match authority.strip_prefix(':') {
                    // An empty host means the local machine.
                    Some(port) if !port.contains(':') => Place::Host(format!("localhost:{port}")),
                    _ => Place::Host(authority.to_owned()),
                }
            }
        };
        Ok(Self { place, is_secured })
    }
}

/// Converts the status of a failed call to the status that grpc-go would return, so that its code is meaningful.
///
/// A status that tonic created from a transport error has that error as its source. tonic gives this status the code
/// unknown or cancelled, although the real cause is a failed connection or an expired timeout.
#[must_use]
pub fn as_grpc_go(status: Status) -> Status {
    // When grpc-go reads a response, it uses the error texts for streams, even in a unary call.
    let Some(error) = status.source() else { return in_grpc_gos_words(status, Kind::ServerStream) };
    if is_timeout(error) {
        return Status::deadline_exceeded("context deadline exceeded");
    }
    match status.code() {
        Code::Unknown | Code::Cancelled => {
            Status::unavailable(format!("{BROKEN}{}", broken(error)))
        }
        _ => status,
    }
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    error.is::<TimeoutExpired>() || error.source().is_some_and(is_timeout)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn endpoints_are_parsed_as_addresses_with_or_without_tls() {
        let plain = Transport::default();
        let secured = Transport { cacert: "/c".to_owned(), ..Transport::default() };
        let shown = |text: &str, transport: &Transport| match Address::of(text, transport) {
            Ok(Address { place: Place::Host(host), is_secured }) => format!("{host} {is_secured}"),
            Ok(Address { place: Place::File(path), is_secured }) => {
                format!("file {} {is_secured}", path.display())
            }
            Err(failure) => failure.code.to_string(),
        };
        for (text, without, with) in [
            ("a:1", "a:1 false", "a:1 true"),
            ("http://a:1", "a:1 false", "a:1 false"),
            ("https://a", "a true", "a true"),
            (":1", "localhost:1 false", "localhost:1 true"),
            ("https://[::1]:1/", "[::1]:1 true", "[::1]:1 true"),
            ("unix:///tmp/s", "file /tmp/s false", "file /tmp/s true"),
            ("unixs://s", "file s true", "file s true"),
            ("unix:s:1", "file s:1 false", "file s:1 true"),
            ("unixs:/tmp/s", "file /tmp/s true", "file /tmp/s true"),
            ("ftp://a:1", "128", "128"),
        ] {
            assert_eq!((&*shown(text, &plain), &*shown(text, &secured)), (without, with), "{text}");
        }
    }

    #[test]
    fn size_limits_have_defaults_and_must_be_consistent() {
        let default = Limits::new(0, 0).unwrap();
        assert_eq!((default.send_bytes, default.receive_bytes), (2_097_152, 2_147_483_647));
        assert_eq!(Limits::new(10, 5).unwrap_err().code, exit::BAD_CONNECTION);
    }

    #[test]
    fn oversized_messages_return_grpc_go_errors() {
        let limits = Limits::new(20, 0).unwrap();
        assert!(limits.check_request(20).is_ok());
        let status = limits.check_request(30).unwrap_err();
        assert_eq!(status.message(), "trying to send message larger than max (30 vs. 20)");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text =
            "Error, decoded message length too large: found 30 bytes, the limit is: 20 bytes";
        let status = as_grpc_go(Status::out_of_range(text));
        assert_eq!(status.message(), "grpc: received message larger than max (30 vs. 20)");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(as_grpc_go(Status::not_found("x")).message(), "x");
    }

    #[test]
    fn a_call_on_a_broken_connection_fails_as_unavailable() {
        let broken = Status::from_error("reading the body: connection reset".into());
        assert_eq!(broken.code(), Code::Unknown);
        let status = as_grpc_go(broken);
        assert_eq!(status.code(), Code::Unavailable);
        let text = "error reading from server: reading the body: connection reset";
        assert_eq!(status.message(), text);
        // A status that the server itself sent as unknown stays unchanged.
        assert_eq!(as_grpc_go(Status::unknown("x")).code(), Code::Unknown);
        let expired = Status::from_error(Box::new(TimeoutExpired(())));
        assert_eq!(as_grpc_go(expired).code(), Code::DeadlineExceeded);
    }

    fn client(endpoints: &[&str]) -> Client {
        let endpoints = endpoints.iter().map(|text| (*text).to_owned()).collect();
        let limits = Limits::new(0, 0).unwrap();
        let second = Duration::from_secs(1);
        let timeouts =
            Timeouts { dial_timeout: second, keepalive_time: second, keepalive_timeout: second };
        let (transport, nobody) = (Transport::default(), Rc::default());
        Client::new(endpoints, &transport, nobody, timeouts, limits, Logger::default()).unwrap()
    }

    #[test]
    fn the_authority_of_requests_is_the_host_or_the_file_name_of_the_socket() {
        let client = client(&["a:1", "unix:localhost:20000", "unix:///run/etcd.sock"]);
        let authorities: Vec<_> = client
            .targets
            .iter()
            .map(|it| it.endpoint.uri().authority().unwrap().as_str())
            .collect();
        assert_eq!(authorities, ["a:1", "localhost:20000", "etcd.sock"]);
    }

    #[tokio::test]
    async fn reconnecting_uses_the_next_endpoint() {
        let listeners: Vec<_> =
            (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> =
            listeners.iter().map(|own| own.local_addr().unwrap().to_string()).collect();
        for listener in listeners {
            std::thread::spawn(move || {
                let greet = |client: std::io::Result<std::net::TcpStream>| {
                    let mut client = client.unwrap();
                    client.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
                    client
                };
                // Collecting the streams keeps the connections open.
                listener.incoming().map(greet).collect::<Vec<_>>()
            });
        }
        let client = client(&addresses.iter().map(String::as_str).collect::<Vec<_>>());
        let first = client.connect(None).await.unwrap();
        assert_eq!(client.connect(None).await.unwrap().number, first.number);
        let reason = Status::unavailable("gone");
        client.leave(&first, &reason);
        let second = client.connect(None).await.unwrap();
        assert_eq!(client.state.borrow().first, 1);
        // Another task that shared the first connection reports the failure late.
        client.leave(&first, &reason);
        assert_eq!(client.connect(None).await.unwrap().number, second.number);
        client.leave(&second, &reason);
        drop(client.connect(None).await.unwrap());
        assert_eq!(client.state.borrow().first, 0);
    }
}
