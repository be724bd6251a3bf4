//! The inputs of a node.

use bytes::Bytes;
use quorate_raft::{ConfChange, ConfState, LogIndex, MemberId, Message, SnapshotOutcome};

/// A request to be added to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The id that the caller chose; [`crate::Effect::ProposalFailed`] contains it.
    pub request_id: u64,
    /// The payload of the entry.
    pub data: Bytes,
}

/// The state machine's decision about a membership change in the log.
#[derive(Clone, Debug)]
pub struct ConfChangeDecision {
    /// The index of the entry.
    pub index: LogIndex,
    /// The change; `None` if the state machine refused it.
    pub change: Option<ConfChange>,
    /// The membership according to the state machine after it has applied the entry.
    pub members: ConfState,
}

/// An input of [`crate::Node::handle`].
#[derive(Clone, Debug)]
pub enum Event {
    /// One heartbeat interval has passed.
    Tick,
    /// A [`crate::COMMIT_NOTICE_INTERVAL`] has passed while [`crate::Node::defers_commit_notices`] was true.
    CommitInterval,
    /// Requests to add to the log, in order.
    Propose(Vec<Proposal>),
    /// The clients no longer wait for the proposals with these ids, which are in ascending order.
    /// Those that are still waiting for a leader are dropped.
    Withdraw(Vec<u64>),
    /// A membership change to add to the log.
    ProposeConfChange {
        /// The id that the caller chose.
        request_id: u64,
        /// The change, including the context for the state machine.
        change: ConfChange,
    },
    /// Readers need the index that must be applied before a read is linearizable.
    ReadBarrier {
        /// The id that the caller chose for this barrier. Ids are never reused.
        round: u64,
    },
    /// Messages from a peer, in arrival order.
    Received(Vec<Message>),
    /// All writes up to this token are durable.
    Persisted {
        /// The [`crate::Persist::token`] of the last durable write.
        token: u64,
    },
    /// The state machine has applied entries up to this index.
    Applied {
        /// The index of the last applied entry.
        index: LogIndex,
    },
    /// The state machine has accepted or refused a membership change in the log.
    ConfChangeDecided(ConfChangeDecision),
    /// A snapshot of the state machine is on disk and recorded in the log.
    SnapshotTaken {
        /// The index of the last entry that the snapshot covers.
        index: LogIndex,
    },
    /// A message to this peer was lost.
    Unreachable(MemberId),
    /// The connections to this peer are broken and its addresses refuse new connections, so its
    /// process has probably ended.
    Gone(MemberId),
    /// The transfer of a snapshot to this peer has ended.
    SnapshotSent {
        /// The receiver of the snapshot.
        to: MemberId,
        /// Whether the snapshot arrived.
        outcome: SnapshotOutcome,
    },
    /// Transfer leadership to this member.
    TransferLeadership(MemberId),
    /// The backend file has started or stopped waiting for disk space.
    BackendSpace {
        /// Whether the backend file is waiting for disk space.
        is_short: bool,
    },
}
