//! What can go wrong with a log, in the words operators know from etcd.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A log that cannot be created, read or written.
#[derive(Debug, Error)]
pub enum WalError {
    /// The operating system refused.
    #[error("wal: failed to {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory it was tried on.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The directory holds a log already, so none is created.
    #[error("wal: file already exists in {}", dir.display())]
    AlreadyExists {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The directory holds no segment.
    #[error("wal: file not found in {}", dir.display())]
    NoSegments {
        /// The log's directory.
        dir: PathBuf,
    },
    /// Every segment begins behind the snapshot to start from.
    #[error("wal: file not found which matches the snapshot index '{index}'")]
    NoSegmentForSnapshot {
        /// The snapshot's log index.
        index: u64,
    },
    /// A segment is missing between two others.
    #[error(
        "wal: file sequence numbers (starting from {position}) do not increase continuously in {}",
        dir.display()
    )]
    SequenceGap {
        /// Where the first segment to read stands in the sorted list of segments.
        position: usize,
        /// The log's directory.
        dir: PathBuf,
    },
    /// Somebody else has the segment open for writing.
    #[error("fileutil: file already locked: {}", path.display())]
    Locked {
        /// The segment.
        path: PathBuf,
    },
    /// The log ends inside a record. Only ever seen by readers: opening for writing repairs it.
    #[error("unexpected EOF: in file '{}' at position: {offset}", path.display())]
    Torn {
        /// The segment.
        path: PathBuf,
        /// Where the incomplete record begins.
        offset: u64,
    },
    /// A record's checksum does not continue the chain.
    #[error(
        "walpb: crc mismatch: expected: {expected:x} computed: {computed:x}: in file '{}' at position: {offset}",
        path.display()
    )]
    CrcMismatch {
        /// The checksum stored in the record.
        expected: u32,
        /// The checksum of the log so far.
        computed: u32,
        /// The segment.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
    },
    /// Bytes that should be a message are not.
    #[error("proto: cannot parse invalid wire-format data: {what} in file '{}' at position: {offset}", path.display())]
    Malformed {
        /// Which message it should be.
        what: &'static str,
        /// The segment.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
    },
    /// A record is of a kind this format does not have.
    #[error("unexpected block type {kind}: in file '{}' at position: {offset}", path.display())]
    UnexpectedKind {
        /// The kind.
        kind: i64,
        /// The segment.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
    },
    /// Two segments belong to different members.
    #[error("wal: conflicting metadata found in file '{}' at position: {offset}", path.display())]
    MetadataConflict {
        /// The segment with the second version.
        path: PathBuf,
        /// Where its metadata record begins.
        offset: u64,
    },
    /// The log has a snapshot of the index to start from, taken in another term.
    #[error("wal: snapshot mismatch: index {index} has term {found} in the log, not {wanted}")]
    SnapshotMismatch {
        /// The snapshot's log index.
        index: u64,
        /// The term the caller named.
        wanted: u64,
        /// The term the log has.
        found: u64,
    },
    /// Entries are missing between two that are there.
    #[error(
        "wal: slice bounds out of range, snapshot[Index: {start_index}, Term: {start_term}], current entry[Index: {index}, Term: {term}], len(ents): {count}"
    )]
    Hole {
        /// The index reading began behind.
        start_index: u64,
        /// The term of that index.
        start_term: u64,
        /// The index of the entry that does not connect.
        index: u64,
        /// Its term.
        term: u64,
        /// How many entries connect.
        count: usize,
    },
    /// The damage is not at the end of the log, or came back after a repair.
    #[error("failed to read WAL, cannot be repaired: {source}")]
    CannotRepair {
        /// What reading the log said.
        source: Box<Self>,
    },
    /// A snapshot record is missing what every reader since etcd 3.5 needs.
    #[error("Saved (not-initial) snapshot is missing ConfState: index {index} term {term}")]
    MarkWithoutConfState {
        /// The snapshot's log index.
        index: u64,
        /// The snapshot's term.
        term: u64,
    },
    /// An earlier write or sync failed, after which nothing more is taken.
    #[error("wal: {} failed earlier and takes no more writes", dir.display())]
    Poisoned {
        /// The log's directory.
        dir: PathBuf,
    },
}

impl WalError {
    /// Returns whether the log merely ends too early, which a repair may mend.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        matches!(self, Self::Torn { .. })
    }

    /// Wraps the system's answer with what was tried on which path.
    pub(super) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
