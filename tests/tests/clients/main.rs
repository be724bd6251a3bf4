//! Tests of unmodified, commonly used client libraries. Each test exercises the features of one library, and runs
//! against both servers.
//!
//! `installed` installs the libraries for Python and JavaScript if a registry is available. The folder `tests/clients`
//! contains a script for each library, with its expected output on etcd. `etcd-client` from crates.io is called
//! directly, to test the features that `blackbox/tools.rs` does not use.

#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod installed;
mod members;
mod rust;
mod scripts;
mod servers;
