//! Runs operations over connections and records their outcomes.
//!
//! Connections are distributed over threads. Each thread has a single-threaded runtime with one task per connection. A
//! task encodes requests while it has idle clients and tickets, writes them together, sleeps until the socket is ready,
//! reads, and records every reply in the received data. A client is only a slot for one in-flight request, so it needs
//! no task or connection of its own. When a connection is lost, its in-flight requests count as errors, and the task
//! reconnects. If there are several endpoints, it connects to the next one.
//!
//! # Not here
//!
//! The requests (`workload`), their timing (`pace`), and the protocol (`wire`).

mod dialogue;
mod handshake;
mod link;
mod stream;
mod unary;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::login::Login;
use crate::pace::Pace;
use crate::pulse::Pulse;
use crate::record::Record;
use crate::secret::Secret;

pub(crate) use dialogue::{Ask, Dialogue, run_dialogues};
pub(crate) use handshake::run_handshakes;
use link::on_runtime;
pub(crate) use link::{LOOK, Link, call, calls, log_in};
pub(crate) use stream::run_streams;
pub(crate) use unary::run_unary;

/// How the load is distributed over endpoints, connections and threads.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) clients: usize,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    /// The user's tokens, one for each connection; empty without a login.
    pub(crate) tokens: Arc<[Secret]>,
    /// The user's credentials, used to log in again when a token is refused.
    pub(crate) login: Option<Arc<Login>>,
}

/// The share of the load that one connection carries.
#[derive(Clone)]
pub(crate) struct Part {
    endpoints: Vec<Endpoint>,
    /// The index of the connection's own endpoint.
    position: usize,
    /// The index of the connection among all connections.
    pub(crate) index: usize,
    /// The maximum number of in-flight requests.
    pub(crate) clients: usize,
    token: Option<Secret>,
    login: Option<Arc<Login>>,
}

impl Part {
    /// Removes all endpoints except the connection's own endpoint.
    fn at_its_endpoint(mut self) -> Self {
        self.endpoints = vec![self.endpoints.swap_remove(self.position)];
        self.position = 0;
        self
    }
}

impl Spread {
    /// Distributes the connections over the threads.
    fn parts(&self) -> Vec<Vec<Part>> {
        let connections = self.connections.clamp(1, self.clients.max(1));
        let threads = self.threads.clamp(1, connections);
        let mut parts: Vec<_> = (0..threads).map(|_| Vec::new()).collect();
        for index in 0..connections {
            let position = index % self.endpoints.len();
            let clients =
                self.clients / connections + usize::from(index < self.clients % connections);
            let endpoints = self.endpoints.clone();
            let token = index.checked_rem(self.tokens.len()).map(|at| self.tokens[at].clone());
            let login = self.login.clone();
            let part = Part { endpoints, position, index, clients, token, login };
            parts[index % threads].push(part);
        }
        parts
    }
}

/// A source of requests. Each connection has its own source.
pub(crate) trait Source: Send + 'static {
    /// Writes the request of operation `number` to `message`. Returns the method, and the kind under which the
    /// operation is recorded.
    fn request(&mut self, number: u64, message: &mut Vec<u8>) -> (&'static str, usize);
}

/// The outcomes of a run, one record for each kind of operation.
pub(crate) type Records = Vec<Record>;

/// Runs `task` for each part on the part's thread, and merges the records. If several tasks fail, returns one of their
/// errors, after all threads have ended.
pub(crate) fn run_parts<F, Fut>(
    spread: &Spread,
    kinds: usize,
    task: F,
) -> Result<Records, BenchError>
where
    F: Fn(Part) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Records, BenchError>> + 'static,
{
    let task = Arc::new(task);
    let threads: Vec<_> = spread
        .parts()
        .into_iter()
        .map(|parts| {
            let task = task.clone();
            thread::spawn(move || {
                on_runtime(async {
                    let tasks: Vec<_> = parts
                        .into_iter()
                        .map(|part| tokio::task::spawn_local(task(part)))
                        .collect();
                    let mut records = vec![Record::new(); kinds];
                    for task in tasks {
                        let done = task.await.expect("no task is cancelled or panics")?;
                        merge(&mut records, &done);
                    }
                    Ok(records)
                })
            })
        })
        .collect();
    let mut records = vec![Record::new(); kinds];
    let mut failure = None;
    for thread in threads {
        match thread.join().expect("no thread panics") {
            Ok(done) => merge(&mut records, &done),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(records), Err)
}

fn merge(into: &mut Records, from: &Records) {
    for (into, from) in into.iter_mut().zip(from) {
        into.merge(from);
    }
}

/// The state shared by the tasks of a run.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) pace: Arc<Pace>,
    pub(crate) pulse: Arc<Pulse>,
    /// The number of kinds of operations.
    pub(crate) kinds: usize,
}

/// How long an interrupted run waits for pending replies.
const GRACE: Duration = Duration::from_secs(1);

/// Detects the end of an interrupted run's grace period.
#[derive(Default)]
struct GracePeriod {
    since: Option<Instant>,
}

impl GracePeriod {
    fn is_over(&mut self, pace: &Pace) -> bool {
        pace.is_interrupted() && self.since.get_or_insert_with(Instant::now).elapsed() > GRACE
    }
}
