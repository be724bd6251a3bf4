//! The mark in a data directory whose log has lost entries that the member had acknowledged.
//!
//! A member that has lost acknowledged entries must never vote again. Without a mark, the loss could not be detected
//! after a restart, because a member whose log ends too early looks like any member that lags behind. The mark is a
//! separate file, `member/lost-log`, which etcd ignores. The mark is removed together with the directory. It is also
//! removed when the member continues as the only voter with `--force-new-cluster`, because no other member then relies
//! on the lost acknowledgements.
//!
//! Only the existence of the file matters. Its text is for operators.

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

/// Marks a directory durably. If it is already marked, the earlier reason is kept.
pub fn mark(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    NOTE.leave(disk, dirs, reason)
}

/// Removes the mark durably, if it exists.
pub fn unmark(disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
    NOTE.remove(disk, dirs)
}

/// Returns the reason in the mark, or `None` if the directory is not marked.
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
        mark(&disk, &dirs, "entry 7 is missing").unwrap();
        mark(&disk, &dirs, "entry 8 is missing").unwrap();
        assert_eq!(reason(&disk, &dirs).unwrap().as_deref(), Some("entry 7 is missing"));
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        let dirs = DataDir::new(&image.path().join("data"), None);
        assert_eq!(reason(&RealDisk, &dirs).unwrap().as_deref(), Some("entry 7 is missing"));
        assert_eq!(dirs.prepare(&RealDisk).unwrap().unexpected, [""; 0]);
        std::fs::write(path(&dirs), b"").unwrap();
        assert_eq!(
            reason(&RealDisk, &dirs).unwrap().as_deref(),
            Some(""),
            "the existence of the file is sufficient"
        );
        for _ in 0..2 {
            unmark(&RealDisk, &dirs).unwrap();
            assert_eq!(reason(&RealDisk, &dirs).unwrap(), None);
        }
    }
}
