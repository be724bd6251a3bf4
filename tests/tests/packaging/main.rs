//! Tests of the output of `cargo xtask package` by its consumers: dpkg installs, upgrades, removes and purges it in a
//! throw-away root, the units start from it under a stand-in for systemd, Debian's etcd is taken over and handed back,
//! the container's root runs, and PostgreSQL under Patroni runs on members that are replaced.
//!
//! The tests need no privileges, except for steps that report that they are skipped. The packed program is the one
//! under test (`QUORATE_BIN`), so that no release is built.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod container;
mod init;
mod install;
mod kubeadm;
mod packed;
mod page;
mod patroni;
mod place;
mod takeover;
