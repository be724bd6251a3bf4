//! The simulator as a program: it runs one seed after the other on each core, and prints the results.
//!
//! `cargo xtask sim` builds and starts it. For a seed that fails it prints what was wrong and the one command that runs
//! the seed again with as few faults as possible. The last line reads `N seeds, H cluster-hours, F failures`.
//!
//! # Not here
//!
//! Everything that a run consists of (the library). This program has a clock and threads, and no influence on runs.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program has a clock and threads; the runs have neither"
)]

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_sim::clock::SECOND;
use quorate_sim::plan::{Kind, Less, Plan};
use quorate_sim::run::{run, shrink};
use quorate_sim::seen::Seen;
use quorate_sim::trace::Sink;

const USAGE: &str = "\
usage: cargo xtask sim [--seeds N | --hours N | --minutes N] [--first S] [--threads N] [--theme T]
                        [--until-failure]
       cargo xtask sim --seed S [--trace] [--without KIND,KIND] [--seconds N]

  --seeds N     runs N seeds (100)
  --hours N     runs seeds until they come to N cluster-hours
  --minutes N   runs seeds for N minutes of real time
  --first S     begins with seed S (1)
  --threads N   runs so many at a time (as many as there are cores)
  --theme T     runs only those that are about this (Elections, Snapshots, ...)
  --until-failure
                ends with the first seed that fails
  --seed S      runs one seed
  --trace       prints everything that happens in it
  --without K   leaves out kinds of faults and acts that it has drawn
  --seconds N   lets nothing go wrong after N seconds
";

/// Characters that are shown of what was wrong.
const SAID_MAX: usize = 2_000;

/// What is asked for.
#[derive(Debug, Default)]
struct Wanted {
    seed: Option<u64>,
    first: u64,
    seeds: Option<u64>,
    hours: Option<u64>,
    minutes: Option<u64>,
    threads: usize,
    until_failure: bool,
    theme: Option<String>,
    trace: bool,
    less: Less,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut wanted = Self { first: 1, threads: cores, ..Self::default() };
        while let Some(flag) = args.next() {
            if flag == "--help" {
                return Err(USAGE.to_owned());
            }
            if flag == "--trace" {
                wanted.trace = true;
                continue;
            }
            if flag == "--until-failure" {
                wanted.until_failure = true;
                continue;
            }
            let value =
                args.next().ok_or_else(|| format!("{flag}: a value is missing\n\n{USAGE}"))?;
            if flag == "--theme" {
                wanted.theme = Some(value);
                continue;
            }
            let number =
                || value.parse::<u64>().map_err(|_| format!("{flag}: {value} is no number"));
            match flag.as_str() {
                "--seed" => wanted.seed = Some(number()?),
                "--first" => wanted.first = number()?,
                "--seeds" => wanted.seeds = Some(number()?),
                "--hours" => wanted.hours = Some(number()?),
                "--minutes" => wanted.minutes = Some(number()?),
                "--threads" => wanted.threads = usize::try_from(number()?).unwrap_or(1).max(1),
                "--seconds" => wanted.less.seconds_max = Some(number()?),
                "--without" => {
                    for name in value.split(',').filter(|name| !name.is_empty()) {
                        let kind =
                            Kind::named(name).ok_or_else(|| format!("there is no {name}"))?;
                        wanted.less.without.insert(kind);
                    }
                }
                _ => return Err(format!("{flag} is not known\n\n{USAGE}")),
            }
        }
        Ok(wanted)
    }
}

/// What has come of all runs so far.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    micros: u64,
    events: u64,
    failed: Vec<u64>,
    seen: Seen,
}

fn main() -> ExitCode {
    let wanted = match Wanted::read(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(words) => {
            say(&words);
            return ExitCode::from(2);
        }
    };
    // What a run panics of is told with the run.
    panic::set_hook(Box::new(|_| ()));
    let origin = Instant::now();
    match wanted.seed {
        Some(seed) => run_one(seed, &wanted, origin),
        None => run_many(&wanted, origin),
    }
}

