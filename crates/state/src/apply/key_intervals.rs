//! A set of keys, stored as disjoint intervals in order.
//!
//! When a transaction is validated, the keys that it deletes are collected in such a set. An operation on one key or
//! range takes O(log n) steps for n intervals. Adding an interval also removes the intervals that it merges with, but
//! each interval is removed only once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::mvcc::KeyRange;
use crate::steps;

/// A position immediately before or after a key. Positions sort in key order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position<'a> {
    key: &'a [u8],
    /// Whether the position is after the key rather than before it.
    after: bool,
}

impl<'a> Position<'a> {
    /// Returns the position before a key. A key is in a set if this position lies within an interval of the set.
    pub(super) const fn before(key: &'a [u8]) -> Self {
        Self { key, after: false }
    }

    const fn after(key: &'a [u8]) -> Self {
        Self { key, after: true }
    }
}

impl Ord for Position<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        steps::count();
        (self.key, self.after).cmp(&(other.key, other.after))
    }
}

impl PartialOrd for Position<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The position at which an interval ends. Ends sort in key order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End<'a> {
    At(Position<'a>),
    Unbounded,
}

/// A set of keys, as disjoint intervals.
#[derive(Debug, Default)]
pub(super) struct KeyIntervals<'a> {
    /// Maps the start of each interval to its end. No interval is empty, and no two intervals touch.
    ends: BTreeMap<Position<'a>, End<'a>>,
}

impl<'a> KeyIntervals<'a> {
    /// Returns the number of intervals.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds all keys of a range.
    pub(super) fn insert(&mut self, range: KeyRange<'a>) {
        let (start, end) = match range {
            KeyRange::One(key) => (Position::before(key), End::At(Position::after(key))),
            KeyRange::Between(from, to) => (Position::before(from), End::At(Position::before(to))),
            KeyRange::From(from) => (Position::before(from), End::Unbounded),
        };
        self.insert_interval(start, end);
    }

    fn insert_interval(&mut self, mut start: Position<'a>, mut end: End<'a>) {
        if end <= End::At(start) {
            return;
        }
        if let Some((&earlier, &its_end)) = self.ends.range(..=start).next_back()
            && End::At(start) <= its_end
        {
            (start, end) = (earlier, end.max(its_end));
        }
        while let Some((&later, &its_end)) = self.ends.range(start..).next() {
            if end < End::At(later) {
                break;
            }
            end = end.max(its_end);
            self.ends.remove(&later);
        }
        self.ends.insert(start, end);
    }

    /// Adds the keys of another set.
    pub(super) fn merge(&mut self, mut other: Self) {
        if self.len() < other.len() {
            std::mem::swap(self, &mut other);
        }
        for (start, end) in other.ends {
            self.insert_interval(start, end);
        }
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &'a [u8]) {
        let Some((start, end)) = self.interval_of(Position::before(key)) else { return };
        self.ends.remove(&start);
        self.insert_interval(start, End::At(Position::before(key)));
        self.insert_interval(Position::after(key), end);
    }

    /// Returns whether the set contains a key.
    pub(super) fn contains(&self, key: &'a [u8]) -> bool {
        self.interval_of(Position::before(key)).is_some()
    }

    /// Returns whether the set contains any of these keys. The cost depends on the size of the
    /// smaller set.
    pub(super) fn contains_any(&self, keys: &BTreeSet<Position<'a>>) -> bool {
        if keys.len() <= self.len() {
            return keys.iter().any(|key| self.interval_of(*key).is_some());
        }
        self.ends.iter().any(|(start, end)| {
            let end = match end {
                End::At(end) => Bound::Excluded(end),
                End::Unbounded => Bound::Unbounded,
            };
            keys.range((Bound::Included(start), end)).next().is_some()
        })
    }

    fn interval_of(&self, position: Position<'a>) -> Option<(Position<'a>, End<'a>)> {
        let (&start, &end) = self.ends.range(..=position).next_back()?;
        (End::At(position) < end).then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"b", b"bb", b"c", b"\xff"];

    fn range_of((from, to): (usize, usize)) -> KeyRange<'static> {
        match to {
            0 => KeyRange::One(KEYS[from]),
            1 => KeyRange::From(KEYS[from]),
            to => KeyRange::Between(KEYS[from], KEYS[to]),
        }
    }

    /// Asserts that the set contains the expected keys and no other key of [`KEYS`].
    fn assert_holds(set: &KeyIntervals<'_>, expected: &BTreeSet<&[u8]>) {
        for key in KEYS {
            assert_eq!(set.contains(key), expected.contains(key), "{key:?} in {set:?}");
            let alone = BTreeSet::from([Position::before(key)]);
            assert_eq!(set.contains_any(&alone), expected.contains(key), "{key:?} in {set:?}");
            let others: BTreeSet<&[u8]> = KEYS.into_iter().filter(|other| *other != key).collect();
            let any = others.iter().any(|other| expected.contains(other));
            let others = others.into_iter().map(Position::before).collect();
            assert_eq!(set.contains_any(&others), any, "keys other than {key:?} in {set:?}");
        }
        let mut last = None;
        for (start, end) in &set.ends {
            assert!(End::At(*start) < *end, "an interval is not empty: {set:?}");
            assert!(last < Some(End::At(*start)), "intervals do not touch: {set:?}");
            last = Some(*end);
        }
    }

    proptest! {
        #[test]
        fn a_key_set_contains_added_keys_until_they_are_removed(
            steps in proptest::collection::vec((any::<bool>(), 0..8_usize, 0..8_usize), 0..12),
        ) {
            let (mut set, mut expected) = (KeyIntervals::default(), BTreeSet::new());
            for (adds, from, to) in steps {
                if adds {
                    let range = range_of((from, to));
                    set.insert(range);
                    expected.extend(KEYS.into_iter().filter(|key| range.contains(key)));
                } else {
                    set.remove(KEYS[from]);
                    expected.remove(KEYS[from]);
                }
                assert_holds(&set, &expected);
            }
        }

        #[test]
        fn a_merged_set_contains_the_keys_of_both_sets(
            ranges in proptest::collection::vec((any::<bool>(), 0..8_usize, 0..8_usize), 0..12),
        ) {
            let mut sets = [KeyIntervals::default(), KeyIntervals::default()];
            let mut expected = BTreeSet::new();
            for (second, from, to) in ranges {
                let range = range_of((from, to));
                sets[usize::from(second)].insert(range);
                expected.extend(KEYS.into_iter().filter(|key| range.contains(key)));
            }
            let [mut set, other] = sets;
            set.merge(other);
            assert_holds(&set, &expected);
        }
    }
}
