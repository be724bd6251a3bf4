//! A mark that records a failed sync for the next process that opens the file.
//!
//! After a failed sync the system may return bytes that are not on the medium, treat them as
//! written, and never try to write them again. A process that opens the file later cannot detect
//! this. So the process that observes the failure leaves a mark, and the next process that opens
//! the file rewrites the bytes on which it relies. Without a mark nothing is rewritten, because a
//! power cut in the middle of an overwrite could damage bytes that were safe.
//!
//! # Limits
//!
//! The mark is not synced, because a power cut that loses it also loses the bytes that were only in
//! the system's memory. If the mark cannot be written, the next process relies on the bytes that
//! the system returns, as etcd does.

use std::path::Path;

use crate::disk::{Disk, OpenMode};

const MODE: u32 = 0o600;

/// Tries to write the mark. Errors are ignored, because the caller reports the failed sync.
pub(crate) fn note(disk: &dyn Disk, mark: &Path) {
    drop(disk.open(mark, OpenMode::Create(MODE)));
}

/// Returns whether the mark exists, or `true` if this cannot be determined.
pub(crate) fn is_marked(disk: &dyn Disk, mark: &Path) -> bool {
    disk.metadata(mark).map_or(true, |found| found.is_some())
}

/// Removes the mark after the bytes are durable. If the removal fails, the next process rewrites the bytes again.
pub(crate) fn clear(disk: &dyn Disk, mark: &Path) {
    drop(disk.remove_file(mark));
}
