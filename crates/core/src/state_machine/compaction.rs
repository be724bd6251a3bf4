//! Compactions in progress. They are carried out in steps, so that a write waits for at most one step.

use std::time::{Duration, Instant};

use super::{OFFER_AGAIN, Outlet, StateMachine};
use crate::backend_writer::{CompactionEnd, Then};

/// The progress of the compactions.
#[derive(Debug)]
pub(super) struct Compaction<T> {
    pub(super) next_step: Option<Instant>,
    started: Option<Instant>,
    removed_count: u64,
    waiting: Vec<T>,
}

impl<T> Compaction<T> {
    pub(super) const fn begin(is_under_way: bool, now: Instant) -> Self {
        let at = if is_under_way { Some(now) } else { None };
        Self { next_step: at, started: at, removed_count: 0, waiting: Vec::new() }
    }

    /// Records that another compaction was accepted.
    pub(super) fn add(&mut self, now: Instant) {
        self.next_step.get_or_insert(now);
        self.started.get_or_insert(now);
    }

    /// Resets the progress after the backend file has been replaced. Returns the waiters if no compaction is in
    /// progress in the new file.
    pub(super) fn restart(&mut self, is_under_way: bool, now: Instant) -> Vec<T> {
        let waiting = std::mem::take(&mut self.waiting);
        *self = Self::begin(is_under_way, now);
        if is_under_way {
            self.waiting = waiting;
            return Vec::new();
        }
        waiting
    }
}

impl<T> StateMachine<T> {
    pub(super) fn await_compactions(&mut self, completion: T, now: Instant) {
        if self.state.store().is_compaction_idle() {
            self.await_commit(completion, now);
        } else {
            self.compaction.waiting.push(completion);
        }
    }

    /// Carries out a compaction step if one is due and the backend is not behind. Returns the number of removed
    /// records, or `None` if no step was carried out.
    pub fn compact<O: Outlet<Completion = T>>(
        &mut self,
        now: Instant,
        outlet: &mut O,
    ) -> Option<usize> {
        let is_due = self.compaction.next_step.is_some_and(|at| at <= now);
        if !is_due {
            return None;
        }
        if outlet.is_backend_behind() {
            self.compaction.next_step = Some(now + OFFER_AGAIN);
            return None;
        }
        let step = self.state.compaction_step(self.pace.compaction_step);
        self.compaction.removed_count += step.deleted_count as u64;
        self.compaction.next_step = step.more.then(|| now + self.pace.compaction_pause);
        if let Some(revision) = step.finished {
            self.finish_compaction(revision, now, outlet);
        } else if step.deleted_count > 0 {
            self.hand_over(Vec::new(), outlet);
        }
        Some(step.deleted_count)
    }

    fn finish_compaction<O: Outlet<Completion = T>>(
        &mut self,
        revision: i64,
        now: Instant,
        outlet: &mut O,
    ) {
        let compaction = &mut self.compaction;
        let took = compaction.started.replace(now).map_or(Duration::ZERO, |at| now - at);
        let removed_count = std::mem::take(&mut compaction.removed_count);
        let mut then = Vec::new();
        if self.state.store().is_compaction_idle() {
            compaction.started = None;
            then.extend(compaction.waiting.drain(..).map(Then::Complete));
        }
        then.push(Then::Compacted(CompactionEnd { revision, took, removed_count }));
        self.hand_over(then, outlet);
    }
}
