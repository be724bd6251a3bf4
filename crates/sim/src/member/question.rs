//! The requests that a member accepts, and its replies.

use quorate_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
    WatchCreateRequest,
};
use quorate_raft::ConfChange;
use quorate_state::apply::{Refusal, Response};

/// Names an operation of a client, over all of a run.
pub type OpId = u64;

/// What is asked.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Read keys.
    Range(RangeRequest),
    /// Store.
    Put(PutRequest),
    /// Delete.
    Delete(DeleteRangeRequest),
    /// Several at once.
    Txn(TxnRequest),
    /// Forget history, and tell when the records are gone, if `physical`.
    Compact(CompactionRequest),
    /// A new lease.
    LeaseGrant(LeaseGrantRequest),
    /// Its end.
    LeaseRevoke(LeaseRevokeRequest),
    /// Its life anew.
    LeaseKeepAlive(i64),
    /// What is left of it, and its keys.
    LeaseTimeToLive {
        /// The lease.
        id: i64,
        /// Whether its keys are asked for.
        keys: bool,
    },
    /// A change of the membership.
    Change(ConfChange),
    /// Give space back.
    Defragment,
    /// Anything else for the log: alarms, versions, names.
    Internal(Box<InternalRaftRequest>),
    /// Open a stream with this watcher.
    Watch(WatchCreateRequest),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not carried out, and will not be.
    Never(&'static str),
    /// It may have been, or may still be.
    Unknown(&'static str),
}

/// What a client is told.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Carried out.
    Done(Response),
    /// Read.
    Range(RangeResponse),
    /// Read.
    Txn(TxnResponse),
    /// Refused by the state.
    Refused(Refusal),
    /// A lease lives on for so long.
    Renewed(i64),
    /// What is left of a lease.
    TimeToLive {
        /// Seconds that are left.
        ttl: i64,
        /// Seconds that it was granted for.
        granted_ttl: i64,
        /// Its keys.
        keys: Vec<Vec<u8>>,
    },
    /// There is no such lease.
    NoLease,
    /// It is for the leader, which this member is not.
    NotLeader,
    /// A change of the membership is in force.
    Changed,
    /// There is none.
    Failed(Failure),
}
