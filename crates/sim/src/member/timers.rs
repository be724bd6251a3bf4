//! The work of a process that is due at regular intervals: ticks, commit intervals and the removal of old files.

use quorate_node::Event;

use super::{Fatal, Process};
use crate::clock::Micros;

impl Process {
    /// Processes the end of a heartbeat interval.
    ///
    /// # Errors
    ///
    /// The process failed and must not be used again.
    pub fn tick(&mut self, now: Micros) -> Result<(), Fatal> {
        self.now = now;
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
        let done = self.handle_effects();
        self.route_outputs();
        done
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
