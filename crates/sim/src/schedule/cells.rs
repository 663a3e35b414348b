//! Actions on jobs that ask for cells, on nodes and on the configuration.

use std::time::Duration;

use super::action::JobAction;
use super::builder::ScheduleBuilder;
use crate::fleet::CELL_JOBS;
use crate::workload::cells::CONFIGS;
use rcfarm_api::key;
use rcfarm_store::Prefix;

/// Plain jobs beside those that ask for cells.
const PLAIN: [&str; 4] = ["one", "gang", "pods", "wide"];

/// Prefixes that may be hidden from a farm.
pub fn hideable() -> Vec<Prefix> {
    vec![key::cells(), key::allocations()]
}

impl ScheduleBuilder {
    /// Adds actions on jobs that ask for cells. Returns the jobs, each by kind and number.
    pub fn cells(&mut self) -> Vec<(String, usize)> {
        let count = 4 + self.rng.below(4);
        let mut jobs = Vec::new();
        for n in 0..count {
            let kinds: &[&str] = match n {
                0 | 1 => &CELL_JOBS[..2],
                _ if self.rng.permille(150) => &PLAIN,
                _ => &CELL_JOBS,
            };
            let kind = *self.rng.pick(kinds);
            let (least, most) = if n < 2 { (1, 5) } else { (4, 40) };
            let at = self.rng.between(Duration::from_secs(least), Duration::from_secs(most));
            self.at(at, JobAction::Submit(n));
            jobs.push((kind.to_owned(), n + 12 * self.rng.below(2)));
        }
        for _ in 0..5 + self.rng.below(9) {
            let at = self.moment();
            match self.rng.below(8) {
                0 | 1 => self.job_nodes(at),
                2 => {
                    let config = 1 + self.rng.below(CONFIGS - 1);
                    self.while_(at, 1, 20, JobAction::Configure(config), JobAction::Configure(0));
                }
                3 => self.process(at),
                _ => self.job_scene(count),
            }
        }
        jobs
    }
}
