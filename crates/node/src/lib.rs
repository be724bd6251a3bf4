//! Computes the decisions of one member as a deterministic function of its inputs.
//!
//! A [`Node`] wraps the consensus core and adds the functions that every member needs around it. It
//! keeps proposals while there is no leader, confirms leadership in one round for all waiting readers, returns the
//! entries to write and to apply in the right order, and decides when a snapshot is due. Inputs are [`Event`]s, passed
//! to [`Node::handle`]; outputs are [`Effect`]s, returned by [`Node::poll_effect`]. The caller owns time, threads,
//! files and sockets.
//!
//! # The caller's duties
//!
//! 1. Pass the time to [`Node::note_time`] before each batch of requests and messages, and call [`Node::end_batch`]
//!    after it. Every heartbeat interval, pass the time and then an [`Event::Tick`].
//! 2. Execute every [`Effect::Persist`] in order, and report it with [`Event::Persisted`] once it
//!    is durable. A single sync may make several of them durable.
//! 3. Send every [`Effect::Send`] as soon as it is returned. A message that depends on durable data is returned only
//!    after `Persisted` has been reported for that data.
//! 4. Execute every [`Effect::Apply`] in order, and report progress with [`Event::Applied`]. For an
//!    entry that changes the membership, report the decision with [`Event::ConfChangeDecided`]
//!    before an `Applied` covers the entry.
//! 5. Execute every [`Effect::InstallSnapshot`] in sequence with the [`Effect::Apply`]s, and report the snapshot's
//!    index as applied.
//! 6. On [`Effect::Stop`], stop the member. If the fault requires it, ensure that the member never
//!    votes again with the same log. The node ignores all further events.
//! 7. On [`Effect::RefuseWrites`], raise or deactivate this member's NOSPACE alarm.
//! 8. While [`Node::defers_commit_notices`] is true, pass [`Event::CommitInterval`] after each
//!    [`COMMIT_NOTICE_INTERVAL`].
//! 9. Before a clean stop, write [`Node::unwritten_hard_state`].
//!
//! # Invariants
//!
//! * The node is deterministic: the same events cause the same effects. The configuration contains
//!   the seed of the election jitter.
//! * A read barrier returns an index that is at least the commit index at the time of the request. The index comes from
//!   a member that was the leader at some time between the request and the response.
//! * Every queue is bounded by a constant in [`limits`].
//!
//! # Not here
//!
//! Elections, replication and quorums (`raft`); encoding (`peer`); the state machine (`state`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod commit_notices;
mod confirmation;
mod disk_watch;
mod early_appends;
mod effect;
mod event;
mod flow_limits;
mod full_disk_watch;
pub mod limits;
mod node;
mod persistence;
mod proposals;
mod read_barrier;
pub mod reconfiguration;
mod refusals;
mod snapshot_policy;
mod succession;

pub use commit_notices::COMMIT_NOTICE_INTERVAL;
pub use effect::{
    Applying, BarrierFailure, Effect, Leadership, LogFault, Persist, ProposalFailure,
};
pub use event::{ConfChangeDecision, Event, Proposal};
pub use flow_limits::FlowLimits;
pub use node::{Config, Node, StartError};
pub use snapshot_policy::SnapshotPolicy;

#[cfg(test)]
mod tests;
