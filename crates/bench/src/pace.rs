//! Who may send the next request, and when: one ticket per operation, drawn by every connection.
//!
//! A run ends after a number of operations, at a moment, or when it is interrupted, whichever comes first. With a rate, ticket `n`
//! is due `n / rate` after the start whatever the server does, and latency counts from then: a server that
//! stalls is charged for the requests that had to wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Leave to send one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// Position among all operations of the run.
    pub(crate) number: u64,
    /// When to send it; the past if there is no rate.
    pub(crate) due: Instant,
}

/// The tickets of one run, and how many operations are done.
#[derive(Debug)]
pub(crate) struct Pace {
    start: Instant,
    end: Option<Instant>,
    total: u64,
    interval: Option<Duration>,
    drawn: AtomicU64,
    done: AtomicU64,
    interrupted: Arc<AtomicBool>,
    /// Why the run cannot go on.
    given_up: OnceLock<String>,
}

impl Pace {
    /// Starts now. `total` is `u64::MAX` where only the duration ends the run.
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

    /// The flag that ends the run before its time.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Ends the run before its time, because it cannot go on.
    pub(crate) fn give_up(&self, reason: String) {
        // The first reason is as good as the next.
        drop(self.given_up.set(reason));
    }

    /// What ended the run before its time.
    pub(crate) fn cut_short(&self) -> Option<String> {
        let interrupted = || self.is_interrupted().then(|| "it was interrupted".to_owned());
        self.given_up.get().cloned().or_else(interrupted)
    }

    /// Whether there are no more tickets.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end)
            || self.is_interrupted()
            || self.given_up.get().is_some()
            || self.drawn.load(Ordering::Relaxed) >= self.total
    }

    /// Draws the next ticket, or `None` when the run is over.
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
    fn hands_out_each_number_once_and_then_none() {
        let pace = Pace::start(3, None, None);
        let now = Instant::now();
        let numbers: Vec<_> = std::iter::from_fn(|| pace.draw(now)).map(|t| t.number).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn a_rate_spaces_the_tickets_and_the_end_cuts_them_off() {
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
        assert_eq!(pace.cut_short().unwrap(), "it was interrupted");
    }

    #[test]
    fn a_run_that_cannot_go_on_ends_and_says_why() {
        let pace = Pace::start(u64::MAX, None, None);
        assert_eq!(pace.cut_short(), None);
        pace.give_up("nobody there".to_owned());
        assert!(pace.is_over(Instant::now()) && pace.draw(Instant::now()).is_none());
        assert_eq!(pace.cut_short().unwrap(), "nobody there");
    }
}
