//! Remembers the counts of ranges, so that the database does not count the same range again for each list request.
//!
//! A response contains the number of keys in the whole range, and the database must visit all of these
//! keys to count them. Two facts make most of this work unnecessary:
//!
//! * The count of a range at one revision follows from the count at another revision and the changes in between: each
//!   created key adds 1, and each deletion subtracts 1. The server has the recent changes in memory, for its watchers.
//! * A client that lists a range in pages requests each page at the revision of the first page, beginning after the
//!   last key of the previous page. The count in the response for a page is therefore the count in the previous
//!   response minus the number of keys that the previous page returned.
//!
//! # Invariants
//!
//! * A remembered count is the number of keys in a range that are live at one revision. The keyspace at that revision
//!   never changes, unless the database loses committed changes. In that case, the replica restarts, and earlier counts
//!   are no longer used.
//! * At most [`COUNTS_MAX`] counts of ranges and as many counts of continued lists are remembered, each for a range
//!   whose start and end have at most [`BOUNDS_BYTES_MAX`] bytes in total. If there are more counts, the oldest one is
//!   dropped.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_state::mvcc::{Candidates, RangeQuery, RangeResult};

use crate::tail::Tail;

/// The maximum number of remembered counts of each kind.
const COUNTS_MAX: usize = 256;

/// The count of a range whose start and end are longer than this in total is not remembered.
const BOUNDS_BYTES_MAX: usize = 4 << 10;

/// The remembered counts of ranges.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Counts that the database has determined, some of which have since been updated to later revisions.
    ranges: Mutex<Recent>,
    /// Counts of the unread remainders of ranges that are listed in pages. They are kept separately, because the pages
    /// of one long list would otherwise displace all other counts.
    rests: Mutex<Recent>,
}

/// The most recently stored counts, oldest first.
#[derive(Debug, Default)]
struct Recent(VecDeque<Count>);

#[derive(Clone, Debug)]
struct Count {
    key: Bytes,
    range_end: Bytes,
    revision: i64,
    restarts: u64,
    count: i64,
}

impl Count {
    fn has_same_range(&self, other: &Self) -> bool {
        self.restarts == other.restarts
            && self.key == other.key
            && self.range_end == other.range_end
    }
}

impl Recent {
    /// Returns the remembered count of the same range, possibly at another revision.
    fn get(&self, wanted: &Count) -> Option<Count> {
        self.0.iter().rev().find(|count| count.has_same_range(wanted)).cloned()
    }

    /// Remembers a count, unless the start and end of its range are too long, or a count of this
    /// range at a later revision is already remembered.
    fn note(&mut self, count: Count) {
        if count.key.len() + count.range_end.len() > BOUNDS_BYTES_MAX {
            return;
        }
        if let Some(at) = self.0.iter().position(|known| known.has_same_range(&count)) {
            if self.0[at].revision > count.revision {
                return;
            }
            self.0.remove(at);
        }
        if self.0.len() == COUNTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(count);
    }
}

impl Counts {
    /// Returns the count of a range at a revision, if it follows from a remembered count and the changes
    /// in the tail.
    pub(crate) fn get(
        &self,
        query: &RangeQuery,
        revision: i64,
        restarts: u64,
        tail: &Tail,
    ) -> Option<i64> {
        let wanted = wanted(query, revision, restarts, 0);
        [&self.ranges, &self.rests].into_iter().find_map(|counts| {
            let known = counts.lock().get(&wanted)?;
            let change = |after, up_to| tail.count_change(query.range(), after, up_to, restarts);
            let count = if known.revision <= revision {
                known.count + change(known.revision, revision)?
            } else {
                known.count - change(revision, known.revision)?
            };
            counts.lock().note(Count { count, ..wanted.clone() });
            Some(count)
        })
    }

    /// Remembers the count of a range, which the database has determined.
    pub(crate) fn note(&self, query: &RangeQuery, revision: i64, restarts: u64, count: i64) {
        self.ranges.lock().note(wanted(query, revision, restarts, count));
    }

    /// Remembers the count for the part of a range that follows a page.
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
        let count = page.count - returned;
        let key = [last, &[0]].concat().into();
        let rest = Count { key, ..wanted(query, revision, restarts, count) };
        self.rests.lock().note(rest);
    }
}

