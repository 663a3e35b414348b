//! Clocks and randomness: the only code that reads them, so that one seed reproduces a whole simulated cluster.

use std::sync::Mutex;
use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;
use uuid::Uuid;

pub use jiff::Timestamp;

/// The current time of the monotonic clock, for deadlines and pauses. It is tokio's, which a test can pause.
#[expect(clippy::disallowed_methods, reason = "the only reader of the monotonic clock")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Source of wall-clock time, for records.
pub trait Clock: Send + Sync + 'static {
    /// The current wall-clock time.
    fn wall(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock")]
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Source of identifiers and jitter.
///
/// Each consumer forks a stream of its own, so a further draw in one task does not change the draws of another.
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

    /// A source seeded by the operating system.
    #[expect(
        clippy::disallowed_methods,
        reason = "the only source of random numbers without a seed"
    )]
    pub fn from_entropy() -> Self {
        Self::new(ChaCha8Rng::from_rng(&mut rand::rng()))
    }

    /// A source that repeats the same draws for the same seed.
    pub fn from_seed(seed: u64) -> Self {
        Self::new(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A new stream, seeded by this one.
    pub fn fork(&self) -> Self {
        Self::new(ChaCha8Rng::from_rng(&mut self.lock().rng))
    }

    /// A random UUID (version 4).
    pub fn uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.lock().rng.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// A UUID in time order (version 7), for keys of audit records. UUIDs of one source sort in the order in which they
    /// were drawn, even within a millisecond and after the wall clock stepped back.
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

    /// `base` plus a random part of up to `fraction` of it, so that many tasks do not act at the same time.
    pub fn jitter(&self, base: Duration, fraction: f64) -> Duration {
        base.mul_f64(1.0 + fraction * self.lock().rng.random::<f64>())
    }

    /// A random number below `bound`, which is at least 1.
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
