//! A queue of pending events, ordered by time. Events with the same time keep their insertion
//! order.

use std::collections::BTreeMap;

use crate::clock::Micros;

/// Pending events, ordered by time and then by insertion.
#[derive(Debug)]
pub struct Queue<E> {
    events: BTreeMap<(Micros, u64), E>,
    next: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), next: 0 }
    }
}

impl<E> Queue<E> {
    /// Schedules an event.
    pub fn push(&mut self, at: Micros, event: E) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    /// Removes and returns the next event and its time.
    pub fn pop(&mut self) -> Option<(Micros, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_the_same_time_keep_their_insertion_order() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.push(at, event);
        }
        let events: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(events, "abcd");
    }
}
