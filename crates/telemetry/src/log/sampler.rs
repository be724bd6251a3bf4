//! A limit on repeated lines. In each second, the first hundred lines with the same level and message are written, then
//! every hundredth.
//!
//! The counts are stored in a table with a fixed number of slots, indexed by a hash of level and message. Counting
//! needs no locks and no allocations. Messages that are mapped to the same slot share one limit, as in etcd.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::Level;

const FIRST: u32 = 100;
const THEREAFTER: u32 = 100;
const SLOT_COUNT: usize = 4096;

#[derive(Debug)]
struct Slot {
    second: AtomicI64,
    count: AtomicU32,
}

#[derive(Debug)]
pub(super) struct Sampler {
    slots: Box<[Slot]>,
}

impl Sampler {
    pub(super) fn new() -> Self {
        let slot = |_| Slot { second: AtomicI64::new(i64::MIN), count: AtomicU32::new(0) };
        Self { slots: (0..SLOT_COUNT).map(slot).collect() }
    }

    /// Returns whether to write this line. Concurrent callers may admit one line too many or too few.
    pub(super) fn admits(&self, level: Level, message: &str, second: i64) -> bool {
        let slot = &self.slots[slot_of(level, message)];
        if slot.second.swap(second, Ordering::Relaxed) != second {
            slot.count.store(1, Ordering::Relaxed);
            return true;
        }
        let count = slot.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        count <= FIRST || (count - FIRST).is_multiple_of(THEREAFTER)
    }
}

/// Returns the slot for the FNV-1a hash of the level and the message.
fn slot_of(level: Level, message: &str) -> usize {
    let seed = 0x811c_9dc5_u32 ^ (level as u32);
    let hash =
        message.bytes().fold(seed, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % SLOT_COUNT
}
