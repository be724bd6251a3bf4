//! `snapshot restore`: creates the files of a new member from a snapshot.
//!
//! The snapshot's content becomes the backend file. `new_member` creates the files around it.
//!
//! # Invariants
//!
//! * The snapshot is only read, piece by piece.
//! * If the file is not a snapshot, or was changed after the snapshot was taken, no files remain. If it has no digest,
//!   the pages of the copy are checked while they are still in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_cli::flags::Flag;
use quorate_state::backend::{Fault, open_image};
use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::{Disk, DiskFile, LockKind, OpenMode};
use sha2::{Digest, Sha256};

use crate::command::Command;
use crate::failure::{Failure, RestoreError};
use crate::files;
use crate::new_member::{self, NewMember, copy, io_error};
use crate::session::Session;

pub(super) const RESTORE: Command = Command {
    usage: "restore <filename> --data-dir {output dir} [options]",
    short: "Restores an etcd member snapshot to an etcd directory",
    flags: &[
        new_member::DATA_DIR,
        new_member::WAL_DIR,
        new_member::INITIAL_CLUSTER,
        new_member::INITIAL_CLUSTER_TOKEN,
        new_member::INITIAL_ADVERTISE_PEER_URLS,
        new_member::NAME,
        Flag::bool(
            "skip-hash-check",
            "Ignore snapshot integrity hash value (required if copied from data directory)",
        ),
        Flag::uint(
            "initial-memory-map-size",
            "10737418240",
            "Initial memory map size of the database in bytes; accepted for compatibility, but has no effect",
        ),
        new_member::BUMP_REVISION,
        new_member::MARK_COMPACTED,
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// Size of a sector. Pages are multiples of it, so any remainder at the end of the file is a digest.
const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: u64 = 32;

fn run(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("snapshot restore requires exactly one argument")?;
    let member = NewMember::prepare(session)?;
    let path = [("path", path)];
    let fields = [&path[..], &member.log_fields()].concat();
    session.log("info", "restoring snapshot", &fields);
    NewMember::warn_of_token(session);
    let (disk, snapshot) = (files::disk(), Path::new(&path[0].1));
    let source = open_source(&*disk, snapshot)?;
    let skip_hash_check = session.matches.bool("skip-hash-check");
    member.make(&disk, |database| {
        Ok(bring(&disk, (&*source, snapshot), skip_hash_check, database)?)
    })?;
    member.log_founders(session);
    session.log("info", "restored snapshot", &fields);
    Ok(())
}

/// Copies the snapshot without its digest, and verifies the digest of the copied bytes.
fn bring(
    disk: &Arc<dyn Disk>,
    (source, snapshot): (&dyn DiskFile, &Path),
    skip_hash_check: bool,
    database: &Path,
) -> Result<(), RestoreError> {
    let len = source.len().map_err(io_error("read", snapshot, 0))?;
    let has_digest = len % SECTOR_BYTES == DIGEST_BYTES;
    if !has_digest && !skip_hash_check {
        return Err(RestoreError::NoHash);
    }
    let image_len = if has_digest { len - DIGEST_BYTES } else { len };
    let mut sha256 = (has_digest && !skip_hash_check).then(Sha256::new);
    copy(&**disk, (source, snapshot), image_len, database, |piece| {
        if let Some(sha256) = &mut sha256 {
            sha256.update(piece);
        }
    })?;
    let is_proven = sha256.is_some();
    if let Some(sha256) = sha256 {
        let mut expected = [0; 32];
        let read = source.read_exact_at(&mut expected, image_len);
        read.map_err(io_error("read", snapshot, image_len))?;
        let computed = sha256.finalize().into();
        if expected != computed {
            return Err(RestoreError::Hash { expected, computed });
        }
    }
    open_image(disk, database)
        .map(drop)
        .map_err(|source| RestoreError::Image { snapshot: PathBuf::from(snapshot), source })?;
    if is_proven { Ok(()) } else { check_copy(disk, snapshot, database) }
}

/// Checks that every page can be read, if there is no digest to verify.
fn check_copy(disk: &Arc<dyn Disk>, snapshot: &Path, database: &Path) -> Result<(), RestoreError> {
    let mut options = Options::default();
    (options.flat, options.read_only) = (true, true);
    let db = Db::open(disk, database, options).map_err(Fault::from)?;
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

/// Opens the snapshot. Refuses the backend file of a running member.
fn open_source(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>, RestoreError> {
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
