//! Backend files received from a leader: how they are received, renamed to `<hex16 index>.snap.db`, and installed.
//!
//! ```text
//! tmp<number>  --complete, synced-->  <hex16 index>.snap.db  --snapshot accepted-->  db
//! ```
//!
//! Each step is a rename after a sync, so that after a crash the file has either the old name or the new one. Between
//! the two steps, raft decides whether to accept the snapshot.
//!
//! # Not here
//!
//! The check that the bytes are a backend file with the snapshot's index. The caller performs it before each step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{SnapError, has_suffix};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::wal::parse_hex;

const SUFFIX: &str = ".snap.db";

/// Permission bits of a backend file.
const FILE_MODE: u32 = 0o600;

/// Returns the path of the received backend file of the snapshot at `index`.
#[must_use]
pub fn database_path(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{index:016x}{SUFFIX}"))
}

/// The number of bytes received between two syncs. A single sync at the end of the file would block all other writes of
/// the machine for its whole duration, including writes to the log.
const SYNC_BYTES: u64 = 1 << 20;

/// A backend file that is being received. If this value is dropped before the file is complete, the incomplete file
/// remains until `clean_up`.
#[derive(Debug)]
pub struct IncomingDatabase {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    unsynced_bytes: u64,
}

impl IncomingDatabase {
    /// Creates the file. `number` distinguishes it from files that are received at the same time.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, number: u64) -> Result<Self, SnapError> {
        let path = dir.join(format!("tmp{number}"));
        let file = disk.open(&path, OpenMode::CreateNew(FILE_MODE));
        let file = file.map_err(SnapError::io("create", &path))?;
        Ok(Self { disk, dir: dir.to_path_buf(), path, file, bytes: 0, unsynced_bytes: 0 })
    }

    /// Appends received bytes, and syncs them after every MiB.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SnapError> {
        let written = self.file.write_all_at(bytes, self.bytes);
        written.map_err(SnapError::io("write", &self.path))?;
        self.bytes += bytes.len() as u64;
        self.unsynced_bytes += bytes.len() as u64;
        if self.unsynced_bytes >= SYNC_BYTES {
            self.file.sync_data().map_err(SnapError::io("sync", &self.path))?;
            self.unsynced_bytes = 0;
        }
        Ok(())
    }

    /// Returns the path of the incomplete file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes received so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Syncs the complete file and renames it to `<index>.snap.db`, where `index` is the snapshot's index. Returns the
    /// new path.
    ///
    /// An existing file with that name is replaced, because consensus may have ignored the message that it was received
    /// with. If the file cannot be synced or renamed, it is removed.
    pub fn finish(self, index: u64) -> Result<PathBuf, SnapError> {
        assert!(
            self.unsynced_bytes <= self.bytes,
            "the unsynced bytes are a part of the received bytes: otherwise bytes would be counted twice"
        );
        let target = database_path(&self.dir, index);
        if let Err(error) = self.publish(&target) {
            drop(self.discard());
            return Err(error);
        }
        self.disk.sync_dir(&self.dir).map_err(SnapError::io("sync", &self.dir))?;
        Ok(target)
    }

    /// Renames the file to `target`.
    fn publish(&self, target: &Path) -> Result<(), SnapError> {
        self.file.sync_all().map_err(SnapError::io("sync", &self.path))?;
        self.disk.rename(&self.path, target).map_err(SnapError::io("rename", &self.path))
    }

    /// Removes the file.
    pub fn discard(&self) -> Result<(), SnapError> {
        self.disk.remove_file(&self.path).map_err(SnapError::io("remove", &self.path))
    }
}

/// Returns the path of the received backend file of the snapshot at `index`, or an error if it is
/// missing.
pub fn find_database(disk: &dyn Disk, dir: &Path, index: u64) -> Result<PathBuf, SnapError> {
    let path = database_path(dir, index);
    if has_database(disk, dir, index)? { Ok(path) } else { Err(SnapError::NoDatabase { path }) }
}

/// Returns whether there is a received backend file of the snapshot at `index`.
pub fn has_database(disk: &dyn Disk, dir: &Path, index: u64) -> Result<bool, SnapError> {
    let path = database_path(dir, index);
    let found = disk.metadata(&path).map_err(SnapError::io("inspect", &path))?;
    Ok(found.is_some())
}

/// Replaces the member's own backend file with the received backend file of the snapshot at `index`.
///
/// Open transactions continue to read the old file. On return, the new file and its name are durable.
pub fn install_database(disk: &dyn Disk, dir: &Path, index: u64) -> Result<PathBuf, SnapError> {
    let source = find_database(disk, dir, index)?;
    let target = dir.join("db");
    disk.rename(&source, &target).map_err(SnapError::io("rename", &source))?;
    disk.sync_dir(dir).map_err(SnapError::io("sync", dir))?;
    Ok(target)
}

/// Removes the received backend files of snapshots older than `index`, because the backend file now contains the state
/// of those snapshots. Returns the paths of the removed files.
pub fn release_databases(
    disk: &dyn Disk,
    dir: &Path,
    index: u64,
) -> Result<Vec<PathBuf>, SnapError> {
    let mut removed = Vec::new();
    for name in disk.read_dir(dir).map_err(SnapError::io("list", dir))? {
        let digits = name.to_str().filter(|_| has_suffix(&name, SUFFIX));
        let digits = digits.and_then(|name| name.strip_suffix(SUFFIX));
        if digits.and_then(parse_hex).is_some_and(|found| found < index) {
            let path = dir.join(&name);
            disk.remove_file(&path).map_err(SnapError::io("remove", &path))?;
            removed.push(path);
        }
    }
    Ok(removed)
}
