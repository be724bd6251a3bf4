//! A deterministic simulator: it runs whole clusters in one thread, in virtual time, from a seed.
//!
//! The members run production code: consensus, log, state machine, snapshots and backend (`core` and the crates below
//! it). Disks ([`quorate_storage::disk::FaultyDisk`]), the network ([`network`]) and clocks ([`clock`]) are simulated.
//! They fail in the same ways as real disks, networks and clocks, but more often. Clients send requests and record the
//! responses. An operator changes the membership and makes mistakes. A [`judge`] checks the run.
//!
//! The seed determines the plan of a run ([`plan`]), and the plan determines every detail of the run ([`world`]). A
//! failing run is reduced to a run with fewer kinds of faults ([`run::shrink`]). The simulator counts the rare states
//! that its runs reach ([`rare_states`]).
//!
//! # Not here
//!
//! Threads, sockets, and the order in which the production shell starts its threads. `docs/testing.md` lists the parts of
//! the shell that the simulator imitates, and explains why.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod clock;
pub mod judge;
pub mod member;
pub mod network;
pub mod plan;
pub mod queue;
pub mod rare_states;
pub mod run;
pub mod trace;
pub mod translate;
pub mod world;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant serves as the origin")]
mod tests;
