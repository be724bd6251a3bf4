//! Ticks of tasks that check something periodically.
//!
//! An idle member does little besides such checks, and a wake-up costs more than a check. So the intervals that
//! [`shared_ticks`] returns are aligned to the start of the thread's runtime, and one wake-up of the thread serves
//! several tasks.
//!
//! tokio's timer wheel also wakes the thread at the last multiple of 64 ms since the start of the runtime that precedes
//! the end of a longer timer, and likewise at multiples of 4096 ms. A timer that ends at such a multiple needs no
//! additional wake-up.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// The resolution of timers of 64 to 4095 ms in tokio's timer wheel, in milliseconds.
const WHEEL_MILLIS: u128 = 64;

/// Periods of at least this many milliseconds are multiples of it, so that their ticks coincide.
const LONG_MILLIS: u128 = 1024;

thread_local! {
    /// The time at which the runtime of this thread started.
    static RUNTIME_START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes the time at which the runtime of this thread started. If tokio reads its clock more than a millisecond later,
/// aligned timers cost additional wake-ups.
pub(crate) fn note_runtime_start(start: Instant) {
    RUNTIME_START.set(Some(start));
}

/// Returns an interval whose ticks coincide with those of other shared intervals of this thread if one period is a
/// multiple of the other. The first tick completes immediately. Missed ticks are skipped. A period of at least 64 ms is
/// rounded up to a multiple of 64 ms, and a period of more than 960 ms to a multiple of 1024 ms.
pub fn shared_ticks(period: Duration) -> Interval {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = RUNTIME_START.get().unwrap_or_else(|| *START);
    let period = rounded(period);
    let mut ticks = interval_at(last_tick(start, Instant::now(), period), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

fn rounded(period: Duration) -> Duration {
    let millis = period.as_millis();
    if millis < WHEEL_MILLIS {
        return period;
    }
    let millis = millis.next_multiple_of(WHEEL_MILLIS);
    let millis = if millis < LONG_MILLIS { millis } else { millis.next_multiple_of(LONG_MILLIS) };
    u64::try_from(millis).map_or(period, Duration::from_millis)
}

/// Returns the latest time, at most `now`, that is a multiple of the period after `start`. Returns `now` if it is
/// before `start`.
fn last_tick(start: Instant, now: Instant, period: Duration) -> Instant {
    let elapsed = now.saturating_duration_since(start);
    let since = elapsed.as_nanos() % period.as_nanos();
    now - Duration::from_nanos(u64::try_from(since).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn ticks_of_tasks_that_start_at_different_times_coincide() {
        let start = Instant::now();
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

    #[test]
    fn long_periods_are_multiples_of_the_resolution_of_the_timer_wheel() {
        for (period, expected) in [
            (10, 10),
            (63, 63),
            (64, 64),
            (100, 128),
            (500, 512),
            (960, 960),
            (1000, 1024),
            (4000, 4096),
        ] {
            assert_eq!(rounded(millis(period)), millis(expected));
        }
        assert_eq!(rounded(Duration::MAX), Duration::MAX);
    }
}
