//! The time that goes into the state machine: milliseconds since the start, which never go back.

use std::time::{Duration, Instant};

use quorate_state::units::Millis;

/// See the module. All copies have one origin.
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

    /// What it shows, or has shown, at this instant.
    pub(crate) fn at(self, instant: Instant) -> Millis {
        Millis(to_millis(instant.saturating_duration_since(self.origin)))
    }

    /// When it shows this.
    pub(crate) fn instant(self, at: Millis) -> Instant {
        self.origin + Duration::from_millis(at.0)
    }
}

/// Whole milliseconds of a span of time.
pub(crate) fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
