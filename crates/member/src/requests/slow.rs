//! Log lines about slow requests, in etcd's format, with the time spent in each step.
//!
//! `apply request took too long` is logged if applying a write takes longer than `--warning-apply-duration`, or if a
//! read takes longer than that in total. `trace` is logged, with the steps, if a request takes longer than [`TRACED`].
//! A fast request pays only one comparison for each.
//!
//! # Bound
//!
//! At most one write per [`TRACE_INTERVAL`] is traced, because each trace requires an answer from the driver.

use std::time::{Duration, Instant, SystemTime};

use quorate_gotext::duration::SignedDuration;
use quorate_telemetry::log;
use quorate_telemetry::metrics::{Metrics, RequestKind};
use quorate_telemetry::throttle::LogThrottle;

use crate::error::RequestError;
use crate::requests::access::Client;
use crate::requests::limits::Limits;
use crate::threads::slow_apply::Slow;
use crate::threads::write_stages::Stages;

/// Duration above which a request is traced.
pub(crate) const TRACED: Duration = Duration::from_millis(100);

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

/// The name of a step and its end time.
pub(crate) type Step = (&'static str, Instant);

/// The trace of a slow request.
#[derive(Debug)]
pub(crate) struct Trace<'a> {
    /// The id of the request, if it has one.
    pub(crate) id: Option<u64>,
    pub(crate) operation: &'a str,
    /// Details of the request, as names and values.
    pub(crate) detail: &'a [(&'a str, String)],
    pub(crate) started: Instant,
    /// The steps, in the order in which they ended.
    pub(crate) steps: &'a [Step],
}

impl Trace<'_> {
    pub(crate) fn log(&self) {
        let detail = self.detail.iter().map(|(name, value)| format!("{name}:{value}; "));
        let detail = format!("{{{}}}", detail.collect::<String>());
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut done = self.started;
        for (name, at) in self.steps {
            let took = at.saturating_duration_since(done);
            steps.push(format!("'{name}' {{}} (duration: {})", SignedDuration::from(took)));
            done = *at;
        }
        let (now, monotonic) = (SystemTime::now(), Instant::now());
        log::info!(
            "trace",
            "trace_id" = self.id,
            "operation" = self.operation,
            "detail" = detail,
            "duration" = done.saturating_duration_since(self.started),
            "start" = now - monotonic.saturating_duration_since(self.started),
            "end" = now - monotonic.saturating_duration_since(done),
            "steps" = steps,
            "step_count" = self.steps.len()
        );
    }
}

/// Returns the steps of a write in the order in which they ended. A quorum may be faster than this member's disk.
pub(crate) fn steps_of_write(
    stages: Option<Stages>,
    applied: Instant,
    answered: Instant,
) -> Vec<Step> {
    let mut steps = Vec::with_capacity(5);
    if let Some(Stages { appended, synced, committed }) = stages {
        steps.push(("passed to the log, after waiting in the queue or for the leader", appended));
        steps.extend(synced.map(|at| ("written to the disk of this member", at)));
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

/// The times at which the steps of a read ended.
#[derive(Clone, Copy, Debug)]
pub struct ReadTimes {
    started: Instant,
    agreed: Option<Instant>,
}

impl ReadTimes {
    /// Records the start of a read.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), agreed: None }
    }

    /// Records that the read barrier has been passed.
    pub fn note_barrier(&mut self) {
        self.agreed = Some(Instant::now());
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds the parts of a finished read to the trace of its call, if the call is traced.
    pub fn tell(&self, client: &Client, took: Duration) {
        let Some(trace) = &client.trace else { return };
        let parent = trace.current();
        if let Some(agreed) = self.agreed {
            trace.stage(parent, "quorum", self.started, agreed);
        }
        trace.stage(parent, "read", self.agreed.unwrap_or(self.started), self.started + took);
    }

    /// Returns the steps of a read that took this long.
    fn steps(&self, took: Duration) -> Vec<Step> {
        let agreed =
            self.agreed.map(|at| ("agreement among raft nodes before linearized reading", at));
        let read = ("read the keys and assemble the response", self.started + took);
        agreed.into_iter().chain([read]).collect()
    }
}

/// A finished read, for the log lines about slow reads.
#[derive(Debug)]
pub(crate) struct ReadDone<'a> {
    pub(crate) times: ReadTimes,
    pub(crate) took: Duration,
    pub(crate) kind: ReadKind,
    /// The request as text.
    pub(crate) request: String,
    /// The response as text, or the error.
    pub(crate) response: Result<String, &'a RequestError>,
}

/// The kind of read in the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// One range.
    Range,
    /// A read-only transaction.
    Txn,
}

impl ReadKind {
    const fn operation(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Txn => "transaction",
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Range => "read-only range ",
            Self::Txn => "read-only txn ",
        }
    }
}

/// Returns whether a read that took this long is logged.
pub(crate) fn is_worth_a_line(took: Duration, limits: &Limits) -> bool {
    took > limits.slow_apply || took > TRACED
}

/// Logs a slow read.
pub(crate) fn log_slow_read(read: ReadDone<'_>, limits: &Limits, metrics: &Metrics) {
    let ReadDone { times, took, kind, request, response } = read;
    let response_text = response.as_ref().map_or_else(|_| String::new(), String::clone);
    if took > TRACED && log::enabled(log::Level::Info) {
        let detail = [("request", request.clone()), ("response", response_text.clone())];
        let (operation, started) = (kind.operation(), times.started);
        let steps = times.steps(took);
        let id = None;
        Trace { id, operation, detail: &detail, started, steps: &steps }.log();
    }
    if took > limits.slow_apply {
        let error = response.err().map(ToString::to_string);
        let slow = Slow { took, prefix: kind.prefix(), request, response: response_text, error };
        slow.log(limits.slow_apply, metrics);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_write_are_sorted_even_if_the_quorum_precedes_the_local_disk() {
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
    fn spans_of_a_write_follow_its_stages() {
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
    fn the_steps_of_a_read_include_the_wait_for_the_read_barrier() {
        let mut times = ReadTimes::start();
        assert_eq!(times.steps(Duration::from_millis(5)).len(), 1);
        times.note_barrier();
        let steps = times.steps(Duration::from_millis(5));
        assert!(steps[0].0.starts_with("agreement") && steps[1].1 > times.started);
    }

    #[test]
    fn slow_writes_are_traced_at_a_limited_rate() {
        let traced = TracedWrites::default();
        assert!(!traced.wants(TRACED));
        let slow = TRACED + Duration::from_nanos(1);
        assert!(traced.wants(slow) && !traced.wants(slow));
    }
}
