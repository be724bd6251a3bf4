//! Cases on three-member clusters that lose a member. One case measures how long the service is unavailable after the
//! leader is killed. The other case measures the cost of a member's return after a long absence.
//!
//! Members run with etcd's default timing (heartbeats every 100 ms, elections after 1,000 ms).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Options;
use super::cluster::Cluster;
use super::server::{Programs, Side};
use super::service::{Service, checked, number};
use super::table::{Row, median};
use crate::say;

/// The names of the cases.
pub(super) const NAMES: [&str; 2] = ["cluster-failover", "cluster-catch-up"];

const MEMBERS: usize = 3;
/// How many times the leader of each compared cluster is killed in a pair of measurements.
const KILLS: usize = 5;
/// The load sent to the other two members while the leader is killed. It is open-loop, because the requests that the
/// old leader had accepted are lost, and clients that wait for responses would wait for the full request timeout.
const LOAD: [&str; 7] = ["put", "--rate", "500", "--clients", "8000", "--connections", "8"];
/// How long the load runs before the kill and after the election.
const AROUND: Duration = Duration::from_secs(2);
/// The maximum difference between the time of the kill and the time of the last acknowledged put before the outage, in
/// seconds. Either may come first.
const SLACK_SECONDS: f64 = 0.2;

/// The number of entries that the stopped member misses.
const MISSED: u64 = 1_000_000;
const AFTER_FILL: Duration = Duration::from_secs(5);
/// The load whose latency shows how much the member's return disturbs other clients.
const PROBE: [&str; 5] = ["put", "--clients", "10", "--rate", "500"];

/// Runs the chosen cases.
pub(super) fn run(programs: &Programs, options: &Options) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    if options.wants("cluster-failover") {
        rows.push(failover(programs, options)?);
    }
    if options.wants("cluster-catch-up") {
        rows.extend(catch_up(programs, options)?);
    }
    Ok(rows)
}

fn failover(programs: &Programs, options: &Options) -> Result<Row, String> {
    let mut outages = [Vec::new(), Vec::new()];
    for pair in 1..=options.pairs {
        say(&format!("compare: cluster-failover, {pair} of {}", options.pairs));
        for (side, outages) in programs.sides.iter().zip(&mut outages) {
            let mut cluster = Cluster::start(side, programs, MEMBERS)?;
            for _ in 0..KILLS {
                let outage = kill_leader(&mut cluster)?;
                say(&format!(
                    "compare: {} did not acknowledge puts for {:.0} ms",
                    side.name,
                    outage * 1e3
                ));
                outages.push(outage * 1e3);
            }
        }
    }
    let work = format!(
        "time from killing the leader until the first acknowledged put, median of {}",
        outages[0].len()
    );
    // The duration of an election is random, so a single outage of etcd cannot be compared with a single outage of
    // Quorate. The medians are compared instead.
    let medians = outages.map(median);
    Ok(Row::of_pairs(work, "ms", &[(medians[0], medians[1])], 1.0))
}

