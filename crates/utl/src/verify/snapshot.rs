//! `snapshot verify`: checks in advance whether members can be restored from snapshots.
//!
//! The module reads everything that a restore and the member's first start would read: the digest, every page, record,
//! lease and member. It also builds the key index. The snapshots are not changed. The printed hash is the hash that
//! members report (`endpoint hashkv`) for the same revision.

use std::path::{Path, PathBuf};

use quorate_storage::disk::{Disk, OpenMode};
use sha2::{Digest as _, Sha256};

use super::backend;
use super::findings::{self, Findings};
use crate::command::Command;
use crate::failure::Failure;
use crate::files;
use crate::session::Session;

pub(crate) const SNAPSHOT_VERIFY: Command = Command {
    usage: "verify <filename> [filename...]",
    short: "Checks whether a member can be restored from a snapshot, without changing it",
    long: "Checks whether a member can be restored from a snapshot: verifies its digest and reads every \
     page,\nrecord, lease and member. With several files, each finding also names its file. Exits with 0 if a \
     member\ncan be restored from each file.\n",
    run: Some(run),
    ..Command::EMPTY
};

const PART: &str = "digest";
const ADVICE: &str = "do not restore a damaged snapshot. Take another snapshot of a healthy member (`snapshot save`), \
 or use an older one";
const SECTOR_BYTES: u64 = 512;
const DIGEST_BYTES: usize = 32;
/// Number of bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

fn run(session: &Session) -> Result<(), Failure> {
    let paths = session.paths("snapshot verify requires at least one argument")?;
    for path in &paths {
        files::check_there(path)?;
    }
    let examined: Result<Vec<_>, Failure> =
        paths.iter().map(|path| Ok((path.as_path(), examine(session, path)?))).collect();
    let examined = examined?;
    match &examined[..] {
        [(_, findings)] => session.show(&findings.report())?,
        several => session.show(&findings::report_of_files(several))?,
    }
    let damaged = examined.iter().filter(|(_, findings)| findings.damage_count() > 0);
    let paths: Vec<PathBuf> = damaged.map(|(path, _)| path.to_path_buf()).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let count = examined.iter().map(|(_, findings)| findings.damage_count()).sum();
    Err(Failure::Damaged { paths, count, advice: ADVICE.to_owned() })
}

fn examine(session: &Session, path: &Path) -> Result<Findings, Failure> {
    let mut findings = Findings::default();
    // The file stays open until the check ends, because a member that started on the file would change it.
    let opened = match files::open(session, path) {
        Err(failure @ Failure::InUse { .. }) => return Err(failure),
        opened => opened,
    };
    digest(&*files::disk(), path, &mut findings).map_err(Failure::io("read it", path))?;
    match opened {
        Ok(opened) => drop(backend::examine(&opened, &mut findings)),
        Err(failure) => findings.damaged("backend", failure.to_string()),
    }
    Ok(findings)
}

/// Verifies the digest at the end of a file.
fn digest(disk: &dyn Disk, path: &Path, findings: &mut Findings) -> std::io::Result<()> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len % SECTOR_BYTES != DIGEST_BYTES as u64 {
        let says = match len % SECTOR_BYTES {
            0 => {
                "missing, as in a member's backend file: `snapshot restore` needs --skip-hash-check"
            }
            _ => {
                findings.damaged(
                    PART,
                    format!(
                        "the file is truncated: {len} bytes are not a multiple of the sector size"
                    ),
                );
                return Ok(());
            }
        };
        findings.notable(PART, says);
        return Ok(());
    }
    let image_len = len - DIGEST_BYTES as u64;
    let (mut sha256, mut piece, mut at) = (Sha256::new(), vec![0; PIECE_BYTES], 0);
    while at < image_len {
        let wanted = usize::try_from(image_len - at).unwrap_or(usize::MAX).min(piece.len());
        let piece = &mut piece[..wanted];
        file.read_exact_at(piece, at)?;
        sha256.update(&*piece);
        at += wanted as u64;
    }
    let mut expected = [0; DIGEST_BYTES];
    file.read_exact_at(&mut expected, image_len)?;
    if sha256.finalize()[..] == expected {
        findings.sound(PART, "it matches the content");
    } else {
        findings
            .damaged(PART, "it does not match: the file was changed after the snapshot was taken");
    }
    Ok(())
}
