//! Notes of ours in a data directory: small files beside the log and the snapshots, which etcd does not look for.
//!
//! That a note is there is what counts, and is durable before its text is; the text is for people.

use std::io;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::disk::{Disk, OpenMode};

/// Longer texts are cut when they are read.
const TEXT_BYTES_MAX: usize = 4096;

/// A kind of note, by its name under `member/`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note(pub(crate) &'static str);

impl Note {
    /// Where it is, if it is there.
    pub(crate) fn path(self, dirs: &DataDir) -> PathBuf {
        dirs.member().join(self.0)
    }

    /// Leaves the note, durably. One that is there already keeps its text.
    pub(crate) fn leave(self, disk: &dyn Disk, dirs: &DataDir, text: &str) -> io::Result<()> {
        let file = match disk.open(&self.path(dirs), OpenMode::CreateNew(0o600)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            opened => opened?,
        };
        // The name first: without its text it says enough.
        disk.sync_dir(&dirs.member())?;
        file.write_all_at(format!("{text}\n").as_bytes(), 0)?;
        file.sync_all()
    }

    /// Takes it away, durably, if it is there.
    pub(crate) fn take_away(self, disk: &dyn Disk, dirs: &DataDir) -> io::Result<()> {
        match disk.remove_file(&self.path(dirs)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        disk.sync_dir(&dirs.member())
    }

    /// Its text, if it is there.
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
