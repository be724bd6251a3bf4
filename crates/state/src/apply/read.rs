//! Reads that are served from a published view, without the log and without the applier.

use quorate_api::etcdserverpb::{
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    request_op::Request, response_op::Response as OpResponse,
};

use super::compare::Plan;
use super::keyspace::{Answer, answer, range_response};
use super::txn::check_at_start;
use super::{Fault, Refusal};
use crate::mvcc::{RangeQuery, Tally, View};

/// Returns whether a transaction only reads, so that it need not go through the log. The result depends only on the
/// form of the transaction. A transaction that contains a nested transaction always goes through the log.
#[must_use]
pub fn is_read_only(request: &TxnRequest) -> bool {
    operations(request).all(|operation| as_range(operation).is_some())
}

/// Returns whether a read-only transaction may be answered from this member's state without a read barrier, because all
/// its ranges are serializable. A transaction that only has conditions needs a barrier: its client learns whether they
/// hold, and has not accepted a stale answer for any range.
#[must_use]
pub fn is_serializable(request: &TxnRequest) -> bool {
    let reads_nothing = operations(request).next().is_none();
    let has_only_conditions = reads_nothing && !request.compare.is_empty();
    let mut ranges = operations(request).map(as_range);
    !has_only_conditions && ranges.all(|range| range.is_some_and(|range| range.serializable))
}

/// Answers a range request that was validated with `check_range`.
pub fn read_range(view: &View, request: &RangeRequest) -> Answer<RangeResponse> {
    Ok(answer(view.range(&RangeQuery::from_request(request)))?.map(range_response))
}

/// Answers a read-only transaction, and counts its reads.
pub fn read_txn(
    view: &View,
    request: &TxnRequest,
) -> Result<(Result<TxnResponse, Refusal>, Tally), Fault> {
    assert!(
        is_read_only(request),
        "a transaction that writes goes through the log: otherwise only this member would execute it"
    );
    let snapshot = view.snapshot();
    let plan = Plan::new(request, &snapshot)?;
    let mut looks = plan.compared;
    let outcome = match check_at_start(&plan, &snapshot, None) {
        Ok(()) => execute(view, &plan, &mut looks)?,
        Err(refusal) => Err(refusal),
    };
    Ok((outcome, Tally::of_reads(looks)))
}

/// The ranges that a read-only transaction executes.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedReads<'a> {
    /// Whether all conditions hold.
    pub succeeded: bool,
    /// The ranges of the selected branch, in order.
    pub ranges: Vec<&'a RangeRequest>,
}

/// Evaluates the conditions of a read-only transaction and checks the ranges of the selected
/// branch, for a caller that executes the ranges itself. The view need only contain the keys that the conditions name.
pub fn selected_reads<'a>(
    view: &View,
    request: &'a TxnRequest,
) -> Result<Result<SelectedReads<'a>, Refusal>, Fault> {
    assert!(is_read_only(request), "a transaction that writes goes through the sequencer");
    let snapshot = view.snapshot();
    let plan = Plan::new(request, &snapshot)?;
    let ranges = plan.operations.iter().filter_map(as_range).collect();
    let selected = SelectedReads { succeeded: plan.succeeded, ranges };
    Ok(check_at_start(&plan, &snapshot, None).map(|()| selected))
}

/// Executes a checked plan, and counts the ranges.
fn execute(view: &View, plan: &Plan<'_>, looks: &mut u64) -> Answer<TxnResponse> {
    let mut responses = Vec::with_capacity(plan.operations.len());
    for range in plan.operations.iter().filter_map(as_range) {
        *looks += 1;
        let response = match read_range(view, range)? {
            Ok(response) => response,
            Err(refusal) => return Ok(Err(refusal)),
        };
        responses.push(ResponseOp { response: Some(OpResponse::ResponseRange(response)) });
    }
    let revision = view.current_revision();
    let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
    Ok(Ok(TxnResponse { header, succeeded: plan.succeeded, responses }))
}

fn operations(request: &TxnRequest) -> impl Iterator<Item = &RequestOp> {
    request.success.iter().chain(&request.failure)
}

fn as_range(operation: &RequestOp) -> Option<&RangeRequest> {
    match &operation.request {
        Some(Request::RequestRange(range)) => Some(range),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_) | Request::RequestTxn(_))
        | None => None,
    }
}
