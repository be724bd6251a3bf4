//! Tests that the number of steps to validate client input is proportional to the size of the input, up to a
//! logarithmic factor.
//!
//! Steps are counted (`steps`) rather than timed, because the count is the same in every run and on
//! every machine.

use quorate_api::authpb;
use quorate_api::deep_txn::STACK_BYTES;
use quorate_api::etcdserverpb::request_op::Request as Op;

use super::*;
use crate::auth::{Access, Caller};
use crate::steps;
use crate::units::LeaseId;

/// The size of the larger input, as a multiple of the size of the smaller input.
const TIMES: usize = 4;

/// Asserts that an input four times as large takes about four times as many steps, not sixteen
/// times as many.
fn is_near_linear(size: usize, work: impl Fn(usize) -> Box<dyn FnOnce()> + Send + Sync) {
    let run = || {
        let small = steps::of(work(size));
        let large = steps::of(work(TIMES * size));
        assert!(
            small >= size as u64,
            "the check takes at least one step for each item, but took {small} steps for {size} items"
        );
        let times = (large as f64) / (small as f64);
        assert!(
            times < 1.5 * TIMES as f64,
            "the cost is not near-linear: {small} steps for {size} items, {large} steps for {TIMES} times as many"
        );
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        if let Err(panic) = thread.spawn_scoped(scope, run).unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ops(operations: impl IntoIterator<Item = Op>) -> Vec<pb::RequestOp> {
    operations.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect()
}

fn txn_of(success: Vec<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest { success, ..pb::TxnRequest::default() }
}

fn key_of(prefix: char, number: usize) -> String {
    format!("{prefix}{number:08}")
}

#[test]
fn overlap_checks_of_puts_and_deletions_have_near_linear_cost() {
    is_near_linear(400, |size| {
        let deletes = (0..size)
            .map(|at| Op::RequestDeleteRange(delete(&key_of('d', at), &key_of('d', at + 1))));
        let puts = (0..size).map(|at| Op::RequestPut(put(&key_of('p', at), "")));
        let request = txn_of(ops(deletes.chain(puts)));
        Box::new(move || assert_eq!(check_txn(&request, usize::MAX), Ok(())))
    });
}

#[test]
fn overlap_checks_of_nested_transactions_have_near_linear_cost() {
    is_near_linear(200, |size| {
        let mut inner = ops((0..8 * size).map(|at| Op::RequestPut(put(&key_of('p', at), ""))));
        for at in 0..size {
            let removed = Op::RequestDeleteRange(delete(&key_of('d', at), ""));
            inner = ops([Op::RequestTxn(txn_of(inner)), removed]);
        }
        let request = txn_of(inner);
        Box::new(move || assert_eq!(check_txn(&request, usize::MAX), Ok(())))
    });
}

#[test]
fn checks_of_puts_with_ignore_value_have_near_linear_cost() {
    is_near_linear(400, |size| {
        let mut log = Log::new();
        for at in 0..size {
            log.put(&key_of('p', at), "");
        }
        let deletes = (0..size).map(|at| Op::RequestDeleteRange(delete(&key_of('d', at), "")));
        let puts = (0..size).map(|at| {
            let put = pb::PutRequest { ignore_value: true, ..put(&key_of('p', at), "") };
            Op::RequestPut(put)
        });
        let request = txn_of(ops(deletes.chain(puts)));
        Box::new(move || assert!(log.outcome(Command::Txn(request)).is_ok()))
    });
}

/// Returns a log with a lease of `size` keys, and with a user that may write these keys but is not
/// an administrator.
pub(super) fn leased_keys(size: usize) -> Log {
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 600 })).unwrap();
    for at in 0..size {
        let put = pb::PutRequest { lease: 5, ..put(&key_of('p', at), "") };
        log.outcome(Command::Put(put)).unwrap();
    }
    let user = |name: &str| pb::AuthUserAddRequest {
        name: name.to_owned(),
        hashed_password: "aGFzaA==".to_owned(),
        ..pb::AuthUserAddRequest::default()
    };
    let keys = authpb::Permission { perm_type: 2, key: text("p"), range_end: text("q") };
    let (auth, batch) = (&mut log.state.auth, &mut log.state.batch);
    auth.add_user(&user("root"), batch).unwrap().unwrap();
    auth.grant_role("root", "root", batch).unwrap();
    auth.add_user(&user("writer"), batch).unwrap().unwrap();
    auth.add_role("app", batch).unwrap();
    auth.grant_permission("app", Some(&keys), batch).unwrap();
    auth.grant_role("writer", "app", batch).unwrap();
    auth.enable(batch).unwrap();
    log
}

#[test]
fn permission_checks_for_a_lease_with_many_keys_have_near_linear_cost() {
    is_near_linear(200, |size| {
        let log = leased_keys(size);
        let puts = (0..size)
            .map(|at| Op::RequestPut(pb::PutRequest { lease: 5, ..put(&key_of('p', at), "") }));
        let request = txn_of(ops(puts));
        Box::new(move || {
            let auth = log.state.auth.view();
            let caller = Caller { name: "writer", revision: auth.revision() };
            let leases = &log.state.published.leases;
            let permission = Permission { auth, caller, leases };
            assert_eq!(permission.check_txn(&request), Ok(()));
            for _ in 0..size {
                assert_eq!(permission.check_lease(Access::Write, LeaseId(5)), Ok(()));
            }
        })
    });
}
