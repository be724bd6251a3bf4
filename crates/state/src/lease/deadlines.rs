//! A queue of deadlines that is cheap to put off.
//!
//! Renewing a lease moves its deadline later, ten thousand times a second and more, so that must not
//! touch the queue: the queue keeps the earlier time, and when that time comes the owner looks at the
//! real deadline and queues again. Each lease remembers the one entry that counts for it ([`Slot`]), so
//! entries left behind by a move to an earlier time are told apart and dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::{LeaseId, Millis};

/// The time of the queue entry that counts for one lease, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(Option<Millis>);

/// Entries ordered by time, ties by lease.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Millis, LeaseId)>>,
}

impl Deadlines {
    /// Makes sure that the lease comes up at `at` or earlier.
    pub(super) fn schedule(&mut self, slot: &mut Slot, id: LeaseId, at: Millis) {
        if slot.0.is_none_or(|queued| at < queued) {
            slot.0 = Some(at);
            self.heap.push(Reverse((at, id)));
        }
    }

    /// Takes the earliest entry that is due, whether or not it still counts: see [`Slot::take`].
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<(Millis, LeaseId)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Drops what no longer counts once it is most of the queue: leases that were revoked long before
    /// their time would otherwise pile up.
    pub(super) fn trim(&mut self, lease_count: usize, counts: impl Fn(Millis, LeaseId) -> bool) {
        if self.heap.len() > 2 * lease_count + 1024 {
            self.heap.retain(|Reverse((at, id))| counts(*at, *id));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl Slot {
    /// Says whether the entry popped at `at` is the one that counts, and frees the slot if so.
    pub(super) fn take(&mut self, at: Millis) -> bool {
        let counts = self.holds(at);
        if counts {
            self.0 = None;
        }
        counts
    }

    /// Whether the entry queued at `at` is the one that counts.
    pub(super) fn holds(self, at: Millis) -> bool {
        self.0 == Some(at)
    }
}
