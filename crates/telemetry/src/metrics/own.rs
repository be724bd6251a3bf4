//! Metrics of the log and of the metrics themselves.

use super::exposition::Kind;
use super::view::View;

/// How much of their limits the log and the metrics use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnSample {
    /// The number of log lines dropped because the queue was full.
    pub(super) dropped_lines: u64,
    /// The number of series in the largest family with labels.
    pub(super) largest_family_series: usize,
}

pub(super) const VIEWS: &[View<OwnSample>] = &[
    View {
        kind: Kind::Counter,
        name: "quorate_logger_lines_dropped_total",
        help: "Log lines dropped because a log output was too slow.",
        read: |own| Some(own.dropped_lines as f64),
    },
    View {
        kind: Kind::Gauge,
        name: "quorate_metrics_largest_family_series",
        help: "Number of series in the largest metric family.",
        read: |own| Some(own.largest_family_series as f64),
    },
];
