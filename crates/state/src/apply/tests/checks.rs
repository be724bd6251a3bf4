//! Tables of requests that are refused in every state, because of their structure or because of
//! overlapping writes. Permission checks of the keys of a lease.

use quorate_api::authpb;
use quorate_api::etcdserverpb::request_op::Request as Op;

use super::cost::leased_keys;
use super::*;
use crate::auth::{Access, Caller, NAME_BYTES_MAX};
use RequestRefusal::{
    DuplicateKey, EmptyKey, EmptyOperation, InvalidSortOption, LeaseProvided, TooManyOperations,
    ValueProvided,
};

fn ops(operations: impl IntoIterator<Item = Op>) -> Vec<pb::RequestOp> {
    operations.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect()
}

fn puts(keys: &[&str]) -> Vec<Op> {
    keys.iter().map(|key| Op::RequestPut(put(key, ""))).collect()
}

fn del(key: &str, range_end: &str) -> Op {
    Op::RequestDeleteRange(delete(key, range_end))
}

fn txn(success: Vec<Op>, failure: Vec<Op>) -> Op {
    let (success, failure) = (ops(success), ops(failure));
    Op::RequestTxn(pb::TxnRequest { compare: vec![], success, failure })
}

fn check_ops(operations: Vec<Op>) -> Result<(), RequestRefusal> {
    let request = pb::TxnRequest { success: ops(operations), ..pb::TxnRequest::default() };
    check_txn(&request, 128)
}

#[test]
fn only_an_administrators_older_token_may_read_the_keys_of_a_lease() {
    let log = leased_keys(2);
    let auth = log.state.auth.view();
    let keys = [Bytes::from_static(b"p"), Bytes::from_static(b"pz")];
    let check = |name: &str, revision, keys: &[Bytes]| {
        let (caller, leases) = (Caller { name, revision }, &log.state.published.leases);
        let permission = Permission { auth, caller, leases };
        assert_eq!(
            permission.check_lease(Access::Read, LeaseId(5)),
            permission.check_lease_keys(keys),
            "{name}"
        );
        permission.check_lease_keys(keys)
    };
    let now = auth.revision();
    assert_eq!(check("root", now, &keys), Ok(()));
    assert_eq!(check("root", now - 1, &keys), Ok(()));
    assert_eq!(check("writer", now, &keys), Ok(()));
    assert_eq!(check("writer", now - 1, &keys), Err(AuthRefusal::OldRevision));
    let writer = Caller { name: "writer", revision: now };
    let permission = Permission { auth, caller: writer, leases: &log.state.published.leases };
    let denied = permission.check_lease_keys(&[Bytes::from_static(b"q")]);
    assert_eq!(denied, Err(AuthRefusal::PermissionDenied));
}

#[test]
fn auth_commands_that_etcd_would_not_refuse_are_refused_before_they_are_proposed() {
    let published = Log::new().state.published();
    let check = |command: AuthCommand| {
        let command = Command::Auth(command);
        let request = Request { id: 1, username: String::new(), auth_revision: 0, command };
        published.check(&request).unwrap()
    };
    for (count, checked) in
        [(NAME_BYTES_MAX, Ok(())), (NAME_BYTES_MAX + 1, Err(AuthRefusal::NameTooLong.into()))]
    {
        let name = "n".repeat(count);
        assert_eq!(check(AuthCommand::RoleAdd(pb::AuthRoleAddRequest { name })), checked);
        let name = "n".repeat(count);
        let user = pb::AuthUserAddRequest { name, ..pb::AuthUserAddRequest::default() };
        assert_eq!(check(AuthCommand::UserAdd(user)), checked);
    }
    let grant = |key, range_end| {
        let perm =
            Some(authpb::Permission { perm_type: 0, key: text(key), range_end: text(range_end) });
        let name = "role".to_owned();
        check(AuthCommand::RoleGrantPermission(pb::AuthRoleGrantPermissionRequest { name, perm }))
    };
    assert_eq!(grant("a", "b"), Ok(()));
    assert_eq!(grant("b", "a"), Err(AuthRefusal::InvalidManagement.into()));
}

