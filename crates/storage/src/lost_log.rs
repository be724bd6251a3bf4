//! The mark of a directory whose log has lost what its member had acknowledged.
//!
//! Such a member must never vote again, and a restart would not know: from what is left of its log it looks
//! like any member that lags behind. So the verdict is a file of its own, `member/lost-log`, which etcd does
//! not look for. It goes with the directory, or is taken back for a member that goes on alone: a sole voter has
//! nobody left to whom it could have acknowledged anything.
//!
//! The file's existence is the verdict; its text is for people.

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::note::Note;

const NOTE: Note = Note("lost-log");

/// Returns the file that is the mark.
#[must_use]
pub fn path(dirs: &DataDir) -> PathBuf {
    NOTE.path(dirs)
}

/// Marks a directory, durably. One that is marked already keeps its reason.
pub fn mark(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    NOTE.leave(disk, dirs, reason)
}

/// Takes the mark away, durably, if there is one.
pub fn unmark(disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
    NOTE.take_away(disk, dirs)
}

/// Returns why the directory is marked, if it is.
pub fn reason(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
    NOTE.read(disk, dirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{FaultyDisk, RealDisk};

    #[test]
    fn the_verdict_outlives_a_power_failure_and_is_not_revised() {
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
