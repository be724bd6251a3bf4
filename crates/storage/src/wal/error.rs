//! Errors of the log, with texts that operators know from etcd.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A failure to create, read or write a log.
#[derive(Debug, Error)]
pub enum WalError {
    /// A file system operation failed.
    #[error("wal: failed to {action} {}: {source}", path.display())]
    Io {
        /// The failed action, as a verb.
        action: &'static str,
        /// The file or directory on which the action failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory already contains a log, so no log was created.
    #[error("wal: file already exists in {}", dir.display())]
    AlreadyExists {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The directory contains no segment.
    #[error("wal: file not found in {}", dir.display())]
    NoSegments {
        /// The log's directory.
        dir: PathBuf,
    },
    /// Every segment begins after the snapshot at which reading should start.
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
        /// The position, in the sorted list of segments, of the first segment to be read.
        position: usize,
        /// The log's directory.
        dir: PathBuf,
    },
    /// Another process has the segment open for writing.
    #[error("fileutil: file already locked: {}", path.display())]
    Locked {
        /// The path of the segment.
        path: PathBuf,
    },
    /// The log ends inside a record. Returned only when a log is read, because opening a log for
    /// writing repairs the torn end.
    #[error("unexpected EOF: in file '{}' at position: {offset}", path.display())]
    Torn {
        /// The path of the segment.
        path: PathBuf,
        /// The offset of the incomplete record.
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
        /// The checksum computed over the log so far.
        computed: u32,
        /// The path of the segment.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
    },
    /// Bytes cannot be decoded as the expected message.
    #[error("proto: cannot parse invalid wire-format data: {what} in file '{}' at position: {offset}", path.display())]
    Malformed {
        /// The name of the expected message.
        what: &'static str,
        /// The path of the segment.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
    },
    /// A record has a type that the format does not define.
    #[error("unexpected block type {kind}: in file '{}' at position: {offset}", path.display())]
    UnexpectedKind {
        /// The undefined type.
        kind: i64,
        /// The path of the segment.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
    },
    /// Two segments belong to different members.
    #[error("wal: conflicting metadata found in file '{}' at position: {offset}", path.display())]
    MetadataConflict {
        /// The segment with the different metadata.
        path: PathBuf,
        /// The offset of the segment's metadata record.
        offset: u64,
    },
    /// The log has a snapshot mark with the start index but a different term.
    #[error("wal: snapshot mismatch: index {index} has term {found} in the log, not {wanted}")]
    SnapshotMismatch {
        /// The snapshot's log index.
        index: u64,
        /// The term that the caller passed.
        wanted: u64,
        /// The term of the mark in the log.
        found: u64,
    },
    /// Entries are missing between two existing entries.
    #[error(
        "wal: slice bounds out of range, snapshot[Index: {start_index}, Term: {start_term}], current entry[Index: {index}, Term: {term}], len(ents): {count}"
    )]
    Hole {
        /// The index of the snapshot at which reading began.
        start_index: u64,
        /// The term of the snapshot at which reading began.
        start_term: u64,
        /// The index of the entry after the gap.
        index: u64,
        /// The term of the entry after the gap.
        term: u64,
        /// The number of entries before the gap.
        count: usize,
    },
    /// The term decreases from one entry to the next, which is impossible in a member's log.
    #[error(
        "wal: the entry at index {index} has term {term}, lower than term {before} of the previous entry: in file '{}' \
         at position: {offset}",
        path.display()
    )]
    TermFalls {
        /// The index of the entry.
        index: u64,
        /// The term of the entry.
        term: u64,
        /// The term of the previous entry.
        before: u64,
        /// The path of the segment.
        path: PathBuf,
        /// The offset of the entry's record.
        offset: u64,
    },
    /// The damage is not at the end of the log, or was found again after a repair.
    #[error("failed to read WAL, cannot be repaired: {source}")]
    CannotRepair {
        /// The error that occurred when the log was read.
        source: Box<Self>,
    },
    /// A snapshot record lacks the `ConfState`, which every reader since etcd 3.5 requires.
    #[error("Saved (not-initial) snapshot is missing ConfState: index {index} term {term}")]
    MarkWithoutConfState {
        /// The snapshot's log index.
        index: u64,
        /// The snapshot's term.
        term: u64,
    },
    /// An earlier write or sync failed, so the log refuses further writes.
    #[error("wal: an earlier write or sync of {} failed, so the log refuses further writes", dir.display())]
    Poisoned {
        /// The log's directory.
        dir: PathBuf,
    },
}

impl WalError {
    /// Returns whether the only problem is that the log ends too early, which a repair may fix.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        matches!(self, Self::Torn { .. })
    }

    /// Wraps a system error with the action and its path.
    pub(super) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