#[test]
fn invalid_single_requests_are_refused() {
    assert_eq!(check_range(&range("", "x")), Err(EmptyKey));
    assert_eq!(check_range(&range("a", "")), Ok(()));
    let odd = pb::RangeRequest { sort_order: 3, ..range("a", "") };
    assert_eq!(check_range(&odd), Err(InvalidSortOption));
    let odd = pb::RangeRequest { sort_target: -1, ..range("a", "") };
    assert_eq!(check_range(&odd), Err(InvalidSortOption));
    assert_eq!(check_delete_range(&delete("", "")), Err(EmptyKey));
    let ignore_value = pb::PutRequest { ignore_value: true, ..put("a", "v") };
    assert_eq!(check_put(&ignore_value), Err(ValueProvided));
    assert_eq!(check_put(&pb::PutRequest { key: Bytes::new(), ..ignore_value }), Err(EmptyKey));
    let ignore_lease = pb::PutRequest { ignore_lease: true, lease: 1, ..put("a", "v") };
    assert_eq!(check_put(&ignore_lease), Err(LeaseProvided));
}

#[test]
fn invalid_transaction_structures_are_refused() {
    let many = |count| ops(puts(&vec!["k"; count]));
    let txn_of = |compare_count, success, failure| pb::TxnRequest {
        compare: vec![pb::Compare { key: text("c"), ..pb::Compare::default() }; compare_count],
        success,
        failure,
    };
    for (request, expected) in [
        (txn_of(3, vec![], vec![]), Ok(())),
        (txn_of(4, vec![], vec![]), Err(TooManyOperations)),
        (txn_of(0, many(4), vec![]), Err(TooManyOperations)),
        (txn_of(0, vec![], many(4)), Err(TooManyOperations)),
        // The outer transaction leaves room for two operations in the inner transaction.
        (txn_of(0, ops([txn(puts(&["a", "b"]), vec![])]), vec![]), Ok(())),
        (txn_of(0, ops([txn(puts(&["a", "b", "c"]), vec![])]), vec![]), Err(TooManyOperations)),
        (txn_of(0, ops([txn(vec![], puts(&["a", "b", "c"]))]), vec![]), Err(TooManyOperations)),
        (txn_of(0, vec![pb::RequestOp { request: None }], vec![]), Err(EmptyOperation)),
        (txn_of(0, vec![], ops(puts(&[""]))), Err(EmptyKey)),
        (txn_of(0, ops([Op::RequestRange(range("", ""))]), vec![]), Err(EmptyKey)),
        (txn_of(0, ops([txn(vec![del("", "")], vec![])]), vec![]), Err(EmptyKey)),
    ] {
        assert_eq!(check_txn(&request, 3), expected, "{request:?}");
    }
    let no_key = pb::TxnRequest {
        compare: vec![pb::Compare::default()],
        // The empty operation is checked after the condition, so the condition's missing key is
        // reported.
        success: vec![pb::RequestOp { request: None }],
        failure: vec![],
    };
    assert_eq!(check_txn(&no_key, 3), Err(EmptyKey));
}

#[test]
fn the_number_of_operations_in_nested_transactions_is_limited() {
    let lists = |count: usize, length: usize| -> Vec<Op> {
        (0..count)
            .map(|list| {
                txn(
                    (0..length)
                        .map(|at| puts(&[&format!("{list}/{at}")]))
                        .collect::<Vec<_>>()
                        .concat(),
                    vec![],
                )
            })
            .collect()
    };
    let request = |count, length| pb::TxnRequest {
        success: ops(lists(count, length)),
        ..pb::TxnRequest::default()
    };
    assert_eq!(check_structure(&request(128, 127), 256), Ok(OPERATIONS_MAX));
    assert_eq!(check_structure(&request(128, 128), 256), Err(TooManyOperations));
    assert_eq!(check_amount(&request(128, 127), 256), Ok(()));
    assert_eq!(check_amount(&request(128, 128), 256), Err(TooManyOperations));
    // A single list may be as long as the configured limit allows.
    let list = pb::TxnRequest { success: ops(puts(&vec!["k"; 20_000])), ..Default::default() };
    assert_eq!(check_structure(&list, 20_000), Ok(20_000));
    assert_eq!(check_structure(&list, 19_999), Err(TooManyOperations));
}

