//! Pending events by time; events of the same time keep their order of insertion.

use std::collections::BTreeMap;

use crate::clock::Micros;

/// The pending events, ordered by time and then by insertion.
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
    /// Lets an event happen at a time.
    pub fn put(&mut self, at: Micros, event: E) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    /// The next event, with its time.
    pub fn take(&mut self) -> Option<(Micros, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_at_one_time_keeps_its_order() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.put(at, event);
        }
        let events: String = std::iter::from_fn(|| queue.take()).map(|(_, event)| event).collect();
        assert_eq!(events, "abcd");
    }
}
