//! The clock of the state machine: milliseconds since the start of the member, which never decrease.

use std::time::{Duration, Instant};

use quorate_state::units::Millis;

/// A monotonic clock in milliseconds. All copies have the same origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now(self) -> Millis {
        self.at(Instant::now())
    }

    /// Converts an instant to the clock's time.
    pub(crate) fn at(self, instant: Instant) -> Millis {
        Millis(to_millis(instant.saturating_duration_since(self.origin)))
    }

    /// Converts a time of this clock to an instant.
    pub(crate) fn instant(self, at: Millis) -> Instant {
        self.origin + Duration::from_millis(at.0)
    }
}

/// Converts a duration to whole milliseconds.
pub(crate) fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
