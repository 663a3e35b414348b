//! Actions on replication controllers and their nodes.

use std::time::Duration;

use super::action::{Fault, NodeAction, RcAction};
use super::builder::{CALM_UNTIL, ScheduleBuilder};
use crate::scheduler::MOODS;
use crate::workload::documents::RECORDS;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::Prefix;

/// Prefixes that may be hidden from a farm.
pub fn hideable() -> Vec<Prefix> {
    vec![
        key::labels(LabelKind::Node),
        key::labels(LabelKind::Pod),
        key::intents(),
        key::healths(),
        key::rcs(),
        key::rc_locks(),
    ]
}

fn label(node: usize, pool: &str) -> NodeAction {
    NodeAction::Label(node, Some(pool.to_owned()))
}

const POOLS: [&str; 3] = ["web", "db", "web"];
const SELECTORS: [&str; 3] = ["pool=web", "pool in (web,db)", "pool!=none"];
const TIERS: [&str; 2] = ["web", "batch"];

impl ScheduleBuilder {
    /// Adds one group of related actions of a world with replication controllers.
    pub fn rc_scene(&mut self) {
        let at = self.moment();
        match self.rng.below(11) {
            10 => {
                let (record, mood) = (self.rng.below(RECORDS), *self.rng.pick(&MOODS));
                let begin = RcAction::Mood(record, Some(mood));
                self.while_(at, 2, 12, begin, RcAction::Mood(record, None));
                // Something to ask it for.
                let (node, soon) = (self.rng.below(self.nodes), self.soon(at));
                self.at(soon, label(node, "db"));
            }
            0 | 1 => self.process(at),
            2 | 3 => self.network(at),
            4 => self.rc_consul(at),
            5 | 6 => self.rc_nodes(at),
            _ => self.rc_users(at),
        }
    }

    fn rc_consul(&mut self, at: Duration) {
        match self.rng.below(10) {
            0 | 1 => self.while_(at, 1, 8, Fault::Leaderless(true), Fault::Leaderless(false)),
            8 | 9 => self.rc_busy(at),
            2 | 3 => {
                let most = Duration::from_secs(6);
                let length = self.rng.between(Duration::from_secs(1), most);
                self.at(at, Fault::Stall(length));
            }
            // Requests sent before the session ended arrive after it.
            4 | 5 => {
                let farm = self.rng.below(self.farms);
                self.at(at, Fault::Stall(Duration::from_secs(3)));
                let record = self.rng.below(RECORDS);
                let count = self.rc_count();
                self.at(at, RcAction::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, Fault::KillSession(farm));
            }
            6 => self.at(at, Fault::WakeAll),
            _ => self.while_(at, 1, 20, Fault::Snapshot, Fault::Restore),
        }
    }

    /// While lists are delayed, users change a record's selector again and again, so that each pod is placed elsewhere.
    fn rc_busy(&mut self, at: Duration) {
        self.slow_lists(at);
        let record = self.rng.below(3);
        for n in 1..5 {
            let count = self.rc_count();
            let soon = self.soon(at + Duration::from_secs(n));
            self.at(soon, RcAction::Scale(record, count));
        }
    }

    fn rc_nodes(&mut self, at: Duration) {
        let node = self.rng.below(self.nodes);
        match self.rng.below(9) {
            0 | 1 => {
                let pool = Some((*self.rng.pick(&POOLS)).to_owned());
                self.while_(at, 2, 30, NodeAction::Label(node, pool), label(node, "web"));
            }
            2 => self.while_(at, 2, 20, NodeAction::Label(node, None), label(node, "web")),
            3 => self.while_(at, 1, 40, NodeAction::Ill(node, true), NodeAction::Ill(node, false)),
            4 => self.while_(at, 2, 30, NodeAction::AgentDown(node), NodeAction::AgentUp(node)),
            5 => self.while_(
                at,
                2,
                30,
                NodeAction::Drain(node, true),
                NodeAction::Drain(node, false),
            ),
            6 => self.rc_long_gone(node),
            // Some nodes are ill for long, and the node of a healthy pod must be left meanwhile.
            _ => {
                let early = CALM_UNTIL;
                for _ in 0..2 {
                    let ill = self.rng.below(self.nodes);
                    self.at(early, NodeAction::Ill(ill, true));
                }
                let at = early + self.rng.between(Duration::from_secs(27), Duration::from_secs(40));
                self.at(at, label(node, "none"));
                if self.rng.permille(500) {
                    let (record, count) = (self.rng.below(3), self.rc_count());
                    let soon = at + Duration::from_secs(3);
                    self.at(soon, RcAction::Scale(record, count));
                }
            }
        }
    }

