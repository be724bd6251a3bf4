//! The replicated state machine: the keyspace, watchers, leases, users, members and alarms of a
//! cluster.
//!
//! Every member applies the same entries in the same order and must reach the same state, byte for byte, because
//! members compare hashes of their states. This crate never reads a clock, draws a random number, starts a thread or
//! waits. Time is an argument, and `member` owns the threads.
//!
//! Here, `a` ← `b` means that module `b` depends on module `a`: `schema` ← `backend` ← `mvcc` ← `watch`; `backend` ←
//! `alarm`, `auth`, `versions`; `versions` ← `members`; `lease` and `quota` depend on none of these; `apply` uses all
//! of them, and no module uses `apply`. Any module may use `units` and `steps`. `apply` passes facts, such as a key's
//! lease or the changes that watchers receive, between modules that do not depend on each other.
//!
//! # Not here
//!
//! The storage engine (`storage`), consensus (`raft`), threads and clocks (`member`), sockets
//! (`edge`, `peer`).

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]
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
