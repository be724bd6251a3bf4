//! Checks that a body keeps arriving while it is buffered.
//!
//! Until a body is complete, its received part occupies memory, or its request holds a permit. A sender must not be
//! able to hold these resources without sending data, so at least [`PERIOD_BYTES_MIN`] must arrive in each [`PERIOD`].
//!
//! # Not here
//!
//! The timers and the reaction to a body that is too slow. The caller is responsible for both.

use std::time::Duration;

use tokio::time::Instant;

/// The length of a period.
pub const PERIOD: Duration = Duration::from_secs(20);

/// Minimum number of bytes that must arrive in each period. This is 13 kbit/s, which any link between machines
/// supports.
pub const PERIOD_BYTES_MIN: u64 = 32 << 10;

/// Progress of an arriving body.
#[derive(Debug)]
pub struct Pace {
    period_end: Instant,
    period_bytes: u64,
}

impl Pace {
    /// Starts checking a body.
    pub fn new(now: Instant) -> Self {
        Self { period_end: now + PERIOD, period_bytes: 0 }
    }

    /// Records received bytes.
    pub const fn received(&mut self, bytes: u64) {
        self.period_bytes = self.period_bytes.saturating_add(bytes);
    }

    /// Returns the time of the next check.
    pub const fn period_end(&self) -> Instant {
        self.period_end
    }

    /// Returns whether the body is arriving fast enough. If the current period is over, starts the next period.
    pub fn is_kept(&mut self, now: Instant) -> bool {
        if now < self.period_end {
            return true;
        }
        let is_enough = self.period_bytes >= PERIOD_BYTES_MIN;
        *self = Self::new(now);
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_number_of_bytes_of_a_body_must_arrive_in_each_period() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let almost = begun + PERIOD - Duration::from_millis(1);
        assert!(pace.is_kept(almost), "the period is not over");
        pace.received(PERIOD_BYTES_MIN);
        assert!(pace.is_kept(begun + PERIOD));
        assert_eq!(pace.period_end(), begun + PERIOD * 2);
        pace.received(PERIOD_BYTES_MIN - 1);
        assert!(!pace.is_kept(begun + PERIOD * 2), "bytes of earlier periods do not count");
    }
}
