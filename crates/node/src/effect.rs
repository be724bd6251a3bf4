//! The outputs of a node.

use quorate_raft::{
    Entry, HardState, LogIndex, MemberId, Message, NONE, Role, Snapshot, StepError, Term,
};
use thiserror::Error;

use crate::reconfiguration::Danger;

/// Data to make durable. The caller writes the fields in the order of their declaration.
#[derive(Clone, Debug, Default)]
pub struct Persist {
    /// The id of the write, used in [`crate::Event::Persisted`]. Ids ascend.
    pub token: u64,
    /// A snapshot from the leader, which replaces the whole log. Its image has already arrived.
    pub snapshot: Option<Snapshot>,
    /// Entries to append. They replace the log's entries, starting at the first new entry's index.
    pub entries: Vec<Entry>,
    /// The hard state, if it has changed.
    pub hard_state: Option<HardState>,
}

/// Entries to apply.
#[derive(Clone, Debug, Default)]
pub struct Applying {
    /// Consecutive committed entries.
    pub entries: Vec<Entry>,
}

/// The current leader as known to this member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, or [`quorate_raft::NONE`].
    pub leader: MemberId,
    /// The term of the leader.
    pub term: Term,
    /// The role of this member.
    pub role: Role,
}

impl Leadership {
    /// Returns whether an election has ended since `previous` was observed: there is a leader, and in `previous` there
    /// was no leader, a different one, or the same one in an earlier term.
    #[must_use]
    pub fn has_new_leader(&self, previous: &Self) -> bool {
        self.leader != NONE && (self.leader, self.term) != (previous.leader, previous.term)
    }

    /// Returns etcd's log line about the difference to `previous`, if the leader has changed.
    pub(crate) fn change_text(&self, previous: &Self, id: MemberId) -> Option<String> {
        let (Self { leader, term, .. }, before) = (*self, previous.leader);
        Some(match (before, leader) {
            (NONE, NONE) => return None,
            (_, NONE) => format!("raft.node: {id:x} lost leader {before:x} at term {term}"),
            _ if !self.has_new_leader(previous) => return None,
            (NONE, _) => format!("raft.node: {id:x} elected leader {leader:x} at term {term}"),
            _ => format!(
                "raft.node: {id:x} changed leader from {before:x} to {leader:x} at term {term}"
            ),
        })
    }
}

/// The reason why a proposal is not added to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalFailure {
    /// The consensus core refused the proposal, for example because the leader was removed from the
    /// cluster.
    Dropped,
    /// Too many proposals wait for a leader, the uncommitted log is too large, or too many log writes are in progress.
    QueueFull,
    /// The membership change has waited too long for a leader.
    Expired,
    /// The membership change had to wait for an earlier change, and would now endanger the quorum.
    UnsafeChange(Danger),
}

/// The reason why a read barrier failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierFailure {
    /// The leader changed while the barrier was pending.
    LeaderChanged,
    /// Too many barriers are pending.
    QueueFull,
    /// The barrier has lasted for [`crate::Config::proposal_ticks_max`] ticks.
    TimedOut,
}

/// The reason why a member must stop: its log contradicts the log of its group.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LogFault {
    /// This log has lost entries that the member had acknowledged. If the member votes, it may help to elect a leader
    /// that lacks these entries too, so it must never vote again, not even after a restart.
    #[error(transparent)]
    LogLost(StepError),
    /// The group has lost entries that are committed in this log. The member detects this again
    /// after a restart.
    #[error(transparent)]
    GroupLost(StepError),
}

/// An output of [`crate::Node::poll_effect`].
#[derive(Clone, Debug)]
pub enum Effect {
    /// Make the data durable, then report [`crate::Event::Persisted`].
    Persist(Persist),
    /// Send the message to the member `to`. The message may be lost.
    Send(Message),
    /// Send a snapshot of the current state machine, whose applied index must not be lower than the message's index.
    /// Then report the outcome with [`crate::Event::SnapshotSent`].
    SendSnapshot(Message),
    /// Apply the entries, then report [`crate::Event::Applied`].
    Apply(Applying),
    /// Replace the state machine with the image of this snapshot, then report its index as applied.
    InstallSnapshot(Snapshot),
    /// Leadership has changed.
    Leadership(Leadership),
    /// A read may proceed once the state machine has reached `index`.
    BarrierPassed {
        /// The round of the barrier.
        round: u64,
        /// The index that must be applied first.
        index: LogIndex,
    },
    /// A read may not proceed.
    BarrierFailed {
        /// The round of the barrier.
        round: u64,
        /// The cause of the failure.
        failure: BarrierFailure,
    },
    /// A proposal was dropped and will never enter the log.
    ProposalFailed {
        /// The id of the proposal.
        request_id: u64,
        /// The cause of the failure.
        failure: ProposalFailure,
    },
    /// Take a snapshot of the state machine now.
    TakeSnapshot,
    /// `true`: writes must be refused, because this member leads, has no disk space for its backend
    /// file, and no other voter can lead. `false`: writes may be accepted again.
    RefuseWrites(bool),
    /// Stop the member. This is the last effect.
    Stop(LogFault),
}
