//! Admission: the bounds on the work that clients may request from a member.
//!
//! | bound | counts | released | at the bound |
//! |---|---|---|---|
//! | [`CALLS_MAX`] | calls, including streams | when the call and its response have ended | refused; an eighth is reserved for authenticated users |
//! | [`LOGINS_MAX`] | login calls | when the call and its response have ended | refused |
//! | [`REQUEST_BYTES_MAX`] | bytes of requests that have arrived | when the request is answered, or the message of a stream is complete | refused |
//! | `PROPOSALS` (`threads::pending_proposals`) | proposals and their bytes | when the proposal is applied or can no longer be applied | refused |
//! | [`READS_MAX`] | reads that wait for consensus or the applier | when the read continues or is cancelled | refused |
//! | [`TOKENS_WAITING_MAX`] | tokens issued by entries that are not applied yet | when the entries are applied, or after a timeout | treated as invalid |
//! | [`TASKS_MAX`] | queries and commands to core threads | when the task is done | refused |
//! | [`LIST_BYTES_MAX`] | references to the records of lists; with `--engine`, the keys and values of lists | when the client has received the list | waits, then refused |
//! | [`REPLY_BYTES_MAX`] | bytes of replies and of snapshots | when the client has received them | waits, then refused |
//! | [`WAITER_BYTES_MAX`] | requests that wait for a lock or an election | when the waiter acquires the lock, or its key is deleted | refused |
//!
//! A refused request receives the error "etcdserver: too many requests", which etcd's clients recognise. Responses that
//! cannot be read again after a wait are refused immediately: lists of leases and members, parts of a range stream, and
//! snapshots. Each bound has series in `/metrics` (`metrics::state`): the amount in use, and the number of refusals.
//!
//! Of the memory that a request uses, only the memory of its proposal can outlive the request, because an entry stays
//! in the leader's log until it is committed and applied. The permit of a proposal is therefore kept until the entry is
//! applied (`pending_proposals`).
//!
//! # Total memory
//!
//! In addition to the store, a member uses at most 2.3 GiB for unanswered requests and replies (proposals, requests,
//! replies, lists), and with `--engine` 0.3 GiB more for rows that are being read; 3 GiB for calls, waiters, and
//! watchers with their events; 1 GiB for received and unread data; 1.5 GiB for the log; and 0.5 GiB for changes that
//! are not in the backend file yet. Each bound may be exceeded by a single request or reply. This total excludes 64 KiB
//! for each connection with a small receive window, and one response for each watch stream.
//!
//! # Not here
//!
//! Limits on a single request ([`crate::Limits`]). `docs/bounds.md` lists all bounds of a member, with their series and
//! the tests that reach them.

mod calls;
mod logins;

use std::sync::Arc;

pub use self::calls::{CallPermit, Caller, Calls};
pub use self::logins::{LoginSource, Logins};
pub use crate::bound::{Bound, Full, Permit};

/// Maximum number of linearizable reads that wait for their read barrier, and of requests that wait until the committed
/// entries are applied.
pub const READS_MAX: u64 = 16_384;

/// Maximum number of requests whose token was issued by a log entry that this member has not applied yet. Either this
/// member lags behind the member that issued the token, or the token is forged. Since any client can forge such tokens,
/// these requests are counted separately from reads and do not use the permits for reads.
pub const TOKENS_WAITING_MAX: u64 = 1_024;

/// Maximum number of queries and commands to core threads for which a caller waits: status, leadership transfers,
/// commits and compactions. The threads keep a task even if its caller is cancelled.
pub const TASKS_MAX: u64 = 1_024;

/// Maximum memory for the references that all long lists together hold to their records, in bytes. With `--engine`, for
/// their keys and values. On a member, a single list may exceed the bound.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of bytes in all replies that contain records and that clients have not received yet. A single reply
/// may exceed the bound. Most of these bytes are pages of the backend file. In the worst case, they are values that
/// have since been overwritten.
pub const REPLY_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of calls on all connections, including watch streams. Each call takes about 10 KiB.
pub const CALLS_MAX: u64 = 1 << 17;

/// Maximum number of logins in progress. Logins also count as calls, but [`CALLS_MAX`] never refuses them. Each login
/// waits for one password check at a time.
pub const LOGINS_MAX: u64 = 1024;

/// Maximum number of received bytes of all incomplete and unanswered requests.
pub const REQUEST_BYTES_MAX: u64 = 512 << 20;

/// Maximum memory of the requests that wait for a lock or an election, in bytes, including their keys and values. Each
/// request takes about 40 KiB.
pub const WAITER_BYTES_MAX: u64 = 1 << 30;

/// The bounds that all requests share, except the bound on proposals (`pending_proposals`).
#[derive(Debug)]
pub struct Admission {
    /// Waiting reads, at most [`READS_MAX`].
    pub reads: Bound,
    /// Requests that wait for the entry that issued their token, at most [`TOKENS_WAITING_MAX`].
    pub tokens: Bound,
    /// Tasks of core threads, at most [`TASKS_MAX`].
    pub tasks: Arc<Bound>,
    /// Bytes of long lists, at most [`LIST_BYTES_MAX`].
    pub lists: Arc<Bound>,
    /// Bytes of replies, at most [`REPLY_BYTES_MAX`].
    pub replies: Arc<Bound>,
    /// Bytes of requests that wait for a lock or an election, at most [`WAITER_BYTES_MAX`].
    pub waiters: Arc<Bound>,
    /// Calls, logins and request bytes, at most [`CALLS_MAX`], [`LOGINS_MAX`] and [`REQUEST_BYTES_MAX`].
    pub calls: Arc<Calls>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            reads: Bound::new(READS_MAX),
            tokens: Bound::new(TOKENS_WAITING_MAX),
            tasks: Arc::new(Bound::new(TASKS_MAX)),
            lists: Arc::new(Bound::new(LIST_BYTES_MAX)),
            replies: Arc::new(Bound::new(REPLY_BYTES_MAX)),
            waiters: Arc::new(Bound::new(WAITER_BYTES_MAX)),
            calls: Arc::new(Calls::new(CALLS_MAX, LOGINS_MAX, REQUEST_BYTES_MAX)),
        }
    }
}

/// A permit that can be moved together with its work.
pub type OwnedPermit = Permit<Arc<Bound>>;
