//! The hashes of the newest compactions.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// A hash, and the range of revisions that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// The CRC-32C of the records.
    pub hash: u32,
    /// The compacted revision that was taken into account; -1 for none.
    pub compact_revision: i64,
    /// The newest covered revision.
    pub hash_revision: i64,
}

/// Hashes computed at compactions. Members that have applied different numbers of entries compare
/// these hashes.
#[derive(Debug, Default)]
pub(super) struct RememberedHashes {
    newest_last: Mutex<VecDeque<HashKv>>,
}

impl RememberedHashes {
    const COUNT_MAX: usize = 10;

    pub(super) fn get(&self, revision: i64) -> Option<HashKv> {
        let hashes = self.newest_last.lock();
        hashes.iter().rev().find(|hash| hash.hash_revision == revision).copied()
    }

    pub(super) fn all(&self) -> Vec<HashKv> {
        self.newest_last.lock().iter().copied().collect()
    }

    pub(super) fn push(&self, hash: HashKv) {
        let mut hashes = self.newest_last.lock();
        if hashes.len() == Self::COUNT_MAX {
            hashes.pop_front();
        }
        hashes.push_back(hash);
    }
}
