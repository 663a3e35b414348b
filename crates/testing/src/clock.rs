//! Wall-clock time for tests. It follows tokio's clock, even if that is paused, and can be set to a wrong time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rcfarm_api::Timestamp;
use rcfarm_store::time::{Clock, monotonic};
use tokio::time::Instant;

/// Usual start of a virtual clock: 2026-01-01T00:00:00Z.
const EPOCH_SECONDS: i64 = 1_767_225_600;

/// A wall clock that advances with tokio's time.
pub struct VirtualClock {
    start: Instant,
    /// What it shows at `start`, if it is right: seconds since 1970.
    epoch: i64,
    setting: Mutex<Setting>,
}

#[derive(Default)]
struct Setting {
    /// Seconds that it is ahead.
    off_by: i64,
    /// When it was set, and the time that it showed until then.
    before: Vec<(Instant, Timestamp)>,
}

impl VirtualClock {
    /// A clock that shows 2026-01-01T00:00:00Z at `start`.
    #[must_use]
    pub fn new(start: Instant) -> Arc<VirtualClock> {
        VirtualClock::later(start, 0)
    }

    /// A clock that shows so many seconds more than [`VirtualClock::new`].
    #[must_use]
    pub fn later(start: Instant, seconds: i64) -> Arc<VirtualClock> {
        let epoch = EPOCH_SECONDS + seconds;
        Arc::new(VirtualClock { start, epoch, setting: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shows(&self, off_by: i64) -> Timestamp {
        let epoch = Timestamp::from_second(self.epoch + off_by);
        epoch.unwrap_or(Timestamp::UNIX_EPOCH) + (monotonic() - self.start)
    }

    /// Sets the clock forward by `seconds`, back if negative.
    pub fn jump(&self, seconds: i64) {
        let mut setting = self.lock();
        let shown = self.shows(setting.off_by);
        setting.before.push((monotonic(), shown));
        setting.off_by += seconds;
    }

    /// Undoes all jumps.
    pub fn set_right(&self) {
        let off_by = self.lock().off_by;
        self.jump(-off_by);
    }

    /// The current time, and the time before each jump within the last `period`: a process that read the clock before a
    /// jump may write that time after it.
    #[must_use]
    pub fn lately(&self, period: Duration) -> Vec<Timestamp> {
        let setting = self.lock();
        let before = setting.before.iter().filter(|(at, _)| monotonic() - *at <= period);
        before.map(|(_, shown)| *shown).chain([self.shows(setting.off_by)]).collect()
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> Timestamp {
        self.shows(self.lock().off_by)
    }
}
