//! Whole clusters in one thread, in virtual time, from a seed.
//!
//! The members are real: consensus, log, state machine, snapshots and backend are those of production (`core` and what
//! it stands on), over disks ([`quorate_storage::disk::FaultyDisk`]), a network ([`network`]) and clocks ([`clock`]) that fail as the real ones do,
//! and more often. Clients ask and write down what they are told; an operator changes the members, and makes mistakes.
//! A [`judge`] looks on.
//!
//! What a run is like is drawn from its seed ([`plan`]); the rest is a function of that ([`world`]), down to the byte.
//! A run that fails is made smaller ([`run::shrink`]), and states that should be come to sometimes are counted ([`seen`]).
//!
//! # Not here
//!
//! Threads, sockets and the order in which the shell's threads are started and stopped. `docs/testing.md` lists what of
//! the shell is imitated, and why.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod clock;
pub mod judge;
pub mod member;
pub mod network;
pub mod plan;
pub mod queue;
pub mod run;
pub mod seen;
pub mod trace;
pub mod translate;
pub mod world;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
mod tests;
