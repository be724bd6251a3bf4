//! Ticks of tasks that check something periodically.
//!
//! An idle member does little besides such checks, and a wake-up costs more than a check. So the intervals that
//! [`shared_ticks`] and [`shared_ticks_within`] return, and the deadlines that [`shared_deadline`] returns, are aligned
//! to the start of the thread's runtime, and one wake-up of the thread serves several tasks.
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

/// [`shared_ticks`] rounds periods of more than 960 ms up to multiples of this number of milliseconds, so that their
/// ticks coincide.
const LONG_MILLIS: u128 = 1024;

/// The binary logarithm of the maximum alignment of deadlines, in units of 64 ms (4096 ms).
const ALIGNMENT_LOG_MAX: u32 = 6;

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
    aligned_ticks(rounded(period))
}

/// Like [`shared_ticks`], but a period of at least 64 ms is rounded down to a multiple of 64 ms.
pub fn shared_ticks_within(period: Duration) -> Interval {
    aligned_ticks(rounded_down(period))
}

/// Returns the time, at or after `deadline`, at which a timer coincides with other shared timers of this thread. It is
/// at most an eighth of `timeout` after the deadline. If `timeout` is less than 512 ms, returns the deadline.
pub fn shared_deadline(deadline: Instant, timeout: Duration) -> Instant {
    let Some(step) = alignment(timeout) else { return deadline };
    let last = last_tick(start(), deadline, step);
    if last == deadline { deadline } else { last + step }
}

fn aligned_ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(last_tick(start(), Instant::now(), period), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    RUNTIME_START.get().unwrap_or_else(|| *START)
}

/// Returns the largest power of two times 64 ms that is at most an eighth of the timeout and at most 4096 ms. Returns
/// `None` if that is less than 64 ms.
fn alignment(timeout: Duration) -> Option<Duration> {
    let steps = u64::try_from(timeout.as_millis() / 8 / WHEEL_MILLIS).unwrap_or(u64::MAX);
    let log = steps.checked_ilog2()?.min(ALIGNMENT_LOG_MAX);
    Some(Duration::from_millis(64 << log))
}

fn rounded_down(period: Duration) -> Duration {
    let millis = period.as_millis() / WHEEL_MILLIS * WHEEL_MILLIS;
    if millis == 0 {
        return period;
    }
    u64::try_from(millis).map_or(period, Duration::from_millis)
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
        for (period, expected) in [(10, 10), (64, 64), (127, 64), (1666, 1664)] {
            assert_eq!(rounded_down(millis(period)), millis(expected));
        }
        assert_eq!(rounded_down(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn deadlines_are_extended_by_at_most_an_eighth_of_the_timeout() {
        for (timeout, expected) in
            [(500, None), (511, None), (512, Some(64)), (5000, Some(512)), (86_400_000, Some(4096))]
        {
            assert_eq!(alignment(millis(timeout)), expected.map(millis), "{timeout}");
        }
        assert_eq!(alignment(Duration::MAX), Some(millis(4096)));
        note_runtime_start(Instant::now());
        for wait in (1..20_000).step_by(7) {
            let deadline = start() + millis(wait);
            let shared = shared_deadline(deadline, millis(5000));
            assert!(shared >= deadline && shared < deadline + millis(512), "{wait}");
            assert_eq!((shared - start()).as_millis() % 512, 0, "{wait}");
        }
        let aligned = start() + millis(5120);
        assert_eq!(shared_deadline(aligned, millis(5000)), aligned);
    }
}
