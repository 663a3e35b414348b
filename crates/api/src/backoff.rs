//! Pauses between attempts.

use std::time::Duration;

/// The pause before attempt `attempt` (from 0): `base` doubled each time, at most `max`.
pub fn backoff(base: Duration, max: Duration, attempt: u32) -> Duration {
    base.saturating_mul(2u32.saturating_pow(attempt.min(30))).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_stops_at_its_maximum() {
        let base = Duration::from_millis(100);
        let max = Duration::from_secs(10);
        assert_eq!(backoff(base, max, 0), base);
        assert_eq!(backoff(base, max, 3), base * 8);
        assert_eq!(backoff(base, max, 40), max);
    }
}
