//! What a member takes on at one time: the bounds on the work that clients give it, by name.
//!
//! | bound | counts | a place is held | at the bound |
//! |---|---|---|---|
//! | [`CALLS_MAX`] | calls, streams among them | until nothing of the call is left | refused; an eighth is for authenticated users |
//! | [`LOGINS_MAX`] | calls that log in | the same | refused |
//! | [`REQUEST_BYTES_MAX`] | bytes of requests that have come | until the answer, or a stream's message is whole | refused |
//! | `PROPOSALS` (`threads::pending_proposals`) | requests for the log, and their bytes | until it is applied or cannot be any more | refused |
//! | [`READS_MAX`] | reads that wait for consensus or the applier | until it goes on, or is given up | refused |
//! | [`TOKENS_WAITING_MAX`] | tokens of later entries than are applied | until they are, or time is up | taken for false |
//! | [`TASKS_MAX`] | questions and orders to the core threads | until it is carried out | refused |
//! | [`LIST_BYTES_MAX`] | references to the records of lists | until the client has taken the list | waits, then refused |
//! | [`REPLY_BYTES_MAX`] | bytes of replies and of snapshots | until the client has taken them | waits, then refused |
//! | [`WAITER_BYTES_MAX`] | who waits for a lock or an election | until it is his, or his key is withdrawn | refused |
//!
//! Refused is "etcdserver: too many requests", which etcd's clients know. What cannot be read again does not wait:
//! lists of leases and members, parts of a range stream, snapshots. Each bound has its series in `/metrics`
//! (`metrics::state`): what it holds now, and how often it has refused.
//!
//! A proposal is the only thing whose memory outlives its caller: what is in the log of a leader stays there until
//! it is committed and applied. So its place does, too (`pending_proposals`).
//!
//! # The sum
//!
//! Beside the store itself: what waits to be answered (proposals, requests, replies, lists) 2.3 GiB, calls, watchers
//! with their events, and waiters 3 GiB, what has not been looked at 1 GiB, the log 1.5 GiB, what goes to the backend
//! file 0.5 GiB.
//! Each may be exceeded by one thing. Not in it: 64 KiB of each connection without a large window, and one response of
//! each watch stream.
//!
//! # Not here
//!
//! What one request may be ([`crate::Limits`]). Bounds of the rooms around: `docs/bounds.md` has all of a member's, with
//! their series and the tests that reach them.

mod calls;
mod logins;

use std::sync::Arc;

pub use self::calls::{CallPermit, Caller, Calls};
pub use self::logins::{LoginSource, Logins};
pub use crate::threads::bound::{Bound, Full, Permit};

/// Linearizable reads that wait for their barrier, and requests that wait until what is committed is applied.
pub const READS_MAX: u64 = 16_384;

/// Requests that show a token from a later entry of the log than is applied here: the member lags behind whoever gave
/// the token out, or nobody ever did. Anybody can make such tokens up, so they wait apart from reads, and take no
/// reader's place.
pub const TOKENS_WAITING_MAX: u64 = 1_024;

/// Questions and orders to the core threads: status, transfers of the lead, commits and compactions that
/// somebody waits for. The threads keep them when their callers have gone.
pub const TASKS_MAX: u64 = 1_024;

/// Memory that the references to the records of all long lists may take. One list may go beyond.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Bytes of all replies with records that clients have not taken yet. One reply may go beyond. Most of them are
/// pages of the backend file; the worst case are values that have been overwritten since.
pub const REPLY_BYTES_MAX: u64 = 1 << 30;

/// Calls on all connections, streams of watchers among them. Some 10 KiB each.
pub const CALLS_MAX: u64 = 1 << 17;

/// Logins in progress, which count besides the calls. Each waits for one password at a time.
pub const LOGINS_MAX: u64 = 1024;

/// Bytes of requests that have come and are not answered, or not whole yet.
pub const REQUEST_BYTES_MAX: u64 = 512 << 20;

/// Memory of those who wait for a lock or to be elected, their keys and values included. Some 40 KiB each.
pub const WAITER_BYTES_MAX: u64 = 1 << 30;

/// The bounds that requests share; that on proposals is with those who wait for them (`pending_proposals`).
#[derive(Debug)]
pub struct Admission {
    /// [`READS_MAX`].
    pub reads: Bound,
    /// [`TOKENS_WAITING_MAX`].
    pub tokens: Bound,
    /// [`TASKS_MAX`].
    pub tasks: Arc<Bound>,
    /// [`LIST_BYTES_MAX`].
    pub lists: Arc<Bound>,
    /// [`REPLY_BYTES_MAX`].
    pub replies: Arc<Bound>,
    /// [`WAITER_BYTES_MAX`].
    pub waiters: Arc<Bound>,
    /// [`CALLS_MAX`], [`LOGINS_MAX`] and [`REQUEST_BYTES_MAX`].
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

/// A place that goes where its work goes.
pub type OwnedPermit = Permit<Arc<Bound>>;
