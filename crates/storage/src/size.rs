//! Counts in files as counts in memory: this crate maps whole files, and so is for machines of 64 bits.

const _: () =
    assert!(usize::BITS == 64, "files are mapped whole, which wants 64 bits of addresses");

/// A count or offset of a file, in memory.
#[expect(
    clippy::cast_possible_truncation,
    reason = "they have the same width, which is asserted above"
)]
pub(crate) const fn in_memory(count: u64) -> usize {
    count as usize
}
