//! Queued inputs of consensus and of the log.

use quorate_node::{Event, Persist, Proposal};
use quorate_raft::{ConfChange, Term};
use quorate_storage::wal::SnapshotMark;

use super::Reader;

/// An input of consensus, from another component or from outside the process.
#[derive(Debug)]
pub(super) enum Input {
    Event(Event),
    Propose(Proposal),
    /// A proposal that is valid only while the member leads in this term.
    ProposeAsLeader {
        term: Term,
        proposal: Proposal,
    },
    Barrier(Reader),
    Change(ConfChange),
    /// The client of this membership change has given up. Consensus has received the event that reports this.
    ChangeGivenUp(u64),
    /// A snapshot is on disk, and the log needs a record of it.
    Mark(SnapshotMark),
    /// An applied entry changed the membership, or a snapshot was installed.
    Applied,
}

/// A write order for the log while the log has its own thread.
#[derive(Debug)]
pub(super) enum LogOrder {
    Append(Persist),
    Mark(SnapshotMark),
}
