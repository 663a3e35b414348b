//! Faults injected into farms, their networks and Consul in every world, and when.

use std::time::Duration;

use super::network::NetworkFaults;
use super::rng::SimRng;
use rcfarm_store::Prefix;

/// When the faults begin.
pub const CALM_UNTIL: Duration = Duration::from_secs(6);

/// One injected fault. Numbers are those of farms.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    // Processes.
    Kill(usize),
    Stop(usize),
    Start(usize),
    Freeze(usize),
    Thaw(usize),
    KillSession(usize),
    Jump(usize, i64),
    // The network of one farm.
    Storm(usize, Box<NetworkFaults>),
    Cut(usize, bool),
    Deaf(usize, bool),
    Hide(usize, Option<Prefix>),
    Forbid(usize, bool),
    // Consul.
    Leaderless(bool),
    SlowLists(Duration),
    Stall(Duration),
    WakeAll,
    Snapshot,
    Restore,
}

/// A script that is being written: `A` is what may happen in its world.
pub struct ScheduleBuilder<A> {
    /// Chance.
    pub rng: SimRng,
    /// What happens, and when.
    pub acts: Vec<(Duration, A)>,
    farms: usize,
    healed_at: Duration,
    /// Clocks are set wrong by one of these, in seconds.
    jumps: &'static [i64],
    hideable: Vec<Prefix>,
}

impl<A: From<Fault>> ScheduleBuilder<A> {
    /// An empty one. A farm may lose sight of one of the trees `hideable`.
    #[must_use]
    pub fn new(
        rng: SimRng,
        farms: usize,
        healed_at: Duration,
        jumps: &'static [i64],
        hideable: Vec<Prefix>,
    ) -> ScheduleBuilder<A> {
        ScheduleBuilder { rng, acts: Vec::new(), farms, healed_at, jumps, hideable }
    }

    /// The script, in order of time.
    #[must_use]
    pub fn written(self) -> Vec<(Duration, A)> {
        let mut acts = self.acts;
        acts.sort_by_key(|(at, _)| *at);
        acts
    }

    /// Something happens.
    pub fn at(&mut self, at: Duration, act: impl Into<A>) {
        self.acts.push((at.min(self.healed_at), act.into()));
    }

    /// From `at` for a while between `least` and `most` seconds.
    pub fn while_(
        &mut self,
        at: Duration,
        least: u64,
        most: u64,
        begin: impl Into<A>,
        end: impl Into<A>,
    ) {
        let length = self.rng.between(Duration::from_secs(least), Duration::from_secs(most));
        self.at(at, begin);
        self.at(at + length, end);
    }

    /// A moment shortly after `at`.
    pub fn soon(&mut self, at: Duration) -> Duration {
        at + self.rng.between(Duration::ZERO, Duration::from_millis(700))
    }

    /// One of the farms.
    pub fn any_farm(&mut self) -> usize {
        self.rng.below(self.farms)
    }

    /// A moment while there is trouble.
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
                let tree = self.hideable[self.rng.below(self.hideable.len())].clone();
                self.while_(at, 3, 20, T::Hide(farm, Some(tree)), T::Hide(farm, None));
            }
            _ => self.while_(at, 1, 9, T::Forbid(farm, true), T::Forbid(farm, false)),
        }
    }

    /// Consul takes long to list anything, and what it answers is old by then.
    pub fn slow_lists(&mut self, at: Duration) {
        let by = self.rng.between(Duration::from_secs(1), Duration::from_secs(4));
        let end = Fault::SlowLists(Duration::ZERO);
        self.while_(at, 4, 15, Fault::SlowLists(by), end);
    }

    fn storm(&mut self) -> NetworkFaults {
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
