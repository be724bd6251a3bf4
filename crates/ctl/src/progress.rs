//! How far long work is, for somebody who waits for it at a terminal: one line of standard error, which goes again.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use crate::session::Session;

/// Between two lines, and before the first: short work says nothing.
const INTERVAL: Duration = Duration::from_secs(1);

/// A line that says how far the work is, while this lives.
pub(crate) struct Progress<'a> {
    /// Nothing where nobody looks.
    session: Option<&'a Session>,
    told: Instant,
    is_shown: bool,
}

impl<'a> Progress<'a> {
    pub(crate) fn begin(session: &'a Session) -> Self {
        let session = Some(session).filter(|_| std::io::stderr().is_terminal());
        Self { session, told: Instant::now(), is_shown: false }
    }

    /// Says how far it is, if it is time to.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(session) = self.session.filter(|_| self.told.elapsed() >= INTERVAL) {
            session.print_error(&format!("\r\x1b[K{}", line()));
            (self.told, self.is_shown) = (Instant::now(), true);
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
