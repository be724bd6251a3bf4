//! Generates request ids and lease ids that are unique over the life of the cluster, without coordination.
//!
//! Layout, most significant first: the 16 low bits of the member id, then a 48-bit counter that starts at a random
//! number. Ids of two members differ in the first part, unless the low bits of their member ids are equal. Two such
//! members, or two runs of one member, generate the same id only if their counter ranges overlap. With a billion ids
//! per run, that happens once in 140,000 restarts. etcd derives the counter from the start time, which repeats when the
//! clock is set back.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Generates the ids of one member. Shared by all threads.
#[derive(Debug)]
pub struct RequestIds {
    member: u64,
    counter: AtomicU64,
}

const COUNTER_BITS: u32 = 48;

impl RequestIds {
    /// Creates the generator when the member starts.
    ///
    /// # Errors
    ///
    /// The system cannot provide random bytes.
    pub fn start(member_id: u64) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| io::Error::other(format!("failed to get random bytes: {error}")))?;
        Ok(Self::from(member_id, u64::from_le_bytes(random)))
    }

    /// Creates a generator. In the first id, the counter is `random + 1`, reduced to 48 bits.
    fn from(member_id: u64, random: u64) -> Self {
        Self { member: member_id << COUNTER_BITS, counter: AtomicU64::new(random) }
    }

    /// Returns the next request id.
    pub fn next(&self) -> u64 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.member | (count & ((1 << COUNTER_BITS) - 1))
    }

    /// Returns a lease id for a client that did not choose one. The id is positive, never 0.
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

    #[test]
    fn request_ids_contain_the_member_id_and_increase() {
        let ids = RequestIds::from(0xabcd_1234, 0x100);
        assert_eq!(ids.next(), 0x1234_0000_0000_0101);
        assert_eq!(ids.next(), 0x1234_0000_0000_0102);
        let upper = RequestIds::from(0xffff, 0);
        assert_eq!(upper.next_lease(), 0x7fff_0000_0000_0001);
    }

    #[test]
    fn the_member_part_of_an_id_is_unchanged_when_the_counter_overflows() {
        let ids = RequestIds::from(0x1234, u64::MAX - 1);
        let made: Vec<u64> = (0..3).map(|_| ids.next()).collect();
        assert_eq!(made, [0x1234_ffff_ffff_ffff, 0x1234_0000_0000_0000, 0x1234_0000_0000_0001]);
    }

    #[test]
    fn two_runs_of_one_member_generate_different_ids() {
        let (one, other) = (RequestIds::start(7).unwrap(), RequestIds::start(7).unwrap());
        let made: std::collections::BTreeSet<u64> = (0..1000).map(|_| one.next()).collect();
        assert!((0..1000).all(|_| !made.contains(&other.next())));
    }
}
