//! The keys of a request: a single key, or the range from one key up to but excluding another.

use std::collections::HashSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use quorate_api::etcdserverpb::request_op::Request;

/// The `range_end` of a range without an upper bound. The same byte is also the first possible key.
pub(crate) const OPEN_END: &[u8] = b"\0";

/// A single key or a range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    key: Bytes,
    /// `None` for a single key; empty for a range without an upper bound.
    end: Option<Bytes>,
}

impl Span {
    /// Decodes the span of a request.
    pub(crate) fn new(key: &Bytes, range_end: &Bytes) -> Self {
        let end = match &**range_end {
            [] => None,
            [0] => Some(Bytes::new()),
            _ => Some(range_end.clone()),
        };
        Self { key: key.clone(), end }
    }

    /// Returns the span of a single key.
    pub(crate) const fn of(key: Bytes) -> Self {
        Self { key, end: None }
    }

    /// Returns the span of all keys with this prefix.
    pub(crate) fn below(prefix: &Bytes) -> Self {
        Self::new(prefix, &after(prefix))
    }

    /// Returns the first key.
    pub(crate) const fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the end of the range: `None` for a single key, or an empty key if the range has no upper bound.
    pub(crate) const fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }

    /// Returns the end as encoded in requests.
    pub(crate) fn range_end(&self) -> Bytes {
        match &self.end {
            None => Bytes::new(),
            Some(end) if end.is_empty() => Bytes::from_static(OPEN_END),
            Some(end) => end.clone(),
        }
    }

    /// Returns the intersection of both spans, or `None` if it is empty.
    pub(crate) fn common(&self, other: &Self) -> Option<Self> {
        if !self.overlaps(other) {
            return None;
        }
        let end = match (&self.end, &other.end) {
            (None, _) | (_, None) => None,
            (Some(one), Some(two)) => Some(match (one.is_empty(), two.is_empty()) {
                (true, _) => two.clone(),
                (false, true) => one.clone(),
                (false, false) => one.min(two).clone(),
            }),
        };
        let key = if self.is_single() { &self.key } else { (&other.key).max(&self.key) };
        let key = if other.is_single() { &other.key } else { key };
        Some(Self { key: key.clone(), end })
    }

    /// Returns the smallest span that contains both spans.
    pub(crate) fn hull(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        let last = |span: &Self| match &span.end {
            // A single key ends at its successor.
            None => [&span.key, &[0][..]].concat().into(),
            Some(end) => end.clone(),
        };
        let (one, two) = (last(self), last(other));
        let end = if one.is_empty() || two.is_empty() { Bytes::new() } else { one.max(two) };
        Self { key: self.key.clone().min(other.key.clone()), end: Some(end) }
    }

    /// Returns whether the span contains no possible key.
    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| !end.is_empty() && *end <= self.key)
    }

    /// Returns whether the span contains a key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        &*self.key <= key && self.passes(key)
    }

    /// Returns whether the span is a single key.
    pub(crate) const fn is_single(&self) -> bool {
        self.end.is_none()
    }

    /// Returns whether this key is before the end of the span. For the span of a single key, returns whether the keys
    /// are equal.
    pub(crate) fn passes(&self, key: &[u8]) -> bool {
        match &self.end {
            None => self.key == key,
            Some(end) => end.is_empty() || key < &**end,
        }
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self.is_single(), other.is_single()) {
            (true, true) => self.key == other.key,
            (true, false) => other.key <= self.key && other.passes(&self.key),
            (false, true) => self.key <= other.key && self.passes(&other.key),
            (false, false) => self.passes(&other.key) && other.passes(&self.key),
        }
    }
}

