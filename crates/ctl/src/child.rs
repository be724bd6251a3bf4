//! Commands that the tool runs: the command of `lock`, and the command of `watch`.
//!
//! # Guarantees
//!
//! * The command has no input. Standard input belongs to the tool.
//! * The other tasks of the tool continue while the command runs, so that leases are renewed and events are printed.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, ExitStatus, Stdio};

use tokio::sync::oneshot;

/// Returns a command for a program and its arguments. Panics if there are no words.
pub(crate) fn command(words: &[Vec<u8>]) -> Command {
    let mut words = words.iter().map(|word| OsStr::from_bytes(word));
    let mut command = Command::new(words.next().expect("a command line begins with a program"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs a command to completion.
pub(crate) async fn run(mut command: Command) -> io::Result<ExitStatus> {
    // The thread is not a task of the runtime, so that the tool can exit while the command runs.
    let (sender, ended) = oneshot::channel();
    std::thread::Builder::new().name("child".to_owned()).spawn(move || {
        // If the tool no longer waits for the command, the result has no receiver.
        drop(sender.send(command.status()));
    })?;
    ended.await.expect("the thread sends a result before it ends")
}
