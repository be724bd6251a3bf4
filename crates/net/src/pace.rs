//! Whether a body that is held as it comes keeps coming.
//!
//! What has come of a body takes memory, or a place, until the rest is there, and its sender may take its time. So
//! each [`PERIOD`] has to bring [`PERIOD_BYTES_MIN`] of it: whoever holds what others need pays for it in traffic.
//!
//! # Not here
//!
//! What happens to a body that does not keep up, and who looks after it: timers are the caller's.

use std::time::Duration;

use tokio::time::Instant;

/// How long a body may bring too little.
pub const PERIOD: Duration = Duration::from_secs(20);

/// What has to come in each of them: 13 kbit/s, which any link between machines carries.
pub const PERIOD_BYTES_MIN: u64 = 32 << 10;

/// A body on its way; see the module.
#[derive(Debug)]
pub struct Pace {
    period_end: Instant,
    period_bytes: u64,
}

impl Pace {
    /// A body that has begun to be held.
    pub fn new(now: Instant) -> Self {
        Self { period_end: now + PERIOD, period_bytes: 0 }
    }

    /// More of it has come.
    pub const fn received(&mut self, bytes: u64) {
        self.period_bytes = self.period_bytes.saturating_add(bytes);
    }

    /// When to look again.
    pub const fn period_end(&self) -> Instant {
        self.period_end
    }

    /// Whether it keeps coming. A period that is over is judged, and the next one begins.
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
    fn each_period_has_to_bring_enough() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let almost = begun + PERIOD - Duration::from_millis(1);
        assert!(pace.is_kept(almost), "the period is not over");
        pace.received(PERIOD_BYTES_MIN);
        assert!(pace.is_kept(begun + PERIOD));
        assert_eq!(pace.period_end(), begun + PERIOD * 2);
        pace.received(PERIOD_BYTES_MIN - 1);
        assert!(!pace.is_kept(begun + PERIOD * 2), "what came before does not count");
    }
}
