//! What spans tell of requests: names and values as etcd has them. Values of keys and secrets are never among them.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, WatchCreateRequest,
};
use quorate_telemetry::trace::{self, Attribute};

/// Watchers of one stream whose spans last until they end; those of more end at once.
const WATCHED_MAX: usize = 1024;

pub(crate) fn range(range: &RangeRequest) -> Vec<Attribute> {
    let mut told = range_stream(range);
    told.push(Attribute::bool("keys_only", range.keys_only));
    told
}

pub(crate) fn range_stream(range: &RangeRequest) -> Vec<Attribute> {
    vec![
        Attribute::text("range_begin", &range.key),
        Attribute::text("range_end", &range.range_end),
        Attribute::number("rev", range.revision),
        Attribute::number("limit", range.limit),
        Attribute::bool("count_only", range.count_only),
    ]
}

pub(crate) fn put(put: &PutRequest) -> Vec<Attribute> {
    vec![Attribute::text("key", &put.key)]
}

pub(crate) fn delete_range(delete: &DeleteRangeRequest) -> Vec<Attribute> {
    vec![
        Attribute::text("range_begin", &delete.key),
        Attribute::text("range_end", &delete.range_end),
    ]
}

pub(crate) fn txn(txn: &TxnRequest, is_read_only: bool) -> Vec<Attribute> {
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

pub(crate) fn compact(compaction: &CompactionRequest) -> Vec<Attribute> {
    vec![
        Attribute::bool("is_physical", compaction.physical),
        Attribute::number("rev", compaction.revision),
    ]
}

pub(crate) fn grant(grant: &LeaseGrantRequest) -> Vec<Attribute> {
    vec![Attribute::number("id", grant.id), Attribute::number("ttl", grant.ttl)]
}

/// Of a lease that is revoked or renewed.
pub(crate) fn lease(id: i64) -> Vec<Attribute> {
    vec![Attribute::number("id", id)]
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

/// The spans of a stream's watchers: each lasts until its watcher is cancelled, or the stream has ended.
#[derive(Debug, Default)]
pub(crate) struct Watched(BTreeMap<i64, trace::Operation>);

impl Watched {
    /// A watcher begins.
    pub(crate) fn begin(&mut self, watch_id: i64, operation: trace::Operation) {
        if self.0.len() < WATCHED_MAX {
            self.0.insert(watch_id, operation);
        }
    }

    /// A watcher has ended.
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
    fn a_transaction_is_told_by_its_first_keys() {
        let put = |key: &'static str, lease| {
            let key = Bytes::from_static(key.as_bytes());
            let put = PutRequest { key, lease, ..PutRequest::default() };
            RequestOp { request: Some(Operation::RequestPut(put)) }
        };
        let nested = RequestOp { request: Some(Operation::RequestTxn(TxnRequest::default())) };
        let success = vec![nested, put("", 3), put("b", 4)];
        let told = txn(&TxnRequest { success, ..TxnRequest::default() }, false);
        let value = |name: &str| told.iter().find(|one| one.name == name).unwrap().value.clone();
        assert_eq!(value("success_first_key"), AttributeValue::Text("b".to_owned()));
        assert_eq!(value("success_first_type"), AttributeValue::Text("txn".to_owned()));
        assert_eq!(value("success_first_lease"), AttributeValue::Number(3));
        assert_eq!(value("compare_first_key"), AttributeValue::Text(String::new()));
        let none = txn(&TxnRequest::default(), true);
        assert!(none.contains(&Attribute::number("success_first_lease", -1)));
    }

    #[test]
    fn spans_of_watchers_beyond_their_number_end_at_once() {
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
