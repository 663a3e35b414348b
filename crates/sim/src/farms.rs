//! The farms of a world, each with its own machine, clock and network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::checker::Checker;
use crate::facts::{CHECK_TTL, SimActor};
use crate::faults::NetworkFaults;
use crate::process::{Design, Ended, ProcessEnv, RunningFarm};
use crate::rng::SimRng;
use crate::schedule::Setup;
use crate::schedule::action::Fault;
use crate::scheduler::Moods;
use rcfarm_emulator::{Emulator, Tables};
use rcfarm_store::Prefix;
use rcfarm_store::time::monotonic;
use rcfarm_testing::clock::VirtualClock;

/// Pause before a process that ended by itself is restarted.
const RESTART: Duration = Duration::from_secs(2);

/// The farms of a world.
pub struct Farms {
    consul: Emulator,
    checker: Arc<Checker>,
    moods: Arc<Moods>,
    designs: Vec<Design>,
    clocks: Vec<Arc<VirtualClock>>,
    running: Vec<Option<RunningFarm>>,
    restart_at: Vec<Option<Instant>>,
    frozen: BTreeSet<usize>,
    network: NetworkFaults,
    rng: SimRng,
    start: Instant,
    starts: u32,
    snapshot: Option<Tables>,
    /// Whether a snapshot was restored.
    pub restored: bool,
}

impl Farms {
    /// Farms of which none runs yet.
    #[must_use]
    pub fn new(
        consul: Emulator,
        checker: Arc<Checker>,
        setup: &Setup,
        rng: SimRng,
        start: Instant,
    ) -> Farms {
        let designs: Vec<Design> = setup.farms.iter().map(Design::of).collect();
        Farms {
            clocks: designs.iter().map(|_| VirtualClock::later(start, setup.begins)).collect(),
            running: designs.iter().map(|_| None).collect(),
            restart_at: vec![None; designs.len()],
            frozen: BTreeSet::new(),
            consul,
            checker,
            moods: Arc::default(),
            designs,
            network: setup.network.clone(),
            rng,
            start,
            starts: 0,
            snapshot: None,
            restored: false,
        }
    }

    /// How schedulers misbehave.
    #[must_use]
    pub fn moods(&self) -> &Arc<Moods> {
        &self.moods
    }

    fn say(&self, what: String) {
        self.checker.say(monotonic() - self.start, format!("-- {what}"));
    }

    pub fn start_all(&mut self) {
        for farm in 0..self.designs.len() {
            self.start_farm(farm);
        }
    }

    /// Waits until `at`, and restarts processes that ended by themselves.
    pub async fn until(&mut self, at: Instant) {
        while monotonic() < at {
            sleep_until(at.min(monotonic() + Duration::from_millis(250))).await;
            self.supervise().await;
        }
    }

    async fn supervise(&mut self) {
        for farm in 0..self.running.len() {
            if let Some(running) = &mut self.running[farm]
                && let Some(ended) = running.ended().await
            {
                if let Ended::Panicked(why) = ended {
                    self.checker.violated(12, format!("a farm panicked: {why}"));
                }
                self.running[farm] = None;
                self.frozen.remove(&farm);
                self.restart_at[farm] = Some(monotonic() + RESTART);
            }
            if self.restart_at[farm].is_some_and(|at| at <= monotonic()) {
                self.start_farm(farm);
            }
        }
    }

    fn start_farm(&mut self, farm: usize) {
        self.restart_at[farm] = None;
        if self.running[farm].is_some() {
            return;
        }
        self.starts += 1;
        let consul = self.consul.at_node(&format!("agent-{farm}"));
        let env = ProcessEnv {
            consul: &consul,
            checker: &self.checker,
            clock: &self.clocks[farm],
            moods: &self.moods,
        };
        let design = &self.designs[farm];
        let running = RunningFarm::start(self.starts, design, &env, &mut self.rng);
        let mut weather = self.network.clone();
        weather.no_checks = design.session.session_ttl < Duration::from_secs(30);
        running.link.weather(|w| *w = weather);
        self.say(format!("{} starts as #{}", design.process.farm, self.starts));
        self.running[farm] = Some(running);
    }

    fn weather(&self, farm: usize, change: impl FnOnce(&mut NetworkFaults)) {
        if let Some(running) = &self.running[farm] {
            running.link.weather(change);
        }
    }

    fn clear_up(&self, farm: usize) {
        let calm = self.network.clone();
        self.weather(farm, |w| {
            let no_checks = w.no_checks;
            *w = NetworkFaults { no_checks, ..calm };
        });
    }

