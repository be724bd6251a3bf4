//! `quorate ctl`: the command-line client, as `etcdctl` 3.7 is.
//!
//! ```text
//! main ─► command (which) ─► cli::flags (with what) ─► commands::* ─► client ─► servers
//!                                                     └──► output (in which form)
//! ```
//!
//! # Invariants
//!
//! * Commands, flags, environment, output and exit codes are `etcdctl`'s; scripts written for it work.
//! * A command talks to the world only through its `Session`: one client, one terminal, one environment.
//!
//! # Not here
//!
//! Locks and elections, and the commands about them, which are therefore unknown; TLS and authentication, whose
//! flags are refused (`security`).
//!
//! # Tests
//!
//! Beside each module; `tests/etcd.rs` compares with the real tool against a real server.

mod client;
mod command;
mod commands;
mod failure;
mod output;
mod security;
mod session;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;

use quorate_cli::{flags, gotext, help, log};
pub use session::Terminal;

use crate::command::{Run, find, unknown};
use crate::commands::ROOT;
use crate::failure::{Failure, exit};
use crate::flags::{FlagError, Matches};
use crate::session::Session;

/// Runs the tool on the process's own terminal and environment; the first argument is its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let env = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let terminal = Terminal {
        input: Box::new(BufReader::new(std::io::stdin())),
        output: Box::new(std::io::stdout()),
        errors: Box::new(std::io::stderr()),
    };
    let code = run(args, env, terminal);
    if code == exit::BROKEN_PIPE {
        // The quiet end that every tool in a pipe has. Should the signal not end it, the code tells the same.
        drop(signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE));
    }
    ExitCode::from(code)
}

/// Runs the tool and returns its exit code; the first argument is its name.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    env: BTreeMap<String, String>,
    mut terminal: Terminal,
) -> u8 {
    let mut args = args.into_iter();
    let program = match args.next().as_ref().map(Path::new).and_then(Path::file_name) {
        Some(name) if name == "etcdctl" => "etcdctl",
        _ => "quorate ctl",
    };
    let line: Vec<Vec<u8>> = args.map(OsStringExt::into_vec).collect();
    let found = match find(&ROOT, &line) {
        Ok(found) => found,
        Err(word) => {
            let text = unknown(&ROOT, program, &word);
            say(&mut *terminal.errors, &format!("Error: {text}\n"));
            say(&mut *terminal.errors, &format!("Run '{program} --help' for usage.\n"));
            return exit::ERROR;
        }
    };
    let matches = match Matches::parse(&found.flags(), &found.line) {
        Err(FlagError::Wrong(text)) => {
            let usage = help::usage(program, &found);
            say(&mut *terminal.errors, &format!("Error: {text}\n{usage}\n"));
            return exit::ERROR;
        }
        Ok(matches) => Some(matches),
        Err(FlagError::Help) => None,
    };
    let command = found.command();
    let (Some(matches), Some(run)) = (matches, command.run) else {
        say(&mut *terminal.output, &help::help(program, &found));
        return 0;
    };
    match Session::new(program.to_owned(), command.is_local, matches, env, terminal) {
        Ok(session) => conclude(&session, execute(run, &session)),
        Err(failure) => failure.code,
    }
}

fn execute(run: Run, session: &Session) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(session))
}

/// Tells of a failure and returns the exit code.
fn conclude(session: &Session, result: Result<(), Failure>) -> u8 {
    let Err(Failure { code, message }) = result else { return 0 };
    if let Some(message) = message {
        session.print_error(&format!("Error: {message}\n"));
    }
    code
}

/// Writes to a stream whose reader may be gone.
fn say(stream: &mut dyn Write, text: &str) {
    drop(stream.write_all(text.as_bytes()).and_then(|()| stream.flush()));
}
