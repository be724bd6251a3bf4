//! Repeatable randomness: one seed gives one run.

/// A small fast generator (SplitMix64); good enough to choose keys with.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift: the bias is below 2^-32 for the bounds in use.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A random order of `0..count` in which any position can be computed at once: a Feistel network over
/// the next power of four, walked until it lands inside.
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

    /// What stands at `position`, which is below the count.
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
    fn a_shuffle_visits_everything_once_and_not_in_order() {
        for count in [1, 2, 3, 16, 17, 1000, 4097] {
            let shuffle = Shuffle::new(count, 42);
            let order: Vec<_> = (0..count).map(|position| shuffle.at(position)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            assert!(count < 16 || order != sorted, "{count}");
        }
    }

    #[test]
    fn below_stays_below_and_repeats_with_its_seed() {
        let draw = || {
            let mut random = Random::new(7);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
        assert!(draw().iter().all(|number| *number < 10));
        assert!((0..10).all(|number| draw().contains(&number)));
    }
}
