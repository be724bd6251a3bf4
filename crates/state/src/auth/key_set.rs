//! The set of keys that permissions cover, stored as sorted ranges that neither overlap nor touch.
//!
//! A requested range is covered by a union of permissions if it lies within one of these ranges,
//! which a binary search finds. The set is built when a permission changes, and every request uses
//! it.
//!
//! As in requests, a range is given by its first key and its end. Without an end, the range is that key alone. An end
//! of one zero byte means all keys from the first key on. A range with an empty first key contains no keys.

use std::ops::Bound;

use bytes::Bytes;

/// The end of a range. Ends sort in key order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Bytes),
    Unbounded,
}

impl End {
    /// Builds the end from the two fields of a request. Returns `None` if the range contains no
    /// keys.
    fn of(key: &[u8], range_end: &[u8]) -> Option<Self> {
        match range_end {
            _ if key.is_empty() => None,
            [] => Some(Self::Before([key, &[0]].concat().into())),
            [0] => Some(Self::Unbounded),
            end if key < end => Some(Self::Before(Bytes::copy_from_slice(end))),
            _ => None,
        }
    }

    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Unbounded => true,
        }
    }

    /// Returns whether no key lies between this end and the start of a range that begins at `key`.
    fn meets(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key <= &end[..],
            Self::Unbounded => true,
        }
    }
}

/// A set of keys, stored as disjoint ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet {
    /// The first key and the end of each range.
    ranges: Vec<(Bytes, End)>,
}

impl KeySet {
    /// Returns the union of ranges, each given by its first key and its end. Ranges without keys
    /// are ignored.
    pub(super) fn union<'a>(ranges: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut sorted: Vec<(Bytes, End)> = ranges
            .into_iter()
            .filter_map(|(key, end)| Some((Bytes::copy_from_slice(key), End::of(key, end)?)))
            .collect();
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
        Self { ranges }
    }

    /// Returns whether all keys of a range are in the set. For a range that ends at or before its first key, returns
    /// whether that key is in the set, as etcd does.
    pub(super) fn covers(&self, key: &[u8], range_end: &[u8]) -> bool {
        let Some((_, last)) = self.last_from(key) else { return false };
        if range_end.is_empty() {
            return last.is_after(key);
        }
        End::of(key, range_end).map_or_else(|| last.is_after(key), |end| end <= *last)
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

    fn set(ranges: &[(&str, &str)]) -> KeySet {
        KeySet::union(ranges.iter().map(|(key, end)| (key.as_bytes(), end.as_bytes())))
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
            // For an empty range, only its first key matters.
            ("a", "a", true),
            ("b", "b", true),
            ("b", "a", true),
            ("f", "f", false),
            ("g", "a", false),
            ("x", "b", true),
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
            let expected =
                is_granted(asked.0) && (asked.0..asked.1.max(asked.0)).all(is_granted);
            prop_assert_eq!(set.covers(&key_of(asked.0), &key_of(asked.1)), expected);
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
