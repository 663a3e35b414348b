//! The rate limiter of all writes and reads. Pure: callers pass the time.

use std::time::Duration;

use tokio::time::Instant;

/// Token bucket whose tokens are time: what was consumed is refilled as time passes. A limit of `n` requests at once and
/// one per `interval` later is a burst of `n * interval` and a cost of `interval`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// When the bucket is full again. `None`: it is full.
    full_at: Option<Instant>,
}

impl TokenBucket {
    /// What is consumed and not refilled at `now`.
    pub fn consumed(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Consumes `cost`, even from an overdrawn bucket. At most `most` is then consumed.
    pub fn consume(&mut self, cost: Duration, most: Duration, now: Instant) {
        self.full_at = Some(now + self.consumed(now).saturating_add(cost).min(most));
    }

    /// Consumes `cost` if a bucket that holds `burst` still has it.
    ///
    /// # Errors
    /// How long to wait for it.
    pub fn take(&mut self, cost: Duration, burst: Duration, now: Instant) -> Result<(), Duration> {
        let wait = self.consumed(now).saturating_add(cost).saturating_sub(burst);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.consume(cost, burst, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::monotonic;

    #[test]
    fn take_permits_the_burst_and_then_the_rate() {
        let start = monotonic();
        let (every, burst) = (Duration::from_secs(2), Duration::from_secs(16));
        let mut bucket = TokenBucket::default();
        let at_once = (0..100).filter(|_| bucket.take(every, burst, start).is_ok()).count();
        assert_eq!(at_once, 8);
        assert_eq!(bucket.take(every, burst, start), Err(every));
        assert_eq!(bucket.take(every, burst, start + every), Ok(()));
        let later = start + Duration::from_secs(3_600);
        let tenths = (0..36_000u32).map(|n| later + Duration::from_millis(100) * n);
        let taken = tenths.filter(|now| bucket.take(every, burst, *now).is_ok()).count();
        assert!((1_800..=1_810).contains(&taken), "{taken}");
    }

    #[test]
    fn consume_overdraws_up_to_its_limit() {
        let (now, second) = (monotonic(), Duration::from_secs(1));
        let mut bucket = TokenBucket::default();
        bucket.consume(second * 3, second * 10, now);
        assert_eq!(bucket.consumed(now + second), second * 2);
        bucket.consume(second * 30, second * 10, now + second);
        assert_eq!(bucket.consumed(now + second), second * 10);
        assert_eq!(bucket.consumed(now + second * 12), Duration::ZERO);
    }
}
