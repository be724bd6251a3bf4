//! Random numbers for tests, generated from a seed that is printed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_seeded_random::SplitMix64;

/// A random number generator that stores its seed.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    numbers: SplitMix64,
}

impl Random {
    /// Creates a generator with a given seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, numbers: SplitMix64::new(seed) }
    }

    /// Creates a generator seeded from `QUORATE_SEED` or from the clock. Prints the seed, which appears in the output
    /// of a failed test.
    #[must_use]
    pub fn by_chance() -> Self {
        let given = std::env::var("QUORATE_SEED").ok();
        let seed = given.map_or_else(clock, |seed| {
            seed.parse().expect("QUORATE_SEED must be a decimal number")
        });
        eprintln!("QUORATE_SEED={seed}");
        Self::new(seed)
    }

    /// Returns the seed of the generator. Two generators with the same seed return the same numbers.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a random number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.numbers.below(bound)
    }

    /// Returns a random number of milliseconds below a bound.
    pub fn millis_below(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::from(now.subsec_nanos()) << 32 | now.as_secs() & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        for seed in [7, 8] {
            let mut one = Random::new(seed);
            let numbers = [one.below(100), one.below(100), one.below(100)];
            let mut other = Random::new(one.seed());
            assert_eq!(numbers.map(|_| other.below(100)), numbers);
        }
    }
}
