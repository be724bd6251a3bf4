//! Notes: small files that Quorate adds to a data directory, next to the log and the snapshots.
//! etcd ignores them.
//!
//! A note's name becomes durable before its text. The text is for operators, except in `member/rebuilt`, whose text is
//! a time (`rebuild`).

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::{Disk, OpenMode};

/// The maximum length of a note's text, in bytes. Longer text is truncated when it is read.
const TEXT_BYTES_MAX: usize = 4096;

/// A kind of note, identified by its file name under `member/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note(pub(crate) &'static str);

impl Note {
    /// Returns the path of the note.
    pub(crate) fn path(self, dirs: &DataDir) -> PathBuf {
        dirs.member().join(self.0)
    }

    /// Writes the note durably. If it already exists, its text is kept.
    pub(crate) fn leave(self, disk: &dyn Disk, dirs: &DataDir, text: &str) -> io::Result<()> {
        let file = match disk.open(&self.path(dirs), OpenMode::CreateNew(0o600)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            opened => opened?,
        };
        // The name becomes durable first, because a note without its text is still valid.
        disk.sync_dir(&dirs.member())?;
        file.write_all_at(format!("{text}\n").as_bytes(), 0)?;
        file.sync_all()
    }

    /// Removes the note durably, if it exists.
    pub(crate) fn remove(self, disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
        match disk.remove_file(&self.path(dirs)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        disk.sync_dir(&dirs.member())
    }

    /// Returns the text of the note, if the note exists.
    pub(crate) fn read(self, disk: &dyn Disk, dirs: &DataDir) -> io::Result<Option<String>> {
        let path = self.path(dirs);
        if disk.metadata(&path)?.is_none() {
            return Ok(None);
        }
        let file = disk.open(&path, OpenMode::Read)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(TEXT_BYTES_MAX);
        let mut text = vec![0; len];
        file.read_exact_at(&mut text, 0)?;
        Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned()))
    }
}
