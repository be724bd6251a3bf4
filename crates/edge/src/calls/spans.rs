//! The spans of requests, with etcd's names and attributes. An attribute never contains a secret or the value stored
//! under a key.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use quorate_requests::access::Client;
use quorate_telemetry::trace::{self, Attribute};

/// Maximum number of watcher spans per stream that stay open until their watchers end. The spans of further watchers
/// end immediately.
const WATCHED_MAX: usize = 1024;

/// A request that a span describes.
pub(crate) trait Spanned {
    /// The name of the span.
    const NAME: &'static str;

    /// Returns the attributes of the span.
    fn attributes(&self) -> Vec<Attribute>;
}

/// Begins the span of a request, if the client's call is traced. The span ends when the operation is dropped.
#[must_use]
pub(crate) fn begin<S: Spanned>(client: &Client, request: &S) -> Option<trace::Operation> {
    client.operation(S::NAME, || request.attributes())
}

impl Spanned for RangeRequest {
    const NAME: &'static str = "range";

    fn attributes(&self) -> Vec<Attribute> {
        let mut attributes = RangeStream(self).attributes();
        attributes.push(Attribute::bool("keys_only", self.keys_only));
        attributes
    }
}

/// A range that is answered as a stream.
pub(crate) struct RangeStream<'a>(pub(crate) &'a RangeRequest);

impl Spanned for RangeStream<'_> {
    const NAME: &'static str = "range_streaming";

    fn attributes(&self) -> Vec<Attribute> {
        let Self(range) = self;
        vec![
            Attribute::text("range_begin", &range.key),
            Attribute::text("range_end", &range.range_end),
            Attribute::number("rev", range.revision),
            Attribute::number("limit", range.limit),
            Attribute::bool("count_only", range.count_only),
        ]
    }
}

impl Spanned for PutRequest {
    const NAME: &'static str = "put";

    fn attributes(&self) -> Vec<Attribute> {
        vec![Attribute::text("key", &self.key)]
    }
}

impl Spanned for DeleteRangeRequest {
    const NAME: &'static str = "delete_range";

    fn attributes(&self) -> Vec<Attribute> {
        vec![
            Attribute::text("range_begin", &self.key),
            Attribute::text("range_end", &self.range_end),
        ]
    }
}

/// A read-only transaction.
pub(crate) struct ReadTxn<T>(pub(crate) T);

impl<T: AsRef<TxnRequest>> Spanned for ReadTxn<T> {
    const NAME: &'static str = "txn";

    fn attributes(&self) -> Vec<Attribute> {
        txn(self.0.as_ref(), true)
    }
}

/// A transaction that may write.
impl Spanned for TxnRequest {
    const NAME: &'static str = "txn";

    fn attributes(&self) -> Vec<Attribute> {
        txn(self, false)
    }
}

impl Spanned for CompactionRequest {
    const NAME: &'static str = "compact";

    fn attributes(&self) -> Vec<Attribute> {
        vec![Attribute::bool("is_physical", self.physical), Attribute::number("rev", self.revision)]
    }
}

impl Spanned for LeaseGrantRequest {
    const NAME: &'static str = "lease_grant";

    fn attributes(&self) -> Vec<Attribute> {
        vec![Attribute::number("id", self.id), Attribute::number("ttl", self.ttl)]
    }
}

impl Spanned for LeaseRevokeRequest {
    const NAME: &'static str = "lease_revoke";

    fn attributes(&self) -> Vec<Attribute> {
        vec![Attribute::number("id", self.id)]
    }
}

impl Spanned for LeaseKeepAliveRequest {
    const NAME: &'static str = "lease_renew";

    fn attributes(&self) -> Vec<Attribute> {
        vec![Attribute::number("id", self.id)]
    }
}

fn txn(txn: &TxnRequest, is_read_only: bool) -> Vec<Attribute> {
    let done = || txn.success.iter().filter_map(|RequestOp { request }| request.as_ref());
    let compared = txn.compare.iter().map(|compare| &compare.key).find(|key| !key.is_empty());
    let key = done().filter_map(key_of).find(|key| !key.is_empty());
    let kind = done().next().map_or("", kind_of);
    let lease = done().find_map(|operation| match operation {
        Operation::RequestPut(put) => Some(put.lease),
        _ => None,
    });
    let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    vec![
        Attribute::text("compare_first_key", compared.map_or(b"", |key| key)),
        Attribute::text("success_first_key", key.map_or(b"", |key| key)),
        Attribute::text("success_first_type", kind.as_bytes()),
        Attribute::number("success_first_lease", lease.unwrap_or(-1)),
        Attribute::number("compare_len", count(txn.compare.len())),
        Attribute::number("success_len", count(txn.success.len())),
        Attribute::number("failure_len", count(txn.failure.len())),
        Attribute::bool("read_only", is_read_only),
    ]
}

