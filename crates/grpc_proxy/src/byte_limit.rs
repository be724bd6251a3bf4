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

    /// Takes a share of the limit. Returns `None` if less than this is left.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let mut share = Share { limit: Arc::clone(self), bytes: 0 };
        share.grow(bytes).then_some(share)
    }

    /// Takes a share of the limit, even if less than this is left.
    pub(crate) fn take_regardless(self: &Arc<Self>, bytes: usize) -> Share {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Share { limit: Arc::clone(self), bytes }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A share of a limit.
#[derive(Debug)]
pub(crate) struct Share {
    limit: Arc<ByteLimit>,
    bytes: usize,
}

impl Share {
    /// Adds bytes to the share. Returns false, and adds nothing, if less than this is left of the limit.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let max = self.limit.max;
        let grown = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        let is_left =
            self.limit.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if is_left {
            self.bytes += bytes;
        }
        is_left
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.limit.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_refused_at_the_limit_and_returned_when_dropped() {
        let limit = ByteLimit::new(10);
        let mut first = limit.take(4).unwrap();
        assert!(limit.take(7).is_none());
        assert!(first.grow(6) && !first.grow(1));
        let more = limit.take_regardless(5);
        assert_eq!(limit.used(), 15);
        drop(first);
        assert!(limit.take(6).is_none());
        drop((limit.take(5).unwrap(), more));
        assert_eq!(limit.used(), 0);
    }
}