fn run_one(seed: u64, wanted: &Wanted, origin: Instant) -> ExitCode {
    if wanted.trace {
        panic::set_hook(Box::new(|info| say(&info.to_string())));
    }
    let sink: Option<Sink> = wanted.trace.then(|| Box::new(|line: String| print(&line)) as Sink);
    let run = run(seed, &wanted.less, origin, sink);
    print(&format!("sum {:016x}, {} events", run.sum, run.events));
    for (what, count) in run.seen.iter() {
        print(&format!("{count:>6} {what}"));
    }
    if let Some(wrong) = &run.wrong {
        print(&format!("seed {seed}: {wrong}"));
    }
    conclude(1, run.lasted, u64::from(run.wrong.is_some()))
}

fn run_many(wanted: &Wanted, origin: Instant) -> ExitCode {
    let next = AtomicU64::new(wanted.first);
    let is_over = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    let seeds = wanted.seeds.unwrap_or(match (wanted.hours, wanted.minutes) {
        (None, None) => 100,
        _ => u64::MAX,
    });
    std::thread::scope(|scope| {
        for _ in 0..wanted.threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - wanted.first >= seeds {
                        return;
                    }
                    let theme = Plan::draw(seed, &wanted.less).theme.to_string();
                    if wanted.theme.as_ref().is_some_and(|wanted| *wanted != theme) {
                        continue;
                    }
                    let is_right = run_seed(seed, wanted, origin, &tally);
                    let micros = lock(&tally).micros;
                    let has_hours =
                        wanted.hours.is_some_and(|hours| micros >= hours * 3600 * SECOND);
                    let minutes = wanted.minutes.map(|minutes| Duration::from_secs(minutes * 60));
                    let has_minutes = minutes.is_some_and(|most| origin.elapsed() >= most);
                    if has_hours || has_minutes || wanted.until_failure && !is_right {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (what, count) in tally.seen.iter() {
        print(&format!("{count:>9} {what}"));
    }
    for what in tally.seen.never() {
        print(&format!("    never {what}"));
    }
    let took = origin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rough figure")]
    let times = tally.micros as f64 / 1e6 / took;
    print(&format!("{} events; {times:.0} times as fast as real time", tally.events));
    conclude(tally.seeds, tally.micros, tally.failed.len() as u64)
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a seed, and tells of it if it fails. Says whether it was right.
fn run_seed(seed: u64, wanted: &Wanted, origin: Instant, tally: &Mutex<Tally>) -> bool {
    let run = run(seed, &wanted.less, origin, None);
    {
        let mut tally = lock(tally);
        tally.seeds += 1;
        tally.micros += run.lasted;
        tally.events += run.events;
        tally.seen.merge(&run.seen);
    }
    let Some(wrong) = run.wrong else { return true };
    lock(tally).failed.push(seed);
    let words: String = wrong.chars().take(SAID_MAX).collect();
    print(&format!("seed {seed} fails: {words}"));
    let less = shrink(seed, &wrong, origin, |_, _| ());
    let mut command = format!("cargo xtask sim --seed {seed}");
    if !less.without.is_empty() {
        let names: Vec<String> = less.without.iter().map(ToString::to_string).collect();
        command.push_str(" --without ");
        command.push_str(&names.join(","));
    }
    if let Some(seconds) = less.seconds_max {
        command.push_str(" --seconds ");
        command.push_str(&seconds.to_string());
    }
    print(&format!("again, with as little as it takes: {command} --trace"));
    false
}

fn conclude(seeds: u64, micros: u64, failures: u64) -> ExitCode {
    #[expect(clippy::cast_precision_loss, reason = "hours, to a tenth")]
    let hours = micros as f64 / 3.6e9;
    print(&format!("{seeds} seeds, {hours:.1} cluster-hours, {failures} failures"));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::print_stdout, reason = "this is a command-line program")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "this is a command-line program")]
fn say(line: &str) {
    eprintln!("{line}");
}
