//! Shows the progress of long work to a user at a terminal, in one line on standard error that is erased
//! afterwards.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use crate::session::Session;

/// The time between two updates and before the first one; short work shows no line.
const INTERVAL: Duration = Duration::from_secs(1);

/// A progress line, erased when this is dropped.
pub(crate) struct Progress<'a> {
    /// `None` if standard error is not a terminal.
    session: Option<&'a Session>,
    shown_at: Instant,
    is_shown: bool,
}

impl<'a> Progress<'a> {
    pub(crate) fn begin(session: &'a Session) -> Self {
        let session = Some(session).filter(|_| std::io::stderr().is_terminal());
        Self { session, shown_at: Instant::now(), is_shown: false }
    }

    /// Updates the line, if an update is due.
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
