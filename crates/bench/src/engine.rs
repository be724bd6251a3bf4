//! Runs operations over connections and records what became of them.
//!
//! Connections are dealt among threads; each thread runs one single-threaded runtime, and on it one task
//! per connection. A task sends requests while it has free clients and tickets, writes them at once,
//! sleeps until the socket has something, and books every reply of that read. A client is a place for one
//! request in flight; it costs nothing. A connection that is lost takes its requests with it, which count as
//! errors, and is dialled again, at the next endpoint if there are several.
//!
//! # Not here
//!
//! What is asked (`workload`), when (`pace`), the protocol (`wire`).

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

/// How the load is spread.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) clients: usize,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    /// Of the user, one for each connection; none where nobody logs in.
    pub(crate) tokens: Arc<[Secret]>,
    /// What makes more of them.
    pub(crate) login: Option<Arc<Login>>,
}

/// One connection's part of the load.
#[derive(Clone)]
pub(crate) struct Part {
    endpoints: Vec<Endpoint>,
    /// Which of them to connect to.
    position: usize,
    /// Position among all connections.
    pub(crate) index: usize,
    /// Requests in flight, at most.
    pub(crate) clients: usize,
    token: Option<Secret>,
    login: Option<Arc<Login>>,
}

impl Part {
    /// The same, for its own endpoint alone.
    fn at_its_endpoint(mut self) -> Self {
        self.endpoints = vec![self.endpoints.swap_remove(self.position)];
        self.position = 0;
        self
    }
}

impl Spread {
    /// Deals the connections among the threads.
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

/// A source of requests, one per connection.
pub(crate) trait Source: Send + 'static {
    /// Writes the request of operation `number` over `message`, and says which call it is and under which
    /// of the run's kinds it is recorded.
    fn request(&mut self, number: u64, message: &mut Vec<u8>) -> (&'static str, usize);
}

/// Records by kind of operation.
pub(crate) type Records = Vec<Record>;

/// Runs `task` for each part on its thread and merges what they recorded. The first failure wins, but all
/// threads are waited for.
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
                        let done = task.await.expect("a task is neither cancelled nor panics")?;
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
        match thread.join().expect("a thread does not panic") {
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

/// What the tasks of one run share.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) pace: Arc<Pace>,
    pub(crate) pulse: Arc<Pulse>,
    /// How many kinds of operation are told apart.
    pub(crate) kinds: usize,
}

/// How long answers are still waited for when a run was interrupted.
const GRACE: Duration = Duration::from_secs(1);

/// Notices when an interrupted run has waited long enough.
#[derive(Default)]
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    fn is_over(&mut self, pace: &Pace) -> bool {
        pace.is_interrupted() && self.since.get_or_insert_with(Instant::now).elapsed() > GRACE
    }
}
