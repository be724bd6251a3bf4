//! The status of the data store. This is the second part of the interface to the data store; `data_store` is the first
//! part.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use quorate_state::units::Millis;
use quorate_state::versions::Version;

use crate::store_future::StoreFuture;

/// How far the writes have been executed, and which server decides their order.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The term of the last executed write. It increases when another server begins to decide the order of writes.
    pub term: u64,
    /// The position of the last write that is known to be durable.
    pub committed: u64,
    /// The position of the last write that reads on this server include.
    pub applied: u64,
    /// The id of the server that decides the order of writes, or 0 if none is known.
    pub leader: u64,
}

/// The state of consensus on this server.
#[derive(Clone, Debug)]
pub struct ConsensusStatus {
    /// The current term.
    pub term: u64,
    /// The id of the server for which this server voted in the current term, or 0.
    pub vote: u64,
    /// The position of the last write that is known to be durable.
    pub committed: u64,
    /// The position of the last write that is applied on this server.
    pub applied: u64,
    /// The id of the leader, or 0 if none is known.
    pub leader: u64,
    /// etcd's name for the role of this server, such as `StateLeader`.
    pub role: String,
    /// The progress of every member if this server leads, otherwise empty.
    pub progress: Vec<MemberProgress>,
    /// The id of the server to which this server is transferring the leadership, or 0.
    pub transferee: u64,
}

/// A leader's record of the progress of one member.
#[derive(Clone, Debug)]
pub struct MemberProgress {
    /// The id of the member.
    pub id: u64,
    /// The position up to which the member's log is known to equal the leader's log.
    pub match_index: u64,
    /// The position of the next write to send to the member.
    pub next_index: u64,
    /// etcd's name for how the leader sends writes to the member, such as `StateReplicate`.
    pub state: String,
}

/// The status of a data store. Only `wait_applied` and `wait_for_leader` may wait. Every other method only reads
/// memory.
pub trait Status: Debug + Send + Sync {
    /// Returns the current progress.
    fn progress(&self) -> Progress;

    /// Returns the state of consensus.
    fn consensus(&self) -> ConsensusStatus;

    /// Returns the term of the last executed write, which response headers contain.
    fn term(&self) -> u64;

    /// Returns whether a leader is known.
    fn has_leader(&self) -> bool;

    /// Returns the time on the clock by which tokens and leases expire.
    fn now(&self) -> Millis;

    /// Returns the storage version of the data, if it is known.
    fn storage_version(&self) -> Option<Version>;

    /// Waits until the write at position `index` is applied, but at most until `deadline`. Returns whether the write is
    /// applied.
    fn wait_applied(&self, index: u64, deadline: Instant) -> StoreFuture<'_, bool>;

    /// Waits until there is a leader, or until there has been no leader for `timeout`. Returns whether there is a
    /// leader.
    fn wait_for_leader(&self, timeout: Duration) -> StoreFuture<'_, bool>;
}
