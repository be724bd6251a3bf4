//! Log lines about slow requests, in etcd's format, with the time spent in each step.
//!
//! `apply request took too long` is logged if applying a write takes longer than `--warning-apply-duration`, or if a
//! read takes longer than this limit in total. `trace` is logged, with the steps, if a request takes longer than
//! [`TRACED`]. For a fast request, each of the two log lines costs only one comparison.
//!
//! # Not here
//!
//! The choice of the writes to trace, and their steps. Both depend on the data store (`member::requests::slow_writes`).

use std::time::{Duration, Instant, SystemTime};

use quorate_gotext::duration::SignedDuration;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

use crate::access::Client;
use crate::error::RequestError;
use crate::limits::Limits;
use crate::server_info::ServerInfo;
use crate::slow_apply::Slow;

/// Duration above which a request is traced.
pub const TRACED: Duration = Duration::from_millis(100);

/// The name of a step and its end time.
pub type Step = (&'static str, Instant);

/// The trace of a slow request.
#[derive(Debug)]
pub struct Trace<'a> {
    /// The id of the request, if it has one.
    pub id: Option<u64>,
    /// The name of the operation.
    pub operation: &'a str,
    /// Details of the request, as names and values.
    pub detail: &'a [(&'a str, String)],
    /// The request's arrival time.
    pub started: Instant,
    /// The steps, in the order in which they ended.
    pub steps: &'a [Step],
}

impl Trace<'_> {
    /// Logs the trace with its steps.
    pub fn log(&self) {
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

/// When a read started, and when it passed the read barrier, if it has done so.
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

    /// Adds the steps of a finished read, which took `took` in total, to the trace of its call, if the call is traced.
    pub fn tell(&self, client: &Client, took: Duration) {
        let Some(trace) = &client.trace else { return };
        let parent = trace.current();
        if let Some(agreed) = self.agreed {
            trace.stage(parent, "quorum", self.started, agreed);
        }
        trace.stage(parent, "read", self.agreed.unwrap_or(self.started), self.started + took);
    }

    /// Returns the steps of a read that took `took` in total.
    fn steps(&self, took: Duration) -> Vec<Step> {
        let agreed =
            self.agreed.map(|at| ("agreement among raft nodes before linearized reading", at));
        let read = ("read the keys and assemble the response", self.started + took);
        agreed.into_iter().chain([read]).collect()
    }
}

/// A finished read, for the log lines about slow reads.
#[derive(Debug)]
struct ReadDone<'a> {
    times: ReadTimes,
    took: Duration,
    kind: ReadKind,
    /// The request as text.
    request: String,
    /// The response as text, or the error.
    response: Result<String, &'a RequestError>,
}

/// The kind of read in the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// The read of one range.
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

/// Logs a slow read with the times of its steps. `texts` returns the request and the response as text, and is called
/// only if the read was slow.
pub fn note_read<'a>(
    info: &ServerInfo,
    (kind, times): (ReadKind, ReadTimes),
    took: Duration,
    texts: impl FnOnce() -> (String, Result<String, &'a RequestError>),
) {
    let limits = info.limits();
    if is_worth_a_line(took, limits) {
        let (request, response) = texts();
        let read = ReadDone { times, took, kind, request, response };
        log_slow_read(read, limits, info.metrics());
    }
}

/// Returns whether a read that took `took` in total is logged.
fn is_worth_a_line(took: Duration, limits: &Limits) -> bool {
    took > limits.slow_apply || took > TRACED
}

fn log_slow_read(read: ReadDone<'_>, limits: &Limits, metrics: &Metrics) {
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
    fn the_steps_of_a_read_include_the_wait_for_the_read_barrier() {
        let mut times = ReadTimes::start();
        assert_eq!(times.steps(Duration::from_millis(5)).len(), 1);
        times.note_barrier();
        let steps = times.steps(Duration::from_millis(5));
        assert!(steps[0].0.starts_with("agreement") && steps[1].1 > times.started);
    }
}
