//! How far this member has come: the committed and the applied index, and who waits for the latter.
//!
//! The applier writes the applied index once per batch, after the batch's view is published, and then
//! releases everybody who waited for it. Readers compare two atomics on the way in.
//!
//! # Invariant
//!
//! When `applied()` has returned `i`, a view taken afterwards contains the effects of entry `i`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::mailbox::{Address, Outbox};

/// Committed entries that may wait for the applier before new requests are refused.
const UNAPPLIED_COUNT_MAX: u64 = 5_000;

/// Shared by all threads. `A` is what a waiter is sent.
#[derive(Debug)]
pub(crate) struct Progress<A> {
    committed: AtomicU64,
    applied: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Vec<Address<A>>>>,
}

impl<A: Clone> Progress<A> {
    pub(crate) const fn new(applied: u64) -> Self {
        Self {
            committed: AtomicU64::new(applied),
            applied: AtomicU64::new(applied),
            waiting: Mutex::new(BTreeMap::new()),
        }
    }

    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Whether the applier is so far behind that new requests have to be refused.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.committed() > self.applied() + UNAPPLIED_COUNT_MAX
    }

    /// Called by the driver.
    pub(crate) fn set_committed(&self, index: u64) {
        self.committed.fetch_max(index, Ordering::AcqRel);
    }

    /// Called by the applier after it has published the batch that ends with `index`.
    pub(crate) fn set_applied(&self, index: u64, answer: &A, outbox: &mut Outbox<A>) {
        let mut waiting = self.waiting.lock();
        self.applied.store(index, Ordering::Release);
        while let Some(first) = waiting.first_entry()
            && *first.key() <= index
        {
            for address in first.remove() {
                outbox.push(address, answer.clone());
            }
        }
    }

    /// Sends `answer` to `address` once `index` is applied, which may be now.
    pub(crate) fn when_applied(&self, index: u64, address: Address<A>, answer: A) {
        {
            let mut waiting = self.waiting.lock();
            // Looked at under the lock, so that the applier cannot pass in between.
            if self.applied() < index {
                waiting.entry(index).or_default().push(address);
                return;
            }
        }
        address.send(answer);
    }
}
