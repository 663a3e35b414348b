//! What happens to the world, and when: drawn from the seed before anything runs.

use std::time::Duration;

use super::dice::Dice;
use super::scheduler::{MOODS, Mood};
use super::trouble::{CALM_UNTIL, Plot, Trouble};
use crate::store::key::{self, LabelKind};

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
pub enum Act {
    Trouble(Trouble),
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

impl From<Trouble> for Act {
    fn from(trouble: Trouble) -> Act {
        Act::Trouble(trouble)
    }
}

/// Trees of which a farm may lose sight.
fn hideable() -> Vec<crate::store::Prefix> {
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
pub fn script(dice: &mut Dice) -> Vec<(Duration, Act)> {
    let mut plot = Plot::new(dice.fork(), FARMS, HEALED_AT, &[-3600, -30, 30, 86_400], hideable());
    let scenes = 14 + plot.dice.below(14);
    for _ in 0..scenes {
        plot.scene();
    }
    plot.written()
}

impl Plot<Act> {
    fn scene(&mut self) {
        let at = self.moment();
        match self.dice.below(11) {
            10 => {
                let (record, mood) = (self.dice.below(RECORDS), *self.dice.pick(&MOODS));
                let begin = Act::Mood(record, Some(mood));
                self.while_(at, 2, 12, begin, Act::Mood(record, None));
                // Something to ask it for.
                let (node, soon) = (self.dice.below(NODES), self.soon(at));
                self.at(soon, Act::Label(node, Some("db")));
            }
            0 | 1 => self.process(at),
            2 | 3 => self.network(at),
            4 => self.consul(at),
            5 | 6 => self.machines(at),
            _ => self.users(at),
        }
    }

    fn consul(&mut self, at: Duration) {
        match self.dice.below(10) {
            0 | 1 => self.while_(at, 1, 8, Trouble::Leaderless(true), Trouble::Leaderless(false)),
            8 | 9 => self.slow_and_busy(at),
            2 | 3 => {
                let most = Duration::from_secs(6);
                let length = self.dice.between(Duration::from_secs(1), most);
                self.at(at, Trouble::Stall(length));
            }
            // What was sent before the session ended arrives after it.
            4 | 5 => {
                let farm = self.dice.below(FARMS);
                self.at(at, Trouble::Stall(Duration::from_secs(3)));
                let record = self.dice.below(RECORDS);
                let count = self.count();
                self.at(at, Act::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, Trouble::KillSession(farm));
            }
            6 => self.at(at, Trouble::WakeAll),
            _ => self.while_(at, 1, 20, Trouble::Snapshot, Trouble::Restore),
        }
    }

    /// While lists come late, people change their minds about a record of which each pod finds another node.
    fn slow_and_busy(&mut self, at: Duration) {
        self.slow_lists(at);
        let record = self.dice.below(3);
        for n in 1..5 {
            let count = self.count();
            let soon = self.soon(at + Duration::from_secs(n));
            self.at(soon, Act::Scale(record, count));
        }
    }

    fn machines(&mut self, at: Duration) {
        let node = self.dice.below(NODES);
        match self.dice.below(9) {
            0 | 1 => {
                let pool = Some(*self.dice.pick(&POOLS));
                self.while_(at, 2, 30, Act::Label(node, pool), Act::Label(node, Some("web")));
            }
            2 => self.while_(at, 2, 20, Act::Label(node, None), Act::Label(node, Some("web"))),
            3 => self.while_(at, 1, 40, Act::Ill(node, true), Act::Ill(node, false)),
            4 => self.while_(at, 2, 30, Act::AgentDown(node), Act::AgentUp(node)),
            5 => self.while_(at, 2, 30, Act::Drain(node, true), Act::Drain(node, false)),
            6 => self.long_gone(node),
            // Some ail for long, and a node of the healthy must be left meanwhile.
            _ => {
                let early = CALM_UNTIL;
                for _ in 0..2 {
                    let ill = self.dice.below(NODES);
                    self.at(early, Act::Ill(ill, true));
                }
                let at =
                    early + self.dice.between(Duration::from_secs(27), Duration::from_secs(40));
                self.at(at, Act::Label(node, Some("none")));
                if self.dice.permille(500) {
                    let (record, count) = (self.dice.below(3), self.count());
                    let soon = at + Duration::from_secs(3);
                    self.at(soon, Act::Scale(record, count));
                }
            }
        }
    }

    /// A node is unfit for so long that everybody must know, and then there are pods to be placed.
    fn long_gone(&mut self, node: usize) {
        let (begin, end) = match self.dice.below(3) {
            0 => (Act::AgentDown(node), Act::AgentUp(node)),
            1 => (Act::Drain(node, true), Act::Drain(node, false)),
            _ => (Act::Label(node, Some("none")), Act::Label(node, Some("web"))),
        };
        self.at(CALM_UNTIL, begin);
        self.at(HEALED_AT, end);
        for record in 0..3 {
            let at = self.dice.between(Duration::from_secs(42), Duration::from_secs(51));
            self.at(at, Act::Scale(record, 1));
            self.at(at + Duration::from_secs(2), Act::Scale(record, 6));
        }
    }

    fn count(&mut self) -> i64 {
        i64::try_from(self.dice.below(6)).unwrap_or(0)
    }

    fn users(&mut self, at: Duration) {
        let record = self.dice.below(RECORDS);
        match self.dice.below(16) {
            0..=3 => {
                let count = self.count();
                self.at(at, Act::Scale(record, count));
            }
            4 => self.while_(at, 1, 20, Act::Disable(record, true), Act::Disable(record, false)),
            // Somebody changes his mind at once.
            5 | 6 => {
                let count = self.count();
                self.at(at, Act::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, Act::Disable(record, true));
                let end = soon + Duration::from_secs(5);
                self.at(end, Act::Disable(record, false));
            }
            7 | 8 => {
                let tier = *self.dice.pick(&TIERS);
                self.at(at, Act::Tier(record, tier));
            }
            9 => {
                let selector = *self.dice.pick(&SELECTORS);
                self.at(at, Act::NodeSelector(record, selector));
            }
            10 => {
                let bad = if self.dice.permille(500) {
                    Act::Malform(record)
                } else {
                    Act::BadLabels(record)
                };
                self.while_(at, 1, 20, bad, Act::Mend(record));
            }
            11 => self.while_(at, 0, 6, Act::Delete(record), Act::Mend(record)),
            // A pod of one record is given to the other while the first one shrinks.
            12 | 13 => {
                let (from, to) = if self.dice.permille(500) { (3, 4) } else { (4, 3) };
                self.at(at, Act::GivePod(from, to));
                self.at(at, Act::Scale(from, 0));
            }
            14 => match self.dice.below(3) {
                0 => self.at(at, Act::DropIntent(record)),
                1 => self.while_(
                    at,
                    1,
                    15,
                    Act::HoldLock(record, true),
                    Act::HoldLock(record, false),
                ),
                _ => self.at(at, Act::Litter),
            },
            // Somebody puts a pod by hand where one is about to be placed.
            _ => {
                let node = self.dice.below(NODES);
                self.while_(at, 4, 20, Act::Squat(node, record), Act::Unsquat(node, record));
                self.at(at, Act::Scale(record, 6));
            }
        }
    }
}
