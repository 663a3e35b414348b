//! The built-in scheduler: a node is eligible if the selector matches its labels, and is chosen if it has room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::capacity::{NodeCapacities, PodResources, ranked};
use super::{EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, WantedNodes};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::Labels;

/// Labels of all nodes at one index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeLabels {
    pub nodes: BTreeMap<NodeName, Labels>,
}

/// The built-in scheduler, on cached labels and capacities of nodes.
pub struct SelectorScheduler {
    /// Returns the same `Arc` while nothing changes.
    labels: Box<dyn Fn() -> Arc<NodeLabels> + Send + Sync>,
    capacities: Box<dyn Fn() -> NodeCapacities + Send + Sync>,
    cache: Mutex<Cache>,
}

/// Matching nodes by canonical selector, for one version of the labels. An unchanged set keeps its `Arc` across
/// versions, so that controllers can compare by pointer.
#[derive(Default)]
struct Cache {
    of: Arc<NodeLabels>,
    fresh: BTreeMap<String, EligibleNodes>,
    stale: BTreeMap<String, EligibleNodes>,
}

impl SelectorScheduler {
    /// A scheduler that reads labels and capacities with these functions. The labels are read at each call.
    pub fn new(
        labels: impl Fn() -> Arc<NodeLabels> + Send + Sync + 'static,
        capacities: impl Fn() -> NodeCapacities + Send + Sync + 'static,
    ) -> Self {
        let (labels, capacities) = (Box::new(labels), Box::new(capacities));
        SelectorScheduler { labels, capacities, cache: Mutex::default() }
    }

    fn matching(&self, request: ScheduleRequest<'_>) -> EligibleNodes {
        let labels = (self.labels)();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&cache.of, &labels) {
            cache.stale = std::mem::take(&mut cache.fresh);
            cache.of = labels.clone();
        }
        let name = request.selector.to_string();
        if let Some(nodes) = cache.fresh.get(&name) {
            return nodes.clone();
        }
        let matching = labels.nodes.iter().filter(|(_, labels)| request.selector.matches(labels));
        let set: BTreeSet<NodeName> = matching.map(|(node, _)| node.clone()).collect();
        let nodes = match cache.stale.remove(&name) {
            Some(old) if *old == set => old,
            _ => Arc::new(set),
        };
        cache.fresh.insert(name, nodes.clone());
        nodes
    }
}

#[async_trait]
impl Scheduler for SelectorScheduler {
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError> {
        Ok(self.matching(request))
    }

    /// Reserves nothing. Without requested resources and ports it takes the first matching free nodes by name; otherwise matching
    /// nodes with room, ranked by the packing. Equal input gives equal nodes.
    async fn allocate_nodes(
        &self,
        wanted: WantedNodes<'_>,
    ) -> Result<Vec<NodeName>, ScheduleError> {
        let WantedNodes { request, current, count, .. } = wanted;
        let nodes = self.matching(request);
        let want = PodResources::of_manifest(request.manifest);
        let free = nodes.difference(current);
        let free: Vec<NodeName> = if want.is_nothing() {
            free.take(count).cloned().collect()
        } else {
            let (capacities, owner) = ((self.capacities)(), AllocationOwner::Rc(request.rc));
            let sufficient = free.map(|node| (node, capacities.of(node))).filter(|(_, node)| {
                node.insufficient_for(request.manifest.id(), &owner, &want).is_none()
            });
            let salt = request.rc.to_string();
            ranked(want.amounts, request.packing, &salt, sufficient)
                .into_iter()
                .take(count)
                .cloned()
                .collect()
        };
        if free.len() < count {
            let found = free.len();
            let selector = request.selector;
            let room = match want.is_nothing() {
                true => String::new(),
                false => format!(" and have room for {want}"),
            };
            return Err(ScheduleError::Exhausted(format!(
                "{found} of {count} free nodes match {selector}{room}"
            )));
        }
        Ok(free)
    }

    fn gives_only_eligible(&self) -> bool {
        true
    }

    fn goes_by_labels(&self) -> bool {
        true
    }
}
