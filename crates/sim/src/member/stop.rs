//! The clean stop of a process.

use quorate_core::{Job, StopStep};
use quorate_raft::LogIndex;
use quorate_storage::wal;

use super::input::Input;
use super::{Fatal, Process};
use crate::clock::Micros;

impl Process {
    /// Stops the process. Afterwards, only [`Process::take_outputs`] and [`Process::work_left`] may be called. The
    /// messages in the outputs are not sent, because a process stops its exchange with other members first.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn stop(&mut self, now: Micros) -> Result<(), Fatal> {
        self.now = now;
        for step in StopStep::ORDER {
            match step {
                StopStep::EndConsensus => self.run_consensus()?,
                StopStep::EndStateMachine => self.end_state_machine()?,
                StopStep::EndBackend => self.empty_backend_queue()?,
                StopStep::CloseLog => self.close_log()?,
            }
        }
        Ok(())
    }

    /// Returns the work that this process has left to the next one, although there was room to do it.
    pub fn work_left(&self) -> Option<&'static str> {
        if self.is_installing || self.writer.has_given_up() {
            return None;
        }
        let committed = self.backend.read().consistent_index().ok()?.0;
        if committed < self.machine.state().applied().0 {
            return Some("applied entries are not in the backend file");
        }
        let marks = wal::snapshot_marks(&*self.disk, self.dirs.wal()).ok()?;
        let is_marked =
            marks.last().is_some_and(|mark| LogIndex(mark.index) >= self.saved_snapshot);
        (!is_marked).then_some("the last saved snapshot has no mark in the log")
    }

    fn end_state_machine(&mut self) -> Result<(), Fatal> {
        self.jobs.push_back(Job::Stop);
        while !self.jobs.is_empty() {
            self.run_machine()?;
            self.empty_backend_queue()?;
            if self.is_installing && !self.is_installed {
                // The backend has given up. The next process installs the snapshot.
                break;
            }
        }
        Ok(())
    }

    fn empty_backend_queue(&mut self) -> Result<(), Fatal> {
        loop {
            if self.writer.lacks_space() {
                self.writer.give_up();
            }
            if self.outputs.orders.is_empty() {
                return Ok(());
            }
            self.run_backend()?;
        }
    }

    fn close_log(&mut self) -> Result<(), Fatal> {
        for input in std::mem::take(&mut self.inputs) {
            if let Input::Mark(mark) = input {
                self.mark(mark)?;
            }
        }
        self.append_to_log()?;
        let hard_state = self.consensus.unwritten_hard_state();
        let log = self.log.take().expect("a process stops once");
        log.close(hard_state).map_err(|error| Fatal::of("closing the log")(&error))
    }
}
