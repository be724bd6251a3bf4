//! Members as a file of 3.5 should have them, at a start: `core::old_members` tells them, this says so, and puts aside
//! what cannot be read.

use quorate_core::old_members::{self, OldMembersError};
use quorate_state::apply::State;
use quorate_state::versions::Version;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::snap;
use quorate_storage::wal::SnapshotMark;

use super::error::BootError;
use quorate_telemetry::log;

/// Brings the members of an old file up to what the snapshot file and the log say of them.
///
/// `marks` are the snapshots that the log knows.
pub(super) fn repair(
    state: &mut State,
    version: Option<Version>,
    disk: &dyn Disk,
    dirs: &DataDir,
    marks: &[SnapshotMark],
) -> Result<(), BootError> {
    if old_members::are_complete(version) {
        return Ok(());
    }
    let (snapshot, broken) = snap::load_newest(disk, &dirs.snap(), Some(marks))?;
    for file in broken {
        log::warn!(
            "failed to read a snap file",
            "path" = file.path.display().to_string(),
            "error" = log::error_chain(&file.error)
        );
    }
    match old_members::repair(state, (disk, dirs.wal()), snapshot.as_ref(), marks) {
        Ok(false) => Ok(()),
        Ok(true) => {
            log::info!("repaired the members that an older version did not store");
            Ok(())
        }
        // The log does not reach back to its beginning.
        Err(OldMembersError::Log(error)) if snapshot.is_none() => {
            log::warn!(
                "the members of an older version cannot be checked",
                "error" = log::error_chain(&error)
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
