//! The inputs of a node.

use bytes::Bytes;
use quorate_raft::{ConfChange, ConfState, LogIndex, MemberId, Message, SnapshotOutcome};

/// A request for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The id that the caller chose; [`crate::Effect::ProposalFailed`] contains it.
    pub request_id: u64,
    /// The payload of the entry.
    pub data: Bytes,
}

/// The decision of the state machine about a membership change of the log.
#[derive(Clone, Debug)]
pub struct ConfChangeDecision {
    /// The index of the entry.
    pub index: LogIndex,
    /// The change; `None` if it was refused and changes nothing.
    pub change: Option<ConfChange>,
    /// The members that the state machine lists after the entry.
    pub members: ConfState,
}

/// An input of [`crate::Node::handle`].
#[derive(Clone, Debug)]
pub enum Event {
    /// One heartbeat interval has passed.
    Tick,
    /// Requests for the log, in order.
    Propose(Vec<Proposal>),
    /// The clients no longer wait for these proposals (ids in ascending order). Those that still
    /// wait for a leader are dropped.
    Withdraw(Vec<u64>),
    /// A membership change to add to the log.
    ProposeConfChange {
        /// The id that the caller chose.
        request_id: u64,
        /// The change, with the context that the state machine will read.
        change: ConfChange,
    },
    /// Readers wait for an index that is not stale.
    ReadBarrier {
        /// The id that the caller chose for this barrier; never reused.
        round: u64,
    },
    /// Messages from a peer, in the order of arrival.
    Received(Vec<Message>),
    /// Everything up to this token is durable.
    Persisted {
        /// From [`crate::Persist::token`].
        token: u64,
    },
    /// The state machine has applied entries up to this index.
    Applied {
        /// The last applied entry.
        index: LogIndex,
    },
    /// The state machine has decided a membership change of the log.
    ConfChangeDecided(ConfChangeDecision),
    /// A snapshot of the state machine is on disk and recorded in the log.
    SnapshotTaken {
        /// The last entry that the snapshot covers.
        index: LogIndex,
    },
    /// A message to this peer was lost.
    Unreachable(MemberId),
    /// The connections to this peer are broken and its addresses refuse new ones, so its process
    /// has probably ended.
    Gone(MemberId),
    /// The transfer of a snapshot to this peer has ended.
    SnapshotSent {
        /// The peer.
        to: MemberId,
        /// Whether the snapshot has arrived.
        outcome: SnapshotOutcome,
    },
    /// Transfer leadership to this member.
    TransferLeadership(MemberId),
    /// The backend file has begun or ceased to wait for disk space.
    BackendSpace {
        /// Whether the backend file waits for space.
        is_short: bool,
    },
}
