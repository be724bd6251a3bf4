//! The mark of a data directory that was created from a snapshot and has not been used in a cluster
//! yet.
//!
//! A restored directory looks like a member's directory. With the default cluster token it also has the ids of the
//! member from which the snapshot was taken. If a member started with this directory while other members were not
//! restored, it would join their cluster with a different state. So the tool that creates the directory writes a file,
//! `member/restored`, which etcd ignores. The member removes the file once it has verified that the other members have
//! the same state.
//!
//! # Not here
//!
//! The mark in the backend file, which members use to compare their states (`state::schema::meta`).

use std::io;
use std::path::Path;

use crate::data_dir::DataDir;
use crate::disk::{Disk, OpenMode};
use crate::note::Note;

const NAME: &str = "restored";
const NOTE: Note = Note(NAME);

/// Writes the mark into a member directory that is being created. The caller syncs the directory.
pub fn leave(disk: &dyn Disk, member: &Path, text: &str) -> io::Result<()> {
    let file = disk.open(&member.join(NAME), OpenMode::CreateNew(0o600))?;
    file.write_all_at(format!("{text}\n").as_bytes(), 0)?;
    file.sync_all()
}

/// Returns whether the directory is marked.
pub fn is_marked(disk: &dyn Disk, dirs: &DataDir) -> io::Result<bool> {
    Ok(disk.metadata(&NOTE.path(dirs))?.is_some())
}

/// Removes the mark durably, if it exists.
pub fn remove(disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
    NOTE.remove(disk, dirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn a_restored_directory_can_be_marked_and_its_mark_removed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = DataDir::new(root.path(), None);
        dirs.prepare(&RealDisk).unwrap();
        assert!(!is_marked(&RealDisk, &dirs).unwrap());
        leave(&RealDisk, &dirs.member(), "text").unwrap();
        assert!(is_marked(&RealDisk, &dirs).unwrap());
        for _ in 0..2 {
            remove(&RealDisk, &dirs).unwrap();
            assert!(!is_marked(&RealDisk, &dirs).unwrap());
        }
    }
}
