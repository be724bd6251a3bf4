//! Cases on 1,000,000 keys written in random order, which measure the cost of a large member.
//!
//! Each server goes through the same sequence: writing all keys, overwriting all keys, a restart, a paged walk,
//! compaction of all superseded revisions during puts, and defragmentation during puts. The servers run one after the
//! other, so that they do not compete for memory. A pair consists of one sequence for each server.

use std::time::Instant;

use super::Options;
use super::server::{Programs, Server};
use super::service::{Service, checked, number};
use super::table::{Row, median};
use crate::say;

/// The names of the cases.
pub(super) const NAMES: [&str; 5] = ["memory", "restart", "compaction", "defrag", "walk"];

const KEYS: u64 = 1_000_000;
/// The number of pages read at each end of the walk.
const WALK_PAGES: &str = "100";
const WALK_LIMIT: u64 = 500;
/// The load whose latency shows how much a maintenance task disturbs clients. Its rate is fixed.
const PROBE: [&str; 5] = ["put", "--clients", "10", "--rate", "200"];

/// The measurements of one sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    loaded_bytes: f64,
    overwritten_bytes: f64,
    restarted_bytes: f64,
    restart_seconds: f64,
    first_page_us: f64,
    last_page_us: f64,
    compaction_cpu_seconds: f64,
    idle_p99_ms: f64,
    compaction_p99_ms: f64,
    /// The size of the file after defragmentation, divided by its bytes in use.
    file_slack: f64,
    defrag_longest_put_ms: f64,
}

/// Runs the chosen cases.
pub(super) fn run(programs: &Programs, options: &Options) -> Result<Vec<Row>, String> {
    if !NAMES.iter().any(|name| options.wants(name)) {
        return Ok(Vec::new());
    }
    let mut sequences = Vec::new();
    for pair in 1..=options.pairs {
        say(&format!("compare: sequence {pair} of {}", options.pairs));
        let [etcd, quorate] = &programs.sides;
        sequences.push([
            run_sequence(Server::start(etcd, programs)?, options)?,
            run_sequence(Server::start(quorate, programs)?, options)?,
        ]);
    }
    Ok(rows(&sequences, options))
}

fn run_sequence(mut server: Server, options: &Options) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let keys = options.amount(KEYS).to_string();
    let fill = ["fill", "--order", "random", "--keys", &keys, "--clients", "1000"];
    checked(server.service().bench(&fill)?)?;
    figures.loaded_bytes = server.resident_bytes()?;
    if options.wants("memory") || options.wants("compaction") || options.wants("defrag") {
        let again = [&fill[..], &["--seed", "2"]].concat();
        checked(server.service().bench(&again)?)?;
        figures.overwritten_bytes = server.resident_bytes()?;
    }
    if options.wants("memory") || options.wants("restart") {
        server.stop()?;
        figures.restart_seconds = server.run()?.as_secs_f64();
        figures.restarted_bytes = server.resident_bytes()?;
    }
    if options.wants("walk") {
        (figures.first_page_us, figures.last_page_us) = walk(&server.service(), options)?;
    }
    if options.wants("compaction") || options.wants("defrag") {
        compact(&server.service(), &keys, &mut figures)?;
    }
    if options.wants("defrag") {
        defragment(&server.service(), &keys, &mut figures)?;
    }
    server.stop()?;
    Ok(figures)
}

/// Measures the cost of a page at the start of a walk and at its end, in microseconds.
fn walk(service: &Service, options: &Options) -> Result<(f64, f64), String> {
    let keys = options.amount(KEYS);
    let pages: u64 = WALK_PAGES.parse().expect("WALK_PAGES is a number");
    let (limit, count) = (WALK_LIMIT.to_string(), keys.to_string());
    let last = (keys / WALK_LIMIT).saturating_sub(pages).to_string();
    let page = |first: &str| {
        let args = ["list", "--walk", "--limit", &limit, "--keys", &count, "--first-page", first];
        let args = [&args[..], &["--clients", "1", "--total", WALK_PAGES]].concat();
        let report = checked(service.bench(&args)?)?;
        Ok::<_, String>(number(&report, "/servers/0/cpu_us_per_operation"))
    };
    Ok((page("0")?, page(&last)?))
}

