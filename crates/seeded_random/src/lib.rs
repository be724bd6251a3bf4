//! A reproducible random number generator, for example for election jitter, faulty disks, test schedules and generated
//! load.
//!
//! The numbers depend on the seed alone: the crate never uses the operating system's randomness.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

/// `SplitMix64` (Steele, Lea and Flood, 2014): a small and fast generator for numbers that need not be secret.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed. Every seed is valid, and generators with the same seed draw the same numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws a number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Draws a number below a bound, which must not be zero. For bounds below 2^32, the probabilities of two
    /// numbers differ by at most one part in 2^32.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Draws an index into a sequence of this length, which must not be zero.
    pub fn position(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64))
            .expect("`below(bound)` is less than `bound`, which is a usize")
    }
}

/// Applies a bijection that maps similar numbers to very different ones.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_published_test_vector() {
        let mut random = SplitMix64::new(1_234_567);
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(published.map(|_| random.next_u64()), published);
    }

    #[test]
    fn every_value_below_the_bound_occurs() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0; 10];
        for _ in 0..1000 {
            seen[random.position(10)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }
}
