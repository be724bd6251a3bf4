//! Unary calls on keys: put, get, list, txn, and a mix of reads and writes.

use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op,
};
use quorate_seeded_random::SplitMix64;

use super::path;
use crate::engine::Source;
use crate::shuffle::Shuffle;
use crate::template::{KeySpace, Template, Values};

/// The order in which operations use keys.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// A random key among the first `count`.
    Random { count: u64 },
    /// The keys in sequence, returning to the first key after `count` keys.
    Sequential { count: u64 },
    /// The first key of each page of `stride` keys, starting with page `first` and wrapping around after `pages` pages.
    Pages { first: u64, pages: u64, stride: u64 },
    /// Every key once, in random order.
    Shuffled(Shuffle),
}

impl Order {
    fn key(&self, number: u64, random: &mut SplitMix64) -> u64 {
        match self {
            Self::Random { count } => random.below(*count),
            Self::Sequential { count } => number % count,
            Self::Pages { first, pages, stride } => (first + number % pages) * stride,
            Self::Shuffled(shuffle) => shuffle.at(number),
        }
    }
}

/// One kind of call within a load.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) path: &'static str,
    pub(crate) template: Template,
}

/// A load of unary calls on keys.
#[derive(Clone, Debug)]
pub(crate) struct Keyed {
    pub(crate) kinds: Vec<Kind>,
    /// The percentage of operations of the first kind. The other operations are of the second kind.
    pub(crate) first_percent: u64,
    pub(crate) order: Order,
}

impl Keyed {
    /// Creates a load of a single kind.
    pub(crate) fn only(kind: Kind, order: Order) -> Self {
        Self { kinds: vec![kind], first_percent: 100, order }
    }

    /// Creates the source for one connection.
    pub(crate) const fn source(&self, load: Self, seed: u64) -> KeyedSource {
        KeyedSource { load, random: SplitMix64::new(seed) }
    }
}

/// A connection's share of a [`Keyed`] load.
#[derive(Debug)]
pub(crate) struct KeyedSource {
    load: Keyed,
    random: SplitMix64,
}

impl Source for KeyedSource {
    fn request(&mut self, number: u64, message: &mut Vec<u8>) -> (&'static str, usize) {
        let percent = self.load.first_percent;
        let kind = usize::from(percent < 100 && self.random.below(100) >= percent);
        let key = self.load.order.key(number, &mut self.random);
        let Kind { path, template } = &self.load.kinds[kind];
        template.fill(key, &mut self.random, message);
        (path, kind)
    }
}

/// Returns the kind of call that writes one key.
pub(crate) fn put(keys: &KeySpace, values: &Values) -> Kind {
    let template = Template::new(keys, values, 0, |markers| PutRequest {
        key: markers.key.into(),
        value: markers.value.into(),
        ..Default::default()
    });
    Kind { path: path::PUT, template }
}

/// Returns the kind of call that reads one key.
pub(crate) fn get(keys: &KeySpace, values: &Values, serializable: bool) -> Kind {
    let template = Template::new(keys, values, 0, |markers| RangeRequest {
        key: markers.key.into(),
        serializable,
        ..Default::default()
    });
    Kind { path: path::RANGE, template }
}

/// The shape of a list request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListShape {
    /// The number of keys in the range; 0 for all keys from the start key to the last key of the run.
    pub(crate) span: u64,
    /// The maximum number of keys in the reply; 0 for all keys of the range.
    pub(crate) limit: i64,
    /// The revision to read at; 0 for the newest.
    pub(crate) revision: i64,
    pub(crate) serializable: bool,
    pub(crate) keys_only: bool,
    pub(crate) count_only: bool,
}

/// Returns the kind of call that reads a range of keys.
pub(crate) fn list(keys: &KeySpace, values: &Values, shape: ListShape) -> Kind {
    let template = Template::new(keys, values, shape.span, |markers| RangeRequest {
        key: markers.key.into(),
        range_end: if shape.span == 0 { keys.end().into() } else { markers.end.into() },
        limit: shape.limit,
        revision: shape.revision,
        serializable: shape.serializable,
        keys_only: shape.keys_only,
        count_only: shape.count_only,
        ..Default::default()
    });
    Kind { path: path::RANGE, template }
}

/// Returns the kind of call that compares a key's version, with a condition that always holds, and writes the key.
pub(crate) fn txn(keys: &KeySpace, values: &Values) -> Kind {
    let template = Template::new(keys, values, 0, |markers| {
        let put = PutRequest {
            key: markers.key.clone().into(),
            value: markers.value.into(),
            ..Default::default()
        };
        let get = RangeRequest { key: markers.key.clone().into(), ..Default::default() };
        TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Greater as i32,
                target: CompareTarget::Version as i32,
                key: markers.key.into(),
                target_union: Some(TargetUnion::Version(-1)),
                ..Default::default()
            }],
            success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
        }
    });
    Kind { path: path::TXN, template }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn load(order: Order, kinds: Vec<Kind>, first_percent: u64) -> KeyedSource {
        let keyed = Keyed { kinds, first_percent, order };
        keyed.source(keyed.clone(), 9)
    }

    fn space() -> (KeySpace, Values) {
        (KeySpace::new("k", 6, 100).unwrap(), Values::new(10, 3))
    }

    #[test]
    fn a_mix_has_the_requested_share_of_each_kind() {
        let (keys, values) = space();
        let kinds = vec![get(&keys, &values, false), put(&keys, &values)];
        let mut source = load(Order::Random { count: 100 }, kinds, 80);
        let mut message = Vec::new();
        let mut counts = [0, 0];
        for number in 0..1000 {
            let (path, kind) = source.request(number, &mut message);
            assert_eq!(path, [path::RANGE, path::PUT][kind]);
            counts[kind] += 1;
        }
        assert!((750..850).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn a_txn_compares_and_writes_the_same_key() {
        let (keys, values) = space();
        let order = Order::Sequential { count: 100 };
        let mut source = load(order, vec![txn(&keys, &values)], 100);
        let mut message = Vec::new();
        source.request(42, &mut message);
        let request = TxnRequest::decode(&*message).unwrap();
        let Some(request_op::Request::RequestPut(put)) = &request.success[0].request else {
            panic!("expected a put");
        };
        assert_eq!((&put.key[..], &request.compare[0].key[..]), (&b"k00042"[..], &b"k00042"[..]));
    }

    #[test]
    fn pages_are_consecutive_up_to_the_end_of_the_range() {
        let (keys, values) = space();
        let shape = ListShape { limit: 30, revision: 7, ..Default::default() };
        let order = Order::Pages { first: 1, pages: 3, stride: 30 };
        let mut source = load(order, vec![list(&keys, &values, shape)], 100);
        let mut message = Vec::new();
        for (page, start) in [(0, "k00030"), (2, "k00090"), (3, "k00030")] {
            source.request(page, &mut message);
            let request = RangeRequest::decode(&*message).unwrap();
            assert_eq!(&request.key[..], start.as_bytes());
            assert_eq!((&request.range_end[..], request.revision), (&b"k:::::"[..], 7));
        }
    }
}