/// Kills the leader under load. Returns the time from the kill to the end of the longest period without an acknowledged
/// put, in seconds.
fn kill_leader(cluster: &mut Cluster) -> Result<f64, String> {
    let leader = cluster.leader()?;
    let args = [&LOAD[..], &["--duration", "600s"]].concat();
    let load = cluster.service_without(leader)?.bench_in_background(&args)?;
    std::thread::sleep(AROUND);
    let killed_at = unix_seconds();
    cluster.member(leader).kill()?;
    cluster.leader()?;
    std::thread::sleep(AROUND);
    // The requests lost with the leader are reported as errors.
    let report = load.finish()?;
    let began = number(&report, "/longest_silence/began_unix_seconds");
    let ended = began + number(&report, "/longest_silence/seconds");
    if (began - killed_at).abs() > SLACK_SECONDS || ended < killed_at {
        return Err(format!(
            "the longest period without an acknowledged put began {:.3} s after the kill, which did not cause it",
            began - killed_at
        ));
    }
    cluster.member(leader).run()?;
    cluster.wait_until_caught_up(leader)?;
    Ok(ended - killed_at)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The measurements of a member's return after an absence.
#[derive(Clone, Copy, Debug)]
struct Return {
    idle_p99_ms: f64,
    meanwhile_p99_ms: f64,
    seconds: f64,
}

impl Return {
    fn slowdown(&self) -> f64 {
        self.meanwhile_p99_ms / self.idle_p99_ms
    }
}

fn catch_up(programs: &Programs, options: &Options) -> Result<[Row; 2], String> {
    let mut pairs = Vec::new();
    for pair in 1..=options.pairs {
        say(&format!("compare: cluster-catch-up, {pair} of {}", options.pairs));
        let [etcd, quorate] = &programs.sides;
        pairs.push([
            catch_up_once(etcd, programs, options)?,
            catch_up_once(quorate, programs, options)?,
        ]);
    }
    let figures = |figure: fn(&Return) -> f64| -> Vec<(f64, f64)> {
        pairs.iter().map(|[etcd, quorate]| (figure(etcd), figure(quorate))).collect()
    };
    let latency = |side: usize| {
        let of = |figure: fn(&Return) -> f64| {
            median(pairs.iter().map(|pair| figure(&pair[side])).collect())
        };
        (of(|back| back.idle_p99_ms), of(|back| back.meanwhile_p99_ms))
    };
    for (side, (idle, meanwhile)) in programs.sides.iter().zip([latency(0), latency(1)]) {
        say(&format!(
            "compare: {}: put p99 {idle:.2} ms idle, {meanwhile:.2} ms while a member catches up",
            side.name
        ));
    }
    let missed = if options.quick { "200k" } else { "1 M" };
    let slowdown = figures(Return::slowdown);
    let ours = median(slowdown.iter().map(|pair| pair.1).collect());
    Ok([
        Row {
            measured: ours,
            ..Row::of_pairs(
                format!("put p99 while a member catches up on {missed} entries ÷ idle"),
                "",
                &slowdown,
                3.0,
            )
        },
        Row::of_pairs(
            "time from the member's start until it has caught up",
            "s",
            &figures(|back| back.seconds),
            None,
        ),
    ])
}

fn catch_up_once(side: &Side, programs: &Programs, options: &Options) -> Result<Return, String> {
    let mut cluster = Cluster::start(side, programs, MEMBERS)?;
    let keys = options.amount(MISSED).to_string();
    let away = cluster.follower()?;
    cluster.member(away).stop()?;
    let leader = cluster.leader()?;
    let service = cluster.service(leader).at_the_cost_of(Vec::new());
    let fill = ["fill", "--order", "random", "--keys", &keys, "--clients", "1000"];
    checked(service.bench(&fill)?)?;
    let probe = [&PROBE[..], &["--keys", &keys]].concat();
    // The disk may still be writing the keys of the fill, which would delay the measured puts.
    std::thread::sleep(AFTER_FILL);
    let idle_p99_ms = idle_p99_ms(&service, &probe)?;
    let (seconds, meanwhile) = come_back(&mut cluster, away, &service, &probe)?;
    Ok(Return {
        idle_p99_ms,
        meanwhile_p99_ms: number(&meanwhile, "/latency_us/p99") / 1e3,
        seconds,
    })
}

/// Measures the p99 latency of puts without other load, in milliseconds. The first puts of a run are slow, and have
/// more effect on the result of a short run. Therefore each run takes about as long as a member takes to catch up.
fn idle_p99_ms(service: &Service, probe: &[&str]) -> Result<f64, String> {
    const RUNS: usize = 3;
    let run = [probe, &["--duration", "4s"]].concat();
    let runs: Result<Vec<f64>, String> = (0..RUNS)
        .map(|_| Ok(number(&checked(service.bench(&run)?)?, "/latency_us/p99") / 1e3))
        .collect();
    Ok(median(runs?))
}

/// Starts the member again. Returns how long it took to catch up, in seconds, and the report of the puts during that
/// time.
fn come_back(
    cluster: &mut Cluster,
    away: usize,
    service: &Service,
    probe: &[&str],
) -> Result<(f64, serde_json::Value), String> {
    let puts = service.bench_in_background(&[probe, &["--duration", "600s"]].concat())?;
    let start = Instant::now();
    cluster.member(away).spawn()?;
    cluster.wait_until_caught_up(away)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((seconds, checked(puts.finish()?)?))
}
