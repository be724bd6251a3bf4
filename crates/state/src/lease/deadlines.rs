//! A priority queue of deadlines in which postponing a deadline costs nothing.
//!
//! A renewal postpones the deadline of a lease. There may be more than ten thousand renewals a second, so a renewal
//! must not change the queue. The queue entry keeps the earlier deadline. When that time arrives, the owner of the
//! queue compares it with the current deadline and schedules the lease again. The [`Slot`] of a lease records the time
//! of its valid queue entry. If a deadline moves to an earlier time, the old entry no longer matches the slot and is
//! dropped later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::{LeaseId, Millis};

/// The time of a lease's valid queue entry, if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot(Option<Millis>);

/// Queue entries ordered by time, then by lease id.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Millis, LeaseId)>>,
}

impl Deadlines {
    /// Ensures that the queue returns the lease at `at` or earlier.
    pub(super) fn schedule(&mut self, slot: &mut Slot, id: LeaseId, at: Millis) {
        if slot.0.is_none_or(|queued| at < queued) {
            slot.0 = Some(at);
            self.heap.push(Reverse((at, id)));
        }
    }

    /// Removes and returns the earliest entry that is due. The entry may be stale, which
    /// [`Slot::take`] checks.
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

    /// Drops stale entries once they make up most of the queue. Otherwise, the entries of leases
    /// that are revoked long before their deadlines would accumulate.
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
    /// Returns whether a popped entry with the time `at` is the lease's valid entry. If it is, clears the slot.
    pub(super) fn take(&mut self, at: Millis) -> bool {
        let counts = self.holds(at);
        if counts {
            self.0 = None;
        }
        counts
    }

    /// Returns whether a queue entry with the time `at` is the lease's valid entry.
    pub(super) fn holds(self, at: Millis) -> bool {
        self.0 == Some(at)
    }
}
