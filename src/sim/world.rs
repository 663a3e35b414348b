//! The world of one seed, from its first write to its last check.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Report;
use super::dice::Dice;
use super::fleet::{Fleet, node};
use super::invariant::liveness;
use super::process::{Design, Ended, Running, Soil, WallClock};
use super::referee::{Actor, CHECK_TTL, Referee};
use super::scheduler::{Mood, Moods};
use super::script::{Act, FARMS, HEALED_AT, NODES, RECORDS, hideable, script};
use super::users::{Users, rc_id};
use super::wire::Weather;
use crate::embedded::{Embedded, Fate, Request, Settings, Tables};
use crate::ids::RcId;
use crate::node::record::NodeState;
use crate::time::IdSource;

/// 27: everything is as asked for within this long after the faults have ended. A record that was quarantined is tried
/// again after up to two minutes; what heals it does not touch it.
const SETTLES_WITHIN: Duration = Duration::from_secs(150);
/// The same after a snapshot was restored: what it brought back is seen when trees are next read from the start.
const AFTER_RESTORE: Duration = Duration::from_secs(460);
/// 29 is watched for this long.
const REST: Duration = Duration::from_secs(10);
/// 29: a farm at rest asks no more than this in that time: beats, renewals, and waits that end.
const REQUESTS_AT_REST: u64 = 100;
/// 29: a record that keeps failing is looked at no more often than this in that time.
const LOOKS_AT_REST: u64 = 8;
/// A process that ended by itself is started again after this long, as a supervisor would.
const RESTART: Duration = Duration::from_secs(2);
/// The record that always makes its scheduler panic, where there is one.
const POISONED: usize = RECORDS;

/// See the module.
pub struct World {
    consul: Embedded,
    referee: Arc<Referee>,
    fleet: Arc<Fleet>,
    users: Users,
    moods: Arc<Moods>,
    designs: Vec<Design>,
    clocks: Vec<Arc<WallClock>>,
    running: Vec<Option<Running>>,
    restart_at: Vec<Option<Instant>>,
    frozen: BTreeSet<usize>,
    weather: Weather,
    dice: Dice,
    start: Instant,
    starts: u32,
    snapshot: Option<Tables>,
    restored: bool,
    poisoned: bool,
}

