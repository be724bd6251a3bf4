//! The requests that a member accepts, and its replies.

use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use quorate_raft::ConfChange;
use quorate_state::apply::{Refusal, Response};

/// Identifies an operation of a client in a run.
pub type OpId = u64;

/// A request of a client.
#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Reads keys.
    Range(RangeRequest),
    /// Stores a key.
    Put(PutRequest),
    /// Deletes keys.
    Delete(DeleteRangeRequest),
    /// Carries out a transaction.
    Txn(TxnRequest),
    /// Compacts the keyspace. If `physical` is set, the reply is sent after the records are removed.
    Compact(CompactionRequest),
    /// Creates a lease.
    LeaseGrant(LeaseGrantRequest),
    /// Revokes a lease.
    LeaseRevoke(LeaseRevokeRequest),
    /// Renews a lease.
    LeaseKeepAlive(i64),
    /// Asks for the remaining time of a lease, and its keys.
    LeaseTimeToLive {
        /// The lease.
        id: i64,
        /// Whether the keys are requested.
        keys: bool,
    },
    /// Changes the membership.
    Change(ConfChange),
    /// Defragments the backend file.
    Defragment,
    /// Proposes any other request: alarms, versions, users, roles.
    Internal(Box<InternalRaftRequest>),
    /// Opens a stream with this watcher.
    Watch(WatchCreateRequest),
}

/// The reason why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request was not carried out, and will not be.
    Never(&'static str),
    /// The request may have been carried out, or may still be.
    Unknown(&'static str),
}

/// The reply to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The entry was applied.
    Done(Response),
    /// The result of a read.
    Range(RangeResponse),
    /// The result of a transaction that only reads.
    Txn(TxnResponse),
    /// The state refused the request.
    Refused(Refusal),
    /// The lease was renewed with this TTL in seconds.
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
    /// The request has no result.
    Failed(Failure),
}
