//! Removal of old log segments and old snapshots.
//!
//! The server calls [`purge`] every 30 seconds for each kind of file (`--max-wals`, `--max-snapshots`). Sorting the
//! names sorts the files by age. A log segment is in use while the log holds the segment's lock
//! (`wal::Wal::release_to`).

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::disk::{Disk, LockKind, OpenMode};

/// A failed purge. etcd treats this as fatal.
#[derive(Debug, Error)]
#[error("failed to {action} {}: {source}", path.display())]
pub struct PurgeError {
    /// The failed action, as a verb.
    pub action: &'static str,
    /// The file or directory on which the action failed.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// The result of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// The removed files, oldest first.
    pub removed: Vec<PathBuf>,
    /// The file at which the purge stopped because the file is still in use.
    pub locked: Option<PathBuf>,
}

/// Of the files in `dir` whose names end in `suffix`, keeps the newest `keep_count` and removes the
/// others, oldest first.
///
/// With `locking`, a file is removed only if it can be locked. The purge stops at the first file
/// that cannot be locked. If `keep_count` is 0, all files are kept.
pub fn purge(
    disk: &dyn Disk,
    dir: &Path,
    suffix: &str,
    keep_count: usize,
    locking: bool,
) -> Result<Purged, PurgeError> {
    let mut done = Purged::default();
    if keep_count == 0 {
        return Ok(done);
    }
    let mut names = disk.read_dir(dir).map_err(failed("list", dir))?;
    names.retain(|name| name.as_encoded_bytes().ends_with(suffix.as_bytes()));
    let excess_count = names.len().saturating_sub(keep_count);
    for name in &names[..excess_count] {
        let path = dir.join(name);
        let lock = if locking {
            let file = disk.open(&path, OpenMode::ReadWrite).map_err(failed("open", &path))?;
            if !file.try_lock(LockKind::OfdExclusive).map_err(failed("lock", &path))? {
                done.locked = Some(path);
                break;
            }
            Some(file)
        } else {
            None
        };
        disk.remove_file(&path).map_err(failed("remove", &path))?;
        // Make the removal of a segment durable before the next one is removed. Otherwise a crash could leave a gap
        // between segments.
        if lock.is_some() {
            disk.sync_dir(dir).map_err(failed("sync", dir))?;
        }
        done.removed.push(path);
    }
    Ok(done)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PurgeError {
    let path = path.to_path_buf();
    move |source| PurgeError { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn purge_keeps_the_newest_files_and_stops_at_a_locked_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1.wal", "2.wal", "3.wal", "4.wal", "0.tmp", "1.snap", "1.snap.db"] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        let names = |found: &Purged| -> Vec<String> {
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            found.removed.iter().map(name).collect()
        };
        let run = |suffix, keep, locking| purge(&RealDisk, dir.path(), suffix, keep, locking);
        assert_eq!(run(".wal", 0, true).unwrap(), Purged::default());
        assert_eq!(run(".wal", 9, true).unwrap(), Purged::default());
        let held = RealDisk.open(&dir.path().join("2.wal"), OpenMode::ReadWrite).unwrap();
        assert!(held.try_lock(LockKind::OfdExclusive).unwrap());
        let first = run(".wal", 1, true).unwrap();
        assert_eq!(names(&first), ["1.wal"]);
        assert_eq!(first.locked, Some(dir.path().join("2.wal")));
        drop(held);
        let second = run(".wal", 1, true).unwrap();
        assert_eq!((names(&second), second.locked), (vec!["2.wal".into(), "3.wal".into()], None));
        fs::write(dir.path().join("2.snap"), b"").unwrap();
        assert_eq!(names(&run(".snap", 1, false).unwrap()), ["1.snap"]);
        let left = RealDisk.read_dir(dir.path()).unwrap();
        assert_eq!(left, ["0.tmp", "1.snap.db", "2.snap", "4.wal"]);
        assert!(purge(&RealDisk, &dir.path().join("none"), ".wal", 1, true).is_err());
    }
}
