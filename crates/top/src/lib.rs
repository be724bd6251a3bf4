//! `quorate ctl top`: a live view of a cluster with its members, requests, latencies, watches, leases and
//! prefixes.
//!
//! ```text
//! collect ──► sample ──► report ──► screen ──► console      (text or JSON if the output is not a terminal)
//! walking, watching ──► prefixes ──┘     ▲
//!                            keys ──► view
//! ```
//!
//! The web console shows the same figures. Like any program with its own display, it uses `Reports` and `PrefixMeter`.
//!
//! Everything between `collect` and `console` is a pure function of values: `report` reads no clock, and
//! `screen` needs no terminal.
//!
//! # Guarantees
//!
//! - `top` uses only public interfaces, so it shows Quorate and etcd alike. A value that a member does not report is
//!   shown as missing. If a member is unreachable, `top` continues.
//! - The load on the cluster is bounded, regardless of the amount of data: see `collect`, `walking`, `watching` and
//!   decision 0024.

mod collect;
mod console;
pub mod json;
mod line;
pub mod metrics;
mod panes;
pub mod prefixes;
mod programs;
pub mod report;
pub mod sample;
mod screen;
mod shared;
mod table;
mod text;
mod view;
mod walking;
mod watching;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal as _, stdout};
use std::time::{Duration, SystemTime};

use quorate_cli::flags::{Flag, Matches};
use quorate_cli::gotext;
use quorate_client as client;
use quorate_client::transport::Transport;
use quorate_client::{events, failure, key_range, listed};
use tokio::time::{Instant, sleep_until};

use self::collect::Collector;
use self::console::{Console, TerminalEvent};
use self::prefixes::Shape;
pub use self::programs::{PrefixMeter, Reports};
use self::report::{History, Prefixes, Report};
use self::shared::{Shared, Watching};
use self::view::{INTERVAL_MIN, Sort, View};
use self::watching::Clock;
use crate::client::Client;
use crate::failure::{Failure, exit};
use crate::gotext::quote;

/// The width of printed tables if neither `COLUMNS` nor a terminal determines it.
const PRINTED_WIDTH: usize = 120;
/// The maximum width of printed tables.
const PRINTED_WIDTH_MAX: usize = 1000;
/// The maximum number of separators in a prefix.
const DEPTH_MAX: u64 = 32;

/// The flags of `ctl top`.
pub const FLAGS: &[Flag] = &[
    Flag::bool(
        "batch",
        "Print reports instead of drawing the screen; the default if standard output is not a terminal",
    ),
    Flag::duration("interval", "2s", "Refresh interval"),
    Flag::uint("iterations", "0", "Number of reports to print; 0 for no limit"),
    Flag::bool("no-count", "Do not count keys"),
    Flag::bool("no-watch", "Do not watch changes; write rates are then not shown"),
    Flag::bool("once", "Print one report after one interval, and exit"),
    Flag::text("prefix", "", "Show only keys with this prefix, and the prefixes below it"),
    Flag::uint(
        "prefix-depth",
        "2",
        "Number of separators in a prefix; a leading separator is not counted",
    ),
    Flag::text("separator", "/", "Separator between the parts of keys"),
    Flag::text(
        "sort",
        "bytes",
        "Sort order: bytes, keys, writes or prefix for prefixes; name, requests, latency, db or lag for members",
    ),
];

/// The endpoints of a cluster, and the settings of connections to them.
#[expect(missing_debug_implementations, reason = "closures have no useful debug output")]
pub struct Cluster<'a> {
    /// The endpoints from the command line.
    pub endpoints: Vec<String>,
    /// The TLS settings of connections to members.
    pub transport: Transport,
    /// Whether the clients have a password or a token.
    pub has_credentials: bool,
    /// Creates a client for these endpoints. The client is not logged in yet.
    pub connect: &'a dyn Fn(Vec<String>) -> Result<Client, Failure>,
}

