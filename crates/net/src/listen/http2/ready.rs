//! The requests of a connection that have been woken.
//!
//! The task of a connection polls the futures of its requests itself. Each request has its own waker, so that the task
//! polls only the woken requests and is woken once for many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use crate::wakes::WakeQueue;

/// The woken requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Ready {
    woken: Mutex<Woken>,
    /// The queue of the runtime that runs the connection's task. `None` if that runtime has no queue, as in tests.
    runtime: Option<Arc<WakeQueue>>,
}

#[derive(Debug, Default)]
struct Woken {
    slots: Vec<u32>,
    /// The waker of the connection's task.
    task: Option<Waker>,
    is_polling: bool,
}

impl Ready {
    /// Creates a list for a connection whose task runs on this thread.
    pub(super) fn of_this_thread() -> Arc<Self> {
        Arc::new(Self { woken: Mutex::default(), runtime: WakeQueue::of_this_thread() })
    }

    /// Records that the task has begun to run, and keeps its waker.
    pub(super) fn begin(&self, task: &Waker) {
        let mut woken = self.woken.lock();
        woken.is_polling = true;
        if !woken.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            woken.task = Some(task.clone());
        }
    }

    /// Swaps the list of woken slots with an empty list. Returns false if no slot was woken.
    pub(super) fn take(&self, slots: &mut Vec<u32>) -> bool {
        let mut woken = self.woken.lock();
        std::mem::swap(&mut woken.slots, slots);
        !slots.is_empty()
    }

    /// Records that the task is about to sleep. Returns false if a slot has been woken since the last call to
    /// [`Self::take`].
    pub(super) fn end(&self) -> bool {
        let mut woken = self.woken.lock();
        woken.is_polling = !woken.slots.is_empty();
        woken.slots.is_empty()
    }

    /// Records that the task yields. The caller must also wake the task, because slots that were woken while the task
    /// ran do not wake it.
    pub(super) fn yield_now(&self) {
        self.woken.lock().is_polling = false;
    }

    fn push(&self, slot: u32) {
        let mut woken = self.woken.lock();
        woken.slots.push(slot);
        if !woken.is_polling
            && woken.slots.len() == 1
            && let Some(task) = &woken.task
        {
            let task = task.clone();
            drop(woken);
            match &self.runtime {
                Some(runtime) => runtime.wake(task),
                None => task.wake(),
            }
        }
    }
}

/// The waker of one request.
#[derive(Debug)]
pub(super) struct SlotWaker {
    ready: Arc<Ready>,
    slot: u32,
    is_woken: AtomicBool,
}

impl SlotWaker {
    pub(super) fn new(ready: &Arc<Ready>, slot: u32) -> Arc<Self> {
        Arc::new(Self { ready: Arc::clone(ready), slot, is_woken: AtomicBool::new(false) })
    }

    /// Records that the request is about to be polled.
    pub(super) fn reset(&self) {
        self.is_woken.store(false, Ordering::Release);
    }

    pub(super) fn wake_by_ref(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.ready.push(self.slot);
        }
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        Self::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake_by_ref(self);
    }
}
