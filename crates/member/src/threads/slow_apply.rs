//! Logs etcd's warning about a request that took longer than `--warning-apply-duration`. Writes are reported by the
//! applier, reads by `requests::slow`.

use std::time::Duration;

use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// A request that took longer to apply than the limit.
#[derive(Debug)]
pub(crate) struct Slow<'a> {
    pub(crate) took: Duration,
    /// The kind of request. Empty for a write.
    pub(crate) prefix: &'a str,
    pub(crate) request: String,
    pub(crate) response: String,
    pub(crate) error: Option<String>,
}

impl Slow<'_> {
    /// Counts the request and logs the warning.
    pub(crate) fn log(&self, limit: Duration, metrics: &Metrics) {
        metrics.server.slow_apply.inc();
        log::warn!(
            "apply request took too long",
            "took" = self.took,
            "expected-duration" = limit,
            "prefix" = self.prefix,
            "request" = self.request,
            "response" = self.response,
            "error" = self.error
        );
    }
}
