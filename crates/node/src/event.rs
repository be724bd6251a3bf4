//! What happens to a member.

use bytes::Bytes;
use quorate_raft::{ConfChange, LogIndex, MemberId, Message, SnapshotOutcome};

/// A request for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The caller's name for it; comes back in [`crate::Effect::ProposalFailed`].
    pub request_id: u64,
    /// The entry's payload.
    pub data: Bytes,
}

/// An input of [`crate::Node::handle`].
#[derive(Clone, Debug)]
pub enum Event {
    /// One heartbeat interval has passed.
    Tick,
    /// Requests for the log, in order.
    Propose(Vec<Proposal>),
    /// Nobody waits for these proposals any more (their ids, ascending). Those that wait for a leader are forgotten.
    Withdraw(Vec<u64>),
    /// A change of the membership for the log.
    ProposeConfChange {
        /// The caller's name for it.
        request_id: u64,
        /// The change, with the context that the state machine will read.
        change: ConfChange,
    },
    /// Readers wait to be told an index that is not stale.
    ReadBarrier {
        /// The caller's name for this barrier, never used twice.
        round: u64,
    },
    /// Messages from a peer, in the order in which they came.
    Received(Vec<Message>),
    /// Everything up to this token is durable.
    Persisted {
        /// From [`crate::Persist::token`].
        token: u64,
    },
    /// The state machine has carried out entries up to here.
    Applied {
        /// The last of them.
        index: LogIndex,
    },
    /// The state machine has judged a membership change of the log.
    ConfChangeDecided {
        /// The entry that holds it.
        index: LogIndex,
        /// The change; `None` if it was refused and changes nothing.
        change: Option<ConfChange>,
    },
    /// A snapshot of the state machine is on disk and recorded in the log.
    SnapshotTaken {
        /// The last entry it covers.
        index: LogIndex,
    },
    /// A message to this peer was lost.
    Unreachable(MemberId),
    /// This peer's connections have broken and nobody listens at its addresses any more: its process has
    /// ended, as far as can be told from here.
    Gone(MemberId),
    /// A snapshot has reached this peer, or has not.
    SnapshotSent {
        /// The peer.
        to: MemberId,
        /// Whether it has arrived.
        outcome: SnapshotOutcome,
    },
    /// Make this member the leader.
    TransferLeadership(MemberId),
    /// The backend file waits for room on its disk, or waits no longer.
    BackendRoom {
        /// Whether it waits.
        is_short: bool,
    },
}
