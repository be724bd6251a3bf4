//! Txn: conditions, branches, nesting, the data that each part sees, and refusal before any write.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_protobuf::{Fields, Value};
use quorate_tests::{
    Client, Kind, Options, Server, Watch, bytes, compare, deep_put, delete, from_key, get_op, key,
    on_both_servers, on_quorate, op, put, put_leased, put_op, refused, txn, txn_when, watch_prefix,
    write_op,
};
use tonic::Code;

use super::auth::{NOBODY, guard, options};

on_both_servers! {
    the_condition_selects_the_executed_branch,
    each_comparison_and_target_is_evaluated,
    absent_keys_compare_as_zero_and_have_no_value,
    a_range_comparison_must_hold_for_every_key,
    a_mismatched_operand_counts_as_zero,
    unknown_comparison_numbers_are_evaluated_as_in_etcd,
    later_operations_see_the_effects_of_earlier_operations,
    responses_contain_the_revision_of_their_operation,
    a_transaction_of_reads_does_not_change_the_revision,
    nested_transactions_execute_at_one_revision,
    nested_conditions_see_the_store_as_it_was_before_the_transaction,
    transactions_nested_too_deeply_are_refused,
    reads_in_a_transaction_at_future_or_compacted_revisions_are_refused,
    malformed_transactions_are_refused,
    transactions_with_too_many_operations_are_refused,
    overlapping_writes_are_refused,
    overlapping_deletions_and_exclusive_branches_are_accepted,
    a_failing_operation_aborts_the_whole_transaction,
    errors_found_before_execution_are_returned_first,
    concurrent_increments_are_not_lost,
    readers_see_whole_transactions_in_order,
}

on_quorate! {
    a_put_that_keeps_the_value_of_a_deleted_key_is_refused,
    the_total_operations_of_nested_transactions_are_bounded,
    a_transaction_without_credentials_is_refused_before_its_checks,
}

fn read_all(answer: &pb::ResponseOp) -> Vec<String> {
    match answer.response.as_ref().unwrap() {
        Response::ResponseRange(answer) => answer
            .kvs
            .iter()
            .map(|record| {
                let fields = record.fields();
                String::from_utf8_lossy(&[fields.key, b"=", fields.value].concat()).into_owned()
            })
            .collect(),
        other => panic!("this is not the response to a range: {other:?}"),
    }
}

fn scan() -> pb::RequestOp {
    op(Request::RequestRange(from_key("\0")))
}

fn nested(request: pb::TxnRequest) -> pb::RequestOp {
    op(Request::RequestTxn(request))
}

fn nested_answer(answer: &pb::ResponseOp) -> &pb::TxnResponse {
    match answer.response.as_ref().unwrap() {
        Response::ResponseTxn(answer) => answer,
        other => panic!("this is not the response to a transaction: {other:?}"),
    }
}

async fn holds(client: &Client, condition: pb::Compare) -> bool {
    client.txn(txn_when(vec![condition], vec![], vec![])).await.unwrap().succeeded
}

async fn the_condition_selects_the_executed_branch(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let claim = || {
        let absent = compare("lock", CompareResult::Equal, TargetUnion::CreateRevision(0));
        txn_when(vec![absent], vec![put_op("lock", "mine")], vec![get_op("lock")])
    };
    let first = client.txn(claim()).await.unwrap();
    assert!(first.succeeded);
    assert!(matches!(first.responses[0].response, Some(Response::ResponsePut(_))));
    assert_eq!(first.header.unwrap().revision, 2);
    let second = client.txn(claim()).await.unwrap();
    assert!(!second.succeeded);
    assert_eq!(read_all(&second.responses[0]), ["lock=mine"]);
    assert_eq!(second.header.unwrap().revision, 2);
    let empty = client.txn(pb::TxnRequest::default()).await.unwrap();
    assert!(empty.succeeded && empty.responses.is_empty());
}

