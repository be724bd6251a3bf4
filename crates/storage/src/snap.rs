//! The snapshot directory, which contains `.snap` files and backend files received from a leader.
//!
//! A `.snap` file contains the log index of a snapshot, the cluster configuration at that index,
//! and the members in the old (v2) JSON form that etcd up to 3.6 reads. The data itself is in the
//! backend file, which is already durable when the `.snap` file is written.
//!
//! ```text
//! file      1 crc (CRC-32C of data), 2 data = raftpb.Snapshot
//! Snapshot  1 data (JSON), 2 metadata { 1 ConfState, 2 index, 3 term }
//! ```
//!
//! # Order
//!
//! The backend is committed first, then [`save`] writes the file, then the log receives the snapshot's mark. A starting
//! member ignores a file without a mark. If the log contains a snapshot's mark but the snapshot's file is missing,
//! older etcd versions refuse to start.
//!
//! # Not here
//!
//! The content of the JSON and of the configuration, and writing the backend file (`bolt`).
//!
//! # Tests
//!
//! `snap/tests.rs` reads etcd's files and writes them again byte for byte, and damages a file at every byte.

mod database;
#[cfg(any(test, fuzzing))]
pub mod fuzz;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quorate_protobuf::{Fields, Malformed, Value};
use thiserror::Error;

pub use self::database::{
    IncomingDatabase, database_path, find_database, has_database, install_database,
    release_databases,
};

use crate::checksum::crc32c;
use crate::disk::{Disk, OpenMode, is_no_room};
use crate::head::Head;
use crate::wal::SnapshotMark;

/// Permission bits of `.snap` files before the umask is applied, as in etcd.
const FILE_MODE: u32 = 0o666;

const SUFFIX: &str = ".snap";

/// A failure to read or write a snapshot directory, or an invalid file in it.
#[derive(Debug, Error)]
pub enum SnapError {
    /// A file system operation failed.
    #[error("snap: failed to {action} {}: {source}", path.display())]
    Io {
        /// The failed action, as a verb.
        action: &'static str,
        /// The file or directory on which the action failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk has no room for the snapshot's file. The partial file was removed, so the caller
    /// may retry.
    #[error("snap: failed to write {}: {source}", path.display())]
    NoRoom {
        /// The path of the snapshot file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file or the snapshot in it is empty, or the checksum is missing.
    #[error("snap: empty snapshot: {}", path.display())]
    Empty {
        /// The path of the snapshot file.
        path: PathBuf,
    },
    /// The checksum does not match the bytes.
    #[error("snap: crc mismatch: {}: expected {expected:x} computed {computed:x}", path.display())]
    CrcMismatch {
        /// The path of the snapshot file.
        path: PathBuf,
        /// The stored checksum.
        expected: u32,
        /// The checksum of the file's bytes.
        computed: u32,
    },
    /// The bytes are not a snapshot.
    #[error("proto: cannot parse invalid wire-format data: {}", path.display())]
    Malformed {
        /// The path of the snapshot file.
        path: PathBuf,
    },
    /// A snapshot's backend file is missing.
    #[error("failed to find database snapshot file (snap: snapshot file doesn't exist): {}", path.display())]
    NoDatabase {
        /// The expected path of the backend file.
        path: PathBuf,
    },
}

impl SnapError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Returns whether the operation failed because the disk is full. Such an operation has changed nothing.
    #[must_use]
    pub const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom { .. })
    }
}

/// The content of a `.snap` file (`raftpb.Snapshot`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last log index that the snapshot contains.
    pub index: u64,
    /// The term of the entry at `index`.
    pub term: u64,
    /// The encoded `raftpb.ConfState`.
    pub conf_state: Bytes,
    /// The members and the cluster version in the old JSON form.
    pub data: Bytes,
}

