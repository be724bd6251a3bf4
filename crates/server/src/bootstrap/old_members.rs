//! Repairs the member list in the backend file of etcd 3.5 during startup. `core::old_members` computes the list; this
//! module logs the result and sets unreadable snapshot files aside.

use quorate_core::old_members::{self, OldMembersError};
use quorate_state::apply::State;
use quorate_state::versions::Version;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::snap;
use quorate_storage::wal::SnapshotMark;

use super::error::BootError;
use quorate_telemetry::log;

/// Updates the members in an old backend file from the snapshot file and the log.
///
/// `marks` are the snapshots that the log lists.
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
    let (files, newest) = ((disk, dirs.wal()), snapshot.as_ref());
    let checked = old_members::check_v2_data(files, newest, marks);
    match checked.and_then(|()| old_members::repair(state, files, newest, marks)) {
        Ok(false) => Ok(()),
        Ok(true) => {
            log::info!("repaired the member list, which an older version had stored incompletely");
            Ok(())
        }
        // Without a snapshot, the members cannot be checked, because the log does not start at the first entry.
        Err(OldMembersError::Log(error)) if snapshot.is_none() => {
            log::warn!(
                "cannot check the member list that an older version stored",
                "error" = log::error_chain(&error)
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