#[test]
fn conflicting_writes_in_a_transaction_are_refused_as_in_etcd() {
    let range_op = || Op::RequestRange(range("a", "\0"));
    let cases: Vec<(&str, Vec<Op>, bool)> = vec![
        ("two keys", puts(&["a", "b"]), true),
        ("one key twice", puts(&["a", "a"]), false),
        ("put and delete", [puts(&["a"]), vec![del("a", "")]].concat(), false),
        ("delete and put", [vec![del("a", "")], puts(&["a"])].concat(), false),
        ("put in deleted range", [puts(&["b"]), vec![del("a", "c")]].concat(), false),
        ("put at the range's end", [puts(&["c"]), vec![del("a", "c")]].concat(), true),
        (
            "put, and delete of all keys at or after a key",
            [puts(&["b"]), vec![del("a", "\0")]].concat(),
            true,
        ),
        ("inverted range", [puts(&["b"]), vec![del("c", "a")]].concat(), true),
        ("two deletes", vec![del("a", ""), del("a", "c"), del("b", "\0")], true),
        ("reads of a written key", [puts(&["b"]), vec![range_op(), range_op()]].concat(), true),
        ("put outside and inside", [puts(&["a"]), vec![txn(puts(&["a"]), vec![])]].concat(), false),
        ("same key in both branches", vec![txn(puts(&["a"]), puts(&["a"]))], true),
        ("same key twice in a nested branch", vec![txn(puts(&["a", "a"]), vec![])], false),
        (
            "puts in sibling transactions",
            vec![txn(puts(&["a"]), vec![]), txn(puts(&["a"]), vec![])],
            false,
        ),
        (
            "puts in different branches of siblings",
            vec![txn(puts(&["a"]), vec![]), txn(vec![], puts(&["a"]))],
            false,
        ),
        ("put inside, delete outside", vec![txn(puts(&["a"]), vec![]), del("a", "")], false),
        (
            "delete inside, put outside",
            [vec![txn(vec![del("a", "")], vec![])], puts(&["a"])].concat(),
            false,
        ),
        (
            "delete in else, put outside",
            [vec![txn(vec![], vec![del("a", "c")])], puts(&["b"])].concat(),
            false,
        ),
        (
            "delete, then put in siblings",
            vec![txn(vec![del("a", "")], vec![]), txn(puts(&["a"]), vec![])],
            false,
        ),
        (
            "put, then delete in siblings",
            vec![txn(puts(&["a"]), vec![]), txn(vec![del("a", "")], vec![])],
            true,
        ),
        (
            "two levels down",
            [puts(&["a"]), vec![txn(vec![txn(vec![], puts(&["a"]))], vec![])]].concat(),
            false,
        ),
        ("put in then, delete in else", vec![txn(puts(&["a"]), vec![del("a", "")])], true),
    ];
    for (name, operations, allowed) in cases {
        let expected = if allowed { Ok(()) } else { Err(DuplicateKey) };
        assert_eq!(check_ops(operations.clone()), expected, "{name}");
        let in_failure = pb::TxnRequest { failure: ops(operations), ..pb::TxnRequest::default() };
        assert_eq!(check_txn(&in_failure, 128), expected, "{name}, in the failure branch");
    }
}

#[test]
fn both_branches_of_a_transaction_may_write_the_same_key() {
    let request = pb::TxnRequest {
        success: ops(puts(&["a"])),
        failure: ops([del("a", ""), del("b", "")]),
        ..pb::TxnRequest::default()
    };
    assert_eq!(check_txn(&request, 128), Ok(()));
}

#[test]
fn read_only_and_serializable_transactions_are_recognised() {
    let serializable =
        |serializable| Op::RequestRange(pb::RangeRequest { serializable, ..range("a", "") });
    for (operations, read_only, local) in [
        (vec![], true, true),
        (vec![serializable(true)], true, true),
        (vec![serializable(true), serializable(false)], true, false),
        (puts(&["a"]), false, false),
        (vec![del("a", "")], false, false),
        (vec![txn(vec![serializable(true)], vec![])], false, false),
    ] {
        for in_success in [true, false] {
            let (mut success, mut failure) = (ops(operations.clone()), vec![]);
            if !in_success {
                std::mem::swap(&mut success, &mut failure);
            }
            let request = pb::TxnRequest { compare: vec![], success, failure };
            assert_eq!(is_read_only(&request), read_only, "{operations:?}");
            assert_eq!(is_serializable(&request), local, "{operations:?}");
            let with_condition =
                pb::TxnRequest { compare: vec![pb::Compare::default()], ..request };
            assert_eq!(
                is_serializable(&with_condition),
                local && !operations.is_empty(),
                "a condition and {operations:?}"
            );
        }
    }
}
