//! Remembers the number of keys in spans of the keyspace, so that the database need not visit all keys of a range to
//! count them.
//!
//! The first count of a range divides the range into spans of [`SPAN_KEYS`] keys. Afterwards, each change in the log
//! updates the count of its span. To count any range in the divided part of the keyspace, the server then adds the
//! counts of the spans within that range. The database counts only the keys at the two ends of the range, where a span
//! is partly outside of the range.
//!
//! One statement divides at most [`DIVIDED_KEYS_MAX`] keys. Therefore a count of a very large range that exceeds its
//! time limit leaves spans behind, and the next count continues where it ended.
//!
//! # Invariants
//!
//! * Spans do not overlap. The keyspace may have parts without spans.
//! * The count of each span is its number of live keys at the newest revision of the tail, which owns the spans.
//! * There are at most [`SPANS_MAX`] spans, whose first keys have at most [`BOUNDS_BYTES_MAX`] bytes in total, and each
//!   span has at most [`SPAN_KEYS_MAX`] keys. A span that grows larger is forgotten. The next count of a range that
//!   contains this part of the keyspace divides the part again.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use quorate_state::mvcc::KeyRange;

use crate::batch::Committed;

/// The number of keys in a new span.
pub(crate) const SPAN_KEYS: i64 = 2048;

/// The maximum number of keys that one statement divides into spans.
pub(crate) const DIVIDED_KEYS_MAX: i64 = 100 * SPAN_KEYS;

/// The maximum number of keys in a span.
const SPAN_KEYS_MAX: i64 = 4 * SPAN_KEYS;

/// The maximum number of spans.
const SPANS_MAX: usize = 1 << 16;

/// The maximum total length of the first keys of all spans.
const BOUNDS_BYTES_MAX: usize = 16 << 20;

/// The maximum number of gaps between the spans of a range that the database counts separately.
const GAPS_MAX: usize = 16;

/// The spans of one server.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// The spans by their first possible key.
    spans: BTreeMap<Bytes, Span>,
    bounds_bytes: usize,
}

#[derive(Debug)]
struct Span {
    /// The first key after the span, or `None` for a span without an upper bound.
    end: Option<Bytes>,
    count: i64,
}

/// A part of the keyspace: its first key, and the first key after it, or `None` if it has no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
}

impl Part {
    /// Returns a range of several keys as a part, or `None` for an empty range.
    pub(crate) fn of(range: KeyRange<'_>) -> Option<Self> {
        let (start, end) = match range {
            KeyRange::One(key) | KeyRange::From(key) => (key, None),
            KeyRange::Between(from, to) if from < to => (from, Some(Bytes::copy_from_slice(to))),
            KeyRange::Between(..) => return None,
        };
        Some(Self { start: Bytes::copy_from_slice(start), end })
    }

    /// Splits the part after a key. Returns no second part if no key of the part can follow.
    pub(crate) fn split_after(self, key: &[u8]) -> (Self, Option<Self>) {
        let middle = Bytes::from([key, &[0]].concat());
        if self.end.as_ref().is_some_and(|end| *end <= middle) {
            return (self, None);
        }
        let second = Self { start: middle.clone(), end: self.end };
        (Self { start: self.start, end: Some(middle) }, Some(second))
    }

    pub(crate) fn range(&self) -> KeyRange<'_> {
        match &self.end {
            Some(end) => KeyRange::Between(&self.start, end),
            None => KeyRange::From(&self.start),
        }
    }
}

/// Returns whether a part that ends at `end` ends at or before the end of a part that ends at `other`.
fn ends_within(end: Option<&Bytes>, other: Option<&Bytes>) -> bool {
    match (end, other) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(end), Some(other)) => end <= other,
    }
}

/// Returns the bounds of all keys from a key on.
const fn from(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(key), Bound::Unbounded)
}

/// Returns the bounds of all keys up to a key, including this key.
const fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

impl Spans {
    /// Divides a part of the keyspace into spans. `keys` contains the key at every [`SPAN_KEYS`]th position among the
    /// `count` live keys of the part, beginning with the first key.
    pub(crate) fn divide(part: &Part, keys: impl IntoIterator<Item = Bytes>, count: i64) -> Self {
        let mut starts = vec![part.start.clone()];
        starts.extend(keys.into_iter().skip(1));
        let mut rest = count;
        let mut spans = Self::default();
        for (at, start) in starts.iter().enumerate() {
            let next = starts.get(at + 1);
            let count = if next.is_some() { SPAN_KEYS } else { rest };
            rest -= count;
            let end = next.or(part.end.as_ref()).cloned();
            spans.insert(start.clone(), Span { end, count });
        }
        spans
    }

