//! `quorate ctl`: etcdctl.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the tool on the arguments; the first is the program's name.
pub fn main(_args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::FAILURE
}
