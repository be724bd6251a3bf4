//! Evaluates the conditions of a transaction and selects its branches.
//!
//! The conditions, including those of nested transactions, are evaluated against one state before anything is written.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use quorate_api::etcdserverpb::{
    Compare, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};

use crate::mvcc::{Fault, KeyRange, Snapshot, Version};

/// The selected branches of a transaction and of its nested transactions.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) succeeded: bool,
    pub(super) operations: &'a [RequestOp],
    /// One plan for each nested transaction among the operations, in order.
    pub(super) nested: Vec<Self>,
    /// The number of evaluated conditions, including those of nested transactions.
    pub(super) compared: u64,
}

impl<'a> Plan<'a> {
    pub(super) fn new(request: &'a TxnRequest, snapshot: &Snapshot<'_>) -> Result<Self, Fault> {
        let (mut succeeded, mut compared) = (true, 0);
        for compare in &request.compare {
            compared += 1;
            succeeded = holds(compare, snapshot)?;
            if !succeeded {
                break;
            }
        }
        let operations = if succeeded { &request.success } else { &request.failure };
        let mut nested = Vec::new();
        for operation in operations {
            if let Some(Request::RequestTxn(inner)) = &operation.request {
                let plan = Self::new(inner, snapshot)?;
                compared += plan.compared;
                nested.push(plan);
            }
        }
        Ok(Self { succeeded, operations, nested, compared })
    }
}

/// Returns whether every key of the range meets the condition. If the range contains no keys, the condition is
/// evaluated as for a single key that was never written, except that a condition on its value is always false.
fn holds(compare: &Compare, snapshot: &Snapshot<'_>) -> Result<bool, Fault> {
    let by_value = compare.target == CompareTarget::Value as i32;
    let mut is_empty = true;
    let mut outcome = Ok(true);
    snapshot.for_each_live(KeyRange::new(&compare.key, &compare.range_end), |_, version| {
        is_empty = false;
        outcome = ordering(compare, Some(version), snapshot)
            .map(|ordering| accepts(compare.result, ordering));
        match outcome {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) | Err(_) => ControlFlow::Break(()),
        }
    });
    if !is_empty {
        return outcome;
    }
    if by_value {
        return Ok(false);
    }
    Ok(accepts(compare.result, ordering(compare, None, snapshot)?))
}

/// Compares the key with the operand. An operand whose kind does not match the target counts as missing.
fn ordering(
    compare: &Compare,
    version: Option<Version>,
    snapshot: &Snapshot<'_>,
) -> Result<Ordering, Fault> {
    let operand = compare.target_union.as_ref();
    let record = || version.map(|version| snapshot.record(version.modified)).transpose();
    let number = |actual: i64, wanted: Option<i64>| Ok(actual.cmp(&wanted.unwrap_or(0)));
    match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => {
            let wanted = operand.and_then(|operand| match operand {
                TargetUnion::Version(wanted) => Some(*wanted),
                TargetUnion::CreateRevision(_)
                | TargetUnion::ModRevision(_)
                | TargetUnion::Value(_)
                | TargetUnion::Lease(_) => None,
            });
            number(version.map_or(0, |version| version.version), wanted)
        }
        Ok(CompareTarget::Create) => {
            let wanted = operand.and_then(|operand| match operand {
                TargetUnion::CreateRevision(wanted) => Some(*wanted),
                TargetUnion::Version(_)
                | TargetUnion::ModRevision(_)
                | TargetUnion::Value(_)
                | TargetUnion::Lease(_) => None,
            });
            number(version.map_or(0, |version| version.create_revision), wanted)
        }
        Ok(CompareTarget::Mod) => {
            let wanted = operand.and_then(|operand| match operand {
                TargetUnion::ModRevision(wanted) => Some(*wanted),
                TargetUnion::Version(_)
                | TargetUnion::CreateRevision(_)
                | TargetUnion::Value(_)
                | TargetUnion::Lease(_) => None,
            });
            number(version.map_or(0, |version| version.modified.main), wanted)
        }
        Ok(CompareTarget::Lease) => {
            let wanted = operand.and_then(|operand| match operand {
                TargetUnion::Lease(wanted) => Some(*wanted),
                TargetUnion::Version(_)
                | TargetUnion::CreateRevision(_)
                | TargetUnion::ModRevision(_)
                | TargetUnion::Value(_) => None,
            });
            number(record()?.map_or(0, |record| record.fields().lease), wanted)
        }
        Ok(CompareTarget::Value) => {
            let wanted = operand.and_then(|operand| match operand {
                TargetUnion::Value(wanted) => Some(&wanted[..]),
                TargetUnion::Version(_)
                | TargetUnion::CreateRevision(_)
                | TargetUnion::ModRevision(_)
                | TargetUnion::Lease(_) => None,
            });
            let record = record()?.unwrap_or_default();
            Ok(record.value().cmp(wanted.unwrap_or_default()))
        }
        // An unknown target, which a later version may define, counts as equal.
        Err(_) => Ok(Ordering::Equal),
    }
}

/// Returns whether the condition accepts this ordering. An unknown result, which a later version
/// may define, accepts every ordering.
fn accepts(result: i32, ordering: Ordering) -> bool {
    match CompareResult::try_from(result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Err(_) => true,
    }
}
