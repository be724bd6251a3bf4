//! The mark of a directory whose log has lost entries that its member had acknowledged.
//!
//! Such a member must never vote again. After a restart this could not be detected: with the rest
//! of its log, the member looks like any member that lags behind. So the mark is a file of its own,
//! `member/lost-log`, which etcd ignores. The mark is removed with the directory, or with
//! `--force-new-cluster` when the member continues as the only voter: then there is no other member
//! to which it could have acknowledged anything.
//!
//! The existence of the file is the mark; its text is for people.

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::note::Note;

const NOTE: Note = Note("lost-log");

/// Returns the path of the mark.
#[must_use]
pub fn path(dirs: &DataDir) -> PathBuf {
    NOTE.path(dirs)
}

/// Marks a directory, durably. If it is marked already, the first reason stays.
pub fn mark(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    NOTE.leave(disk, dirs, reason)
}

/// Removes the mark, durably, if there is one.
pub fn unmark(disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
    NOTE.remove(disk, dirs)
}

/// Returns why the directory is marked, or `None` if it is not.
pub fn reason(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
    NOTE.read(disk, dirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{FaultyDisk, RealDisk};

    #[test]
    fn the_lost_log_mark_survives_a_power_cut_and_keeps_its_first_reason() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dirs = DataDir::new(&root.path().join("data"), None);
        dirs.prepare(&disk).unwrap();
        assert_eq!(reason(&disk, &dirs).unwrap(), None);
        mark(&disk, &dirs, "it is gone").unwrap();
        mark(&disk, &dirs, "it is gone again").unwrap();
        assert_eq!(reason(&disk, &dirs).unwrap().as_deref(), Some("it is gone"));
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        let dirs = DataDir::new(&image.path().join("data"), None);
        assert_eq!(reason(&RealDisk, &dirs).unwrap().as_deref(), Some("it is gone"));
        assert_eq!(dirs.prepare(&RealDisk).unwrap().unexpected, [""; 0]);
        std::fs::write(path(&dirs), b"").unwrap();
        assert_eq!(reason(&RealDisk, &dirs).unwrap().as_deref(), Some(""), "the name is enough");
        for _ in 0..2 {
            unmark(&RealDisk, &dirs).unwrap();
            assert_eq!(reason(&RealDisk, &dirs).unwrap(), None);
        }
    }
}
