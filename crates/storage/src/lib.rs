//! Data on disk: the write-ahead log, the backend file, snapshots and the data directory.
//!
//! Every format here is etcd's own, byte for byte. Therefore etcd and Quorate can take over each
//! other's data directories at any time (`FORMAT.md`). The modules deal with files, records, pages
//! and checksums, but not with raft, keys or revisions. Callers pass and receive plain values.
//!
//! # Invariants
//!
//! * Files are accessed only through [`disk::Disk`], so that a test or a simulator can replace the real disk.
//! * This crate does not read clocks, start threads, write log lines, or draw random numbers.
//! * The content of a file is untrusted input. Invalid bytes cause an error that contains the path
//!   and the offset, never a panic.
//! * After a failed write or sync, the affected object refuses all further work.

#![cfg_attr(
    test,
    expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod bolt;
pub mod checksum;
pub mod data_dir;
pub mod disk;
#[cfg(test)]
mod format_file;
mod head;
pub mod lost_log;
mod note;
pub mod purge;
pub mod rebuild;
pub mod restored;
mod size;
pub mod snap;
mod sync_failure;
pub mod wal;
