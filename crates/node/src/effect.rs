//! What a member wants done.

use quorate_raft::{
    Entry, HardState, LogIndex, MemberId, Message, Role, Snapshot, StepError, Term,
};
use thiserror::Error;

/// Something to make durable, in the order of its fields.
#[derive(Clone, Debug, Default)]
pub struct Persist {
    /// Names it in [`crate::Event::Persisted`]; ascending.
    pub token: u64,
    /// A leader's snapshot, from which the log begins anew. Its image has arrived before.
    pub snapshot: Option<Snapshot>,
    /// Entries to append, replacing what the log has from the first one's index on.
    pub entries: Vec<Entry>,
    /// The hard state, if it changed.
    pub hard_state: Option<HardState>,
}

/// Entries to carry out.
#[derive(Clone, Debug, Default)]
pub struct Applying {
    /// Committed entries, consecutive.
    pub entries: Vec<Entry>,
}

/// Who leads, as far as this member knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, or [`quorate_raft::NONE`].
    pub leader: MemberId,
    /// The term it leads in.
    pub term: Term,
    /// This member's part.
    pub role: Role,
}

/// Why a proposal will not get into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalFailure {
    /// The consensus core refused it, as that of a leader does that was removed from the cluster.
    Dropped,
    /// Too many proposals wait for a leader, or too much of the log is not committed yet.
    QueueFull,
}

/// Why a read barrier cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierFailure {
    /// Another leader came up while the barrier was under way.
    LeaderChanged,
    /// Too many barriers are under way.
    QueueFull,
}

/// Why a member must not go on: its log and its group's contradict each other.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LogFault {
    /// This log has lost what the member had acknowledged. If it voted, others could lose it too: it must never
    /// vote again, also after a restart.
    #[error(transparent)]
    LogLost(StepError),
    /// The group has lost what is committed in this log. A restart finds that out again.
    #[error(transparent)]
    GroupLost(StepError),
}

/// An output of [`crate::Node::poll_effect`].
#[derive(Clone, Debug)]
pub enum Effect {
    /// Make durable, then report.
    Persist(Persist),
    /// Send to `to`; may be lost.
    Send(Message),
    /// Send a snapshot of the state machine as it then is, not older than the message says; then report by
    /// [`crate::Event::SnapshotSent`].
    SendSnapshot(Message),
    /// Carry out, then report.
    Apply(Applying),
    /// Put the image of this snapshot in place of the state machine, then report its index as applied.
    InstallSnapshot(Snapshot),
    /// Leadership has changed.
    Leadership(Leadership),
    /// A read may proceed once the state machine has reached `index`.
    BarrierPassed {
        /// The round it answers.
        round: u64,
        /// What has to be applied first.
        index: LogIndex,
    },
    /// A read may not proceed.
    BarrierFailed {
        /// The round it answers.
        round: u64,
        /// Why.
        failure: BarrierFailure,
    },
    /// A proposal is lost, for certain.
    ProposalFailed {
        /// The proposal.
        request_id: u64,
        /// Why.
        failure: ProposalFailure,
    },
    /// Take a snapshot of the state machine, now.
    TakeSnapshot,
    /// This member leads without room for its backend file, and no other voter can lead: have writes refused. With
    /// `false` that is over.
    RefuseWrites(bool),
    /// End the member. It is the last effect.
    Stop(LogFault),
}
