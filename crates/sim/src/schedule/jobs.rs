//! Actions on jobs and queues.

use std::time::Duration;

use super::action::{Fault, JobAction, NodeAction};
use super::builder::ScheduleBuilder;
use crate::workload::documents::{KINDS, QUEUES};
use rcfarm_api::command::CommandAction;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::Prefix;

/// Prefixes that may be hidden from a farm.
pub fn hideable() -> Vec<Prefix> {
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

const ACTIONS: [CommandAction; 7] = CommandAction::OF_JOBS;

impl ScheduleBuilder {
    /// Adds actions on jobs. Returns the jobs, each by kind and number. In a `narrow` world a gang sometimes waits long
    /// for nodes.
    pub fn jobs(&mut self, narrow: bool) -> Vec<(usize, usize)> {
        let jobs = 2 + self.rng.below(4);
        let mut kinds: Vec<_> = (0..jobs).map(|n| (self.rng.below(KINDS.len()), n)).collect();
        let strait = self.rng.permille(150) && narrow;
        if strait {
            self.strait(&mut kinds);
        }
        for n in usize::from(strait)..jobs {
            let least = if strait { 26 } else { 1 };
            let most = if strait { 34 } else { 24 };
            let at = self.rng.between(Duration::from_secs(least), Duration::from_secs(most));
            self.at(at, JobAction::Submit(n));
        }
        let scenes = if strait { 2 + self.rng.below(4) } else { 6 + self.rng.below(10) };
        for _ in 0..scenes {
            self.job_scene(jobs);
        }
        kinds
    }

    /// A gang waits long for nodes at the head of a strict queue, before groups that would fit.
    fn strait(&mut self, kinds: &mut [(usize, usize)]) {
        let kind = |name: &str| KINDS.iter().position(|kind| *kind == name).unwrap_or(0);
        for (n, job) in kinds.iter_mut().enumerate() {
            *job = if n == 0 { (kind("gang"), 6) } else { (kind("one"), 9 * n) };
        }
        for machine in 1..self.nodes {
            self.at(Duration::from_millis(300), NodeAction::Drain(machine, true));
            self.at(self.healed_at, NodeAction::Drain(machine, false));
        }
        let early = self.rng.between(Duration::from_secs(1), Duration::from_secs(4));
        self.at(early, JobAction::Submit(0));
    }

    /// Adds one group of related actions of a world with jobs.
    pub(super) fn job_scene(&mut self, jobs: usize) {
        let at = self.moment();
        match self.rng.below(12) {
            0..=2 => self.process(at),
            3 | 4 => self.network(at),
            5 => self.job_consul(at, jobs),
            6 | 7 => self.job_nodes(at),
            8 => self.job_queues(at),
            _ => self.job_users(at, jobs),
        }
    }

    /// While lists are delayed, users send commands to every job, and jobs change owners: a new owner still sees
    /// executed commands.
    fn job_busy(&mut self, at: Duration, jobs: usize) {
        self.slow_lists(at);
        for job in 0..jobs {
            let (soon, action) = (self.soon(at), *self.rng.pick(&ACTIONS));
            self.at(soon + Duration::from_secs(2), JobAction::Command(job, action));
            let action = *self.rng.pick(&ACTIONS);
            self.at(soon + Duration::from_secs(4), JobAction::Command(job, action));
        }
        for n in [4, 6, 8] {
            let (farm, soon) = (self.any_farm(), self.soon(at));
            self.at(soon + Duration::from_secs(n), Fault::KillSession(farm));
        }
    }

    fn job_consul(&mut self, at: Duration, jobs: usize) {
        match self.rng.below(8) {
            0 | 1 => self.while_(at, 1, 8, Fault::Leaderless(true), Fault::Leaderless(false)),
            6 | 7 => self.job_busy(at, jobs),
            2 => {
                let length = self.rng.between(Duration::from_secs(1), Duration::from_secs(6));
                self.at(at, Fault::Stall(length));
            }
            // Requests sent before the session ended arrive after it.
            3 | 4 => {
                let farm = self.any_farm();
                self.at(at, Fault::Stall(Duration::from_secs(3)));
                let soon = self.soon(at);
                self.at(soon, Fault::KillSession(farm));
            }
            _ => self.at(at, Fault::WakeAll),
        }
    }

    pub(super) fn job_nodes(&mut self, at: Duration) {
        let machine = self.rng.below(self.nodes);
        match self.rng.below(5) {
            0 | 1 => {
                self.while_(at, 1, 30, NodeAction::AgentDown(machine), NodeAction::AgentUp(machine))
            }
            2 | 3 => {
                self.while_(at, 2, 30, NodeAction::Crash(machine), NodeAction::AgentUp(machine))
            }
            _ => self.while_(
                at,
                2,
                20,
                NodeAction::Drain(machine, true),
                NodeAction::Drain(machine, false),
            ),
        }
    }

    fn job_users(&mut self, at: Duration, jobs: usize) {
        let job = self.rng.below(jobs);
        match self.rng.below(14) {
            0..=4 => {
                let action = *self.rng.pick(&ACTIONS);
                self.at(at, JobAction::Command(job, action));
                // A user reverts a command, or repeats it.
                if self.rng.permille(400) {
                    let (soon, action) = (self.soon(at), *self.rng.pick(&ACTIONS));
                    self.at(soon, JobAction::Command(job, action));
                }
            }
            5 | 6 => self.while_(
                at,
                1,
                15,
                JobAction::Suspend(job, true),
                JobAction::Suspend(job, false),
            ),
            7 => {
                let count = 1 + self.rng.below(4);
                self.at(at, JobAction::Scale(job, count));
            }
            8 => self.while_(at, 0, 6, JobAction::Delete(job), JobAction::Submit(job)),
            9 => self.while_(at, 0, 6, JobAction::Drop(job), JobAction::Submit(job)),
            10 | 11 => {
                let how = self.rng.below(3);
                self.while_(at, 1, 15, JobAction::Malform(job, how), JobAction::Mend(job));
            }
            12 => self.at(at, JobAction::DropIntent(job)),
            _ => self.at(at, JobAction::Litter),
        }
    }

    fn job_queues(&mut self, at: Duration) {
        let queue = self.rng.below(QUEUES.len());
        match self.rng.below(5) {
            0 | 1 => {
                let (begin, end) =
                    (JobAction::CommandQueue(queue, false), JobAction::CommandQueue(queue, true));
                self.while_(at, 1, 20, begin, end);
            }
            2 => self.while_(
                at,
                1,
                20,
                JobAction::Close(queue, true),
                JobAction::Close(queue, false),
            ),
            3 => {
                let limit = 1 + self.rng.below(6) as u64;
                self.while_(at, 1, 20, JobAction::Limit(queue, limit), JobAction::MendQueue(queue));
            }
            _ => {
                self.while_(at, 1, 15, JobAction::MalformQueue(queue), JobAction::MendQueue(queue))
            }
        }
    }
}
