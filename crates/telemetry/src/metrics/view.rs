//! Series that nobody updates: each is a function of something that is read once per scrape.

use super::exposition::Kind;

/// A family of one number that is computed from a sample.
pub(super) struct View<S: 'static> {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) read: fn(&S) -> Option<f64>,
}
