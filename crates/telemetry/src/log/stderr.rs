//! Standard error, the output of lines that have no other.

use std::io::{self, Write};

/// Writes to standard error and ignores errors, because there is no other place to report them.
pub(super) fn write_stderr(text: &[u8]) {
    let _outcome = io::stderr().lock().write_all(text);
}
