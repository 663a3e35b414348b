//! Notices that the wall clock was set, or that the machine was suspended.
//!
//! Controllers sleep on the monotonic clock until an instant of the wall clock: a CronJob until its next run, a job
//! until its deadline. When the two clocks part, those sleeps end at the wrong moment. Comparing them costs no request.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::Timestamp;
use rcfarm_store::time::{Clock, monotonic};

/// Interval at which the clocks are compared: a clock that was set is noticed so much later at most.
const COMPARE_EVERY: Duration = Duration::from_secs(30);
/// Smaller differences wake nobody: a clock that is slewed parts from the other by 15 ms in an interval.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
struct BothClocks {
    wall: Timestamp,
    monotonic: Instant,
}

impl BothClocks {
    fn read(clock: &dyn Clock) -> BothClocks {
        BothClocks { wall: clock.wall(), monotonic: monotonic() }
    }

    /// Seconds that the wall clock has gained on the other one since `earlier`; negative: it was set back.
    fn gained_since(&self, earlier: &BothClocks) -> f64 {
        let wall = self.wall.duration_since(earlier.wall).as_secs_f64();
        wall - (self.monotonic - earlier.monotonic).as_secs_f64()
    }
}

/// Compares the clocks for ever. Wakes every record when they have parted since it last did so.
pub(super) async fn watch(clock: Arc<dyn Clock>, wake_queue: Arc<WakeQueue>) {
    let mut agreed = BothClocks::read(clock.as_ref());
    loop {
        sleep(COMPARE_EVERY).await;
        let now = BothClocks::read(clock.as_ref());
        let gained = now.gained_since(&agreed);
        if gained.abs() < TOLERANCE.as_secs_f64() {
            continue;
        }
        warn!(
            seconds = gained,
            "the clock was set, or the machine suspended: all records are reconciled"
        );
        agreed = now;
        wake_queue.push(FarmEvent::ClockSet);
    }
}
