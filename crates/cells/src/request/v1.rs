//! V1: an affinity group with members that differ by their number of devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BadRequest, GroupRequest, Members, PodRequest, check_priority, count, some};
use crate::config::{or_default, text_or_number};
use rcfarm_api::cells::GroupKey;

/// HiveD's annotation, version 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSchedulingSpec {
    #[serde(default, deserialize_with = "text_or_number")]
    pub virtual_cluster: String,
    /// −1 is opportunistic, 0 to 1000 guaranteed.
    #[serde(default)]
    pub priority: i64,
    /// The pinned cell to be in.
    #[serde(default, deserialize_with = "text_or_number")]
    pub pinned_cell_id: String,
    /// Type of the devices; empty for any.
    #[serde(default, deserialize_with = "text_or_number")]
    pub leaf_cell_type: String,
    /// Devices of this pod.
    #[serde(default)]
    pub leaf_cell_number: i64,
    /// Accepted, without effect.
    #[serde(default)]
    pub gang_release_enable: bool,
    /// Whether a preemptor of the virtual cluster lets the group run on as opportunistic.
    #[serde(default)]
    pub lazy_preemption_enable: bool,
    /// Whether other nodes than the suggested ones may be used.
    #[serde(default = "yes", rename = "ignoreK8sSuggestedNodes")]
    pub ignore_k8s_suggested_nodes: bool,
    /// The gang; none for a pod of its own.
    #[serde(default)]
    pub affinity_group: Option<AffinityGroupSpec>,
}

/// A gang.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityGroupSpec {
    #[serde(default, deserialize_with = "text_or_number")]
    pub name: String,
    /// Its pods.
    #[serde(default, deserialize_with = "or_default")]
    pub members: Vec<AffinityGroupMemberSpec>,
}

/// Pods of a gang.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityGroupMemberSpec {
    /// Number of such pods; those of entries with equal devices are added up.
    #[serde(default)]
    pub pod_number: i64,
    /// Devices of each.
    #[serde(default)]
    pub leaf_cell_number: i64,
}

fn yes() -> bool {
    true
}

/// The annotation with today's names in place of the old ones, as the reference replaces them.
pub(super) fn with_new_names(text: &str) -> String {
    text.replace("gpuType", "leafCellType")
        .replace("gpuNumber", "leafCellNumber")
        .replace("gpuIsolation", "leafCellIsolation")
        .replace("physicalGpuIndices", "physicalLeafCellIndices")
}

impl PodSchedulingSpec {
    /// The request of the pod `namespace/name`.
    ///
    /// # Errors
    ///
    /// The reference's checks, in its order and with its texts.
    pub fn request(&self, namespace: &str, name: &str) -> Result<PodRequest, BadRequest> {
        let priority = check_priority(&self.virtual_cluster, self.priority)?;
        if self.leaf_cell_number <= 0 {
            return Err(BadRequest::annotation("LeafCellNumber is non-positive"));
        }
        let own = count(self.leaf_cell_number, "LeafCellNumber")?;
        let alone = AffinityGroupSpec {
            name: format!("{namespace}/{name}"),
            members: vec![AffinityGroupMemberSpec {
                pod_number: 1,
                leaf_cell_number: self.leaf_cell_number,
            }],
        };
        let group = self.affinity_group.as_ref().unwrap_or(&alone);
        if group.name.is_empty() {
            return Err(BadRequest::annotation("AffinityGroup.Name is empty"));
        }
        let mut pods: BTreeMap<u32, i64> = BTreeMap::new();
        for member in &group.members {
            let problem = "AffinityGroup.Members has non-positive";
            if member.pod_number <= 0 {
                return Err(BadRequest::annotation(format!("{problem} PodNumber")));
            }
            if member.leaf_cell_number <= 0 {
                return Err(BadRequest::annotation(format!("{problem} LeafCellNumber")));
            }
            let of = pods.entry(count(member.leaf_cell_number, "LeafCellNumber")?).or_default();
            *of = of.saturating_add(member.pod_number);
        }
        let Some(member) = pods.keys().position(|&cells| cells == own) else {
            return Err(BadRequest::annotation(
                "AffinityGroup.Members does not contains current Pod",
            ));
        };
        let total = pods.values().fold(0i64, |sum, &pods| sum.saturating_add(pods));
        count(total, "AffinityGroup.Members: PodNumber")?;
        let members = pods
            .iter()
            .map(|(&cells, &pods)| Members { pods: pods as u32, cells, cell_type: None })
            .collect();
        let group = GroupRequest {
            key: GroupKey::new(self.virtual_cluster.clone(), group.name.clone()),
            priority,
            pinned_cell_id: some(self.pinned_cell_id.clone()),
            cell_type: some(self.leaf_cell_type.clone()),
            gang_release_enable: self.gang_release_enable,
            lazy_preemption_enable: self.lazy_preemption_enable,
            ignore_suggested_nodes: self.ignore_k8s_suggested_nodes,
            members,
            nested: None,
        };
        Ok(PodRequest { group, member })
    }
}
