//! Compares random transactions with a model that consists of a few maps and follows the specification literally.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quorate_api::etcdserverpb::{
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request as Op,
    response_op::Response as OpResponse,
};

use super::*;

#[derive(Clone, Debug, PartialEq)]
struct Record {
    value: Vec<u8>,
    create: i64,
    modified: i64,
    version: i64,
}

#[derive(Clone, Debug, Default)]
struct Model {
    revision: i64,
    live: BTreeMap<Vec<u8>, Record>,
}

impl Model {
    fn in_range<'a>(
        &'a self,
        key: &'a [u8],
        end: &'a [u8],
    ) -> impl Iterator<Item = (&'a Vec<u8>, &'a Record)> {
        self.live.iter().filter(move |(live, _)| match end {
            [] => live[..] == *key,
            [0] => live[..] >= *key,
            end => live[..] >= *key && live[..] < *end,
        })
    }

    fn holds(&self, compare: &pb::Compare) -> bool {
        let Some(TargetUnion::Version(wanted)) = compare.target_union else { unreachable!() };
        let versions: Vec<i64> =
            self.in_range(&compare.key, &compare.range_end).map(|(_, r)| r.version).collect();
        let versions = if versions.is_empty() { vec![0] } else { versions };
        versions.iter().all(|version| match compare.result() {
            CompareResult::Equal => *version == wanted,
            CompareResult::Greater => *version > wanted,
            CompareResult::Less => *version < wanted,
            CompareResult::NotEqual => *version != wanted,
        })
    }

    fn check(&self, start: &Self, request: &pb::TxnRequest) -> bool {
        let taken = chosen(start, request);
        taken.iter().all(|operation| match operation.request.as_ref().unwrap() {
            Op::RequestPut(put) => !put.ignore_value || start.live.contains_key(&put.key[..]),
            Op::RequestTxn(txn) => self.check(start, txn),
            Op::RequestRange(range) => range.revision <= start.revision,
            Op::RequestDeleteRange(_) => true,
        })
    }

    /// Appends the response of each operation to `out`.
    fn run(&mut self, start: &Self, request: &pb::TxnRequest, out: &mut Vec<String>) {
        for operation in chosen(start, request) {
            match operation.request.as_ref().unwrap() {
                Op::RequestPut(put) => {
                    let modified = start.revision + 1;
                    self.revision = modified;
                    let old = self.live.get(&put.key[..]).cloned();
                    let value = match &old {
                        Some(old) if put.ignore_value => old.value.clone(),
                        _ => put.value.to_vec(),
                    };
                    let create = old.as_ref().map_or(modified, |old| old.create);
                    let version = old.as_ref().map_or(1, |old| old.version + 1);
                    let record = Record { value, create, modified, version };
                    self.live.insert(put.key.to_vec(), record);
                    let shown = old.filter(|_| put.prev_kv).map(|old| old.value);
                    out.push(format!("put {shown:?} @{}", self.revision));
                }
                Op::RequestDeleteRange(delete) => {
                    let keys: Vec<_> = self
                        .in_range(&delete.key, &delete.range_end)
                        .map(|(key, _)| key.clone())
                        .collect();
                    for key in &keys {
                        self.live.remove(key);
                        self.revision = start.revision + 1;
                    }
                    out.push(format!("delete {} @{}", keys.len(), self.revision));
                }
                Op::RequestRange(range) => {
                    let state = if range.revision > 0 { start } else { &*self };
                    let found: Vec<_> =
                        state.in_range(&range.key, &range.range_end).map(show_record).collect();
                    out.push(format!("range {found:?} @{}", self.revision));
                }
                Op::RequestTxn(txn) => {
                    out.push(format!("txn {}", succeeded(start, txn)));
                    self.run(start, txn, out);
                }
            }
        }
    }
}

fn show_record((key, record): (&Vec<u8>, &Record)) -> (Vec<u8>, Vec<u8>, i64, i64, i64) {
    (key.clone(), record.value.clone(), record.create, record.modified, record.version)
}

fn succeeded(start: &Model, request: &pb::TxnRequest) -> bool {
    request.compare.iter().all(|compare| start.holds(compare))
}

fn chosen<'a>(start: &Model, request: &'a pb::TxnRequest) -> &'a [pb::RequestOp] {
    if succeeded(start, request) { &request.success } else { &request.failure }
}

fn describe_responses(response: &pb::TxnResponse, out: &mut Vec<String>) {
    for response in &response.responses {
        match response.response.as_ref().unwrap() {
            OpResponse::ResponsePut(put) => {
                let shown = put.prev_kv.as_ref().map(|kv| kv.value().to_vec());
                out.push(format!("put {shown:?} @{}", revision_of(put.header.as_ref())));
            }
            OpResponse::ResponseDeleteRange(delete) => {
                let revision = revision_of(delete.header.as_ref());
                out.push(format!("delete {} @{revision}", delete.deleted));
            }
            OpResponse::ResponseRange(range) => {
                let found: Vec<_> = range
                    .kvs
                    .iter()
                    .map(|kv| {
                        let kv = kv.fields();
                        let (key, value) = (kv.key.to_vec(), kv.value.to_vec());
                        (key, value, kv.create_revision, kv.mod_revision, kv.version)
                    })
                    .collect();
                out.push(format!("range {found:?} @{}", revision_of(range.header.as_ref())));
            }
            OpResponse::ResponseTxn(txn) => {
                out.push(format!("txn {}", txn.succeeded));
                describe_responses(txn, out);
            }
        }
    }
}

