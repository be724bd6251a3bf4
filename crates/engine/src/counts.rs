//! Remembers the counts of ranges, so that the database does not count the rest of a range again for
//! each page of a list.
//!
//! A response contains the number of keys in the whole range, and the database must visit all of these
//! keys to count them. A client that lists a range in pages requests each page at the revision of the
//! first page, beginning after the last key of the previous page. The count of a page is therefore the
//! count of the previous page minus the number of keys that the previous page returned.
//!
//! # Invariants
//!
//! * A count is valid for one revision. The keyspace at that revision never changes, unless the
//!   database loses committed changes. In that case, the replica restarts, and earlier counts are no
//!   longer used.
//! * At most [`COUNTS_MAX`] counts are remembered. Beyond that, the oldest count is dropped.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_state::mvcc::{Candidates, RangeQuery, RangeResult};

/// The maximum number of remembered counts.
const COUNTS_MAX: usize = 256;

/// The remembered counts of ranges.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    counts: Mutex<VecDeque<Count>>,
}

#[derive(Debug)]
struct Count {
    key: Bytes,
    range_end: Bytes,
    revision: i64,
    restarts: u64,
    count: i64,
}

impl Counts {
    /// Returns the count of a range at a revision, if it is known.
    pub(crate) fn get(&self, query: &RangeQuery, revision: i64, restarts: u64) -> Option<i64> {
        let counts = self.counts.lock();
        let found = counts.iter().rev().find(|count| {
            count.revision == revision
                && count.restarts == restarts
                && count.key == query.key
                && count.range_end == query.range_end
        })?;
        Some(found.count)
    }

    /// Remembers the count of the part of the range that follows a page.
    pub(crate) fn note_page(
        &self,
        query: &RangeQuery,
        revision: i64,
        restarts: u64,
        page: &RangeResult,
    ) {
        // With filters or another sort order, the keys of a page are not necessarily the first keys
        // of the range.
        let is_first_keys =
            matches!(query.candidates(), Candidates::First(wanted) if wanted != usize::MAX);
        let last = page.kvs.iter().map(quorate_api::record::KeyValue::key).max();
        let (true, Some(last)) = (is_first_keys, last) else { return };
        let returned = i64::try_from(page.kvs.len()).unwrap_or(i64::MAX);
        let rest = Count {
            key: [last, &[0]].concat().into(),
            range_end: query.range_end.clone(),
            revision,
            restarts,
            count: page.count - returned,
        };
        let mut counts = self.counts.lock();
        if counts.len() == COUNTS_MAX {
            counts.pop_front();
        }
        counts.push_back(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_api::record::{Fields, KeyValue};

    fn query(key: &'static [u8]) -> RangeQuery {
        RangeQuery {
            key: Bytes::from_static(key),
            range_end: Bytes::from_static(b"z"),
            limit: 2,
            ..RangeQuery::default()
        }
    }

    fn page(count: i64) -> RangeResult {
        let kv = |key| KeyValue::new(&Fields { key, ..Fields::default() });
        RangeResult { revision: 9, kvs: vec![kv(b"b"), kv(b"a")], more: true, count }
    }

    #[test]
    fn the_count_of_the_next_page_is_known_at_the_same_revision() {
        let counts = Counts::default();
        counts.note_page(&query(b"a"), 7, 1, &page(10));
        assert_eq!(counts.get(&query(b"b\0"), 7, 1), Some(8));
        assert_eq!(counts.get(&query(b"b\0"), 7, 2), None);
        assert_eq!(counts.get(&query(b"b\0"), 8, 1), None);
        assert_eq!(counts.get(&query(b"b"), 7, 1), None);
        let filtered = RangeQuery { min_mod_revision: 3, ..query(b"c") };
        counts.note_page(&filtered, 7, 1, &page(5));
        assert_eq!(counts.counts.lock().len(), 1);
    }

    #[test]
    fn only_the_newest_counts_are_remembered() {
        let counts = Counts::default();
        for revision in 0..300 {
            counts.note_page(&query(b"a"), revision, 0, &page(10));
        }
        assert_eq!(counts.counts.lock().len(), COUNTS_MAX);
        assert_eq!(counts.get(&query(b"b\0"), 0, 0), None);
        assert_eq!(counts.get(&query(b"b\0"), 299, 0), Some(8));
    }
}
