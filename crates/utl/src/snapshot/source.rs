//! Reads the content of a snapshot without the digest, and checks the digest.
//!
//! `snapshot restore` copies the content, and `import` only reads it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_state::backend::Fault;
use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::{Disk, DiskFile, LockKind, OpenMode};
use sha2::{Digest, Sha256};

use crate::failure::RestoreError;
use crate::new_member::io_error;

/// Size of a sector, in bytes. The page size is a multiple of the sector size, so any remainder at the end of the file
/// is a digest.
const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: u64 = 32;
/// The size, in bytes, of the pieces in which a snapshot is read to compute its digest.
const PIECE_BYTES: usize = 1 << 20;

/// An open snapshot. Until this value is dropped, no member can open the file.
pub(crate) struct Source {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) path: PathBuf,
    /// The bytes before the digest.
    pub(crate) image_len: u64,
    /// Whether the file has a digest, which must match the content.
    pub(crate) is_verified: bool,
}

impl Source {
    /// Opens a snapshot. Refuses the backend file of a running member, and a file without a digest unless
    /// `skip_hash_check` is set.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        skip_hash_check: bool,
    ) -> Result<Self, RestoreError> {
        let file = open_unlocked(disk, path)?;
        let len = file.len().map_err(io_error("read", path, 0))?;
        let has_digest = len % SECTOR_BYTES == DIGEST_BYTES;
        if !has_digest && !skip_hash_check {
            return Err(RestoreError::NoHash);
        }
        let image_len = if has_digest { len - DIGEST_BYTES } else { len };
        let is_verified = has_digest && !skip_hash_check;
        Ok(Self { file, path: path.to_path_buf(), image_len, is_verified })
    }

    /// Checks that the digest at the end of the file matches the given content.
    pub(crate) fn check_digest(&self, content: Sha256) -> Result<(), RestoreError> {
        let mut expected = [0; 32];
        let read = self.file.read_exact_at(&mut expected, self.image_len);
        read.map_err(io_error("read", &self.path, self.image_len))?;
        let computed = content.finalize().into();
        if expected == computed { Ok(()) } else { Err(RestoreError::Hash { expected, computed }) }
    }

    /// Checks the content in place: against the digest or, if the digest is not verified, page by page.
    pub(crate) fn check(&self, disk: &Arc<dyn Disk>) -> Result<(), RestoreError> {
        if !self.is_verified {
            return check_pages(disk, &self.path, &self.path);
        }
        let mut sha256 = Sha256::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < self.image_len {
            let wanted = usize::try_from(self.image_len - at).unwrap_or(usize::MAX);
            let piece = &mut piece[..wanted.min(PIECE_BYTES)];
            self.file.read_exact_at(piece, at).map_err(io_error("read", &self.path, at))?;
            sha256.update(&*piece);
            at += piece.len() as u64;
        }
        self.check_digest(sha256)
    }
}

/// Checks that every page of a snapshot, or of a copy of it, can be read.
pub(crate) fn check_pages(
    disk: &Arc<dyn Disk>,
    snapshot: &Path,
    image: &Path,
) -> Result<(), RestoreError> {
    let mut options = Options::default();
    (options.flat, options.read_only) = (true, true);
    let db = Db::open(disk, image, options).map_err(Fault::from)?;
    let transaction = db.read();
    let problems = transaction.check();
    let Some(first) = problems.first() else { return Ok(()) };
    Err(RestoreError::Unsound {
        snapshot: PathBuf::from(snapshot),
        offset: transaction.offset_of(first),
        first: first.to_string(),
        count: problems.len(),
    })
}

/// Opens the file and locks it, so that no member can open it. Refuses the backend file of a running member.
fn open_unlocked(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>, RestoreError> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RestoreError::Missing(path.to_path_buf()));
        }
        opened => opened.map_err(io_error("open", path, 0))?,
    };
    let facts = disk.metadata(path).map_err(io_error("read its metadata", path, 0))?;
    let reason = match facts {
        Some(facts) if facts.is_dir => Some("it is a directory"),
        Some(facts) if facts.len == 0 => Some("the file is empty"),
        Some(_) | None => None,
    };
    if let Some(reason) = reason {
        return Err(RestoreError::NoSnapshot { path: path.to_path_buf(), reason });
    }
    let locked = file.try_lock(LockKind::FlockShared).map_err(io_error("lock", path, 0))?;
    if locked { Ok(file) } else { Err(RestoreError::InUse(path.to_path_buf())) }
}
