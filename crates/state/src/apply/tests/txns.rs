//! Tests of transactions, one rule at a time.

use quorate_api::deep_txn;
use quorate_api::etcdserverpb::{
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request as Op,
    response_op::Response as OpResponse,
};

use super::*;

fn ops(operations: impl IntoIterator<Item = Op>) -> Vec<pb::RequestOp> {
    operations.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect()
}

fn txn_of(operations: impl IntoIterator<Item = Op>) -> pb::TxnRequest {
    pb::TxnRequest { success: ops(operations), ..pb::TxnRequest::default() }
}

fn txn(log: &mut Log, operations: Vec<Op>) -> Result<pb::TxnResponse, Refusal> {
    match log.outcome(Command::Txn(txn_of(operations))) {
        Ok(Response::Txn(response)) => Ok(response),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal),
    }
}

fn compare(
    key: &str,
    result: CompareResult,
    target: CompareTarget,
    operand: Option<TargetUnion>,
) -> pb::Compare {
    pb::Compare {
        result: result as i32,
        target: target as i32,
        key: text(key),
        target_union: operand,
        range_end: Bytes::new(),
    }
}

#[test]
fn transaction_conditions_compare_as_in_etcd() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use CompareTarget::{Create, Lease, Mod, Value, Version};
    use TargetUnion as Is;
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 60 })).unwrap();
    log.put("a", "1");
    log.outcome(Command::Put(pb::PutRequest { lease: 5, ..put("a", "2") })).unwrap();
    log.put("b", "3");
    let is = |text: &str| Some(Is::Value(Bytes::copy_from_slice(text.as_bytes())));
    let mut cases = vec![
        (compare("a", Equal, Version, Some(Is::Version(2))), true),
        (compare("a", Greater, Version, Some(Is::Version(2))), false),
        (compare("a", Equal, Create, Some(Is::CreateRevision(2))), true),
        (compare("a", Less, Mod, Some(Is::ModRevision(4))), true),
        (compare("a", NotEqual, Mod, Some(Is::ModRevision(3))), false),
        (compare("a", Equal, Lease, Some(Is::Lease(5))), true),
        (compare("b", Equal, Lease, None), true),
        (compare("a", Greater, Value, is("1")), true),
        (compare("a", Greater, Value, None), true),
        // The numbers of a missing key compare as zero, but a missing key has no value to compare.
        (compare("x", Equal, Version, Some(Is::Version(0))), true),
        (compare("x", Equal, Create, None), true),
        (compare("x", Less, Mod, Some(Is::ModRevision(1))), true),
        (compare("x", Equal, Value, is("")), false),
        (compare("x", NotEqual, Value, is("1")), false),
        // An operand whose kind does not match the target counts as missing.
        (compare("a", Equal, Version, Some(Is::ModRevision(2))), false),
        (compare("a", Greater, Version, Some(Is::Lease(9))), true),
        (pb::Compare { result: 9, ..compare("a", Equal, Version, None) }, true),
        (pb::Compare { target: 9, ..compare("a", Equal, Version, None) }, true),
        (pb::Compare { target: 9, ..compare("a", Less, Version, None) }, false),
    ];
    let all = |result, version| pb::Compare {
        range_end: Bytes::from_static(b"\0"),
        ..compare("a", result, Version, Some(Is::Version(version)))
    };
    cases.extend([(all(Greater, 0), true), (all(Greater, 1), false), (all(Less, 3), true)]);
    for (compare, expected) in cases {
        let request =
            pb::TxnRequest { compare: vec![compare.clone()], ..pb::TxnRequest::default() };
        let Ok(Response::Txn(response)) = log.outcome(Command::Txn(request.clone())) else {
            panic!()
        };
        assert_eq!(response.succeeded, expected, "{compare:?}");
        log.state.publish();
        let read = read_txn(&log.state.published().view(), &request).unwrap().0.unwrap();
        assert_eq!(read.succeeded, expected, "{compare:?} from a view");
    }
    assert_eq!(log.revision(), 4);
}

#[test]
fn nested_conditions_are_evaluated_before_any_write() {
    let mut log = Log::new();
    let absent = compare("a", CompareResult::Equal, CompareTarget::Version, None);
    let inner = pb::TxnRequest {
        compare: vec![absent],
        success: ops([Op::RequestPut(put("b", "then"))]),
        failure: ops([Op::RequestPut(put("b", "else"))]),
    };
    let response =
        txn(&mut log, vec![Op::RequestPut(put("a", "")), Op::RequestTxn(inner)]).unwrap();
    let Some(OpResponse::ResponseTxn(inner)) = &response.responses[1].response else { panic!() };
    assert!(inner.succeeded);
    assert_eq!(inner.header, Some(pb::ResponseHeader::default()));
    assert_eq!(log.revision(), 2);
}

