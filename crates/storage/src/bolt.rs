//! The backend engine: a copy-on-write B+tree in one file, in bbolt's format (version 2).
//!
//! The replicated state machine stores its durable state here. One writer at a time builds a transaction in memory and
//! commits it. Any number of readers hold immutable snapshots. They receive slices of the mapped file as
//! reference-counted [`bytes::Bytes`], and no data is copied. bbolt can read the files that this engine writes, and
//! vice versa (`FORMAT.md` has the byte layouts).
//!
//! ```text
//! Db ── read() ──► ReadTx ──► BucketReader ──► Cursor        scan(): Scanner, bypasses the map
//!  └── write() ─► WriteTx ─► tree (edited nodes) ─► shape (page-sized nodes) ─► commit
//! ```
//!
//! # Invariants
//!
//! * A page that any snapshot can reach is never overwritten. A commit writes its pages into free
//!   space, syncs, and only then writes a meta page that points to them. The previous meta page
//!   stays intact.
//! * A page freed by transaction `t` can be reused once `t` is durable and every snapshot from before `t` that could
//!   reach the page has been dropped. A snapshot lives until its [`ReadTx`], all clones of the `ReadTx`, and all
//!   `Bytes` taken from them are dropped.
//! * The file is truncated only above all pages that live snapshots and the durable state reach, so
//!   that no mapped slice ever extends beyond the end of the file.
//! * After a failed write or sync the writer refuses all further work ([`BoltError::Poisoned`]),
//!   and readers continue to see the last durable state.
//! * No file content makes the engine panic. Bytes that violate the format result in
//!   [`BoltError::Corrupt`].
//!
//! # Not here
//!
//! The buckets and their content (the state machine's schema), the timing of commits, and waiting
//! for the file's lock.
//!
//! # Tests
//!
//! `bolt/tests/` contains a model-based property test, and tests of reclamation, of snapshots under concurrent writes,
//! of files written by etcd, of damaged files, and of power cuts at every operation.

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
mod multi_get;
mod page;
mod pages;
mod pass;
mod reach;
mod read;
mod reclaim;
mod scan;
mod shape;
mod shared;
mod snapshot;
mod source;
mod tree;
mod truncate;
mod window;
mod write;

pub use bucket::BucketReader;
pub use check::Problem;
pub use commit::CommitStats;
pub use cursor::{Cursor, Entry};
pub use db::{Db, Stats};
pub use error::{BoltError, Result};
pub use meta::{IMAGE_HEAD_BYTES, image_bytes};
pub use pages::{PageFacts, PageUse};
pub use read::ReadTx;
pub use reclaim::Reclaimed;
pub use scan::Scanner;
pub use shared::Options;
pub use write::WriteTx;

/// The maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 32_768;
/// The maximum length of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 2;
/// The maximum depth of a tree. A deeper tree is treated as corrupt. Real trees of 10^9 entries
/// have 6 levels.
const DEPTH_MAX: usize = 64;

/// A page number: the page's offset in the file, in units of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PageId(u64);

/// The number of a transaction. A snapshot has the number of the last commit that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TxId(u64);

/// A run of consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    start: PageId,
    count: u64,
}

impl Run {
    /// Returns the page after the last page of the run.
    fn end(&self) -> PageId {
        PageId(self.start.0.saturating_add(self.count))
    }
}

#[cfg(test)]
mod tests;
