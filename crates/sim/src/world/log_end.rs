//! Checks that the bytes after the last record of an opened log are zeros, so that a restarting member cannot read them
//! as records.

use std::path::PathBuf;

use quorate_storage::disk::{Disk as _, Faults, FaultyDisk, OpenMode};
use quorate_storage::wal::WalError;
use quorate_storage::wal::inspect::visit;

use super::World;

/// The first non-zero byte after the last record.
#[derive(Debug)]
struct Leftover {
    path: PathBuf,
    offset: u64,
}

impl World {
    /// Checks the log end of a newly started member. No disk faults occur during the check.
    pub(super) fn check_log_end(&mut self, at: usize) {
        let disk = &self.hosts[at].disk;
        let faults = disk.faults();
        disk.set_faults(Faults::default());
        let leftover = find_leftover(disk);
        disk.set_faults(faults);
        if let Some(Leftover { path, offset }) = leftover {
            self.judge.fail(|| {
                format!("h{at} has a byte other than zero at {offset} of {path:?}, after the end of its log")
            });
        }
    }
}

fn find_leftover(disk: &FaultyDisk) -> Option<Leftover> {
    let end = visit::<WalError>(disk, World::dirs().wal(), |_, _| Ok(())).ok()?;
    let file = disk.open(&end.path, OpenMode::Read).ok()?;
    let mut rest = vec![0; usize::try_from(file.len().ok()?.checked_sub(end.offset)?).ok()?];
    file.read_exact_at(&mut rest, end.offset).ok()?;
    let at = rest.iter().position(|byte| *byte != 0)?;
    Some(Leftover { path: end.path, offset: end.offset + at as u64 })
}