    fn insert(&mut self, start: Bytes, span: Span) {
        self.bounds_bytes += start.len();
        self.spans.insert(start, span);
    }

    fn remove(&mut self, start: &[u8]) {
        if let Some((start, _)) = self.spans.remove_entry(start) {
            self.bounds_bytes -= start.len();
        }
    }

    /// Adds 1 for each created key and subtracts 1 for each deleted key of a batch's changes after revision `after`.
    pub(crate) fn apply(&mut self, batch: &Committed, after: i64) {
        if self.spans.is_empty() {
            return;
        }
        for record in batch.records.iter().filter(|record| record.at.revision.main > after) {
            self.change(&record.key, record.count_change());
        }
    }

    /// Adds a change to the count of the span that contains a key.
    pub(crate) fn change(&mut self, key: &[u8], change: i64) {
        let Some((start, span)) = self.spans.range_mut::<[u8], _>(up_to(key)).next_back() else {
            return;
        };
        if span.end.as_ref().is_some_and(|end| end <= key) {
            return;
        }
        span.count += change;
        if span.count > SPAN_KEYS_MAX {
            let start = start.clone();
            self.remove(&start);
        }
    }

    /// Returns the number of keys in the spans within a part of the keyspace, and the gaps between these spans. If
    /// there are more than [`GAPS_MAX`] gaps, returns 0 and the whole part as the only gap.
    pub(crate) fn within(&self, part: &Part) -> (i64, Vec<Part>) {
        let (mut count, mut gaps, mut start) = (0, Vec::new(), part.start.clone());
        for (first, span) in self.spans.range::<[u8], _>(from(&part.start)) {
            if !ends_within(span.end.as_ref(), part.end.as_ref()) {
                break;
            }
            if start < *first {
                gaps.push(Part { start, end: Some(first.clone()) });
            }
            count += span.count;
            match &span.end {
                Some(end) => start = end.clone(),
                None => return (count, gaps),
            }
        }
        if part.end.as_ref().is_none_or(|end| start < *end) {
            gaps.push(Part { start, end: part.end.clone() });
        }
        if gaps.len() > GAPS_MAX { (0, vec![part.clone()]) } else { (count, gaps) }
    }

    /// Returns the part of the keyspace between the first two spans from `start` on that are not adjacent. Returns
    /// `None` if there is no gap.
    pub(crate) fn first_gap(&self, start: &[u8]) -> Option<Part> {
        let mut start = Bytes::copy_from_slice(start);
        // A span may begin before `start` and extend beyond it.
        if let Some((_, span)) = self.spans.range::<[u8], _>(up_to(&start)).next_back() {
            start = start.max(span.end.clone()?);
        }
        while let Some(span) = self.spans.get(&start) {
            start = span.end.clone()?;
        }
        let next = self.spans.range::<[u8], _>(from(&start)).next();
        Some(Part { start, end: next.map(|(next, _)| next.clone()) })
    }

    /// Returns whether no further part of the keyspace can have spans.
    pub(crate) fn are_full(&self) -> bool {
        self.spans.len() >= SPANS_MAX || self.bounds_bytes >= BOUNDS_BYTES_MAX * 3 / 4
    }

    /// Returns the spans as parts of the keyspace with their counts, in key order. Adjacent spans with few keys form one
    /// part, so that spans whose keys have been deleted do not accumulate.
    pub(crate) fn to_parts(&self) -> Vec<(Part, i64)> {
        let mut parts: Vec<(Part, i64)> = Vec::new();
        for (start, span) in &self.spans {
            match parts.last_mut() {
                Some((part, count))
                    if part.end.as_ref() == Some(start) && *count + span.count <= SPAN_KEYS =>
                {
                    part.end.clone_from(&span.end);
                    *count += span.count;
                }
                _ => parts.push((Part { start: start.clone(), end: span.end.clone() }, span.count)),
            }
        }
        parts
    }

    /// Returns spans with these counts. Leaves out parts that are empty, overlap another part, have an invalid count or
    /// exceed the limits on spans.
    pub(crate) fn from_parts(parts: impl IntoIterator<Item = (Part, i64)>) -> Self {
        let mut spans = Self::default();
        for (Part { start, end }, count) in parts {
            let is_valid = end.as_ref().is_none_or(|end| start < *end) && count >= 0;
            if is_valid {
                spans.add(start, Span { end, count });
            }
        }
        spans
    }

    /// Adds the spans that overlap no existing span.
    pub(crate) fn extend(&mut self, other: Self) {
        other.spans.into_iter().for_each(|(start, span)| self.add(start, span));
    }

