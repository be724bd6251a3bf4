//! The clock for lease deadlines.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since boot, including time during which the machine slept. Leases expire during sleep, but
/// `Instant` does not advance then.
pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_backwards() {
        let before = now();
        assert!(before > Duration::ZERO);
        assert!(now() >= before);
    }
}
