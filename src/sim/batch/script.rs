//! What happens to a batch world, and when: drawn from the seed before anything runs.

use std::time::Duration;

use super::people::{KINDS, QUEUES};
use crate::command::Action;
use crate::sim::dice::Dice;
use crate::sim::trouble::{Plot, Trouble};
use crate::store::Prefix;
use crate::store::key::{self, LabelKind};

/// When the last fault has ended.
pub const HEALED_AT: Duration = Duration::from_secs(36);
/// Machines.
pub const MACHINES: usize = 4;

/// One thing that happens; jobs are numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Act {
    Trouble(Trouble),
    // Machines.
    AgentDown(usize),
    AgentUp(usize),
    Crash(usize),
    Drain(usize, bool),
    // People and jobs.
    Submit(usize),
    Suspend(usize, bool),
    Command(usize, Action),
    Scale(usize, usize),
    Delete(usize),
    Drop(usize),
    Malform(usize, usize),
    Mend(usize),
    DropIntent(usize),
    // People and queues.
    CommandQueue(usize, bool),
    Close(usize, bool),
    Limit(usize, u64),
    MalformQueue(usize),
    MendQueue(usize),
    Litter,
}

impl From<Trouble> for Act {
    fn from(trouble: Trouble) -> Act {
        Act::Trouble(trouble)
    }
}

fn hideable() -> Vec<Prefix> {
    vec![
        key::jobs(),
        key::job_locks(),
        key::pod_groups(),
        key::pod_group_statuses(),
        key::labels(LabelKind::Pod),
        key::intents(),
        key::realities(),
        key::pod_statuses(),
        key::commands(),
        key::queues(),
    ]
}

/// A job by its kind and its number.
type Sort = (usize, usize);

/// The jobs of a world, and the script, in order of time.
#[must_use]
pub fn script(dice: &mut Dice, farms: usize) -> (Vec<Sort>, Vec<(Duration, Act)>) {
    let mut plot = Plot::new(dice.fork(), farms, HEALED_AT, &[-20, -5, 5, 20], hideable());
    let jobs = 2 + plot.dice.below(4);
    let mut kinds: Vec<_> = (0..jobs).map(|n| (plot.dice.below(KINDS.len()), n)).collect();
    let strait = plot.dice.permille(150);
    if strait {
        plot.strait(&mut kinds);
    }
    for n in usize::from(strait)..jobs {
        let least = if strait { 26 } else { 1 };
        let most = if strait { 34 } else { 24 };
        let at = plot.dice.between(Duration::from_secs(least), Duration::from_secs(most));
        plot.at(at, Act::Submit(n));
    }
    let scenes = if strait { 2 + plot.dice.below(4) } else { 6 + plot.dice.below(10) };
    for _ in 0..scenes {
        plot.scene(jobs);
    }
    (kinds, plot.written())
}

const ACTIONS: [Action; 7] = Action::OF_JOBS;

impl Plot<Act> {
    /// A gang waits for machines for long, at the head of a strict queue, and what would fit comes behind it.
    fn strait(&mut self, kinds: &mut [Sort]) {
        let kind = |name: &str| KINDS.iter().position(|kind| *kind == name).unwrap_or(0);
        for (n, job) in kinds.iter_mut().enumerate() {
            *job = if n == 0 { (kind("gang"), 6) } else { (kind("one"), 9 * n) };
        }
        for machine in 1..MACHINES {
            self.at(Duration::from_millis(300), Act::Drain(machine, true));
            self.at(HEALED_AT, Act::Drain(machine, false));
        }
        let early = self.dice.between(Duration::from_secs(1), Duration::from_secs(4));
        self.at(early, Act::Submit(0));
    }

    fn scene(&mut self, jobs: usize) {
        let at = self.moment();
        match self.dice.below(12) {
            0..=2 => self.process(at),
            3 | 4 => self.network(at),
            5 => self.consul(at, jobs),
            6 | 7 => self.machines(at),
            8 => self.queues(at),
            _ => self.people(at, jobs),
        }
    }

