//! A connection and its socket.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::AuthenticateResponse;
use quorate_grpc::methods::named;

use super::Part;
use crate::endpoint::{Endpoint, Round, Socket};
use crate::error::BenchError;
use crate::login::Login;
use crate::secret::Secret;
use crate::wire::connection::{Connection, Event, Replies};

/// The maximum number of bytes in one read.
const READ_BYTES: usize = 256 << 10;
/// The run fails if a server sends nothing for this long while a reply is pending, or if no server is reachable for
/// this long.
const STALL: Duration = Duration::from_secs(60);
/// The timeout for connecting.
const DIAL: Duration = Duration::from_secs(2);
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// The gRPC code for an invalid token.
const UNAUTHENTICATED: u16 = 16;
const AUTHENTICATE: &str = named("/etcdserverpb.Auth/Authenticate").path;
/// The interval at which a task checks whether the run has ended, while nothing else wakes it.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A connection joined to its socket. When the connection is lost, its calls end, and the next endpoint is dialled.
pub(crate) struct Link<T> {
    /// The endpoints, which are dialled in turn.
    endpoints: Vec<Endpoint>,
    position: usize,
    login: Option<Arc<Login>>,
    state: State,
    pub(crate) wire: Connection<T>,
    /// The number of connections made so far.
    pub(crate) dialled: u64,
    /// The start of the current period without data from any server; `None` if data has arrived since the last
    /// connection was lost.
    silent_since: Option<Instant>,
    /// Whether data has been received since the last dial.
    has_heard: bool,
    input: Vec<u8>,
    filled: usize,
}

enum State {
    /// An open connection. `heard` is the last time at which the socket was ready or no call was open.
    Connected {
        socket: Socket,
        heard: Instant,
    },
    Down,
}

impl<T> Link<T> {
    /// Connects to the part's endpoint on the current runtime. If the endpoint does not accept the connection, connects
    /// to the next endpoint that does.
    pub(crate) async fn new(part: Part) -> Result<Self, BenchError> {
        let Part { endpoints, position, token, login, .. } = part;
        Ok(Self { login, ..Self::over(endpoints, position, token).await? })
    }

    async fn over(
        endpoints: Vec<Endpoint>,
        first: usize,
        token: Option<Secret>,
    ) -> Result<Self, BenchError> {
        let (position, socket) = dial_any(&endpoints, first).await?;
        let endpoint = &endpoints[position];
        Ok(Self {
            state: State::Connected { socket, heard: Instant::now() },
            wire: Connection::new(endpoint.authority().to_owned(), endpoint.is_secured(), token),
            endpoints,
            position,
            login: None,
            dialled: 1,
            silent_since: None,
            has_heard: false,
            input: vec![0; READ_BYTES],
            filled: 0,
        })
    }

    /// Returns whether another call may be opened now.
    pub(crate) fn has_room(&self) -> bool {
        self.is_connected() && self.wire.has_room()
    }

    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// Writes pending output, waits for the socket or for `until`, and passes received events to `each`. Returns after
    /// one round, whether or not data arrived. A lost connection is redialled in later rounds. Returns an error only if
    /// a server stays unreachable or a login is refused.
    pub(crate) async fn turn(
        &mut self,
        until: Instant,
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), BenchError> {
        if !self.is_connected() {
            return self.dial(until).await;
        }
        if let Err(error) = self.exchange(until, each).await {
            self.lose(&error, each);
        } else if self.wire.is_spent() {
            self.state = State::Down;
        }
        Ok(())
    }

