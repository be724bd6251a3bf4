//! Schedules the ticks of the consensus thread.
//!
//! A leader sends its heartbeats with its ticks, so its ticks must be punctual. An idle follower is woken by heartbeats
//! as often as by its own ticks, and a wake-up costs more than the work that it triggers. A follower therefore
//! processes a tick together with an input that arrives at most half an interval before the tick.
//!
//! The thread that receives a heartbeat runs the driver itself, and the driver's thread keeps sleeping until the time
//! that was computed when it fell asleep. To make this thread wake less often than heartbeats arrive, a follower that
//! receives input sleeps until one and a half intervals after its next tick.
//!
//! # Guarantees
//!
//! * A tick comes at most half an interval before its exact time. A leader's ticks are punctual.
//! * After the input of a follower has stopped, its next tick is at most one and a half intervals late. If it is more
//!   than one interval late, the tick after it follows immediately. All later ticks are one interval apart, so the loss
//!   of a leader is detected at most half an interval later than with punctual ticks.
//! * Ticks that are missed during a longer pause are skipped, because delivering them late would cause premature
//!   elections.

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
        if !is_leader && self.had_input { self.next + self.interval * 3 / 2 } else { self.next }
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

    /// Who runs the driver at some time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Runner {
        /// The thread that has received a heartbeat.
        Network,
        /// The driver's own thread, which has slept until its deadline.
        Own,
    }

    /// Runs the ticks with heartbeats at these times. Returns the time of each run of the driver, the thread that runs
    /// it, and the number of ticks taken at that time.
    fn run(is_leader: bool, heartbeats: &[u64], end: u64) -> Vec<(u64, Runner, usize)> {
        let start = Instant::now();
        let mut ticks = Ticks::begin(INTERVAL, start);
        let mut heartbeats = heartbeats.iter().map(|at| start + millis(*at)).peekable();
        let (end, mut runs) = (start + millis(end), Vec::new());
        // A heartbeat does not wake the driver's thread, so it does not change this thread's deadline.
        let mut deadline = ticks.next_deadline(is_leader);
        loop {
            let come = heartbeats.next_if(|at| *at <= deadline);
            let now = come.unwrap_or(deadline);
            if now > end {
                return runs;
            }
            let taken = ticks.take(now, come.is_some(), is_leader);
            let runner = if come.is_some() { Runner::Network } else { Runner::Own };
            if runner == Runner::Own {
                deadline = ticks.next_deadline(is_leader);
            }
            let at = u64::try_from((now - start).as_millis()).unwrap();
            runs.push((at, runner, usize::from(taken.is_some())));
        }
    }

    #[test]
    fn the_thread_of_a_follower_that_receives_heartbeats_rarely_wakes() {
        // The result does not depend on the phase of the heartbeats.
        for phase in [0, 1, 49, 50, 51, 99] {
            let heartbeats: Vec<u64> = (1..=50).map(|number| number * 100 + phase).collect();
            let runs = run(false, &heartbeats, 5_000);
            let ticks: usize = runs.iter().map(|(_, _, ticks)| ticks).sum();
            assert!((49..=50).contains(&ticks), "{phase}: {ticks}");
            let own = runs.iter().filter(|(_, runner, _)| *runner == Runner::Own).count();
            assert!(own <= 27, "{phase}: {own} of {}", runs.len());
        }
    }

    #[test]
    fn ticks_are_an_interval_apart_when_no_input_arrives() {
        use Runner::{Network, Own};
        let runs = run(false, &[120, 220, 320], 1_000);
        let with_heartbeats = [
            (100, Own, 1),
            (120, Network, 0),
            // The thread fell asleep before it had received a heartbeat.
            (200, Own, 1),
            (220, Network, 0),
            (320, Network, 1),
        ];
        assert_eq!(runs[..5], with_heartbeats);
        // The tick that was due at 400 ms is late, and the tick that is due at 500 ms follows immediately.
        let late = [(450, Own, 1), (500, Own, 1)];
        let own = [600, 700, 800, 900, 1_000].map(|at| (at, Own, 1));
        assert_eq!(runs[5..], [&late[..], &own].concat());
    }

    #[test]
    fn a_leader_ticks_at_every_interval() {
        let runs = run(true, &[90, 110, 160, 190, 310], 400);
        let ticks: Vec<u64> =
            runs.iter().filter(|(_, _, ticks)| *ticks > 0).map(|it| it.0).collect();
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
