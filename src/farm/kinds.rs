//! The farm's table of kinds: what it is put together from. A new kind of record is one line here.

use std::sync::Arc;

use super::cache::Cache;
use super::kind::{ControllerContext, Kind};
use super::{Env, Farm, FarmSettings};
use crate::command::Commands;
use crate::job::JobKind;
use crate::job::caches::JobCaches;
use crate::ordering::OrderingKind;
use crate::ordering::caches::SchedulerCaches;
use crate::rc::cluster_view::ClusterView;
use crate::rc::{PlacementSources, RcKind};
use crate::schedule::{Discovery, Scheduler, SelectorScheduler};
use crate::store::watch::PollPolicy;
use crate::store::{Writer, key};

/// Makes a scheduler over the world that the farm watches.
pub type MakeScheduler = Box<dyn FnOnce(&Arc<ClusterView>) -> Arc<dyn Scheduler> + Send>;

/// The built-in scheduler: by labels, and by room.
#[must_use]
pub fn by_labels() -> MakeScheduler {
    Box::new(|world| Arc::new(SelectorScheduler::new(world.clone())))
}

impl Farm {
    /// A farm of all kinds.
    #[must_use]
    pub fn of_all_kinds(
        settings: FarmSettings,
        ground: Env,
        scheduler: MakeScheduler,
        discovery: Arc<dyn Discovery>,
    ) -> Farm {
        let site = ControllerContext {
            farm: settings.name.clone(),
            reader: ground.store.clone(),
            writer: Writer::new(ground.store.clone()),
            clock: ground.clock.clone(),
            ids: ground.ids.clone(),
            limits: settings.limits,
        };
        let world = ClusterView::new(ground.store.clone(), settings.node_grace);
        let placement = PlacementSources { scheduler: scheduler(&world), discovery };
        let commands =
            Cache::<Commands>::new(ground.store.clone(), key::commands(), PollPolicy::PROMPT);
        let floor = SchedulerCaches::new(ground.store.clone(), world.clone(), commands.clone());
        let jobs = JobCaches::new(ground.store.clone(), world.clone(), commands);
        // Jobs are many and small.
        let together = Writer::together(ground.store.clone(), settings.limits);
        let kinds: Vec<Arc<dyn Kind>> = vec![
            Arc::new(RcKind::new(site.clone(), world, placement)),
            Arc::new(OrderingKind::new(site.clone(), floor)),
            Arc::new(JobKind::new(ControllerContext { writer: together, ..site }, jobs)),
        ];
        Farm::new(settings, ground, kinds)
    }
}