fn wanted(query: &RangeQuery, revision: i64, restarts: u64, count: i64) -> Count {
    let (key, range_end) = (query.key.clone(), query.range_end.clone());
    Count { key, range_end, revision, restarts, count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Committed, Record};
    use crate::tail::Position;
    use crate::term_id::TermId;
    use quorate_api::record::{Fields, KeyValue};
    use quorate_state::schema::{RecordKey, Revision};
    use std::sync::Arc;

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

    fn start() -> Position {
        let term = TermId { epoch: 1, nonce: 5 };
        Position { seq: 0, term, revision: 1, compacted: -1, written_seq: 0, index: 0, restarts: 0 }
    }

    /// Returns a batch whose changes set each key to the given version, or delete the key if the version
    /// is 0.
    fn changes(seq: u64, keys: &[(&str, i64)]) -> Arc<Committed> {
        let main = i64::try_from(seq).unwrap() + 1;
        let records = (0..).zip(keys).map(|(sub, (key, version))| {
            let fields = Fields { key: key.as_bytes(), version: *version, ..Fields::default() };
            let at = RecordKey { revision: Revision::new(main, sub), tombstone: *version == 0 };
            let key = Bytes::copy_from_slice(fields.key);
            Record { at, key, record: KeyValue::new(&fields).encoded().clone() }
        });
        Arc::new(Committed {
            seq,
            term: start().term,
            last_revision: main,
            index: seq,
            records: records.collect(),
            rows: Vec::new(),
            tokens: Vec::new(),
            written_seq: 0,
            byte_count: 100,
        })
    }

    #[test]
    fn the_count_of_the_next_page_is_known_at_the_same_revision() {
        let (counts, tail) = (Counts::default(), Tail::new(start()));
        counts.note_page(&query(b"a"), 1, 0, &page(10));
        assert_eq!(counts.get(&query(b"b\0"), 1, 0, &tail), Some(8));
        assert_eq!(counts.get(&query(b"b\0"), 1, 1, &tail), None, "the replica has restarted");
        assert_eq!(counts.get(&query(b"b"), 1, 0, &tail), None);
        let filtered = RangeQuery { min_mod_revision: 3, ..query(b"c") };
        counts.note_page(&filtered, 1, 0, &page(5));
        assert_eq!(counts.rests.lock().0.len(), 1);
    }

    #[test]
    fn a_count_at_another_revision_follows_from_the_changes_in_between() {
        let (counts, tail) = (Counts::default(), Tail::new(start()));
        counts.note(&query(b"a"), 1, 0, 10);
        let created = [("m", 1), ("n", 1), ("zz", 1)];
        // Revision 2 creates two keys in the range, revision 3 changes one of them, and revision 4
        // deletes the other one.
        for (seq, keys) in (1..).zip([&created[..], &[("m", 2)], &[("n", 0)]]) {
            tail.push(&changes(seq, keys), -1);
        }
        let at = |revision| counts.get(&query(b"a"), revision, 0, &tail);
        assert_eq!(at(3), Some(12));
        assert_eq!(at(4), Some(11));
        assert_eq!([at(1), at(2), at(3)], [Some(10), Some(12), Some(12)], "earlier revisions");
        assert_eq!(counts.ranges.lock().0[0].revision, 4, "the newest revision is remembered");
    }

    #[test]
    fn a_count_is_unknown_if_changes_are_missing() {
        let (counts, tail) = (Counts::default(), Tail::new(start()));
        counts.note(&query(b"a"), 1, 0, 10);
        tail.push(&changes(1, &[("m", 1)]), -1);
        tail.reset(tail.position());
        assert_eq!(counts.get(&query(b"a"), 2, 0, &tail), None, "the replica has restarted");
        counts.note(&query(b"a"), 1, 1, 10);
        assert_eq!(counts.get(&query(b"a"), 2, 1, &tail), None, "revision 2 is not in the tail");
    }

    #[test]
    fn only_the_newest_counts_are_remembered() {
        let (counts, tail) = (Counts::default(), Tail::new(start()));
        let numbered =
            |number: usize| RangeQuery { key: Bytes::from(format!("{number:03}")), ..query(b"") };
        (0..300).for_each(|number| counts.note(&numbered(number), 1, 0, 10));
        assert_eq!(counts.ranges.lock().0.len(), COUNTS_MAX);
        assert_eq!(counts.get(&numbered(0), 1, 0, &tail), None);
        assert_eq!(counts.get(&numbered(299), 1, 0, &tail), Some(10));
        let long = RangeQuery { key: vec![b'k'; BOUNDS_BYTES_MAX].into(), ..query(b"") };
        counts.note(&long, 1, 0, 10);
        assert_eq!(counts.get(&long, 1, 0, &tail), None);
    }
}