fn key() -> impl Strategy<Value = Bytes> {
    (b'a'..b'e').prop_map(|byte| Bytes::copy_from_slice(&[byte]))
}

fn key_range() -> impl Strategy<Value = (Bytes, Bytes)> {
    let end = prop_oneof![
        2 => Just(Bytes::new()),
        2 => key(),
        1 => Just(Bytes::from_static(&[0])),
    ];
    (key(), end)
}

fn operation() -> impl Strategy<Value = Op> {
    let value = any::<u8>().prop_map(|byte| Bytes::copy_from_slice(&[byte]));
    let put = (key(), value, prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |(key, value, ignore_value, prev_kv)| {
            let value = if ignore_value { Bytes::new() } else { value };
            Op::RequestPut(pb::PutRequest {
                key,
                value,
                ignore_value,
                prev_kv,
                ..pb::PutRequest::default()
            })
        },
    );
    let delete = key_range().prop_map(|(key, range_end)| {
        Op::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false })
    });
    let now = any::<bool>();
    let range = (key_range(), now).prop_map(|((key, range_end), now)| {
        let revision = i64::from(now);
        Op::RequestRange(pb::RangeRequest { key, range_end, revision, ..Default::default() })
    });
    prop_oneof![3 => put, 1 => delete, 2 => range]
}

fn txn_of(operation: impl Strategy<Value = Op> + Clone) -> impl Strategy<Value = pb::TxnRequest> {
    let compare =
        (key_range(), 0..4i32, 0..4i64).prop_map(|((key, range_end), result, version)| {
            pb::Compare {
                result,
                target: CompareTarget::Version as i32,
                key,
                target_union: Some(TargetUnion::Version(version)),
                range_end,
            }
        });
    let op = operation.prop_map(|op| pb::RequestOp { request: Some(op) });
    let branch = || prop::collection::vec(op.clone(), 0..4);
    (prop::collection::vec(compare, 0..2), branch(), branch())
        .prop_map(|(compare, success, failure)| pb::TxnRequest { compare, success, failure })
}

fn transaction() -> impl Strategy<Value = pb::TxnRequest> {
    let leaf = operation().boxed();
    let nested = txn_of(leaf.clone()).prop_map(Op::RequestTxn);
    let op = prop_oneof![4 => leaf, 1 => nested].boxed();
    let nested = txn_of(op.clone()).prop_map(Op::RequestTxn);
    txn_of(prop_oneof![4 => op, 1 => nested].boxed())
}

/// Replaces the revision in each range that names a revision with `revision`, the newest revision before the
/// transaction.
fn name_revision(request: &mut pb::TxnRequest, revision: i64) {
    for operation in request.success.iter_mut().chain(&mut request.failure) {
        match operation.request.as_mut().unwrap() {
            Op::RequestRange(range) if range.revision > 0 => range.revision = revision,
            Op::RequestTxn(txn) => name_revision(txn, revision),
            Op::RequestRange(_) | Op::RequestPut(_) | Op::RequestDeleteRange(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn transactions_have_the_same_results_as_in_the_specification(
        requests in prop::collection::vec(transaction(), 1..12),
    ) {
        let mut log = Log::new();
        let mut model = Model { revision: 1, ..Model::default() };
        for mut request in requests {
            if check_txn(&request, 128).is_err() {
                continue;
            }
            name_revision(&mut request, model.revision);
            let start = model.clone();
            let outcome = log.outcome(Command::Txn(request.clone()));
            let Ok(Response::Txn(response)) = outcome else {
                prop_assert_eq!(outcome, Err(Refusal::KeyNotFound));
                // The state also refuses transactions that, according to the specification, fail part-way.
                if model.check(&start, &request) {
                    let deletes_all = format!("{request:?}").contains("range_end: b\"\\0\"");
                    prop_assert!(deletes_all, "{:?}", request);
                }
                continue;
            };
            prop_assert!(model.check(&start, &request));
            let (mut expected, mut shown) = (Vec::new(), Vec::new());
            model.run(&start, &request, &mut expected);
            describe_responses(&response, &mut shown);
            prop_assert_eq!(shown, expected);
            prop_assert_eq!(response.succeeded, succeeded(&start, &request));
            prop_assert_eq!(revision_of(response.header.as_ref()), model.revision);
            if is_read_only(&request) {
                log.state.publish();
                let read = read_txn(&log.state.published().view(), &request).unwrap().0.unwrap();
                prop_assert_eq!(read, response);
            }
        }
    }
}
