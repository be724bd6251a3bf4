//! Wakes many tasks of one runtime from another thread with one system call.
//!
//! Waking a task of a sleeping runtime from another thread takes several microseconds, most of it in the kernel, and
//! the runtime does not combine such calls. A revision with ten watchers on ten connections wakes ten tasks. So each
//! runtime has a [`WakeQueue`]. The other thread adds the tasks' wakers to the queue, and wakes the runtime only if the
//! queue was empty. The runtime's own thread then wakes the tasks, which is only a push to a local queue.
//!
//! # Guarantees
//!
//! * No wake-up is lost: the thread that adds the first waker to an empty queue wakes the runtime, which then empties
//!   the queue.
//! * A connection's task is added to the queue at most once between two of its runs (`listen` ensures this).

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::Notify;

thread_local! {
    static QUEUE: RefCell<Option<Arc<WakeQueue>>> = const { RefCell::new(None) };
}

/// The tasks of one runtime that other threads have woken.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue {
    woken: Mutex<Vec<Waker>>,
    arrived: Notify,
}

impl WakeQueue {
    /// Returns the queue of the runtime that runs on this thread, if it has one.
    pub(crate) fn of_this_thread() -> Option<Arc<Self>> {
        QUEUE.with_borrow(Clone::clone)
    }

    /// Wakes a task of the runtime.
    pub(crate) fn wake(self: &Arc<Self>, task: Waker) {
        let is_here =
            QUEUE.with_borrow(|own| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, self)));
        if is_here {
            task.wake();
            return;
        }
        let was_empty = {
            let mut woken = self.woken.lock();
            woken.push(task);
            woken.len() == 1
        };
        if was_empty {
            self.arrived.notify_one();
        }
    }

    /// Wakes the tasks in the queue while the future is polled. The thread that polls the future must not run another
    /// runtime afterwards, because the queue remains registered for the thread.
    pub(crate) async fn deliver(self: Arc<Self>) {
        QUEUE.set(Some(Arc::clone(&self)));
        let mut woken = Vec::new();
        loop {
            self.arrived.notified().await;
            std::mem::swap(&mut woken, &mut *self.woken.lock());
            woken.drain(..).for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::<Count>::default();
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn wake_ups_from_another_thread_wake_the_runtime_once_per_delivery() {
        let queue = Arc::<WakeQueue>::default();
        let (runtime, waker) = counted();
        let mut delivery = pin!(Arc::clone(&queue).deliver());
        let mut poll = || delivery.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        assert!(poll());
        let (task, task_waker) = counted();
        for round in 1..=2 {
            std::thread::scope(|scope| {
                scope.spawn(|| (0..10).for_each(|_| queue.wake(task_waker.clone())));
            });
            assert_eq!(runtime.0.load(Ordering::Relaxed), round);
            assert_eq!(task.0.load(Ordering::Relaxed), 10 * (round - 1));
            assert!(poll());
            assert_eq!(task.0.load(Ordering::Relaxed), 10 * round);
        }
    }

    #[test]
    fn a_task_of_the_same_thread_is_woken_directly() {
        let queue = Arc::<WakeQueue>::default();
        let (runtime, waker) = counted();
        let mut delivery = pin!(Arc::clone(&queue).deliver());
        assert!(delivery.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let (task, task_waker) = counted();
        queue.wake(task_waker);
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        assert_eq!(runtime.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_wake_up_is_lost_while_the_queue_is_being_delivered() {
        const WAKES: usize = 5_000;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let queue = Arc::<WakeQueue>::default();
        let sent = Arc::new(AtomicUsize::new(0));
        let slot = Arc::new(Mutex::new(None::<Waker>));
        let waking = {
            let (queue, sent, slot) = (Arc::clone(&queue), Arc::clone(&sent), Arc::clone(&slot));
            std::thread::spawn(move || {
                while sent.load(Ordering::SeqCst) < WAKES {
                    let Some(task) = slot.lock().take() else {
                        std::thread::yield_now();
                        continue;
                    };
                    sent.fetch_add(1, Ordering::SeqCst);
                    queue.wake(task);
                }
            })
        };
        // The task stores its waker only when it is polled, so the test would hang after a lost wake-up. The task is
        // separate from the delivery, so that only the delivery can wake it.
        let waiting = runtime.spawn(poll_fn(move |cx| {
            let mut slot = slot.lock();
            if sent.load(Ordering::SeqCst) == WAKES {
                return Poll::Ready(());
            }
            *slot = Some(cx.waker().clone());
            Poll::Pending
        }));
        runtime.block_on(async {
            tokio::select! {
                () = queue.deliver() => {}
                ended = waiting => ended.unwrap(),
            }
        });
        waking.join().unwrap();
    }
}
