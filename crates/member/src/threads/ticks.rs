//! Schedules the ticks of the consensus thread.
//!
//! A leader sends its heartbeats with its ticks, so its ticks must be punctual. An idle follower is woken by heartbeats
//! as often as by its own ticks, and a wake-up costs more than the work that it triggers. A follower therefore
//! processes a tick together with an input that arrives within half an interval of the tick, and wakes up for the tick
//! alone only if no input arrives.
//!
//! # Guarantees
//!
//! * There is one tick per interval, at most half an interval before or after its exact time.
//! * If no input has arrived for an interval, ticks are punctual, so the loss of a leader is detected without extra
//!   delay.
//! * Ticks that are missed during a pause are skipped, because delivering them late would cause premature elections.

use std::time::{Duration, Instant};

/// The tick schedule of a member.
#[derive(Debug)]
pub(crate) struct Ticks {
    interval: Duration,
    next: Instant,
    /// Whether an input arrived together with the last tick, or in the interval before that tick.
    had_input: bool,
    /// Whether an input has arrived since the last tick.
    has_input: bool,
}

impl Ticks {
    /// Starts the schedule. The first tick is one interval from now.
    pub(crate) fn begin(interval: Duration, now: Instant) -> Self {
        Self { interval, next: now + interval, had_input: false, has_input: false }
    }

    /// Returns the latest time at which the thread wakes for the next tick if no input arrives.
    pub(crate) fn next_deadline(&self, is_leader: bool) -> Instant {
        if !is_leader && self.had_input { self.next + self.interval / 2 } else { self.next }
    }

    /// Takes the next tick from the schedule if it is due, or if it is nearly due and an input has arrived. Returns the
    /// delay of that tick.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        is_input: bool,
        is_leader: bool,
    ) -> Option<Duration> {
        self.has_input |= is_input;
        let early = if is_input && !is_leader { self.interval / 2 } else { Duration::ZERO };
        if now + early < self.next {
            return None;
        }
        let late = now.saturating_duration_since(self.next);
        self.had_input = std::mem::take(&mut self.has_input);
        self.next = (self.next + self.interval).max(now);
        Some(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Runs the ticks with heartbeats at these times. Returns the time of each wake-up and the number of ticks taken at
    /// that time.
    fn run(is_leader: bool, heartbeats: &[u64], end: u64) -> Vec<(u64, usize)> {
        let start = Instant::now();
        let mut ticks = Ticks::begin(INTERVAL, start);
        let mut heartbeats = heartbeats.iter().map(|at| start + millis(*at)).peekable();
        let (end, mut woken) = (start + millis(end), Vec::new());
        loop {
            let next_deadline = ticks.next_deadline(is_leader);
            let come = heartbeats.next_if(|at| *at <= next_deadline);
            let now = come.unwrap_or(next_deadline);
            if now > end {
                return woken;
            }
            let taken = ticks.take(now, come.is_some(), is_leader);
            let at = u64::try_from((now - start).as_millis()).unwrap();
            woken.push((at, usize::from(taken.is_some())));
        }
    }

    #[test]
    fn a_follower_that_receives_heartbeats_is_not_woken_by_ticks() {
        // The result does not depend on the phase of the heartbeats.
        for phase in [0, 1, 49, 50, 51, 99] {
            let heartbeats: Vec<u64> = (1..=50).map(|number| number * 100 + phase).collect();
            let woken = run(false, &heartbeats, 5_000);
            let ticks: usize = woken.iter().map(|(_, ticks)| ticks).sum();
            assert!((49..=50).contains(&ticks), "{phase}: {ticks}");
            // At most the first two ticks need separate wake-ups.
            assert!(woken.len() <= 52, "{phase}: {woken:?}");
        }
    }

    #[test]
    fn ticks_are_punctual_when_no_input_arrives() {
        let woken = run(false, &[120, 220, 320], 1_000);
        let with_heartbeats = [(100, 1), (120, 0), (200, 1), (220, 0), (320, 1)];
        assert_eq!(woken[..5], with_heartbeats);
        let own = [450, 500, 600, 700, 800, 900, 1_000].map(|at| (at, 1));
        assert_eq!(woken[5..], own);
    }

    #[test]
    fn a_leader_ticks_at_every_interval() {
        let woken = run(true, &[90, 110, 160, 190, 310], 400);
        let ticks: Vec<u64> = woken.iter().filter(|(_, ticks)| *ticks > 0).map(|it| it.0).collect();
        assert_eq!(ticks, [100, 200, 300, 400]);
    }

    #[test]
    fn ticks_missed_during_a_pause_are_skipped() {
        let start = Instant::now();
        let mut ticks = Ticks::begin(INTERVAL, start);
        assert_eq!(ticks.take(start + millis(1_000), true, false), Some(millis(900)));
        assert_eq!(ticks.take(start + millis(1_000), true, false), Some(Duration::ZERO));
        assert_eq!(ticks.take(start + millis(1_000), true, false), None);
        assert_eq!(ticks.next_deadline(true), start + millis(1_100));
    }
}
