//! A limit on memory that all clients of the proxy share.
//!
//! A [`Share`] is a part of the limit. Dropping the share returns it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on bytes, and the number of bytes in use.
#[derive(Debug)]
pub(crate) struct ByteLimit {
    max: usize,
    used: AtomicUsize,
}

impl ByteLimit {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0) })
    }

    /// Takes a share of the limit. Returns `None` if fewer than `bytes` bytes are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let share = self.take_regardless(0);
        share.grow(bytes).then_some(share)
    }

    /// Takes a share of the limit, even if fewer than `bytes` bytes are left.
    pub(crate) fn take_regardless(self: &Arc<Self>, bytes: usize) -> Share {
        let share = Share { limit: Arc::clone(self), bytes: AtomicUsize::new(0) };
        share.grow_regardless(bytes);
        share
    }

    /// Returns the maximum number of bytes.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A share of a limit.
#[derive(Debug)]
pub(crate) struct Share {
    limit: Arc<ByteLimit>,
    bytes: AtomicUsize,
}

impl Share {
    /// Adds bytes to the share. Returns false, and adds nothing, if fewer than `bytes` bytes are left.
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        let max = self.limit.max;
        let grown = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        let is_left =
            self.limit.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if is_left {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        is_left
    }

    /// Adds bytes to the share, even if fewer than `bytes` bytes are left.
    pub(crate) fn grow_regardless(&self, bytes: usize) {
        self.limit.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes in this share.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns all bytes of the share to the limit.
    pub(crate) fn release(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        self.limit.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_refused_at_the_limit_and_returned_when_dropped() {
        let limit = ByteLimit::new(10);
        let first = limit.take(4).unwrap();
        assert!(limit.take(7).is_none());
        assert!(first.grow(6) && !first.grow(1));
        let more = limit.take_regardless(5);
        assert_eq!((limit.used(), first.bytes()), (15, 10));
        first.release();
        assert!(limit.take(6).is_none());
        drop((limit.take(5).unwrap(), more, first));
        assert_eq!(limit.used(), 0);
    }
}
