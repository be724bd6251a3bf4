//! The bytes of all events that are queued for streams and that clients have not taken yet.
//!
//! Events that several streams receive are kept in memory once and counted once. They are counted until the last queue
//! or frame that refers to the events is dropped, which frees the memory.
//!
//! # Bound
//!
//! The bound is [`WatchLimits::held_bytes_max`](super::WatchLimits). When it is reached, a stream
//! receives events, whether new or from history, only if its own queue is empty. Clients that read
//! therefore make progress regardless of how many other clients do not read, and a client that does
//! not read costs the memory of one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The counter of held bytes of one hub.
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

    /// Returns the bytes that remain until the bound is reached.
    pub(super) fn room(&self) -> usize {
        self.max.saturating_sub(self.used())
    }

    /// Counts `bytes` until the returned value is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Held { of: Arc::clone(self), bytes: AtomicUsize::new(bytes) }
    }
}

/// A number of bytes that are counted until this value is dropped.
#[derive(Debug)]
pub struct Held {
    of: Arc<HeldBytes>,
    bytes: AtomicUsize,
}

impl Held {
    /// Counts additional bytes.
    pub(super) fn add(&self, bytes: usize) {
        self.of.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let before = self.of.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(
            before >= bytes,
            "bytes are released only once: otherwise the bound on events in memory would have no effect"
        );
    }
}
