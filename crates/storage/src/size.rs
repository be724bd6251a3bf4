//! Converts the 64-bit sizes and offsets in files to `usize`. This crate maps whole files, so it
//! requires a 64-bit machine.

const _: () = assert!(
    usize::BITS == 64,
    "files are mapped as a whole, which requires a 64-bit address space"
);

/// Converts a size or offset in a file to `usize`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the types have the same width, as asserted above"
)]
pub(crate) const fn in_memory(count: u64) -> usize {
    count as usize
}
