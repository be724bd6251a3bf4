//! What one member decides, as a function of what happens to it.
//!
//! A [`Node`] wraps the consensus core with what every member has to do around it: it keeps proposals
//! while there is no leader, shares one confirmation of leadership among all readers that wait for
//! one, hands out what has to be written and what has to be applied in the right order, and says when
//! a snapshot is due. [`Event`]s go in by [`Node::handle`], [`Effect`]s come out by
//! [`Node::poll_effect`]. The caller owns time, threads, files and sockets.
//!
//! # The caller's duties
//!
//! 1. Give the time by [`Node::note_time`], then hand in a [`Event::Tick`], every heartbeat interval.
//! 2. Carry out [`Effect::Persist`] in order and report each by [`Event::Persisted`], only once it is
//!    durable. Several may be made durable by one sync.
//! 3. Send every [`Effect::Send`] when it comes out. Messages that speak of something durable come out
//!    only after the matching `Persisted`.
//! 4. Carry out [`Effect::Apply`] in order and report progress by [`Event::Applied`]. For an entry that
//!    changes the membership, report the verdict by [`Event::ConfChangeDecided`] before `Applied`
//!    covers it.
//! 5. Carry out [`Effect::InstallSnapshot`] in its place among the `Apply`s, and report the snapshot's
//!    index as applied.
//! 6. On [`Effect::Stop`], end the member, and see to it that it never votes again from the same log if the
//!    fault says so. The node does nothing any more.
//! 7. On [`Effect::RefuseWrites`], raise the NOSPACE alarm of this member, or take it back.
//! 8. Before a clean stop, write [`Node::unwritten_hard_state`].
//!
//! # Invariants
//!
//! * Deterministic: the same events give the same effects. The seed of election jitter is in the
//!   configuration.
//! * A read barrier is answered with an index that was committed when the barrier was asked for, or
//!   later, by a member that was the leader at some moment in between.
//! * Every queue has a bound: [`limits`].
//!
//! # Not here
//!
//! Elections, replication and quorums (`raft`); encoding (`server`); the state machine (`state`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod confirmation;
mod disk_watch;
mod early_appends;
mod effect;
mod event;
pub mod limits;
mod node;
mod persistence;
mod proposals;
mod read_barrier;
mod refusals;
mod room_watch;
mod snapshot_policy;
mod succession;

pub use effect::{
    Applying, BarrierFailure, Effect, Leadership, LogFault, Persist, ProposalFailure,
};
pub use event::{Event, Proposal};
pub use node::{Config, Node, StartError};
pub use snapshot_policy::SnapshotPolicy;

#[cfg(test)]
mod tests;