    /// Closes the connection and ends all its calls.
    pub(crate) fn lose(&mut self, reason: &BenchError, each: &mut impl FnMut(Event<'_, T>)) {
        self.wire.end(&reason.to_string(), each);
        self.state = State::Down;
        self.silent_since.get_or_insert_with(Instant::now);
        self.position = (self.position + 1) % self.endpoints.len();
    }

    /// Dials the next endpoint, without delay if the previous connection received data, otherwise after a pause. Fails
    /// if no server has sent anything for [`STALL`], or if a login is refused.
    async fn dial(&mut self, until: Instant) -> Result<(), BenchError> {
        if !std::mem::take(&mut self.has_heard) {
            let pause = until.min(Instant::now() + DIAL_PAUSE);
            tokio::time::sleep_until(tokio::time::Instant::from_std(pause)).await;
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        let endpoint = &self.endpoints[self.position];
        let error = match redial(endpoint, self.login.as_deref()).await {
            Ok((socket, token)) => {
                let authority = endpoint.authority().to_owned();
                self.wire = Connection::new(authority, endpoint.is_secured(), token);
                self.state = State::Connected { socket, heard: Instant::now() };
                self.dialled += 1;
                self.filled = 0;
                BenchError::Closed
            }
            Err(error @ BenchError::Refused { .. }) => return Err(error),
            Err(error) => error,
        };
        if since.elapsed() > STALL {
            return Err(BenchError::Unreachable {
                endpoint: endpoint.authority().to_owned(),
                seconds: STALL.as_secs(),
                source: Box::new(error),
            });
        }
        if !self.is_connected() {
            self.position = (self.position + 1) % self.endpoints.len();
        }
        Ok(())
    }

    /// Writes pending output, waits for the socket or for `until`, and passes received events to `each`. Fails if the
    /// connection fails, or if the server stays silent or refuses the token.
    pub(crate) async fn exchange(
        &mut self,
        until: Instant,
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), BenchError> {
        let State::Connected { socket, heard } = &mut self.state else { return Ok(()) };
        let until = tokio::time::Instant::from_std(until);
        let mut round = Round::default();
        let input = &mut self.input[self.filled..];
        let exchanged = socket.exchange(self.wire.output(), input, &mut round);
        let exchanged = tokio::time::timeout_at(until, exchanged).await;
        self.wire.wrote(round.written);
        match exchanged {
            Ok(done) => {
                done?;
                *heard = Instant::now();
            }
            Err(_) if !self.wire.is_busy() => *heard = Instant::now(),
            Err(_) if heard.elapsed() > STALL => return Err(BenchError::Stalled(STALL.as_secs())),
            Err(_) => {}
        }
        if round.is_closed {
            return Err(BenchError::Closed);
        }
        self.filled += round.read;
        if round.read > 0 {
            self.has_heard = true;
            self.silent_since = None;
        }
        let mut is_token_refused = false;
        let mut each = |event: Event<'_, T>| {
            if let Event::Closed { status, .. } = &event {
                is_token_refused |= status.code == UNAUTHENTICATED;
            }
            each(event);
        };
        let used = self.wire.receive(&self.input[..self.filled], &mut each)?;
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        // The login is repeated only when a new connection is opened, so this error closes the current connection.
        if is_token_refused && self.login.is_some() {
            return Err(BenchError::TokenRefused);
        }
        Ok(())
    }
}

/// Connects to the endpoint at position `first`. If this endpoint does not accept the connection, connects to the next
/// endpoint that does.
async fn dial_any(endpoints: &[Endpoint], first: usize) -> Result<(usize, Socket), BenchError> {
    let mut failure = None;
    for position in (first..endpoints.len()).chain(0..first) {
        match dial(&endpoints[position]).await {
            Ok(socket) => return Ok((position, socket)),
            Err(source) => {
                let endpoint = endpoints[position].authority().to_owned();
                failure.get_or_insert(BenchError::Connect { endpoint, source });
            }
        }
    }
    Err(failure.unwrap_or_else(|| BenchError::Usage("there are no endpoints".to_owned())))
}

/// Connects. If credentials are given, logs in again, because the server may have forgotten the token.
async fn redial(
    endpoint: &Endpoint,
    login: Option<&Login>,
) -> Result<(Socket, Option<Secret>), BenchError> {
    let socket = dial(endpoint).await?;
    Ok(match login {
        Some(login) => (socket, Some(Box::pin(token(endpoint, login)).await?)),
        None => (socket, None),
    })
}

async fn dial(endpoint: &Endpoint) -> io::Result<Socket> {
    let dialled = tokio::time::timeout(DIAL, endpoint.dial()).await;
    dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Runs `work` on a new single-threaded runtime, where it may spawn local tasks.
pub(crate) fn on_runtime<R>(
    work: impl Future<Output = Result<R, BenchError>>,
) -> Result<R, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Logs in over a separate connection to the endpoint at this position. If this endpoint does not accept the
/// connection, uses the next endpoint that does.
pub(crate) fn log_in(
    endpoints: &[Endpoint],
    position: usize,
    login: &Login,
) -> Result<Secret, BenchError> {
    on_runtime(token_of(endpoints, position, login))
}

async fn token(endpoint: &Endpoint, login: &Login) -> Result<Secret, BenchError> {
    token_of(std::slice::from_ref(endpoint), 0, login).await
}

async fn token_of(
    endpoints: &[Endpoint],
    position: usize,
    login: &Login,
) -> Result<Secret, BenchError> {
    let request = [login.request()];
    let replies = calls_here((endpoints, position), None, AUTHENTICATE, &request).await?;
    let reply: Option<AuthenticateResponse> = replies.into_iter().next();
    Ok(Secret::from(reply.unwrap_or_default().token))
}

/// Makes one call over a separate connection to the first endpoint that accepts it, and returns the reply.
pub(crate) fn call<Reply: prost::Message + Default>(
    endpoints: &[Endpoint],
    token: Option<Secret>,
    path: &'static str,
    request: &impl prost::Message,
) -> Result<Reply, BenchError> {
    let mut replies = calls(endpoints, token, path, std::slice::from_ref(request))?;
    Ok(replies.pop().expect("each request receives one reply"))
}

/// Makes calls in parallel over one connection to the first endpoint that accepts it, and returns the replies in
/// request order.
pub(crate) fn calls<Reply: prost::Message + Default>(
    endpoints: &[Endpoint],
    token: Option<Secret>,
    path: &'static str,
    requests: &[impl prost::Message],
) -> Result<Vec<Reply>, BenchError> {
    on_runtime(calls_here((endpoints, 0), token, path, requests))
}

async fn calls_here<Reply: prost::Message + Default>(
    (endpoints, first): (&[Endpoint], usize),
    token: Option<Secret>,
    path: &'static str,
    requests: &[impl prost::Message],
) -> Result<Vec<Reply>, BenchError> {
    {
        let mut link = Link::over(endpoints.to_vec(), first, token).await?;
        let mut replies: Vec<Vec<u8>> = vec![Vec::new(); requests.len()];
        let (mut sent, mut ended, mut refused) = (0, 0, None);
        while ended < requests.len() {
            while sent < requests.len() && link.has_room() {
                link.wire.unary(path, &requests[sent].encode_to_vec(), Replies::Collect, sent);
                sent += 1;
            }
            let mut each = |event: Event<'_, usize>| match event {
                Event::Message { tag, body } => replies[*tag] = body.to_vec(),
                Event::Closed { status, .. } => {
                    ended += 1;
                    if status.code != 0 {
                        refused = Some(status);
                    }
                }
            };
            link.turn(Instant::now() + LOOK, &mut each).await?;
        }
        if let Some(status) = refused {
            let (code, message) = (status.code, status.message);
            return Err(BenchError::Refused { call: path, code, message });
        }
        let decode =
            |reply: &Vec<u8>| Reply::decode(&**reply).map_err(|e| BenchError::Answer(path, e));
        replies.iter().map(decode).collect()
    }
}
