//! A connection and its socket.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::AuthenticateResponse;

use super::Part;
use crate::endpoint::{Endpoint, Round, Socket};
use crate::error::BenchError;
use crate::login::Login;
use crate::secret::Secret;
use crate::wire::connection::{Connection, Event, Replies};

/// What one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// A server that says nothing for so long, while something is awaited, or that cannot be reached for so
/// long, is given up.
const STALL: Duration = Duration::from_secs(60);
/// How long a server may take to accept a connection, and the pause before it is asked again.
const DIAL: Duration = Duration::from_secs(2);
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// gRPC's code for a token that is not good.
const UNAUTHENTICATED: u16 = 16;
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// How often whoever waits for a connection looks up.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A connection joined to its socket. When it is lost, its calls end and another one is dialled.
pub(crate) struct Link<T> {
    /// Where it may go; dialled in turn.
    endpoints: Vec<Endpoint>,
    position: usize,
    login: Option<Arc<Login>>,
    state: State,
    pub(crate) wire: Connection<T>,
    /// How many connections there have been.
    pub(crate) dialled: u64,
    input: Vec<u8>,
    filled: usize,
}

enum State {
    /// With when something came last, or nothing was awaited.
    Connected { socket: Socket, heard: Instant },
    /// Since then.
    Down(Instant),
}

impl<T> Link<T> {
    /// Connects, on the runtime that will drive the connection.
    pub(crate) async fn new(part: Part) -> Result<Self, BenchError> {
        let Part { endpoints, position, token, login, .. } = part;
        Ok(Self { login, ..Self::over(endpoints, position, token).await? })
    }

    async fn over(
        endpoints: Vec<Endpoint>,
        position: usize,
        token: Option<Secret>,
    ) -> Result<Self, BenchError> {
        let endpoint = &endpoints[position];
        let socket = dial(endpoint).await.map_err(|source| BenchError::Connect {
            endpoint: endpoint.authority().to_owned(),
            source,
        })?;
        Ok(Self {
            state: State::Connected { socket, heard: Instant::now() },
            wire: Connection::new(endpoint.authority().to_owned(), endpoint.is_secured(), token),
            endpoints,
            position,
            login: None,
            dialled: 1,
            input: vec![0; READ_BYTES],
            filled: 0,
        })
    }

    /// Whether another call may be opened now.
    pub(crate) fn has_room(&self) -> bool {
        self.is_connected() && self.wire.has_room()
    }

    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// Writes what is to be written, waits for the socket or for `until`, and hands on what came. Returns
    /// after one round, whether or not anything came. A connection that is lost is dialled again by later
    /// rounds; only a server that cannot be reached for long is an error.
    pub(crate) async fn turn(
        &mut self,
        until: Instant,
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), BenchError> {
        if let State::Down(since) = self.state {
            return self.dial(since, until).await;
        }
        if let Err(error) = self.exchange(until, each).await {
            self.lose(&error, each);
        } else if self.wire.is_spent() {
            self.state = State::Down(Instant::now());
        }
        Ok(())
    }

    /// Gives up the connection, and with it every call that is under way.
    pub(crate) fn lose(&mut self, reason: &BenchError, each: &mut impl FnMut(Event<'_, T>)) {
        self.wire.end(&reason.to_string(), each);
        self.state = State::Down(Instant::now());
        self.position = (self.position + 1) % self.endpoints.len();
    }

    async fn dial(&mut self, since: Instant, until: Instant) -> Result<(), BenchError> {
        let endpoint = &self.endpoints[self.position];
        match dial(endpoint).await {
            Ok(socket) => {
                // The token before may be known no more: the server may have ended.
                let token = match &self.login {
                    Some(login) => Some(Box::pin(token(endpoint, login)).await?),
                    None => None,
                };
                let authority = endpoint.authority().to_owned();
                self.wire = Connection::new(authority, endpoint.is_secured(), token);
                self.state = State::Connected { socket, heard: Instant::now() };
                self.dialled += 1;
                self.filled = 0;
                Ok(())
            }
            Err(source) if since.elapsed() > STALL => Err(BenchError::Unreachable {
                endpoint: endpoint.authority().to_owned(),
                seconds: STALL.as_secs(),
                source,
            }),
            Err(_) => {
                self.position = (self.position + 1) % self.endpoints.len();
                let pause = until.min(Instant::now() + DIAL_PAUSE);
                tokio::time::sleep_until(tokio::time::Instant::from_std(pause)).await;
                Ok(())
            }
        }
    }

    /// Writes what is to be written, and waits for the socket or for `until`; the connection's failure is the error.
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
        // Another connection logs in anew.
        if is_token_refused && self.login.is_some() {
            return Err(BenchError::TokenRefused);
        }
        Ok(())
    }
}

async fn dial(endpoint: &Endpoint) -> io::Result<Socket> {
    let dialled = tokio::time::timeout(DIAL, endpoint.dial()).await;
    dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Runs `work` on a single-threaded runtime of its own, where it may spawn local tasks.
pub(crate) fn on_runtime<R>(
    work: impl Future<Output = Result<R, BenchError>>,
) -> Result<R, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Logs in, on a connection of its own.
pub(crate) fn log_in(endpoint: &Endpoint, login: &Login) -> Result<Secret, BenchError> {
    on_runtime(token(endpoint, login))
}

async fn token(endpoint: &Endpoint, login: &Login) -> Result<Secret, BenchError> {
    let request = [login.request()];
    let replies = calls_here(endpoint, None, AUTHENTICATE, &request).await?;
    let reply: Option<AuthenticateResponse> = replies.into_iter().next();
    Ok(Secret::from(reply.unwrap_or_default().token))
}

/// Makes one call on a connection of its own and returns the reply.
pub(crate) fn call<Reply: prost::Message + Default>(
    endpoint: &Endpoint,
    token: Option<Secret>,
    path: &'static str,
    request: &impl prost::Message,
) -> Result<Reply, BenchError> {
    let mut replies = calls(endpoint, token, path, std::slice::from_ref(request))?;
    Ok(replies.pop().expect("one request has one reply"))
}

/// Makes calls side by side on one connection and returns the replies in the order of the requests.
pub(crate) fn calls<Reply: prost::Message + Default>(
    endpoint: &Endpoint,
    token: Option<Secret>,
    path: &'static str,
    requests: &[impl prost::Message],
) -> Result<Vec<Reply>, BenchError> {
    on_runtime(calls_here(endpoint, token, path, requests))
}

async fn calls_here<Reply: prost::Message + Default>(
    endpoint: &Endpoint,
    token: Option<Secret>,
    path: &'static str,
    requests: &[impl prost::Message],
) -> Result<Vec<Reply>, BenchError> {
    {
        let mut link = Link::over(vec![endpoint.clone()], 0, token).await?;
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
