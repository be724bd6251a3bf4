//! Estimates the resources that a read needs, before it is executed. The estimate is based on the newest revision,
//! which is close enough for reads at older revisions.

use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::{RequestOp, TxnRequest};
use quorate_api::record::KeyValue;
use quorate_state::mvcc::{MvccError, RangeQuery, SortOrder, SortTarget, View};

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
    /// The number of keys that the read visits.
    walked: usize,
}

impl Weight {
    /// Estimates a query.
    pub(super) fn of_range(query: &RangeQuery, view: &View) -> Result<Self, MvccError> {
        if query.range_end.is_empty() {
            return Ok(Self::default());
        }
        let counting = RangeQuery { count_only: true, revision: 0, ..query.clone() };
        let count = view.range(&counting)?.count;
        let bound = if query.count_only {
            0
        } else if query.limit > 0 && limits_the_work(query) {
            query.limit
        } else {
            i64::MAX
        };
        let is_historic = query.revision > 0 && query.revision < view.current_revision();
        let walked_bound = if is_historic { i64::MAX } else { bound };
        let at_most = |bound: i64| usize::try_from(count.min(bound)).unwrap_or(usize::MAX);
        Ok(Self { returned: at_most(bound), walked: at_most(walked_bound) })
    }

    /// Estimates a transaction with all its nested transactions. The estimate covers the larger branch, because it is
    /// not yet known which branch will be executed.
    pub(super) fn of_txn(request: &TxnRequest, view: &View) -> Result<Self, MvccError> {
        let mut conditions = Self::default();
        for compare in request.compare.iter().filter(|compare| !compare.range_end.is_empty()) {
            let (key, range_end) = (compare.key.clone(), compare.range_end.clone());
            let walk = RangeQuery { key, range_end, ..RangeQuery::default() };
            conditions.walked =
                conditions.walked.saturating_add(Self::of_range(&walk, view)?.walked);
        }
        let success = Self::of_operations(&request.success, view)?;
        let failure = Self::of_operations(&request.failure, view)?;
        let larger = Self {
            returned: success.returned.max(failure.returned),
            walked: success.walked.max(failure.walked),
        };
        Ok(conditions.plus(larger))
    }

    fn of_operations(operations: &[RequestOp], view: &View) -> Result<Self, MvccError> {
        operations.iter().try_fold(Self::default(), |sum, operation| {
            let weight = match &operation.request {
                Some(Operation::RequestRange(range)) => match RangeQuery::from_request(range) {
                    Some(query) => Self::of_range(&query, view)?,
                    None => Self::default(),
                },
                Some(Operation::RequestDeleteRange(delete)) if delete.prev_kv => {
                    let (key, range_end) = (delete.key.clone(), delete.range_end.clone());
                    let deleted = RangeQuery { key, range_end, ..RangeQuery::default() };
                    Self { walked: 0, ..Self::of_range(&deleted, view)? }
                }
                Some(Operation::RequestTxn(nested)) => Self::of_txn(nested, view)?,
                Some(Operation::RequestDeleteRange(_) | Operation::RequestPut(_)) | None => {
                    Self::default()
                }
            };
            Ok(sum.plus(weight))
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

/// Returns whether a query reads only the records that it returns. A query that sorts by anything but the key, or
/// filters by revision, reads all records of its range.
fn limits_the_work(query: &RangeQuery) -> bool {
    let in_key_order = query.sort_order == SortOrder::None || query.sort_target == SortTarget::Key;
    let bounds = [
        query.min_mod_revision,
        query.max_mod_revision,
        query.min_create_revision,
        query.max_create_revision,
    ];
    in_key_order && bounds == [0; 4]
}
