//! `snapshot restore`: creates the files of a new member from a snapshot.
//!
//! The snapshot's content becomes the backend file. `new_member` creates the other files.
//!
//! # Invariants
//!
//! * The snapshot is only read, piece by piece.
//! * If the file is not a snapshot, or was changed after the snapshot was taken, no files remain. If its digest is
//!   missing or ignored, the pages of the copy are checked while they are still in memory.

use std::path::Path;
use std::sync::Arc;

use quorate_cli::flags::Flag;
use quorate_state::backend::open_image;
use quorate_storage::disk::Disk;
use sha2::{Digest, Sha256};

use crate::command::Command;
use crate::failure::{Failure, RestoreError};
use crate::files;
use crate::new_member::{self, NewMember, copy};
use crate::session::Session;
use crate::snapshot::source::{Source, check_pages};

/// The flag that accepts a file without a digest.
pub(crate) const SKIP_HASH_CHECK: Flag = Flag::bool(
    "skip-hash-check",
    "Ignore snapshot integrity hash value (required if copied from data directory)",
);

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
        SKIP_HASH_CHECK,
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

fn run(session: &Session) -> Result<(), Failure> {
    let [path] = session.arguments("snapshot restore requires exactly one argument")?;
    let member = NewMember::prepare(session)?;
    let path = Path::new(&path);
    let fields = [&[("path", path.display().to_string())][..], &member.log_fields()].concat();
    session.log("info", "restoring snapshot", &fields);
    NewMember::warn_of_token(session);
    let disk = files::disk();
    let skip_hash_check = session.matches.bool(SKIP_HASH_CHECK.name);
    let source = Source::open(&*disk, path, skip_hash_check)?;
    member.make(&disk, |database| Ok(bring(&disk, &source, database)?))?;
    member.log_founders(session);
    session.log("info", "restored snapshot", &fields);
    Ok(())
}

/// Copies the snapshot without its digest, and verifies the digest of the copied bytes.
fn bring(disk: &Arc<dyn Disk>, source: &Source, database: &Path) -> Result<(), RestoreError> {
    let mut sha256 = source.is_verified.then(Sha256::new);
    copy(&**disk, (&*source.file, &source.path), source.image_len, database, |piece| {
        if let Some(sha256) = &mut sha256 {
            sha256.update(piece);
        }
    })?;
    if let Some(sha256) = sha256 {
        source.check_digest(sha256)?;
    }
    open_image(disk, database)
        .map(drop)
        .map_err(|fault| RestoreError::Image { snapshot: source.path.clone(), source: fault })?;
    if source.is_verified { Ok(()) } else { check_pages(disk, &source.path, database) }
}
