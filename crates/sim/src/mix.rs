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
    /// Both in every world.
    Mixed,
}

/// Of a thousand worlds of the first two scenarios, this many have both kinds of work.
const BOTH: u32 = 150;

/// The kinds of work of one world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// There are replication controllers.
    pub services: bool,
    /// There are jobs, queues and commands.
    pub jobs: bool,
}

impl Mix {
    /// The mix of a seed. It is drawn from a stream of its own, so that it changes nothing else.
    #[must_use]
    pub fn of(scenario: Scenario, seed: u64) -> Mix {
        let both = scenario == Scenario::Mixed || SimRng::new(seed ^ 0x006d_6978).permille(BOTH);
        Mix {
            services: both || scenario == Scenario::Services,
            jobs: both || scenario == Scenario::Batch,
        }
    }

    /// Both compete for the same nodes.
    #[must_use]
    pub fn is_both(self) -> bool {
        self.services && self.jobs
    }
}
