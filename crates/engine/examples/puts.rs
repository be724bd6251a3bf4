//! Measures puts and reads on one engine: `puts URL SECONDS CLIENTS...`.
//!
//! Each client puts 256-byte values to random keys, one put at a time. For each number of clients, the program prints
//! the number of puts per second, the latency of a put, and the number of puts per batch. Then it measures the latency
//! of reading pages of 500 keys.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints its results and fails by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_engine::{
    BoxFuture, DatabaseUrl, Destination, Engine, EngineOptions, Forward, ForwardError, Secret,
    ServerIdentity,
};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::StateOptions;
use quorate_state::mvcc::RangeQuery;
use quorate_telemetry::metrics::{Metrics, MetricsLevel};

const KEYS: u64 = 100_000;

struct Alone;

impl Forward for Alone {
    fn forward<'a>(
        &'a self,
        _: &'a Destination,
        _: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, ForwardError>> {
        Box::pin(async { Err(ForwardError::NotSent) })
    }
}

fn put(number: u64, value: &Bytes) -> pb::InternalRaftRequest {
    let key = Bytes::from(format!("/registry/pods/{number:08}"));
    let put = pb::PutRequest { key, value: value.clone(), ..pb::PutRequest::default() };
    pb::InternalRaftRequest { put: Some(put), ..pb::InternalRaftRequest::default() }
}

async fn client(engine: Engine, seed: u64, until: Instant) -> Vec<Duration> {
    let mut random = SplitMix64::new(seed);
    let value = Bytes::from(vec![b'x'; 256]);
    let mut times = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        engine.propose(put(random.below(KEYS), &value)).await.unwrap().unwrap();
        times.push(begun.elapsed());
    }
    times
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the first argument is the database URL");
    let seconds: u64 = arguments
        .next()
        .expect("the second argument is the duration of each run in seconds")
        .parse()
        .unwrap();
    let options = EngineOptions {
        database: DatabaseUrl::parse(&url, |name| std::env::var(name).ok()).unwrap(),
        server: ServerIdentity {
            id: 1,
            name: "puts".into(),
            address: String::new(),
            secret: Secret::generate().unwrap(),
            client_urls: Vec::new(),
        },
        state: StateOptions { quota_bytes: -1, ..StateOptions::default() },
        new_cluster_id: 1,
        metrics: Arc::new(Metrics::new(&[], MetricsLevel::Basic)),
        load_bytes_max: EngineOptions::LOAD_BYTES_MAX,
    };
    let engine = Engine::start(options, Arc::new(Alone)).await.unwrap();
    let value = Bytes::from_static(b"x");
    let filling: Vec<_> = (0..64)
        .map(|client| {
            let (engine, value) = (engine.clone(), value.clone());
            tokio::spawn(async move {
                for number in (client..KEYS).step_by(64) {
                    engine.propose(put(number, &value)).await.unwrap().unwrap();
                }
            })
        })
        .collect();
    for task in filling {
        task.await.unwrap();
    }
    println!("clients  puts/s   p50 ms   p99 ms  puts/batch");
    for count in arguments {
        let count: u64 = count.parse().unwrap();
        let before = engine.status();
        let begun = Instant::now();
        let until = begun + Duration::from_secs(seconds);
        let tasks: Vec<_> =
            (0..count).map(|seed| tokio::spawn(client(engine.clone(), seed + 1, until))).collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.unwrap());
        }
        let elapsed = begun.elapsed().as_secs_f64();
        times.sort_unstable();
        let batches = engine.status().log_position - before.log_position;
        let done = f64::from(u32::try_from(times.len()).unwrap());
        println!(
            "{count:7} {:7.0} {:8.2} {:8.2} {:11.1}",
            done / elapsed,
            percentile(&times, 50),
            percentile(&times, 99),
            done / f64::from(u32::try_from(batches.max(1)).unwrap())
        );
    }
    pages(&engine).await;
    engine.stop().await;
}

async fn pages(engine: &Engine) {
    let mut times = Vec::new();
    for number in 0..50 {
        let query = RangeQuery {
            key: Bytes::from(format!("/registry/pods/{:08}", number * 1_000)),
            range_end: Bytes::from_static(b"/registry/pods0"),
            limit: 500,
            ..RangeQuery::default()
        };
        let begun = Instant::now();
        engine.barrier().await.unwrap();
        let found = engine.range(&query, &mut |_| true).await.unwrap().unwrap();
        times.push(begun.elapsed());
        assert_eq!(found.kvs.len(), 500);
    }
    times.sort_unstable();
    println!(
        "page of 500 keys: p50 {:.2} ms, p99 {:.2} ms",
        percentile(&times, 50),
        percentile(&times, 99)
    );
}