    pub fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(farm) => self.end(farm, RunningFarm::kill),
            Fault::Stop(farm) => {
                if let Some(running) = self.running[farm].as_ref() {
                    running.stop();
                }
            }
            Fault::Start(farm) => self.start_farm(farm),
            Fault::Freeze(farm) => {
                if let Some(running) = &self.running[farm] {
                    running.freezer.freeze();
                    self.frozen.insert(farm);
                }
            }
            Fault::Thaw(farm) => self.thaw(farm),
            Fault::KillSession(farm) => self.kill_session(farm),
            Fault::Jump(farm, seconds) => self.clocks[farm].jump(seconds),
            Fault::Storm(farm, storm) => match *storm == NetworkFaults::default() {
                true => self.clear_up(farm),
                false => {
                    self.weather(farm, |w| *w = NetworkFaults { no_checks: w.no_checks, ..*storm })
                }
            },
            Fault::Cut(farm, cut) => self.weather(farm, |w| w.cut = cut),
            Fault::Deaf(farm, deaf) => self.weather(farm, |w| w.deaf = deaf),
            Fault::Hide(farm, tree) => {
                let tree = tree.and_then(|tree| Prefix::parse(&tree).ok());
                self.weather(farm, |w| w.hidden = tree);
            }
            Fault::Forbid(farm, forbidden) => self.weather(farm, |w| w.forbidden = forbidden),
            Fault::Leaderless(leaderless) => self.every_wire(|w| w.leaderless = leaderless),
            Fault::SlowLists(by) => self.every_wire(|w| w.slow_lists = by),
            Fault::Stall(length) => {
                let until = Some(monotonic() + length);
                self.every_wire(|w| w.stalled_until = until);
            }
            Fault::WakeAll => self.consul.wake_all(),
            Fault::Snapshot => self.snapshot = Some(self.consul.snapshot()),
            Fault::Restore => {
                if let Some(snapshot) = self.snapshot.take() {
                    self.consul.restore(snapshot);
                    self.restored = true;
                }
            }
            Fault::Lose => {
                self.consul.restore(Tables::default());
                self.restored = true;
            }
        }
    }

    /// Sets all clocks forward.
    pub fn set_forward(&self, seconds: i64) {
        self.clocks.iter().for_each(|clock| clock.jump(seconds));
    }

    fn every_wire(&self, change: impl Fn(&mut NetworkFaults)) {
        self.running.iter().flatten().for_each(|running| running.link.weather(&change));
    }

    fn end(&mut self, farm: usize, how: impl FnOnce(&RunningFarm)) {
        if let Some(running) = self.running[farm].take() {
            how(&running);
            self.frozen.remove(&farm);
        }
    }

    fn thaw(&mut self, farm: usize) {
        if self.frozen.remove(&farm)
            && let Some(running) = &self.running[farm]
        {
            self.checker.goes_on(running.number);
            running.freezer.thaw();
        }
    }

    fn kill_session(&self, farm: usize) {
        let Some(number) = self.running[farm].as_ref().map(|running| running.number) else {
            return;
        };
        let alive = self.consul.inspect(|tables| {
            tables.sessions.all().map(|session| session.id.clone()).collect::<Vec<_>>()
        });
        let of_farm = self
            .checker
            .facts(|facts| alive.into_iter().find(|id| facts.sessions.get(id) == Some(&number)));
        if let Some(session) = of_farm {
            let destroy = rcfarm_store::Store::destroy_session(&self.consul, &session);
            let _ = self.checker.now(SimActor::User, destroy);
        }
    }

    /// Ends every fault. With `clocks`, clocks are set right too.
    pub fn heal(&mut self, clocks: bool) {
        // First, because the farms that are started below take it over.
        self.network =
            NetworkFaults { latency: Duration::from_millis(5), ..NetworkFaults::default() };
        for farm in 0..self.running.len() {
            self.thaw(farm);
            if clocks {
                self.clocks[farm].set_right();
            }
            self.clear_up(farm);
            self.start_farm(farm);
        }
    }

    /// The processes that run.
    #[must_use]
    pub fn live(&self) -> BTreeSet<u32> {
        self.running.iter().flatten().map(|running| running.number).collect()
    }

    /// Requests of each process that runs, so far.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<u32, u64> {
        let links = self.running.iter().flatten();
        links.map(|running| (running.number, running.link.requests())).collect()
    }

    /// Ends one farm for good, by SIGTERM or SIGKILL. Returns the time within which another must take over, and the
    /// signal's name.
    pub fn end_one(&mut self) -> (Duration, &'static str) {
        let farm = self.rng.below(self.designs.len());
        let orderly = self.rng.permille(500);
        let process = self.running[farm].as_ref().map_or(0, |running| running.number);
        let by_check = self.checker.has_check(process);
        let design = &self.designs[farm];
        let limit = match (orderly, by_check) {
            (true, _) => Duration::from_secs(1),
            (false, true) => CHECK_TTL + Duration::from_secs(1),
            (false, false) => design.session.session_ttl * 2 + Duration::from_secs(1),
        };
        self.say(format!("{} {}", design.process.farm, if orderly { "stops" } else { "dies" }));
        self.end(farm, if orderly { RunningFarm::stop } else { RunningFarm::kill });
        (limit, if orderly { "SIGTERM" } else { "SIGKILL" })
    }
}