async fn each_comparison_and_target_is_evaluated(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 600).await;
    client.write("other", "").await;
    client.write("k", "m").await;
    client.put(put_leased("k", "m", 5)).await.unwrap();
    // The key was created at revision 3 and modified at 4, and has version 2, value m and lease 5.
    type Operand = fn(i64) -> TargetUnion;
    let value: Operand =
        |at| TargetUnion::Value(bytes([u8::try_from(i64::from(b'm') + at).unwrap()]));
    let targets: [(Operand, i64); 5] = [
        (TargetUnion::Version, 2),
        (TargetUnion::CreateRevision, 3),
        (TargetUnion::ModRevision, 4),
        (TargetUnion::Lease, 5),
        (value, 0),
    ];
    for (operand, actual) in targets {
        for (result, of_lower, of_equal, of_higher) in [
            (CompareResult::Equal, false, true, false),
            (CompareResult::NotEqual, true, false, true),
            (CompareResult::Greater, true, false, false),
            (CompareResult::Less, false, false, true),
        ] {
            for (distance, expected) in [(-1, of_lower), (0, of_equal), (1, of_higher)] {
                let condition = compare("k", result, operand(actual + distance));
                let shown = format!("{condition:?}");
                assert_eq!(holds(&client, condition).await, expected, "{shown}");
            }
        }
    }
}

async fn absent_keys_compare_as_zero_and_have_no_value(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let equal = CompareResult::Equal;
    for operand in [TargetUnion::Version(0), TargetUnion::CreateRevision(0), TargetUnion::Lease(0)]
    {
        assert!(holds(&client, compare("absent", equal, operand)).await);
    }
    assert!(
        holds(&client, compare("absent", CompareResult::Less, TargetUnion::ModRevision(1))).await
    );
    // A missing key has no value, unlike a key with an empty value.
    for result in [equal, CompareResult::NotEqual, CompareResult::Greater, CompareResult::Less] {
        let condition = compare("absent", result, TargetUnion::Value(bytes("")));
        assert!(!holds(&client, condition).await, "{result:?}");
    }
}

async fn a_range_comparison_must_hold_for_every_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for name in ["a", "b", "c"] {
        client.write(name, "same").await;
    }
    client.write("d", "other").await;
    let over = |start: &str, end: &str| pb::Compare {
        range_end: bytes(end),
        ..compare(start, CompareResult::Equal, TargetUnion::Value(bytes("same")))
    };
    assert!(holds(&client, over("a", "d")).await);
    assert!(!holds(&client, over("a", "e")).await);
    assert!(!holds(&client, over("a", "\0")).await);
    assert!(!holds(&client, over("x", "z")).await);
    let newer = pb::Compare {
        range_end: bytes("\0"),
        ..compare("a", CompareResult::Less, TargetUnion::ModRevision(6))
    };
    assert!(holds(&client, newer).await);
}

async fn a_mismatched_operand_counts_as_zero(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    let mut condition = compare("k", CompareResult::Greater, TargetUnion::Value(bytes("zzz")));
    condition.target = pb::compare::CompareTarget::Version.into();
    assert!(holds(&client, condition.clone()).await, "version 1 is greater than 0");
    condition.target_union = None;
    assert!(holds(&client, condition).await);
}

async fn unknown_comparison_numbers_are_evaluated_as_in_etcd(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    let condition = compare("k", CompareResult::Equal, TargetUnion::Version(99));
    assert!(holds(&client, pb::Compare { result: 17, ..condition.clone() }).await);
    assert!(holds(&client, pb::Compare { target: 17, ..condition.clone() }).await);
    let less = CompareResult::Less.into();
    assert!(!holds(&client, pb::Compare { target: 17, result: less, ..condition }).await);
}

