//! Transactions: choose branches, check everything, then write.
//!
//! Nothing is written before every operation has been checked against the state the transaction starts
//! from and against what the operations before it will do, so a transaction that writes never fails half
//! way.

use quorate_api::etcdserverpb::{
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse, request_op::Request,
    response_op::Response as OpResponse,
};

use super::compare::Plan;
use super::keyspace::{Answer, Writer, check_kept, check_lease, check_revision};
use super::{EntryMeta, Fault, Refusal, RequestRefusal, Response, State};
use crate::lease::Lessor;
use crate::mvcc::{KeyRange, RangeQuery, Snapshot};
use crate::quota::txn_cost;

impl State {
    pub(super) fn txn(&mut self, entry: &EntryMeta, request: &TxnRequest) -> Answer<Response> {
        let fits = self.quota.allows(entry.file_bytes, txn_cost(request));
        let snapshot = self.store.snapshot();
        let plan = Plan::new(request, &snapshot)?;
        let mut check = Check { snapshot, lessor: Some(&self.lessor), effects: Vec::new() };
        if let Err(refusal) = check.plan(&plan) {
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

/// What an operation will do to keys.
enum Effect<'a> {
    Put(&'a [u8]),
    Delete(KeyRange<'a>),
}

/// Checks the operations of a plan in order.
pub(super) struct Check<'a> {
    pub(super) snapshot: Snapshot<'a>,
    /// `None` where nothing is put.
    pub(super) lessor: Option<&'a Lessor>,
    /// What the operations so far will do.
    effects: Vec<Effect<'a>>,
}

impl<'a> Check<'a> {
    pub(super) const fn reads(snapshot: Snapshot<'a>) -> Self {
        Self { snapshot, lessor: None, effects: Vec::new() }
    }

    pub(super) fn plan(&mut self, plan: &Plan<'a>) -> Result<(), Refusal> {
        let mut nested = plan.nested.iter();
        for operation in plan.operations {
            match &operation.request {
                Some(Request::RequestRange(range)) => {
                    check_revision(&self.snapshot, range.revision)?;
                    if RangeQuery::from_request(range).is_none() {
                        return Err(RequestRefusal::InvalidSortOption.into());
                    }
                }
                Some(Request::RequestPut(put)) => {
                    if let Some(lessor) = self.lessor {
                        check_lease(lessor, put)?;
                    }
                    if put.ignore_value || put.ignore_lease {
                        check_kept(put, self.will_be_live(&put.key))?;
                    }
                    self.effects.push(Effect::Put(&put.key));
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let range = KeyRange::new(&delete.key, &delete.range_end);
                    self.effects.push(Effect::Delete(range));
                }
                Some(Request::RequestTxn(_)) => {
                    self.plan(nested.next().expect("a plan for each nested transaction"))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Whether the key will be live after the operations so far.
    fn will_be_live(&self, key: &[u8]) -> bool {
        let last = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Put(put) => (*put == key).then_some(true),
            Effect::Delete(range) => range.contains(key).then_some(false),
        });
        last.unwrap_or_else(|| self.snapshot.get(key).is_some())
    }
}

/// Carries out a checked plan. The header is left to the caller: those of nested answers stay empty.
fn execute(plan: &Plan<'_>, writer: &mut Writer<'_>) -> Result<TxnResponse, Fault> {
    let mut nested = plan.nested.iter();
    let mut responses = Vec::with_capacity(plan.operations.len());
    for operation in plan.operations {
        let response = match &operation.request {
            Some(Request::RequestRange(range)) => {
                let query = RangeQuery::from_request(range).expect("the sort was checked");
                let response = writer.range(&query)?.expect("the revision was checked");
                Some(OpResponse::ResponseRange(response))
            }
            Some(Request::RequestPut(put)) => Some(OpResponse::ResponsePut(writer.put(put)?)),
            Some(Request::RequestDeleteRange(delete)) => {
                Some(OpResponse::ResponseDeleteRange(writer.delete_range(delete)?))
            }
            Some(Request::RequestTxn(_)) => {
                let plan = nested.next().expect("a plan for each nested transaction");
                Some(OpResponse::ResponseTxn(execute(plan, writer)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    let header = Some(ResponseHeader::default());
    Ok(TxnResponse { header, succeeded: plan.succeeded, responses })
}
