//! Counts the steps that reads and checks of client input take, so that tests can measure their cost
//! (`apply::tests::cost`, `mvcc::tests`, `watch::tests`).
//!
//! A step is a comparison of keys, a visit of a key in the index, a lookup of the permissions for a key, or a check of
//! one watcher. The functions used by these reads and checks count their steps here. Steps are counted only in tests.

/// Counts a step.
#[inline]
pub(crate) fn count() {
    #[cfg(test)]
    counter::count();
}

#[cfg(test)]
pub(crate) use counter::of;

#[cfg(test)]
mod counter {
    use std::cell::Cell;

    std::thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Returns the number of steps that `work` takes on this thread.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = COUNT.get();
        work();
        COUNT.get() - before
    }
}
