//! How late heartbeats are answered, as a histogram.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in milliseconds. A last one has no bound.
const BOUNDS_MS: [u64; 9] = [1, 5, 25, 50, 100, 250, 500, 1_000, 2_000];

/// Histogram of the time from when a heartbeat was due to its answer. The next heartbeat is due a third of the check's TTL
/// after an answer. The keeper adds to it without a lock.
#[derive(Debug, Default)]
pub struct Heartbeats {
    counts: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_micros: AtomicU64,
}

impl Heartbeats {
    /// Adds one answered heartbeat.
    pub fn answered(&self, delay: Duration) {
        let at = BOUNDS_MS.iter().position(|bound| delay <= Duration::from_millis(*bound));
        self.counts[at.unwrap_or(BOUNDS_MS.len())].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Upper bound in seconds and count of each bucket, not cumulative. The last bound is infinite.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_MS.iter().map(|ms| Duration::from_millis(*ms).as_secs_f64());
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        bounds.chain([f64::INFINITY]).zip(counts).collect()
    }

    /// Sum of all delays.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_micros.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_counts_in_the_bucket_of_the_next_bound() {
        let heartbeats = Heartbeats::default();
        for ms in [1, 2, 250, 251, 9_000] {
            heartbeats.answered(Duration::from_millis(ms));
        }
        let counts: Vec<u64> = heartbeats.buckets().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 1, 1, 0, 0, 1]);
        assert_eq!(heartbeats.sum(), Duration::from_millis(9_504));
    }
}
