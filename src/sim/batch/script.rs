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

/// The jobs of a world, each by its kind, and the script, in order of time.
#[must_use]
pub fn script(dice: &mut Dice, farms: usize) -> (Vec<usize>, Vec<(Duration, Act)>) {
    let mut plot = Plot::new(dice.fork(), farms, HEALED_AT, &[-20, -5, 5, 20], hideable());
    let jobs = 2 + plot.dice.below(4);
    let kinds: Vec<usize> = (0..jobs).map(|_| plot.dice.below(KINDS.len())).collect();
    for n in 0..jobs {
        let at = plot.dice.between(Duration::from_secs(1), Duration::from_secs(24));
        plot.at(at, Act::Submit(n));
    }
    let scenes = 6 + plot.dice.below(10);
    for _ in 0..scenes {
        plot.scene(jobs);
    }
    (kinds, plot.written())
}

const ACTIONS: [Action; 7] = Action::OF_JOBS;

impl Plot<Act> {
    fn scene(&mut self, jobs: usize) {
        let at = self.moment();
        match self.dice.below(12) {
            0..=2 => self.process(at),
            3 | 4 => self.network(at),
            5 => self.consul(at),
            6 | 7 => self.machines(at),
            8 => self.queues(at),
            _ => self.people(at, jobs),
        }
    }

    fn consul(&mut self, at: Duration) {
        match self.dice.below(6) {
            0 | 1 => self.while_(at, 1, 8, Trouble::Leaderless(true), Trouble::Leaderless(false)),
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
