//! Finds and opens data directories and backend files. If a file is in use, waits for its release until `--timeout`
//! expires.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_state::backend::{Backend, Fault};
use quorate_storage::bolt::{BoltError, Db, Options};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::snap::{self, SnapError, Snapshot};
use quorate_storage::wal::SnapshotMark;

use crate::failure::Failure;
use crate::session::Session;

/// Pause between two attempts to lock a file.
const RETRY: Duration = Duration::from_millis(50);

/// Returns access to the real file system, as opposed to a simulated disk.
pub(crate) fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// Opens a backend file, or a snapshot of one, read-only.
pub(crate) fn open(session: &Session, path: &Path) -> Result<Backend, Failure> {
    open_within(time(session), path)
}

/// Opens a backend file like [`open`], with this timeout for the lock.
pub(crate) fn open_within(time: Option<Duration>, path: &Path) -> Result<Backend, Failure> {
    let mut options = Options::default();
    options.read_only = true;
    check_there(path)?;
    wait_for(time, || Backend::open(&disk(), path, options.clone()))
}

/// Opens an existing backend file for writing.
pub(crate) fn open_to_write(session: &Session, path: &Path) -> Result<Backend, Failure> {
    check_there(path)?;
    wait_for(time(session), || Backend::open(&disk(), path, Options::default()))
}

/// Opens an existing backend file for writing as a plain bbolt file, without creating missing buckets.
pub(crate) fn open_db_to_write(session: &Session, path: &Path) -> Result<Db, Failure> {
    check_there(path)?;
    let mut options = Options::default();
    options.flat = true;
    wait_for(time(session), || Ok(Db::open(&disk(), path, options.clone())?))
}

/// Returns whether a file is a backend file or a snapshot of a backend file.
pub(crate) fn is_backend(path: &Path) -> bool {
    match open_within(Some(Duration::ZERO), path) {
        Ok(_) => true,
        Err(failure) => matches!(failure, Failure::InUse { .. }),
    }
}

/// Returns how long to wait for the lock of a file: not at all without `--timeout`, and forever if `--timeout` is zero,
/// as in etcdutl.
fn time(session: &Session) -> Option<Duration> {
    let given = session.matches.duration("timeout");
    Some(given).filter(|_| !(session.matches.changed("timeout") && given.is_zero()))
}

/// Retries opening a file until no other process holds its lock, or until the timeout.
fn wait_for<T>(time: Option<Duration>, open: impl Fn() -> Result<T, Fault>) -> Result<T, Failure> {
    let limit = time.map(|time| Instant::now() + time);
    loop {
        match open() {
            Err(Fault::Engine(BoltError::Locked { .. }))
                if limit.is_none_or(|limit| Instant::now() < limit) =>
            {
                std::thread::sleep(RETRY);
            }
            opened => return Ok(opened?),
        }
    }
}

/// Checks that the file exists and is not empty. Opening it for writing would create a missing file or initialise an
/// empty file.
pub(crate) fn check_there(path: &Path) -> Result<(), Failure> {
    let facts = disk().metadata(path).map_err(Failure::io("check whether it exists", path))?;
    let reason = match facts {
        None => "no such file or directory",
        Some(facts) if facts.is_dir => "is a directory",
        Some(facts) if facts.len == 0 => "the file is empty",
        Some(_) => return Ok(()),
    };
    Err(Failure::Absent { action: "stat", path: path.to_path_buf(), reason })
}

/// Returns the paths of a member's data directory. A mistyped path and a damaged directory result in different errors.
pub(crate) fn data_dir(root: &Path, wal: Option<&Path>) -> Result<DataDir, Failure> {
    let is_dir = |path: &Path| -> Result<bool, Failure> {
        let facts = disk().metadata(path).map_err(Failure::io("check whether it exists", path))?;
        Ok(facts.is_some_and(|facts| facts.is_dir))
    };
    for path in [Some(root), wal].into_iter().flatten() {
        if !is_dir(path)? {
            return Err(Failure::arguments(format!("stat {}: no such directory", path.display())));
        }
    }
    if is_dir(&root.join("member"))? {
        return Ok(DataDir::new(root, wal));
    }
    let whole = std::fs::canonicalize(root).map_err(Failure::io("resolve it", root))?;
    let name = |path: &Path| path.file_name().map(std::ffi::OsStr::to_os_string);
    let above = whole.parent().unwrap_or(&whole);
    let part = match name(&whole) {
        Some(own) if own == "member" => Some((own, above)),
        Some(own)
            if (own == "wal" || own == "snap") && name(above).is_some_and(|it| it == "member") =>
        {
            Some((own, above.parent().unwrap_or(above)))
        }
        Some(_) | None => None,
    };
    match part {
        None => Ok(DataDir::new(root, wal)),
        Some((part, parent)) => Err(Failure::arguments(format!(
            "{} is the {} directory inside a data directory; specify {} instead",
            root.display(),
            part.display(),
            parent.display()
        ))),
    }
}

/// Returns the newest readable snapshot of `marks` in a directory.
pub(crate) fn newest_snapshot(
    disk: &dyn Disk,
    dirs: &DataDir,
    marks: &[SnapshotMark],
) -> Result<Option<Snapshot>, SnapError> {
    let dir = dirs.snap();
    let names = snap::list(disk, &dir)?.snapshots;
    let readable = names.iter().filter_map(|name| snap::read(disk, &dir.join(name)).ok());
    let counts = |snapshot: &Snapshot| {
        marks.iter().any(|mark| (mark.term, mark.index) == (snapshot.term, snapshot.index))
    };
    Ok(readable.into_iter().find(counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_path_is_distinguished_from_a_damaged_directory() {
        let folder = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(folder.path()).unwrap();
        let root = place.join("d");
        std::fs::create_dir_all(root.join("member/wal")).unwrap();
        std::fs::create_dir_all(root.join("member/snap")).unwrap();
        std::fs::create_dir(place.join("empty")).unwrap();
        assert!(data_dir(&root, None).is_ok());
        assert!(data_dir(&place.join("empty"), None).is_ok(), "an empty directory is accepted");
        for (part, name) in [("member", "member"), ("member/wal", "wal"), ("member/snap", "snap")] {
            let path = root.join(part);
            let refused = data_dir(&path, None).unwrap_err();
            let text = format!(
                "{} is the {name} directory inside a data directory; specify {} instead",
                path.display(),
                root.display()
            );
            assert_eq!((refused.code(), refused.to_string()), (128, text));
        }
        let absent = place.join("none");
        for refused in [data_dir(&absent, None), data_dir(&root, Some(&absent))] {
            let refused = refused.unwrap_err();
            let text = format!("stat {}: no such directory", absent.display());
            assert_eq!((refused.code(), refused.to_string()), (128, text));
        }
    }
}