/// The resources that `top` needs from the program that runs it.
#[expect(missing_debug_implementations, reason = "closures have no useful debug output")]
pub struct Host<'a> {
    /// The cluster to show.
    pub cluster: Cluster<'a>,
    /// Prints to standard output.
    pub print: &'a dyn Fn(&str) -> Result<(), Failure>,
    /// Takes standard input, from which `top` reads keys.
    pub take_input: &'a dyn Fn() -> Box<dyn BufRead + Send>,
}

/// The settings from the command line.
#[derive(Debug)]
pub struct Settings {
    view: View,
    shape: Shape,
    /// How reports are printed; `None` for a full-screen display.
    printed: Option<Printed>,
    counts: bool,
    watches: bool,
}

#[derive(Clone, Copy, Debug)]
struct Printed {
    /// The number of reports to print; `None` for no limit.
    times: Option<u64>,
    as_json: bool,
    width: usize,
}

impl Settings {
    /// Reads the settings from the values of [`FLAGS`]. `is_json` selects the format of printed reports, and `env`
    /// contains the environment variables that describe the terminal.
    pub fn of(
        matches: &Matches,
        is_json: bool,
        env: &BTreeMap<String, OsString>,
    ) -> Result<Self, Failure> {
        if !matches.args.is_empty() {
            return Err(Failure::bad_args("top command accepts no arguments"));
        }
        let interval = matches.duration("interval");
        if interval < INTERVAL_MIN {
            let least = gotext::duration(INTERVAL_MIN);
            return Err(Failure::bad_args(format!("--interval must be at least {least}")));
        }
        let mut view = View::new(interval);
        let sort = matches.text("sort");
        view.sort_by(Sort::named(sort).ok_or_else(|| {
            let text = format!("unknown sort flag {}", quote(sort.as_bytes()));
            Failure::new(exit::BAD_FEATURE, text)
        })?);
        let (depth, separator) = (matches.uint("prefix-depth"), matches.text("separator"));
        if !(1..=DEPTH_MAX).contains(&depth) {
            let text = format!("--prefix-depth must be from 1 to {DEPTH_MAX}");
            return Err(Failure::bad_args(text));
        }
        if separator.is_empty() {
            return Err(Failure::bad_args("--separator must not be empty"));
        }
        let shape = Shape {
            base: matches.text("prefix").into(),
            separator: separator.into(),
            depth: usize::try_from(depth).unwrap_or(1),
        };
        let printed = printed(matches, is_json, env);
        let (counts, watches) = (!matches.bool("no-count"), !matches.bool("no-watch"));
        Ok(Self { view, shape, printed, counts, watches })
    }
}

/// Returns how reports are printed; `None` if they are drawn in full-screen mode.
fn printed(matches: &Matches, as_json: bool, env: &BTreeMap<String, OsString>) -> Option<Printed> {
    let times = match (matches.bool("once"), matches.uint("iterations")) {
        (true, _) => Some(1),
        (false, 0) => None,
        (false, times) => Some(times),
    };
    let can_be_drawn = stdout().is_terminal()
        && env.get("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    if can_be_drawn && !as_json && times.is_none() && !matches.bool("batch") {
        return None;
    }
    let columns = env.get("COLUMNS").and_then(|columns| columns.to_str()?.parse().ok());
    let own = stdout().is_terminal().then(|| Console::size().0);
    let width = columns.or(own).unwrap_or(PRINTED_WIDTH).min(PRINTED_WIDTH_MAX);
    Some(Printed { times, as_json, width })
}

/// Shows the cluster until the user or a signal ends the display, or until the requested number of reports has been
/// printed.
pub async fn run(settings: Settings, host: &Host<'_>) -> Result<(), Failure> {
    let shared = Shared::new(settings.shape, settings.view.interval);
    if settings.watches {
        shared.watching.replace(Watching::On(100));
    }
    if !settings.counts {
        shared.uncounted.replace(Some("--no-count".to_owned()));
    }
    let clock = RefCell::new(Clock::new());
    let mut source = Source {
        collector: Collector::new(&host.cluster),
        history: History::default(),
        shared: &shared,
        clock: &clock,
    };
    let first = source.collector.sample(settings.view.interval).await;
    first.require_an_answer()?;
    let first = source.report(first);
    let showing = async {
        match settings.printed {
            Some(printed) => print(host, &mut source, &settings.view, printed).await,
            None => draw(host, &mut source, settings.view, first).await,
        }
    };
    tokio::select! {
        shown = showing => shown,
        () = walking::walk(&shared), if settings.counts => Ok(()),
        () = watching::watch(&shared, &clock), if settings.watches => Ok(()),
    }
}

