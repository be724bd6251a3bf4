//! The permit for the rows of a read, which the database sends. It grows while the rows arrive.
//!
//! # Bounds
//!
//! | rows | bound | held |
//! |---|---|---|
//! | up to [`UNCOUNTED_BYTES`] | none | |
//! | up to [`SHORT_BYTES`] | [`SHORT_LIST_BYTES_MAX`] | until the response itself is counted |
//! | more | `LIST_BYTES_MAX` of `requests::admission` | until the client has received the response |
//!
//! Therefore, clients that read long lists slowly delay other long lists, but not short ones. A read that waits for room
//! holds no rows, but it may hold a permit for its response. The permits for short lists are part of a bound of their
//! own, so such reads never wait for each other.
//!
//! If there is no room for a row, the read drops all its rows and its permit, waits for a permit for twice as many
//! bytes, and starts again.

use std::sync::Arc;
use std::time::Duration;

use quorate_engine::EngineOptions;
use quorate_requests::admission::{Bound, Full, OwnedPermit};
use tokio::time::Instant;

/// The maximum bytes of rows of short lists that are being read.
const SHORT_LIST_BYTES_MAX: u64 = 256 << 20;

/// A read whose rows take at most this many bytes needs no permit. Such rows of the maximum number of calls take 512
/// MiB.
const UNCOUNTED_BYTES: u64 = 4 << 10;

/// A read whose rows take more bytes is a long list. A part of a `RangeStream` is shorter.
const SHORT_BYTES: u64 = 4 << 20;

/// A permit grows by at least this many bytes at a time.
const STEP_BYTES: u64 = 64 << 10;

/// The bounds on the rows of all reads.
#[derive(Debug)]
pub(super) struct RowBounds {
    short: Arc<Bound>,
    long: Arc<Bound>,
}

impl RowBounds {
    /// Creates a bound for short lists. `long` is the bound for long lists.
    pub(super) fn new(long: Arc<Bound>) -> Self {
        Self { short: Arc::new(Bound::new(SHORT_LIST_BYTES_MAX)), long }
    }

    const fn for_list(&self, bytes: u64) -> &Arc<Bound> {
        if bytes > SHORT_BYTES { &self.long } else { &self.short }
    }
}

/// The permit for the rows of one read.
#[derive(Debug)]
pub(super) struct RowPermit<'a> {
    bounds: &'a RowBounds,
    deadline: Instant,
    permit: Option<OwnedPermit>,
    /// The bytes of the permit.
    granted: u64,
    /// The bytes of the rows.
    used: u64,
}

impl<'a> RowPermit<'a> {
    /// Creates an empty permit for a read that may take this time, including waits for room.
    pub(super) fn new(bounds: &'a RowBounds, timeout: Duration) -> Self {
        let deadline = Instant::now() + timeout;
        Self { bounds, deadline, permit: None, granted: 0, used: 0 }
    }

    /// Returns the time at which the read has to end.
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sets the total bytes of the rows. Returns false if there is no room for them.
    pub(super) fn set(&mut self, bytes: u64) -> bool {
        self.used = bytes;
        if bytes <= self.granted.max(UNCOUNTED_BYTES) {
            return true;
        }
        let bound = self.bounds.for_list(bytes);
        match &mut self.permit {
            Some(permit) if Arc::ptr_eq(permit.bound(), bound) => {
                // A permit for a short list does not grow beyond the bytes of short lists. Otherwise, it would not be
                // exchanged for a permit for long lists in time.
                let step_max =
                    if bytes > SHORT_BYTES { u64::MAX } else { SHORT_BYTES - self.granted };
                let step = STEP_BYTES.max(bytes - self.granted).min(step_max);
                if !permit.grow(step) {
                    return false;
                }
                self.granted += step;
            }
            _ => {
                let Some(permit) = Bound::take_now(bound, bytes) else { return false };
                (self.permit, self.granted) = (Some(permit), bytes);
            }
        }
        true
    }

    /// After a failed attempt to set the total, returns the permit, and waits for a permit for twice as many bytes.
    pub(super) async fn wait_for_room(&mut self) -> Result<(), Full> {
        let timeout = self.deadline.saturating_duration_since(Instant::now());
        // A short list waits for the bound on short lists, even if twice its bytes were a long list.
        let bytes_max = if self.used > SHORT_BYTES {
            EngineOptions::LOAD_BYTES_MAX as u64
        } else {
            SHORT_BYTES
        };
        let bytes = self.used.saturating_mul(2).min(bytes_max);
        self.permit = None;
        (self.granted, self.used) = (0, 0);
        self.permit = Some(Bound::take_within(self.bounds.for_list(bytes), bytes, timeout).await?);
        self.granted = bytes;
        Ok(())
    }

    /// Returns the permit of a long list, which is held until the client has received the list. The caller counts the
    /// bytes of a shorter response at once.
    pub(super) fn finish(self) -> Option<OwnedPermit> {
        let mut permit = self.permit.filter(|_| self.used > SHORT_BYTES)?;
        permit.resize(self.used);
        Some(permit)
    }
}

