//! Whether a leader's image may take the place of the backend file.
//!
//! It is opened as the backend file will be, which reads its meta pages and all branch pages, and asked up to
//! which entry it reaches. Looked at before anything is replaced: a bad image costs nothing but itself.
//!
//! # Not here
//!
//! Pages that hold records: those are read when the state is recovered from them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::Disk;

use super::{BackendView, Fault};
use crate::schema::Bucket;

/// What is wrong with an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageFault {
    /// It cannot be looked at.
    #[error("{}: {source}", path.display())]
    Io {
        /// The image.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It holds no byte: opening it would make it a new backend file.
    #[error("{}: the file is empty", path.display())]
    Empty {
        /// The image.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error(transparent)]
    Unreadable(#[from] Fault),
    /// It is a file of the same engine, of something else.
    #[error("{}: bucket {} is missing", path.display(), bucket.name().escape_ascii())]
    Foreign {
        /// The image.
        path: PathBuf,
        /// A bucket that every backend file has.
        bucket: Bucket,
    },
    /// It is of another state than the snapshot's.
    #[error(
        "database file ({} index {index}) does not match with snapshot (index {snapshot})",
        path.display()
    )]
    Mismatch {
        /// The image.
        path: PathBuf,
        /// The last entry that it contains, or 0 if it names none.
        index: u64,
        /// The last entry that the snapshot contains.
        snapshot: u64,
    },
}

/// Makes sure that the image at `path` can be opened and contains exactly the entries up to the snapshot's index. It is
/// not changed.
pub fn check_image(disk: &Arc<dyn Disk>, path: &Path, snapshot: u64) -> Result<(), ImageFault> {
    let (index, _) = open_image(disk, path)?.consistent_index()?;
    if index != snapshot {
        return Err(ImageFault::Mismatch { path: path.to_path_buf(), index, snapshot });
    }
    Ok(())
}

/// Opens the image at `path`, whichever entries it contains. It is not changed.
pub fn open_image(disk: &Arc<dyn Disk>, path: &Path) -> Result<BackendView, ImageFault> {
    let owned = || path.to_path_buf();
    let facts = disk.metadata(path).map_err(|source| ImageFault::Io { path: owned(), source })?;
    let facts = facts.ok_or_else(|| {
        let source = io::ErrorKind::NotFound.into();
        ImageFault::Io { path: owned(), source }
    })?;
    if facts.len == 0 {
        return Err(ImageFault::Empty { path: owned() });
    }
    let mut options = Options::default();
    options.flat = true;
    let db = Db::open(disk, path, options).map_err(Fault::from)?;
    let view = BackendView::new(db.read(), Arc::from(path));
    let names = view.transaction().bucket_names().map_err(Fault::from)?;
    for bucket in [Bucket::Key, Bucket::Meta] {
        if !names.contains(&bucket.name()) {
            return Err(ImageFault::Foreign { path: owned(), bucket });
        }
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    use quorate_storage::disk::RealDisk;

    use super::*;

    #[test]
    fn an_image_that_is_not_there_is_not_made_by_being_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tmp7");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let fault = check_image(&disk, &path, 1).expect_err("there is none");
        assert!(matches!(fault, ImageFault::Io { .. }), "{fault}");
        assert!(!path.exists());
    }
}
