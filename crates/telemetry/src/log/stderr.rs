//! Standard error, where lines go that have no other place.

use std::io::{self, Write};

/// Writes to standard error, whatever becomes of it: there is no second place to complain.
pub(super) fn write_stderr(text: &[u8]) {
    let _outcome = io::stderr().lock().write_all(text);
}
