//! A model of the responses to requests: for each revision, a map of all live records.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request as Op;
use quorate_api::etcdserverpb::response_op::Response as Answer;
use quorate_api::record::{Fields, KeyValue};

use crate::apply::{Command, Response};

/// The record of a key.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    value: Bytes,
    create: i64,
    modified: i64,
    version: i64,
    lease: i64,
}

type Keys = BTreeMap<Bytes, Record>;

/// The keyspace at every revision.
pub(super) struct Model {
    revision: i64,
    live: Keys,
    past: BTreeMap<i64, Keys>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { revision: 1, live: Keys::new(), past: BTreeMap::from([(1, Keys::new())]) }
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns every live record in its stored form.
    pub(super) fn records(&self) -> Vec<KeyValue> {
        self.live.iter().map(|(key, record)| stored(key, record)).collect()
    }

    /// Adopts the result of a request that Quorate would not propose.
    pub(super) fn adopt(&mut self, revision: i64, records: Vec<KeyValue>) {
        let read = |kv: &KeyValue| {
            let Fields { key, create_revision, mod_revision, version, value, lease } = kv.fields();
            let value = Bytes::copy_from_slice(value);
            let (create, modified) = (create_revision, mod_revision);
            (Bytes::copy_from_slice(key), Record { value, create, modified, version, lease })
        };
        self.live = records.iter().map(read).collect();
        self.end(revision);
    }

    /// Executes a command, and compares the state's response with the model's response.
    pub(super) fn check(&mut self, command: &Command, response: &Response) {
        let start = self.revision;
        let end = match (command, response) {
            (Command::Range(request), Response::Range(answer)) => {
                self.range(request, start, answer)
            }
            (Command::Put(request), Response::Put(answer)) => self.put(request, start, answer),
            (Command::DeleteRange(request), Response::DeleteRange(answer)) => {
                self.delete(request, start, start, answer)
            }
            (Command::Txn(request), Response::Txn(answer)) => {
                let then = self.live.clone();
                let end = self.txn(request, (start, &then), start, answer);
                assert_eq!(revision(answer.header.as_ref()), end);
                end
            }
            (Command::LeaseRevoke(request), Response::LeaseRevoke(answer)) => {
                let before = self.live.len();
                self.live.retain(|_, record| record.lease != request.id);
                let end = if self.live.len() < before { start + 1 } else { start };
                assert_eq!(revision(answer.header.as_ref()), end);
                end
            }
            _ => start,
        };
        self.end(end);
    }

    fn end(&mut self, revision: i64) {
        self.revision = revision;
        self.past.insert(revision, self.live.clone());
    }

    /// Checks the response to a range. The revision in its header must be `now`, the newest revision inside the entry.
    fn range(&self, request: &pb::RangeRequest, now: i64, answer: &pb::RangeResponse) -> i64 {
        assert_eq!(revision(answer.header.as_ref()), now);
        let keys = if request.revision > 0 { &self.past[&request.revision] } else { &self.live };
        let found = in_range(keys, &request.key, &request.range_end);
        assert_eq!(answer.count, i64::try_from(found.len()).unwrap_or(i64::MAX));
        let is_plain = request.sort_order == 0
            && request.sort_target == 0
            && !request.keys_only
            && request.min_mod_revision == 0
            && request.max_mod_revision == 0
            && request.min_create_revision == 0
            && request.max_create_revision == 0;
        if request.count_only {
            assert_eq!(answer.kvs, []);
        } else if is_plain {
            let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
            let shown = limit.unwrap_or(usize::MAX).min(found.len());
            let expected: Vec<_> =
                found[..shown].iter().map(|(key, record)| stored(key, record)).collect();
            assert_eq!(answer.kvs, expected);
            assert_eq!(answer.more, shown < found.len());
        }
        now
    }

    fn put(&mut self, request: &pb::PutRequest, start: i64, answer: &pb::PutResponse) -> i64 {
        let modified = start + 1;
        assert_eq!(revision(answer.header.as_ref()), modified);
        let old = self.live.get(&request.key).cloned();
        let shown = old.as_ref().filter(|_| request.prev_kv);
        assert_eq!(answer.prev_kv, shown.map(|record| stored(&request.key, record)));
        let kept = |keeps: bool| old.as_ref().filter(|_| keeps);
        let record = Record {
            value: kept(request.ignore_value)
                .map_or_else(|| request.value.clone(), |old| old.value.clone()),
            create: old.as_ref().map_or(modified, |old| old.create),
            modified,
            version: old.as_ref().map_or(1, |old| old.version + 1),
            lease: kept(request.ignore_lease).map_or(request.lease, |old| old.lease),
        };
        self.live.insert(request.key.clone(), record);
        modified
    }

