//! Checks a leader's image before it replaces the backend file.
//!
//! The image is opened in the same way as the backend file, so its meta pages and all branch pages are read. Then its
//! consistent index is read. The check runs before anything is replaced, so a bad image does no harm.
//!
//! # Not here
//!
//! Checking the pages that contain records, which are read when the state is recovered from the
//! image.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::Disk;

use super::{BackendView, Fault};
use crate::schema::Bucket;

/// Why an image is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ImageFault {
    /// The file cannot be accessed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the image.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is empty. Opening it would turn it into a new backend file.
    #[error("{}: the file is empty", path.display())]
    Empty {
        /// Path of the image.
        path: PathBuf,
    },
    /// The file cannot be opened as a database.
    #[error(transparent)]
    Unreadable(#[from] Fault),
    /// The file is a database of the same engine, but not a backend file.
    #[error("{}: bucket {} is missing", path.display(), bucket.name().escape_ascii())]
    Foreign {
        /// Path of the image.
        path: PathBuf,
        /// The missing bucket, which every backend file has.
        bucket: Bucket,
    },
    /// The image does not contain the state of the snapshot.
    #[error(
        "database file ({} index {index}) does not match with snapshot (index {snapshot})",
        path.display()
    )]
    Mismatch {
        /// Path of the image.
        path: PathBuf,
        /// The last entry that the image contains, or 0 if it has no index.
        index: u64,
        /// The last entry that the snapshot contains.
        snapshot: u64,
    },
}

/// Checks that the image at `path` can be opened and contains exactly the entries up to an index in this range, which
/// begins at the snapshot's index. The file is not changed.
pub fn check_image(
    disk: &Arc<dyn Disk>,
    path: &Path,
    indexes: RangeInclusive<u64>,
) -> Result<(), ImageFault> {
    let (index, _) = open_image(disk, path)?.consistent_index()?;
    if !indexes.contains(&index) {
        let (path, snapshot) = (path.to_path_buf(), *indexes.start());
        return Err(ImageFault::Mismatch { path, index, snapshot });
    }
    Ok(())
}

/// Opens the image at `path`, regardless of the entries that it contains. The file is not changed.
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
    fn checking_a_missing_image_does_not_create_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tmp7");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let fault = check_image(&disk, &path, 1..=1).expect_err("the image does not exist");
        assert!(matches!(fault, ImageFault::Io { .. }), "{fault}");
        assert!(!path.exists());
    }
}
