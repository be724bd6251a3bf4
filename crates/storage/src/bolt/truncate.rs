//! Truncation of the file after its last page in use.
//!
//! # Invariants
//!
//! * The file is truncated only at or above the high-water marks of the durable state and of every live snapshot.
//!
//! # Not here
//!
//! Lowering the high-water mark (`commit`, `reclaim`).

use super::error::Result;
use super::shared::{Shared, Writer, io_fault, release_pages};

/// The result of [`truncate`].
#[derive(Default)]
pub(super) struct Tail {
    pub(super) truncated_bytes: u64,
    /// The size of the pages that cannot be reused or truncated while older snapshots live.
    pub(super) pinned_bytes: u64,
}

/// Truncates the file after the last page that any live state reaches.
pub(super) fn truncate(shared: &Shared, writer: &mut Writer) -> Result<Tail> {
    release_pages(shared, writer);
    let (older, meta) = {
        let mut published = shared.published.lock();
        (published.older_states(), published.snapshot.meta)
    };
    let reach = older.into_iter().fold(meta.high_water, |reach, (_, mark)| reach.max(mark));
    assert!(
        reach >= meta.high_water,
        "the file is truncated only beyond the durable state: otherwise committed pages would be lost"
    );
    let len = reach.0 * u64::from(meta.page_bytes);
    let truncated_bytes = writer.file_bytes.saturating_sub(len);
    let pinned_pages = reach.0 - meta.high_water.0 + writer.pending.count();
    // The next commit lowers the mark to exclude free pages at the end.
    let is_lower_mark_due = writer.free.high_water() < meta.high_water;
    writer.awaits_truncation = pinned_pages > 0 || is_lower_mark_due;
    let tail = Tail { truncated_bytes, pinned_bytes: pinned_pages * u64::from(meta.page_bytes) };
    if truncated_bytes == 0 {
        return Ok(tail);
    }
    // `reach` covers the states of all live readers and the current state, which new readers receive, so no reader
    // needs a page beyond it.
    writer.mapping.hide_from(usize::try_from(len).unwrap_or(usize::MAX));
    shared.file.set_len(len).map_err(io_fault(&shared.path, "shorten the file", len))?;
    writer.file_bytes = len;
    writer.reserved_bytes = writer.reserved_bytes.min(len);
    shared.published.lock().file_bytes = len;
    Ok(tail)
}

/// Truncates the file before a transaction, if older snapshots prevented this at the end of a pass.
///
/// Errors are ignored, because the file may be longer than its content. The next transaction tries again.
pub(super) fn truncate_released(shared: &Shared, writer: &mut Writer) {
    if writer.awaits_truncation {
        drop(truncate(shared, writer).inspect_err(|_| writer.awaits_truncation = true));
    }
}
