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
use crate::disk::{Disk, OpenMode};

/// Longer reasons are cut when they are read.
const REASON_BYTES_MAX: usize = 4096;

/// Returns the file that is the mark.
#[must_use]
pub fn path(dirs: &DataDir) -> PathBuf {
    dirs.member().join("lost-log")
}

/// Marks a directory, durably. One that is marked already keeps its reason.
pub fn mark(disk: &dyn Disk, dirs: &DataDir, reason: &str) -> io::Result<()> {
    let file = match disk.open(&path(dirs), OpenMode::CreateNew(0o600)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        opened => opened?,
    };
    // The name first: without its text it says enough.
    disk.sync_dir(&dirs.member())?;
    file.write_all_at(format!("{reason}\n").as_bytes(), 0)?;
    file.sync_all()
}

/// Takes the mark away, durably, if there is one.
pub fn unmark(disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
    match disk.remove_file(&path(dirs)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed?,
    }
    disk.sync_dir(&dirs.member())
}

/// Returns why the directory is marked, if it is.
pub fn reason(disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
    let path = path(dirs);
    if disk.metadata(&path)?.is_none() {
        return Ok(None);
    }
    let file = disk.open(&path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(REASON_BYTES_MAX);
    let mut text = vec![0; len];
    file.read_exact_at(&mut text, 0)?;
    Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned()))
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
