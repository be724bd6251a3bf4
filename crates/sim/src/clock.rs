//! Virtual time, and the clocks of the members, which are derived from it.
//!
//! The world's time never decreases. A member's clock never decreases either, but it has its own origin and rate, and
//! it never stops.

use std::time::{Duration, Instant};

use quorate_core::Now;
use quorate_state::units::Millis;

/// Time of the world, or a span of it, in microseconds.
pub type Micros = u64;

/// One millisecond.
pub const MILLI: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

const PARTS: u64 = 1_000_000;

/// A process's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct LocalClock {
    origin: Instant,
    started: Micros,
    /// How many microseconds it counts in a second of the world.
    pace: u64,
    /// What it has jumped ahead by.
    ahead: Micros,
}

impl LocalClock {
    /// A clock that starts at `started`. The origin is any instant; all of a run share it.
    #[must_use]
    pub const fn new(origin: Instant, started: Micros, pace: u64) -> Self {
        Self { origin, started, pace, ahead: 0 }
    }

    /// Lets the clock jump ahead, as one does when its machine has slept.
    pub const fn jump(&mut self, by: Micros) {
        self.ahead += by;
    }

    /// What it shows.
    #[must_use]
    pub const fn local(&self, now: Micros) -> Micros {
        (now - self.started) * self.pace / PARTS + self.ahead
    }

    /// The same in the types of the machines.
    #[must_use]
    pub fn now(&self, now: Micros) -> Now {
        let local = self.local(now);
        let instant = self.origin + Duration::from_micros(local);
        Now { instant, millis: Millis(local / MILLI) }
    }

    /// When it will show this, by the world's time; now if it does already.
    #[must_use]
    pub fn when(&self, instant: Instant, now: Micros) -> Micros {
        let shown = instant.saturating_duration_since(self.origin).as_micros();
        let shown = u64::try_from(shown).unwrap_or(u64::MAX);
        match shown.checked_sub(self.local(now)) {
            Some(wait) if wait > 0 => now + wait.saturating_mul(PARTS) / self.pace + 1,
            Some(_) | None => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_is_early_and_comes_to_its_times() {
        #[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
        let origin = Instant::now();
        let mut clock = LocalClock::new(origin, 5 * SECOND, 1_100_000);
        assert_eq!(clock.local(15 * SECOND), 11 * SECOND);
        let at = clock.now(15 * SECOND).instant + Duration::from_millis(1_100);
        let when = clock.when(at, 15 * SECOND);
        assert!(clock.now(when).instant >= at && when <= 16 * SECOND + 2);
        clock.jump(3 * SECOND);
        assert_eq!(clock.now(15 * SECOND).millis, Millis(14_000));
    }
}
