//! Opens the member's log during startup.

use std::sync::Arc;

use quorate_core::start;
use quorate_raft::LogIndex;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::wal::{self, SnapshotMark, Wal};

use super::error::BootError;
use quorate_telemetry::log;

/// Opens the log and checks that it contains all applied entries. A repair of the log is logged before this check,
/// because it may explain why entries are missing.
pub(super) fn open_log(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    mark: &SnapshotMark,
    options: wal::Options,
    applied: LogIndex,
    report: impl FnOnce(&wal::Repair),
) -> Result<(Wal, wal::Contents), BootError> {
    let (wal, contents) = start::open_log(disk, dirs, mark, options)?;
    if let Some(repair) = &contents.repaired {
        report(repair);
    }
    start::check_log(&**disk, dirs, &contents, applied)?;
    Ok((wal, contents))
}

pub(super) fn log_repair(repair: &wal::Repair) {
    log::warn!(
        "repaired the write-ahead log",
        "path" = repair.path.display().to_string(),
        "offset" = repair.offset,
        "backup" = repair.backup.as_ref().map_or_else(
            || "none: no disk space for a copy of the segment".to_owned(),
            |path| path.display().to_string()
        )
    );
}
