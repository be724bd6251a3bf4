//! `quorate bench`: generates load for any etcd-compatible server and measures the cost of serving it.
//!
//! The most important figure is the server's CPU time per operation, because on a shared machine the throughput also
//! depends on other processes. For the same reason, the generator uses little CPU time: it has its own gRPC client
//! (`wire`), and encodes a request only once (`template`).
//!
//! ```text
//! run ─► workload (requests) ─► engine (connections, threads) ─► wire (HTTP/2)
//!   └──► report ─► record, pulse, process
//! ```
//!
//! # Invariants
//!
//! * With the same seed, each connection draws the same sequence of random numbers in every run. Its random keys and
//!   values are derived from these numbers.
//! * Only the run itself is measured. Where the setup of connections and watchers would affect the result, it precedes
//!   the measurement.
//!
//! # Not here
//!
//! Starting servers and comparing them (`xtask compare`); TLS (`tls`).

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]

mod bounds;
mod cli;
mod endpoint;
mod engine;
mod error;
mod login;
mod manual;
mod pace;
mod process;
mod progress;
mod pulse;
mod record;
mod report;
mod run;
mod secret;
mod shuffle;
mod template;
mod wire;
mod workload;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use quorate_cli::start;

/// Returns the manual page of this tool, in the format of `man`.
#[must_use]
pub fn man_page() -> String {
    manual::MANUAL.man_page()
}

/// Returns the reference page of this tool, for `docs/`.
#[must_use]
pub fn reference() -> String {
    manual::MANUAL.markdown()
}

/// Runs the benchmark described by the arguments. The first argument is the program's name. The exit code is 0 if every
/// operation succeeded, 1 if some operations failed, the run ended early or could not start, or the report could not be
/// printed, and 2 if the arguments are wrong.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let streams: (&mut dyn Write, &mut dyn Write) =
        (&mut std::io::stdout(), &mut std::io::stderr());
    let cli = match cli::read(args, variable, streams) {
        Ok(cli) => cli,
        Err(code) => return start::end(code),
    };
    match run::run(&cli) {
        Ok(report) => {
            let text = if cli.options.json { report.to_json() + "\n" } else { report.to_text() };
            let written = std::io::stdout().write_all(text.as_bytes());
            ExitCode::from(u8::from(written.is_err() || !report.clean()))
        }
        Err(error) => {
            // If standard error is closed, the message is lost.
            drop(writeln!(std::io::stderr(), "quorate bench: {error}"));
            ExitCode::FAILURE
        }
    }
}
