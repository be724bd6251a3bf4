//! Errors of the backend engine. Each fault names the file and the position in it.
//!
//! *Refusals* (such as an invalid key or a missing bucket) leave the transaction usable. All other
//! errors are *faults* of this machine or of the file. After a fault the transaction has ended, and
//! after a failed write or sync the writer accepts no further transaction (see
//! [`BoltError::Poisoned`]).

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

/// A refusal or a fault of the backend engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BoltError {
    /// A system call on the file failed.
    #[error("{}: cannot {operation} at offset {offset}: {source}", path.display())]
    Io {
        /// The backend file.
        path: Arc<Path>,
        /// The failed operation, as a verb phrase.
        operation: &'static str,
        /// The offset in the file. For calls that change the length, the requested length.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The disk has no room for a larger file. Nothing was changed, so the caller may retry.
    #[error("{}: cannot grow the file to {wanted_bytes} bytes: {source}", path.display())]
    NoRoom {
        /// The backend file.
        path: Arc<Path>,
        /// The requested length, in bytes.
        wanted_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A page violates the format or contradicts the rest of the file.
    #[error("{}: page {page} is corrupt at byte {offset} of the file: {reason}", path.display())]
    Corrupt {
        /// The backend file.
        path: Arc<Path>,
        /// The page that was being read.
        page: u64,
        /// The offset in the file.
        offset: u64,
        /// A description of the problem.
        reason: &'static str,
    },
    /// Neither meta page is valid. The file was written by another program, or is damaged beyond repair.
    #[error("{}: not a valid backend file: {reason} (meta pages at offsets 0 and {second_meta})", path.display())]
    NotABackend {
        /// The path of the file.
        path: Arc<Path>,
        /// The expected offset of the second meta page.
        second_meta: u64,
        /// The problem with the meta pages.
        reason: &'static str,
    },
    /// The file ends before the last page that its meta page covers.
    #[error("{}: file is truncated: it ends at offset {len}, but its pages extend to offset {needed}", path.display())]
    CutOff {
        /// The backend file.
        path: Arc<Path>,
        /// The length of the file.
        len: u64,
        /// The length that the file's meta page requires.
        needed: u64,
    },
    /// Another process holds the file's lock. The caller may retry.
    #[error("{}: the file is locked by another process", path.display())]
    Locked {
        /// The backend file.
        path: Arc<Path>,
    },
    /// A write transaction was requested for a file that is open for reading only.
    #[error("{}: cannot write, because the file is open for reading only", path.display())]
    ReadOnly {
        /// The backend file.
        path: Arc<Path>,
    },
    /// An earlier write or sync failed, so the content of the medium is unknown and commits are
    /// refused.
    ///
    /// Readers continue to see the last state that is known to be durable. Reopening the file yields either that state
    /// or the state whose commit failed, never a mixture.
    #[error("{}: commits are refused, because an earlier write or sync failed: {cause}", path.display())]
    Poisoned {
        /// The backend file.
        path: Arc<Path>,
        /// The failure that poisoned the writer.
        cause: Arc<str>,
    },
    /// The named bucket does not exist.
    #[error("bucket {:?} does not exist", String::from_utf8_lossy(name))]
    BucketMissing {
        /// The bucket's name.
        name: Box<[u8]>,
    },
    /// The key names a bucket where a value is expected, or vice versa.
    #[error(
        "key {:?} names a bucket where a value is expected, or a value where a bucket is expected",
        String::from_utf8_lossy(key)
    )]
    WrongKind {
        /// The key or bucket name.
        key: Box<[u8]>,
    },
    /// The key is empty or longer than 32,768 bytes.
    #[error("key length {len} is out of range: it must be 1 to {} bytes", super::KEY_BYTES_MAX)]
    KeyLength {
        /// The length of the key.
        len: usize,
    },
    /// The value is longer than 2^31 - 2 bytes.
    #[error(
        "value length {len} is out of range: it must be at most {} bytes",
        super::VALUE_BYTES_MAX
    )]
    ValueLength {
        /// The length of the value.
        len: usize,
    },
    /// The keys of a sorted operation are not in ascending order.
    #[error("key number {index} is not greater than the previous key")]
    KeysUnsorted {
        /// The position of the first key that is not greater than its predecessor.
        index: usize,
    },
    /// The options are invalid.
    #[error("invalid options: {reason}")]
    Options {
        /// The problem with the options.
        reason: &'static str,
    },
}

impl BoltError {
    /// Returns whether the operation failed because the disk is full. Such an operation has changed nothing.
    #[must_use]
    pub const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom { .. })
    }

    /// Returns whether the file's content is invalid, so that a retry would fail in the same way.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::NotABackend { .. } | Self::CutOff { .. })
    }
}

/// The result of an operation of the engine.
pub type Result<T, E = BoltError> = std::result::Result<T, E>;
