//! What `cargo xtask package` makes, judged by those who take it: dpkg installs, upgrades, removes and purges it in a
//! throw-away root, the units start from it under a stand-in for systemd, Debian's etcd is taken over and handed back,
//! the container's root runs, and PostgreSQL under Patroni runs on members that change underneath.
//!
//! No right is needed, save for what says so when it is skipped. The program that is packed is the one under test
//! (`QUORATE_BIN`), so that no release is built for it.

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
