//! The part of the log that is already written, as the core reads it back.
//!
//! The core never writes: it says in [`Ready`](crate::Ready) what has to be written, and reads
//! through this trait what has been. All methods are called in the course of a step and must
//! answer from memory; [`MemoryStorage`] is the implementation that members use.

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
    /// The position lies before the first entry: a snapshot has taken its place.
    #[error("requested index is unavailable due to compaction")]
    Compacted,
    /// The position lies beyond the last entry.
    #[error("requested entry at index is unavailable")]
    Unavailable,
    /// A snapshot is being made; ask again.
    #[error("snapshot is temporarily unavailable")]
    SnapshotTemporarilyUnavailable,
    /// A snapshot at this index would be older than the one already there.
    #[error("requested index is older than the existing snapshot")]
    SnapshotOutOfDate,
}

/// The written part of the log: a snapshot's position and the entries that follow it.
pub trait Storage {
    /// The hard state and configuration to start from.
    fn initial_state(&self) -> (HardState, ConfState);

    /// Entries in `[lo, hi)`, as many of the first as fit into `bytes_max` encoded bytes, but at
    /// least one. `hi` is never beyond `last_index() + 1`.
    fn entries(
        &self,
        lo: LogIndex,
        hi: LogIndex,
        bytes_max: u64,
    ) -> Result<Vec<Entry>, StorageError>;

    /// The term of the entry at `index`, known for `[first_index() - 1, last_index()]`. The term
    /// just before the first entry (zero at index zero) is what a follower compares.
    fn term(&self, index: LogIndex) -> Result<Term, StorageError>;

    /// The index of the first entry, whether or not there is one.
    fn first_index(&self) -> LogIndex;

    /// The index of the last entry; `first_index() - 1` without entries.
    fn last_index(&self) -> LogIndex;

    /// A snapshot to send to a follower that needs entries from before `first_index()`.
    fn snapshot(&self) -> Result<Snapshot, StorageError>;
}
