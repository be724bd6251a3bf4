//! The decisions of one member, as a deterministic function of its inputs.
//!
//! A [`Node`] wraps the consensus core and adds what every member needs around it. It keeps
//! proposals while there is no leader. All waiting readers share one confirmation of leadership. It
//! returns the entries to write and the entries to apply in the right order, and it decides when a
//! snapshot is due. Inputs are [`Event`]s, passed to [`Node::handle`]; outputs are [`Effect`]s,
//! returned by [`Node::poll_effect`]. The caller owns time, threads, files and sockets.
//!
//! # The caller's duties
//!
//! 1. Every heartbeat interval, pass the time to [`Node::note_time`] and then an [`Event::Tick`].
//! 2. Execute [`Effect::Persist`] in order and report each by [`Event::Persisted`] when it is
//!    durable. One sync may make several of them durable.
//! 3. Send every [`Effect::Send`] when it is returned. A message that depends on durable data is
//!    returned only after the matching `Persisted`.
//! 4. Execute [`Effect::Apply`] in order and report progress by [`Event::Applied`]. For an entry
//!    that changes the membership, report the decision by [`Event::ConfChangeDecided`] before
//!    `Applied` covers the entry.
//! 5. Execute [`Effect::InstallSnapshot`] in its order among the `Apply`s, and report the
//!    snapshot's index as applied.
//! 6. On [`Effect::Stop`], end the member. If the fault requires it, ensure that the member never
//!    votes again with the same log. The node ignores all further events.
//! 7. On [`Effect::RefuseWrites`], raise or deactivate the NOSPACE alarm of this member.
//! 8. Before a clean stop, write [`Node::unwritten_hard_state`].
//!
//! # Invariants
//!
//! * Deterministic: the same events give the same effects. The seed of the election jitter is in
//!   the configuration.
//! * The answer to a read barrier is an index that was committed when the barrier was requested or
//!   later. It comes from a member that was the leader at some moment between request and answer.
//! * Every queue is bounded: [`limits`].
//!
//! # Not here
//!
//! Elections, replication and quorums (`raft`); encoding (`peer`); the state machine (`state`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod confirmation;
mod disk_watch;
mod early_appends;
mod effect;
mod event;
mod full_disk_watch;
pub mod limits;
mod node;
mod persistence;
mod proposals;
mod read_barrier;
mod refusals;
mod snapshot_policy;
mod succession;

pub use effect::{
    Applying, BarrierFailure, Effect, Leadership, LogFault, Persist, ProposalFailure,
};
pub use event::{ConfChangeDecision, Event, Proposal};
pub use node::{Config, Node, StartError};
pub use snapshot_policy::SnapshotPolicy;

#[cfg(test)]
mod tests;