/// Compacts all superseded revisions while puts run.
fn compact(service: &Service, keys: &str, figures: &mut Figures) -> Result<(), String> {
    let probe = [&PROBE[..], &["--keys", keys]].concat();
    let idle = checked(service.bench(&[&probe[..], &["--duration", "10s"]].concat())?)?;
    figures.idle_p99_ms = number(&idle, "/latency_us/p99") / 1e3;
    let put_cpu_us = number(&idle, "/servers/0/cpu_us_per_operation");
    let revision = number(&service.status()?, "/header/revision").to_string();
    let meanwhile = [&probe[..], &["--duration", "600s"]].concat();
    let puts = service.bench_in_background(&meanwhile)?;
    service.ctl(&["compaction", &revision, "--physical"])?;
    let puts = checked(puts.finish()?)?;
    figures.compaction_p99_ms = number(&puts, "/latency_us/p99") / 1e3;
    let of_puts = put_cpu_us * number(&puts, "/count") / 1e6;
    figures.compaction_cpu_seconds = number(&puts, "/servers/0/cpu_seconds") - of_puts;
    Ok(())
}

/// Defragments while puts run.
fn defragment(service: &Service, keys: &str, figures: &mut Figures) -> Result<(), String> {
    let before = number(&service.status()?, "/dbSize") / 1e6;
    let meanwhile = [&PROBE[..], &["--keys", keys, "--duration", "600s"]].concat();
    let puts = service.bench_in_background(&meanwhile)?;
    let start = Instant::now();
    service.ctl(&["defrag"])?;
    let took = start.elapsed().as_secs_f64();
    let puts = checked(puts.finish()?)?;
    figures.defrag_longest_put_ms = number(&puts, "/latency_us/max") / 1e3;
    let status = service.status()?;
    let (after, used) = (number(&status, "/dbSize") / 1e6, number(&status, "/dbSizeInUse") / 1e6);
    figures.file_slack = after / used;
    say(&format!(
        "compare: defragmented in {took:.2} s, from {before:.0} MB to {after:.0} MB, of which {used:.0} MB are in use"
    ));
    Ok(())
}

fn rows(sequences: &[[Figures; 2]], options: &Options) -> Vec<Row> {
    let pairs = |figure: fn(&Figures) -> f64| -> Vec<(f64, f64)> {
        sequences.iter().map(|[etcd, quorate]| (figure(etcd), figure(quorate))).collect()
    };
    let ours = |figure: fn(&Figures) -> f64| {
        median(sequences.iter().map(|[_, quorate]| figure(quorate)).collect())
    };
    let keys = if options.quick { "200k keys" } else { "1 M keys" };
    let mut rows = Vec::new();
    if options.wants("memory") {
        let memory = |when: &str, figure| {
            Row::of_pairs(format!("memory, {keys}, {when}"), "MB", &pairs(figure), 0.5)
        };
        rows.push(memory("loaded", |figures| figures.loaded_bytes / 1e6));
        rows.push(memory("all overwritten", |figures| figures.overwritten_bytes / 1e6));
        rows.push(memory("after a restart", |figures| figures.restarted_bytes / 1e6));
    }
    if options.wants("restart") {
        let work = format!("time from restart until ready, {keys}");
        rows.push(Row::of_pairs(work, "s", &pairs(|figures| figures.restart_seconds), 0.25));
    }
    if options.wants("walk") {
        let growth = |figures: &Figures| figures.last_page_us / figures.first_page_us;
        rows.push(Row {
            measured: ours(growth),
            target: Some(1.1),
            ..Row::of_pairs(
                format!("paged walk of {keys}, last page ÷ first page"),
                "",
                &pairs(growth),
                0.0,
            )
        });
    }
    if options.wants("compaction") {
        let cpu = pairs(|figures| figures.compaction_cpu_seconds);
        rows.push(Row::of_pairs(format!("compaction, {keys} superseded, CPU"), "s", &cpu, 0.15));
        let slowdown = |figures: &Figures| figures.compaction_p99_ms / figures.idle_p99_ms;
        rows.push(Row {
            measured: ours(slowdown),
            target: Some(2.0),
            ..Row::of_pairs("put p99 during compaction ÷ idle", "", &pairs(slowdown), 0.0)
        });
    }
    if options.wants("defrag") {
        let longest = |figures: &Figures| figures.defrag_longest_put_ms;
        rows.push(Row {
            measured: ours(longest),
            target: Some(50.0),
            is_ratio: false,
            ..Row::of_pairs("longest put during defragmentation", "ms", &pairs(longest), 0.0)
        });
        let slack = |figures: &Figures| figures.file_slack;
        rows.push(Row {
            measured: ours(slack),
            target: Some(1.1),
            ..Row::of_pairs(
                "file size after defragmentation ÷ bytes in use",
                "",
                &pairs(slack),
                0.0,
            )
        });
    }
    rows
}
