//! Which rights a request about keys needs: asked when an entry is applied, and by a member of what it answers
//! from its own state.
//!
//! A request that attaches a key to a lease, ends the lease or renews it needs to be allowed to write all keys of
//! the lease, because they go with it. Who holds the role root may do all of it.

use std::sync::Arc;

use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
};

use crate::auth::{Access, AuthRefusal, Caller, View};
use crate::lease::Leases;
use crate::units::LeaseId;

/// Somebody who asks, and what he may do.
#[derive(Clone, Copy, Debug)]
pub struct Permission<'a> {
    /// Users and roles.
    pub auth: &'a View,
    /// Who asks.
    pub caller: Caller<'a>,
    /// Where leases are looked up.
    pub leases: &'a Leases,
}

impl Permission<'_> {
    /// What any user may.
    pub const fn check_user(&self) -> Result<(), AuthRefusal> {
        self.auth.check_authenticated(self.caller)
    }

    /// A range, by itself or in a transaction.
    pub fn check_range(&self, request: &RangeRequest) -> Result<(), AuthRefusal> {
        self.check(Access::Read, &request.key, &request.range_end)
    }

    /// A put.
    pub fn check_put(&self, request: &PutRequest) -> Result<(), AuthRefusal> {
        self.check(Access::Write, &request.key, &[])?;
        let lease = LeaseId(request.lease);
        if !lease.is_none() {
            self.check_lease(Access::Write, lease)?;
        }
        if request.prev_kv { self.check(Access::Read, &request.key, &[]) } else { Ok(()) }
    }

    /// A deletion by itself.
    pub fn check_delete_range(&self, request: &DeleteRangeRequest) -> Result<(), AuthRefusal> {
        let DeleteRangeRequest { key, range_end, prev_kv } = request;
        self.check(Access::Write, key, range_end)?;
        if *prev_kv { self.check(Access::Read, key, range_end) } else { Ok(()) }
    }

    /// A transaction: everything in it, whichever branch will be taken.
    pub fn check_txn(&self, request: &TxnRequest) -> Result<(), AuthRefusal> {
        for compare in &request.compare {
            self.check(Access::Read, &compare.key, &compare.range_end)?;
        }
        request.success.iter().chain(&request.failure).try_for_each(|one| self.check_one(one))
    }

    /// All keys of a lease. One that is not there has none.
    pub fn check_lease(&self, access: Access, lease: LeaseId) -> Result<(), AuthRefusal> {
        if self.auth.check_admin(self.caller).is_ok() {
            return Ok(());
        }
        let keys: Vec<Arc<[u8]>> = self.leases.keys(lease).unwrap_or_default();
        keys.iter().try_for_each(|key| self.check(access, key, &[]))
    }

    fn check_one(&self, operation: &RequestOp) -> Result<(), AuthRefusal> {
        match &operation.request {
            Some(Request::RequestRange(range)) => self.check_range(range),
            Some(Request::RequestPut(put)) => self.check_put(put),
            Some(Request::RequestDeleteRange(delete)) => {
                // Here the previous pairs come first.
                if delete.prev_kv {
                    self.check(Access::Read, &delete.key, &delete.range_end)?;
                }
                self.check(Access::Write, &delete.key, &delete.range_end)
            }
            Some(Request::RequestTxn(txn)) => self.check_txn(txn),
            None => Ok(()),
        }
    }

    fn check(&self, access: Access, key: &[u8], range_end: &[u8]) -> Result<(), AuthRefusal> {
        self.auth.check_keys(self.caller, access, key, range_end)
    }
}
