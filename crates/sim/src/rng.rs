//! Random numbers from one seed. Every purpose forks its own stream, so that one more draw does not change other
//! purposes.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of random numbers.
pub struct SimRng(ChaCha8Rng);

impl SimRng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> SimRng {
        SimRng(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A stream of its own, derived from this one.
    #[must_use]
    pub fn fork(&mut self) -> SimRng {
        SimRng(ChaCha8Rng::from_rng(&mut self.0))
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.random_range(0..bound.max(1))
    }

    /// True with a probability of `chance` in a thousand.
    pub fn permille(&mut self, chance: u32) -> bool {
        chance > 0 && self.0.random_range(0..1000) < chance
    }

    /// A duration between two, in whole milliseconds.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.0.random_range(millis(least)..=millis(most).max(millis(least))))
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
