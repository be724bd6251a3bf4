//! The interface through which the core reads the written part of the log.
//!
//! The core never writes. It returns the data to write in [`Ready`](crate::Ready) and reads written
//! data through this trait. All methods are called during a step and must answer from memory.
//! [`MemoryStorage`] is the implementation that members use.

mod memory;

pub use memory::MemoryStorage;

use thiserror::Error;

use crate::entry::Entry;
use crate::log_index::LogIndex;
use crate::state::{ConfState, HardState, Snapshot};
use crate::term::Term;

/// Why a part of the log cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// The position is before the first entry: a snapshot has replaced it.
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

/// The written part of the log: a snapshot's position and the entries that follow it.
pub trait Storage {
    /// The hard state and configuration to start from.
    fn initial_state(&self) -> (HardState, ConfState);

    /// Entries in `[lo, hi)`, from the start, as many as fit into `bytes_max` encoded bytes, but at
    /// least one. `hi` is at most `last_index() + 1`.
    fn entries(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError>;

    /// The term of the entry at `index`, which must be in `[first_index() - 1, last_index()]`.
    /// Followers compare the term before the first entry; it is zero at index zero.
    fn term(&self, index: LogIndex) -> Result<Term, StorageError>;

    /// The index of the first entry, even if the log is empty.
    fn first_index(&self) -> LogIndex;

    /// The index of the last entry; `first_index() - 1` if the log is empty.
    fn last_index(&self) -> LogIndex;

    /// A snapshot for a follower that needs entries before `first_index()`.
    fn snapshot(&self) -> Result<Snapshot, StorageError>;
}