    /// A node is unfit for longer than views are old; then pods are to be placed.
    fn rc_long_gone(&mut self, node: usize) {
        let (begin, end) = match self.rng.below(3) {
            0 => (NodeAction::AgentDown(node), NodeAction::AgentUp(node)),
            1 => (NodeAction::Drain(node, true), NodeAction::Drain(node, false)),
            _ => (label(node, "none"), label(node, "web")),
        };
        self.at(CALM_UNTIL, begin);
        self.at(self.healed_at, end);
        for record in 0..3 {
            let at = self.rng.between(Duration::from_secs(42), Duration::from_secs(51));
            self.at(at, RcAction::Scale(record, 1));
            self.at(at + Duration::from_secs(2), RcAction::Scale(record, 6));
        }
    }

    /// Users take pods away and lower the count, while the other records are scaled all the time.
    pub fn deallocations(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            let (at, record) = (self.moment(), self.rng.below(RECORDS));
            let (other, count) = (self.rng.below(RECORDS), self.rc_count());
            if other != record {
                self.at(at, RcAction::Scale(other, count));
            }
            let soon = self.soon(at);
            self.at(soon, RcAction::Deallocate(record));
        }
    }

    /// Users relabel a node and lower the count of a record with a pod there.
    pub fn scalings_off_nodes(&mut self) {
        for _ in 0..2 + self.rng.below(4) {
            let (at, record) = (self.moment(), self.rng.below(RECORDS));
            let node = self.rng.below(self.nodes);
            self.while_(at, 2, 30, RcAction::ScaleOffNode(node, record), label(node, "web"));
        }
    }

    /// Users update manifests in order, mostly that of the record with a minimum health, while nodes restart their pods
    /// late or fail their checks.
    pub fn updates(&mut self) {
        for version in 1..2 + self.rng.below(4) {
            let at = self.moment();
            let record = if self.rng.permille(600) { 2 } else { self.rng.below(RECORDS) };
            self.at(at.saturating_sub(Duration::from_secs(4)), RcAction::Scale(record, 4));
            self.at(at, RcAction::Update(record, version));
            let node = self.rng.below(self.nodes);
            match self.rng.below(3) {
                0 => self.while_(at, 2, 20, NodeAction::AgentDown(node), NodeAction::AgentUp(node)),
                1 => {
                    self.while_(
                        at,
                        2,
                        20,
                        NodeAction::Ill(node, true),
                        NodeAction::Ill(node, false),
                    );
                }
                _ => {}
            }
        }
    }

    fn rc_count(&mut self) -> i64 {
        i64::try_from(self.rng.below(6)).unwrap_or(0)
    }

    fn rc_users(&mut self, at: Duration) {
        let record = self.rng.below(RECORDS);
        match self.rng.below(16) {
            0..=3 => {
                let count = self.rc_count();
                self.at(at, RcAction::Scale(record, count));
            }
            4 => {
                let (begin, end) =
                    (RcAction::Disable(record, true), RcAction::Disable(record, false));
                self.while_(at, 1, 20, begin, end);
                // A rolling update from one of the two records with the same pod id to the other.
                if record + 2 >= RECORDS {
                    let other = 2 * RECORDS - 3 - record;
                    self.at(at, RcAction::Scale(record, 0));
                    self.at(at, RcAction::Scale(other, 4));
                }
            }
            // A user reverts the change at once.
            5 | 6 => {
                let count = self.rc_count();
                self.at(at, RcAction::Scale(record, count));
                let soon = self.soon(at);
                self.at(soon, RcAction::Disable(record, true));
                let end = soon + Duration::from_secs(5);
                self.at(end, RcAction::Disable(record, false));
            }
            7 | 8 => {
                let tier = *self.rng.pick(&TIERS);
                self.at(at, RcAction::Tier(record, tier.to_owned()));
            }
            9 => {
                let selector = *self.rng.pick(&SELECTORS);
                self.at(at, RcAction::NodeSelector(record, selector.to_owned()));
            }
            10 => {
                let bad = if self.rng.permille(500) {
                    RcAction::Malform(record)
                } else {
                    RcAction::BadLabels(record)
                };
                self.while_(at, 1, 20, bad, RcAction::Mend(record));
            }
            11 => self.while_(at, 0, 6, RcAction::Delete(record), RcAction::Mend(record)),
            // A pod of one record is given to the other while the first one shrinks.
            12 | 13 => {
                let (from, to) = if self.rng.permille(500) { (3, 4) } else { (4, 3) };
                self.at(at, RcAction::GivePod(from, to));
                self.at(at, RcAction::Scale(from, 0));
            }
            14 => match self.rng.below(3) {
                0 => self.at(at, RcAction::DropIntent(record)),
                1 => self.while_(
                    at,
                    1,
                    15,
                    RcAction::HoldLock(record, true),
                    RcAction::HoldLock(record, false),
                ),
                _ => self.at(at, RcAction::Litter),
            },
            // A user puts a pod where one is about to be placed.
            _ => {
                let node = self.rng.below(self.nodes);
                self.while_(
                    at,
                    4,
                    20,
                    RcAction::Squat(node, record),
                    RcAction::Unsquat(node, record),
                );
                self.at(at, RcAction::Scale(record, 6));
            }
        }
    }
}
