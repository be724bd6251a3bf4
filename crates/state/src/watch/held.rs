//! What watchers are to be sent and has not been taken yet, in bytes, over all streams.
//!
//! Events that several streams get are held once and counted once. A count lives until the memory is given back:
//! with the last queue that names the events, or with the frame that carries them.
//!
//! # Bound
//!
//! [`WatchLimits::held_bytes_max`](super::WatchLimits). From there on a stream is given events only if none wait on
//! it, and nobody is served from history until others have taken theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// The count of one hub.
#[derive(Debug)]
pub(super) struct HeldBytes {
    used: AtomicUsize,
    max: usize,
    /// To be woken when there is room again.
    waiting: Mutex<Option<Waker>>,
}

impl HeldBytes {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max, waiting: Mutex::default() })
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::SeqCst) >= self.max
    }

    /// How much more would fit.
    pub(super) fn room(&self) -> usize {
        self.max.saturating_sub(self.used())
    }

    /// Counts what is held from now on.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        Held { of: Arc::clone(self), bytes: AtomicUsize::new(bytes) }
    }

    /// Whether there is room. If not, this is woken when there is.
    pub(super) fn has_room_or_wakes(&self, waker: &Waker) -> bool {
        if !self.is_full() {
            return true;
        }
        *self.waiting.lock() = Some(waker.clone());
        // What was given back meanwhile has found nobody to wake.
        !self.is_full()
    }

    fn give_back(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        if before >= self.max && before - bytes < self.max {
            let waker = self.waiting.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// A number of bytes that count until this is dropped.
#[derive(Debug)]
pub struct Held {
    of: Arc<HeldBytes>,
    bytes: AtomicUsize,
}

impl Held {
    /// Counts what has come on top.
    pub(super) fn add(&self, bytes: usize) {
        self.of.used.fetch_add(bytes, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.give_back(*self.bytes.get_mut());
    }
}
