//! The file system, behind one trait.
//!
//! This crate accesses files only through a [`Disk`] and the [`DiskFile`]s that the disk opens.
//! [`RealDisk`] accesses the machine's files. [`FaultyDisk`] is an in-memory disk that injects
//! failures, for crash tests and simulation. It records the changes that a power cut could still
//! undo.
//!
//! # Guarantees
//!
//! * Each read and write has an explicit offset. There is no shared file cursor.
//! * Written bytes are durable after [`DiskFile::sync_data`], as is the file length needed to read
//!   them. The creation, renaming or removal of a name is durable after [`Disk::sync_dir`] of the
//!   name's directory. No other operation makes anything durable.
//! * After a failed sync the state on the medium is unknown, and a later successful sync does not
//!   cover the earlier writes. The caller must stop using the file.
//! * Locks belong to the open file and are released when it is closed.
//!
//! # Not here
//!
//! The content of the files, and the timing of syncs (`wal`, `snap`, `bolt`).

mod change;
mod durable_dir;
mod faulty;
mod mapping;
mod open_file;
mod real;
mod reservation;

use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use durable_dir::{create_dir_durably, parent};
pub use faulty::{Fault, Faults, FaultsHit, FaultyDisk, IO_ERROR, NO_SPACE, Operation, Surviving};
pub use mapping::Mapping;
pub use real::RealDisk;
use real::unnamed_file;
pub(crate) use reservation::{is_no_room, reserve_ahead, try_allocate};

/// How [`Disk::open`] handles an existing or a missing file.
///
/// Modes that can create a file contain the permission bits of the new file, before the umask is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads an existing file.
    Read,
    /// Reads and writes an existing file.
    ReadWrite,
    /// Reads and writes a file, and creates it if it is missing.
    Create(u32),
    /// Creates a file that must not exist yet.
    CreateNew(u32),
    /// Creates a file, or empties the existing one in place.
    Truncate(u32),
}

/// A lock on an open file. While it is held, other processes, and other handles to the same file, cannot take a
/// conflicting lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// An exclusive open-file-description record lock over the whole file, like etcd's locks on log
    /// segments. Systems without such locks use `flock`.
    OfdExclusive,
    /// An exclusive `flock`, like bbolt's lock on the backend file.
    FlockExclusive,
    /// A shared `flock`, like bbolt's lock in read-only mode.
    FlockShared,
}

/// The metadata of a name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Length in bytes. Meaningless for a directory.
    pub len: u64,
    /// Whether the name refers to a directory.
    pub is_dir: bool,
    /// Whether the name refers to a regular file or to a link to one.
    pub is_file: bool,
    /// Permission bits (the low 12 bits of `st_mode`).
    pub mode: u32,
    /// Time of the last modification, if the file system stores it.
    pub modified: Option<SystemTime>,
}

/// A tree of files and directories.
pub trait Disk: Send + Sync + Debug {
    /// Opens or creates a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a directory and its missing ancestors, each with `mode` minus the umask.
    ///
    /// An existing directory is not changed.
    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Returns the names in a directory, sorted bytewise.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Renames a file or directory. A file with the new name is replaced atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name. Open handles to the file, and their locks, stay valid.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything below it. A missing directory is not an error.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the creation, renaming and removal of names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the metadata of a name, or `None` if the name does not exist.
    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>>;
}

/// An open file.
pub trait DiskFile: Send + Sync + Debug {
    /// Reads up to `buffer.len()` bytes at `offset`. Returns the number of bytes read, which is 0
    /// at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`. The file grows as needed.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all slices consecutively, starting at `offset`, in as few calls as possible.
    fn write_all_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for slice in slices {
            self.write_all_at(slice, at)?;
            at += slice.len() as u64;
        }
        Ok(())
    }

    /// Fills `buffer` with the bytes that start at `offset`, or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Returns the file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file to `len`, or extends it with zeros that occupy no space yet.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space so that the file is at least `len` bytes long. New bytes are zeros.
    ///
    /// Falls back to [`DiskFile::set_len`] if the file system cannot reserve space. Never shortens
    /// the file.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Returns the number of free bytes on the file's disk, or `None` if the system does not report them.
    fn free_bytes(&self) -> io::Result<Option<u64>>;

    /// Makes the written bytes and the file length needed to read them durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the bytes and all attributes durable (`fsync`).
    fn sync_all(&self) -> io::Result<()>;

    /// Tries to take a lock without waiting. Returns `false` if another open file holds a
    /// conflicting lock.
    fn try_lock(&self, kind: LockKind) -> io::Result<bool>;

    /// Maps the first `len` bytes of the file for reading. Later writes to the file are visible in
    /// the mapping.
    ///
    /// `len` may exceed the file's length to leave room for growth. See [`Mapping`].
    fn map(&self, len: usize) -> io::Result<Mapping>;
}

#[cfg(test)]
mod tests;
