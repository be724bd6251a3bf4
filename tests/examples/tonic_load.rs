//! Generates load as an ordinary application does: `etcd-client` on tonic, on a runtime with one thread per core.
//!
//! `quorate bench` combines its clients' requests into one write, so a server finds many requests each time it wakes
//! up. Here each task sends its requests separately, and they arrive at random times. The program accepts the arguments
//! of `quorate bench` that `cargo xtask compare` uses, and prints the figures that the comparison reads. The run fails
//! if any operation fails.
//!
//! The program is an example so that its client is a dependency of the tests only.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it converts only small numbers"
)]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};
use quorate_tests::Random;
use serde_json::json;

type Failure = Box<dyn Error + Send + Sync>;

/// Number of keys. Keys and values have the default sizes of `quorate bench`.
const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 256;
const LEASE_SECS: i64 = 60;
/// Unit in which the kernel counts CPU time, in microseconds.
const TICK_MICROS: f64 = 10_000.0;

#[derive(Clone, Copy, Debug)]
enum Load {
    Put,
    Range,
    KeepAlive,
}

#[derive(Debug)]
struct Options {
    load: Load,
    endpoint: String,
    clients: usize,
    connections: usize,
    total: u64,
    pids: Vec<u32>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let load = match args.next().as_deref() {
            Some("put") => Load::Put,
            Some("range") => Load::Range,
            Some("lease-keepalive") => Load::KeepAlive,
            other => {
                return Err(
                    format!("unknown load {other:?}: use put, range or lease-keepalive").into()
                );
            }
        };
        let (endpoint, pids) = ("127.0.0.1:2379".to_owned(), Vec::new());
        let mut options =
            Self { load, endpoint, clients: 100, connections: 10, total: 10_000, pids };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--endpoints" => options.endpoint = value()?,
                "--clients" => options.clients = value()?.parse()?,
                "--connections" => options.connections = value()?.parse()?,
                "--total" => options.total = value()?.parse()?,
                "--pid" => options.pids.push(value()?.parse()?),
                "--json" => {}
                _ => return Err(format!("unknown argument {arg}").into()),
            }
        }
        Ok(options)
    }
}

/// A client that waits for the answer to each request before it sends the next one.
struct Caller {
    client: Client,
    random: Random,
    /// Lease to renew, if the load consists of renewals.
    lease: Option<(LeaseKeeper, LeaseKeepAliveStream)>,
}

impl Caller {
    async fn call(&mut self, load: Load) -> Result<(), Failure> {
        match load {
            Load::Put => {
                let (key, value) = (self.key(), self.value());
                self.client.put(key, value, None).await?;
            }
            Load::Range => {
                let key = self.key();
                self.client.get(key, None).await?;
            }
            Load::KeepAlive => {
                let (keeper, answers) = self.lease.as_mut().ok_or("the client holds no lease")?;
                keeper.keep_alive().await?;
                answers.message().await?.ok_or("the stream ended")?;
            }
        }
        Ok(())
    }

    fn key(&mut self) -> String {
        format!("bench/{:010}", self.random.below(KEYS))
    }

    fn value(&mut self) -> Vec<u8> {
        vec![self.random.below(256) as u8; VALUE_BYTES]
    }

    /// Sends one request per ticket until no tickets are left. Returns the latencies in microseconds.
    async fn work(mut self, load: Load, tickets: Arc<AtomicU64>) -> Result<Vec<f64>, Failure> {
        let mut latencies = Vec::new();
        let take = |left: u64| left.checked_sub(1);
        while tickets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let start = Instant::now();
            self.call(load).await?;
            latencies.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(latencies)
    }
}

/// Connects the clients, uses each connection once, and grants the leases.
async fn callers(options: &Options) -> Result<Vec<Caller>, Failure> {
    let mut connections = Vec::new();
    for _ in 0..options.connections.clamp(1, options.clients.max(1)) {
        let mut client = Client::connect([&options.endpoint], None).await?;
        client.get("bench/", None).await?;
        connections.push(client);
    }
    let mut callers = Vec::new();
    for number in 0..options.clients {
        let mut client = connections[number % connections.len()].clone();
        let lease = match options.load {
            Load::Put | Load::Range => None,
            Load::KeepAlive => {
                let id = client.lease_grant(LEASE_SECS, None).await?.id();
                Some(client.lease_keep_alive(id).await?)
            }
        };
        callers.push(Caller { client, random: Random::new(number as u64 * 2 + 1), lease });
    }
    Ok(callers)
}

/// Returns the CPU time of a process, in microseconds.
fn cpu_micros(pid: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name is in parentheses and may contain any character. User and system time follow it.
    let (_, rest) = stat.rsplit_once(')').ok_or("the stat file contains no program name")?;
    let ticks = rest.split_ascii_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? * TICK_MICROS)
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the report is the program's output")]
async fn main() -> Result<(), Failure> {
    let options = Options::parse(std::env::args().skip(1))?;
    let callers = callers(&options).await?;
    let costs = || options.pids.iter().map(|pid| cpu_micros(*pid)).collect::<Result<Vec<_>, _>>();
    let tickets = Arc::new(AtomicU64::new(options.total));
    let (before, start) = (costs()?, Instant::now());
    let tasks: Vec<_> = callers
        .into_iter()
        .map(|caller| tokio::spawn(caller.work(options.load, tickets.clone())))
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let (after, seconds) = (costs()?, start.elapsed().as_secs_f64());
    latencies.sort_by(f64::total_cmp);
    let quantile = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied();
    let each = |micros: f64| micros / latencies.len().max(1) as f64;
    let costs = before.iter().zip(&after).zip(&options.pids);
    let servers: Vec<_> = costs
        .map(|((before, after), pid)| {
            json!({"pid": pid, "cpu_us_per_operation": each(after - before)})
        })
        .collect();
    let report = json!({
        "load": format!("{:?}, by a tonic client", options.load),
        "clients": options.clients,
        "connections": options.connections,
        "count": latencies.len(),
        "errors": 0,
        "seconds": seconds,
        "per_second": latencies.len() as f64 / seconds,
        "latency_us": {"p50": quantile(0.5), "p99": quantile(0.99)},
        "servers": servers,
    });
    println!("{report}");
    Ok(())
}