async fn later_operations_see_the_effects_of_earlier_operations(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "old").await;
    client.write("b", "old").await;
    let previous = pb::DeleteRangeRequest { prev_kv: true, ..delete("c", "") };
    let request = txn(vec![
        scan(),
        write_op(delete("a", "")),
        scan(),
        put_op("c", "new"),
        scan(),
        write_op(delete("b", "")),
    ]);
    let answer = client.txn(request).await.unwrap();
    assert_eq!(read_all(&answer.responses[0]), ["a=old", "b=old"]);
    assert_eq!(read_all(&answer.responses[2]), ["b=old"]);
    assert_eq!(read_all(&answer.responses[4]), ["b=old", "c=new"]);
    assert_eq!(answer.header.unwrap().revision, 4, "a transaction has one revision");
    let record = client.range(key("c")).await.unwrap().kvs[0].clone();
    assert_eq!((record.fields().create_revision, record.fields().version), (4, 1));
    let answer = client.delete_range(previous).await.unwrap();
    assert_eq!(answer.prev_kvs[0].value(), b"new");
}

async fn responses_contain_the_revision_of_their_operation(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let request = txn(vec![
        get_op("a"),
        write_op(delete("nothing", "")),
        put_op("b", "2"),
        get_op("a"),
        write_op(delete("nothing", "")),
        nested(txn(vec![get_op("a")])),
    ]);
    let answer = client.txn(request).await.unwrap();
    let revisions: Vec<_> = answer
        .responses
        .iter()
        .map(|answer| {
            let header = match answer.response.clone().unwrap() {
                Response::ResponseRange(answer) => answer.header,
                Response::ResponsePut(answer) => answer.header,
                Response::ResponseDeleteRange(answer) => answer.header,
                Response::ResponseTxn(answer) => answer.header,
            };
            let header = header.unwrap();
            assert_eq!((header.cluster_id, header.member_id, header.raft_term), (0, 0, 0));
            header.revision
        })
        .collect();
    assert_eq!(revisions, [2, 2, 3, 3, 3, 0]);
    assert_eq!(answer.header.unwrap().revision, 3);
}

async fn a_transaction_of_reads_does_not_change_the_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    client.write("a", "2").await;
    let past = op(Request::RequestRange(pb::RangeRequest { revision: 2, ..key("a") }));
    let answer = client.txn(txn(vec![get_op("a"), past])).await.unwrap();
    assert_eq!(read_all(&answer.responses[0]), ["a=2"]);
    assert_eq!(read_all(&answer.responses[1]), ["a=1"]);
    let header = answer.header.unwrap();
    assert_eq!(header.revision, 3);
    assert!(header.cluster_id != 0 && header.raft_term != 0);
    let only_nested = client.txn(txn(vec![nested(txn(vec![get_op("a")]))])).await.unwrap();
    assert_eq!(only_nested.header.unwrap().revision, 3);
}

async fn nested_transactions_execute_at_one_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_prefix("")).await;
    let exists = compare("a", CompareResult::Equal, TargetUnion::Version(1));
    let missing = compare("a", CompareResult::Equal, TargetUnion::Version(0));
    let deep = txn_when(vec![missing], vec![put_op("no", "")], vec![put_op("yes", "2")]);
    let middle = txn_when(vec![exists], vec![put_op("x", "1"), nested(deep)], vec![]);
    let request = txn(vec![put_op("w", "0"), nested(middle), put_op("z", "3")]);
    let answer = client.txn(request).await.unwrap();
    assert!(answer.succeeded);
    let middle = nested_answer(&answer.responses[1]);
    assert!(middle.succeeded);
    let deep = nested_answer(&middle.responses[1]);
    assert!(!deep.succeeded);
    assert_eq!(answer.header.unwrap().revision, 3);
    // All changes have the same revision, and their events are in the order of execution.
    let events = watch.next().await.events;
    let seen: Vec<_> = events
        .iter()
        .map(|event| {
            let fields = event.kv.as_ref().unwrap().fields();
            assert_eq!(fields.mod_revision, 3);
            String::from_utf8_lossy(fields.key).into_owned()
        })
        .collect();
    assert_eq!(seen, ["w", "x", "yes", "z"]);
}

