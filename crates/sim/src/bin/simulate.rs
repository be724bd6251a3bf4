//! The simulator program. Each thread runs one seed after another, and the program prints the results.
//!
//! `cargo xtask sim` builds and starts the program. For each failing seed of a batch, the program prints the failure
//! and the command that repeats the seed with fewer faults. The last line reads `N seeds, H cluster-hours, F failures`.
//!
//! # Not here
//!
//! The runs themselves, which the library implements. The clock and the threads of this program cannot influence a run.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program uses a clock and threads; the simulated runs do not"
)]

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_sim::clock::SECOND;
use quorate_sim::plan::{Kind, Plan, Reduction, Theme};
use quorate_sim::rare_states::RareStates;
use quorate_sim::run::{run, shrink};
use quorate_sim::trace::Sink;

const USAGE: &str = "\
usage: cargo xtask sim [--seeds N | --hours N | --minutes N] [--first S] [--threads N] [--theme T]
                        [--until-failure]
       cargo xtask sim --seed S [--trace] [--without KIND,KIND] [--seconds N]

  --seeds N     runs N seeds (default: 100)
  --hours N     runs seeds for N cluster-hours
  --minutes N   runs seeds for N minutes of real time
  --first S     starts with seed S (default: 1)
  --threads N   runs N seeds in parallel (default: one per core)
  --theme T     runs only seeds with this theme (Elections, Snapshots, ...)
  --until-failure
                stops at the first failed seed
  --seed S      runs one seed
  --trace       prints the trace of the run
  --without K   omits the listed kinds of faults and activities
  --seconds N   stops faults after N seconds
";

/// The maximum number of characters to print per failure text.
const FAILURE_CHARS_MAX: usize = 2_000;

/// The command-line arguments.
#[derive(Debug, Default)]
struct Args {
    seed: Option<u64>,
    first: u64,
    seeds: Option<u64>,
    hours: Option<u64>,
    minutes: Option<u64>,
    threads: usize,
    until_failure: bool,
    theme: Option<Theme>,
    trace: bool,
    reduction: Reduction,
}

impl Args {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut args = Self { first: 1, threads: cores, ..Self::default() };
        while let Some(flag) = words.next() {
            if flag == "--help" {
                return Err(USAGE.to_owned());
            }
            if flag == "--trace" {
                args.trace = true;
                continue;
            }
            if flag == "--until-failure" {
                args.until_failure = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{flag} needs a value\n\n{USAGE}"))?;
            if flag == "--theme" {
                let theme = Theme::named(&value)
                    .ok_or_else(|| format!("--theme: unknown theme: {value}"))?;
                args.theme = Some(theme);
                continue;
            }
            let number =
                || value.parse::<u64>().map_err(|_| format!("{flag} needs a number, not {value}"));
            match flag.as_str() {
                "--seed" => args.seed = Some(number()?),
                "--first" => args.first = number()?,
                "--seeds" => args.seeds = Some(number()?),
                "--hours" => args.hours = Some(number()?),
                "--minutes" => args.minutes = Some(number()?),
                "--threads" => args.threads = usize::try_from(number()?).unwrap_or(1).max(1),
                "--seconds" => args.reduction.seconds_max = Some(number()?),
                "--without" => {
                    for name in value.split(',').filter(|name| !name.is_empty()) {
                        let kind = Kind::named(name).ok_or_else(|| {
                            format!("--without: unknown kind of fault or activity: {name}")
                        })?;
                        args.reduction.without.insert(kind);
                    }
                }
                _ => return Err(format!("unknown option {flag}\n\n{USAGE}")),
            }
        }
        Ok(args)
    }
}

/// The results of all runs so far.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    micros: u64,
    events: u64,
    failed: Vec<u64>,
    rare_states: RareStates,
}

fn main() -> ExitCode {
    let args = match Args::read(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(text) => {
            print_error(&text);
            return ExitCode::from(2);
        }
    };
    // The hook prints nothing, because each run reports its own panic as a failure.
    panic::set_hook(Box::new(|_| ()));
    let origin = Instant::now();
    match args.seed {
        Some(seed) => run_one(seed, &args, origin),
        None => run_many(&args, origin),
    }
}

