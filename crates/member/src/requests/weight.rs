//! Estimates the resources that a read needs, before it is executed. The estimate is an upper bound as of the newest view
//! (`mvcc::RangeCost`).

use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{RequestOp, TxnRequest};
use quorate_api::record::KeyValue;
use quorate_state::mvcc::{RangeQuery, View};

/// A read that returns at least this many records needs a permit. Permits limit the memory that references to records
/// occupy.
const LONG_LIST_RECORDS: usize = 16 * 1024;

/// A read that visits at least this many keys runs on a blocking thread, because it takes milliseconds and would delay
/// other requests on the connection thread.
const LONG_WALK_KEYS: usize = 32 * 1024;

/// The maximum number of keys that the conditions and ranges of a transaction visit if the transaction goes through the
/// log. Every member visits these keys while it applies no other entry.
const APPLIED_WALK_KEYS_MAX: usize = 4 * 1024 * 1024;

/// An estimate of the resources that a read needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// The number of records that the read returns.
    returned: usize,
    /// The number of keys that the read visits, including deleted keys.
    walked: usize,
}

impl Weight {
    /// Estimates a query.
    pub(super) fn of_range(query: &RangeQuery, view: &View) -> Self {
        let cost = view.range_cost(query);
        Self { returned: cost.records, walked: cost.visited }
    }

    /// Estimates a transaction with all its nested transactions. The estimate covers the larger branch, because it is
    /// not yet known which branch will be executed.
    pub(super) fn of_txn(request: &TxnRequest, view: &View) -> Self {
        let mut conditions = Self::default();
        for compare in request.compare.iter().filter(|compare| !compare.range_end.is_empty()) {
            let (key, range_end) = (compare.key.clone(), compare.range_end.clone());
            let walk = RangeQuery { key, range_end, ..RangeQuery::default() };
            conditions.walked =
                conditions.walked.saturating_add(Self::of_range(&walk, view).walked);
        }
        let success = Self::of_operations(&request.success, view);
        let failure = Self::of_operations(&request.failure, view);
        let larger = Self {
            returned: success.returned.max(failure.returned),
            walked: success.walked.max(failure.walked),
        };
        conditions.plus(larger)
    }

    fn of_operations(operations: &[RequestOp], view: &View) -> Self {
        operations.iter().fold(Self::default(), |sum, operation| {
            let weight = match &operation.request {
                Some(Operation::RequestRange(range)) => {
                    Self::of_range(&RangeQuery::from_request(range), view)
                }
                Some(Operation::RequestDeleteRange(delete)) if delete.prev_kv => {
                    let (key, range_end) = (delete.key.clone(), delete.range_end.clone());
                    let deleted = RangeQuery { key, range_end, ..RangeQuery::default() };
                    Self { walked: 0, ..Self::of_range(&deleted, view) }
                }
                Some(Operation::RequestTxn(nested)) => Self::of_txn(nested, view),
                Some(Operation::RequestDeleteRange(_) | Operation::RequestPut(_)) | None => {
                    Self::default()
                }
            };
            sum.plus(weight)
        })
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            returned: self.returned.saturating_add(other.returned),
            walked: self.walked.saturating_add(other.walked),
        }
    }

    /// Returns whether the read may run on a connection thread and needs no permit for its list.
    pub(super) const fn is_small(self) -> bool {
        self.returned < LONG_LIST_RECORDS && self.walked < LONG_WALK_KEYS
    }

    /// Returns whether the read visits too many keys to be executed while entries are applied.
    pub(super) const fn delays_entries(self) -> bool {
        self.walked > APPLIED_WALK_KEYS_MAX
    }

    /// Returns the memory for references to the returned records, in bytes, if a permit is needed for it.
    pub(super) const fn list_bytes(self) -> Option<u64> {
        if self.returned < LONG_LIST_RECORDS {
            return None;
        }
        Some(self.returned.saturating_mul(size_of::<KeyValue>()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use quorate_state::backend::Batch;
    use quorate_state::mvcc::{KeyRange, Store, StoreOptions};

    use super::*;

    #[test]
    fn a_list_of_keys_that_have_been_deleted_since_is_a_long_list() {
        let (mut store, mut batch) = (Store::new(StoreOptions::default()), Batch::new());
        let mut txn = store.write(&mut batch);
        for n in 0..u32::try_from(LONG_WALK_KEYS).unwrap() {
            txn.put(&n.to_be_bytes(), b"", 0);
        }
        txn.finish().unwrap();
        let revision = store.current_revision();
        assert_eq!(store.write(&mut batch).delete_range(KeyRange::From(b"")).len(), LONG_WALK_KEYS);
        store.publish();
        let view = store.reader().view();
        let newest = RangeQuery {
            key: b"\0"[..].into(),
            range_end: b"\0"[..].into(),
            ..RangeQuery::default()
        };
        let past = RangeQuery { revision, ..newest.clone() };
        assert!(Weight::of_range(&newest, &view).is_small());
        assert!(Weight::of_range(&past, &view).list_bytes().is_some());
        let first = RangeQuery { limit: 1, ..past.clone() };
        assert!(!Weight::of_range(&first, &view).is_small());
        assert_eq!(Weight::of_range(&first, &view).list_bytes(), None);
        let list = RequestOp {
            request: Some(Operation::RequestRange(quorate_api::etcdserverpb::RangeRequest {
                key: past.key,
                range_end: past.range_end,
                revision,
                ..Default::default()
            })),
        };
        let lists = |count| {
            let success = vec![list.clone(); count];
            Weight::of_txn(&TxnRequest { success, ..TxnRequest::default() }, &view)
        };
        assert!(!lists(128).delays_entries());
        assert!(lists(129).delays_entries());
    }
}
