//! Leasing keys that this proxy has released and must delete.
//!
//! # Bound
//!
//! While [`RELEASED_BYTES_MAX`] bytes wait, no more keys are acquired. Keys that are already owned are queued
//! all the same when they are released, and their number is bounded by the bytes of owned keys.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The bytes of leasing keys at which the queue is full.
pub(super) const RELEASED_BYTES_MAX: usize = 8 << 20;

/// The overhead of one leasing key.
const OVERHEAD_BYTES: usize = 256;

/// Leasing keys to delete, with their creation revisions.
#[derive(Debug, Default)]
pub(super) struct DeletionQueue {
    keys: BTreeMap<Bytes, i64>,
    bytes: usize,
}

impl DeletionQueue {
    /// Adds a leasing key. A later leasing key of the same name replaces an earlier one.
    pub(super) fn push(&mut self, name: Bytes, made: i64) {
        let bytes = bytes_of(&name);
        if self.keys.insert(name, made).is_none() {
            self.bytes += bytes;
        }
    }

    /// Returns a leasing key to the queue, unless a later one of the same name waits.
    pub(super) fn return_key(&mut self, name: Bytes, made: i64) {
        if !self.keys.contains_key(&name) {
            self.push(name, made);
        }
    }

    /// Takes up to `count` leasing keys.
    pub(super) fn take(&mut self, count: usize) -> Vec<(Bytes, i64)> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some((name, made)) = self.keys.pop_first()
        {
            self.bytes -= bytes_of(&name);
            taken.push((name, made));
        }
        taken
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= RELEASED_BYTES_MAX
    }
}

fn bytes_of(name: &Bytes) -> usize {
    OVERHEAD_BYTES + name.len()
}
