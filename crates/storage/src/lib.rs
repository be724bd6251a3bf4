//! Bytes on disk: the write-ahead log, the backend file, snapshots and the data directory.
//!
//! Every format here is etcd's own, byte for byte. etcd and Quorate can therefore take over each
//! other's data directories at any time (`FORMAT.md`). The modules know files, records, pages and
//! checksums, but not raft, keys or revisions: a caller passes plain values and receives plain
//! values.
//!
//! # Invariants
//!
//! * Files are accessed only through [`disk::Disk`], so that a test or a simulator can replace the
//!   machine.
//! * Nothing here reads a clock, starts a thread, logs, or draws a random number.
//! * The bytes of a file are untrusted input: invalid bytes cause an error with path and offset,
//!   never a panic.
//! * A failed write or sync is final for the object in which it happened: the object refuses all
//!   further work.
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
