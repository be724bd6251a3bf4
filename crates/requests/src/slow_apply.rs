//! Logs etcd's warning about a request that took longer than `--warning-apply-duration`. The data store reports
//! slow writes, and `slow` reports slow reads.

use std::time::Duration;

use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// A request that took longer to apply than the limit.
#[derive(Debug)]
pub struct Slow<'a> {
    /// The time that the request took.
    pub took: Duration,
    /// The kind of request. Empty for a write.
    pub prefix: &'a str,
    /// The request as text.
    pub request: String,
    /// The response as text. Empty if there is an error.
    pub response: String,
    /// The error as text.
    pub error: Option<String>,
}

impl Slow<'_> {
    /// Counts the request and logs the warning.
    pub fn log(&self, limit: Duration, metrics: &Metrics) {
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
