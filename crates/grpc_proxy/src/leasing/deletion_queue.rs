//! Leasing keys that this proxy has released and must delete.
//!
//! # Bound
//!
//! While at least [`RELEASED_BYTES_MAX`] bytes are queued, no more keys are acquired. Leasing keys of keys released
//! after that are still queued; the limit on the bytes of owned keys bounds their number.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::guard;

/// Total size of the queued leasing keys at which the queue is full, in bytes.
pub(super) const RELEASED_BYTES_MAX: usize = 8 << 20;

/// Memory overhead of one leasing key, in bytes.
const OVERHEAD_BYTES: usize = 256;

/// Leasing keys to delete, with their creation revisions.
#[derive(Debug, Default)]
pub(super) struct DeletionQueue {
    keys: BTreeMap<Bytes, i64>,
    bytes: usize,
}

impl DeletionQueue {
    /// Adds a leasing key, which replaces an earlier leasing key with the same name.
    pub(super) fn push(&mut self, name: Bytes, made: i64) {
        let bytes = bytes_of(&name);
        if self.keys.insert(name, made).is_none() {
            self.bytes += bytes;
        }
    }

    /// Returns a leasing key to the queue, unless a later leasing key with the same name is queued.
    pub(super) fn return_key(&mut self, name: Bytes, made: i64) {
        if !self.keys.contains_key(&name) {
            self.push(name, made);
        }
    }

    /// Takes the leasing keys for the next deletion transaction.
    pub(super) fn take(&mut self) -> Vec<(Bytes, i64)> {
        let count = guard::batch_len(self.keys.keys());
        let taken: Vec<_> = (0..count).filter_map(|_| self.keys.pop_first()).collect();
        self.bytes -= taken.iter().map(|(name, _)| bytes_of(name)).sum::<usize>();
        taken
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= RELEASED_BYTES_MAX
    }
}

fn bytes_of(name: &Bytes) -> usize {
    OVERHEAD_BYTES + name.len()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn the_deletions_in_one_transaction_fit_within_the_members_request_limit() {
        // The default of --max-request-bytes.
        const REQUEST_BYTES_MAX: usize = 3 << 19;
        let mut queue = DeletionQueue::default();
        let names: Vec<Bytes> =
            (0..100).map(|number| format!("{number:8}").repeat(4096).into()).collect();
        for name in &names {
            queue.push(name.clone(), 7);
        }
        let mut deleted = Vec::new();
        loop {
            let taken = queue.take();
            if taken.is_empty() {
                break;
            }
            assert!(guard::give_up(&taken).encoded_len() < REQUEST_BYTES_MAX);
            deleted.extend(taken.into_iter().map(|(name, _)| name));
        }
        assert_eq!(deleted, names);
        assert_eq!(queue.bytes, 0);
    }
}
