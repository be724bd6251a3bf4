//! Metrics that are computed from values read once per scrape.

use super::exposition::Kind;

/// A family with a single number, computed from a sample.
pub(super) struct View<S: 'static> {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) read: fn(&S) -> Option<f64>,
}
