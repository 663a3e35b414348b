//! The world of one seed, from its first write to its last check.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::checker::Checker;
use super::farms::{Farms, weather};
use super::fleet::{SimFleet, node};
use super::invariant::liveness;
use super::lifecycle::{self, Beginning};
use super::process::Design;
use super::reached::{Occasion, met_if};
use super::rng::SimRng;
use super::scheduler::Mood;
use super::script::{HEALED_AT, NODES, RECORDS, RcAct, script};
use super::users::{Users, rc_id};
use super::{Options, SimReport};
use rcfarm_api::ids::RcId;
use rcfarm_api::node::record::NodeState;

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
/// The record that always makes its scheduler panic, where there is one.
const POISONED: usize = RECORDS;

/// See the module.
pub struct RcWorld {
    checker: Arc<Checker>,
    fleet: Arc<SimFleet>,
    users: Users,
    farms: Farms,
    start: Instant,
    poisoned: bool,
}

impl RcWorld {
    /// Lives through a seed.
    pub async fn live(seed: u64, options: &Options) -> SimReport {
        let Beginning { mut rng, ids, start, clock, consul } = Beginning::of(seed).await;
        let checker = Checker::new(&consul, options.print);
        let fleet = SimFleet::new(consul.clone(), checker.clone());
        let users = Users::new(consul.clone(), checker.clone(), clock, ids.fork());
        let designs = designs(&mut rng);
        let weather = weather(&mut rng);
        let poisoned = rng.permille(200);
        let farms = Farms::new(consul, checker.clone(), designs, weather, start);
        let mut world = RcWorld { checker: checker.clone(), fleet, users, farms, start, poisoned };
        let agents = tokio::spawn(world.fleet.clone().run());
        lifecycle::live(seed, start, &checker, agents, world.play(rng)).await
    }

    async fn play(&mut self, mut rng: SimRng) {
        self.set_up();
        let acts = script(&mut rng);
        self.farms.start_all(rng);
        for (at, act) in acts {
            self.farms.until(self.start + at).await;
            self.say(format!("{act:?}"));
            self.act(act);
        }
        self.farms.until(self.start + HEALED_AT).await;
        self.heal();
        met_if(self.unsettled().is_some(), Occasion::FoundUnsettled);
        self.quiesce().await;
        if self.farms.restored {
            // Until its trees are next read from the start, a farm may still act on what the snapshot undid: it can claim
            // what it need not, and take longer for what it must.
            self.farms.until(self.start + HEALED_AT + AFTER_RESTORE).await;
        }
        self.rest().await;
        self.take_over().await;
        self.checker.check_fold();
    }

    fn say(&self, what: String) {
        self.checker.say(self.start.elapsed(), format!("-- {what}"));
    }

    fn set_up(&mut self) {
        for n in 0..NODES {
            self.fleet.label(&node(n), Some("web"));
            // The others are such as p2's: they say nothing of themselves.
            if n % 3 != 2 {
                self.fleet.start_agent(&node(n), NodeState::Ready);
            }
        }
        for n in 0..RECORDS {
            self.users.tier(n, if n % 2 == 0 { "web" } else { "batch" });
            self.users.create(n);
        }
        if self.poisoned {
            self.farms.moods().set(rc_id(POISONED), Some(Mood::Panics));
            self.users.create(POISONED);
        }
    }

    fn act(&mut self, act: RcAct) {
        match act {
            RcAct::Fault(fault) => self.farms.inject(fault),
            RcAct::Mood(record, mood) => self.farms.moods().set(rc_id(record), mood),
            other => self.act_on_machines_or_records(other),
        }
    }

    fn act_on_machines_or_records(&self, act: RcAct) {
        let users = &self.users;
        match act {
            RcAct::Label(n, pool) => self.fleet.label(&node(n), pool),
            RcAct::Ill(n, ill) => self.fleet.set_ill(&node(n), ill),
            RcAct::AgentDown(n) => self.fleet.kill_agent(&node(n)),
            RcAct::AgentUp(n) => self.fleet.start_agent(&node(n), NodeState::Ready),
            RcAct::Drain(n, true) => self.fleet.drain(&node(n), NodeState::Draining),
            RcAct::Drain(n, false) => self.fleet.drain(&node(n), NodeState::Ready),
            RcAct::Scale(n, count) => users.scale(n, count),
            RcAct::Disable(n, disabled) => users.disable(n, disabled),
            RcAct::Tier(n, tier) => users.tier(n, tier),
            RcAct::NodeSelector(n, selector) => users.select_nodes(n, selector),
            RcAct::Malform(n) => users.malform(n),
            RcAct::BadLabels(n) => users.bad_labels(n),
            RcAct::Mend(n) => users.mend(n, "web"),
            RcAct::Delete(n) => users.delete(n),
            RcAct::GivePod(from, to) => users.give_pod(from, to),
            RcAct::DropIntent(n) => users.drop_intent(n),
            RcAct::Squat(n, record) => users.squat(&node(n), record),
            RcAct::Unsquat(n, record) => users.unsquat(&node(n), record),
            RcAct::HoldLock(n, hold) => users.hold_lock(n, hold),
            RcAct::Litter => users.litter(),
            _ => {}
        }
    }

