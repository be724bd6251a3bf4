//! Defragmentation: free space is returned to the file system, one step at a time.
//!
//! The old copies of moved pages are kept while a published view can read them. Therefore a new view is published
//! after each step. When a pass ends, the next one starts after a pause that allows readers to take the new view. If a
//! pass neither moves nor truncates anything although readers pin pages, the next one only truncates the file, and the
//! pause doubles. If a step does nothing because it needs pages that readers pin, the next step is after such a pause
//! too. The defragmentation ends after a pass that gains nothing while readers pin no pages, and at the latest after
//! [`PASSES_MAX`] passes. If readers still pin pages then, the file is truncated when they have ended, before a later
//! batch is written.

use std::time::{Duration, Instant};

use quorate_state::backend::Committed;

use super::{BackendError, BackendWriter, Defragmented, Report, Step};

/// The number of pages moved in one step.
const RECLAIM_PAGES: u64 = 256;

/// The maximum number of passes in one defragmentation. Each pass frees the pages that readers still needed during the
/// previous pass.
const PASSES_MAX: u32 = 8;

/// The first pause between two passes, during which readers can take the new view.
const PASS_PAUSE: Duration = Duration::from_millis(2);

/// The maximum pause between two passes.
const PASS_PAUSE_MAX: Duration = Duration::from_millis(256);

/// A defragmentation in progress, for all callers that have requested it.
#[derive(Debug)]
pub(super) struct Reclaiming<R> {
    bytes_before: u64,
    completions: Vec<R>,
    /// Whether the current pass has moved or truncated anything.
    has_gained: bool,
    /// Whether the current pass only truncates the file, because the previous pass gained nothing.
    only_truncates: bool,
    passes_left: u32,
    /// The pause after the current pass.
    pause: Duration,
    /// The time of the next step. After a pass, the pause gives readers time to take the new view.
    next_step: Instant,
}

impl<R> Reclaiming<R> {
    fn lengthen_pause(&mut self) {
        self.pause = (self.pause * 2).min(PASS_PAUSE_MAX);
    }
}

impl<T, R> BackendWriter<T, R> {
    pub(super) fn begin_reclaiming(&mut self, completion: R, now: Instant) {
        if self.reclaiming.is_none() {
            self.backend.db().restart_reclaim();
        }
        let backend = &self.backend;
        let first = || Reclaiming {
            bytes_before: backend.size_bytes(),
            completions: Vec::new(),
            has_gained: false,
            only_truncates: false,
            passes_left: PASSES_MAX,
            pause: PASS_PAUSE,
            next_step: now,
        };
        self.reclaiming.get_or_insert_with(first).completions.push(completion);
    }

    /// Returns the time at which [`BackendWriter::reclaim`] should be called.
    #[must_use]
    pub fn reclaim_at(&self) -> Option<Instant> {
        self.reclaiming.as_ref().map(|reclaiming| reclaiming.next_step)
    }

    /// Carries out a step of the defragmentation, if one is in progress. [`BackendWriter::step`] returns its reports.
    pub fn reclaim(&mut self, now: Instant) -> Result<(), BackendError> {
        let Some(current) = &mut self.reclaiming else { return Ok(()) };
        let db = self.backend.db();
        let step = if current.only_truncates { db.truncate() } else { db.reclaim(RECLAIM_PAGES) };
        let step = match step {
            Ok(step) => step,
            // A page is moved by writing a copy. If there is no room for the copy, the page stays in its place and the
            // defragmentation ends.
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
                "a defragmentation ends after its last pass: otherwise its callers would wait forever"
            );
            current.passes_left -= 1;
            let has_gained = std::mem::take(&mut current.has_gained);
            current.only_truncates = !has_gained;
            if !has_gained {
                current.lengthen_pause();
            }
            current.next_step = now + current.pause;
            (has_gained || step.pinned_bytes > 0) && current.passes_left > 0
        } else {
            let awaits_readers = step.pinned_bytes > 0;
            if awaits_readers {
                current.next_step = now + current.pause;
                current.lengthen_pause();
            } else if step.moved_pages > 0 {
                current.pause = PASS_PAUSE;
            }
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

    /// Ends the defragmentation and reports the result to the callers that requested it.
    pub(super) fn end_reclaiming(&mut self) {
        let Some(ended) = self.reclaiming.take() else { return };
        let bytes_after = self.backend.size_bytes();
        let outcome = Defragmented { bytes_before: ended.bytes_before, bytes_after };
        let report = Report::Defragmented { completions: ended.completions, outcome };
        self.steps.push_back(Step::Report(report));
    }
}