async fn nested_conditions_see_the_store_as_it_was_before_the_transaction(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let absent = compare("a", CompareResult::Equal, TargetUnion::CreateRevision(0));
    let inner = txn_when(vec![absent], vec![get_op("a")], vec![]);
    let answer = client.txn(txn(vec![put_op("a", "1"), nested(inner)])).await.unwrap();
    let inner = nested_answer(&answer.responses[1]);
    assert!(inner.succeeded, "conditions are evaluated before the put");
    assert_eq!(read_all(&inner.responses[0]), ["a=1"], "the range is executed after the put");
}

async fn reads_in_a_transaction_at_future_or_compacted_revisions_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    client.write("a", "2").await;
    let at = |revision| {
        let read = op(Request::RequestRange(pb::RangeRequest { revision, ..key("a") }));
        txn(vec![put_op("b", "x"), put_op("a", "3"), read])
    };
    let future = "etcdserver: mvcc: required revision is a future revision";
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    refused(client.txn(at(4)).await, Code::OutOfRange, future);
    refused(client.txn(at(-2)).await, Code::OutOfRange, compacted);
    let current = client.txn(at(3)).await.unwrap();
    assert_eq!(
        read_all(&current.responses[2]),
        ["a=2"],
        "a range at a revision does not see the transaction's put"
    );
    client.compact_to(3).await;
    refused(client.txn(at(2)).await, Code::OutOfRange, compacted);
    refused(client.txn(at(-1)).await, Code::OutOfRange, compacted);
    let alone = txn(vec![op(Request::RequestRange(pb::RangeRequest { revision: 2, ..key("a") }))]);
    refused(client.txn(alone).await, Code::OutOfRange, compacted);
    assert_eq!(client.revision().await, 4, "a refusal changes nothing");
}

async fn malformed_transactions_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let invalid = Code::InvalidArgument;
    let no_key = "etcdserver: key is not provided";
    let condition = compare("", CompareResult::Equal, TargetUnion::Version(0));
    refused(client.txn(txn_when(vec![condition], vec![], vec![])).await, invalid, no_key);
    let in_failure = |failure| txn_when(vec![], vec![], vec![failure]);
    for request in [get_op(""), put_op("", "v"), write_op(delete("", ""))] {
        refused(client.txn(txn(vec![request.clone()])).await, invalid, no_key);
        refused(client.txn(in_failure(request.clone())).await, invalid, no_key);
        refused(client.txn(txn(vec![nested(txn(vec![request]))])).await, invalid, no_key);
    }
    let nothing = pb::RequestOp { request: None };
    refused(client.txn(txn(vec![nothing])).await, invalid, "etcdserver: key not found");
    let value = pb::PutRequest { ignore_value: true, ..put("a", "v") };
    let request = txn(vec![op(Request::RequestPut(value))]);
    refused(client.txn(request).await, invalid, "etcdserver: value is provided");
    let lease = pb::PutRequest { ignore_lease: true, ..put_leased("a", "v", 3) };
    let request = txn(vec![op(Request::RequestPut(lease))]);
    refused(client.txn(request).await, invalid, "etcdserver: lease is provided");
    if server.is_3_7() {
        let read = pb::RangeRequest { sort_order: 9, ..key("a") };
        let request = txn(vec![op(Request::RequestRange(read))]);
        refused(client.txn(request).await, invalid, "etcdserver: invalid sort option");
    }
    assert_eq!(client.revision().await, 1, "a refusal changes nothing");
}

/// Returns the nesting depth of the answer to a deep transaction, given its bytes.
fn depth_of_answer(mut answer: &[u8]) -> usize {
    // The tags of the list of answers and of a nested transaction's answer alternate. At each level, the last value
    // with the expected tag contains the next level.
    let mut depth = 0;
    for tag in [3, 4].into_iter().cycle() {
        let mut found = None;
        for field in Fields::new(answer) {
            if let (number, Value::Bytes(inner)) = field.unwrap()
                && number == tag
            {
                found = Some(inner);
            }
        }
        depth += usize::from(tag == 3);
        match found {
            Some(inner) => answer = inner,
            None => break,
        }
    }
    depth
}

