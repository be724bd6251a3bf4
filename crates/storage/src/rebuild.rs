//! The notes of a member that must fetch its state again, because its backend file differs from the other members'
//! backend files.
//!
//! `member/rebuild` orders the member to fetch its state. The file is written before the member stops, so that the
//! member always fetches the state when it restarts. `member/rebuilt` contains the time of the last rebuild. If a
//! member is found to be corrupt again soon after that time, its disk or memory is probably defective.
//!
//! # Not here
//!
//! When the order is written, and how it is carried out (the server).

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::note::Note;

const ORDER: Note = Note("rebuild");
const DONE: Note = Note("rebuilt");

/// Returns the path of the order.
#[must_use]
pub fn path(dirs: &DataDir) -> PathBuf {
    ORDER.path(dirs)
}

/// Orders a rebuild durably. If a rebuild is already ordered, the earlier reason is kept.
pub fn order(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    ORDER.leave(disk, dirs, reason)
}

/// Returns the reason for the ordered rebuild, or `None` if no rebuild is ordered.
pub fn ordered(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
    ORDER.read(disk, dirs)
}

/// Durably records the time of a finished rebuild, in seconds since 1970.
pub fn done(disk: &dyn Disk, dirs: &DataDir, unix_secs: u64) -> io::Result<()> {
    DONE.remove(disk, dirs)?;
    DONE.leave(disk, dirs, &unix_secs.to_string())?;
    ORDER.remove(disk, dirs)
}

/// Returns the time of the last rebuild, in seconds since 1970. A note without a valid time is
/// treated as missing.
pub fn last_done(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<u64>> {
    Ok(DONE.read(disk, dirs)?.and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{FaultyDisk, RealDisk};

    #[test]
    fn a_rebuild_order_survives_a_power_cut_until_the_rebuild_is_done() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dirs = DataDir::new(&root.path().join("data"), None);
        dirs.prepare(&disk).unwrap();
        assert_eq!(ordered(&disk, &dirs).unwrap(), None);
        order(&disk, &dirs, "the backend differs").unwrap();
        order(&disk, &dirs, "the backend differs again").unwrap();
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        let dirs = DataDir::new(&image.path().join("data"), None);
        assert_eq!(ordered(&RealDisk, &dirs).unwrap().as_deref(), Some("the backend differs"));
        assert_eq!(dirs.prepare(&RealDisk).unwrap().unexpected, [""; 0]);
        assert_eq!(last_done(&RealDisk, &dirs).unwrap(), None);
        for time in [7, 8] {
            done(&RealDisk, &dirs, time).unwrap();
            assert_eq!(last_done(&RealDisk, &dirs).unwrap(), Some(time));
            assert_eq!(ordered(&RealDisk, &dirs).unwrap(), None);
        }
        std::fs::write(DONE.path(&dirs), b"yesterday").unwrap();
        assert_eq!(last_done(&RealDisk, &dirs).unwrap(), None);
    }
}
