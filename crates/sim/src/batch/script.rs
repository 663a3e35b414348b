//! What happens to a batch world, and when: drawn from the seed before anything runs.

use std::time::Duration;

use super::workload::{KINDS, QUEUES};
use crate::faults::{Fault, ScheduleBuilder};
use crate::rng::SimRng;
use rcfarm_api::command::CommandAction;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::Prefix;

/// When the last fault has ended.
pub const HEALED_AT: Duration = Duration::from_secs(36);
/// Machines.
pub const MACHINES: usize = 4;

/// One thing that happens; jobs are numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BatchAct {
    Fault(Fault),
    // Machines.
    AgentDown(usize),
    AgentUp(usize),
    Crash(usize),
    Drain(usize, bool),
    // People and jobs.
    Submit(usize),
    Suspend(usize, bool),
    Command(usize, CommandAction),
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

impl From<Fault> for BatchAct {
    fn from(fault: Fault) -> BatchAct {
        BatchAct::Fault(fault)
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
pub fn script(rng: &mut SimRng, farms: usize) -> (Vec<Sort>, Vec<(Duration, BatchAct)>) {
    let mut plot =
        ScheduleBuilder::new(rng.fork(), farms, HEALED_AT, &[-20, -5, 5, 20], hideable());
    let jobs = 2 + plot.rng.below(4);
    let mut kinds: Vec<_> = (0..jobs).map(|n| (plot.rng.below(KINDS.len()), n)).collect();
    let strait = plot.rng.permille(150);
    if strait {
        plot.strait(&mut kinds);
    }
    for n in usize::from(strait)..jobs {
        let least = if strait { 26 } else { 1 };
        let most = if strait { 34 } else { 24 };
        let at = plot.rng.between(Duration::from_secs(least), Duration::from_secs(most));
        plot.at(at, BatchAct::Submit(n));
    }
    let scenes = if strait { 2 + plot.rng.below(4) } else { 6 + plot.rng.below(10) };
    for _ in 0..scenes {
        plot.scene(jobs);
    }
    (kinds, plot.written())
}

const ACTIONS: [CommandAction; 7] = CommandAction::OF_JOBS;

impl ScheduleBuilder<BatchAct> {
    /// A gang waits for machines for long, at the head of a strict queue, and what would fit comes behind it.
    fn strait(&mut self, kinds: &mut [Sort]) {
        let kind = |name: &str| KINDS.iter().position(|kind| *kind == name).unwrap_or(0);
        for (n, job) in kinds.iter_mut().enumerate() {
            *job = if n == 0 { (kind("gang"), 6) } else { (kind("one"), 9 * n) };
        }
        for machine in 1..MACHINES {
            self.at(Duration::from_millis(300), BatchAct::Drain(machine, true));
            self.at(HEALED_AT, BatchAct::Drain(machine, false));
        }
        let early = self.rng.between(Duration::from_secs(1), Duration::from_secs(4));
        self.at(early, BatchAct::Submit(0));
    }

    fn scene(&mut self, jobs: usize) {
        let at = self.moment();
        match self.rng.below(12) {
            0..=2 => self.process(at),
            3 | 4 => self.network(at),
            5 => self.consul(at, jobs),
            6 | 7 => self.machines(at),
            8 => self.queues(at),
            _ => self.workload(at, jobs),
        }
    }

    /// While lists come late, people ask one thing after the other of every job, and jobs change hands: whoever takes one
    /// over still sees commands that were carried out.
    fn slow_and_busy(&mut self, at: Duration, jobs: usize) {
        self.slow_lists(at);
        for job in 0..jobs {
            let (soon, action) = (self.soon(at), *self.rng.pick(&ACTIONS));
            self.at(soon + Duration::from_secs(2), BatchAct::Command(job, action));
            let action = *self.rng.pick(&ACTIONS);
            self.at(soon + Duration::from_secs(4), BatchAct::Command(job, action));
        }
        for n in [4, 6, 8] {
            let (farm, soon) = (self.any_farm(), self.soon(at));
            self.at(soon + Duration::from_secs(n), Fault::KillSession(farm));
        }
    }

    fn consul(&mut self, at: Duration, jobs: usize) {
        match self.rng.below(8) {
            0 | 1 => self.while_(at, 1, 8, Fault::Leaderless(true), Fault::Leaderless(false)),
            6 | 7 => self.slow_and_busy(at, jobs),
            2 => {
                let length = self.rng.between(Duration::from_secs(1), Duration::from_secs(6));
                self.at(at, Fault::Stall(length));
            }
            // What was sent before the session ended arrives after it.
            3 | 4 => {
                let farm = self.any_farm();
                self.at(at, Fault::Stall(Duration::from_secs(3)));
                let soon = self.soon(at);
                self.at(soon, Fault::KillSession(farm));
            }
            _ => self.at(at, Fault::WakeAll),
        }
    }

    fn machines(&mut self, at: Duration) {
        let machine = self.rng.below(MACHINES);
        match self.rng.below(5) {
            0 | 1 => {
                self.while_(at, 1, 30, BatchAct::AgentDown(machine), BatchAct::AgentUp(machine))
            }
            2 | 3 => self.while_(at, 2, 30, BatchAct::Crash(machine), BatchAct::AgentUp(machine)),
            _ => self.while_(
                at,
                2,
                20,
                BatchAct::Drain(machine, true),
                BatchAct::Drain(machine, false),
            ),
        }
    }

    fn workload(&mut self, at: Duration, jobs: usize) {
        let job = self.rng.below(jobs);
        match self.rng.below(14) {
            0..=4 => {
                let action = *self.rng.pick(&ACTIONS);
                self.at(at, BatchAct::Command(job, action));
                // Somebody changes his mind, or asks twice.
                if self.rng.permille(400) {
                    let (soon, action) = (self.soon(at), *self.rng.pick(&ACTIONS));
                    self.at(soon, BatchAct::Command(job, action));
                }
            }
            5 | 6 => {
                self.while_(at, 1, 15, BatchAct::Suspend(job, true), BatchAct::Suspend(job, false))
            }
            7 => {
                let count = 1 + self.rng.below(4);
                self.at(at, BatchAct::Scale(job, count));
            }
            8 => self.while_(at, 0, 6, BatchAct::Delete(job), BatchAct::Submit(job)),
            9 => self.while_(at, 0, 6, BatchAct::Drop(job), BatchAct::Submit(job)),
            10 | 11 => {
                let how = self.rng.below(3);
                self.while_(at, 1, 15, BatchAct::Malform(job, how), BatchAct::Mend(job));
            }
            12 => self.at(at, BatchAct::DropIntent(job)),
            _ => self.at(at, BatchAct::Litter),
        }
    }

    fn queues(&mut self, at: Duration) {
        let queue = self.rng.below(QUEUES.len());
        match self.rng.below(5) {
            0 | 1 => {
                let (begin, end) =
                    (BatchAct::CommandQueue(queue, false), BatchAct::CommandQueue(queue, true));
                self.while_(at, 1, 20, begin, end);
            }
            2 => {
                self.while_(at, 1, 20, BatchAct::Close(queue, true), BatchAct::Close(queue, false))
            }
            3 => {
                let limit = 1 + self.rng.below(6) as u64;
                self.while_(at, 1, 20, BatchAct::Limit(queue, limit), BatchAct::MendQueue(queue));
            }
            _ => self.while_(at, 1, 15, BatchAct::MalformQueue(queue), BatchAct::MendQueue(queue)),
        }
    }
}
