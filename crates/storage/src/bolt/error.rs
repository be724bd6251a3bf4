//! What can go wrong with a backend file, each case naming the file and the place in it.
//!
//! *Refusals* (a bad key, a missing bucket) leave the transaction usable. Everything else is a
//! *fault* of this machine or of the file: the transaction is over, and after a failed write or
//! sync so is the writer (see [`BoltError::Poisoned`]).

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

/// A refusal or a fault of the backend engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BoltError {
    /// The operating system failed a call on the file.
    #[error("{}: cannot {operation} at offset {offset}: {source}", path.display())]
    Io {
        /// The backend file.
        path: Arc<Path>,
        /// What was attempted, as a verb phrase.
        operation: &'static str,
        /// Where in the file; the wanted length for calls that change it.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The disk has no room for a larger file. Everything is as it was: the same may be tried again.
    #[error("{}: cannot grow the file at offset {wanted_bytes}: {source}", path.display())]
    NoRoom {
        /// The backend file.
        path: Arc<Path>,
        /// How long it was to become.
        wanted_bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// A page contradicts the format or the rest of the file.
    #[error("{}: page {page} is corrupt at byte {offset} of the file: {reason}", path.display())]
    Corrupt {
        /// The backend file.
        path: Arc<Path>,
        /// The page that was being read.
        page: u64,
        /// Where in the file the contradiction was seen.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// Neither meta page is valid: another program's file, or one that was damaged beyond use.
    #[error("{}: not a valid backend file: {reason} (meta pages at offsets 0 and {second_meta})", path.display())]
    NotABackend {
        /// The file.
        path: Arc<Path>,
        /// Where the second meta page was looked for.
        second_meta: u64,
        /// What the meta pages lack.
        reason: &'static str,
    },
    /// The file ends before the last page that its meta page speaks of.
    #[error("{}: file is cut off: it ends at offset {len}, its pages reach to {needed}", path.display())]
    CutOff {
        /// The backend file.
        path: Arc<Path>,
        /// Its length.
        len: u64,
        /// The length that its meta page demands.
        needed: u64,
    },
    /// Another process holds the file's lock; the caller may try again.
    #[error("{}: the file is locked by another process", path.display())]
    Locked {
        /// The backend file.
        path: Arc<Path>,
    },
    /// A write transaction was asked of a file that was opened for reading.
    #[error("{}: opened read-only", path.display())]
    ReadOnly {
        /// The backend file.
        path: Arc<Path>,
    },
    /// An earlier write or sync failed, so what the medium holds is unknown: no more commits.
    ///
    /// Readers go on with the last state that is known to be durable. Opening the file anew finds
    /// either that state or the one whose commit failed, never a mixture.
    #[error("{}: no further commits after a failed write: {cause}", path.display())]
    Poisoned {
        /// The backend file.
        path: Arc<Path>,
        /// The failure that ended the writer's life.
        cause: Arc<str>,
    },
    /// The named bucket does not exist.
    #[error("bucket {:?} does not exist", String::from_utf8_lossy(name))]
    BucketMissing {
        /// The bucket's name.
        name: Box<[u8]>,
    },
    /// The key names a bucket where a value was expected, or the other way round.
    #[error("key {:?} is of the other kind (bucket or value)", String::from_utf8_lossy(key))]
    WrongKind {
        /// The key or bucket name.
        key: Box<[u8]>,
    },
    /// Keys have 1 to 32,768 bytes.
    #[error("a key of {len} bytes is outside of 1 to {}", super::KEY_BYTES_MAX)]
    KeyLength {
        /// The offered key's length.
        len: usize,
    },
    /// Values have at most 2^31 - 2 bytes.
    #[error("a value of {len} bytes is above {}", super::VALUE_BYTES_MAX)]
    ValueLength {
        /// The offered value's length.
        len: usize,
    },
    /// The keys handed to a sorted operation do not ascend.
    #[error("key number {index} does not ascend")]
    KeysUnsorted {
        /// Position of the first key that is not above its predecessor.
        index: usize,
    },
    /// The options make no sense.
    #[error("invalid options: {reason}")]
    Options {
        /// What is wrong with them.
        reason: &'static str,
    },
}

impl BoltError {
    /// Whether only room on the disk was missing, and everything is as it was before.
    #[must_use]
    pub const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom { .. })
    }

    /// Whether it is the file's content that is wrong, and no other attempt will find it otherwise.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::NotABackend { .. } | Self::CutOff { .. })
    }
}

/// The engine's result.
pub type Result<T, E = BoltError> = std::result::Result<T, E>;