async fn transactions_nested_too_deeply_are_refused(kind: Kind) {
    const TXN: &str = "/etcdserverpb.KV/Txn";
    let server = Server::start(kind).await;
    let client = server.client();
    let answer = client.raw(TXN, deep_put("default", 128)).await.unwrap();
    assert_eq!(depth_of_answer(&answer), 128);
    assert_eq!(client.read("default").await.unwrap(), b"v");
    let text = "etcdserver: too many operations in txn request";
    refused(client.raw(TXN, deep_put("deeper", 129)).await, Code::InvalidArgument, text);

    let mut server = Options::new(kind).flag("--max-txn-ops=100000").start().await;
    for depth in [3000, 4999] {
        let key = format!("at {depth}");
        let answer = server.client().raw(TXN, deep_put(&key, depth)).await.unwrap();
        assert_eq!(depth_of_answer(&answer), depth);
        assert_eq!(server.client().read(&key).await.unwrap(), b"v");
    }
    if server.is_3_7() {
        let refused = server.client().raw(TXN, deep_put("deepest", 5001)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Internal);
        assert!(refused.message().contains("error unmarshalling request"), "{refused}");
    }
    server.kill();
    server.start_again().await;
    assert_eq!(
        server.client().read("at 4999").await.unwrap(),
        b"v",
        "the write is replayed from the log"
    );
}

async fn transactions_with_too_many_operations_are_refused(kind: Kind) {
    let server = Options::new(kind).flag("--max-txn-ops=4").start().await;
    let client = server.client();
    let text = "etcdserver: too many operations in txn request";
    let puts = |count: usize| -> Vec<pb::RequestOp> {
        (0..count).map(|number| put_op(format!("k{number}"), "v")).collect()
    };
    let condition = compare("a", CompareResult::Equal, TargetUnion::Version(0));
    client.txn(txn(puts(4))).await.unwrap();
    refused(client.txn(txn(puts(5))).await, Code::InvalidArgument, text);
    let failure = txn_when(vec![], vec![], puts(5));
    refused(client.txn(failure).await, Code::InvalidArgument, text);
    let conditions = txn_when(vec![condition.clone(); 5], vec![], vec![]);
    refused(client.txn(conditions).await, Code::InvalidArgument, text);
    client.txn(txn_when(vec![condition; 4], puts(4), puts(4))).await.unwrap();
    // The limit for a nested transaction is the unused part of its parent's limit.
    client.txn(txn(vec![nested(txn(puts(3)))])).await.unwrap();
    refused(client.txn(txn(vec![nested(txn(puts(4)))])).await, Code::InvalidArgument, text);
    let default = Server::start(kind).await;
    default.client().txn(txn(puts(128))).await.unwrap();
    refused(default.client().txn(txn(puts(129))).await, Code::InvalidArgument, text);
}

async fn the_total_operations_of_nested_transactions_are_bounded(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // The tree has three levels. Each list fits into the unused part of its parent's limit, but with enough leaves, the
    // total slightly exceeds 16,384 operations.
    let tree = |leaves: usize| {
        let mut keys = (0..).map(|number| format!("k{number}"));
        let mut list = |count| {
            let puts = keys.by_ref().take(count).map(|key| put_op(key, ""));
            txn(puts.collect())
        };
        let mut inner = |count| {
            let lists: Vec<_> = (0..40).map(|_| nested(list(count))).collect();
            nested(txn(lists))
        };
        txn((0..48).map(|number| inner(if number < 47 { 7 } else { leaves })).collect())
    };
    let shape = |leaves: usize| 48 + 48 * 40 + 47 * 40 * 7 + 40 * leaves;
    assert!(shape(29) <= 16_384 && shape(32) > 16_384, "the tree is about as large as the bound");
    client.txn(tree(29)).await.unwrap();
    let text = "etcdserver: too many operations in txn request";
    refused(client.txn(tree(32)).await, Code::InvalidArgument, text);
}

