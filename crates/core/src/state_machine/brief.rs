//! Decides which committed entries are so quick to apply that even a thread with other urgent work may apply them.
//!
//! Waking the apply thread costs more than applying a put. Applying other entries can take a long time: a range may
//! cover the whole keyspace, and the revocation of a lease deletes all its keys.
//!
//! # Not here
//!
//! The choice of the thread (`member::threads::applier`).

use quorate_api::etcdserverpb::compare::CompareTarget;
use quorate_api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, TxnRequest, request_op};
use quorate_raft::{Entry, EntryKind};
use quorate_state::apply::{Command, Request};

/// Maximum number of entries in a brief batch.
pub(super) const ENTRIES_MAX: usize = 4;

/// Maximum size of the data of a brief batch, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// Maximum number of comparisons and operations of a brief transaction.
const OPERATIONS_MAX: usize = 16;

/// Returns whether applying these entries takes only a short time and never waits for the backend: the entries are few
/// and small, and each reads and writes only single keys. Requests that read an old value are not brief, because the
/// value may have to be read from the disk. The exception is a range of a single key in a transaction, because the
/// transactions of Kubernetes contain such ranges.
pub(super) fn is_brief(entries: &[Entry]) -> bool {
    let bytes: usize = entries.iter().map(|entry| entry.data.len()).sum();
    entries.len() <= ENTRIES_MAX && bytes <= BYTES_MAX && entries.iter().all(concerns_single_keys)
}

