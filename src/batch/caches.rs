//! Caches for all scheduler records of a farm; nodes and commands are shared with other kinds.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::ClusterView;
use crate::cluster::cells::CellConfigIndex;
use crate::cluster::commands::Commands;
use crate::cluster::priority_classes::PriorityClassIndex;
use crate::cluster::queues::{GroupIndex, QueueIndex};
use crate::placement::NodeLabels;
use crate::placement::capacity::Fleet;
use rcfarm_api::key;
use rcfarm_api::labels::Selector;
use rcfarm_store::cache::Cache;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Reader, StoreError};

/// Caches of queues, PodGroups and nodes that all schedulers of a farm share.
pub struct SchedulerCaches {
    pub(super) reader: Arc<dyn Reader>,
    /// Cache of `rcfarm/queues/`.
    pub queues: Arc<Cache<QueueIndex>>,
    /// Cache of `rcfarm/priority_classes/`. Read it through [`crate::cluster::priority_classes::KeptClasses`].
    pub classes: Arc<Cache<PriorityClassIndex>>,
    /// Cache of `rcfarm/cells/`. It is read when the statuses are, and watched once a group asks for cells.
    pub cells: Arc<Cache<CellConfigIndex>>,
    /// Cancelled once a group asks for cells.
    pub cells_asked: CancellationToken,
    /// Cache of `rcfarm/pod_groups/`.
    pub groups: Arc<Cache<GroupIndex>>,
    /// Cache of `rcfarm/commands/`, shared with jobs.
    pub commands: Arc<Cache<Commands>>,
    /// Nodes, their labels and allocations.
    pub view: Arc<ClusterView>,
}

impl SchedulerCaches {
    /// Creates the caches of queues and groups without reading.
    #[must_use]
    pub fn new(
        reader: Arc<dyn Reader>,
        view: Arc<ClusterView>,
        commands: Arc<Cache<Commands>>,
    ) -> Arc<Self> {
        Arc::new(SchedulerCaches {
            queues: Cache::guarded(reader.clone(), key::queues(), PollPolicy::PROMPT),
            classes: Cache::guarded(reader.clone(), key::priority_classes(), PollPolicy::PROMPT),
            cells_asked: CancellationToken::new(),
            cells: Cache::new(reader.clone(), key::cells(), PollPolicy::PROMPT),
            // Not guarded against mass deletion: groups end with their jobs. A transaction that forgets one checks its
            // record.
            groups: Cache::new(reader.clone(), key::pod_groups(), PollPolicy::BULK),
            commands,
            reader,
            view,
        })
    }

    /// Reads queues, priority classes, groups and allocations up to the present index.
    pub(super) async fn catch_up(&self) -> Result<(), StoreError> {
        let queues = async { self.queues.read_now().await.map(drop) };
        let groups = async { self.groups.read_now().await.map(drop) };
        let classes = async { self.classes.read_now().await.map(drop) };
        let allocations = async { self.view.ledger.tree.read_now().await.map(drop) };
        let cells = async { self.cells.read_now().await.map(drop) };
        futures_util::future::try_join5(queues, classes, groups, allocations, cells).await.map(drop)
    }

    /// Nodes that match a selector.
    pub(super) fn fleet(&self, selector: &Selector) -> Fleet {
        let fleet = self.view.fleet();
        if selector.is_everything() {
            return fleet;
        }
        let nodes = fleet.labels.nodes.iter().filter(|(_, labels)| selector.matches(labels));
        let nodes = nodes.map(|(node, labels)| (node.clone(), labels.clone())).collect();
        Fleet { labels: Arc::new(NodeLabels { nodes }), ..fleet }
    }
}
