//! Tests of the output of `cargo xtask package`. dpkg installs, upgrades, removes and purges the package in a
//! throw-away root, its units start under a stand-in for systemd, Debian's etcd is taken over and handed back, a member
//! runs in the container's root, and PostgreSQL under Patroni runs on members that are replaced.
//!
//! Most steps need no privileges. The others report that they are skipped if they lack the required privileges. The
//! packaged program is the one under test (`QUORATE_BIN`), so that no release needs to be built.

#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod container;
mod init;
mod install;
mod kubeadm;
mod packed;
mod page;
mod patroni;
mod place;
mod takeover;
