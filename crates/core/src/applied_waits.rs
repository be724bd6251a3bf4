//! Waiters for applied entries: reads that have passed their read barrier, and requests that need every committed entry
//! to be applied.
//!
//! # Invariant
//!
//! A waiter is released only after its entry is published.

use std::collections::BTreeMap;

use quorate_raft::LogIndex;

/// Waiters by the index of their entry. `T` identifies a waiter.
#[derive(Debug)]
pub struct AppliedWaits<T> {
    by_index: BTreeMap<LogIndex, Vec<T>>,
    count: usize,
}

impl<T> Default for AppliedWaits<T> {
    fn default() -> Self {
        Self { by_index: BTreeMap::new(), count: 0 }
    }
}

impl<T> AppliedWaits<T> {
    /// Returns the number of waiters.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no waiters.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a waiter for an entry. Returns the waiter if the entry is already published.
    pub fn wait(&mut self, waiter: T, index: LogIndex, published: LogIndex) -> Option<T> {
        if index <= published {
            return Some(waiter);
        }
        self.by_index.entry(index).or_default().push(waiter);
        self.count += 1;
        None
    }

    /// Removes and returns the waiters for the lowest awaited index, if that index is published.
    pub fn take_released(&mut self, published: LogIndex) -> Option<Vec<T>> {
        let first = self.by_index.first_entry().filter(|first| *first.key() <= published)?;
        let waiters = first.remove();
        self.count -= waiters.len();
        assert!(
            !self.by_index.is_empty() || self.count == 0,
            "the count is 0 when no waiter is left: otherwise readers would be refused forever"
        );
        Some(waiters)
    }

    /// Removes the waiters for which `is_awaited` returns false.
    pub fn retain(&mut self, is_awaited: impl Fn(&T) -> bool) {
        self.by_index.retain(|_, waiters| {
            waiters.retain(&is_awaited);
            !waiters.is_empty()
        });
        self.count = self.by_index.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_released_only_when_their_index_is_published() {
        let mut waits = AppliedWaits::default();
        assert_eq!(waits.wait("a", LogIndex(4), LogIndex(4)), Some("a"));
        assert_eq!(waits.wait("b", LogIndex(5), LogIndex(4)), None);
        assert_eq!(waits.wait("c", LogIndex(7), LogIndex(4)), None);
        assert_eq!(waits.take_released(LogIndex(4)), None);
        assert_eq!(waits.take_released(LogIndex(6)), Some(vec!["b"]));
        assert_eq!((waits.take_released(LogIndex(6)), waits.len()), (None, 1));
        waits.retain(|waiter| *waiter != "c");
        assert!(waits.is_empty());
    }
}
