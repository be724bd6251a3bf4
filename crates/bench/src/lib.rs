//! `quorate bench`: load for any etcd-compatible server, and what serving it cost.
//!
//! The figure that matters most is the server's CPU per operation, because on one machine throughput
//! depends on who else is working. For the same reason the generator is lean: it speaks gRPC by itself
//! (`wire`) and sends requests that were encoded once (`template`).
//!
//! ```text
//! run ─► workload (what) ─► engine (connections, threads) ─► wire (HTTP/2)
//!   └──► report ─► record, pulse, process
//! ```
//!
//! # Invariants
//!
//! * One seed, one sequence of keys and values per connection.
//! * Only the run itself is measured: connections and watchers are in place before the meter starts where
//!   their making would weigh.
//!
//! # Not here
//!
//! Starting servers and comparing them (`xtask compare`), TLS itself (`tls`).

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

/// The page of this tool for `man`.
#[must_use]
pub fn man_page() -> String {
    manual::MANUAL.man_page()
}

/// Runs the benchmark that the arguments describe; the first argument is the program's name. The exit
/// code is 0 if every operation succeeded, 1 if some failed or the run could not be made, 2 if the
/// arguments are wrong.
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
            // Where standard error is closed there is nobody to tell.
            drop(writeln!(std::io::stderr(), "quorate bench: {error}"));
            ExitCode::FAILURE
        }
    }
}
