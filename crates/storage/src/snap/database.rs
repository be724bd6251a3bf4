//! Backend files received from a leader: how they arrive, wait under their index, and are installed.
//!
//! ```text
//! tmp<number>  --complete, synced-->  <hex16 index>.snap.db  --snapshot accepted-->  db
//! ```
//!
//! Each step is a rename after a sync, so that a crash leaves either the one name or the other. Raft
//! decides between the steps whether the snapshot is wanted at all.
//!
//! # Not here
//!
//! Whether the bytes are a backend file of that index: the caller makes sure before each step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{SnapError, has_suffix};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::wal::parse_hex;

const SUFFIX: &str = ".snap.db";

/// Permission bits of a backend file.
const FILE_MODE: u32 = 0o600;

/// Returns where the backend file of the snapshot at `index` waits to be installed.
#[must_use]
pub fn database_path(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{index:016x}{SUFFIX}"))
}

/// Bytes after which what has come in is synced. One sync of a whole file at its end holds up every other
/// write of the machine for as long as it takes, the log's among them.
const SYNC_BYTES: u64 = 1 << 20;

/// A backend file on its way in. Dropped before it is complete, its file stays for `clean_up`.
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
    /// Begins a file; `number` tells it from others that arrive at the same time.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, number: u64) -> Result<Self, SnapError> {
        let path = dir.join(format!("tmp{number}"));
        let file = disk.open(&path, OpenMode::CreateNew(FILE_MODE));
        let file = file.map_err(SnapError::io("create", &path))?;
        Ok(Self { disk, dir: dir.to_path_buf(), path, file, bytes: 0, unsynced_bytes: 0 })
    }

    /// Appends what has come in, and has the disk keep up with it.
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

    /// Returns where the bytes are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how many bytes have come in.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the complete file durable under the snapshot's index; returns its path.
    ///
    /// A file that is there already is kept: it is the same snapshot, and may be in use. What fails leaves no file
    /// behind.
    pub fn finish(self, index: u64) -> Result<PathBuf, SnapError> {
        let target = database_path(&self.dir, index);
        match self.publish(&target) {
            Ok(true) => {}
            Ok(false) => self.discard()?,
            Err(error) => {
                drop(self.discard());
                return Err(error);
            }
        }
        self.disk.sync_dir(&self.dir).map_err(SnapError::io("sync", &self.dir))?;
        Ok(target)
    }

    /// Gives the file its name, unless another has it.
    fn publish(&self, target: &Path) -> Result<bool, SnapError> {
        self.file.sync_all().map_err(SnapError::io("sync", &self.path))?;
        let present = self.disk.metadata(target).map_err(SnapError::io("inspect", target))?;
        if present.is_none() {
            self.disk.rename(&self.path, target).map_err(SnapError::io("rename", &self.path))?;
        }
        Ok(present.is_none())
    }

    /// Removes the file.
    pub fn discard(&self) -> Result<(), SnapError> {
        self.disk.remove_file(&self.path).map_err(SnapError::io("remove", &self.path))
    }
}

/// Returns the received backend file of the snapshot at `index`, which has to be there.
pub fn find_database(disk: &dyn Disk, dir: &Path, index: u64) -> Result<PathBuf, SnapError> {
    let path = database_path(dir, index);
    let found = disk.metadata(&path).map_err(SnapError::io("inspect", &path))?;
    if found.is_some() { Ok(path) } else { Err(SnapError::NoDatabase { path }) }
}

/// Puts the received backend file of the snapshot at `index` in place of the member's own.
///
/// Views of the own file stay readable. Afterwards the new one is durable under its name.
pub fn install_database(disk: &dyn Disk, dir: &Path, index: u64) -> Result<PathBuf, SnapError> {
    let source = find_database(disk, dir, index)?;
    let target = dir.join("db");
    disk.rename(&source, &target).map_err(SnapError::io("rename", &source))?;
    disk.sync_dir(dir).map_err(SnapError::io("sync", dir))?;
    Ok(target)
}

/// Removes received backend files older than the snapshot at `index`, which the backend file contains by
/// now; returns their paths.
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