/// Spans in key order. No two of them overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    /// Sorts spans, merges those that overlap, and omits those that contain no key.
    pub(crate) fn new(mut spans: Vec<Span>) -> Self {
        spans.retain(|span| !span.is_empty());
        spans.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        spans.dedup_by(|next, last| {
            let do_overlap = last.overlaps(next);
            if do_overlap {
                *last = last.hull(next);
            }
            do_overlap
        });
        Self(spans)
    }

    /// Returns the span of all keys.
    pub(crate) fn all() -> Self {
        Self(vec![Span { key: Bytes::new(), end: Some(Bytes::new()) }])
    }

    /// Returns whether there are no spans.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Span> {
        self.0.iter()
    }

    /// Returns whether one of the spans shares a key with `span`. The number of steps is logarithmic in the number of
    /// spans.
    pub(crate) fn overlap(&self, span: &Span) -> bool {
        // Only the last span that starts at or before the key and the first span that starts after the key can be the
        // first to overlap.
        let next = self.0.partition_point(|it| it.key <= span.key);
        self.0[next.saturating_sub(1)..].iter().take(2).any(|it| it.overlaps(span))
    }

    /// Returns whether one of the spans contains a key. The number of steps is logarithmic in the number of spans.
    pub(crate) fn have(&self, key: &[u8]) -> bool {
        let next = self.0.partition_point(|it| it.key <= key);
        next > 0 && self.0[next - 1].has(key)
    }
}

/// Returns all spans that a request may write.
pub(crate) fn written(request: &Request) -> Spans {
    collect(request, false, usize::MAX)
}

/// Returns all spans that a request may write or that its conditions read. Returns the span of all keys if there are
/// more than `count_max` different spans.
pub(crate) fn written_or_compared(request: &Request, count_max: usize) -> Spans {
    collect(request, true, count_max)
}

