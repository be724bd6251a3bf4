//! Transactions: selects branches, checks every operation, and then writes.
//!
//! Nothing is written before every operation has been checked. The first check uses the state in
//! which the transaction starts, and finds the same errors as etcd, in the same order. The second check takes the
//! effects of earlier operations into account, so that a transaction never fails part-way through its writes.

use quorate_api::etcdserverpb::{
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse, request_op::Request,
    response_op::Response as OpResponse,
};

use super::compare::Plan;
use super::key_intervals::KeyIntervals;
use super::keyspace::{Answer, Writer, check_kept, check_lease, check_revision};
use super::{EntryMeta, Fault, Refusal, Response, State};
use crate::lease::Leases;
use crate::mvcc::{KeyRange, RangeQuery, Snapshot};
use crate::quota::txn_cost;

impl State {
    pub(super) fn txn(&mut self, entry: &EntryMeta, request: &TxnRequest) -> Answer<Response> {
        let fits = self.quota.allows(entry.file_bytes, txn_cost(request));
        let snapshot = self.store.snapshot();
        let plan = Plan::new(request, &snapshot)?;
        let checked = check_plan(&plan, &snapshot, &self.published.leases);
        self.store.count_reads(plan.compared);
        if let Err(refusal) = checked {
            return Ok(Err(refusal));
        }
        let mut writer = self.writer(entry);
        let mut response = execute(&plan, &mut writer)?;
        response.header = writer.header();
        let changes = writer.txn.finish();
        self.unpublished.extend(changes);
        Ok(if fits { Ok(Response::Txn(response)) } else { Err(Refusal::NoSpace) })
    }
}

/// Checks all operations of a plan.
pub(super) fn check_plan(
    plan: &Plan<'_>,
    snapshot: &Snapshot<'_>,
    leases: &Leases,
) -> Result<(), Refusal> {
    check_at_start(plan, snapshot, Some(leases)).and_then(|()| Effects::default().add(plan))
}

/// Checks the operations of a plan in order, each as if it were the first. `leases` is `None` only
/// for a plan without puts.
pub(super) fn check_at_start(
    plan: &Plan<'_>,
    snapshot: &Snapshot<'_>,
    leases: Option<&Leases>,
) -> Result<(), Refusal> {
    let mut nested = plan.nested.iter();
    for operation in plan.operations {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_revision(snapshot, range.revision)?,
            Some(Request::RequestPut(put)) => {
                if let Some(leases) = leases {
                    check_lease(leases, put)?;
                }
                check_kept(put, || snapshot.get(&put.key).is_some())?;
            }
            Some(Request::RequestTxn(_)) => {
                let plan = nested.next().expect("there is a plan for each nested transaction");
                check_at_start(plan, snapshot, leases)?;
            }
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// The keys that earlier operations of the plan delete and do not put again.
#[derive(Default)]
struct Effects<'a> {
    deleted: KeyIntervals<'a>,
}

impl<'a> Effects<'a> {
    /// Adds the operations of a plan. Refuses a put that keeps the value or lease of a key that an
    /// earlier operation deletes.
    fn add(&mut self, plan: &Plan<'a>) -> Result<(), Refusal> {
        let mut nested = plan.nested.iter();
        for operation in plan.operations {
            match &operation.request {
                Some(Request::RequestPut(put)) => {
                    check_kept(put, || !self.deleted.contains(&put.key))?;
                    self.deleted.remove(&put.key);
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    self.deleted.insert(KeyRange::new(&delete.key, &delete.range_end));
                }
                Some(Request::RequestTxn(_)) => {
                    self.add(nested.next().expect("there is a plan for each nested transaction"))?;
                }
                Some(Request::RequestRange(_)) | None => {}
            }
        }
        Ok(())
    }
}

/// Executes a checked plan. The caller sets the header of the response. Headers of nested responses
/// stay empty.
fn execute(plan: &Plan<'_>, writer: &mut Writer<'_>) -> Result<TxnResponse, Fault> {
    let mut nested = plan.nested.iter();
    let mut responses = Vec::with_capacity(plan.operations.len());
    for operation in plan.operations {
        let response = match &operation.request {
            Some(Request::RequestRange(range)) => {
                let query = RangeQuery::from_request(range);
                let response = writer.range(&query)?.expect("the revision can be read");
                Some(OpResponse::ResponseRange(response))
            }
            Some(Request::RequestPut(put)) => Some(OpResponse::ResponsePut(writer.put(put)?)),
            Some(Request::RequestDeleteRange(delete)) => {
                Some(OpResponse::ResponseDeleteRange(writer.delete_range(delete)?))
            }
            Some(Request::RequestTxn(_)) => {
                let plan = nested.next().expect("there is a plan for each nested transaction");
                Some(OpResponse::ResponseTxn(execute(plan, writer)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    let header = Some(ResponseHeader::default());
    Ok(TxnResponse { header, succeeded: plan.succeeded, responses })
}
