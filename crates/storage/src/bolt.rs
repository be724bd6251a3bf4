//! The backend engine: a copy-on-write B+tree in one file, in bbolt's format (version 2).
//!
//! The replicated state machine keeps everything durable here. One writer at a time builds a
//! transaction in memory and commits it; any number of readers hold constant snapshots, and what
//! they read are slices of the mapped file, which leave as reference-counted [`bytes::Bytes`] without
//! a copy. Files go both ways between this engine and bbolt (`FORMAT.md` has the byte maps).
//!
//! ```text
//! Db ── read() ──► ReadTx ──► BucketReader ──► Cursor        scan(): Scanner, beside the map
//!  └── write() ─► WriteTx ─► tree (edited nodes) ─► shape (page-sized nodes) ─► commit
//! ```
//!
//! # Invariants
//!
//! * A page that any snapshot can reach is never written. Commits put their pages in free places,
//!   sync, and only then point a meta page at them; the previous meta page stays intact.
//! * A page freed by transaction `t` is free for reuse once `t` is durable and no snapshot from
//!   before `t` that could reach it is alive. A snapshot lives as long as its [`ReadTx`], their
//!   clones, or any `Bytes` taken from them.
//! * The file is shortened only below what every live snapshot and the durable state reach, so that
//!   no mapped slice ever lies beyond its end.
//! * After a failed write or sync the writer refuses to go on ([`BoltError::Poisoned`]), and readers
//!   keep the last durable state.
//! * No byte of a file makes the engine panic: what contradicts the format is
//!   [`BoltError::Corrupt`].
//!
//! # Not here
//!
//! Which buckets exist and what they hold (the state machine's schema), when to commit, and how
//! long to wait for the file's lock.
//!
//! # Tests
//!
//! `bolt/tests/`: a model-based property test, snapshots under concurrent writes, reclamation, files
//! written by etcd, damaged files, and power cuts at every sync point.

mod bucket;
mod check;
mod commit;
mod cursor;
mod db;
mod error;
mod free;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod meta;
mod page;
mod pages;
mod reach;
mod read;
mod reclaim;
mod scan;
mod shape;
mod shared;
mod snapshot;
mod source;
mod together;
mod tree;
mod window;
mod write;

pub use bucket::BucketReader;
pub use check::Problem;
pub use commit::CommitStats;
pub use cursor::{Cursor, Entry};
pub use db::{Db, Stats};
pub use error::{BoltError, Result};
pub use pages::{PageFacts, PageUse};
pub use read::ReadTx;
pub use reclaim::Reclaimed;
pub use scan::Scanner;
pub use shared::Options;
pub use write::WriteTx;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 32_768;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 2;
/// Deepest tree that is believed. Real trees of 10^9 entries have 6 levels.
const DEPTH_MAX: usize = 64;

/// A page's number: its place in the file in units of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PageId(u64);

/// A transaction's number. A snapshot carries that of the last commit it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TxId(u64);

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    start: PageId,
    count: u64,
}

impl Run {
    /// The page behind the last one.
    fn end(&self) -> PageId {
        PageId(self.start.0.saturating_add(self.count))
    }
}

#[cfg(test)]
mod tests;
