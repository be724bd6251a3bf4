//! Standard error, the output for lines that have no other output.

use std::io::{self, Write};

/// Writes to standard error and ignores errors, because there is no other place to report them.
pub(super) fn write_stderr(text: &[u8]) {
    let _outcome = io::stderr().lock().write_all(text);
}
