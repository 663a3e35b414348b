//! Clock and randomness, injected: one seed reproduces a whole simulated cluster.

use std::sync::Mutex;
use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;
use uuid::Uuid;

pub use jiff::Timestamp;

/// Where a daemon gets the time from.
///
/// Deadlines use [`Clock::now`] (monotonic, tokio's clock, so that a paused clock moves it); records carry
/// [`Clock::wall`].
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time.
    fn now(&self) -> Instant {
        Instant::now()
    }
    /// Wall-clock time, for records that people read.
    fn wall(&self) -> Timestamp;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Where identifiers and jitter come from.
///
/// Every consumer forks its own stream, so that one more draw in one task does not change another's.
#[derive(Debug)]
pub struct IdSource {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: ChaCha8Rng,
    /// Millisecond and counter of the last ordered UUID.
    last: (u64, u16),
}

impl IdSource {
    fn new(rng: ChaCha8Rng) -> Self {
        IdSource { state: Mutex::new(State { rng, last: (0, 0) }) }
    }

    /// Seeded by the operating system.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self::new(ChaCha8Rng::from_rng(&mut rand::rng()))
    }

    /// Seeded by a number: the same draws each time.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self::new(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A stream of its own, derived from this one.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(ChaCha8Rng::from_rng(&mut self.lock().rng))
    }

    /// A random UUID (version 4).
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.lock().rng.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// A UUID in time order (version 7): the key of an audit record. Those of one source sort in the order in
    /// which they were drawn, also within a millisecond and when the wall clock steps back.
    #[must_use]
    pub fn ordered_uuid(&self, at: Timestamp) -> Uuid {
        const COUNTER_BITS: u16 = 12;
        let mut state = self.lock();
        let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
        state.last = match state.last {
            (then, _) if millis > then => (millis, 0),
            (then, count) if count + 1 < 1 << COUNTER_BITS => (then, count + 1),
            (then, _) => (then + 1, 0),
        };
        let (millis, count) = state.last;
        let mut bytes = [0; 10];
        state.rng.fill_bytes(&mut bytes);
        bytes[..2].copy_from_slice(&count.to_be_bytes());
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    /// `base` made longer by up to `fraction` of itself, so that many tasks do not move in step.
    #[must_use]
    pub fn jitter(&self, base: Duration, fraction: f64) -> Duration {
        base.mul_f64(1.0 + fraction * self.lock().rng.random::<f64>())
    }

    /// A number below `bound` (which is at least 1).
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.lock().rng.random_range(0..bound.max(1))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_a_fork_differs() {
        let (a, b) = (IdSource::from_seed(7), IdSource::from_seed(7));
        assert_eq!(a.uuid(), b.uuid());
        assert_ne!(a.fork().uuid(), a.uuid());
    }

    #[test]
    fn ordered_uuids_sort_by_time() {
        let ids = IdSource::from_seed(1);
        let early = ids.ordered_uuid(Timestamp::from_millisecond(1_000).unwrap());
        let late = ids.ordered_uuid(Timestamp::from_millisecond(2_000).unwrap());
        assert!(early < late);
        let burst: Vec<Uuid> =
            (0..5_000).map(|_| ids.ordered_uuid(Timestamp::UNIX_EPOCH)).collect();
        assert!(
            burst.is_sorted() && burst[0] > late,
            "within a millisecond, and after a step back"
        );
        assert_eq!(late.get_version_num(), 7);
    }
}
