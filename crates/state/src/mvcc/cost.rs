//! Upper bounds of the work that a range request causes.
//!
//! They are computed from the number of live keys and of all keys in the range, in a time that is proportional to the
//! depth of the index. A request at an earlier revision may visit every key of the range, including deleted ones,
//! because they may have been live at that revision.
//!
//! # Not here
//!
//! Whether a request is too expensive, and where it is executed (crate `member`).

use super::key_range::KeyRange;
use super::range::{Candidates, RangeQuery};
use super::view::View;

/// Upper bounds of the work that a range request causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCost {
    /// The number of records that are returned, or that must be sorted or filtered.
    pub records: usize,
    /// The number of keys that are visited in the index, including deleted keys.
    pub visited: usize,
}

impl View {
    /// Returns upper bounds of the work that a range request causes.
    ///
    /// The bounds of a request that names a revision are also valid for later views that contain the same keys. A
    /// revision that is the newest one now may be an earlier one when the request is executed.
    #[must_use]
    pub fn range_cost(&self, query: &RangeQuery) -> RangeCost {
        let (KeyRange::Between(..) | KeyRange::From(_)) = query.range() else {
            return RangeCost::default();
        };
        let counts = self.snapshot().counts(query.range());
        let (Candidates::First(wanted) | Candidates::Last(wanted)) = query.candidates();
        let at_newest = query.revision <= 0;
        let live_max = if at_newest { counts.live } else { counts.all };
        let visited = match (query.count_only, at_newest) {
            (true, true) => 0,
            (false, true) => counts.visited_by_live_walk(wanted),
            (_, false) => counts.all,
        };
        let limit = query.limit().filter(|_| wanted < usize::MAX).unwrap_or(usize::MAX);
        let records = if query.count_only { 0 } else { live_max.min(limit) };
        RangeCost { records, visited }
    }
}
