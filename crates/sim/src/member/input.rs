//! What consensus is told, and what it tells the log.

use quorate_node::{Event, Persist, Proposal};
use quorate_raft::{ConfChange, Term};
use quorate_storage::wal::SnapshotMark;

use super::Reader;

/// What consensus is to hear, from the other machines and from outside.
#[derive(Debug)]
pub(super) enum Input {
    Event(Event),
    Propose(Proposal),
    /// The same for what only a leader may want.
    ProposeAsLeader {
        term: Term,
        proposal: Proposal,
    },
    Barrier(Reader),
    Change(ConfChange),
    /// A snapshot is on disk: mark the log with it.
    Mark(SnapshotMark),
    /// Something was applied that is worth waking for.
    Applied,
}

/// What the log is to do, where it is not consensus that does it.
#[derive(Debug)]
pub(super) enum LogOrder {
    Append(Persist),
    Mark(SnapshotMark),
}
