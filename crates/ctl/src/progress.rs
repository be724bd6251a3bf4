//! Shows the progress of a long operation on a terminal: one line on standard error, which is erased afterwards.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use crate::session::Session;

/// Time before the first update and between updates. Operations shorter than this show no line.
const INTERVAL: Duration = Duration::from_secs(1);

/// A progress line, erased when it is dropped.
pub(crate) struct Progress<'a> {
    /// Session to print to; `None` if standard error is not a terminal.
    session: Option<&'a Session>,
    shown_at: Instant,
    is_shown: bool,
}

impl<'a> Progress<'a> {
    pub(crate) fn begin(session: &'a Session) -> Self {
        let session = Some(session).filter(|_| std::io::stderr().is_terminal());
        Self { session, shown_at: Instant::now(), is_shown: false }
    }

    /// Updates the line if an update is due.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(session) = self.session.filter(|_| self.shown_at.elapsed() >= INTERVAL) {
            session.print_error(&format!("\r\x1b[K{}", line()));
            (self.shown_at, self.is_shown) = (Instant::now(), true);
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.filter(|_| self.is_shown) {
            session.print_error("\r\x1b[K");
        }
    }
}