#[test]
fn operations_see_earlier_writes_of_the_same_transaction() {
    let mut log = Log::new();
    log.put("a", "1");
    let at = |revision| Op::RequestRange(pb::RangeRequest { revision, ..range("a", "\0") });
    let delete_a = pb::DeleteRangeRequest { prev_kv: true, ..delete("a", "") };
    let response = txn(
        &mut log,
        vec![
            at(0),
            Op::RequestDeleteRange(delete("x", "")),
            Op::RequestPut(put("b", "2")),
            at(0),
            at(2),
            at(-1),
            Op::RequestDeleteRange(delete_a),
            at(0),
        ],
    )
    .unwrap();
    let seen: Vec<String> = response
        .responses
        .iter()
        .map(|response| match response.response.as_ref().unwrap() {
            OpResponse::ResponseRange(range) => {
                let keys: Vec<_> = range
                    .kvs
                    .iter()
                    .map(|kv| String::from_utf8_lossy(kv.key()).into_owned())
                    .collect();
                format!("{} @{}", keys.join(","), revision_of(range.header.as_ref()))
            }
            OpResponse::ResponsePut(put) => format!("put @{}", revision_of(put.header.as_ref())),
            OpResponse::ResponseDeleteRange(delete) => {
                format!("deleted {} @{}", delete.deleted, revision_of(delete.header.as_ref()))
            }
            OpResponse::ResponseTxn(_) => unreachable!("no response was requested"),
        })
        .collect();
    assert_eq!(
        seen,
        ["a @2", "deleted 0 @2", "put @3", "a,b @3", "a @3", "a,b @3", "deleted 1 @3", "b @3"]
    );
    assert_eq!(revision_of(response.header.as_ref()), 3);
    let subs: Vec<_> =
        log.state.unpublished.last().unwrap().events.iter().map(|c| c.kind).collect();
    assert_eq!(subs.len(), 2);
}

#[test]
fn a_transaction_with_a_refused_operation_changes_nothing() {
    let mut log = Log::new();
    log.put("a", "1");
    log.put("a", "2");
    log.outcome(Command::Compaction(pb::CompactionRequest { revision: 3, physical: false }))
        .unwrap();
    let first = || Op::RequestPut(put("new", ""));
    let at = |revision| Op::RequestRange(pb::RangeRequest { revision, ..range("a", "") });
    let keep = |key| Op::RequestPut(pb::PutRequest { ignore_value: true, ..put(key, "") });
    let leased = Op::RequestPut(pb::PutRequest { lease: 7, ..put("b", "") });
    for (operation, refusal) in [
        (at(9), Refusal::FutureRevision),
        (at(2), Refusal::Compacted),
        (at(-1), Refusal::Compacted),
        (keep("x"), Refusal::KeyNotFound),
        (leased, LeaseRefusal::NotFound.into()),
    ] {
        assert_eq!(txn(&mut log, vec![first(), operation.clone()]), Err(refusal), "{operation:?}");
        let inner = pb::TxnRequest { success: ops([operation]), ..pb::TxnRequest::default() };
        let nested = txn(&mut log, vec![first(), Op::RequestTxn(inner)]);
        assert_eq!(nested, Err(refusal));
    }
    // If a transaction deletes a key, a later put in the same transaction cannot keep the key's value
    // or lease.
    let delete_all = || Op::RequestDeleteRange(delete("a", "\0"));
    assert_eq!(txn(&mut log, vec![delete_all(), keep("a")]), Err(Refusal::KeyNotFound));
    // As in etcd, errors that occur in the state before the transaction are reported first.
    let leased = Op::RequestPut(pb::PutRequest { lease: 7, ..put("b", "") });
    for later in [leased.clone(), Op::RequestTxn(txn_of([leased]))] {
        let refused = txn(&mut log, vec![delete_all(), keep("a"), later]);
        assert_eq!(refused, Err(LeaseRefusal::NotFound.into()));
    }
    let refused = txn(&mut log, vec![delete_all(), keep("a"), at(9)]);
    assert_eq!(refused, Err(Refusal::FutureRevision));
    assert_eq!(log.revision(), 3);
    txn(&mut log, vec![delete_all(), Op::RequestPut(put("a", "")), keep("a")]).unwrap();
    assert_eq!(log.revision(), 4);
}

