//! Giving free space back to the file system, a step at a time.
//!
//! Pages that a step has moved stay where they were for as long as a published view can see them. So
//! readers are shown the file's new state after each step, and when a pass is through, another one
//! begins once they have it, until a pass gains nothing.

use std::time::{Duration, Instant};

use quorate_state::backend::Committed;

use super::{BackendError, BackendWriter, Defragmented, Report, Step};

/// Pages moved in one step.
const RECLAIM_PAGES: u64 = 256;

/// Passes of one reclamation. Each gives back what the one before had to leave to readers.
const PASSES_MAX: u32 = 8;

/// Time for readers between two passes.
const PASS_PAUSE: Duration = Duration::from_millis(2);

/// A reclamation under way, for everybody who asked for it.
#[derive(Debug)]
pub(super) struct Reclaiming<R> {
    bytes_before: u64,
    told: Vec<R>,
    /// Whether this pass has moved or truncated anything.
    has_gained: bool,
    passes_left: u32,
    /// When to look again; readers are given a moment to take the new view.
    next_step: Instant,
}

impl<T, R> BackendWriter<T, R> {
    pub(super) fn begin_reclaiming(&mut self, told: R, now: Instant) {
        if self.reclaiming.is_none() {
            self.backend.db().restart_reclaim();
        }
        let backend = &self.backend;
        let first = || Reclaiming {
            bytes_before: backend.size_bytes(),
            told: Vec::new(),
            has_gained: false,
            passes_left: PASSES_MAX,
            next_step: now,
        };
        self.reclaiming.get_or_insert_with(first).told.push(told);
    }

    /// When [`BackendWriter::reclaim`] is to be called, if nothing comes before.
    #[must_use]
    pub fn reclaim_at(&self) -> Option<Instant> {
        self.reclaiming.as_ref().map(|reclaiming| reclaiming.next_step)
    }

    /// Does a part of giving space back, if anybody asked for that. What it reports comes from
    /// [`BackendWriter::step`].
    pub fn reclaim(&mut self, now: Instant) -> Result<(), BackendError> {
        let Some(current) = &mut self.reclaiming else { return Ok(()) };
        let step = match self.backend.db().reclaim(RECLAIM_PAGES) {
            Ok(step) => step,
            // Pages are moved by writing them anew. What there is no room for stays where it is.
            Err(error) if error.is_no_room() => {
                self.end_reclaiming();
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        current.has_gained |= step.moved_pages > 0 || step.truncated_bytes > 0;
        let goes_on = if step.done {
            assert!(
                current.passes_left > 0,
                "a reclamation ends after its last pass: otherwise its callers would wait for ever"
            );
            current.passes_left -= 1;
            let goes_on = current.has_gained && current.passes_left > 0;
            current.has_gained = false;
            current.next_step = now + PASS_PAUSE;
            goes_on
        } else {
            true
        };
        let view = self.backend.read();
        let committed = Committed { view, last_revision: None, consistent_index: None };
        let generation = self.generation;
        self.steps.push_back(Step::Report(Report::Moved { committed, generation }));
        if !goes_on {
            self.end_reclaiming();
        }
        Ok(())
    }

    /// Tells those who asked how far it has come.
    pub(super) fn end_reclaiming(&mut self) {
        let Some(ended) = self.reclaiming.take() else { return };
        let bytes_after = self.backend.size_bytes();
        let outcome = Defragmented { bytes_before: ended.bytes_before, bytes_after };
        let report = Report::Defragmented { told: ended.told, outcome };
        self.steps.push_back(Step::Report(report));
    }
}