    fn delete(
        &mut self,
        request: &pb::DeleteRangeRequest,
        start: i64,
        now: i64,
        answer: &pb::DeleteRangeResponse,
    ) -> i64 {
        let found = in_range(&self.live, &request.key, &request.range_end);
        let expected: Vec<_> = found.iter().map(|(key, record)| stored(key, record)).collect();
        let keys: Vec<Bytes> = found.into_iter().map(|(key, _)| key.clone()).collect();
        let now = if keys.is_empty() { now } else { start + 1 };
        assert_eq!(revision(answer.header.as_ref()), now);
        assert_eq!(answer.deleted, i64::try_from(keys.len()).unwrap_or(i64::MAX));
        assert_eq!(answer.prev_kvs, if request.prev_kv { expected } else { Vec::new() });
        self.live.retain(|key, _| !keys.contains(key));
        now
    }

    /// Executes a transaction. All conditions are evaluated against the state before the entry.
    fn txn(
        &mut self,
        request: &pb::TxnRequest,
        start: (i64, &Keys),
        mut now: i64,
        answer: &pb::TxnResponse,
    ) -> i64 {
        let succeeded = request.compare.iter().all(|compare| holds(compare, start.1));
        assert_eq!(answer.succeeded, succeeded);
        let operations = if succeeded { &request.success } else { &request.failure };
        assert_eq!(operations.len(), answer.responses.len());
        for (operation, answer) in operations.iter().zip(&answer.responses) {
            now = match (operation.request.as_ref(), answer.response.as_ref()) {
                (Some(Op::RequestRange(request)), Some(Answer::ResponseRange(answer))) => {
                    self.range(request, now, answer)
                }
                (Some(Op::RequestPut(request)), Some(Answer::ResponsePut(answer))) => {
                    self.put(request, start.0, answer)
                }
                (
                    Some(Op::RequestDeleteRange(request)),
                    Some(Answer::ResponseDeleteRange(answer)),
                ) => self.delete(request, start.0, now, answer),
                (Some(Op::RequestTxn(request)), Some(Answer::ResponseTxn(answer))) => {
                    self.txn(request, start, now, answer)
                }
                other => panic!("unexpected response: {other:?}"),
            };
        }
        now
    }
}

fn revision(header: Option<&pb::ResponseHeader>) -> i64 {
    header.expect("a response has a header").revision
}

fn stored(key: &Bytes, record: &Record) -> KeyValue {
    KeyValue::new(&Fields {
        key,
        create_revision: record.create,
        mod_revision: record.modified,
        version: record.version,
        value: &record.value,
        lease: record.lease,
    })
}

fn in_range<'a>(keys: &'a Keys, key: &[u8], end: &[u8]) -> Vec<(&'a Bytes, &'a Record)> {
    let is_in = |live: &[u8]| match end {
        [] => live == key,
        [0] => live >= key,
        end => live >= key && live < end,
    };
    keys.iter().filter(|(live, _)| is_in(live)).collect()
}

/// Returns whether a condition holds. A condition on a range holds if it holds for every key in the
/// range. A missing key is compared as if all its numbers were zero, and a comparison of its value
/// is false.
fn holds(compare: &pb::Compare, keys: &Keys) -> bool {
    let found = in_range(keys, &compare.key, &compare.range_end);
    if found.is_empty() {
        let absent = Record { value: Bytes::new(), create: 0, modified: 0, version: 0, lease: 0 };
        return compare.target != CompareTarget::Value as i32 && holds_for(compare, &absent);
    }
    found.iter().all(|(_, record)| holds_for(compare, record))
}

fn holds_for(compare: &pb::Compare, record: &Record) -> bool {
    let number = |found: i64, wanted: Option<i64>| found.cmp(&wanted.unwrap_or_default());
    let union = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => number(
            record.version,
            union.and_then(|u| if let TargetUnion::Version(n) = u { Some(*n) } else { None }),
        ),
        Ok(CompareTarget::Create) => number(
            record.create,
            union
                .and_then(|u| if let TargetUnion::CreateRevision(n) = u { Some(*n) } else { None }),
        ),
        Ok(CompareTarget::Mod) => number(
            record.modified,
            union.and_then(|u| if let TargetUnion::ModRevision(n) = u { Some(*n) } else { None }),
        ),
        Ok(CompareTarget::Lease) => number(
            record.lease,
            union.and_then(|u| if let TargetUnion::Lease(n) = u { Some(*n) } else { None }),
        ),
        Ok(CompareTarget::Value) => match union {
            Some(TargetUnion::Value(wanted)) => record.value.cmp(wanted),
            _ => record.value[..].cmp(&[]),
        },
        // An unknown target counts as equal.
        Err(_) => std::cmp::Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        Err(_) => true,
    }
}
