//! The interface to the data store: everything that the services require from the component that stores the keys.
//!
//! A [`DataStore`] executes requests: reads at a revision, writes in one order, leases, maintenance and changes to the
//! cluster. A [`Status`](crate::Status) shows the progress of the data store. For a raft member, `member::data_store`
//! implements both traits.
//!
//! # Requirements
//!
//! * Writes are executed in one order, and each write that changes keys creates the next revision. A write is
//!   acknowledged only once it is durable, so the failure of a server cannot lose it.
//! * A read after a completed [`DataStore::read_barrier`] includes every write that was acknowledged before the barrier
//!   began.
//! * The published users, roles, leases, members and alarms ([`AccessControl`](crate::access::AccessControl),
//!   [`ServerInfo::facts`](crate::ServerInfo::facts)) match the data that a read returns, because they are published
//!   together with that data, as `state::auth::AuthReader` describes.
//! * The hub receives every revision once, in order.
//!
//! # Permissions
//!
//! The permissions of a [`Write`] are checked when it is executed, against the users and roles at its position in the
//! order of writes. The caller checks the permissions of a read, before and after the read. The methods that receive a
//! client's credentials check them at the last moment, after all waits.
//!
//! # Not here
//!
//! The encoding of requests and responses (`edge`), and the checks that precede a write ([`Writer`](crate::Writer)).

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, TxnRequest, TxnResponse,
};
pub use quorate_core::Defragmented;
use quorate_state::apply::Response;
use quorate_state::members::Member;
use quorate_state::mvcc::{HashKv, RangeQuery, RangeResult};
use quorate_state::units::LeaseId;
use quorate_state::versions::Version;
use quorate_state::watch::{HistoryFault, Hub};
use quorate_storage::bolt::ReadTx;
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::trace::CallTrace;
use tokio::sync::watch;

use crate::access::Credentials;
use crate::admission::OwnedPermit;
use crate::error::RequestError;
use crate::store_future::{StoreFuture, WriteFuture};

/// The result of a data store operation.
pub type StoreResult<'a, T> = StoreFuture<'a, Result<T, RequestError>>;

/// A write, and the user that requests it.
#[derive(Debug)]
pub struct Write<'a> {
    /// The request, with an empty header.
    pub request: InternalRaftRequest,
    /// The kind of request, for the metrics.
    pub kind: RequestKind,
    /// The user that requests the write, and the revision of users and roles that the user's token is valid for. The
    /// name is empty and the revision is 0 while authentication is disabled.
    pub user: (String, u64),
    /// The trace of the call, if the call is traced.
    pub trace: Option<&'a Arc<CallTrace>>,
}

/// The result of a read, and the permit for the memory of the list that it contains.
#[derive(Debug)]
pub struct Listed<T> {
    /// The list, or the response that contains it.
    pub result: T,
    /// The permit for the memory of a long list. The caller keeps it until the client has received the list.
    pub permit: Option<OwnedPermit>,
}

/// The sizes of the data in bytes, as of the last commit or measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The size that counts against the quota.
    pub total_bytes: u64,
    /// The part of `total_bytes` that is in use.
    pub in_use_bytes: u64,
}

/// The content of a snapshot: a bbolt file as of one point in time.
#[derive(Debug)]
pub struct Image {
    /// The file, which does not change while the image exists.
    pub file: ReadTx,
    /// The storage version of the file.
    pub version: Option<Version>,
}

/// Returns the query that health checks execute. It reads the empty key, which cannot exist, so the read passes through
/// all stages and returns no record.
#[must_use]
pub fn probe_query() -> RangeQuery {
    RangeQuery { limit: 1, keys_only: true, ..RangeQuery::default() }
}

/// Executes the requests of clients. The documentation of this module describes the requirements on an implementation.
///
/// Every method may be called from any connection thread, and none blocks. If the future of an operation is dropped,
/// the operation may be cancelled or may continue. A write whose future was dropped may therefore still be executed.
pub trait DataStore: Debug + Send + Sync {
    /// Waits until reads are linearizable: a read that starts after the wait includes every write acknowledged before
    /// this call. Fails if no server is known to decide the order of writes, or if that server does not respond within
    /// the request timeout.
    fn read_barrier(&self) -> StoreResult<'_, ()>;

    /// Returns the newest revision that reads and watchers of this server see.
    fn current_revision(&self) -> i64;

    /// Reads a range at the revision in the query or, without one, at the newest revision of this server. Waits for a
    /// permit if the list is long. A compacted or future revision is refused.
    fn range(&self, query: &RangeQuery) -> StoreResult<'_, Listed<RangeResult>>;

    /// Checks that this server can execute reads, so that an orchestrator can restart a server that cannot. A server
    /// whose data is on another machine does not check that machine, because a restart would not help.
    fn check_alive(&self) -> StoreResult<'_, ()>;

    /// Executes a read-only transaction at the newest revision of this server. Waits for a permit if its lists are
    /// long.
    fn read_txn(&self, request: &Arc<TxnRequest>) -> StoreResult<'_, Listed<TxnResponse>>;

    /// Waits for a permit if the lists in the response to a transaction that writes are long. The caller keeps the
    /// permit until the client has received the response. Refuses a transaction whose reads would delay other writes
    /// for too long.
    fn reserve_lists(&self, request: &TxnRequest) -> StoreResult<'_, Option<OwnedPermit>>;

    /// Returns the hub that serves the watchers of this server.
    fn hub(&self) -> &Hub;

