//! The backend quota: the maximum size of the file, and the cost of requests.
//!
//! The quota is checked twice: by the member that receives a request, before it proposes an entry,
//! and again when the entry is applied. The second check never changes the effect of an entry. It
//! decides only whether the proposer receives the error "database space exceeded". Later requests
//! are refused because of the alarm, which is in the log.

use quorate_api::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request};

/// The default quota, in bytes.
pub const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;

/// The cost of a lease, in bytes.
pub const LEASE_COST: u64 = 64;

/// The cost of a put in addition to its key and value, in bytes.
const PUT_COST: u64 = 256;

/// The effective quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    bytes_max: Option<u64>,
}

impl Quota {
    /// Creates the quota from the configured number: 0 means the default, and a negative number
    /// means no quota.
    #[must_use]
    pub fn new(configured: i64) -> Self {
        let bytes_max = match configured {
            0 => Some(QUOTA_BYTES_DEFAULT),
            configured => u64::try_from(configured).ok(),
        };
        Self { bytes_max }
    }

    /// Returns the maximum size of the file, or `None` if there is no quota.
    #[must_use]
    pub const fn bytes_max(self) -> Option<u64> {
        self.bytes_max
    }

    /// Returns whether a file of `file_bytes` has room for `cost` more bytes. A cost of 0 is always
    /// allowed.
    #[must_use]
    pub const fn allows(self, file_bytes: u64, cost: u64) -> bool {
        match self.bytes_max {
            Some(bytes_max) => cost == 0 || file_bytes.saturating_add(cost) < bytes_max,
            None => true,
        }
    }
}

/// Returns the cost of a put, in bytes.
#[must_use]
pub const fn put_cost(request: &PutRequest) -> u64 {
    PUT_COST + request.key.len() as u64 + request.value.len() as u64
}

/// Returns the cost of a transaction, in bytes. It is the cost of the more expensive branch,
/// regardless of which branch is executed.
#[must_use]
pub fn txn_cost(request: &TxnRequest) -> u64 {
    branch_cost(&request.success).max(branch_cost(&request.failure))
}

fn branch_cost(operations: &[RequestOp]) -> u64 {
    operations
        .iter()
        .map(|operation| match &operation.request {
            Some(Request::RequestPut(put)) => put_cost(put),
            Some(Request::RequestTxn(txn)) => txn_cost(txn),
            Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(len: usize) -> RequestOp {
        let value = vec![0; len].into();
        let put = PutRequest { key: b"key".as_slice().into(), value, ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    #[test]
    fn a_quota_of_zero_selects_the_default_and_a_negative_quota_is_unlimited() {
        assert_eq!(Quota::new(0).bytes_max(), Some(2_147_483_648));
        assert_eq!(Quota::new(-1).bytes_max(), None);
        assert_eq!(Quota::new(1).bytes_max(), Some(1));
    }

    #[test]
    fn a_request_that_would_reach_the_quota_is_refused() {
        let quota = Quota::new(1000);
        for (file_bytes, cost, allowed) in [
            (0, 999, true),
            (0, 1000, false),
            (999, 0, true),
            (5000, 0, true),
            (u64::MAX, 1, false),
        ] {
            assert_eq!(quota.allows(file_bytes, cost), allowed, "{file_bytes} + {cost}");
        }
        assert!(Quota::new(-5).allows(u64::MAX, u64::MAX));
    }

    #[test]
    fn a_transaction_costs_as_much_as_its_more_expensive_branch() {
        let inner = TxnRequest { success: vec![put(1)], failure: vec![put(100)], compare: vec![] };
        let nested = RequestOp { request: Some(Request::RequestTxn(inner)) };
        let outer =
            TxnRequest { success: vec![put(7), nested], failure: vec![put(9)], compare: vec![] };
        assert_eq!(txn_cost(&outer), 256 + 3 + 7 + 256 + 3 + 100);
        assert_eq!(txn_cost(&TxnRequest::default()), 0);
    }
}
