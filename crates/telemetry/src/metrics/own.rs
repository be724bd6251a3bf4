//! Series about what is told of this member: the log that an operator reads, and the metrics themselves.

use super::exposition::Kind;
use super::view::View;

/// How full the bounds of the log and of the metrics are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnSample {
    /// Lines of the log that found no room.
    pub(super) dropped_lines: u64,
    /// Series of the family with labels that has the most of them.
    pub(super) largest_family_series: usize,
}

pub(super) const VIEWS: &[View<OwnSample>] = &[
    View {
        kind: Kind::Counter,
        name: "quorate_logger_lines_dropped_total",
        help: "Lines of the log that were dropped because its outputs were too slow.",
        read: |own| Some(own.dropped_lines as f64),
    },
    View {
        kind: Kind::Gauge,
        name: "quorate_metrics_largest_family_series",
        help: "Series of the metric whose labels have the most values.",
        read: |own| Some(own.largest_family_series as f64),
    },
];