    /// Reports that the history for watchers cannot be read. The watch stream that detected the fault ends.
    fn report_history_fault(&self, fault: HistoryFault);

    /// Refuses a write of this kind if too many writes are waiting to be executed.
    fn check_load(&self, kind: RequestKind) -> Result<(), RequestError>;

    /// Returns whether the quota allows the data to grow by `cost` bytes. Part of the quota may be reserved for writes
    /// that free space.
    fn has_room(&self, cost: u64) -> bool;

    /// Raises the NOSPACE alarm, unless it is raised already. The caller refuses the client's write even if the alarm
    /// cannot be raised.
    fn raise_no_space(&self) -> StoreFuture<'_, ()>;

    /// Refuses a write that would be refused when it is executed, if other servers might then execute it nevertheless.
    /// Because the state of this server may be outdated, the caller checks the write again after a read barrier.
    fn check_write(&self, write: &Write<'_>) -> StoreResult<'_, ()>;

    /// Executes a write and returns its response, or the refusal. If the write is encoded, `kept` receives the encoded
    /// request, for the log lines about slow requests.
    ///
    /// A timeout means that the outcome is unknown: the write may still be executed.
    fn write<'a>(
        &'a self,
        write: Write<'a>,
        kept: Option<&mut Bytes>,
    ) -> WriteFuture<'a, Result<Response, RequestError>>;

    /// Chooses the id of a lease for a client that provides no id. No other server chooses the same id.
    fn next_lease_id(&self) -> i64;

    /// Returns the revision at which a compaction is executed if a client requests it at `revision`. It is `revision`
    /// itself, or an earlier revision if etcd members would lose a key in a compaction at `revision`.
    fn compaction_point(&self, revision: i64) -> i64;

    /// Waits until the compactions executed so far have deleted all records that they made obsolete.
    fn wait_compacted(&self) -> StoreResult<'_, ()>;

    /// Renews a lease for a client that may write all keys attached to the lease. Returns the TTL in seconds, or `None`
    /// if the lease no longer exists. A renewed lease does not expire before its TTL has passed, even if another server
    /// has become the leader by then.
    fn renew_lease<'a>(
        &'a self,
        client: &'a Credentials,
        id: LeaseId,
    ) -> StoreResult<'a, Option<i64>>;

    /// Returns the remaining time of a lease and, on request, the attached keys, or `None` if the lease does not exist.
    /// The caller checks the permissions and fills in the header.
    fn time_to_live<'a>(
        &'a self,
        request: &'a LeaseTimeToLiveRequest,
    ) -> StoreResult<'a, Option<LeaseTimeToLiveResponse>>;

    /// Returns the ids of all leases that this server knows.
    fn lease_ids(&self) -> Vec<LeaseId>;

    /// Returns the sizes of the data.
    fn sizes(&self) -> Sizes;

    /// Returns the hash of all data, for an administrator.
    fn hash<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, u32>;

    /// Returns the newest revision, and the hash of all records up to a revision, for an administrator. etcd and every
    /// other server compute the same hash if they have compacted at the same revision.
    fn hash_kv<'a>(
        &'a self,
        client: &'a Credentials,
        revision: i64,
    ) -> StoreResult<'a, (i64, HashKv)>;

    /// Returns an image that contains every write acknowledged before this call, for an administrator.
    fn snapshot<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, Image>;

    /// Returns free space to the file system. Reads and writes continue during this time.
    fn defragment(&self) -> StoreResult<'_, Defragmented>;

    /// Subscribes to the state of the health service: whether it reports this server as serving.
    fn serving(&self) -> watch::Receiver<bool>;

    /// Makes another server the leader. Fails unless this server is the leader. The operation does not time out while
    /// it waits for the new leader.
    fn move_leader(&self, to: u64) -> StoreResult<'_, ()>;

    /// Checks whether a downgrade to this version can start. Returns the cluster version.
    fn validate_downgrade<'a>(&'a self, target: &'a str) -> StoreResult<'a, Version>;

    /// Starts a downgrade, for an administrator. Returns the cluster version, which is lowered later.
    fn enable_downgrade<'a>(
        &'a self,
        client: &'a Credentials,
        target: &'a str,
    ) -> StoreResult<'a, Version>;

    /// Ends a downgrade in progress, for an administrator. A failure is only logged, as in etcd. Returns the cluster
    /// version, if it is known.
    fn cancel_downgrade<'a>(&'a self, client: &'a Credentials) -> StoreFuture<'a, Option<Version>>;

    /// Adds a member with these peer URLs, for an administrator. Invalid URLs are refused before the client's role is
    /// checked. Returns the new member and all members.
    fn add_member<'a>(
        &'a self,
        client: &'a Credentials,
        peer_urls: &'a [String],
        is_learner: bool,
    ) -> StoreResult<'a, (Member, Vec<Member>)>;

    /// Removes a member, for an administrator. Returns the remaining members.
    fn remove_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
    ) -> StoreResult<'a, Vec<Member>>;

    /// Replaces the peer URLs of a member, for an administrator. Returns all members.
    fn update_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
        peer_urls: &'a [String],
    ) -> StoreResult<'a, Vec<Member>>;

    /// Makes a learner a voter, for an administrator. `token` is the client's token, with which the request may be
    /// forwarded to the leader. Returns all members.
    fn promote_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
        token: Option<&'a str>,
    ) -> StoreResult<'a, Vec<Member>>;
}
