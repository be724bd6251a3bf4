//! Virtual time, and the members' clocks, which are derived from it.
//!
//! Virtual time never decreases. A member's clock never decreases and never stops, but it has its own start time and
//! rate.

use std::time::{Duration, Instant};

use quorate_core::Now;
use quorate_state::units::Millis;

/// A point or a duration of virtual time, in microseconds.
pub type Micros = u64;

/// One millisecond.
pub const MILLI: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// The monotonic clock of a process.
#[derive(Clone, Copy, Debug)]
pub struct LocalClock {
    origin: Instant,
    started: Micros,
    /// Microseconds that this clock advances per second of virtual time.
    rate: u64,
    /// Sum of all forward jumps, in microseconds.
    jumped: Micros,
}

impl LocalClock {
    /// Creates a clock that starts at `started`. `origin` may be any instant, but all clocks of a run must share it.
    #[must_use]
    pub const fn new(origin: Instant, started: Micros, rate: u64) -> Self {
        Self { origin, started, rate, jumped: 0 }
    }

    /// Moves the clock forward, as if the machine had been suspended.
    pub const fn jump(&mut self, by: Micros) {
        self.jumped += by;
    }

    /// Returns the time since the start of the clock, as measured by the clock itself.
    #[must_use]
    pub const fn elapsed(&self, now: Micros) -> Micros {
        (now - self.started) * self.rate / SECOND + self.jumped
    }

    /// Returns the time of this clock in the types that `core` expects.
    #[must_use]
    pub fn now(&self, now: Micros) -> Now {
        let elapsed = self.elapsed(now);
        let instant = self.origin + Duration::from_micros(elapsed);
        Now { instant, millis: Millis(elapsed / MILLI) }
    }

    /// Returns the virtual time at which this clock reaches the instant, or `now` if the clock has already reached it.
    #[must_use]
    pub fn virtual_time(&self, instant: Instant, now: Micros) -> Micros {
        let target = instant.saturating_duration_since(self.origin).as_micros();
        let target = u64::try_from(target).unwrap_or(u64::MAX);
        match target.checked_sub(self.elapsed(now)) {
            Some(wait) if wait > 0 => now + wait.saturating_mul(SECOND) / self.rate + 1,
            Some(_) | None => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_fast_clock_are_converted_to_virtual_time_and_back() {
        #[expect(clippy::disallowed_methods, reason = "any instant serves as the origin")]
        let origin = Instant::now();
        let mut clock = LocalClock::new(origin, 5 * SECOND, 1_100_000);
        assert_eq!(clock.elapsed(15 * SECOND), 11 * SECOND);
        let at = clock.now(15 * SECOND).instant + Duration::from_millis(1_100);
        let virtual_time = clock.virtual_time(at, 15 * SECOND);
        assert!(clock.now(virtual_time).instant >= at && virtual_time <= 16 * SECOND + 2);
        clock.jump(3 * SECOND);
        assert_eq!(clock.now(15 * SECOND).millis, Millis(14_000));
    }
}
