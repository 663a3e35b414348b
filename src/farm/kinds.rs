//! The farm's table of kinds: what it is put together from. A new kind of record is one line here.

use std::sync::Arc;

use super::kind::{Kind, Site};
use super::tree::Tree;
use super::{Farm, FarmSettings, Ground};
use crate::command::Commands;
use crate::job::JobKind;
use crate::job::world::JobWorld;
use crate::ordering::OrderingKind;
use crate::ordering::world::Floor;
use crate::rc::world::World;
use crate::rc::{Placement, RcKind};
use crate::schedule::{Discovery, Scheduler, SelectorScheduler};
use crate::store::watch::Pace;
use crate::store::{Writer, key};

/// Makes a scheduler over the world that the farm watches.
pub type MakeScheduler = Box<dyn FnOnce(&Arc<World>) -> Arc<dyn Scheduler> + Send>;

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
        ground: Ground,
        scheduler: MakeScheduler,
        discovery: Arc<dyn Discovery>,
    ) -> Farm {
        let site = Site {
            farm: settings.name.clone(),
            reader: ground.store.clone(),
            writer: Writer::new(ground.store.clone()),
            clock: ground.clock.clone(),
            ids: ground.ids.clone(),
            limits: settings.limits,
        };
        let world = World::new(ground.store.clone(), settings.node_grace);
        let placement = Placement { scheduler: scheduler(&world), discovery };
        let commands = Tree::<Commands>::new(ground.store.clone(), key::commands(), Pace::PROMPT);
        let floor = Floor::new(ground.store.clone(), world.clone(), commands.clone());
        let jobs = JobWorld::new(ground.store.clone(), world.clone(), commands);
        // Jobs are many and small.
        let together = Writer::together(ground.store.clone(), settings.limits);
        let kinds: Vec<Arc<dyn Kind>> = vec![
            Arc::new(RcKind::new(site.clone(), world, placement)),
            Arc::new(OrderingKind::new(site.clone(), floor)),
            Arc::new(JobKind::new(Site { writer: together, ..site }, jobs)),
        ];
        Farm::new(settings, ground, kinds)
    }
}