async fn a_transaction_without_credentials_is_refused_before_its_checks(kind: Kind) {
    let server = options(kind).unguarded().start().await;
    let client = server.client();
    let root = guard(&client).await;
    let overlapping = || txn(vec![put_op("a1", "1"), put_op("a1", "2")]);
    refused(client.txn(overlapping()).await, Code::InvalidArgument, NOBODY);
    let text = "etcdserver: duplicate key given in txn request";
    refused(root.txn(overlapping()).await, Code::InvalidArgument, text);
}

async fn overlapping_writes_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    let text = "etcdserver: duplicate key given in txn request";
    let put_k = || put_op("k", "1");
    let drop_k = || write_op(delete("k", ""));
    let drop_range = || write_op(delete("a", "z"));
    let cases = [
        vec![put_k(), put_k()],
        vec![put_k(), drop_k()],
        vec![drop_k(), put_k()],
        vec![drop_range(), put_k()],
        vec![put_k(), nested(txn(vec![put_k()]))],
        vec![nested(txn(vec![put_k()])), put_k()],
        vec![nested(txn(vec![put_k()])), nested(txn(vec![put_k()]))],
        vec![drop_range(), nested(txn(vec![put_k()]))],
        vec![nested(txn(vec![put_k()])), drop_range()],
        vec![nested(txn(vec![drop_range()])), nested(txn(vec![put_k()]))],
        vec![put_k(), nested(txn(vec![drop_k()]))],
    ];
    for operations in cases {
        let shown = format!("{operations:?}");
        let both = [txn(operations.clone()), txn_when(vec![], vec![], operations)];
        for request in both {
            match client.txn(request).await {
                Err(status) => assert_eq!(status.message(), text, "{shown}"),
                Ok(_) => panic!("accepted: {shown}"),
            }
        }
    }
    assert_eq!(client.revision().await, 2, "a refusal changes nothing");
}

async fn overlapping_deletions_and_exclusive_branches_are_accepted(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let put_k = || put_op("k", "1");
    let drop_range = || write_op(delete("a", "z"));
    let never = || compare("k", CompareResult::Greater, TargetUnion::Version(1000));
    let cases = [
        // Only one of the two branches of a transaction, nested or not, is executed.
        txn_when(vec![], vec![put_k()], vec![put_k()]),
        txn(vec![nested(txn_when(vec![never()], vec![put_k()], vec![put_k()]))]),
        // Deletions may overlap.
        txn(vec![drop_range(), drop_range(), write_op(delete("k", ""))]),
        // A nested transaction may delete a key that an earlier nested transaction wrote.
        txn(vec![nested(txn(vec![put_k()])), nested(txn(vec![drop_range()]))]),
        // As in etcd, a transaction may put a key that it also deletes with an open-ended range.
        txn(vec![write_op(delete("a", "\0")), put_k()]),
        // It may also put a key at the start of an inverted range that it deletes.
        txn(vec![write_op(delete("z", "a")), put_k()]),
        // Reads never conflict.
        txn(vec![scan(), put_k(), scan()]),
    ];
    for request in cases {
        let shown = format!("{request:?}");
        assert!(client.txn(request).await.is_ok(), "{shown}");
    }
    assert_eq!(client.read("k").await.unwrap(), b"1");
}

async fn a_failing_operation_aborts_the_whole_transaction(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let unknown_lease = op(Request::RequestPut(put_leased("b", "v", 404)));
    let request = txn(vec![put_op("a", "2"), unknown_lease.clone()]);
    let text = "etcdserver: requested lease not found";
    refused(client.txn(request).await, Code::NotFound, text);
    let request = txn(vec![put_op("a", "2"), nested(txn(vec![unknown_lease]))]);
    refused(client.txn(request).await, Code::NotFound, text);
    let keep = pb::PutRequest { ignore_value: true, ..put("absent", "") };
    let request = txn(vec![put_op("a", "2"), op(Request::RequestPut(keep))]);
    refused(client.txn(request).await, Code::InvalidArgument, "etcdserver: key not found");
    assert_eq!(client.read("a").await.unwrap(), b"1");
    assert_eq!(client.revision().await, 2);
}

