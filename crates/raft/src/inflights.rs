//! The window of unacknowledged appends from a leader to one follower.
//!
//! The window is full when it contains too many messages or too many payload bytes. While it is full, the leader sends
//! only occasional empty probes. The byte limit is soft: the message that exceeds it is still sent.

use std::collections::VecDeque;

use crate::log_index::LogIndex;

/// Unacknowledged appends, oldest first, each identified by its last index.
#[derive(Clone, Debug)]
pub struct Inflights {
    window: VecDeque<(LogIndex, u64)>,
    bytes: u64,
    count_max: usize,
    bytes_max: u64,
}

impl Inflights {
    /// Creates an empty window for `count_max` messages and `bytes_max` payload bytes. Memory is
    /// allocated only when needed.
    #[must_use]
    pub fn new(count_max: usize, bytes_max: u64) -> Self {
        Self { window: VecDeque::new(), bytes: 0, count_max, bytes_max }
    }

    /// Records an append that ends at `last` and carries `bytes` of payload. The window must not be
    /// full, and indexes must not decrease.
    pub fn add(&mut self, last: LogIndex, bytes: u64) {
        assert!(
            !self.is_full(),
            "appends are sent only within the flow-control window: otherwise a slow follower would receive more than \
             it can buffer"
        );
        assert!(
            self.window.back().is_none_or(|(previous, _)| *previous <= last),
            "appends are recorded in log order: otherwise one acknowledgement would leave older appends in the window, \
             which then never empties"
        );
        self.window.push_back((last, bytes));
        self.bytes += bytes;
    }

    /// Removes every append that ends at or below `acked`.
    pub fn free_up_to(&mut self, acked: LogIndex) {
        while let Some((last, bytes)) = self.window.front().copied()
            && last <= acked
        {
            self.window.pop_front();
            self.bytes -= bytes;
        }
        assert!(
            !self.window.is_empty() || self.bytes == 0,
            "an empty window has no bytes: otherwise the window would count as full forever"
        );
    }

    /// Returns whether the next append must wait for an acknowledgement.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.window.len() >= self.count_max || self.bytes >= self.bytes_max
    }

    /// Returns the number of unacknowledged appends.
    #[must_use]
    pub fn count(&self) -> usize {
        self.window.len()
    }

    /// Removes all appends.
    pub fn clear(&mut self) {
        self.window.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inflights_are_full_at_the_count_limit() {
        let mut inflights = Inflights::new(2, u64::MAX);
        inflights.add(LogIndex(3), 10);
        assert!(!inflights.is_full());
        inflights.add(LogIndex(5), 10);
        assert!(inflights.is_full());
        inflights.free_up_to(LogIndex(2));
        assert_eq!(inflights.count(), 2);
        inflights.free_up_to(LogIndex(4));
        assert_eq!(inflights.count(), 1);
        inflights.add(LogIndex(9), 10);
        inflights.free_up_to(LogIndex(100));
        assert_eq!((inflights.count(), inflights.bytes), (0, 0));
    }

    #[test]
    fn only_one_message_can_exceed_the_byte_limit() {
        let mut inflights = Inflights::new(100, 10);
        inflights.add(LogIndex(1), 9);
        assert!(!inflights.is_full());
        inflights.add(LogIndex(2), 100);
        assert!(inflights.is_full());
        inflights.free_up_to(LogIndex(1));
        assert!(inflights.is_full());
        inflights.clear();
        assert!(!inflights.is_full());
    }
}
