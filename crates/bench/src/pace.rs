//! Decides when each request is sent. Each operation has one ticket, and any connection may draw it.
//!
//! A run ends after a number of operations, after a duration, or when it is interrupted or cannot continue, whichever
//! comes first. With a rate, ticket `n` is due `n / rate` after the start, however fast the server is. Latency is
//! measured from the due time, so the latency of a request that a server stall delays includes this delay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Permission to send one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// The number of the operation within the run.
    pub(crate) number: u64,
    /// The time at which the request is due; the current time if the run has no rate.
    pub(crate) due: Instant,
}

/// The tickets of one run, and the number of finished operations.
#[derive(Debug)]
pub(crate) struct Pace {
    start: Instant,
    end: Option<Instant>,
    total: u64,
    interval: Option<Duration>,
    drawn: AtomicU64,
    done: AtomicU64,
    interrupted: Arc<AtomicBool>,
    /// The reason why the run was ended early.
    given_up: OnceLock<String>,
}

impl Pace {
    /// Creates the tickets of a run that starts now. `total` is `u64::MAX` if only the duration ends the run.
    pub(crate) fn start(total: u64, duration: Option<Duration>, rate: Option<f64>) -> Self {
        let start = Instant::now();
        Self {
            start,
            end: duration.map(|duration| start + duration),
            total,
            interval: rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            drawn: AtomicU64::new(0),
            done: AtomicU64::new(0),
            interrupted: Arc::default(),
            given_up: OnceLock::new(),
        }
    }

    /// Returns the flag that ends the run early when it is set.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Ends the run early because it cannot continue.
    pub(crate) fn give_up(&self, reason: String) {
        // Only the first reason is kept.
        drop(self.given_up.set(reason));
    }

    /// Returns why the run ended early, if it did.
    pub(crate) fn cut_short(&self) -> Option<String> {
        let interrupted = || self.is_interrupted().then(|| "the run was interrupted".to_owned());
        self.given_up.get().cloned().or_else(interrupted)
    }

    /// Returns whether there are no more tickets.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end)
            || self.is_interrupted()
            || self.given_up.get().is_some()
            || self.drawn.load(Ordering::Relaxed) >= self.total
    }

    /// Draws the next ticket, or returns `None` if the run is over.
    pub(crate) fn draw(&self, now: Instant) -> Option<Ticket> {
        if self.is_over(now) {
            return None;
        }
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        if number >= self.total {
            return None;
        }
        let due = match self.interval {
            Some(interval) => self.start + interval.mul_f64(number as f64),
            None => now,
        };
        (self.end.is_none_or(|end| due < end)).then_some(Ticket { number, due })
    }

    pub(crate) fn add_done(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_number_is_drawn_once() {
        let pace = Pace::start(3, None, None);
        let now = Instant::now();
        let numbers: Vec<_> = std::iter::from_fn(|| pace.draw(now)).map(|t| t.number).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn operations_are_evenly_spaced_until_the_duration_ends() {
        let pace = Pace::start(u64::MAX, Some(Duration::from_secs(1)), Some(4.0));
        let start = pace.start;
        let due: Vec<_> =
            std::iter::from_fn(|| pace.draw(start)).map(|ticket| ticket.due - start).collect();
        assert_eq!(due, [0, 250, 500, 750].map(Duration::from_millis));
        assert!(pace.draw(start + Duration::from_secs(2)).is_none());
    }

    #[test]
    fn an_interruption_ends_the_run() {
        let pace = Pace::start(u64::MAX, None, None);
        assert!(pace.draw(Instant::now()).is_some());
        pace.interruption().store(true, Ordering::Relaxed);
        assert!(pace.draw(Instant::now()).is_none());
        assert_eq!(pace.cut_short().unwrap(), "the run was interrupted");
    }

    #[test]
    fn an_abandoned_run_returns_the_reason() {
        let pace = Pace::start(u64::MAX, None, None);
        assert_eq!(pace.cut_short(), None);
        pace.give_up("the server is unreachable".to_owned());
        assert!(pace.is_over(Instant::now()) && pace.draw(Instant::now()).is_none());
        assert_eq!(pace.cut_short().unwrap(), "the server is unreachable");
    }
}