async fn errors_found_before_execution_are_returned_first(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    // The second operation would fail, but only after the first operation has deleted the key. The third operation
    // would always fail, so its error is returned.
    let keep = pb::PutRequest { ignore_value: true, ..put("k", "") };
    let request = txn(vec![
        write_op(delete("a", "\0")),
        op(Request::RequestPut(keep)),
        op(Request::RequestPut(put_leased("b", "v", 404))),
    ]);
    let text = "etcdserver: requested lease not found";
    refused(client.txn(request).await, Code::NotFound, text);
    assert_eq!(client.read("k").await.unwrap(), b"v");
}

async fn a_put_that_keeps_the_value_of_a_deleted_key_is_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    // etcd accepts this request and then crashes. Quorate refuses it.
    let keep = pb::PutRequest { ignore_value: true, ..put("k", "") };
    let request = txn(vec![write_op(delete("a", "\0")), op(Request::RequestPut(keep))]);
    refused(client.txn(request).await, Code::InvalidArgument, "etcdserver: key not found");
    assert_eq!(client.read("k").await.unwrap(), b"v");
}

async fn concurrent_increments_are_not_lost(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().write("counter", "0").await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let client = server.client();
        tasks.spawn(async move {
            let mut done = 0;
            while done < 20 {
                let record = client.range(key("counter")).await.unwrap().kvs[0].clone();
                let count: u64 = std::str::from_utf8(record.value()).unwrap().parse().unwrap();
                let seen = TargetUnion::ModRevision(record.fields().mod_revision);
                let unchanged = compare("counter", CompareResult::Equal, seen);
                let next = put_op("counter", (count + 1).to_string());
                let request = txn_when(vec![unchanged], vec![next], vec![]);
                done += u64::from(client.txn(request).await.unwrap().succeeded);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(server.client().read("counter").await.unwrap(), b"200");
}

async fn readers_see_whole_transactions_in_order(kind: Kind) {
    let server = Server::start(kind).await;
    let writer = server.client();
    let last = 300;
    let writing = tokio::spawn(async move {
        for number in 1..=last {
            let value = number.to_string();
            let puts = ["a", "b", "c"].map(|name| put_op(format!("t/{name}"), &value));
            writer.txn(txn(puts.to_vec())).await.unwrap();
            // Every client sees acknowledged writes.
            let seen = writer.range(key("t/b")).await.unwrap();
            assert_eq!(seen.kvs[0].value(), value.as_bytes());
        }
    });
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..6 {
        let client = server.client();
        readers.spawn(async move {
            let mut newest = 0;
            while newest < last {
                let serializable = reader % 2 == 0;
                let request = pb::RangeRequest { serializable, ..quorate_tests::prefix("t/") };
                let answer = client.range(request).await.unwrap();
                let values: Vec<i64> = answer
                    .kvs
                    .iter()
                    .map(|record| std::str::from_utf8(record.value()).unwrap().parse().unwrap())
                    .collect();
                let [a, b, c] = values[..] else {
                    assert!(values.is_empty(), "half a transaction: {values:?}");
                    continue;
                };
                assert!(a == b && b == c, "half a transaction: {values:?}");
                assert!(a >= newest, "value {a} was read after value {newest}");
                let revision = answer.header.unwrap().revision;
                assert!(answer.kvs[0].fields().mod_revision <= revision);
                newest = a;
            }
        });
    }
    while let Some(ended) = readers.join_next().await {
        ended.unwrap();
    }
    writing.await.unwrap();
}
