//! Rate limit for status writes that only change health: 8 at once, then one every 2 s. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Long-term interval of such writes, so that a flapping pod costs few of them.
pub const HEALTH_EVERY: Duration = Duration::from_secs(2);
/// Burst: the restart after an exit must not delay the report of the next exit.
const AT_ONCE: u32 = 8;

/// Limiter of one record.
#[derive(Debug, Clone, Copy, Default)]
pub struct HealthWriteLimiter {
    /// When the writes made so far are used up.
    paid_at: Option<Instant>,
}

impl HealthWriteLimiter {
    /// Asks for a write at `now`.
    ///
    /// # Errors
    /// How long to wait for it.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let paid_at = self.paid_at.map_or(now, |at| at.max(now));
        let backlog = paid_at.duration_since(now);
        match backlog.checked_sub(HEALTH_EVERY * (AT_ONCE - 1)) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                self.paid_at = Some(paid_at + HEALTH_EVERY);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::time::monotonic;

    #[test]
    fn a_few_at_once_and_few_in_an_hour() {
        let start = monotonic();
        let mut writes = HealthWriteLimiter::default();
        let at_once = (0..100).filter(|_| writes.take(start).is_ok()).count();
        assert_eq!(at_once, AT_ONCE as usize);
        assert_eq!(writes.take(start), Err(HEALTH_EVERY));
        assert_eq!(writes.take(start + HEALTH_EVERY), Ok(()));
        let later = start + Duration::from_secs(3_600);
        let tenths = (0..36_000u32).map(|n| later + Duration::from_millis(100) * n);
        let written = tenths.filter(|now| writes.take(*now).is_ok()).count();
        assert!((1_800..=1_810).contains(&written), "{written}");
    }
}
