//! Actions on CronJobs, JobFlows, templates and the jobs that they make.

use std::time::Duration;

use super::action::{Fault, OwnerAction};
use super::builder::ScheduleBuilder;
use crate::workload::flows::{FLOWS, TEMPLATES};
use crate::workload::schedules::CRONS;
use rcfarm_api::command::CommandAction;
use rcfarm_api::key;
use rcfarm_store::Prefix;

/// Prefixes that may be hidden from a farm.
pub fn hideable() -> Vec<Prefix> {
    vec![
        key::cron_jobs(),
        key::cron_job_locks(),
        key::cron_job_statuses(),
        key::job_flows(),
        key::job_flow_locks(),
        key::job_flow_statuses(),
        key::job_templates(),
    ]
}

/// CronJobs or JobFlows, each by its kind and its number.
type Records = Vec<(String, usize)>;

impl ScheduleBuilder {
    /// Adds actions on CronJobs and JobFlows. Returns them. With `restores`, a snapshot may be restored. A real agent would
    /// keep pods that the snapshot lacks, and a dead node would live on in it; jobs would wait for either.
    pub fn flows(&mut self, restores: bool) -> (Records, Records) {
        let mut records = |kinds: &[&str], most: usize| -> Records {
            let count = 1 + self.rng.below(most);
            (0..count).map(|n| ((*self.rng.pick(kinds)).to_owned(), n)).collect()
        };
        let (crons, flows) = (records(&CRONS, 3), records(&FLOWS, 3));
        for n in 0..crons.len() {
            let at = self.rng.between(Duration::from_secs(1), Duration::from_secs(40));
            self.at(at, OwnerAction::CreateCron(n));
        }
        for n in 0..flows.len() {
            let at = self.rng.between(Duration::from_secs(1), Duration::from_secs(70));
            self.at(at, OwnerAction::CreateFlow(n));
        }
        for _ in 0..4 + self.rng.below(8) {
            self.flow_scene(crons.len(), flows.len());
        }
        if self.rng.permille(200) && restores {
            let at = self.moment();
            self.while_(at, 1, 30, Fault::Snapshot, Fault::Restore);
        }
        (crons, flows)
    }

    /// Adds arrays, jobs that wait for them, and dispatches. Returns how many arrays there are.
    pub fn sweeps(&mut self) -> usize {
        use OwnerAction as A;
        let count = 1 + self.rng.below(2);
        for n in 0..count {
            let at = self.rng.between(Duration::from_secs(1), Duration::from_secs(60));
            self.at(at, A::SubmitArray(n));
            for waits in [false, true] {
                // Some come before the array.
                let at = self.rng.between(Duration::from_secs(1), Duration::from_secs(80));
                self.at(at, A::SubmitDependent(n, waits));
            }
        }
        for _ in 0..2 + self.rng.below(4) {
            let (at, template) = (self.moment(), self.rng.below(TEMPLATES.len()));
            let token = self.rng.below(2);
            self.at(at, A::Dispatch(template, token));
            let again = at + self.rng.between(Duration::ZERO, Duration::from_secs(20));
            self.at(again, A::Dispatch(template, token));
        }
        count
    }

    fn flow_scene(&mut self, crons: usize, flows: usize) {
        use OwnerAction as A;
        let at = self.moment();
        let (cron, flow, job) = (self.rng.below(crons), self.rng.below(flows), self.rng.below(64));
        match self.rng.below(13) {
            0 | 1 => self.process(at),
            2 => self.while_(at, 1, 30, A::SuspendCron(cron, true), A::SuspendCron(cron, false)),
            3 => self.while_(at, 1, 15, A::MalformCron(cron, true), A::MalformCron(cron, false)),
            4 => self.while_(at, 1, 15, A::MalformFlow(flow, true), A::MalformFlow(flow, false)),
            5 => self.while_(at, 0, 20, A::DeleteCron(cron), A::CreateCron(cron)),
            6 => self.while_(at, 0, 20, A::DropCron(cron), A::CreateCron(cron)),
            7 => self.while_(at, 0, 20, A::DeleteFlow(flow), A::CreateFlow(flow)),
            8 => self.while_(at, 0, 20, A::DropFlow(flow), A::CreateFlow(flow)),
            9 => {
                let template = self.rng.below(TEMPLATES.len());
                self.while_(at, 1, 30, A::Template(template, false), A::Template(template, true));
            }
            10 | 11 => {
                let action = *self.rng.pick(&CommandAction::OF_JOBS);
                self.at(at, A::CommandJob(job, action));
            }
            _ => {
                let by_hand = self.rng.permille(500);
                self.at(at, A::RemoveJob(job, by_hand));
            }
        }
    }
}
