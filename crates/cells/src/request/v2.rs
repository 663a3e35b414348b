//! V2: nested groups, each of which can be bound to one cell of a type.

use serde::{Deserialize, Serialize};

use super::{
    BadRequest, GroupRequest, Members, NestedGroup, PodRequest, check_priority, count, some,
};
use crate::config::{or_default, text_or_number};
use rcfarm_api::cells::GroupKey;

/// Most levels of nested groups.
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct VersionOnly {
    #[serde(default, deserialize_with = "text_or_number")]
    pub version: String,
}

/// HiveD's annotation, version 2.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSchedulingSpec {
    /// `v2`.
    #[serde(default, deserialize_with = "text_or_number")]
    pub version: String,
    /// The virtual cluster.
    #[serde(default, deserialize_with = "text_or_number")]
    pub virtual_cluster: String,
    /// −1 is opportunistic, 0 to 1000 guaranteed.
    #[serde(default)]
    pub priority: i64,
    /// The pinned cell to be in.
    #[serde(default, deserialize_with = "text_or_number")]
    pub pinned_cell_id: String,
    /// Type of this pod's cells, up to the node level; empty for any device.
    #[serde(default, deserialize_with = "text_or_number")]
    pub cell_type: String,
    /// Cells of this pod.
    #[serde(default)]
    pub cell_number: i64,
    /// Accepted, without effect.
    #[serde(default)]
    pub gang_release_enable: bool,
    /// Whether a preemptor of the virtual cluster lets the group run on as opportunistic.
    #[serde(default)]
    pub lazy_preemption_enable: bool,
    /// The gang; none for a pod of its own.
    #[serde(default)]
    pub pod_root_group: Option<PodRootGroupSpec>,
}

/// A group of pods and groups: the reference's `PodGroupSpec`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRootGroupSpec {
    /// Its name; that of the root names the gang.
    #[serde(default, deserialize_with = "text_or_number")]
    pub name: String,
    /// Type of the cell that contains all of it.
    #[serde(default, deserialize_with = "text_or_number")]
    pub within_one_cell: String,
    /// Its own pods.
    #[serde(default)]
    pub pod: Option<PodGroupMemberSpec>,
    /// Groups below it.
    #[serde(default, deserialize_with = "or_default")]
    pub child_groups: Vec<PodRootGroupSpec>,
    /// Refused: the reference's internal list.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodGroupMemberSpec>,
}

/// Pods with equal requests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupMemberSpec {
    /// Pods that start together.
    #[serde(default)]
    pub pod_min_number: i64,
    /// All pods; must equal the minimum.
    #[serde(default)]
    pub pod_max_number: i64,
    /// What each pod gets.
    #[serde(default)]
    pub cells_per_pod: PodGroupMemberCellSpec,
    /// Whether the annotated pod is one of them.
    #[serde(default)]
    pub contains_current_pod: bool,
}

/// Cells of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupMemberCellSpec {
    /// Their type, up to the node level; empty for devices.
    #[serde(default, deserialize_with = "text_or_number")]
    pub cell_type: String,
    /// Their number.
    #[serde(default)]
    pub cell_number: i64,
}

impl PodGroupSchedulingSpec {
    /// The request of the pod `namespace/name`.
    ///
    /// # Errors
    ///
    /// The reference's checks, in its order and with its texts; besides, `podMinNumber` must equal `podMaxNumber`.
    pub fn request(&self, namespace: &str, name: &str) -> Result<PodRequest, BadRequest> {
        let priority = check_priority(&self.virtual_cluster, self.priority)?;
        if self.cell_number <= 0 {
            return Err(BadRequest::annotation("CellNumber is non-positive"));
        }
        let alone = PodRootGroupSpec {
            name: format!("{namespace}/{name}"),
            pod: Some(PodGroupMemberSpec {
                pod_min_number: 1,
                pod_max_number: 1,
                cells_per_pod: PodGroupMemberCellSpec {
                    cell_type: self.cell_type.clone(),
                    cell_number: self.cell_number,
                },
                contains_current_pod: true,
            }),
            ..PodRootGroupSpec::default()
        };
        let root = self.pod_root_group.as_ref().unwrap_or(&alone);
        if root.name.is_empty() {
            return Err(BadRequest::annotation("PodRootGroup.Name is empty"));
        }
        let mut flat = Flat { members: Vec::new(), current: None, total: 0 };
        let nested = flat.group(root, 1)?;
        let Some(member) = flat.current else {
            return Err(BadRequest::annotation("PodGroup.Pod does not contain current Pod"));
        };
        count(flat.total, "PodGroup.Pod: PodMinNumber")?;
        // The type of the current pod's cells is that of its member. Pods of other members have other ones.
        let typed = flat.members.iter().all(|member| member.cell_type.is_some());
        let cell_type = some(self.cell_type.clone()).filter(|_| !typed);
        let group = GroupRequest {
            key: GroupKey::new(self.virtual_cluster.clone(), root.name.clone()),
            priority,
            pinned_cell_id: some(self.pinned_cell_id.clone()),
            cell_type,
            gang_release_enable: self.gang_release_enable,
            lazy_preemption_enable: self.lazy_preemption_enable,
            ignore_suggested_nodes: true,
            members: flat.members,
            nested: Some(nested),
        };
        Ok(PodRequest { group, member })
    }
}

struct Flat {
    members: Vec<Members>,
    current: Option<usize>,
    total: i64,
}

impl Flat {
    fn group(&mut self, spec: &PodRootGroupSpec, depth: usize) -> Result<NestedGroup, BadRequest> {
        if depth > MAX_DEPTH {
            let problem = format!("PodGroup has more than {MAX_DEPTH} levels of ChildGroups");
            return Err(BadRequest::annotation(problem));
        }
        if !spec.pods.is_empty() {
            return Err(BadRequest::annotation(
                "Do not support PodGroup.Pods field, please specify PodGroup.Pod",
            ));
        }
        let member = match &spec.pod {
            Some(pod) => Some(self.member(pod)?),
            None => None,
        };
        let children: Result<Vec<_>, _> =
            spec.child_groups.iter().map(|child| self.group(child, depth + 1)).collect();
        Ok(NestedGroup {
            within_one_cell: some(spec.within_one_cell.clone()),
            member,
            children: children?,
        })
    }

    fn member(&mut self, pod: &PodGroupMemberSpec) -> Result<usize, BadRequest> {
        let positive = |number: i64, what: &str| {
            let problem = format!("PodGroup.Pod have non-positive {what}");
            if number > 0 { count(number, what) } else { Err(BadRequest::annotation(problem)) }
        };
        let pods = positive(pod.pod_min_number, "PodMinNumber")?;
        positive(pod.pod_max_number, "PodMaxNumber")?;
        let cells = positive(pod.cells_per_pod.cell_number, "CellsPerPod.CellNumber")?;
        if pod.pod_max_number != pod.pod_min_number {
            return Err(BadRequest::annotation(
                "PodGroup.Pod have PodMaxNumber other than PodMinNumber, which is not supported",
            ));
        }
        let at = self.members.len();
        if pod.contains_current_pod && self.current.replace(at).is_some() {
            return Err(BadRequest::annotation("PodGroup.Pod have multiple ContainsCurrentPod"));
        }
        self.total = self.total.saturating_add(pod.pod_min_number);
        let cell_type = some(pod.cells_per_pod.cell_type.clone());
        self.members.push(Members { pods, cells, cell_type });
        Ok(at)
    }
}
