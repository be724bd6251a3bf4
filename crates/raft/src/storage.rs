//! The interface through which the core reads the written part of the log.
//!
//! The core never writes. It returns the data to write in [`Ready`](crate::Ready) and reads written
//! data through this trait. The core calls all methods while it processes input, so they must
//! return data from memory. Members use the implementation [`MemoryStorage`].

mod memory;

pub use memory::MemoryStorage;

use thiserror::Error;

use crate::entry::Entry;
use crate::log_index::LogIndex;
use crate::state::{ConfState, HardState, Snapshot};
use crate::term::Term;

/// The reason why a part of the log cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// The position is before the first entry, because the log was compacted or replaced with a snapshot.
    #[error("requested index is unavailable due to compaction")]
    Compacted,
    /// The position is after the last entry.
    #[error("requested entry at index is unavailable")]
    Unavailable,
    /// A snapshot is being made; retry later.
    #[error("snapshot is temporarily unavailable")]
    SnapshotTemporarilyUnavailable,
    /// A snapshot at this index would be older than the existing one.
    #[error("requested index is older than the existing snapshot")]
    SnapshotOutOfDate,
}

/// The written part of the log: the entries after the last compacted entry, and the latest snapshot.
pub trait Storage {
    /// Returns the hard state and configuration to start from.
    fn initial_state(&self) -> (HardState, ConfState);

    /// Returns as many of the entries in `[lo, hi)` as fit into `bytes_max` encoded bytes, starting with the first
    /// entry, which is returned even if it does not fit. `hi` is at most `last_index() + 1`.
    fn entries(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError>;

    /// Returns the term of the entry at `index`, which must be in `[first_index() - 1, last_index()]`. This range
    /// includes the index before the first entry, because a follower that receives the first entry compares both logs'
    /// terms at the index before that entry. The term at index zero is zero.
    fn term(&self, index: LogIndex) -> Result<Term, StorageError>;

    /// Returns the index of the first entry, or of the next entry to be appended if the log is
    /// empty.
    fn first_index(&self) -> LogIndex;

    /// Returns the index of the last entry, or `first_index() - 1` if the log is empty.
    fn last_index(&self) -> LogIndex;

    /// Returns a snapshot for a follower that needs entries before `first_index()`.
    fn snapshot(&self) -> Result<Snapshot, StorageError>;
}