impl Snapshot {
    /// Returns the name of the snapshot's file. It begins with the term, so that sorting the names
    /// sorts the files by age.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{:016x}-{:016x}{SUFFIX}", self.term, self.index)
    }

    fn encode(&self) -> Vec<u8> {
        let tail = Head::new().number(2, self.index).number(3, self.term);
        let conf_state = Head::new().bytes(1, self.conf_state.len());
        let metadata_bytes =
            conf_state.as_slice().len() + self.conf_state.len() + tail.as_slice().len();
        [
            Head::new().bytes(1, self.data.len()).as_slice(),
            &self.data,
            Head::new().bytes(2, metadata_bytes).as_slice(),
            conf_state.as_slice(),
            &self.conf_state,
            tail.as_slice(),
        ]
        .concat()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut snapshot = Self::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, Value::Bytes(data)) => snapshot.data = bytes.slice_ref(data),
                (2, Value::Bytes(metadata)) => {
                    snapshot.take_metadata(&bytes.slice_ref(metadata))?;
                }
                _ => {}
            }
        }
        Ok(snapshot)
    }

    fn take_metadata(&mut self, bytes: &Bytes) -> Result<(), Malformed> {
        for field in Fields::new(bytes) {
            match field? {
                (1, Value::Bytes(state)) => self.conf_state = bytes.slice_ref(state),
                (2, Value::Varint(index)) => self.index = index,
                (3, Value::Varint(term)) => self.term = term,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Writes a snapshot's file durably and returns its path.
///
/// The file is written in place. After a crash in the middle of the write, [`read`] refuses the
/// incomplete file, and the log has no mark for it. After a failed write, the partial file is
/// removed.
pub fn save(disk: &dyn Disk, dir: &Path, snapshot: &Snapshot) -> Result<PathBuf, SnapError> {
    let path = dir.join(snapshot.file_name());
    let message = snapshot.encode();
    let head = Head::new().number(1, u64::from(crc32c(&message))).bytes(2, message.len());
    let bytes = [head.as_slice(), &message].concat();
    let write = || {
        let file = disk.open(&path, OpenMode::Truncate(FILE_MODE))?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()
    };
    if let Err(source) = write() {
        let is_gone = match disk.remove_file(&path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        return Err(match is_no_room(&source) && is_gone {
            true => SnapError::NoRoom { path, source },
            false => SnapError::Io { action: "write", path, source },
        });
    }
    disk.sync_dir(dir).map_err(|source| {
        drop(disk.remove_file(&path));
        SnapError::Io { action: "write", path: path.clone(), source }
    })?;
    Ok(path)
}

/// Reads and validates a snapshot's file.
pub fn read(disk: &dyn Disk, path: &Path) -> Result<Snapshot, SnapError> {
    let read_whole = || {
        let file = disk.open(path, OpenMode::Read)?;
        let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).map(|()| Bytes::from(bytes))
    };
    let bytes = read_whole().map_err(SnapError::io("read", path))?;
    let (mut expected, mut message) = (0, Bytes::new());
    for field in Fields::new(&bytes) {
        match field.map_err(|_: Malformed| SnapError::Malformed { path: path.to_path_buf() })? {
            (1, Value::Varint(crc)) => expected = (crc & 0xffff_ffff) as u32,
            (2, Value::Bytes(data)) => message = bytes.slice_ref(data),
            _ => {}
        }
    }
    if message.is_empty() || expected == 0 {
        return Err(SnapError::Empty { path: path.to_path_buf() });
    }
    let computed = crc32c(&message);
    if computed != expected {
        return Err(SnapError::CrcMismatch { path: path.to_path_buf(), expected, computed });
    }
    Snapshot::decode(&message)
        .map_err(|_: Malformed| SnapError::Malformed { path: path.to_path_buf() })
}

/// The content of a snapshot directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names of `.snap` files, newest first.
    pub snapshots: Vec<OsString>,
    /// Unexpected names. The caller logs a warning about them.
    pub ignored: Vec<OsString>,
}

/// Lists a snapshot directory.
pub fn list(disk: &dyn Disk, dir: &Path) -> Result<Listing, SnapError> {
    let mut listing = Listing::default();
    for name in disk.read_dir(dir).map_err(SnapError::io("list", dir))?.into_iter().rev() {
        if has_suffix(&name, SUFFIX) {
            listing.snapshots.push(name);
        } else if name != "db" {
            listing.ignored.push(name);
        }
    }
    Ok(listing)
}

/// An unreadable file that was renamed.
#[derive(Debug)]
pub struct Broken {
    /// The file's new path, which ends in `.broken`.
    pub path: PathBuf,
    /// The reason why the file cannot be read.
    pub error: SnapError,
}

/// Finds the newest readable snapshot. If `marks` are given, considers only snapshots whose mark is among them.
///
/// Returns the snapshot, if there is one, and the newer files that could not be read and were
/// renamed. A snapshot whose mark is not in `marks` was never finished, or its mark is beyond the
/// commit index.
pub fn load_newest(
    disk: &dyn Disk,
    dir: &Path,
    marks: Option<&[SnapshotMark]>,
) -> Result<(Option<Snapshot>, Vec<Broken>), SnapError> {
    let mut broken = Vec::new();
    for name in list(disk, dir)?.snapshots {
        let path = dir.join(&name);
        match read(disk, &path) {
            Ok(snapshot) => {
                let is_snapshot =
                    |m: &SnapshotMark| m.term == snapshot.term && m.index == snapshot.index;
                if marks.is_none_or(|marks| marks.iter().any(is_snapshot)) {
                    return Ok((Some(snapshot), broken));
                }
            }
            Err(error @ SnapError::Io { .. }) => return Err(error),
            Err(error) => {
                let mut target = path.clone().into_os_string();
                target.push(".broken");
                let target = PathBuf::from(target);
                disk.rename(&path, &target).map_err(SnapError::io("rename", &path))?;
                broken.push(Broken { path: target, error });
            }
        }
    }
    Ok((None, broken))
}

/// Removes incomplete files that an earlier process left behind: received backend files (`tmp*`)
/// and the output of a defragmentation (`db.tmp*`). Returns their paths.
pub fn clean_up(disk: &dyn Disk, dir: &Path) -> Result<Vec<PathBuf>, SnapError> {
    let mut removed = Vec::new();
    for name in disk.read_dir(dir).map_err(SnapError::io("list", dir))? {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"tmp") || bytes.starts_with(b"db.tmp") {
            let path = dir.join(&name);
            disk.remove_file(&path).map_err(SnapError::io("remove", &path))?;
            removed.push(path);
        }
    }
    Ok(removed)
}

fn has_suffix(name: &OsString, suffix: &str) -> bool {
    name.as_encoded_bytes().ends_with(suffix.as_bytes())
}

#[cfg(test)]
mod tests;