#[test]
fn a_refusal_is_found_in_the_published_state_before_a_transaction_is_proposed() {
    let mut log = Log::new();
    log.put("a", "1");
    log.state.publish();
    let check = |log: &Log, operations: Vec<Op>| {
        let command = Command::Txn(txn_of(operations));
        let request = Request { id: 1, username: String::new(), auth_revision: 0, command };
        log.state.published().check(&request).unwrap()
    };
    let first = || Op::RequestPut(put("new", ""));
    let at = |revision| Op::RequestRange(pb::RangeRequest { revision, ..range("a", "") });
    let keep = |key| Op::RequestPut(pb::PutRequest { ignore_value: true, ..put(key, "") });
    let leased = || Op::RequestPut(pb::PutRequest { lease: 7, ..put("b", "") });
    assert_eq!(check(&log, vec![first(), at(2)]), Ok(()));
    assert_eq!(check(&log, vec![first(), at(9)]), Err(Refusal::FutureRevision));
    assert_eq!(check(&log, vec![first(), leased()]), Err(LeaseRefusal::NotFound.into()));
    let deleted = Op::RequestDeleteRange(delete("a", ""));
    assert_eq!(check(&log, vec![deleted, keep("a")]), Err(Refusal::KeyNotFound));
    // Guards come first.
    let alarm = |action: i32| {
        let request = pb::AlarmRequest { action, member_id: 7, alarm: 1 };
        Command::Alarm(AlarmCommand { request, cause: crate::alarm::Cause::Other })
    };
    log.outcome(alarm(1)).unwrap();
    log.state.publish();
    assert_eq!(check(&log, vec![first(), at(9)]), Err(Refusal::NoSpace));
    assert_eq!(check(&log, vec![at(9)]), Err(Refusal::FutureRevision));
}

/// etcd 3.5 proposes and applies such transactions.
#[test]
fn a_transaction_with_an_unknown_sort_order_or_target_is_applied() {
    let mut log = Log::new();
    for odd in [
        pb::RangeRequest { sort_order: 9, ..range("a", "") },
        pb::RangeRequest { sort_target: 9, ..range("a", "") },
    ] {
        let before = log.revision();
        txn(&mut log, vec![Op::RequestPut(put("a", "")), Op::RequestRange(odd)]).unwrap();
        assert_eq!(log.revision(), before + 1);
    }
}

#[test]
fn a_transaction_makes_the_same_changes_with_and_without_a_reply() {
    let mut logs = [Log::new(), Log::new()];
    let prev = pb::PutRequest { prev_kv: true, ..put("a", "2") };
    let request = pb::TxnRequest {
        success: ops([
            Op::RequestRange(range("a", "\0")),
            Op::RequestPut(prev),
            Op::RequestDeleteRange(pb::DeleteRangeRequest { prev_kv: true, ..delete("b", "\0") }),
        ]),
        ..pb::TxnRequest::default()
    };
    for (position, log) in logs.iter_mut().enumerate() {
        log.put("a", "1");
        log.put("b", "1");
        let meta = EntryMeta { reply_wanted: position == 0, ..log.meta() };
        let command = Command::Txn(request.clone());
        let request = Request { id: 1, username: String::new(), auth_revision: 0, command };
        assert!(log.state.apply(meta, request).unwrap().outcome.unwrap().is_ok());
    }
    let [with, without] = logs;
    assert_eq!(with.keys(), without.keys());
    let changes = |log: &Log| log.state.unpublished.clone();
    assert_eq!(changes(&with), changes(&without));
}

#[test]
fn a_transaction_at_the_depth_limit_is_checked_and_executed() {
    let check = || {
        let mut log = Log::new();
        let mut operation = Op::RequestPut(put("k", "v"));
        for _ in 1..deep_txn::DEPTH_MAX {
            let request = pb::TxnRequest { success: ops([operation]), ..Default::default() };
            operation = Op::RequestTxn(request);
        }
        let request = pb::TxnRequest { success: ops([operation]), ..Default::default() };
        assert_eq!(check_txn(&request, deep_txn::DEPTH_MAX), Ok(()));
        assert_eq!(
            check_txn(&request, deep_txn::DEPTH_MAX - 1),
            Err(RequestRefusal::TooManyOperations)
        );
        let Ok(Response::Txn(mut response)) = log.outcome(Command::Txn(request)) else {
            panic!("the transaction was refused")
        };
        let mut depth = 1;
        while let Some(OpResponse::ResponseTxn(inner)) =
            response.responses.pop().and_then(|operation| operation.response)
        {
            response = inner;
            depth += 1;
        }
        assert_eq!(depth, deep_txn::DEPTH_MAX);
        assert_eq!(log.state.store().current_revision(), 2);
    };
    let thread = std::thread::Builder::new().stack_size(deep_txn::STACK_BYTES);
    thread.spawn(check).unwrap().join().unwrap();
}
