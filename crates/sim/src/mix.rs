//! Kinds of work of a world.

use serde::{Deserialize, Serialize};

use crate::rng::SimRng;

/// Main kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scenario {
    /// Replication controllers, sometimes with jobs.
    #[default]
    Services,
    /// Jobs, gangs, queues and commands, sometimes with replication controllers.
    Batch,
    /// Both in every world, sometimes with CronJobs and JobFlows.
    Mixed,
    /// CronJobs and JobFlows beside jobs, sometimes with replication controllers.
    Flows,
    /// Jobs that ask for cells, beside others.
    Cells,
}

/// Of a thousand worlds that are not mixed, this many have both kinds of work.
const BOTH: u32 = 150;
/// Of a thousand mixed worlds, this many have CronJobs and JobFlows.
const FLOWS: u32 = 200;

/// The kinds of work of one world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// There are replication controllers.
    pub services: bool,
    /// There are jobs, queues and commands.
    pub jobs: bool,
    /// There are CronJobs and JobFlows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flows: bool,
    /// There are cells, and jobs that ask for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cells: bool,
}

impl Mix {
    /// The mix of a seed. It is drawn from a stream of its own, so that it changes nothing else.
    #[must_use]
    pub fn of(scenario: Scenario, seed: u64) -> Mix {
        if scenario == Scenario::Cells {
            return Mix { services: false, jobs: true, flows: false, cells: true };
        }
        let both = scenario == Scenario::Mixed || SimRng::new(seed ^ 0x006d_6978).permille(BOTH);
        let is_flows = scenario == Scenario::Flows;
        let sometimes = || SimRng::new(seed ^ 0x666c_6f77).permille(FLOWS);
        Mix {
            services: both || scenario == Scenario::Services,
            jobs: both || is_flows || scenario == Scenario::Batch,
            flows: is_flows || scenario == Scenario::Mixed && sometimes(),
            cells: false,
        }
    }

    /// Both compete for the same nodes.
    #[must_use]
    pub fn is_both(self) -> bool {
        self.services && self.jobs
    }
}
