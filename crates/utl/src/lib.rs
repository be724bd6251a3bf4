//! `quorate utl`: offline work on a member's files, as in `etcdutl` 3.7, with additional commands for inspection.
//!
//! ```text
//! main ─► command (which) ─► cli::flags (arguments) ─► snapshot, recover, hashkv, defrag, …  ─► core, state, storage
//!                                                          └──► report (output format)
//! ```
//!
//! # Invariants
//!
//! * Every command of `etcdutl` has the same flags, texts and exit codes in this tool.
//! * A file is opened read-only unless the command's purpose is to change it. A replacement is first written under
//!   another name and then renamed.
//! * Files are read in pieces, not as a whole. Commands that read the keyspace hold its index of keys in memory.
//! * A backend file that a running member has open is refused. With `--timeout`, the command first waits for the member
//!   to close the file.
//!
//! # Not here
//!
//! File formats (see `quorate-storage`), and the meaning of buckets and entries (see `quorate-state`).
//!
//! # Tests
//!
//! Unit tests are in each module. `tests/tests/blackbox/utl.rs` compares the tool with the real etcdutl, and starts
//! Quorate and etcd on the files that each tool restores.

mod command;
mod commands;
mod completion;
mod db;
mod defrag;
mod dump;
mod failure;
mod files;
mod hashkv;
mod import;
mod keyspace_file;
mod lines;
mod manual;
mod migrate;
mod new_member;
mod recover;
mod report;
mod session;
mod snapshot;
mod soundness;
#[cfg(test)]
mod tests;
mod verify;
mod version;
mod words;

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use quorate_cli::help;
use quorate_cli::start::{self, Begun, Names};

pub use keyspace_file::{KeyspaceFile, KeyspaceFileError};
pub use session::Terminal;

use crate::commands::ROOT;
use crate::failure::Failure;
use crate::session::Session;

const NAMES: Names = Names { of_etcd: "etcdutl", own: "quorate utl" };

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

/// Runs the tool on the terminal of the process. The first argument is the tool's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let terminal = Terminal {
        output: Box::new(BufWriter::new(std::io::stdout())),
        errors: Box::new(std::io::stderr()),
    };
    start::end(run(args, terminal))
}

/// Runs the tool and returns its exit code. The first argument is the tool's name.
pub fn run(args: impl IntoIterator<Item = OsString>, mut terminal: Terminal) -> u8 {
    let unknown = |program: &str, word: &str| ROOT.unknown(program, word);
    let streams =
        (&mut *terminal.output as &mut dyn Write, &mut *terminal.errors as &mut dyn Write);
    let Begun { program, found, matches, run } =
        match start::begin(NAMES, &ROOT, args, unknown, streams) {
            Ok(begun) => begun,
            Err(code) => return code,
        };
    let usage = help::usage(program, &found);
    let session = Session::new(program, matches, terminal);
    let result = session.format().and_then(|_| run(&session));
    let Err(failure) = result else { return 0 };
    match &failure {
        Failure::BrokenPipe => {}
        Failure::Required(_) | Failure::ArgumentCount { .. } => {
            session.print_error(&format!("Error: {failure}\n{usage}\n"));
        }
        _ => session.print_error(&format!("Error: {failure}\n")),
    }
    failure.code()
}
