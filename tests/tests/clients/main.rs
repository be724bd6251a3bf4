//! Clients that people use, unmodified: each does what it can do, against both servers, and says what it sees.
//!
//! Those of Python and JavaScript are installed by `installed`, where there is a registry to install them from; `tests/clients`
//! has a script for each, with what it sees on etcd beside it. `etcd-client` of crates.io is called right here, as far as
//! `blackbox/tools.rs` does not call it already.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod installed;
mod members;
mod rust;
mod scripts;
mod servers;
