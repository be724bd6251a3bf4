//! Chance for the tests that want different runs, with a seed that is shown.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A small generator (xorshift64*), good enough to choose moments and positions.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator with a given seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    /// A generator seeded by the clock. The seed is printed, for the output of a test that fails.
    #[must_use]
    pub fn by_chance() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = u64::from(now.subsec_nanos()) << 32 | now.as_secs() & 0xffff_ffff;
        eprintln!("seed {seed:#x}");
        Self::new(seed)
    }

    /// The next number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    /// A time up to a bound.
    pub fn millis_below(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}
