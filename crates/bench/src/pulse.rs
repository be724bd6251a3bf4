//! Measures the longest time without a successful operation, which shows how long a fault made the service unavailable.
//!
//! Latencies do not show the length of an outage. An operation that fails because of a fault may end long after other
//! operations succeed again. The latency of an operation that waits until a fault is over shows how long the operation
//! waited, but not when the fault ended.
//!
//! # Not here
//!
//! The time before the first success and after the last success, which need not be due to a fault.

use std::sync::{Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Records the times of successful operations.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    start_unix_seconds: f64,
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    last: Instant,
    longest: (Instant, Instant),
}

/// An interval between two successes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Silence {
    pub(crate) seconds: f64,
    /// The start of the interval in Unix seconds, for comparison with other events.
    pub(crate) began_unix_seconds: f64,
}

impl Pulse {
    pub(crate) fn start() -> Self {
        let start_unix_seconds =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Self { start: Instant::now(), start_unix_seconds, seen: Mutex::new(None) }
    }

    /// Records a success. Threads may report slightly out of order, because they wait for the lock.
    pub(crate) fn beat(&self, now: Instant) {
        let mut seen = self.seen();
        let seen = seen.get_or_insert(Seen { last: now, longest: (now, now) });
        let (from, to) = seen.longest;
        if now.saturating_duration_since(seen.last) > to - from {
            seen.longest = (seen.last, now);
        }
        seen.last = seen.last.max(now);
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().expect("no thread panics while it holds the lock")
    }

    /// Returns the longest interval between two successes; `None` if there was no success.
    pub(crate) fn longest_silence(&self) -> Option<Silence> {
        let (from, to) = (*self.seen())?.longest;
        let began = from.saturating_duration_since(self.start).as_secs_f64();
        Some(Silence {
            seconds: (to - from).as_secs_f64(),
            began_unix_seconds: self.start_unix_seconds + began,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_time_between_two_successes_is_reported() {
        let pulse = Pulse::start();
        assert_eq!(pulse.longest_silence(), None);
        for millis in [4000, 4010, 4500, 4505, 4800] {
            pulse.beat(pulse.start + Duration::from_millis(millis));
        }
        let silence = pulse.longest_silence().unwrap();
        assert!((silence.seconds - 0.49).abs() < 1e-6);
        let began = silence.began_unix_seconds - pulse.start_unix_seconds;
        assert!((began - 4.01).abs() < 1e-3, "{began}");
    }

    #[test]
    fn a_success_out_of_order_is_ignored() {
        let pulse = Pulse::start();
        for millis in [100, 300, 250, 310] {
            pulse.beat(pulse.start + Duration::from_millis(millis));
        }
        assert!((pulse.longest_silence().unwrap().seconds - 0.2).abs() < 1e-6);
    }
}
