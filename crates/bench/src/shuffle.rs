//! A pseudo-random permutation that needs no memory for its elements.

use quorate_seeded_random::mix;

/// A random permutation of `0..count` that computes the number at any position directly. It applies a Feistel network
/// over the smallest sufficient power of four until the result is below `count`.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the number at `position`, which must be below the count.
    pub(crate) fn at(&self, position: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let mut value = position;
        loop {
            for round in 0..4 {
                let (left, right) = (value >> self.half_bits, value & mask);
                let mixed = mix(right ^ self.seed.wrapping_add(round << 32)) & mask;
                value = right << self.half_bits | left ^ mixed;
            }
            if value < self.count {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_visits_each_number_once_and_not_in_order() {
        for count in [1, 2, 3, 16, 17, 1000, 4097] {
            let shuffle = Shuffle::new(count, 42);
            let order: Vec<_> = (0..count).map(|position| shuffle.at(position)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            assert!(count < 16 || order != sorted, "{count}");
        }
    }
}
