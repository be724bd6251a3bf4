//! The work queue of a core thread, received in batches.
//!
//! Many threads send items. The single receiver takes all queued items at once by swapping the queue's memory with its
//! own empty buffer, which takes one lock per batch and copies nothing. A waiting receiver parks immediately. Spinning
//! first, as general-purpose channels do, costs several microseconds of CPU for every request of a single client
//! (measured).
//!
//! # Bound
//!
//! [`Sender::send`] never waits, and the queue is unbounded: each sender bounds the work that it queues.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Creates an unbounded queue.
pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::default()),
        arrived: Condvar::new(),
        senders: AtomicUsize::new(1),
    });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

struct Shared<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    senders: AtomicUsize,
}

struct State<T> {
    items: Vec<T>,
    is_taker_waiting: bool,
    /// Whether the receiver's next wait ends immediately, even if the queue is empty.
    is_interrupted: bool,
    /// Whether the receiver has been closed or dropped.
    is_closed: bool,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        let items = Vec::new();
        Self { items, is_taker_waiting: false, is_interrupted: false, is_closed: false }
    }
}

/// The sending end of the queue. Each sending thread has a clone.
pub(crate) struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The receiving end of the queue. There is only one.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// The receiver has been closed or dropped, so the item can no longer be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Why no items were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// The deadline passed before an item was received.
    TimedOut,
    /// All senders have been dropped.
    Closed,
}

impl<T> Sender<T> {
    /// Queues an item, regardless of the queue's length, and wakes the receiver.
    pub(crate) fn send(&self, item: T) -> Result<(), Closed> {
        let mut state = self.shared.state.lock();
        if state.is_closed {
            return Err(Closed);
        }
        state.items.push(item);
        self.notify(state);
        Ok(())
    }

    /// Queues an item without waking the receiver. The caller must either take the item itself or call
    /// [`Sender::wake`].
    pub(crate) fn queue(&self, item: T) -> Result<(), Closed> {
        let mut state = self.shared.state.lock();
        if state.is_closed {
            return Err(Closed);
        }
        state.items.push(item);
        Ok(())
    }

    /// Wakes the receiver if it is waiting.
    pub(crate) fn wake(&self) {
        self.notify(self.shared.state.lock());
    }

    /// Ends the receiver's current wait or, if the receiver is not waiting, its next wait, even if the queue is empty.
    pub(crate) fn interrupt(&self) {
        let mut state = self.shared.state.lock();
        state.is_interrupted = true;
        self.notify(state);
    }

    fn notify(&self, mut state: MutexGuard<'_, State<T>>) {
        let wake = std::mem::take(&mut state.is_taker_waiting);
        drop(state);
        if wake {
            self.shared.arrived.notify_one();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The lock is taken so that a receiver that is about to wait cannot miss the notification.
            let _state = self.shared.state.lock();
            self.shared.arrived.notify_one();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for items until the deadline, or without limit if there is no deadline. Moves all items into `batch`,
    /// which must be empty.
    pub(crate) fn receive_until(
        &self,
        batch: &mut Vec<T>,
        deadline: Option<Instant>,
    ) -> Result<(), ReceiveError> {
        self.wait(deadline)?;
        self.take(batch);
        Ok(())
    }

    /// Moves all queued items into `batch` without waiting. `batch` must be empty.
    pub(crate) fn take(&self, batch: &mut Vec<T>) {
        assert!(
            batch.is_empty(),
            "a batch is processed before the next is taken: otherwise its remaining items would return to the queue"
        );
        std::mem::swap(&mut self.shared.state.lock().items, batch);
    }

    /// Waits until there are items or a sender interrupts the wait, or until the deadline if there is one. The items
    /// stay in the queue.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<(), ReceiveError> {
        let mut state = self.shared.state.lock();
        while state.items.is_empty() && !state.is_interrupted {
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(ReceiveError::Closed);
            }
            state.is_taker_waiting = true;
            match deadline {
                None => self.shared.arrived.wait(&mut state),
                Some(deadline) => {
                    if self.shared.arrived.wait_until(&mut state, deadline).timed_out()
                        && state.items.is_empty()
                        && !state.is_interrupted
                    {
                        state.is_taker_waiting = false;
                        return Err(ReceiveError::TimedOut);
                    }
                }
            }
        }
        state.is_taker_waiting = false;
        state.is_interrupted = false;
        Ok(())
    }

    /// Drops the queued items and refuses further ones.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let unread = std::mem::take(&mut state.items);
        drop(state);
        // Dropping an item may send another item, so the items are dropped outside the lock.
        drop(unread);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn items_are_received_once_and_in_the_order_in_which_each_sender_sent_them() {
        let (sender, receiver) = unbounded();
        let senders: Vec<_> = (0..4)
            .map(|who| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for number in 0..1000 {
                        sender.send((who, number)).unwrap();
                    }
                })
            })
            .collect();
        drop(sender);
        let (mut next, mut batch) = ([0; 4], Vec::new());
        while receiver.receive_until(&mut batch, None) == Ok(()) {
            for (who, number) in batch.drain(..) {
                assert_eq!(number, next[who]);
                next[who] += 1;
            }
        }
        assert_eq!(next, [1000; 4]);
        for sender in senders {
            sender.join().unwrap();
        }
    }

    #[test]
    fn receiving_from_an_empty_queue_ends_at_the_deadline() {
        let (sender, receiver) = unbounded::<u8>();
        let mut batch = Vec::new();
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(receiver.receive_until(&mut batch, deadline), Err(ReceiveError::TimedOut));
        sender.send(1).unwrap();
        assert_eq!(receiver.receive_until(&mut batch, deadline), Ok(()));
        assert_eq!(batch, [1]);
    }

    #[test]
    fn an_interrupt_ends_the_next_wait_even_if_there_are_no_items() {
        let (sender, receiver) = unbounded::<u8>();
        let mut batch = Vec::new();
        sender.interrupt();
        assert_eq!(receiver.receive_until(&mut batch, None), Ok(()));
        assert!(batch.is_empty());
        // An interrupt ends only one wait, so the next wait lasts until its deadline.
        let deadline = Some(Instant::now() + Duration::from_millis(5));
        assert_eq!(receiver.receive_until(&mut batch, deadline), Err(ReceiveError::TimedOut));
        // Another thread may take the items before the interrupted thread wakes.
        sender.send(1).unwrap();
        sender.interrupt();
        receiver.take(&mut batch);
        assert_eq!(receiver.wait(None), Ok(()));
        let waiting = std::thread::spawn(move || receiver.receive_until(&mut Vec::new(), None));
        sender.interrupt();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }

    #[test]
    fn sending_fails_after_the_receiver_is_dropped() {
        let (sender, receiver) = unbounded();
        sender.send(1).unwrap();
        drop(receiver);
        assert_eq!(sender.send(2), Err(Closed));
    }
}
