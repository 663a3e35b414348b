//! Sizes of changes in bytes: what one transaction holds, and groups whose changes are larger.

use super::{Bounds, Pass};
use crate::batch::placing::{GroupMember, VersionedStatus, nodes_of, record_bytes};
use crate::cluster::queues::StoredGroup;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{GroupPlacement, PodGroupStatus};
use rcfarm_api::{FieldError, Stored};

impl Pass<'_, '_> {
    /// Why a placement cannot be stored.
    pub(super) fn too_large(&self, place: &GroupPlacement) -> Option<String> {
        let most = self.seen.bounds.bytes;
        if place.plain_bytes() <= most {
            return None;
        }
        let status = PodGroupStatus { placement: Some(place.clone()), ..PodGroupStatus::default() };
        let bytes = status.encode().len();
        (bytes > most).then(|| {
            let members: u32 = place.counts().values().sum();
            format!(
                "spec.tasks: the nodes of {members} members take {bytes} bytes, and a transaction holds {most}: lower \
                 replicas, or let more members share a node"
            )
        })
    }

    /// Whether a change of these members and of the group's status takes more than one transaction.
    pub(in crate::batch) fn is_large(
        &self,
        id: &GroupId,
        place: &GroupPlacement,
        members: &[GroupMember],
    ) -> bool {
        let Bounds { nodes, bytes, .. } = self.seen.bounds;
        // Several nodes, since one node's record is limited.
        let touched = nodes_of(members).len();
        touched > nodes
            || touched > 1
                && place.plain_bytes()
                    + record_bytes(self.memory.index.node_capacities(), id, members)
                    > bytes
    }

    pub(in crate::batch) fn is_set_aside(&self, id: &GroupId) -> bool {
        self.seen.set_aside.contains_key(id)
    }

    /// Limits of a change that also writes the status with this placement.
    pub(in crate::batch) fn bounds_beside(&self, place: &GroupPlacement) -> Bounds {
        let bounds = self.seen.bounds;
        let bytes = bounds.bytes.saturating_sub(place.plain_bytes().min(bounds.bytes / 8 * 7));
        Bounds { nodes: (bounds.nodes * bytes).div_ceil(bounds.bytes.max(1)), bytes, ..bounds }
    }

    /// Reports that the group is set aside.
    pub(in crate::batch) fn report_set_aside(
        &mut self,
        id: &GroupId,
        known: Option<&VersionedStatus>,
        group: Option<&StoredGroup>,
    ) {
        let aside = &self.seen.set_aside[id];
        if let (false, Some(group)) = (aside.is_silent, group) {
            let fix = "use fewer members, or members with less to store";
            let bad = FieldError::new("spec", aside.why.clone(), fix);
            self.report_invalid(id, known, group, &[bad]);
        }
    }
}
