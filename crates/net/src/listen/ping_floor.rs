//! Limits how often an HTTP/2 client may ping.
//!
//! Clients ping to check that the server is alive, but a ping costs the server as much as a request. This module
//! applies the same rules against frequent pings as grpc-go. A grpc-go client that violates them receives
//! `too_many_pings` and halves its ping rate. A ping is early if the time since the previous ping is less than the
//! floor, or less than two hours if no request is in progress. The third early ping closes the connection. Sending any
//! part of a response resets the count of early pings.

use std::time::{Duration, Instant};

/// Minimum time between pings if no request is in progress.
const IDLE_FLOOR: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum number of early pings that are tolerated.
const EARLY_MAX: u32 = 2;

/// The ping rules, and the count of early pings.
#[derive(Debug)]
pub(super) struct Rules {
    /// The floor while a request is in progress. With `None`, every ping is admitted.
    floor: Option<Duration>,
    last_ping: Option<Instant>,
    early_count: u32,
    /// Whether part of a response has been sent since the last ping.
    has_answered: bool,
}

impl Rules {
    pub(super) const fn new(floor: Option<Duration>) -> Self {
        Self { floor, last_ping: None, early_count: 0, has_answered: false }
    }

    /// Records that part of a response has been sent.
    pub(super) const fn answered(&mut self) {
        self.has_answered = true;
    }

    pub(super) fn admit(&mut self, now: Instant, is_busy: bool) -> bool {
        let Some(floor) = self.floor else { return true };
        let last = self.last_ping.replace(now);
        if std::mem::take(&mut self.has_answered) {
            self.early_count = 0;
            return true;
        }
        let floor = if is_busy { floor } else { IDLE_FLOOR };
        if last.is_some_and(|last| now < last + floor) {
            self.early_count += 1;
        }
        self.early_count <= EARLY_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_early_ping_is_refused() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let mut rules = Rules::new(Some(Duration::from_secs(5)));
        let pings = [(0, true), (5, true), (9, true), (14, true), (18, true), (22, false)];
        for (secs, admitted) in pings {
            assert_eq!(rules.admit(after(secs), true), admitted, "{secs}");
        }
        // Without a request in progress, the floor is two hours, regardless of the configured floor.
        let mut idle = Rules::new(Some(Duration::ZERO));
        let pings = [(0, true), (3600, true), (7199, true), (14_399, true), (21_000, false)];
        for (secs, admitted) in pings {
            assert_eq!(idle.admit(after(secs), false), admitted, "{secs}");
        }
    }

    #[test]
    fn every_ping_is_admitted_without_a_floor() {
        let mut rules = Rules::new(None);
        assert!((0..100).all(|_| rules.admit(Instant::now(), false)));
    }

    #[test]
    fn a_response_resets_the_count_of_early_pings() {
        let now = Instant::now();
        let mut rules = Rules::new(Some(Duration::from_secs(5)));
        for _ in 0..3 {
            assert!(rules.admit(now, true));
        }
        rules.answered();
        for _ in 0..3 {
            assert!(rules.admit(now, true));
        }
        assert!(!rules.admit(now, true));
    }
}
