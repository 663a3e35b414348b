//! What happens to the world, and when: drawn from the seed before anything runs.

use std::time::Duration;

use super::faults::{CALM_UNTIL, Fault, ScheduleBuilder};
use super::rng::SimRng;
use super::scheduler::{MOODS, Mood};
use rcfarm_api::key::{self, LabelKind};

/// Farms, machines and records of a world.
pub const FARMS: usize = 3;
/// Machines.
pub const NODES: usize = 7;
/// Records; the last two call their pods the same.
pub const RECORDS: usize = 5;

/// When the last fault has ended.
pub const HEALED_AT: Duration = Duration::from_secs(55);

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RcAct {
    Fault(Fault),
    // Schedulers.
    Mood(usize, Option<Mood>),
    // Machines.
    Label(usize, Option<&'static str>),
    Ill(usize, bool),
    AgentDown(usize),
    AgentUp(usize),
    Drain(usize, bool),
    // Users.
    Scale(usize, i64),
    Disable(usize, bool),
    Tier(usize, &'static str),
    NodeSelector(usize, &'static str),
    Malform(usize),
    BadLabels(usize),
    Mend(usize),
    Delete(usize),
    GivePod(usize, usize),
    DropIntent(usize),
    Squat(usize, usize),
    Unsquat(usize, usize),
    HoldLock(usize, bool),
    Litter,
}

impl From<Fault> for RcAct {
    fn from(fault: Fault) -> RcAct {
        RcAct::Fault(fault)
    }
}

/// Trees of which a farm may lose sight.
fn hideable() -> Vec<rcfarm_store::Prefix> {
    vec![
        key::labels(LabelKind::Node),
        key::labels(LabelKind::Pod),
        key::intents(),
        key::healths(),
        key::rcs(),
        key::rc_locks(),
    ]
}

const POOLS: [&str; 3] = ["web", "db", "web"];
const SELECTORS: [&str; 3] = ["pool=web", "pool in (web,db)", "pool!=none"];
const TIERS: [&str; 2] = ["web", "batch"];

/// The script of a seed, in order of time.
#[must_use]
pub fn script(rng: &mut SimRng) -> Vec<(Duration, RcAct)> {
    let mut plot =
        ScheduleBuilder::new(rng.fork(), FARMS, HEALED_AT, &[-3600, -30, 30, 86_400], hideable());
    let scenes = 14 + plot.rng.below(14);
    for _ in 0..scenes {
        plot.scene();
    }
    plot.written()
}

impl ScheduleBuilder<RcAct> {
    fn scene(&mut self) {
        let at = self.moment();
        match self.rng.below(11) {
            10 => {
                let (record, mood) = (self.rng.below(RECORDS), *self.rng.pick(&MOODS));
                let begin = RcAct::Mood(record, Some(mood));
                self.while_(at, 2, 12, begin, RcAct::Mood(record, None));
                // Something to ask it for.
                let (node, soon) = (self.rng.below(NODES), self.soon(at));
                self.at(soon, RcAct::Label(node, Some("db")));
            }
            0 | 1 => self.process(at),
            2 | 3 => self.network(at),
            4 => self.consul(at),
            5 | 6 => self.machines(at),
            _ => self.users(at),
        }
    }

    fn consul(&mut self, at: Duration) {
        match self.rng.below(10) {
            0 | 1 => self.while_(at, 1, 8, Fault::Leaderless(true), Fault::Leaderless(false)),
            8 | 9 => self.slow_and_busy(at),
            2 | 3 => {
                let most = Duration::from_secs(6);
                let length = self.rng.between(Duration::from_secs(1), most);
                self.at(at, Fault::Stall(length));
            }
            // What was sent before the session ended arrives after it.
            4 | 5 => {
                let farm = self.rng.below(FARMS);
                self.at(at, Fault::Stall(Duration::from_secs(3)));
                let record = self.rng.below(RECORDS);
                let count = self.count();
                self.at(at, RcAct::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, Fault::KillSession(farm));
            }
            6 => self.at(at, Fault::WakeAll),
            _ => self.while_(at, 1, 20, Fault::Snapshot, Fault::Restore),
        }
    }

    /// While lists come late, people change their minds about a record of which each pod finds another node.
    fn slow_and_busy(&mut self, at: Duration) {
        self.slow_lists(at);
        let record = self.rng.below(3);
        for n in 1..5 {
            let count = self.count();
            let soon = self.soon(at + Duration::from_secs(n));
            self.at(soon, RcAct::Scale(record, count));
        }
    }

    fn machines(&mut self, at: Duration) {
        let node = self.rng.below(NODES);
        match self.rng.below(9) {
            0 | 1 => {
                let pool = Some(*self.rng.pick(&POOLS));
                self.while_(at, 2, 30, RcAct::Label(node, pool), RcAct::Label(node, Some("web")));
            }
            2 => self.while_(at, 2, 20, RcAct::Label(node, None), RcAct::Label(node, Some("web"))),
            3 => self.while_(at, 1, 40, RcAct::Ill(node, true), RcAct::Ill(node, false)),
            4 => self.while_(at, 2, 30, RcAct::AgentDown(node), RcAct::AgentUp(node)),
            5 => self.while_(at, 2, 30, RcAct::Drain(node, true), RcAct::Drain(node, false)),
            6 => self.long_gone(node),
            // Some ail for long, and a node of the healthy must be left meanwhile.
            _ => {
                let early = CALM_UNTIL;
                for _ in 0..2 {
                    let ill = self.rng.below(NODES);
                    self.at(early, RcAct::Ill(ill, true));
                }
                let at = early + self.rng.between(Duration::from_secs(27), Duration::from_secs(40));
                self.at(at, RcAct::Label(node, Some("none")));
                if self.rng.permille(500) {
                    let (record, count) = (self.rng.below(3), self.count());
                    let soon = at + Duration::from_secs(3);
                    self.at(soon, RcAct::Scale(record, count));
                }
            }
        }
    }

    /// A node is unfit for so long that everybody must know, and then there are pods to be placed.
    fn long_gone(&mut self, node: usize) {
        let (begin, end) = match self.rng.below(3) {
            0 => (RcAct::AgentDown(node), RcAct::AgentUp(node)),
            1 => (RcAct::Drain(node, true), RcAct::Drain(node, false)),
            _ => (RcAct::Label(node, Some("none")), RcAct::Label(node, Some("web"))),
        };
        self.at(CALM_UNTIL, begin);
        self.at(HEALED_AT, end);
        for record in 0..3 {
            let at = self.rng.between(Duration::from_secs(42), Duration::from_secs(51));
            self.at(at, RcAct::Scale(record, 1));
            self.at(at + Duration::from_secs(2), RcAct::Scale(record, 6));
        }
    }

    fn count(&mut self) -> i64 {
        i64::try_from(self.rng.below(6)).unwrap_or(0)
    }

    fn users(&mut self, at: Duration) {
        let record = self.rng.below(RECORDS);
        match self.rng.below(16) {
            0..=3 => {
                let count = self.count();
                self.at(at, RcAct::Scale(record, count));
            }
            4 => {
                self.while_(at, 1, 20, RcAct::Disable(record, true), RcAct::Disable(record, false))
            }
            // Somebody changes his mind at once.
            5 | 6 => {
                let count = self.count();
                self.at(at, RcAct::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, RcAct::Disable(record, true));
                let end = soon + Duration::from_secs(5);
                self.at(end, RcAct::Disable(record, false));
            }
            7 | 8 => {
                let tier = *self.rng.pick(&TIERS);
                self.at(at, RcAct::Tier(record, tier));
            }
            9 => {
                let selector = *self.rng.pick(&SELECTORS);
                self.at(at, RcAct::NodeSelector(record, selector));
            }
            10 => {
                let bad = if self.rng.permille(500) {
                    RcAct::Malform(record)
                } else {
                    RcAct::BadLabels(record)
                };
                self.while_(at, 1, 20, bad, RcAct::Mend(record));
            }
            11 => self.while_(at, 0, 6, RcAct::Delete(record), RcAct::Mend(record)),
            // A pod of one record is given to the other while the first one shrinks.
            12 | 13 => {
                let (from, to) = if self.rng.permille(500) { (3, 4) } else { (4, 3) };
                self.at(at, RcAct::GivePod(from, to));
                self.at(at, RcAct::Scale(from, 0));
            }
            14 => match self.rng.below(3) {
                0 => self.at(at, RcAct::DropIntent(record)),
                1 => self.while_(
                    at,
                    1,
                    15,
                    RcAct::HoldLock(record, true),
                    RcAct::HoldLock(record, false),
                ),
                _ => self.at(at, RcAct::Litter),
            },
            // Somebody puts a pod by hand where one is about to be placed.
            _ => {
                let node = self.rng.below(NODES);
                self.while_(at, 4, 20, RcAct::Squat(node, record), RcAct::Unsquat(node, record));
                self.at(at, RcAct::Scale(record, 6));
            }
        }
    }
}