const fn key_of(operation: &Operation) -> Option<&Bytes> {
    match operation {
        Operation::RequestRange(range) => Some(&range.key),
        Operation::RequestPut(put) => Some(&put.key),
        Operation::RequestDeleteRange(delete) => Some(&delete.key),
        Operation::RequestTxn(_) => None,
    }
}

const fn kind_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::RequestRange(_) => "range",
        Operation::RequestPut(_) => "put",
        Operation::RequestDeleteRange(_) => "delete_range",
        Operation::RequestTxn(_) => "txn",
    }
}

pub(crate) fn watch(create: &WatchCreateRequest) -> Vec<Attribute> {
    vec![
        Attribute::text("key", &create.key),
        Attribute::text("range_end", &create.range_end),
        Attribute::number("start_rev", create.start_revision),
        Attribute::bool("progress_notify", create.progress_notify),
        Attribute::bool("prev_kv", create.prev_kv),
        Attribute::bool("fragment", create.fragment),
    ]
}

/// The spans of a stream's watchers, at most [`WATCHED_MAX`]. Each span lasts until its watcher is cancelled or the
/// stream ends.
#[derive(Debug, Default)]
pub(crate) struct Watched(BTreeMap<i64, trace::Operation>);

impl Watched {
    /// Keeps the span of a new watcher open, unless [`WATCHED_MAX`] spans are open already.
    pub(crate) fn begin(&mut self, watch_id: i64, operation: trace::Operation) {
        if self.0.len() < WATCHED_MAX {
            self.0.insert(watch_id, operation);
        }
    }

    /// Ends the span of a watcher.
    pub(crate) fn end(&mut self, watch_id: i64) {
        drop(self.0.remove(&watch_id));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate_telemetry::metrics::{Metrics, MetricsLevel};
    use quorate_telemetry::trace::{AttributeValue, Resource, Sampling, Tracer};

    use super::*;

    #[test]
    fn the_span_of_a_transaction_contains_its_first_keys() {
        let put = |key: &'static str, lease| {
            let key = Bytes::from_static(key.as_bytes());
            let put = PutRequest { key, lease, ..PutRequest::default() };
            RequestOp { request: Some(Operation::RequestPut(put)) }
        };
        let nested = RequestOp { request: Some(Operation::RequestTxn(TxnRequest::default())) };
        let success = vec![nested, put("", 3), put("b", 4)];
        let attributes = txn(&TxnRequest { success, ..TxnRequest::default() }, false);
        let value =
            |name: &str| attributes.iter().find(|one| one.name == name).unwrap().value.clone();
        assert_eq!(value("success_first_key"), AttributeValue::Text("b".to_owned()));
        assert_eq!(value("success_first_type"), AttributeValue::Text("txn".to_owned()));
        assert_eq!(value("success_first_lease"), AttributeValue::Number(3));
        assert_eq!(value("compare_first_key"), AttributeValue::Text(String::new()));
        let none = txn(&TxnRequest::default(), true);
        assert!(none.contains(&Attribute::number("success_first_lease", -1)));
    }

    #[test]
    fn spans_of_watchers_beyond_the_maximum_end_immediately() {
        let metrics = Metrics::new(&[], MetricsLevel::Basic).tracing;
        let (all, resource) = (Sampling::per_million(1_000_000), Resource::new("s", ""));
        let tracer = Arc::new(Tracer::new(all, resource, metrics));
        let trace = Arc::new(tracer.follow(None, None).unwrap());
        let mut watched = Watched::default();
        for watch_id in 0..=1024 {
            assert!(tracer.take_batch().is_none(), "{watch_id}");
            watched.begin(watch_id, trace.operation_beside("watch", Vec::new()));
        }
        assert!(tracer.take_batch().is_some());
        watched.end(1024);
        assert!(tracer.take_batch().is_none());
        watched.end(0);
        assert!(tracer.take_batch().is_some());
    }
}
