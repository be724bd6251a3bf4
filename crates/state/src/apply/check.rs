//! Validation of client requests before they are proposed. Each check is a pure function of the request.

use std::collections::BTreeSet;

use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request,
    request_op::Request,
};

use super::key_intervals::{KeyIntervals, Position};
use super::refusal::RequestRefusal;
use crate::mvcc::KeyRange;

/// Checks a range request.
pub fn check_range(request: &RangeRequest) -> Result<(), RequestRefusal> {
    if request.key.is_empty() {
        return Err(RequestRefusal::EmptyKey);
    }
    let known = range_request::SortOrder::try_from(request.sort_order).is_ok()
        && range_request::SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(RequestRefusal::InvalidSortOption) }
}

/// Checks a put request.
pub const fn check_put(request: &PutRequest) -> Result<(), RequestRefusal> {
    if request.key.is_empty() {
        return Err(RequestRefusal::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(RequestRefusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(RequestRefusal::LeaseProvided);
    }
    Ok(())
}

/// Checks a delete request.
pub const fn check_delete_range(request: &DeleteRangeRequest) -> Result<(), RequestRefusal> {
    if request.key.is_empty() { Err(RequestRefusal::EmptyKey) } else { Ok(()) }
}

/// The maximum number of operations and conditions in a whole transaction, including nested transactions. If the limit
/// for a single list is higher, that limit applies instead.
///
/// As in etcd, both the number of operations in a list and the depth of nesting are limited. Without this third limit,
/// however, a tree of lists could contain any number of operations. A request of ordinary size reaches this limit only
/// if its operations take less than a hundred bytes on average.
pub const OPERATIONS_MAX: usize = 16_384;

/// Checks a transaction whose lists may contain at most `operation_count_max` operations: first its structure, and then
/// that no branch puts a key twice or both puts and deletes a key.
pub fn check_txn(request: &TxnRequest, operation_count_max: usize) -> Result<(), RequestRefusal> {
    check_structure(request, operation_count_max)?;
    check_overlap(request)
}

/// Checks the number of operations and conditions in a whole transaction. `operation_count_max` is the limit for a
/// single list. The check is cheap, and must precede any wait: an empty operation takes two bytes in a request, but more
/// than a hundred in memory.
pub fn check_amount(
    request: &TxnRequest,
    operation_count_max: usize,
) -> Result<(), RequestRefusal> {
    let mut left = OPERATIONS_MAX.max(operation_count_max);
    let mut unchecked = vec![request];
    while let Some(TxnRequest { compare, success, failure }) = unchecked.pop() {
        let all = compare.len() + success.len() + failure.len();
        left = left.checked_sub(all).ok_or(RequestRefusal::TooManyOperations)?;
        let operations = success.iter().chain(failure);
        unchecked.extend(operations.filter_map(|operation| match &operation.request {
            Some(Request::RequestTxn(txn)) => Some(txn),
            _ => None,
        }));
    }
    Ok(())
}

/// Checks the structure of a transaction. Returns the number of operations and conditions in it, including those of
/// nested transactions.
pub fn check_structure(
    request: &TxnRequest,
    operation_count_max: usize,
) -> Result<usize, RequestRefusal> {
    let total_max = OPERATIONS_MAX.max(operation_count_max);
    let mut total_left = total_max;
    check_lists(request, operation_count_max, &mut total_left)?;
    Ok(total_max - total_left)
}

fn check_lists(
    request: &TxnRequest,
    count_max: usize,
    total_left: &mut usize,
) -> Result<(), RequestRefusal> {
    let TxnRequest { compare, success, failure } = request;
    let count = compare.len().max(success.len()).max(failure.len());
    // The operations of an outer transaction count against the limit for nested transactions.
    let Some(count_left) = count_max.checked_sub(count) else {
        return Err(RequestRefusal::TooManyOperations);
    };
    let all = compare.len() + success.len() + failure.len();
    *total_left = total_left.checked_sub(all).ok_or(RequestRefusal::TooManyOperations)?;
    if compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(RequestRefusal::EmptyKey);
    }
    for operation in success.iter().chain(failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete_range(delete)?,
            Some(Request::RequestTxn(txn)) => check_lists(txn, count_left, total_left)?,
            None => return Err(RequestRefusal::EmptyOperation),
        }
    }
    Ok(())
}

/// Checks that no branch of a transaction puts a key twice, or both puts and deletes a key. Takes O(n log² n) steps for
/// n operations.
pub fn check_overlap(request: &TxnRequest) -> Result<(), RequestRefusal> {
    Footprint::of(&request.success)?;
    Footprint::of(&request.failure)?;
    Ok(())
}

/// The keys that a list of operations writes.
#[derive(Default)]
struct Footprint<'a> {
    puts: BTreeSet<Position<'a>>,
    deletes: KeyIntervals<'a>,
}

impl<'a> Footprint<'a> {
    /// Collects the keys that a branch writes. Refuses a branch that puts a key twice, or that both puts and deletes a
    /// key. The two branches of a nested transaction may put the same key, because only one of them is executed.
    fn of(operations: &'a [RequestOp]) -> Result<Self, RequestRefusal> {
        let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
        let mut all = Self::default();
        for request in requests() {
            if let Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, .. }) = request
            {
                all.deletes.insert(if range_end.is_empty() {
                    KeyRange::One(key)
                } else {
                    // As in etcd, a deletion of all keys from a given key onwards counts as an empty range here, so it
                    // never conflicts.
                    KeyRange::Between(key, range_end)
                });
            }
        }
        for request in requests() {
            if let Request::RequestTxn(txn) = request {
                let branches = [Self::of(&txn.success)?, Self::of(&txn.failure)?];
                if branches.iter().any(|branch| all.conflicts_with(branch)) {
                    return Err(RequestRefusal::DuplicateKey);
                }
                for branch in branches {
                    all.merge(branch);
                }
            }
        }
        for request in requests() {
            if let Request::RequestPut(put) = request
                && (all.deletes.contains(&put.key) || !all.puts.insert(Position::before(&put.key)))
            {
                return Err(RequestRefusal::DuplicateKey);
            }
        }
        Ok(all)
    }

    /// Returns whether a nested branch puts a key that this branch puts or deletes. As in etcd, deletions in the nested
    /// branch are not compared with the puts of earlier nested branches.
    fn conflicts_with(&self, nested: &Self) -> bool {
        let (few, many) = by_size(&self.puts, &nested.puts);
        few.iter().any(|key| many.contains(key)) || self.deletes.contains_any(&nested.puts)
    }

    /// Adds the keys of a nested branch. The smaller set is copied into the larger one, so that each key is copied
    /// O(log n) times at any depth of nesting.
    fn merge(&mut self, mut nested: Self) {
        if self.puts.len() < nested.puts.len() {
            std::mem::swap(&mut self.puts, &mut nested.puts);
        }
        self.puts.extend(nested.puts);
        self.deletes.merge(nested.deletes);
    }
}

fn by_size<'s, T>(
    one: &'s BTreeSet<T>,
    other: &'s BTreeSet<T>,
) -> (&'s BTreeSet<T>, &'s BTreeSet<T>) {
    if one.len() <= other.len() { (one, other) } else { (other, one) }
}
