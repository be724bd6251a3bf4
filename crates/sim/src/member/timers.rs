//! The work of a process that is due at regular intervals: ticks, commit intervals and the removal of old files.

use quorate_node::Event;

use super::{Fatal, Process};
use crate::clock::Micros;

impl Process {
    /// Wakes the thread that drives consensus for a tick.
    pub(super) fn wake_for_tick(&mut self) -> Result<(), Fatal> {
        self.take_deferred_ticks()?;
        let leads = self.consensus.leadership().leads();
        if self.ticks.take(self.clock_now().instant, false, leads).is_some() {
            self.tick()?;
        }
        self.next_tick = self.ticks.sleep(self.consensus.deferrable_ticks());
        Ok(())
    }

    /// Processes the deferred ticks that are due, before consensus processes its inputs.
    pub(super) fn take_deferred_ticks(&mut self) -> Result<(), Fatal> {
        let now = self.clock_now().instant;
        while self.consensus.deferrable_ticks() > 0 && self.ticks.take_deferred(now) {
            self.tick()?;
        }
        Ok(())
    }

    /// Processes a tick after inputs, if it is due or nearly due. As in a real process, a thread that receives inputs
    /// runs consensus itself, and the other thread keeps sleeping unless it may now sleep for too long.
    pub(super) fn take_tick_with_inputs(&mut self, led: bool) -> Result<(), Fatal> {
        let now = self.clock_now().instant;
        let leads = self.consensus.leadership().leads();
        if self.ticks.take(now, true, leads).is_some() {
            self.tick()?;
        }
        let leads = self.consensus.leadership().leads();
        let is_deferral_over = self.ticks.are_deferred() && self.consensus.deferrable_ticks() == 0;
        if leads != led || is_deferral_over {
            self.next_tick = now;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Fatal> {
        self.consensus.notice_applied(self.outputs.published);
        let forgotten = self.outputs.pending.forget_withdrawn(self.consensus.leadership().leads());
        if !forgotten.is_empty() {
            self.consensus.handle(Event::Withdraw(forgotten));
        }
        self.consensus.note_time(self.clock_now().millis);
        self.consensus.handle(Event::Tick);
        if self.consensus_writes_log {
            self.log.prepare().map_err(|error| Fatal::of("the log")(&error))?;
        }
        self.handle_effects()
    }

    /// Returns whether the leader has asked only some of the voters to confirm its newest read.
    pub fn has_asked_few_to_confirm_reads(&self) -> bool {
        self.consensus.has_asked_few_to_confirm_reads()
    }

    /// Returns whether the leader defers its commit notices, so that [`Self::end_commit_interval`] must be called.
    pub const fn defers_commit_notices(&self) -> bool {
        self.consensus.defers_commit_notices()
    }

    /// Processes the end of a commit interval.
    ///
    /// # Errors
    ///
    /// The process failed and must not be used again.
    pub fn end_commit_interval(&mut self, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        self.consensus.notice_applied(self.outputs.published);
        self.consensus.note_time(self.clock_now().millis);
        self.consensus.handle(Event::CommitInterval);
        let done = self.handle_effects();
        self.route_outputs();
        done
    }

    /// Removes old files. Returns their number.
    ///
    /// # Errors
    ///
    /// The process failed and must not be used again.
    pub fn purge(&self) -> Result<u64, Fatal> {
        let mut removed = 0;
        self.purger.run(|_| removed += 1).map_err(|error| Fatal::of("purging")(&error))?;
        Ok(removed)
    }
}
