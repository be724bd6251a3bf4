//! The set of keys that permissions cover, stored as sorted ranges that neither overlap nor touch.
//!
//! A requested range is covered by a union of permissions if it lies within one of these ranges,
//! which a binary search finds. The set is built when a permission changes, and every request uses
//! it. Only for a range that ends before its first key, the permissions themselves decide (`permission_tree`).
//!
//! As in requests, a range is given by its first key and its end. Without an end, the range is that key alone. An end
//! of one zero byte means all keys from the first key on. A range with an empty first key contains no keys.

use std::ops::Bound;

use bytes::Bytes;

use super::permission_tree::{End, PermissionTree};

/// A set of keys, stored as disjoint ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet {
    /// The first key and the end of each range.
    ranges: Vec<(Bytes, End)>,
    permissions: PermissionTree,
}

impl KeySet {
    /// Returns the union of ranges, each given by its first key and its end. The ranges are in the order in which etcd
    /// collects them. Ranges without keys are ignored.
    pub(super) fn union<'a>(ranges: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut sorted: Vec<(Bytes, End)> = ranges
            .into_iter()
            .filter_map(|(key, end)| Some((Bytes::copy_from_slice(key), End::of(key, end)?)))
            .collect();
        let mut permissions = PermissionTree::default();
        for range in &sorted {
            permissions.insert(range.clone());
        }
        sorted.sort_unstable();
        let mut ranges: Vec<(Bytes, End)> = Vec::with_capacity(sorted.len());
        for (key, end) in sorted {
            match ranges.last_mut() {
                Some((_, last)) if last.meets(&key) => {
                    if end > *last {
                        *last = end;
                    }
                }
                Some(_) | None => ranges.push((key, end)),
            }
        }
        Self { ranges, permissions }
    }

    /// Returns whether all keys of a range are in the set. For a range that ends at its first key, returns whether that
    /// key is in the set, as etcd does. A range that ends before its first key is covered only if etcd's search of the
    /// permissions finds the first key.
    pub(super) fn covers(&self, key: &[u8], range_end: &[u8]) -> bool {
        let Some((_, last)) = self.last_from(key) else { return false };
        match End::of(key, range_end) {
            Some(end) => end <= *last,
            None if !last.is_after(key) => false,
            None => range_end == key || self.permissions.permits_inverted(key, range_end),
        }
    }

    /// Returns the end of the range that contains a key, if the set contains the key.
    pub(super) fn end_after(&self, key: &[u8]) -> Option<Bound<&[u8]>> {
        let (_, end) = self.last_from(key)?;
        match end {
            End::Before(end) => (key < &end[..]).then_some(Bound::Excluded(&end[..])),
            End::Unbounded => Some(Bound::Unbounded),
        }
    }

    /// Returns the last range that begins at or before this key.
    fn last_from(&self, key: &[u8]) -> Option<&(Bytes, End)> {
        let after = self.ranges.partition_point(|(first, _)| first[..] <= *key);
        self.ranges.get(after.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The decisions of etcd 3.5.16. Each line contains a user's permissions, in etcd's order, and for each permitted
    /// first key, the permitted ends before it. All keys are single letters; `-` is the end of all keys.
    const DECISIONS: &str = include_str!("../../testdata/permissions/inverted_ranges.txt");

    fn set(ranges: &[(&str, &str)]) -> KeySet {
        KeySet::union(ranges.iter().map(|(key, end)| (key.as_bytes(), end.as_bytes())))
    }

    #[test]
    fn ranges_that_end_before_their_first_key_are_permitted_as_in_etcd() {
        let mut decision_count = 0;
        for line in DECISIONS.lines() {
            let (permissions, decisions) = line.split_once(" => ").unwrap();
            let ranges = permissions.split(' ').map(|range| match range.split_at(1) {
                (key, "-") => (key.as_bytes(), &b"\0"[..]),
                (key, end) => (key.as_bytes(), end.as_bytes()),
            });
            let set = KeySet::union(ranges);
            for decision in decisions.split(' ') {
                let (key, ends) = decision.split_once(':').unwrap();
                for end in ('a'..='z').map(String::from).take_while(|end| &end[..] < key) {
                    let expected = ends.contains(&end);
                    let permitted = set.covers(key.as_bytes(), end.as_bytes());
                    assert_eq!(permitted, expected, "{key} {end} with {permissions}");
                    decision_count += 1;
                }
            }
        }
        assert_eq!(decision_count, 4837);
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let set = set(&[("m", "p"), ("a", "c"), ("c", "f"), ("e", ""), ("x", "\0"), ("z", "zz")]);
        assert_eq!(set.ranges.len(), 3);
        for (key, end, covered) in [
            ("a", "f", true),
            ("b", "e", true),
            ("a", "g", false),
            ("e", "", true),
            ("f", "", false),
            ("o", "p", true),
            ("o", "x", false),
            ("x", "\0", true),
            ("w", "\0", false),
            ("y", "yy", true),
            // For an empty range, the first key matters, and for some also the order of the permissions.
            ("a", "a", true),
            ("b", "b", true),
            ("b", "a", true),
            ("f", "f", false),
            ("g", "a", false),
            ("x", "b", false),
            ("x", "n", true),
            ("", "", false),
            ("", "\0", false),
        ] {
            assert_eq!(set.covers(key.as_bytes(), end.as_bytes()), covered, "{key:?} {end:?}");
        }
    }

    #[test]
    fn a_single_key_covers_only_itself() {
        let set = set(&[("a", "")]);
        assert!(set.covers(b"a", b""));
        assert!(set.covers(b"a", b"a\0"));
        assert!(!set.covers(b"a\0", b""));
        assert!(!set.covers(b"a", b"\0"), "a single key does not cover all keys at or after it");
    }

    #[test]
    fn permissions_without_keys_grant_nothing() {
        let set = set(&[("", ""), ("", "\0"), ("b", "a"), ("b", "b")]);
        assert_eq!(set, KeySet::default());
        assert!(!set.covers(b"b", b""));
    }

    /// Returns the one-byte key with this number, starting at `a`. There are so few of these keys that a model can list
    /// them all.
    fn key_of(letter: u8) -> Vec<u8> {
        vec![b'a' + letter]
    }

    proptest! {
        #[test]
        fn a_set_covers_the_union_of_its_ranges(
            ranges in proptest::collection::vec((0_u8..8, 0_u8..9), 0..6),
            asked in (0_u8..8, 0_u8..9),
        ) {
            let owned: Vec<_> =
                ranges.iter().map(|(key, end)| (key_of(*key), key_of(*end))).collect();
            let set = KeySet::union(owned.iter().map(|(key, end)| (&key[..], &end[..])));
            let is_granted =
                |letter| ranges.iter().any(|(key, end)| *key <= letter && letter < *end);
            if asked.0 <= asked.1 {
                let expected = is_granted(asked.0) && (asked.0..asked.1).all(is_granted);
                prop_assert_eq!(set.covers(&key_of(asked.0), &key_of(asked.1)), expected);
            }
            prop_assert_eq!(set.covers(&key_of(asked.0), b""), is_granted(asked.0));
            let end = set.end_after(&key_of(asked.0));
            prop_assert_eq!(end.is_some(), is_granted(asked.0));
            if let Some(end) = end {
                let first_left_out = (asked.0..9).find(|letter| !is_granted(*letter)).unwrap();
                prop_assert_eq!(end, Bound::Excluded(&key_of(first_left_out)[..]));
            }
        }
    }
}