    /// Replaces the spans within a part of the keyspace by the spans into which the part has been divided. Spans that
    /// extend beyond the part are kept.
    pub(crate) fn replace(&mut self, part: &Part, divided: Self) {
        let inner = self.spans.range::<[u8], _>(from(&part.start));
        let inner = inner.take_while(|(_, span)| ends_within(span.end.as_ref(), part.end.as_ref()));
        let inner: Vec<Bytes> = inner.map(|(start, _)| start.clone()).collect();
        inner.iter().for_each(|start| self.remove(start));
        self.extend(divided);
    }

    /// Adds a span, unless it overlaps another span or exceeds a limit.
    fn add(&mut self, start: Bytes, span: Span) {
        let has_room =
            self.spans.len() < SPANS_MAX && self.bounds_bytes + start.len() <= BOUNDS_BYTES_MAX;
        if has_room && span.count <= SPAN_KEYS_MAX && self.is_free(&start, &span) {
            self.insert(start, span);
        }
    }

    /// Returns whether a span overlaps no other span.
    fn is_free(&self, start: &Bytes, span: &Span) -> bool {
        let before = self.spans.range::<[u8], _>(up_to(start)).next_back();
        let after = self.spans.range::<[u8], _>(from(start)).next();
        before.is_none_or(|(_, before)| before.end.as_ref().is_some_and(|end| end <= start))
            && after.is_none_or(|(after, _)| span.end.as_ref().is_some_and(|end| end <= after))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(number: u16) -> Bytes {
        Bytes::from(format!("{number:05}"))
    }

    fn part(start: u16, end: Option<u16>) -> Part {
        Part { start: key(start), end: end.map(key) }
    }

    /// Divides a part as if spans had `span_keys` keys.
    fn divided(keys: &BTreeSet<Bytes>, part: &Part, span_keys: usize) -> Spans {
        let keys: Vec<&Bytes> = keys.iter().filter(|key| part.range().contains(key)).collect();
        let mut spans = Spans::default();
        let chunks: Vec<_> = keys.chunks(span_keys).collect();
        let starts: Vec<Bytes> = std::iter::once(part.start.clone())
            .chain(chunks.iter().skip(1).map(|chunk| chunk[0].clone()))
            .collect();
        for (at, start) in starts.iter().enumerate() {
            let end = starts.get(at + 1).or(part.end.as_ref()).cloned();
            let count = chunks.get(at).map_or(0, |chunk| i64::try_from(chunk.len()).unwrap());
            spans.insert(start.clone(), Span { end, count });
        }
        spans
    }

    #[test]
    fn a_part_is_divided_into_spans_of_equal_size() {
        let all = part(0, None);
        let keys = [key(3), key(5), key(7)];
        let spans = Spans::divide(&all, keys, 2 * SPAN_KEYS + 9);
        assert_eq!(spans.within(&all), (2 * SPAN_KEYS + 9, Vec::new()));
        assert_eq!(spans.within(&part(0, Some(5))), (SPAN_KEYS, Vec::new()));
        assert_eq!(spans.within(&part(7, None)), (9, Vec::new()));
        let (count, gaps) = spans.within(&part(4, Some(8)));
        assert_eq!((count, gaps), (SPAN_KEYS, vec![part(4, Some(5)), part(7, Some(8))]));
        let empty = Spans::divide(&all, [], 0);
        assert_eq!(empty.within(&all), (0, Vec::new()));
    }

    #[test]
    fn a_part_is_split_after_a_key() {
        let middle = Bytes::from_static(b"00003\0");
        let (first, second) = part(1, None).split_after(&key(3));
        assert_eq!(first, Part { start: key(1), end: Some(middle.clone()) });
        assert_eq!(second, Some(Part { start: middle.clone(), end: None }));
        let whole = Part { start: key(1), end: Some(middle) };
        assert_eq!(whole.clone().split_after(&key(3)), (whole, None));
    }

    #[test]
    fn a_span_that_grows_too_large_is_forgotten() {
        let all = part(0, None);
        let mut spans = Spans::divide(&all, [key(3)], SPAN_KEYS_MAX);
        spans.change(b"00004", -1);
        spans.change(b"00004", 1);
        assert_eq!(spans.within(&all), (SPAN_KEYS_MAX, Vec::new()));
        spans.change(b"00004", 1);
        assert_eq!(spans.within(&all), (0, vec![all]));
        assert_eq!(spans.bounds_bytes, 0);
    }

    #[test]
    fn a_range_with_many_gaps_is_counted_as_a_whole() {
        let mut spans = Spans::default();
        for number in 0..17 {
            let part = part(10 * number, Some(10 * number + 5));
            spans.replace(&part, Spans::divide(&part, [key(10 * number)], 1));
        }
        let (count, gaps) = spans.within(&part(0, Some(160)));
        assert_eq!((count, gaps.len()), (16, 16));
        assert_eq!(spans.within(&part(0, None)), (0, vec![part(0, None)]));
    }

    #[test]
    fn the_number_of_spans_is_bounded() {
        let mut spans = Spans::default();
        for number in 0..u32::try_from(SPANS_MAX).unwrap() + 10 {
            let number_key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
            let part = Part { start: number_key(number), end: Some(number_key(number + 1)) };
            spans.replace(&part, Spans::divide(&part, [number_key(number)], 1));
        }
        assert_eq!(spans.spans.len(), SPANS_MAX);
        let long = Part { start: vec![b'z'; BOUNDS_BYTES_MAX + 1].into(), end: None };
        let mut spans = Spans::default();
        spans.replace(&long, Spans::divide(&long, [], 0));
        assert_eq!(spans.spans.len(), 0);
    }

    #[test]
    fn gaps_are_found_between_spans() {
        let mut spans = Spans::default();
        assert_eq!(spans.first_gap(b""), Some(Part { start: Bytes::new(), end: None }));
        for (start, end) in [(3, 5), (5, 7), (9, 12)] {
            let part = part(start, Some(end));
            spans.replace(&part, Spans::divide(&part, [key(start)], 1));
        }
        let before = Part { start: Bytes::new(), end: Some(key(3)) };
        assert_eq!(spans.first_gap(b""), Some(before));
        assert_eq!(spans.first_gap(&key(2)), Some(part(2, Some(3))));
        assert_eq!(spans.first_gap(&key(4)), Some(part(7, Some(9))));
        assert_eq!(spans.first_gap(&key(8)), Some(part(8, Some(9))));
        assert_eq!(spans.first_gap(&key(9)), Some(part(12, None)));
        let rest = part(12, None);
        spans.replace(&rest, Spans::divide(&rest, [], 0));
        assert_eq!(spans.first_gap(&key(9)), None);
        assert_eq!(spans.first_gap(&key(20)), None);
    }

    #[test]
    fn adjacent_spans_with_few_keys_are_stored_as_one_part() {
        let mut spans = Spans::default();
        for (start, end, count) in
            [(1, 2, 3), (2, 3, 0), (3, 4, SPAN_KEYS - 3), (4, 5, 1), (6, 7, 1)]
        {
            let part = part(start, Some(end));
            spans.replace(&part, Spans::divide(&part, [], count));
        }
        let parts = [(part(1, Some(4)), SPAN_KEYS), (part(4, Some(5)), 1), (part(6, Some(7)), 1)];
        assert_eq!(spans.to_parts(), parts);
    }

    #[test]
    fn invalid_parts_are_left_out() {
        let parts = [
            (part(3, Some(3)), 1),
            (part(3, Some(6)), -1),
            (part(4, Some(6)), SPAN_KEYS_MAX + 1),
            (part(4, Some(8)), 2),
            (part(7, Some(9)), 3),
            (part(8, None), SPAN_KEYS),
        ];
        let spans = Spans::from_parts(parts);
        assert_eq!(spans.to_parts(), [(part(4, Some(8)), 2), (part(8, None), SPAN_KEYS)]);
    }

    proptest! {
        /// The counts of spans and gaps always add up to the number of keys in a model.
        #[test]
        fn counts_agree_with_a_model(
            steps in proptest::collection::vec((0u16..60, proptest::option::of(0u16..60), 0u8..4), 1..200),
        ) {
            let (mut spans, mut keys) = (Spans::default(), BTreeSet::new());
            for (number, end, step) in steps {
                let part = part(number, end.filter(|end| *end > number));
                match step {
                    0 | 1 => {
                        let is_put = step == 0;
                        let key = key(number);
                        let has_changed = if is_put { keys.insert(key.clone()) } else { keys.remove(&key) };
                        if has_changed {
                            spans.change(&key, if is_put { 1 } else { -1 });
                        }
                    }
                    2 => {
                        for gap in spans.within(&part).1 {
                            let divided = divided(&keys, &gap, 3);
                            spans.replace(&gap, divided);
                        }
                    }
                    _ => {}
                }
                let in_range = |part: &Part| keys.iter().filter(|key| part.range().contains(key)).count();
                let (count, gaps) = spans.within(&part);
                let in_gaps: usize = gaps.iter().map(in_range).sum();
                prop_assert_eq!(usize::try_from(count).unwrap() + in_gaps, in_range(&part));
                let bytes: usize = spans.spans.keys().map(Bytes::len).sum();
                prop_assert_eq!(spans.bounds_bytes, bytes);
            }
        }
    }
}
