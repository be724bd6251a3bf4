//! The notes of a member that is to fetch its state anew, because what its backend file holds is not what the cluster
//! holds.
//!
//! `member/rebuild` is the order, left before the member stops: whatever happens then, the next start carries it out.
//! `member/rebuilt` says when one was carried out last: a member that is found bad again soon after has a disk or a
//! memory that is not to be trusted.
//!
//! # Not here
//!
//! Who gives the order and who carries it out (the server).

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::note::Note;

const ORDER: Note = Note("rebuild");
const DONE: Note = Note("rebuilt");

/// Returns the file that is the order.
#[must_use]
pub fn path(dirs: &DataDir) -> PathBuf {
    ORDER.path(dirs)
}

/// Orders the directory's member to fetch its state anew, durably. An order that stands keeps its reason.
pub fn order(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    ORDER.leave(disk, dirs, reason)
}

/// Returns why the state is to be fetched anew, if it is.
pub fn ordered(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
    ORDER.read(disk, dirs)
}

/// Notes that the order was carried out at this time, in seconds since 1970, durably.
pub fn done(disk: &dyn Disk, dirs: &DataDir, unix_secs: u64) -> io::Result<()> {
    DONE.take_away(disk, dirs)?;
    DONE.leave(disk, dirs, &unix_secs.to_string())?;
    ORDER.take_away(disk, dirs)
}

/// Returns when an order was carried out last, in seconds since 1970. A note that says no time is none.
pub fn last_done(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<u64>> {
    Ok(DONE.read(disk, dirs)?.and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{FaultyDisk, RealDisk};

    #[test]
    fn an_order_outlives_a_power_failure_until_it_is_carried_out() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dirs = DataDir::new(&root.path().join("data"), None);
        dirs.prepare(&disk).unwrap();
        assert_eq!(ordered(&disk, &dirs).unwrap(), None);
        order(&disk, &dirs, "it differs").unwrap();
        order(&disk, &dirs, "it differs again").unwrap();
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        let dirs = DataDir::new(&image.path().join("data"), None);
        assert_eq!(ordered(&RealDisk, &dirs).unwrap().as_deref(), Some("it differs"));
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
