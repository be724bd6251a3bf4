//! Opening what a member may have open: backend files, with the wait for their lock that was asked for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_state::backend::{Backend, Fault};
use quorate_storage::bolt::{BoltError, Db, Options};
use quorate_storage::disk::{Disk, RealDisk};

use crate::failure::Failure;
use crate::session::Session;

/// Between two tries to get a lock.
const RETRY: Duration = Duration::from_millis(50);

/// The machine's files.
pub(crate) fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// Opens a backend file, or a snapshot of one, to read it. It stays as it is.
pub(crate) fn open(session: &Session, path: &Path) -> Result<Backend, Failure> {
    open_within(time(session), path)
}

/// The same, with a time for the lock.
pub(crate) fn open_within(time: Duration, path: &Path) -> Result<Backend, Failure> {
    let mut options = Options::default();
    options.read_only = true;
    check_there(path)?;
    wait_for(time, || Backend::open(&disk(), path, options.clone()))
}

/// Opens a backend file that has to be there, to change it.
pub(crate) fn open_to_write(session: &Session, path: &Path) -> Result<Backend, Failure> {
    check_there(path)?;
    wait_for(time(session), || Backend::open(&disk(), path, Options::default()))
}

/// The same, as the engine sees it: without a bucket being made that is missing.
pub(crate) fn open_db_to_write(session: &Session, path: &Path) -> Result<Db, Failure> {
    check_there(path)?;
    let mut options = Options::default();
    options.flat = true;
    wait_for(time(session), || Ok(Db::open(&disk(), path, options.clone())?))
}

/// How long to wait for the lock of a file.
fn time(session: &Session) -> Duration {
    session.matches.duration("timeout")
}

/// Opens a file as soon as nobody holds it, within the time allowed.
fn wait_for<T>(time: Duration, open: impl Fn() -> Result<T, Fault>) -> Result<T, Failure> {
    let limit = Instant::now() + time;
    loop {
        match open() {
            Err(Fault::Engine(BoltError::Locked { .. })) if Instant::now() < limit => {
                std::thread::sleep(RETRY);
            }
            opened => return Ok(opened?),
        }
    }
}

/// Opening to write would create what is missing, or fill what is empty.
pub(crate) fn check_there(path: &Path) -> Result<(), Failure> {
    let facts = disk().metadata(path).map_err(Failure::io("look for it", path))?;
    let reason = match facts {
        None => "no such file or directory",
        Some(facts) if facts.is_dir => "is a directory",
        Some(facts) if facts.len == 0 => "the file is empty",
        Some(_) => return Ok(()),
    };
    Err(Failure::Absent { action: "stat", path: path.to_path_buf(), reason })
}
