//! Groups that hold cells on nodes that they have to leave. Pure.
//!
//! Members keep their cells for as long as the group is placed: none of them can move alone. So the whole group is
//! evicted from a node that is drained (`rcfarm node drain --jobs evict`) or down, stops in order, keeps its place in the
//! queue, and is placed anew. From a node whose drain waits for members of jobs it is evicted once one of its members
//! there has ended and has to start again: no member starts on such a node. A disruption budget that does not permit to
//! stop all members keeps the group where it is; a node that is down asks nobody.

use super::Pass;
use crate::batch::placing::VersionedStatus;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord};
use rcfarm_api::pod_group::status::Eviction;

impl Pass<'_, '_> {
    /// Groups that hold cells on a node that they have to leave, with the reason.
    pub(super) fn drained(&self) -> Vec<(GroupId, Eviction)> {
        if self.seen.down.is_empty() && self.seen.draining.is_empty() {
            return Vec::new();
        }
        let of = |(id, known): (&GroupId, &VersionedStatus)| {
            let eviction = self.why_drained(id, known)?;
            Some((id.clone(), eviction))
        };
        self.seen.statuses.iter().filter_map(of).collect()
    }

    /// Why a group that holds cells has to leave its nodes; the cause that it has been told already comes first.
    fn why_drained(&self, id: &GroupId, known: &VersionedStatus) -> Option<Eviction> {
        let place = known.value.placement.as_ref().filter(|place| place.cells.is_some())?;
        let group = self.seen.groups.get(id).filter(|group| group.created == known.value.of)?;
        let record = group.value.as_ref().ok();
        let told = known.value.eviction.as_ref().and_then(|eviction| eviction.drain.as_ref());
        let mut found: Option<Eviction> = None;
        for (task, index, node) in place.placed() {
            let Some(why) = self.why_leave(record, (task, index), node) else { continue };
            let is_told = told == Some(node);
            if found.is_none() || is_told {
                let (preemptor, drain) = (id.clone(), Some(node.clone()));
                found = Some(Eviction { preemptor, drain, why, since: self.seen.now, until: None });
            }
            if is_told || told.is_none() {
                break;
            }
        }
        found
    }

    /// Why a member has to leave its node.
    fn why_leave(
        &self,
        record: Option<&PodGroupRecord>,
        (task, index): (&str, u32),
        node: &NodeName,
    ) -> Option<String> {
        if self.seen.down.contains(node) {
            return Some(format!("node {node} is down"));
        }
        let moves = record.map(|record| &record.spec.moves);
        let has_to_start = || moves.and_then(|all| all.get(task)?.get(&index)) == Some(node);
        let is_permitted = || record.is_none_or(|record| record.forbids_stop().is_none());
        let leaves = match self.seen.draining.get(node)? {
            DrainJobs::Evict => is_permitted(),
            DrainJobs::Wait => has_to_start() && is_permitted(),
        };
        leaves.then(|| format!("node {node} is drained"))
    }
}
