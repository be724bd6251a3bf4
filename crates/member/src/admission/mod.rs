//! What a member takes on at one time: the bounds on the work that clients give it, by name.
//!
//! | bound | counts | a place is held | at the bound |
//! |---|---|---|---|
//! | [`PROPOSALS`] | requests for the log, and their bytes | until it is applied or cannot be any more | refused |
//! | [`READS_MAX`] | reads that wait for consensus or the applier | until it goes on, or its caller has gone | refused |
//! | [`TASKS_MAX`] | questions and orders to the core threads | until it is carried out | refused |
//! | [`LIST_BYTES_MAX`] | references to the records of long lists | until the client has taken the list | waits, then refused |
//! | [`REPLY_BYTES_MAX`] | bytes of replies with records | until the client has taken the reply | waits, then refused |
//!
//! Refused is "etcdserver: too many requests", which etcd's clients know. Each bound has its series in `/metrics`
//! (`metrics::state`): what it holds now, and how often it has refused.
//!
//! A proposal is the only thing whose memory outlives its caller: what is in the log of a leader stays there until
//! it is committed and applied. So its place does, too (`waiters`).
//!
//! # Not here
//!
//! Bounds on connections and streams (`net::listen`), on watchers (`state::watch`), on what peers are sent
//! (`peer::outgoing`), and on what one request may be (`member::Limits`). Requests that have not arrived whole
//! are bounded by these together, and by nothing in common.

mod bound;
mod waitlist;

use std::sync::Arc;

pub use self::bound::{Bound, Full, Place};
pub(crate) use self::waitlist::{SweepMark, Waitlist};

/// Requests for the log that this member has accepted and not yet carried out.
pub const PROPOSALS: ProposalLimit =
    ProposalLimit { count_max: quorate_node::limits::WAITING_PROPOSALS_MAX, bytes_max: 512 << 20 };

/// Linearizable reads that wait for their barrier, and requests that wait until what is committed is applied.
pub const READS_MAX: u64 = 16_384;

/// Questions and orders to the core threads: status, transfers of the lead, commits and compactions that
/// somebody waits for. The threads keep them when their callers have gone.
pub const TASKS_MAX: u64 = 1_024;

/// Memory that the references to the records of all long lists may take. One list may go beyond.
pub const LIST_BYTES_MAX: u64 = 256 << 20;

/// Bytes of all replies with records that clients have not taken yet. One reply may go beyond. Most of them are
/// pages of the backend file; the worst case are values that have been overwritten since.
pub const REPLY_BYTES_MAX: u64 = 1 << 30;

/// How many requests for the log there may be, and of how many bytes in all. One that is alone may be of any size.
#[derive(Clone, Copy, Debug)]
pub struct ProposalLimit {
    pub(crate) count_max: usize,
    pub(crate) bytes_max: usize,
}

/// The bounds that requests share; that on proposals is with those who wait for them (`waiters`).
#[derive(Debug)]
pub struct Admission {
    /// [`READS_MAX`].
    pub reads: Bound,
    /// [`TASKS_MAX`].
    pub tasks: Arc<Bound>,
    /// [`LIST_BYTES_MAX`].
    pub lists: Arc<Bound>,
    /// [`REPLY_BYTES_MAX`].
    pub replies: Arc<Bound>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            reads: Bound::new(READS_MAX),
            tasks: Arc::new(Bound::new(TASKS_MAX)),
            lists: Arc::new(Bound::new(LIST_BYTES_MAX)),
            replies: Arc::new(Bound::new(REPLY_BYTES_MAX)),
        }
    }
}

/// A place that goes where its work goes.
pub type Room = Place<Arc<Bound>>;