#[cfg(test)]
mod tests {
    use quorate_requests::admission::LIST_BYTES_MAX;

    use super::*;

    /// A timeout that never expires during a test.
    const LONG: Duration = Duration::from_secs(3600);

    fn bounds() -> RowBounds {
        RowBounds::new(Arc::new(Bound::new(LIST_BYTES_MAX)))
    }

    #[test]
    fn rows_of_a_long_list_are_counted_until_the_permit_is_dropped() {
        let bounds = bounds();
        let mut rows = RowPermit::new(&bounds, LONG);
        assert!(rows.set(UNCOUNTED_BYTES));
        assert_eq!(bounds.short.used(), 0);
        assert!(rows.set(UNCOUNTED_BYTES + 1));
        assert_eq!(bounds.short.used(), UNCOUNTED_BYTES + 1);
        for bytes in (UNCOUNTED_BYTES..=10 * SHORT_BYTES).step_by(1_000) {
            assert!(rows.set(bytes));
            assert!(bounds.long.used() + bounds.short.used() >= bytes);
        }
        assert_eq!(bounds.short.used(), 0, "a long list counts only as a list");
        assert!(rows.set(10 * SHORT_BYTES));
        let permit = rows.finish();
        assert_eq!(bounds.long.used(), 10 * SHORT_BYTES);
        drop(permit);
        assert_eq!(bounds.long.used(), 0);
    }

    #[test]
    fn a_list_that_is_barely_long_counts_as_a_long_list() {
        let bounds = bounds();
        let mut rows = RowPermit::new(&bounds, LONG);
        for bytes in (UNCOUNTED_BYTES..=SHORT_BYTES + 1_000).step_by(1_000) {
            assert!(rows.set(bytes));
        }
        let _permit = rows.finish();
        assert_eq!(bounds.short.used(), 0);
        assert!(bounds.long.used() > SHORT_BYTES);
    }

    #[test]
    fn the_permit_of_a_short_list_ends_with_the_read() {
        let bounds = bounds();
        let mut rows = RowPermit::new(&bounds, LONG);
        assert!(rows.set(3 * SHORT_BYTES) && rows.set(SHORT_BYTES));
        assert!(rows.finish().is_none());
        assert_eq!((bounds.long.used(), bounds.short.used()), (0, 0));
    }

    #[tokio::test]
    async fn a_read_without_room_returns_its_permit_and_waits_for_a_larger_one() {
        let bounds = bounds();
        let others = Bound::take_regardless(&bounds.long, LIST_BYTES_MAX - 2 * SHORT_BYTES);
        let mut rows = RowPermit::new(&bounds, LONG);
        assert!(rows.set(SHORT_BYTES + 1) && rows.set(3 * SHORT_BYTES));
        assert!(!rows.set(4 * SHORT_BYTES));
        let last = Bound::take_regardless(&bounds.long, 2 * SHORT_BYTES);
        rows.deadline = Instant::now();
        assert_eq!(rows.wait_for_room().await, Err(Full));
        rows.deadline += LONG;
        assert_eq!(bounds.long.used(), LIST_BYTES_MAX);
        assert!(RowPermit::new(&bounds, LONG).set(SHORT_BYTES), "short lists are still read");
        rows.used = 4 * SHORT_BYTES;
        let (waited, ()) = tokio::join!(rows.wait_for_room(), async { drop(last) });
        assert_eq!(waited, Ok(()));
        assert!(rows.set(8 * SHORT_BYTES) && !rows.set(8 * SHORT_BYTES + 1));
        drop((rows, others));
        assert_eq!(bounds.long.used(), 0);
    }

    #[tokio::test]
    async fn a_short_list_does_not_wait_for_long_lists() {
        let bounds = bounds();
        let _long_lists = Bound::take_regardless(&bounds.long, LIST_BYTES_MAX);
        let short_lists = Bound::take_regardless(&bounds.short, SHORT_LIST_BYTES_MAX);
        let mut rows = RowPermit::new(&bounds, LONG);
        assert!(!rows.set(SHORT_BYTES - 1));
        let (waited, ()) = tokio::join!(rows.wait_for_room(), async { drop(short_lists) });
        assert_eq!(waited, Ok(()));
        assert_eq!((bounds.short.used(), bounds.long.used()), (SHORT_BYTES, LIST_BYTES_MAX));
    }

    #[test]
    fn tiny_rows_are_read_even_if_no_permits_are_left() {
        let bounds = bounds();
        let _others = Bound::take_regardless(&bounds.short, SHORT_LIST_BYTES_MAX);
        let mut rows = RowPermit::new(&bounds, LONG);
        assert!(rows.set(UNCOUNTED_BYTES) && !rows.set(UNCOUNTED_BYTES + 1));
    }
}
