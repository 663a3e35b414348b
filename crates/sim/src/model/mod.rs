//! The decoded store for the checks, with the past values of what transactions do not guard.
//!
//! | file | is |
//! |---|---|
//! | `agents.rs` | pods of nodes that the real agent runs |
//! | `services.rs` | replication controllers, their pods, nodes |
//! | `jobs.rs` | jobs, pod groups, queues, commands, the pods of jobs |
//! | `flows.rs` | CronJobs, JobFlows, templates, and the jobs that they make |
//! | `cells.rs` | the configuration of cells; since when groups hold some |
//! | `history.rs`, `notes.rs` | what happened to jobs and no key shows any more; how it is noted |
//! | `write.rs` | one applied write |

mod agents;
mod cells;
mod flows;
mod history;
mod jobs;
pub mod notes;
mod services;
mod write;

use std::time::Duration;

pub use agents::{AgentModel, IntendedPod, NodeEvent};
pub use cells::{Leaf, leaves};
pub use flows::{FlowEvent, FlowModel, MadeJob};
pub use history::Try;
pub use jobs::{JobModel, ModelEvent, ModelJob, Pair, is_members};
pub use services::{Item, ReportedStatus, ServiceModel, ServicePod, Unfit, was_allocated};
pub use write::AppliedWrite;

use crate::facts::SimActor;
use crate::mix::Mix;
use rcfarm_emulator::{KvChange, KvOp, Tables};

/// The decoded store. Parts without work in the mix stay empty.
pub struct SimModel {
    mix: Mix,
    /// Replication controllers.
    pub services: ServiceModel,
    /// Jobs and queues.
    pub jobs: JobModel,
    /// CronJobs and JobFlows.
    pub flows: FlowModel,
    /// Pods of nodes that the real agent runs.
    pub agents: AgentModel,
}

impl SimModel {
    /// An empty store.
    #[must_use]
    pub fn new(mix: Mix) -> SimModel {
        let (services, jobs) = (ServiceModel::default(), JobModel::default());
        let (flows, agents) = (FlowModel::default(), AgentModel::default());
        SimModel { mix, services, jobs, flows, agents }
    }

    /// Kinds of work in the world.
    #[must_use]
    pub fn mix(&self) -> Mix {
        self.mix
    }

    /// Applies a write.
    pub fn apply<'a>(
        &mut self,
        (at, actor): (Duration, SimActor),
        ops: &[KvOp],
        changes: &'a [KvChange],
    ) -> AppliedWrite<'a> {
        let (services, jobs) = (&mut self.services, &mut self.jobs);
        let record = write::record_of(ops).filter(|_| self.mix.services);
        let record = record.map(|rc| (rc, services.statuses.get(&rc).cloned().unwrap_or_default()));
        let of_jobs = if self.mix.jobs { changes } else { &[] };
        let events: Vec<_> = of_jobs.iter().map(|change| jobs.apply(at, change)).collect();
        let by_user = actor == SimActor::User;
        let of_flows = if self.mix.flows { changes } else { &[] };
        let of_flows =
            of_flows.iter().filter_map(|change| self.flows.apply(by_user, change)).collect();
        let of_services = if self.mix.services { changes } else { &[] };
        let item = |(n, change): (usize, &'a KvChange)| {
            let item = services.apply(at, change);
            // Pods of jobs concern only the jobs.
            let of_job = events.get(n).is_some_and(ModelEvent::is_of_job);
            (if of_job { Item::Other } else { item }, change)
        };
        let of_nodes = changes.iter().filter_map(|change| self.agents.apply(at, change)).collect();
        let changes = of_services.iter().enumerate().map(item).collect();
        AppliedWrite { at, actor, changes, record, events, of_flows, of_nodes }
    }

    /// Replaces the model by a restored state.
    pub fn reload(&mut self, at: Duration, tables: &Tables) {
        if self.mix.services {
            self.services.reload(at, tables);
        }
        if self.mix.jobs {
            self.jobs.reload(at, tables);
        }
        if self.mix.flows {
            self.flows.reload(at, tables);
        }
        self.agents.reload(at, tables);
    }
}
