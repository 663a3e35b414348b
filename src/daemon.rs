//! The farm's table of kinds: what it is put together from. A new kind of record is one line here.

use std::sync::Arc;

use crate::batch::OrderingKind;
use crate::batch::caches::SchedulerCaches;
use crate::cluster::ClusterView;
use crate::cluster::commands::Commands;
use crate::farm::kind::{ControllerContext, Kind};
use crate::farm::{Farm, FarmSettings};
use crate::job::JobKind;
use crate::job::caches::JobCaches;
use crate::placement::{Discovery, Scheduler, SelectorScheduler};
use crate::replication::caches::RcCaches;
use crate::replication::{PlacementSources, RcKind};
use rcfarm_api::key;
use rcfarm_store::Env;
use rcfarm_store::Writer;
use rcfarm_store::cache::Cache;
use rcfarm_store::watch::PollPolicy;

/// Makes a scheduler over the world that the farm watches.
pub type MakeScheduler = Box<dyn FnOnce(&Arc<ClusterView>) -> Arc<dyn Scheduler> + Send>;

/// The built-in scheduler: by labels, and by room.
#[must_use]
pub fn by_labels() -> MakeScheduler {
    Box::new(|view| Arc::new(SelectorScheduler::new(view.clone())))
}

impl Farm {
    /// A farm of all kinds.
    #[must_use]
    pub fn of_all_kinds(
        settings: FarmSettings,
        env: Env,
        scheduler: MakeScheduler,
        discovery: Arc<dyn Discovery>,
    ) -> Farm {
        let ctx = ControllerContext {
            farm: settings.name.clone(),
            reader: env.store.clone(),
            writer: Writer::new(env.store.clone()),
            clock: env.clock.clone(),
            ids: env.ids.clone(),
            limits: settings.limits,
        };
        let view = ClusterView::new(env.store.clone(), settings.node_grace);
        let placement = PlacementSources { scheduler: scheduler(&view), discovery };
        let rcs = RcCaches::new(env.store.clone(), view.clone());
        let commands =
            Cache::<Commands>::new(env.store.clone(), key::commands(), PollPolicy::PROMPT);
        let scheduler_caches =
            SchedulerCaches::new(env.store.clone(), view.clone(), commands.clone());
        let jobs = JobCaches::new(env.store.clone(), view, commands);
        // Jobs are many and small.
        let together = Writer::together(env.store.clone(), settings.limits);
        let kinds: Vec<Arc<dyn Kind>> = vec![
            Arc::new(RcKind::new(ctx.clone(), rcs, placement)),
            Arc::new(OrderingKind::new(ctx.clone(), scheduler_caches)),
            Arc::new(JobKind::new(ControllerContext { writer: together, ..ctx }, jobs)),
        ];
        Farm::new(settings, env, kinds)
    }
}
