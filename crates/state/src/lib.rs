//! The replicated state machine: what the keyspace, its watchers and its leases hold after each log entry.
//!
//! Every member applies the same entries in the same order and must arrive at the same state, byte for
//! byte: peers compare hashes over it. Nothing here reads a clock, draws a random number, starts a thread
//! or waits: time arrives as an argument, and the server owns the threads.
//!
//! `schema` ← `backend` ← `mvcc` ← `watch`; `backend` ← `alarm`, `auth`, `members`, `versions`; `lease` and `quota`
//! stand alone; `apply` uses all of them and is used by none. Nothing below knows what is above it, and
//! what one must tell another (a key its lease, a change its watchers) `apply` carries.
//!
//! # Not here
//!
//! Bytes on disk (`quorate-storage`), consensus (`quorate-raft`), sockets and clocks (`quorate-server`).

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

pub mod alarm;
pub mod apply;
pub mod auth;
pub mod backend;
pub mod lease;
pub mod members;
pub mod mvcc;
pub mod quota;
pub mod schema;
mod steps;
pub mod units;
pub mod versions;
pub mod watch;
