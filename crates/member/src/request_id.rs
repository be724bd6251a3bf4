//! Ids of requests and leases: unique over the life of the cluster without coordination.
//!
//! Layout, most significant first: 16 low bits of the member id, 40 bits of milliseconds at start, an
//! 8-bit counter whose carry flows upward. Two members differ in the first part; two lives of one
//! member differ in the second, unless it made more than 256 ids for every millisecond it lived.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes ids for one member. Shared by all threads.
#[derive(Debug)]
pub struct RequestIds {
    member: u64,
    counter: AtomicU64,
}

const COUNTER_BITS: u32 = 48;

impl RequestIds {
    /// Ids of a member that starts now; those of an earlier start do not come again.
    pub fn new(member_id: u64, now: SystemTime) -> Self {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Only the low 40 bits of the milliseconds are used.
        let millis = u64::try_from(since_epoch.as_millis()).unwrap_or_default() & ((1 << 40) - 1);
        Self { member: member_id << COUNTER_BITS, counter: AtomicU64::new(millis << 8) }
    }

    /// The next id.
    pub fn next(&self) -> u64 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.member | (count & ((1 << COUNTER_BITS) - 1))
    }

    /// An id for a lease whose client left the choice to us: positive, never 0.
    pub fn next_lease(&self) -> i64 {
        loop {
            let id = (self.next() & (u64::MAX >> 1)).cast_signed();
            if id != 0 {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ids_carry_the_member_and_count_up() {
        let ids = RequestIds::new(0xabcd_1234, UNIX_EPOCH + Duration::from_millis(1));
        assert_eq!(ids.next(), 0x1234_0000_0000_0101);
        assert_eq!(ids.next(), 0x1234_0000_0000_0102);
        let upper = RequestIds::new(0xffff, UNIX_EPOCH);
        assert_eq!(upper.next_lease(), 0x7fff_0000_0000_0001);
    }
}
