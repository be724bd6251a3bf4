//! What watchers are to be sent and has not been taken yet, in bytes, over all streams.
//!
//! Events that several streams get are held once and counted once. A count lives until the memory is given back:
//! with the last queue that names the events, or with the frame that carries them.
//!
//! # Bound
//!
//! [`WatchLimits::held_bytes_max`](super::WatchLimits). From there on a stream is given events, new ones or history,
//! only if none wait on it. Those who read go on, whatever others leave lying; those who do not cost one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of one hub.
#[derive(Debug)]
pub(super) struct HeldBytes {
    used: AtomicUsize,
    max: usize,
}

impl HeldBytes {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.used() >= self.max
    }

    /// How much more would fit.
    pub(super) fn room(&self) -> usize {
        self.max.saturating_sub(self.used())
    }

    /// Counts what is held from now on.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Held { of: Arc::clone(self), bytes: AtomicUsize::new(bytes) }
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
        self.of.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}
