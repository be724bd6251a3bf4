//! `quorate ctl`: the command-line client, compatible with `etcdctl` 3.7.
//!
//! ```text
//! main ─► command (which) ─► cli::flags (arguments) ─► commands::* ─► quorate_client ─► servers
//!                                                     └──► output (format)
//! ```
//!
//! # Invariants
//!
//! * Commands, flags, environment, output and exit codes match those of `etcdctl`, except for the differences listed in
//!   decision record 0007, so scripts written for `etcdctl` work.
//! * A command accesses its environment only through its `Session`, which holds one terminal and one set of variables,
//!   and creates the clients.
//!
//! # Tests
//!
//! Unit tests are in each module. `tests/etcd` compares the tool with the real etcdctl against a real server.

mod child;
mod command;
mod commands;
mod credentials;
mod dated;
mod destination;
mod discovery;
mod echo;
mod interrupt;
mod manual;
mod output;
mod peer_urls;
mod progress;
mod queue;
mod renewal;
#[cfg(test)]
mod runs;
mod security;
mod session;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::process::ExitCode;

use quorate_cli::start::{self, Names};
use quorate_cli::{flags, gotext, help, log};
use quorate_client as client;
use quorate_client::{events, failure, key_range};
use quorate_dns::Resolver;
pub use session::{OpenFile, Ranges, Terminal};

use crate::command::Run;
use crate::commands::ROOT;
use crate::failure::Failure;
use crate::session::{Session, Surroundings};

const NAMES: Names = Names { of_etcd: "etcdctl", own: "quorate ctl" };

/// Returns the manual page of this tool, for `man`.
#[must_use]
pub fn man_page() -> String {
    manual::MANUAL.man_page()
}

/// Returns the reference page of this tool, for `docs/`.
#[must_use]
pub fn reference() -> String {
    manual::MANUAL.markdown()
}

/// Runs the tool with the terminal and the environment of the process. The first argument is the tool's name.
/// `open_file` opens the snapshots that a command reads.
pub fn main(args: impl IntoIterator<Item = OsString>, open_file: OpenFile) -> ExitCode {
    let env = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value)))
        .collect();
    let terminal = Terminal {
        input: Box::new(BufReader::new(std::io::stdin())),
        output: Box::new(std::io::stdout()),
        errors: Box::new(std::io::stderr()),
    };
    start::end(run(args, env, terminal, open_file))
}

/// Runs the tool and returns its exit code. The first argument is the tool's name.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    env: BTreeMap<String, OsString>,
    terminal: Terminal,
    open_file: OpenFile,
) -> u8 {
    let servers = Box::new(Resolver::of_system);
    run_with(args, env, terminal, Surroundings { servers, open_file })
}

/// Runs the tool like [`run`], with DNS servers chosen by the caller.
fn run_with(
    args: impl IntoIterator<Item = OsString>,
    env: BTreeMap<String, OsString>,
    mut terminal: Terminal,
    surroundings: Surroundings,
) -> u8 {
    let unknown = |program: &str, word: &str| ROOT.unknown(program, word);
    let streams =
        (&mut *terminal.output as &mut dyn Write, &mut *terminal.errors as &mut dyn Write);
    let begun = match start::begin(NAMES, &ROOT, args, unknown, streams) {
        Ok(begun) => begun,
        Err(code) => return code,
    };
    let command = begun.found.command();
    let (program, failure_code) = (begun.program.to_owned(), command.failure_code);
    let settable = (!command.is_local).then(|| begun.found.inherited_flags().collect());
    match Session::new(program, settable, begun.matches, env, terminal, surroundings) {
        Ok(session) => conclude(&session, execute(begun.run, &session)),
        Err(failure) => failure_code.unwrap_or(failure.code),
    }
}

fn execute(run: Run, session: &Session) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(session))
}

/// Prints an error and returns the exit code.
fn conclude(session: &Session, result: Result<(), Failure>) -> u8 {
    let Err(Failure { code, message }) = result else { return 0 };
    if let Some(message) = message {
        session.print_error(&format!("Error: {message}\n"));
    }
    code
}
