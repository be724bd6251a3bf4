//! Ticks of duties that check something periodically.
//!
//! An idle member does little besides such checks, and a wake-up costs more than a check. So the intervals that
//! [`shared_ticks`] returns are aligned to a common start time, and one wake-up of the thread serves several duties.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Returns an interval whose ticks coincide with those of other shared intervals if one period is a multiple of the
/// other. The first tick completes immediately. Missed ticks are skipped.
pub(crate) fn shared_ticks(period: Duration) -> Interval {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let mut ticks = interval_at(last_tick(*START, Instant::now(), period), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Returns the latest time, at most `now`, that is a multiple of the period after `start`. Returns `now` if it is before
/// `start`.
fn last_tick(start: Instant, now: Instant, period: Duration) -> Instant {
    let elapsed = now.saturating_duration_since(start);
    let since = elapsed.as_nanos() % period.as_nanos();
    now - Duration::from_nanos(u64::try_from(since).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_duties_that_start_at_different_times_coincide() {
        let start = Instant::now();
        let millis = |count| Duration::from_millis(count);
        for (now, period, expected) in [
            (0, 1000, 0),
            (999, 1000, 0),
            (1000, 1000, 1000),
            (2730, 1000, 2000),
            (2730, 500, 2500),
        ] {
            let last = last_tick(start, start + millis(now), millis(period));
            assert_eq!(last, start + millis(expected), "{now} {period}");
        }
        // With a paused clock, `now` can be before `start`.
        assert_eq!(last_tick(start + millis(5), start, millis(10)), start);
    }
}
