//! The permissions that a request about keys needs. They are checked when an entry is applied, and
//! when a member answers a request from its own state.
//!
//! A request that attaches a key to a lease, or that revokes or renews a lease, needs permission to
//! write all keys of the lease, because those keys are deleted with the lease. A user with the root
//! role has every permission.
//!
//! # Cost
//!
//! A key or range costs one binary search in the user's ranges. A lease costs one search for each
//! of the user's ranges that contains keys of the lease, however many keys there are. A transaction
//! checks each lease once.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
};

use crate::auth::{Access, AuthRefusal, Caller, View};
use crate::lease::Leases;
use crate::units::LeaseId;

/// A caller, and the state that determines the caller's permissions.
#[derive(Clone, Copy, Debug)]
pub struct Permission<'a> {
    /// Users and roles.
    pub auth: &'a View,
    /// The caller.
    pub caller: Caller<'a>,
    /// The leases, whose keys are checked.
    pub leases: &'a Leases,
}

impl Permission<'_> {
    /// Checks a request that any user may make.
    pub const fn check_user(&self) -> Result<(), AuthRefusal> {
        self.auth.check_authenticated(self.caller)
    }

    /// Checks a range, either on its own or in a transaction.
    pub fn check_range(&self, request: &RangeRequest) -> Result<(), AuthRefusal> {
        self.check(Access::Read, &request.key, &request.range_end)
    }

    /// Checks a put.
    pub fn check_put(&self, request: &PutRequest) -> Result<(), AuthRefusal> {
        self.check_put_once(request, &mut BTreeSet::new())
    }

    /// Checks a put. Leases in the given set are skipped, because their keys have already been
    /// checked.
    fn check_put_once(
        &self,
        request: &PutRequest,
        checked: &mut BTreeSet<LeaseId>,
    ) -> Result<(), AuthRefusal> {
        self.check(Access::Write, &request.key, &[])?;
        let lease = LeaseId(request.lease);
        if !lease.is_none() && checked.insert(lease) {
            self.check_lease(Access::Write, lease)?;
        }
        if request.prev_kv { self.check(Access::Read, &request.key, &[]) } else { Ok(()) }
    }

    /// Checks a deletion outside a transaction.
    pub fn check_delete_range(&self, request: &DeleteRangeRequest) -> Result<(), AuthRefusal> {
        let DeleteRangeRequest { key, range_end, prev_kv } = request;
        self.check(Access::Write, key, range_end)?;
        if *prev_kv { self.check(Access::Read, key, range_end) } else { Ok(()) }
    }

    /// Checks every operation of a transaction, in both branches.
    pub fn check_txn(&self, request: &TxnRequest) -> Result<(), AuthRefusal> {
        self.check_txn_once(request, &mut BTreeSet::new())
    }

    fn check_txn_once(
        &self,
        request: &TxnRequest,
        checked: &mut BTreeSet<LeaseId>,
    ) -> Result<(), AuthRefusal> {
        for compare in &request.compare {
            self.check(Access::Read, &compare.key, &compare.range_end)?;
        }
        let mut operations = request.success.iter().chain(&request.failure);
        operations.try_for_each(|one| self.check_operation(one, checked))
    }

    /// Checks all keys of a lease. A lease that does not exist has no keys.
    pub fn check_lease(&self, access: Access, lease: LeaseId) -> Result<(), AuthRefusal> {
        if self.auth.check_admin(self.caller).is_ok() {
            return Ok(());
        }
        self.leases.check_keys(lease, |key| self.auth.permitted_end(self.caller, access, key))
    }

    /// Checks that the caller may read these keys of a lease. Like [`Permission::check_lease`], and unlike a read of the
    /// keys without a lease, it accepts an administrator's token of an older revision.
    pub fn check_lease_keys<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Bytes>,
    ) -> Result<(), AuthRefusal> {
        if self.auth.check_admin(self.caller).is_ok() {
            return Ok(());
        }
        keys.into_iter().try_for_each(|key| self.check(Access::Read, key, &[]))
    }

    fn check_operation(
        &self,
        operation: &RequestOp,
        checked: &mut BTreeSet<LeaseId>,
    ) -> Result<(), AuthRefusal> {
        match &operation.request {
            Some(Request::RequestRange(range)) => self.check_range(range),
            Some(Request::RequestPut(put)) => self.check_put_once(put, checked),
            Some(Request::RequestDeleteRange(delete)) => {
                // In a transaction, etcd first checks the permission to read the previous records.
                if delete.prev_kv {
                    self.check(Access::Read, &delete.key, &delete.range_end)?;
                }
                self.check(Access::Write, &delete.key, &delete.range_end)
            }
            Some(Request::RequestTxn(txn)) => self.check_txn_once(txn, checked),
            None => Ok(()),
        }
    }

    fn check(&self, access: Access, key: &[u8], range_end: &[u8]) -> Result<(), AuthRefusal> {
        self.auth.check_keys(self.caller, access, key, range_end)
    }
}