fn concerns_single_keys(entry: &Entry) -> bool {
    // An empty entry is a leader's first entry. Applying it starts the clocks of all leases, which may take a long
    // time.
    if entry.kind != EntryKind::Normal || entry.data.is_empty() {
        return false;
    }
    // The calling thread may have a small stack, so very deeply nested transactions are left to the apply thread.
    let Ok(request) = Request::decode_shallow(&entry.data) else { return false };
    match request.command {
        Command::Put(put) => is_brief_put(&put),
        Command::LeaseGrant(_) => true,
        Command::DeleteRange(delete) => is_brief_delete(&delete),
        Command::Txn(txn) => is_brief_txn(&txn),
        Command::Range(_)
        | Command::Compaction(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::Alarm(_)
        | Command::Auth(_)
        | Command::Cluster(_)
        | Command::Nothing => false,
    }
}

const fn is_brief_put(put: &PutRequest) -> bool {
    !put.prev_kv && !put.ignore_value && !put.ignore_lease
}

fn is_brief_delete(delete: &DeleteRangeRequest) -> bool {
    delete.range_end.is_empty() && !delete.prev_kv
}

/// Returns whether a comparison needs only the index, which contains a key's revisions and version. The key's value and
/// lease are in its record.
fn is_brief_compare(compare: &Compare) -> bool {
    let reads_record = matches!(compare.target(), CompareTarget::Value | CompareTarget::Lease);
    compare.range_end.is_empty() && !reads_record
}

fn is_brief_txn(txn: &TxnRequest) -> bool {
    let count = txn.compare.len() + txn.success.len() + txn.failure.len();
    count <= OPERATIONS_MAX
        && txn.compare.iter().all(is_brief_compare)
        && txn.success.iter().chain(&txn.failure).all(|operation| match &operation.request {
            Some(request_op::Request::RequestRange(range)) => range.range_end.is_empty(),
            Some(request_op::Request::RequestDeleteRange(delete)) => is_brief_delete(delete),
            Some(request_op::Request::RequestPut(put)) => is_brief_put(put),
            None => true,
            Some(request_op::Request::RequestTxn(_)) => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use quorate_api::etcdserverpb as pb;
    use quorate_raft::{LogIndex, Term};
    use request_op::Request as Op;

    fn entry(request: pb::InternalRaftRequest) -> Entry {
        let request = pb::InternalRaftRequest { id: 7, ..request };
        let data = request.encode_to_vec().into();
        Entry { term: Term(1), index: LogIndex(1), kind: EntryKind::Normal, data }
    }

    fn put(value: &[u8]) -> PutRequest {
        let (key, value) = (b"k".to_vec().into(), value.to_vec().into());
        PutRequest { key, value, ..Default::default() }
    }

    fn put_entry(value: &[u8]) -> Entry {
        entry(pb::InternalRaftRequest { put: Some(put(value)), ..Default::default() })
    }

    fn txn_entry(txn: TxnRequest) -> Entry {
        entry(pb::InternalRaftRequest { txn: Some(txn), ..Default::default() })
    }

    fn operation(request: Op) -> pb::RequestOp {
        pb::RequestOp { request: Some(request) }
    }

    fn range(range_end: &[u8]) -> pb::RequestOp {
        let (key, range_end) = (b"k".to_vec().into(), range_end.to_vec().into());
        let range = pb::RangeRequest { key, range_end, ..Default::default() };
        operation(Op::RequestRange(range))
    }

    #[test]
    fn a_few_small_writes_of_single_keys_are_brief() {
        let compare = Compare { key: b"k".to_vec().into(), ..Default::default() };
        let update = TxnRequest {
            compare: vec![compare],
            success: vec![operation(Op::RequestPut(put(b"v")))],
            failure: vec![range(b"")],
        };
        let grant = pb::LeaseGrantRequest { ttl: 5, id: 1 };
        let grant = pb::InternalRaftRequest { lease_grant: Some(grant), ..Default::default() };
        assert!(is_brief(&[put_entry(b"v"), txn_entry(update), entry(grant)]));
    }

    #[test]
    fn many_or_large_entries_are_not_brief() {
        assert!(is_brief(&[put_entry(b"v"), put_entry(b"v"), put_entry(b"v"), put_entry(b"v")]));
        let five = [(); 5].map(|()| put_entry(b"v"));
        assert!(!is_brief(&five));
        assert!(!is_brief(&[put_entry(&vec![0; BYTES_MAX])]));
    }

    #[test]
    fn requests_that_may_cover_many_keys_are_not_brief() {
        let delete = |range_end: &[u8]| {
            let (key, range_end) = (b"a".to_vec().into(), range_end.to_vec().into());
            let delete_range = DeleteRangeRequest { key, range_end, prev_kv: false };
            pb::InternalRaftRequest {
                delete_range: Some(Box::new(delete_range)),
                ..Default::default()
            }
        };
        assert!(is_brief(&[entry(delete(b""))]));
        assert!(!is_brief(&[entry(delete(b"b"))]));
        let revoke = Some(pb::LeaseRevokeRequest { id: 1 });
        let revoke = pb::InternalRaftRequest { lease_revoke: revoke, ..Default::default() };
        assert!(!is_brief(&[entry(revoke)]));
        let txn = |operations: Vec<pb::RequestOp>| {
            txn_entry(TxnRequest { success: operations, ..Default::default() })
        };
        assert!(is_brief(&[txn(vec![range(b"")])]));
        assert!(!is_brief(&[txn(vec![range(b"\0")])]));
        assert!(!is_brief(&[txn(vec![range(b""); OPERATIONS_MAX + 1])]));
        let nested = operation(Op::RequestTxn(TxnRequest::default()));
        assert!(!is_brief(&[txn(vec![nested])]));
        let compare = Compare { range_end: b"\0".to_vec().into(), ..Default::default() };
        let compared = TxnRequest { compare: vec![compare], ..Default::default() };
        assert!(!is_brief(&[txn_entry(compared)]));
    }

    #[test]
    fn requests_that_read_an_old_value_are_not_brief() {
        let of_put = |put| entry(pb::InternalRaftRequest { put: Some(put), ..Default::default() });
        assert!(!is_brief(&[of_put(PutRequest { prev_kv: true, ..put(b"v") })]));
        assert!(!is_brief(&[of_put(PutRequest { ignore_value: true, ..put(b"") })]));
        assert!(!is_brief(&[of_put(PutRequest { ignore_lease: true, ..put(b"v") })]));
        for (target, expected) in [
            (CompareTarget::Version, true),
            (CompareTarget::Create, true),
            (CompareTarget::Mod, true),
            (CompareTarget::Value, false),
            (CompareTarget::Lease, false),
        ] {
            let compare = Compare { target: target.into(), ..Default::default() };
            let txn = TxnRequest { compare: vec![compare], ..Default::default() };
            assert_eq!(is_brief(&[txn_entry(txn)]), expected, "{target:?}");
        }
    }

    #[test]
    fn entries_without_a_request_are_not_brief() {
        let kinds = [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2];
        for kind in kinds {
            let data = bytes::Bytes::new();
            let empty = Entry { term: Term(1), index: LogIndex(1), kind, data };
            assert!(!is_brief(&[empty]), "{kind:?}");
        }
        assert!(!is_brief(&[Entry { data: b"\xff".to_vec().into(), ..put_entry(b"v") }]));
    }
}