    /// Every fault ends.
    fn heal(&mut self) {
        self.say("the faults have ended".to_owned());
        self.farms.heal(false);
        self.farms.moods().clear();
        if self.poisoned {
            self.farms.moods().set(rc_id(POISONED), Some(Mood::Panics));
        }
        self.fleet.heal();
        for n in 0..NODES {
            self.fleet.label(&node(n), Some("web"));
            if self.fleet.has_agent(&node(n)) {
                self.fleet.keep_agent(&node(n));
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
        let live = self.farms.live();
        let records = self.records();
        self.checker.look(|picture, facts| liveness::unsettled(picture, facts, &live, &records))
    }

    /// 27: everything becomes as asked for.
    async fn quiesce(&mut self) {
        let limit = if self.farms.restored { AFTER_RESTORE } else { SETTLES_WITHIN };
        let deadline = Instant::now() + limit;
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                self.checker.violated(27, format!("not within {limit:?}: {what}"));
                return;
            }
            self.farms.until(Instant::now() + Duration::from_millis(250)).await;
        }
        self.say("everything is as asked for".to_owned());
    }

    /// 29: then nothing happens any more; 12: least of all because of one bad record.
    async fn rest(&mut self) {
        self.farms.until(Instant::now() + Duration::from_secs(5)).await;
        let since = self.start.elapsed();
        let (before, asked) = (self.farms.requests(), self.farms.moods().asked(rc_id(POISONED)));
        self.farms.until(Instant::now() + REST).await;
        if let Some(process) = self.checker.sessions_ended(since).first() {
            self.checker.violated(12, format!("a session of #{process} ended while all was well"));
        }
        for (process, now) in self.farms.requests() {
            let count = now - before.get(&process).copied().unwrap_or(0);
            // What a snapshot brought back keeps farms busy until they have seen all of it.
            if count > REQUESTS_AT_REST && !self.farms.restored {
                let what = format!("#{process} made {count} requests in {REST:?} of rest");
                self.checker.violated(29, what);
            }
        }
        met_if(self.poisoned, Occasion::PoisonedAtRest);
        let looks = self.farms.moods().asked(rc_id(POISONED)) - asked;
        if looks > LOOKS_AT_REST {
            let what =
                format!("a record that always fails was looked at {looks} times in {REST:?}");
            self.checker.violated(29, what);
        }
        // A record may just be changing hands.
        let deadline = Instant::now() + Duration::from_secs(1);
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                self.checker.violated(27, format!("it did not last: {what}"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// 28: a farm that ends is followed in time.
    async fn take_over(&mut self) {
        let (limit, signal) = self.farms.end_one();
        met_if(self.unsettled().is_some(), Occasion::OwnerEnded);
        let deadline = Instant::now() + limit;
        while let Some(what) = self.unsettled() {
            if Instant::now() >= deadline {
                self.checker.violated(28, format!("not within {limit:?} after {signal}: {what}"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Three farms: two claim everything, one a part; now and then one cannot have a check.
fn designs(rng: &mut SimRng) -> Vec<Design> {
    let mut designs: Vec<Design> =
        [("a", ""), ("b", ""), ("c", "tier=web")].map(|(n, s)| Design::new(n, s)).into();
    if rng.permille(100) {
        let session = &mut dice_pick(rng, &mut designs).session;
        session.session_ttl = Duration::from_secs(10);
    }
    if rng.permille(200) {
        // As if it knew an older Consul: everything takes more transactions.
        dice_pick(rng, &mut designs).limits.ops = 9;
    }
    if rng.permille(300) {
        dice_pick(rng, &mut designs).is_newer = true;
    }
    designs
}

fn dice_pick<'d>(rng: &mut SimRng, designs: &'d mut [Design]) -> &'d mut Design {
    let n = rng.below(designs.len());
    &mut designs[n]
}
