//! A turn of consensus, which processes the inputs together with everything that is due.
//!
//! # How a turn is executed
//!
//! 1. [`Consensus::begin_turn`] is called with the time. It processes the deferred ticks that are due.
//! 2. The caller passes in all queued inputs.
//! 3. [`Consensus::end_turn`] is called with the applied index. It processes the tick and the end of a commit interval,
//!    if they are due.
//! 4. The caller carries out all effects.
//!
//! One thread has the task to execute a turn whenever something is due. It sleeps until an input arrives, and at most
//! until the time that [`Consensus::sleep`] returns. Other threads may execute turns in the meantime. After each of
//! these turns, [`Consensus::oversleeps`] tells whether the sleeping thread must be woken.
//!
//! # Guarantees
//!
//! * Deferred ticks are processed before the inputs, because messages must be processed after all ticks that precede
//!   them. A tick that may start an election is processed after the inputs, because they may contain a message from the
//!   leader.
//! * While a leader defers its commit notices, a commit interval ends after each
//!   [`Intervals::commit_notice`].

use std::time::{Duration, Instant};

use quorate_node::Event;
use quorate_raft::LogIndex;

use super::{Consensus, WaitingReads};
use crate::Now;
use crate::ticks::Ticks;

/// The intervals that determine the timing of consensus.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// The interval between ticks, which is also the heartbeat interval of a leader.
    pub tick: Duration,
    /// The election timeout: how long followers wait for a leader before they start an election.
    pub election_timeout: Duration,
    /// How long a leader may defer its commit notices.
    pub commit_notice: Duration,
}

/// The times at which consensus acts without an input.
#[derive(Debug)]
pub(super) struct Schedule {
    intervals: Intervals,
    ticks: Ticks,
    /// The end of the current commit interval, while commit notices are deferred.
    interval_end: Option<Instant>,
    /// The start of the current turn.
    now: Instant,
    /// Whether there was a deferred tick in the current turn.
    has_ticked: bool,
    /// The time until which the thread that executes turns sleeps.
    sleeps_until: Instant,
}

impl Schedule {
    pub(super) fn begin(intervals: Intervals, now: Instant) -> Self {
        let mut ticks = Ticks::begin(intervals.tick, now);
        let sleeps_until = ticks.sleep(0);
        Self { intervals, ticks, interval_end: None, now, has_ticked: false, sleeps_until }
    }
}

impl<R: WaitingReads> Consensus<R> {
    /// Begins a turn. The caller then passes in all queued inputs and calls [`Consensus::end_turn`].
    pub fn begin_turn(&mut self, now: Now) {
        self.note_time(now.millis);
        self.schedule.now = now.instant;
        while self.deferrable_ticks() > 0 && self.schedule.ticks.take_deferred(now.instant) {
            self.handle(Event::Tick);
            self.schedule.has_ticked = true;
        }
    }

    /// Ends a turn. `applied` is the last applied entry, and `has_inputs` tells whether there were inputs. The caller
    /// then carries out all effects.
    ///
    /// If there were ticks in this turn, returns the delay of the last one.
    pub fn end_turn(&mut self, applied: LogIndex, has_inputs: bool) -> Option<Duration> {
        let now = self.schedule.now;
        self.end_batch();
        self.notice_applied(applied);
        let deferred = std::mem::take(&mut self.schedule.has_ticked).then_some(Duration::ZERO);
        let delay = self.schedule.ticks.take(now, has_inputs, self.state.leads());
        if delay.is_some() {
            self.handle(Event::Tick);
        }
        if self.schedule.interval_end.take_if(|end| *end <= now).is_some() {
            self.handle(Event::CommitInterval);
        }
        delay.or(deferred)
    }

    /// Returns the time by which the next turn must begin. Called after a turn by the thread that sleeps until that
    /// time.
    pub fn sleep(&mut self) -> Instant {
        let tick = self.schedule.ticks.sleep(self.deferrable_ticks());
        self.schedule.sleeps_until = tick.min(self.commit_interval_end().unwrap_or(tick));
        self.schedule.sleeps_until
    }

    /// Returns whether the time that [`Consensus::sleep`] returned last is too late. Called after a turn that another
    /// thread has executed.
    pub fn oversleeps(&mut self) -> bool {
        let tick = self.schedule.ticks.deadline(self.deferrable_ticks());
        tick.min(self.commit_interval_end().unwrap_or(tick)) < self.schedule.sleeps_until
    }

    /// Begins a commit interval if this leader now defers its commit notices. Returns the end of the current interval.
    fn commit_interval_end(&mut self) -> Option<Instant> {
        let schedule = &mut self.schedule;
        schedule.interval_end = match schedule.interval_end {
            _ if !self.node.defers_commit_notices() => None,
            None => Some(schedule.now + schedule.intervals.commit_notice),
            end => end,
        };
        schedule.interval_end
    }
}
