//! Draws faults from a seed: of processes, of networks, of Consul.

use std::time::Duration;

use super::action::{Fault, SimAction};
use crate::faults::NetworkFaults;
use crate::rng::SimRng;
use rcfarm_store::Prefix;

/// When the faults begin.
pub const CALM_UNTIL: Duration = Duration::from_secs(6);

/// Draws the actions of a world from its seed.
pub struct ScheduleBuilder {
    /// The builder's stream.
    pub rng: SimRng,
    /// How many farms there are.
    pub farms: usize,
    /// How many nodes there are.
    pub nodes: usize,
    /// When the last fault has ended.
    pub healed_at: Duration,
    /// Jumps of clocks, in seconds.
    pub jumps: &'static [i64],
    /// Prefixes that may be hidden from a farm.
    pub hideable: Vec<Prefix>,
    /// Actions so far, with their times.
    pub actions: Vec<(Duration, SimAction)>,
}

impl ScheduleBuilder {
    /// The actions, in order of time.
    #[must_use]
    pub fn build(self) -> Vec<(Duration, SimAction)> {
        let mut actions = self.actions;
        actions.sort_by_key(|(at, _)| *at);
        actions
    }

    /// Adds an action.
    pub fn at(&mut self, at: Duration, action: impl Into<SimAction>) {
        self.actions.push((at.min(self.healed_at), action.into()));
    }

    /// A period from `at` of `least` to `most` seconds.
    pub fn while_(
        &mut self,
        at: Duration,
        least: u64,
        most: u64,
        begin: impl Into<SimAction>,
        end: impl Into<SimAction>,
    ) {
        let length = self.rng.between(Duration::from_secs(least), Duration::from_secs(most));
        self.at(at, begin);
        self.at(at + length, end);
    }

    /// A moment shortly after `at`.
    pub fn soon(&mut self, at: Duration) -> Duration {
        at + self.rng.between(Duration::ZERO, Duration::from_millis(700))
    }

    pub fn any_farm(&mut self) -> usize {
        self.rng.below(self.farms)
    }

    /// A moment during the faults.
    pub fn moment(&mut self) -> Duration {
        self.rng.between(CALM_UNTIL, self.healed_at - Duration::from_secs(3))
    }

    /// Injects a fault into a process.
    pub fn process(&mut self, at: Duration) {
        use Fault as T;
        let farm = self.rng.below(self.farms);
        match self.rng.below(6) {
            0 => self.while_(at, 1, 12, T::Kill(farm), T::Start(farm)),
            1 => self.while_(at, 1, 8, T::Stop(farm), T::Start(farm)),
            2 => self.while_(at, 1, 4, T::Freeze(farm), T::Thaw(farm)),
            3 => self.while_(at, 5, 40, T::Freeze(farm), T::Thaw(farm)),
            4 => self.at(at, T::KillSession(farm)),
            _ => {
                let seconds = *self.rng.pick(self.jumps);
                self.at(at, T::Jump(farm, seconds));
            }
        }
    }

    /// Injects a fault into a farm's network.
    pub fn network(&mut self, at: Duration) {
        use Fault as T;
        let farm = self.rng.below(self.farms);
        match self.rng.below(6) {
            0 => self.while_(at, 1, 9, T::Cut(farm, true), T::Cut(farm, false)),
            1 => self.while_(at, 1, 9, T::Deaf(farm, true), T::Deaf(farm, false)),
            2 | 3 => {
                let storm = Box::new(self.storm());
                self.while_(at, 2, 15, T::Storm(farm, storm), T::Storm(farm, Box::default()));
            }
            4 => {
                let tree = self.hideable[self.rng.below(self.hideable.len())].as_str().to_owned();
                self.while_(at, 3, 20, T::Hide(farm, Some(tree)), T::Hide(farm, None));
            }
            _ => self.while_(at, 1, 9, T::Forbid(farm, true), T::Forbid(farm, false)),
        }
    }

    /// Lists take long, and their answers are old when they arrive.
    pub fn slow_lists(&mut self, at: Duration) {
        let by = self.rng.between(Duration::from_secs(1), Duration::from_secs(4));
        let end = Fault::SlowLists(Duration::ZERO);
        self.while_(at, 4, 15, Fault::SlowLists(by), end);
    }

    pub fn storm(&mut self) -> NetworkFaults {
        let mut much = |most: u32| {
            let chance = u32::try_from(self.rng.below(most as usize)).unwrap_or(0);
            if self.rng.permille(500) { chance } else { 0 }
        };
        NetworkFaults {
            lost: much(200),
            reply_lost: much(300),
            late: much(200),
            stale: much(300),
            index_reset: much(200),
            overloaded: much(200),
            latency: Duration::from_millis(u64::from(much(800))),
            ..NetworkFaults::default()
        }
    }
}
