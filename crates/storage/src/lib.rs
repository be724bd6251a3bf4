//! Bytes on disk: the write-ahead log, the backend file, snapshots and the data directory.
//!
//! Every format here is etcd's own, byte for byte, in both directions, so that a data directory can
//! change hands between the two programs at any time (`FORMAT.md`). The modules know files, records,
//! pages and checksums; they do not know raft, keys or revisions: a caller hands over plain values
//! and gets plain values and facts back.
//!
//! # Invariants
//!
//! * The world is reached through [`disk::Disk`] only, so that a test or a simulator can stand
//!   between this crate and the machine.
//! * Nothing here reads a clock, starts a thread, logs, or draws a random number.
//! * What a file's bytes say is foreign input: it leads to an error with path and offset, never to a
//!   panic.
//! * A failed write or sync is final for the object it happened to: it refuses everything after.
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
