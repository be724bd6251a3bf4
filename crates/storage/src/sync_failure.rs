//! A mark that a sync has failed, for the next start.
//!
//! After a failed sync the system may return bytes that are not on the medium, treat them as
//! written, and never write them again. A process that opens the file later cannot detect this. So
//! the process that sees the failure leaves a mark, and the next process that opens the file writes
//! the bytes again on which it builds. Without a mark nothing is written again, because a power cut
//! in the middle of an overwrite could damage bytes that were safe.
//!
//! # Limits
//!
//! The mark is not synced: a power cut that loses it also loses the bytes that were only in the
//! system's memory. If the mark cannot be written, the next start relies on what the system
//! returns, as etcd does.

use std::path::Path;

use crate::disk::{Disk, OpenMode};

const MODE: u32 = 0o600;

/// Tries to write the mark. An error is dropped, because the caller reports the failure itself.
pub(crate) fn note(disk: &dyn Disk, mark: &Path) {
    drop(disk.open(mark, OpenMode::Create(MODE)));
}

/// Whether the mark exists, or may exist.
pub(crate) fn is_marked(disk: &dyn Disk, mark: &Path) -> bool {
    disk.metadata(mark).map_or(true, |found| found.is_some())
}

/// Removes the mark after the bytes are durable. If this fails, the next start overwrites them
/// again.
pub(crate) fn clear(disk: &dyn Disk, mark: &Path) {
    drop(disk.remove_file(mark));
}
