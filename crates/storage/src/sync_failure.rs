//! A mark that a sync has failed, for the next start.
//!
//! After a failed sync the system may show bytes that are not on the medium, take them for written, and never write them.
//! A process that opens the file later cannot know. So whoever sees the failure leaves a mark, and whoever opens the file
//! next writes those bytes again that it builds on. Without a mark nothing is written again: a power cut in the middle of
//! an overwrite could damage what had been safe.
//!
//! # Limits
//!
//! The mark is not synced: a power cut that takes it away also takes what only the system knew. Where no mark can be left,
//! the next start relies on what the system shows, as etcd does.

use std::path::Path;

use crate::disk::{Disk, OpenMode};

const MODE: u32 = 0o600;

/// Leaves the mark, as far as the disk lets it: the failure itself is reported by the caller.
pub(crate) fn note(disk: &dyn Disk, mark: &Path) {
    drop(disk.open(mark, OpenMode::Create(MODE)));
}

/// Whether the mark is there, or may be.
pub(crate) fn is_noted(disk: &dyn Disk, mark: &Path) -> bool {
    disk.metadata(mark).map_or(true, |found| found.is_some())
}

/// Takes the mark away, once the bytes are durable. One that stays costs another overwrite.
pub(crate) fn clear(disk: &dyn Disk, mark: &Path) {
    drop(disk.remove_file(mark));
}
