//! `quorate utl`: work on a member's files while it is not running, as `etcdutl` 3.7 does, and more to look with.
//!
//! ```text
//! main ─► command (which) ─► cli::flags (with what) ─► snapshot, hashkv, defrag, migrate, …  ─► state, storage
//!                                                          └──► report (in which form)
//! ```
//!
//! # Invariants
//!
//! * Commands, flags, texts and exit codes are `etcdutl`'s, as far as it has them.
//! * A file is opened for reading only, unless it is the command's work to change it; what is changed in place is
//!   written beside its place and renamed into it.
//! * Files are read in pieces: a snapshot of any size takes the memory of what is said of it.
//! * A file that a running member holds is refused, or waited for as long as `--timeout` says.
//!
//! # Not here
//!
//! Formats (`quorate-storage`), and what buckets and entries mean (`quorate-state`).
//!
//! # Tests
//!
//! Beside each module; `tests/tests/blackbox/utl.rs` compares with the real tool, and starts members of both kinds on
//! what either restores.

mod command;
mod commands;
mod db;
mod defrag;
mod dump;
mod failure;
mod files;
mod hashkv;
mod lines;
mod migrate;
mod report;
mod session;
mod snapshot;
#[cfg(test)]
mod tests;
mod verify;
mod version;
mod words;

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;

use quorate_cli::command::find;
use quorate_cli::flags::{FlagError, Matches};
use quorate_cli::help;

pub use session::Terminal;

use crate::commands::ROOT;
use crate::failure::{Failure, exit};
use crate::session::Session;

/// Runs the tool on the process's own terminal; the first argument is its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let terminal = Terminal {
        output: Box::new(BufWriter::new(std::io::stdout())),
        errors: Box::new(std::io::stderr()),
    };
    let code = run(args, terminal);
    if code == exit::BROKEN_PIPE {
        // The quiet end that every tool in a pipe has. Should the signal not end it, the code tells the same.
        drop(signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE));
    }
    ExitCode::from(code)
}

/// Runs the tool and returns its exit code; the first argument is its name.
pub fn run(args: impl IntoIterator<Item = OsString>, mut terminal: Terminal) -> u8 {
    let mut args = args.into_iter();
    let program = match args.next().as_ref().map(Path::new).and_then(Path::file_name) {
        Some(name) if name == "etcdutl" => "etcdutl",
        _ => "quorate utl",
    };
    let line: Vec<Vec<u8>> = args.map(OsStringExt::into_vec).collect();
    let found = match find(&ROOT, &line) {
        Ok(found) => found,
        Err(word) => {
            let text = ROOT.unknown(program, &word);
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
        Ok(matches) if found.command().run.is_some() => matches,
        Ok(_) | Err(FlagError::Help) => {
            say(&mut *terminal.output, &help::help(program, &found));
            return 0;
        }
    };
    let Some(run) = found.command().run else { return 0 };
    let usage = help::usage(program, &found);
    let session = Session::new(program, matches, terminal);
    let result = session.format().and_then(|_| run(&session));
    let Err(failure) = result else { return 0 };
    match &failure {
        Failure::BrokenPipe => {}
        Failure::Required(_) => session.print_error(&format!("Error: {failure}\n{usage}\n")),
        _ => session.print_error(&format!("Error: {failure}\n")),
    }
    failure.code()
}

/// Writes to a stream whose reader may be gone.
fn say(stream: &mut dyn Write, text: &str) {
    drop(stream.write_all(text.as_bytes()).and_then(|()| stream.flush()));
}