impl World {
    /// Lives through a seed.
    pub async fn live(seed: u64, print: bool) -> Report {
        // Sleeping once puts the paused clock on a whole millisecond.
        sleep(Duration::from_millis(1)).await;
        let mut dice = Dice::new(seed);
        let ids = IdSource::from_seed(dice.seed());
        let start = Instant::now();
        let consul = Embedded::new(&Settings::default(), &ids);
        // Remembers the past, for stale reads.
        drop(consul.with_faults(Arc::new(|_: &Request<'_>| Fate::DELIVER)));
        let referee = Referee::new(&consul, print);
        let fleet = Fleet::new(consul.clone(), referee.clone());
        let clock = WallClock::new(start);
        let users = Users::new(consul.clone(), referee.clone(), clock, ids.fork());
        let designs = designs(&mut dice);
        let calm = |dice: &mut Dice, most: usize| u32::try_from(dice.below(most)).unwrap_or(0);
        let weather = Weather {
            latency: Duration::from_millis(1 + dice.below(40) as u64),
            lost: calm(&mut dice, 15),
            reply_lost: calm(&mut dice, 15),
            late: calm(&mut dice, 10),
            stale: calm(&mut dice, 15),
            index_reset: calm(&mut dice, 10),
            overloaded: calm(&mut dice, 10),
            ..Weather::default()
        };
        let mut world = World {
            clocks: designs.iter().map(|_| WallClock::new(start)).collect(),
            running: designs.iter().map(|_| None).collect(),
            restart_at: vec![None; designs.len()],
            frozen: BTreeSet::new(),
            poisoned: dice.permille(200),
            consul,
            referee: referee.clone(),
            fleet,
            users,
            moods: Arc::default(),
            designs,
            weather,
            dice,
            start,
            starts: 0,
            snapshot: None,
            restored: false,
        };
        let agents = tokio::spawn(world.fleet.clone().run());
        tokio::select! {
            biased;
            () = referee.violation() => {}
            () = world.play() => {}
        }
        agents.abort();
        let (violation, applied, hash) = referee.result();
        let last = if violation.is_some() { referee.last() } else { Vec::new() };
        Report { seed, violation, applied, hash, lived: start.elapsed(), last }
    }

    async fn play(&mut self) {
        self.set_up();
        let acts = script(&mut self.dice);
        for farm in 0..self.designs.len() {
            self.start_farm(farm);
        }
        for (at, act) in acts {
            self.until(self.start + at).await;
            self.say(format!("{act:?}"));
            self.act(act);
        }
        self.until(self.start + HEALED_AT).await;
        self.heal();
        self.settle().await;
        self.rest().await;
        self.take_over().await;
        self.referee.check_fold();
    }

    fn say(&self, what: String) {
        self.referee.say(self.start.elapsed(), format!("-- {what}"));
    }

    fn set_up(&mut self) {
        for n in 0..NODES {
            self.fleet.label(&node(n), Some("web"));
            if n % 2 == 0 {
                self.fleet.start_agent(&node(n), NodeState::Ready);
            }
        }
        for n in 0..RECORDS {
            self.users.tier(n, if n % 2 == 0 { "web" } else { "batch" });
            self.users.create(n);
        }
        if self.poisoned {
            self.moods.set(rc_id(POISONED), Some(Mood::Panics));
            self.users.create(POISONED);
        }
    }

    /// Lets time pass, and starts again what ended by itself.
    async fn until(&mut self, at: Instant) {
        while Instant::now() < at {
            sleep_until(at.min(Instant::now() + Duration::from_millis(250))).await;
            self.supervise().await;
        }
    }

    async fn supervise(&mut self) {
        for farm in 0..self.running.len() {
            if let Some(running) = &mut self.running[farm]
                && let Some(ended) = running.ended().await
            {
                if let Ended::Panicked(why) = ended {
                    self.referee.violated(12, format!("a farm panicked: {why}"));
                }
                self.running[farm] = None;
                self.frozen.remove(&farm);
                self.restart_at[farm] = Some(Instant::now() + RESTART);
            }
            if self.restart_at[farm].is_some_and(|at| at <= Instant::now()) {
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
        let soil = Soil {
            consul: &consul,
            referee: &self.referee,
            clock: &self.clocks[farm],
            moods: &self.moods,
        };
        let design = &self.designs[farm];
        let running = Running::start(self.starts, design, &soil, &mut self.dice);
        let mut weather = self.weather.clone();
        weather.no_checks = design.session.session_ttl < Duration::from_secs(30);
        running.link.weather(|w| *w = weather);
        self.say(format!("{} starts as #{}", design.process.farm, self.starts));
        self.running[farm] = Some(running);
    }

    fn weather(&self, farm: usize, change: impl FnOnce(&mut Weather)) {
        if let Some(running) = &self.running[farm] {
            running.link.weather(change);
        }
    }

    /// What was wrong with a wire is over.
    fn clear_up(&self, farm: usize) {
        let calm = self.weather.clone();
        self.weather(farm, |w| {
            let no_checks = w.no_checks;
            *w = Weather { no_checks, ..calm };
        });
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Kill(farm) => self.end(farm, Running::kill),
            Act::Stop(farm) => {
                if let Some(running) = self.running[farm].as_ref() {
                    running.stop();
                }
            }
            Act::Start(farm) => self.start_farm(farm),
            Act::Freeze(farm) => {
                if let Some(running) = &self.running[farm] {
                    running.freezer.freeze();
                    self.frozen.insert(farm);
                }
            }
            Act::Thaw(farm) => self.thaw(farm),
            Act::KillSession(farm) => self.kill_session(farm),
            Act::Jump(farm, seconds) => self.clocks[farm].jump(seconds),
            Act::Storm(farm, storm) => match *storm == Weather::default() {
                true => self.clear_up(farm),
                false => self.weather(farm, |w| *w = Weather { no_checks: w.no_checks, ..*storm }),
            },
            Act::Cut(farm, cut) => self.weather(farm, |w| w.cut = cut),
            Act::Deaf(farm, deaf) => self.weather(farm, |w| w.deaf = deaf),
            Act::Hide(farm, tree) => {
                self.weather(farm, |w| w.hidden = tree.map(|n| hideable()[n].clone()));
            }
            Act::Forbid(farm, forbidden) => self.weather(farm, |w| w.forbidden = forbidden),
            Act::Leaderless(leaderless) => self.every_wire(|w| w.leaderless = leaderless),
            Act::Stall(length) => {
                let until = Some(Instant::now() + length);
                self.every_wire(|w| w.stalled_until = until);
            }
            Act::WakeAll => self.consul.wake_all(),
            Act::Snapshot => self.snapshot = Some(self.consul.snapshot()),
            Act::Restore => {
                if let Some(snapshot) = self.snapshot.take() {
                    self.consul.restore(snapshot);
                    self.restored = true;
                }
            }
            Act::Mood(record, mood) => self.moods.set(rc_id(record), mood),
            other => self.act_on_machines_or_records(other),
        }
    }

    fn act_on_machines_or_records(&self, act: Act) {
        let users = &self.users;
        match act {
            Act::Label(n, pool) => self.fleet.label(&node(n), pool),
            Act::Ill(n, ill) => self.fleet.set_ill(&node(n), ill),
            Act::AgentDown(n) => self.fleet.kill_agent(&node(n)),
            Act::AgentUp(n) => self.fleet.start_agent(&node(n), NodeState::Ready),
            Act::Drain(n, true) => self.fleet.drain(&node(n), NodeState::Draining),
            Act::Drain(n, false) => self.fleet.drain(&node(n), NodeState::Ready),
            Act::Scale(n, count) => users.scale(n, count),
            Act::Disable(n, disabled) => users.disable(n, disabled),
            Act::Tier(n, tier) => users.tier(n, tier),
            Act::NodeSelector(n, selector) => users.select_nodes(n, selector),
            Act::Malform(n) => users.malform(n),
            Act::BadLabels(n) => users.bad_labels(n),
            Act::Mend(n) => users.mend(n, "web"),
            Act::Delete(n) => users.delete(n),
            Act::GivePod(from, to) => users.give_pod(from, to),
            Act::DropIntent(n) => users.drop_intent(n),
            Act::Squat(n, record) => users.squat(&node(n), record),
            Act::Unsquat(n, record) => users.unsquat(&node(n), record),
            Act::HoldLock(n, hold) => users.hold_lock(n, hold),
            Act::Litter => users.litter(),
            _ => {}
        }
    }

    fn every_wire(&self, change: impl Fn(&mut Weather)) {
        self.running.iter().flatten().for_each(|running| running.link.weather(&change));
    }

    fn end(&mut self, farm: usize, how: impl FnOnce(&Running)) {
        if let Some(running) = self.running[farm].take() {
            how(&running);
            self.frozen.remove(&farm);
        }
    }

    fn thaw(&mut self, farm: usize) {
        if self.frozen.remove(&farm)
            && let Some(running) = &self.running[farm]
        {
            running.freezer.thaw();
        }
    }

    /// An operator ends a session of the farm.
    fn kill_session(&self, farm: usize) {
        let Some(number) = self.running[farm].as_ref().map(|running| running.number) else {
            return;
        };
        let alive = self.consul.inspect(|tables| {
            tables.sessions.all().map(|session| session.id.clone()).collect::<Vec<_>>()
        });
        let of_farm = self
            .referee
            .look(|_, facts| alive.into_iter().find(|id| facts.sessions.get(id) == Some(&number)));
        if let Some(session) = of_farm {
            let destroy = crate::store::Store::destroy_session(&self.consul, &session);
            let _ = self.referee.now(Actor::User, destroy);
        }
    }

    /// Every fault ends.
    fn heal(&mut self) {
        self.say("the faults have ended".to_owned());
        for farm in 0..self.running.len() {
            self.thaw(farm);
            self.weather(farm, |w| {
                *w = Weather {
                    latency: Duration::from_millis(5),
                    no_checks: w.no_checks,
                    ..Weather::default()
                };
            });
            self.start_farm(farm);
        }
        self.weather = Weather { latency: Duration::from_millis(5), ..Weather::default() };
        self.moods.clear();
        if self.poisoned {
            self.moods.set(rc_id(POISONED), Some(Mood::Panics));
        }
        self.fleet.heal();
        for n in 0..NODES {
            self.fleet.label(&node(n), Some("web"));
            if self.fleet.has_agent(&node(n)) {
                self.fleet.start_agent(&node(n), NodeState::Ready);
            } else {
                self.fleet.drain(&node(n), NodeState::Ready);
            }
        }
        for n in 0..RECORDS {
            self.users.hold_lock(n, false);
            self.users.mend(n, "web");
        }
    }

    fn records(&self) -> Vec<RcId> {
        (0..RECORDS).map(rc_id).collect()
    }

    fn unsettled(&self) -> Option<String> {
        let live: BTreeSet<u32> = self.running.iter().flatten().map(|r| r.number).collect();
        let records = self.records();
        self.referee.look(|picture, facts| liveness::unsettled(picture, facts, &live, &records))
    }

    /// 27: everything becomes as asked for.
    async fn settle(&mut self) {
        let limit = if self.restored { AFTER_RESTORE } else { SETTLES_WITHIN };
        let deadline = Instant::now() + limit;
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                self.referee.violated(27, format!("not within {limit:?}: {what}"));
                return;
            }
            self.until(Instant::now() + Duration::from_millis(250)).await;
        }
        self.say("everything is as asked for".to_owned());
    }

    /// 29: then nothing happens any more; 12: least of all because of one bad record.
    async fn rest(&mut self) {
        self.until(Instant::now() + Duration::from_secs(5)).await;
        let since = self.start.elapsed();
        let requests = |world: &World| -> BTreeMap<u32, u64> {
            let links = world.running.iter().flatten();
            links.map(|running| (running.number, running.link.requests())).collect()
        };
        let (before, asked) = (requests(self), self.moods.asked(rc_id(POISONED)));
        self.until(Instant::now() + REST).await;
        if let Some(process) = self.referee.sessions_ended(since).first() {
            self.referee.violated(12, format!("a session of #{process} ended while all was well"));
        }
        for (process, now) in requests(self) {
            let count = now - before.get(&process).copied().unwrap_or(0);
            // What a snapshot brought back keeps farms busy until they have seen all of it.
            if count > REQUESTS_AT_REST && !self.restored {
                let what = format!("#{process} made {count} requests in {REST:?} of rest");
                self.referee.violated(29, what);
            }
        }
        let looks = self.moods.asked(rc_id(POISONED)) - asked;
        if looks > LOOKS_AT_REST {
            let what =
                format!("a record that always fails was looked at {looks} times in {REST:?}");
            self.referee.violated(29, what);
        }
        // A record may just be changing hands.
        let deadline = Instant::now() + Duration::from_secs(1);
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                self.referee.violated(27, format!("it did not last: {what}"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// 28: a farm that ends is followed in time.
    async fn take_over(&mut self) {
        let farm = self.dice.below(FARMS);
        let design = &self.designs[farm];
        let orderly = self.dice.permille(500);
        let process = self.running[farm].as_ref().map_or(0, |running| running.number);
        let by_check = self.referee.has_check(process);
        let limit = match (orderly, by_check) {
            (true, _) => Duration::from_secs(1),
            (false, true) => CHECK_TTL + Duration::from_secs(1),
            (false, false) => design.session.session_ttl * 2 + Duration::from_secs(1),
        };
        let name = design.process.farm.clone();
        self.say(format!("{name} {}", if orderly { "stops" } else { "dies" }));
        self.end(farm, if orderly { Running::stop } else { Running::kill });
        let deadline = Instant::now() + limit;
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                let how = if orderly { "SIGTERM" } else { "SIGKILL" };
                self.referee.violated(28, format!("not within {limit:?} after {how}: {what}"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Three farms: two claim everything, one a part; now and then one cannot have a check.
fn designs(dice: &mut Dice) -> Vec<Design> {
    let mut designs: Vec<Design> =
        [("a", ""), ("b", ""), ("c", "tier=web")].map(|(n, s)| Design::new(n, s)).into();
    if dice.permille(100) {
        let session = &mut dice_pick(dice, &mut designs).session;
        session.session_ttl = Duration::from_secs(10);
    }
    if dice.permille(200) {
        // As if it knew an older Consul: everything takes more transactions.
        dice_pick(dice, &mut designs).limits.ops = 9;
    }
    designs
}

fn dice_pick<'d>(dice: &mut Dice, designs: &'d mut [Design]) -> &'d mut Design {
    let n = dice.below(designs.len());
    &mut designs[n]
}
