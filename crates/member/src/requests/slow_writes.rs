//! Log lines and spans about slow writes: which writes are traced, and the steps of a write through the log.
//!
//! # Bound
//!
//! At most one write per [`TRACE_INTERVAL`] is traced, because each trace requires an answer from the driver.

use std::time::{Duration, Instant};

use quorate_requests::slow::{Step, TRACED};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::throttle::LogThrottle;

use crate::threads::write_stages::Stages;

/// Minimum time between two traces of writes.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);

/// Decides which slow writes are traced.
#[derive(Debug)]
pub(crate) struct TracedWrites(LogThrottle);

impl Default for TracedWrites {
    fn default() -> Self {
        Self(LogThrottle::every(TRACE_INTERVAL))
    }
}

impl TracedWrites {
    /// Returns whether to trace a write that took this long.
    #[inline]
    pub(crate) fn wants(&self, took: Duration) -> bool {
        took > TRACED && log::enabled(log::Level::Info) && self.0.admits().is_some()
    }
}

/// Returns the steps of a write in the order in which they ended. The order varies, because a quorum may be faster than
/// this member's disk.
pub(crate) fn steps_of_write(
    stages: Option<Stages>,
    applied: Instant,
    answered: Instant,
) -> Vec<Step> {
    let mut steps = Vec::with_capacity(5);
    if let Some(Stages { appended, synced, committed }) = stages {
        steps.push(("passed to the log, after waiting in the queue or for the leader", appended));
        steps.extend(synced.map(|at| ("written to this member's disk", at)));
        steps.extend(committed.map(|at| ("known to be committed", at)));
    }
    steps.push(("applied", applied));
    steps.push(("answered", answered));
    steps.sort_by_key(|(_, at)| *at);
    steps
}

/// A part of a call: its name, its start time and its end time.
pub(crate) type Part = (&'static str, Instant, Instant);

/// Returns the parts of a write whose stages are known. The waits for the disk and for the quorum overlap.
pub(crate) fn spans_of_write(
    stages: Option<Stages>,
    started: Instant,
    (applied, answered): (Instant, Instant),
) -> Vec<Part> {
    let mut parts = Vec::with_capacity(5);
    if let Some(Stages { appended, synced, committed }) = stages {
        parts.push(("queue", started, appended));
        parts.extend(synced.map(|at| ("disk", appended, at)));
        parts.extend(committed.map(|at| ("quorum", appended, at)));
        let from = committed.or(synced).unwrap_or(appended);
        parts.push(("application", from, applied));
    }
    parts.push(("answer", applied, answered));
    parts
}

/// Returns the name of a kind of write in a trace.
pub(crate) const fn operation(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Put => "put",
        RequestKind::DeleteRange => "delete_range",
        RequestKind::Txn => "transaction",
        RequestKind::Compaction => "compact",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_write_are_sorted_even_if_a_quorum_is_faster_than_the_local_disk() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let stages = Stages { appended: at(1), synced: Some(at(9)), committed: Some(at(5)) };
        let steps = steps_of_write(Some(stages), at(7), at(8));
        let times: Vec<_> = steps.iter().map(|(_, at)| *at).collect();
        assert_eq!(times, [at(1), at(5), at(7), at(8), at(9)]);
        assert_eq!(steps[1].0, "known to be committed");
        assert_eq!(
            steps_of_write(None, at(7), at(8)).len(),
            2,
            "the stages of the write are no longer kept"
        );
    }

    #[test]
    fn the_spans_of_a_write_match_its_stages() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let parts = |stages| spans_of_write(stages, at(0), (at(7), at(8)));
        let stages = Stages { appended: at(1), synced: Some(at(9)), committed: Some(at(5)) };
        let quicker_than_the_disk = [
            ("queue", at(0), at(1)),
            ("disk", at(1), at(9)),
            ("quorum", at(1), at(5)),
            ("application", at(5), at(7)),
            ("answer", at(7), at(8)),
        ];
        assert_eq!(parts(Some(stages)), quicker_than_the_disk);
        let names = |parts: Vec<Part>| parts.into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        let unknown = Stages { synced: None, committed: None, ..stages };
        assert_eq!(names(parts(Some(unknown))), ["queue", "application", "answer"]);
        assert_eq!(names(parts(None)), ["answer"], "the stages of the write are no longer kept");
    }

    #[test]
    fn slow_writes_are_traced_at_a_limited_rate() {
        let traced = TracedWrites::default();
        assert!(!traced.wants(TRACED));
        let slow = TRACED + Duration::from_nanos(1);
        assert!(traced.wants(slow) && !traced.wants(slow));
    }
}
