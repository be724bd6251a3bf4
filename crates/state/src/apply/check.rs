//! Whether a request makes sense at all, before anything else is looked at: pure functions of the request,
//! for whoever takes requests from clients.

use std::collections::BTreeSet;

use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request,
    request_op::Request,
};

use super::refusal::RequestRefusal;

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

/// Checks a transaction of at most `operation_count_max` operations: first its structure, then that no
/// branch writes a key twice.
pub fn check_txn(request: &TxnRequest, operation_count_max: usize) -> Result<(), RequestRefusal> {
    check_structure(request, operation_count_max)?;
    Footprint::of(&request.success)?;
    Footprint::of(&request.failure)?;
    Ok(())
}

fn check_structure(request: &TxnRequest, count_max: usize) -> Result<(), RequestRefusal> {
    let TxnRequest { compare, success, failure } = request;
    let count = compare.len().max(success.len()).max(failure.len());
    // What an outer transaction uses up is not there for the ones inside.
    let Some(left) = count_max.checked_sub(count) else {
        return Err(RequestRefusal::TooManyOperations);
    };
    if compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(RequestRefusal::EmptyKey);
    }
    for operation in success.iter().chain(failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete_range(delete)?,
            Some(Request::RequestTxn(txn)) => check_structure(txn, left)?,
            None => return Err(RequestRefusal::EmptyOperation),
        }
    }
    Ok(())
}

/// What a list of operations writes.
#[derive(Default)]
struct Footprint<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Vec<Deletes<'a>>,
}

/// One key, or the keys from the first up to the second. A deletion of all keys from one on counts as
/// an empty range here: it conflicts with nothing.
enum Deletes<'a> {
    Key(&'a [u8]),
    Range(&'a [u8], &'a [u8]),
}

impl Deletes<'_> {
    fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(deleted) => key == *deleted,
            Self::Range(from, to) => *from <= key && key < *to,
        }
    }
}

impl<'a> Footprint<'a> {
    /// Gathers what a branch writes, and refuses one that puts a key twice, or puts and deletes it. The
    /// two branches of a nested transaction may put the same key: only one of them is taken.
    fn of(operations: &'a [RequestOp]) -> Result<Self, RequestRefusal> {
        let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
        let mut all = Self::default();
        for request in requests() {
            if let Request::RequestDeleteRange(delete) = request {
                all.deletes.push(if delete.range_end.is_empty() {
                    Deletes::Key(&delete.key)
                } else {
                    Deletes::Range(&delete.key, &delete.range_end)
                });
            }
        }
        for request in requests() {
            if let Request::RequestTxn(txn) = request {
                let success = Self::of(&txn.success)?;
                let failure = Self::of(&txn.failure)?;
                for key in &success.puts {
                    all.put(key, false)?;
                }
                for key in &failure.puts {
                    all.put(key, success.puts.contains(key))?;
                }
                all.deletes.extend(success.deletes);
                all.deletes.extend(failure.deletes);
            }
        }
        for request in requests() {
            if let Request::RequestPut(put) = request {
                all.put(&put.key, false)?;
            }
        }
        Ok(all)
    }

    fn put(&mut self, key: &'a [u8], in_other_branch: bool) -> Result<(), RequestRefusal> {
        let is_deleted = self.deletes.iter().any(|deletes| deletes.contains(key));
        let is_put = !self.puts.insert(key) && !in_other_branch;
        if is_deleted || is_put { Err(RequestRefusal::DuplicateKey) } else { Ok(()) }
    }
}
