//! `check perf`: sends puts at a fixed rate for one minute, and checks whether the throughput and the latency are
//! acceptable.

use std::time::Duration;

use super::load::{Load, Summary, run as put};
use super::{AUTO_COMPACT, AUTO_DEFRAG, clean_up, load_of, require_empty, tell_errors};
use crate::command::Command;
use crate::failure::{Failure, exit};
use crate::flags::Flag;
use crate::session::Session;

pub(super) const PERF: Command = Command {
    usage: "perf [options]",
    short: "Check the performance of the etcd cluster",
    flags: &[
        Flag::text(
            "load",
            "s",
            "The performance check's workload model. Accepted workloads: s(small), m(medium), l(large), xl(xLarge). \
             Different workload models use different configurations in terms of number of clients and expected throughput.",
        ),
        Flag::text(
            "prefix",
            "/etcdctl-check-perf/",
            "The prefix for writing the performance check's keys.",
        ),
        AUTO_COMPACT,
        AUTO_DEFRAG,
    ],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

/// Puts per second and number of clients for each load size.
const LOADS: [(u32, usize); 4] = [(150, 50), (1000, 200), (8000, 500), (15_000, 1000)];
const TIME: Duration = Duration::from_secs(60);
const KEY_BYTES: usize = 256;
const VALUE_BYTES: usize = 1024;

/// Minimum fraction of the requested rate that a cluster must reach.
const SHARE_MIN: f64 = 0.9;
const SLOWEST_SECS_MAX: f64 = 0.5;
const DEVIATION_SECS_MAX: f64 = 0.1;

async fn run(session: &Session) -> Result<(), Failure> {
    let (per_sec, clients) = LOADS[load_of(session)?];
    let client = session.client().await?;
    require_empty(session, &client, "'etcdctl del --prefix PREFIX'").await?;
    let load = Load {
        clients,
        count: None,
        per_sec: Some(per_sec),
        time: Some(TIME),
        key_bytes: KEY_BYTES,
        value_bytes: VALUE_BYTES,
    };
    let summary = put(session, load).await?;
    clean_up(session, &client).await?;
    tell_errors(session, &summary)?;
    let (passes, text) = verdict(&summary, per_sec);
    session.print(&text)?;
    if passes { Ok(()) } else { Err(Failure::silent(exit::ERROR)) }
}

fn verdict(summary: &Summary, wanted_per_sec: u32) -> (bool, String) {
    // A cluster that has not answered any request also counts as slow.
    let (reached, slowest) = (summary.per_sec(), summary.slowest_secs);
    let deviation = if summary.done == 0 { f64::INFINITY } else { summary.deviation_secs() };
    let is_enough = reached / f64::from(wanted_per_sec) > SHARE_MIN;
    let shown = reached.floor() + 1.0;
    let mut text = if is_enough {
        format!("PASS: Throughput is {shown:.0} writes/s\n")
    } else {
        format!("FAIL: Throughput too low: {shown:.0} writes/s\n")
    };
    let is_fast = slowest <= SLOWEST_SECS_MAX;
    text.push_str(&if is_fast {
        format!("PASS: Slowest request took {slowest:.6}s\n")
    } else {
        format!("Slowest request took too long: {slowest:.6}s\n")
    });
    let is_steady = deviation <= DEVIATION_SECS_MAX;
    text.push_str(&if is_steady {
        format!("PASS: Stddev is {deviation:.6}s\n")
    } else {
        format!("Stddev too high: {deviation:.6}s\n")
    });
    let passes = is_enough && is_fast && is_steady && summary.errors.is_empty();
    text.push_str(if passes { "PASS\n" } else { "FAIL\n" });
    (passes, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_passes_only_with_enough_throughput_low_latency_and_no_errors() {
        let summary = Summary { took: TIME, done: 8999, ..Summary::default() };
        let (passes, text) = verdict(&summary, 150);
        assert!(passes, "{text}");
        let throughput = "PASS: Throughput is 150 writes/s\n";
        let slowest = "PASS: Slowest request took 0.000000s\n";
        assert_eq!(text, format!("{throughput}{slowest}PASS: Stddev is 0.000000s\nPASS\n"));
        let slow = Summary { slowest_secs: 0.6, done: 8000, took: TIME, ..Summary::default() };
        let (passes, text) = verdict(&slow, 150);
        assert!(!passes && text.ends_with("\nFAIL\n"), "{text}");
        assert!(text.starts_with(
            "FAIL: Throughput too low: 134 writes/s\nSlowest request took too long: 0.600000s\n"
        ));
        let errors = [("x".to_owned(), 1)].into();
        let failed = Summary { errors, ..summary };
        assert!(!verdict(&failed, 150).0);
        assert!(!verdict(&Summary { took: TIME, ..Summary::default() }, 150).0);
    }
}
