//! The jitter of election timeouts: a seeded generator, so that a run can be repeated.

/// `SplitMix64` (Steele, Lea and Flood, 2014): tiny, and good enough to keep candidates apart.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, bound)`; the bias is far below anything an election could notice.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).expect("a remainder is below its divisor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_below_the_bound_occurs() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0; 10];
        for _ in 0..1000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let draw = |seed| {
            let mut random = SplitMix64::new(seed);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
