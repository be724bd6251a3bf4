//! `--bootstrap-defrag-threshold-megabytes`: returns free space in the backend file to the disk before the member
//! starts.
//!
//! The file has no readers yet, so all of its pages may be moved. If the disk has too little space, the member starts
//! without defragmenting the file.

use std::time::Instant;

use quorate_config::Config;
use quorate_state::backend::{Backend, Fault};
use quorate_telemetry::log;

/// Number of pages moved in one transaction.
const STEP_PAGES: u64 = 1024;
/// Maximum number of passes over the file. Each pass frees the pages whose contents the previous pass has moved
/// elsewhere.
const PASSES_MAX: u32 = 8;

/// Returns the file's free space to the disk, if it reaches the threshold of
/// `--bootstrap-defrag-threshold-megabytes`.
pub(super) fn give_space_back(config: &Config, backend: &Backend) -> Result<(), Fault> {
    let threshold = config.bootstrap_defrag_threshold_megabytes.saturating_mul(1 << 20);
    if threshold == 0 {
        return Ok(());
    }
    let (bytes, in_use) = (backend.size_bytes(), backend.size_in_use_bytes());
    if bytes - in_use < threshold {
        log::info!(
            "Skipping defragmentation",
            "current-db-size-bytes" = bytes,
            "current-db-size-in-use-bytes" = in_use,
            "bootstrap-defrag-threshold-bytes" = threshold
        );
        return Ok(());
    }
    log::info!(
        "defragmenting",
        "path" = backend.db().path(),
        "current-db-size-bytes" = bytes,
        "current-db-size-in-use-bytes" = in_use
    );
    let started = Instant::now();
    match shrink_file(backend) {
        Err(Fault::Engine(error)) if error.is_no_room() => {
            log::warn!(
                "no disk space to defragment the backend file; the member starts anyway",
                "error" = error.to_string()
            );
        }
        outcome => outcome?,
    }
    log::info!(
        "finished defragmenting directory",
        "path" = backend.db().path(),
        "current-db-size-bytes-diff" = backend.size_bytes().cast_signed() - bytes.cast_signed(),
        "current-db-size-bytes" = backend.size_bytes(),
        "current-db-size-in-use-bytes" = backend.size_in_use_bytes(),
        "took" = started.elapsed()
    );
    Ok(())
}

fn shrink_file(backend: &Backend) -> Result<(), Fault> {
    let db = backend.db();
    for _ in 0..PASSES_MAX {
        db.restart_reclaim();
        let mut has_gained = false;
        loop {
            let step = db.reclaim(STEP_PAGES)?;
            has_gained |= step.moved_pages > 0 || step.truncated_bytes > 0;
            if step.done {
                break;
            }
        }
        if !has_gained {
            break;
        }
    }
    Ok(db.sync()?)
}
