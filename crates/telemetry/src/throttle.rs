//! A throttle for repeated log lines about a condition that persists: after each line, further lines are omitted for an
//! interval.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The default interval between two lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Decides which log lines about one condition are written.
#[derive(Debug)]
pub struct LogThrottle {
    interval: Duration,
    state: Mutex<State>,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::every(INTERVAL)
    }
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl LogThrottle {
    /// Creates a throttle with this interval.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self { interval, state: Mutex::default() }
    }

    /// Returns `None` if the line should be omitted, and otherwise the number of lines omitted since the last written
    /// line.
    #[must_use]
    pub fn admits(&self) -> Option<u64> {
        self.admits_at(Instant::now())
    }

    fn admits_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last.is_some_and(|last| now.duration_since(last) < self.interval) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_between_two_logged_lines_are_counted() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        assert_eq!(throttle.admits_at(start), Some(0));
        assert_eq!(throttle.admits_at(start + INTERVAL / 2), None);
        assert_eq!(throttle.admits_at(start + INTERVAL / 2), None);
        assert_eq!(throttle.admits_at(start + INTERVAL), Some(2));
        assert_eq!(throttle.admits_at(start + INTERVAL * 3), Some(0));
        let often = LogThrottle::every(INTERVAL / 5);
        assert_eq!(often.admits_at(start), Some(0));
        assert_eq!(often.admits_at(start + INTERVAL / 5), Some(0));
    }
}