fn collect(request: &Request, with_conditions: bool, count_max: usize) -> Spans {
    let mut spans = HashSet::new();
    let add = &mut |span| {
        spans.insert(span);
        if spans.len() > count_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    match visit(request, with_conditions, add) {
        ControlFlow::Break(()) => Spans::all(),
        ControlFlow::Continue(()) => Spans::new(spans.into_iter().collect()),
    }
}

/// Passes all spans that a request may write to `add`, until `add` returns a break. With `with_conditions`, also passes
/// the spans that the request's conditions read.
fn visit(
    request: &Request,
    with_conditions: bool,
    add: &mut impl FnMut(Span) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match request {
        Request::RequestRange(_) => ControlFlow::Continue(()),
        Request::RequestPut(put) => add(Span::of(put.key.clone())),
        Request::RequestDeleteRange(delete) => add(Span::new(&delete.key, &delete.range_end)),
        Request::RequestTxn(txn) => {
            if with_conditions {
                txn.compare.iter().try_for_each(|it| add(Span::new(&it.key, &it.range_end)))?;
            }
            let operations = txn.success.iter().chain(&txn.failure);
            let mut requests = operations.filter_map(|it| it.request.as_ref());
            requests.try_for_each(|request| visit(request, with_conditions, add))
        }
    }
}

/// Returns the first key after all keys with this prefix, or [`OPEN_END`] if there is no such key.
pub(crate) fn after(prefix: &[u8]) -> Bytes {
    let mut after = prefix.to_vec();
    while let Some(last) = after.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return after.into();
        }
        after.pop();
    }
    Bytes::from_static(OPEN_END)
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{Compare, PutRequest, RequestOp, TxnRequest};

    use super::*;

    fn span(key: &'static str, end: &'static str) -> Span {
        Span::new(&Bytes::from_static(key.as_bytes()), &Bytes::from_static(end.as_bytes()))
    }

    #[test]
    fn spans_overlap_if_they_share_a_key() {
        for (one, other, do_overlap) in [
            (span("a", ""), span("a", ""), true),
            (span("a", ""), span("b", ""), false),
            (span("b", ""), span("a", "c"), true),
            (span("c", ""), span("a", "c"), false),
            (span("z", ""), span("a", "\0"), true),
            (span("a", "b"), span("b", "c"), false),
            (span("a", "d"), span("b", "c"), true),
            (span("x", "\0"), span("a", "b"), false),
            (span("\0", "\0"), span("a", "b"), true),
        ] {
            assert_eq!(one.overlaps(&other), do_overlap, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), do_overlap, "{other:?} {one:?}");
        }
    }

    #[test]
    fn the_intersection_of_two_spans_contains_the_common_keys() {
        for (one, other, common) in [
            (span("a", ""), span("a", ""), Some(span("a", ""))),
            (span("b", ""), span("a", "c"), Some(span("b", ""))),
            (span("a", "d"), span("b", "\0"), Some(span("b", "d"))),
            (span("a", "\0"), span("b", "\0"), Some(span("b", "\0"))),
            (span("a", "d"), span("b", "c"), Some(span("b", "c"))),
            (span("a", "b"), span("b", "c"), None),
        ] {
            assert_eq!(one.common(&other), common);
            assert_eq!(other.common(&one), common);
        }
        assert!(span("a", "c").has(b"b") && !span("a", "c").has(b"c") && !span("b", "c").has(b"a"));
    }

    #[test]
    fn the_hull_of_two_spans_is_the_smallest_span_that_contains_both() {
        for (one, other, hull) in [
            (span("a", ""), span("a", ""), span("a", "")),
            (span("a", ""), span("c", ""), span("a", "c\0")),
            (span("b", "d"), span("a", ""), span("a", "d")),
            (span("b", "\0"), span("a", "c"), span("a", "\0")),
        ] {
            assert_eq!(one.hull(&other), hull);
            assert_eq!(other.hull(&one), hull);
        }
    }

    #[test]
    fn overlapping_spans_are_merged() {
        let all = [
            span("x", "\0"),
            span("c", "e"),
            span("a", ""),
            span("d", ""),
            span("d", "g"),
            span("g", ""),
            span("h", "b"),
            span("z", ""),
            span("a", ""),
        ];
        let spans = Spans::new(all.to_vec());
        let merged = [span("a", ""), span("c", "g"), span("g", ""), span("x", "\0")];
        assert!(spans.iter().eq(&merged), "{spans:?}");
        let keys = ["\0", "a", "b", "c", "e", "f", "g", "h", "w", "x", "z"];
        for key in keys {
            let is_there = merged.iter().any(|it| it.has(key.as_bytes()));
            assert_eq!(spans.have(key.as_bytes()), is_there, "{key}");
            for end in ["", "\0"].into_iter().chain(keys) {
                let other = span(key, end);
                let do_overlap = merged.iter().any(|it| it.overlaps(&other));
                assert_eq!(spans.overlap(&other), do_overlap, "{other:?}");
            }
        }
        assert!(Spans::all().have(b"\0") && Spans::all().have(b"\xff"));
    }

    #[test]
    fn a_transaction_with_many_different_spans_counts_as_a_write_to_all_keys() {
        let put = |number: usize| {
            let key = number.to_string().into();
            Request::RequestPut(PutRequest { key, ..PutRequest::default() })
        };
        let txn = |puts: &mut dyn Iterator<Item = usize>, compared: &'static [u8]| {
            let success = puts.map(|it| RequestOp { request: Some(put(it)) }).collect();
            let key = Bytes::from_static(compared);
            let compare = vec![Compare { key, ..Compare::default() }];
            Request::RequestTxn(TxnRequest { compare, success, ..TxnRequest::default() })
        };
        let few = txn(&mut (0..1_000).map(|number| number % 3), b"3");
        let spans = ["0", "1", "2"].map(|key| span(key, ""));
        assert!(written(&few).iter().eq(&spans));
        assert!(written_or_compared(&few, 4).iter().eq(spans.iter().chain([&span("3", "")])));
        assert_eq!(written_or_compared(&few, 3), Spans::all());
        let many = txn(&mut (0..1_000), b"3");
        assert_eq!(written(&many).iter().count(), 1_000);
        assert_eq!(written_or_compared(&many, 999), Spans::all());
    }

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_after_it() {
        assert_eq!(Span::below(&Bytes::from_static(b"n/")), span("n/", "n0"));
        assert_eq!(after(&[b'a', 0xff]), &b"b"[..]);
        assert_eq!(after(&[0xff, 0xff]), OPEN_END);
        assert_eq!(span("a", "\0").range_end(), OPEN_END);
    }
}