/// Produces the reports to display.
struct Source<'a> {
    collector: Collector<'a>,
    history: History,
    shared: &'a Shared,
    clock: &'a RefCell<Clock>,
}

impl Source<'_> {
    async fn next(&mut self) -> Report {
        let sample = self.collector.sample(self.shared.interval.get()).await;
        self.report(sample)
    }

    fn report(&mut self, sample: sample::Sample) -> Report {
        self.shared.reader.replace(self.collector.reader());
        watching::turn(self.shared, self.clock);
        let rows = self.shared.catalog.borrow().rows();
        let prefixes = Prefixes { rows, note: self.shared.note(), age: self.shared.age() };
        self.history.advance(sample, prefixes)
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

async fn print(
    host: &Host<'_>,
    source: &mut Source<'_>,
    view: &View,
    printed: Printed,
) -> Result<(), Failure> {
    let mut due = Instant::now() + view.interval;
    let mut done = 0;
    while printed.times.is_none_or(|times| done < times) {
        sleep_until(due).await;
        due = Instant::now() + view.interval;
        let report = source.next().await;
        let text = match printed.as_json {
            true => json::line(&report, since_1970()),
            false => {
                let gap = if done == 0 { "" } else { "\n" };
                gap.to_owned() + &screen::print(&report, view, since_1970(), printed.width)
            }
        };
        (host.print)(&text)?;
        done += 1;
    }
    Ok(())
}

async fn draw(
    host: &Host<'_>,
    source: &mut Source<'_>,
    mut view: View,
    first: Report,
) -> Result<(), Failure> {
    let mut events = console::listen(host)?;
    let mut console = Console::take(host)?;
    let shared = source.shared;
    let report = RefCell::new(first);
    let renewed = tokio::sync::Notify::new();
    let renewing = async {
        let mut begun = Instant::now();
        loop {
            loop {
                // The user may change both the interval and the pause while this loop waits.
                let (due, is_paused) = (begun + shared.interval.get(), shared.is_paused.get());
                tokio::select! {
                    () = sleep_until(due), if !is_paused => break,
                    () = shared.turned.notified() => {}
                }
            }
            begun = Instant::now();
            let next = source.next().await;
            report.replace(next);
            renewed.notify_one();
        }
    };
    let showing = async {
        loop {
            let size = Console::size();
            let lines = screen::screen(&report.borrow(), &view, since_1970(), size);
            console.paint(host, &lines, size)?;
            tokio::select! {
                event = events.recv() => {
                    if handle(event, &mut view, &mut console, host)? {
                        return Ok(());
                    }
                }
                () = renewed.notified() => {}
            }
            let before = (shared.interval.get(), shared.is_paused.get());
            if before != (view.interval, view.is_paused) {
                shared.interval.set(view.interval);
                shared.is_paused.set(view.is_paused);
                shared.turned.notify_waiters();
            }
        }
    };
    tokio::select! {
        shown = showing => shown,
        () = renewing => Ok(()),
    }
}

/// Handles a terminal event. Returns whether the display must end.
fn handle(
    event: Option<TerminalEvent>,
    view: &mut View,
    console: &mut Console,
    host: &Host<'_>,
) -> Result<bool, Failure> {
    Ok(match event {
        None | Some(TerminalEvent::Over) => true,
        Some(TerminalEvent::Disturbed) => {
            console.enter(host)?;
            false
        }
        Some(TerminalEvent::Pressed(keys)) => keys.into_iter().any(|key| view.press(key)),
    })
}
