//! The client requests that a member accepts, and its replies.

use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use quorate_raft::ConfChange;
use quorate_state::apply::{Refusal, Response};

/// Identifies a client operation in a run.
pub type OpId = u64;

/// A client request.
#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Reads keys.
    Range(RangeRequest),
    /// Stores a key.
    Put(PutRequest),
    /// Deletes keys.
    Delete(DeleteRangeRequest),
    /// Executes a transaction.
    Txn(TxnRequest),
    /// Compacts the keyspace. If `physical` is set, the reply is sent after the compacted records are removed.
    Compact(CompactionRequest),
    /// Creates a lease.
    LeaseGrant(LeaseGrantRequest),
    /// Revokes a lease.
    LeaseRevoke(LeaseRevokeRequest),
    /// Renews a lease.
    LeaseKeepAlive(i64),
    /// Requests the remaining time of a lease and, optionally, its keys.
    LeaseTimeToLive {
        /// The id of the lease.
        id: i64,
        /// Whether the reply must include the keys.
        keys: bool,
    },
    /// Changes the membership.
    Change(ConfChange),
    /// Defragments the backend file.
    Defragment,
    /// Proposes any other request, such as for alarms, versions, users or roles.
    Internal(Box<InternalRaftRequest>),
    /// Opens a stream with this watcher.
    Watch(WatchCreateRequest),
}

/// The reason why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request was not executed, and never will be.
    Never(&'static str),
    /// The request may have been executed, or may still be executed later.
    Unknown(&'static str),
}

/// The reply to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The entry was applied, or the physical compaction or the defragmentation has ended.
    Done(Response),
    /// The result of a read.
    Range(RangeResponse),
    /// The result of a read-only transaction.
    Txn(TxnResponse),
    /// The state refused the request.
    Refused(Refusal),
    /// The lease was renewed. The value is its TTL in seconds.
    Renewed(i64),
    /// The remaining time of a lease.
    TimeToLive {
        /// The remaining seconds.
        ttl: i64,
        /// The granted TTL in seconds.
        granted_ttl: i64,
        /// The keys of the lease.
        keys: Vec<Vec<u8>>,
    },
    /// The lease does not exist.
    NoLease,
    /// Only the leader can answer, and this member does not lead.
    NotLeader,
    /// The membership change was applied.
    Changed,
    /// The request failed without a result.
    Failed(Failure),
}