    /// While lists come late, people ask one thing after the other of every job, and jobs change hands: whoever takes one
    /// over still sees commands that were carried out.
    fn slow_and_busy(&mut self, at: Duration, jobs: usize) {
        self.slow_lists(at);
        for job in 0..jobs {
            let (soon, action) = (self.soon(at), *self.dice.pick(&ACTIONS));
            self.at(soon + Duration::from_secs(2), Act::Command(job, action));
            let action = *self.dice.pick(&ACTIONS);
            self.at(soon + Duration::from_secs(4), Act::Command(job, action));
        }
        for n in [4, 6, 8] {
            let (farm, soon) = (self.any_farm(), self.soon(at));
            self.at(soon + Duration::from_secs(n), Trouble::KillSession(farm));
        }
    }

    fn consul(&mut self, at: Duration, jobs: usize) {
        match self.dice.below(8) {
            0 | 1 => self.while_(at, 1, 8, Trouble::Leaderless(true), Trouble::Leaderless(false)),
            6 | 7 => self.slow_and_busy(at, jobs),
            2 => {
                let length = self.dice.between(Duration::from_secs(1), Duration::from_secs(6));
                self.at(at, Trouble::Stall(length));
            }
            // What was sent before the session ended arrives after it.
            3 | 4 => {
                let farm = self.any_farm();
                self.at(at, Trouble::Stall(Duration::from_secs(3)));
                let soon = self.soon(at);
                self.at(soon, Trouble::KillSession(farm));
            }
            _ => self.at(at, Trouble::WakeAll),
        }
    }

    fn machines(&mut self, at: Duration) {
        let machine = self.dice.below(MACHINES);
        match self.dice.below(5) {
            0 | 1 => self.while_(at, 1, 30, Act::AgentDown(machine), Act::AgentUp(machine)),
            2 | 3 => self.while_(at, 2, 30, Act::Crash(machine), Act::AgentUp(machine)),
            _ => self.while_(at, 2, 20, Act::Drain(machine, true), Act::Drain(machine, false)),
        }
    }

    fn people(&mut self, at: Duration, jobs: usize) {
        let job = self.dice.below(jobs);
        match self.dice.below(14) {
            0..=4 => {
                let action = *self.dice.pick(&ACTIONS);
                self.at(at, Act::Command(job, action));
                // Somebody changes his mind, or asks twice.
                if self.dice.permille(400) {
                    let (soon, action) = (self.soon(at), *self.dice.pick(&ACTIONS));
                    self.at(soon, Act::Command(job, action));
                }
            }
            5 | 6 => self.while_(at, 1, 15, Act::Suspend(job, true), Act::Suspend(job, false)),
            7 => {
                let count = 1 + self.dice.below(4);
                self.at(at, Act::Scale(job, count));
            }
            8 => self.while_(at, 0, 6, Act::Delete(job), Act::Submit(job)),
            9 => self.while_(at, 0, 6, Act::Drop(job), Act::Submit(job)),
            10 | 11 => {
                let how = self.dice.below(3);
                self.while_(at, 1, 15, Act::Malform(job, how), Act::Mend(job));
            }
            12 => self.at(at, Act::DropIntent(job)),
            _ => self.at(at, Act::Litter),
        }
    }

    fn queues(&mut self, at: Duration) {
        let queue = self.dice.below(QUEUES.len());
        match self.dice.below(5) {
            0 | 1 => {
                let (begin, end) =
                    (Act::CommandQueue(queue, false), Act::CommandQueue(queue, true));
                self.while_(at, 1, 20, begin, end);
            }
            2 => self.while_(at, 1, 20, Act::Close(queue, true), Act::Close(queue, false)),
            3 => {
                let limit = 1 + self.dice.below(6) as u64;
                self.while_(at, 1, 20, Act::Limit(queue, limit), Act::MendQueue(queue));
            }
            _ => self.while_(at, 1, 15, Act::MalformQueue(queue), Act::MendQueue(queue)),
        }
    }
}