fn run_one(seed: u64, args: &Args, origin: Instant) -> ExitCode {
    if args.trace {
        panic::set_hook(Box::new(|info| print_error(&info.to_string())));
    }
    let sink: Option<Sink> = args.trace.then(|| Box::new(|line: String| print(&line)) as Sink);
    let run = run(seed, &args.reduction, origin, sink);
    print(&format!("trace sum {:016x}, {} events", run.sum, run.events));
    for (what, count) in run.rare_states.iter() {
        print(&format!("{count:>6} {what}"));
    }
    if let Some(failure) = &run.failure {
        print(&format!("seed {seed}: {failure}"));
    }
    conclude(1, run.duration, u64::from(run.failure.is_some()))
}

fn run_many(args: &Args, origin: Instant) -> ExitCode {
    let next = AtomicU64::new(args.first);
    let is_over = AtomicBool::new(false);
    let tally = Mutex::new(Tally::default());
    let seeds = args.seeds.unwrap_or(match (args.hours, args.minutes) {
        (None, None) => 100,
        _ => u64::MAX,
    });
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - args.first >= seeds {
                        return;
                    }
                    let theme = Plan::draw(seed, &args.reduction).theme;
                    if args.theme.is_some_and(|wanted| wanted != theme) {
                        continue;
                    }
                    let passed = run_seed(seed, args, origin, &tally);
                    let micros = lock(&tally).micros;
                    let has_hours = args.hours.is_some_and(|hours| micros >= hours * 3600 * SECOND);
                    let minutes = args.minutes.map(|minutes| Duration::from_secs(minutes * 60));
                    let has_minutes = minutes.is_some_and(|most| origin.elapsed() >= most);
                    if has_hours || has_minutes || args.until_failure && !passed {
                        is_over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (what, count) in tally.rare_states.iter() {
        print(&format!("{count:>9} {what}"));
    }
    for what in tally.rare_states.unreached() {
        print(&format!("    never: {what}"));
    }
    let took = origin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rough figure is sufficient")]
    let times = tally.micros as f64 / 1e6 / took;
    print(&format!("{} events; {times:.0} times as fast as real time", tally.events));
    conclude(tally.seeds, tally.micros, tally.failed.len() as u64)
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a seed. If the run fails, reduces it and prints the failure. Returns whether the run passed.
fn run_seed(seed: u64, args: &Args, origin: Instant, tally: &Mutex<Tally>) -> bool {
    let run = run(seed, &args.reduction, origin, None);
    {
        let mut tally = lock(tally);
        tally.seeds += 1;
        tally.micros += run.duration;
        tally.events += run.events;
        tally.rare_states.merge(&run.rare_states);
    }
    let Some(failure) = run.failure else { return true };
    lock(tally).failed.push(seed);
    let text: String = failure.chars().take(FAILURE_CHARS_MAX).collect();
    print(&format!("seed {seed} failed: {text}"));
    let reduction = shrink(seed, &failure, origin, |_, _| ());
    let mut command = format!("cargo xtask sim --seed {seed}");
    if !reduction.without.is_empty() {
        let names: Vec<String> = reduction.without.iter().map(ToString::to_string).collect();
        command.push_str(" --without ");
        command.push_str(&names.join(","));
    }
    if let Some(seconds) = reduction.seconds_max {
        command.push_str(" --seconds ");
        command.push_str(&seconds.to_string());
    }
    print(&format!("to repeat the run with fewer faults: {command} --trace"));
    false
}

fn conclude(seeds: u64, micros: u64, failures: u64) -> ExitCode {
    #[expect(clippy::cast_precision_loss, reason = "hours are printed to a tenth")]
    let hours = micros as f64 / 3.6e9;
    print(&format!("{seeds} seeds, {hours:.1} cluster-hours, {failures} failures"));
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::print_stdout, reason = "this is a command-line program")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "this is a command-line program")]
fn print_error(line: &str) {
    eprintln!("{line}");
}
