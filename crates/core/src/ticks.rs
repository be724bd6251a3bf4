//! Schedules the ticks of the thread that drives consensus.
//!
//! A leader sends its heartbeats with its ticks, so its ticks must be punctual. An idle follower is woken by heartbeats
//! as often as by its own ticks, and a wake-up costs more than the work that it triggers. A follower therefore
//! processes a tick together with an input that arrives at most half an interval before the tick.
//!
//! The thread that receives a heartbeat runs the driver itself, and the driver's thread keeps sleeping until the time
//! that was computed when it fell asleep. To make this thread wake less often than heartbeats arrive, a follower defers
//! as many ticks as the node allows ([`Node::deferrable_ticks`]).
//!
//! # Guarantees
//!
//! * A tick comes at most half an interval before its exact time. A leader's ticks are punctual.
//! * Deferred ticks come together, before the next input and at the latest with the last of them. So the tick at which
//!   an election is due is not late, and messages are processed after all ticks that precede them.
//! * If the thread oversleeps by an interval or more, for example because the process was suspended, only one of the
//!   deferred ticks is taken, and the next tick comes a whole interval later. Messages that arrived in the meantime can
//!   then be processed first.
//! * Other ticks that are missed during a longer pause are skipped, because delivering them late would cause premature
//!   elections.

use std::time::{Duration, Instant};

#[cfg(doc)]
use quorate_node::Node;

/// The tick schedule of a member.
#[derive(Debug)]
pub(crate) struct Ticks {
    interval: Duration,
    next: Instant,
    /// The time of the last tick that is deferred, if ticks are deferred.
    deferred_until: Option<Instant>,
}

impl Ticks {
    /// Starts the schedule. The first tick is one interval from now.
    pub(crate) fn begin(interval: Duration, now: Instant) -> Self {
        Self { interval, next: now + interval, deferred_until: None }
    }

    /// Returns the time by which the thread must run again if this number of ticks may be deferred.
    pub(crate) fn deadline(&self, deferrable: u32) -> Instant {
        self.next + self.interval * deferrable.saturating_sub(1)
    }

    /// Lets the next `deferrable` ticks come together, at the time of the last one. Returns the time until which the
    /// thread may sleep if no input arrives.
    pub(crate) fn sleep(&mut self, deferrable: u32) -> Instant {
        let deadline = self.deadline(deferrable);
        self.deferred_until = (deferrable > 0).then_some(deadline);
        deadline
    }

    /// Takes the next tick from the schedule if it was deferred and is due.
    pub(crate) fn take_deferred(&mut self, now: Instant) -> bool {
        let Some(until) = self.deferred_until.filter(|until| self.next <= now.min(*until)) else {
            return false;
        };
        self.next += self.interval;
        if now >= until + self.interval {
            self.next = now + self.interval;
        }
        true
    }

    /// Takes the next tick from the schedule if it is due, or if it is nearly due and an input has arrived. Returns the
    /// delay of that tick.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        is_input: bool,
        is_leader: bool,
    ) -> Option<Duration> {
        let early = if is_input && !is_leader { self.interval / 2 } else { Duration::ZERO };
        if now + early < self.next {
            return None;
        }
        let late = now.saturating_duration_since(self.next);
        self.next = (self.next + self.interval).max(now);
        Some(late)
    }
}
