//! Requests for cells and what groups hold of them, as they are stored: parts of the PodGroup's record and status. The
//! words are HiveD's (`docs/guide/cells.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{FieldError, Timestamp};

/// Highest priority of a group; −1 is opportunistic.
const HIGHEST_PRIORITY: i32 = 1000;
/// Most pods of a group, and most devices of a pod.
const MOST: u32 = 100_000;
/// Most entries of `members`.
const MOST_MEMBERS: usize = 1000;
/// Most levels of nested groups.
const DEEPEST: usize = 16;
/// Longest name of a virtual cluster or a group, in bytes.
const LONGEST_NAME: usize = 512;

/// Name of a group, within its virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupKey {
    /// The virtual cluster.
    pub virtual_cluster: String,
    /// The name.
    pub name: String,
}

/// Why a chain has no place for a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainReason {
    /// Name of the chain; of the pinned cell, if one is asked for; empty if there is none to try.
    pub chain: String,
    /// What the chain lacks, in HiveD's words where it has them. Never empty.
    pub reason: String,
}

impl fmt::Display for ChainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.chain {
            "" => f.write_str(&self.reason),
            chain => write!(f, "chain {chain}: {}", self.reason),
        }
    }
}

impl GroupKey {
    /// The group `name` of `virtual_cluster`.
    pub fn new(virtual_cluster: impl Into<String>, name: impl Into<String>) -> GroupKey {
        GroupKey { virtual_cluster: virtual_cluster.into(), name: name.into() }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.virtual_cluster, self.name)
    }
}

/// Pods of a group with equal requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    /// Number of pods.
    pub pods: u32,
    /// Cells per pod.
    pub cells: u32,
    /// Type of these cells; none means devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell_type: Option<String>,
}

/// A node of a nested group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NestedGroup {
    /// Type of the cell that contains the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_one_cell: Option<String>,
    /// Its own pods: an index into [`GroupRequest::members`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<usize>,
    /// Groups below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<NestedGroup>,
}

/// What a group asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRequest {
    /// Its name.
    pub key: GroupKey,
    /// −1 is opportunistic, 0 to 1000 guaranteed.
    pub priority: i32,
    /// The pinned cell in which it must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_cell_id: Option<String>,
    /// Type of a cell of the chain: the device's type in V1; in V2, unless all members name one, that of any level; none
    /// means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell_type: Option<String>,
    /// Whether the group gives up its cells when its pods have ended all at once only. Kept, without effect: cells of a
    /// group are always freed when its last pod has gone.
    #[serde(default)]
    pub gang_release_enable: bool,
    /// Whether a preemptor of its virtual cluster lets its pods run on as opportunistic.
    #[serde(default)]
    pub lazy_preemption_enable: bool,
    /// Whether nodes outside the suggested ones may be used.
    pub ignore_suggested_nodes: bool,
    /// Its pods, by request: ascending by devices in V1, in order of levels in V2.
    pub members: Vec<Members>,
    /// How they are nested; none in V1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<NestedGroup>,
}

impl GroupRequest {
    /// Number of pods.
    pub fn pod_count(&self) -> usize {
        self.members.iter().map(|members| members.pods as usize).sum()
    }

    fn check(&self, path: &str) -> Vec<FieldError> {
        let mut bad = Vec::new();
        let mut wrong = |field: &str, problem: &str, fix: &str| {
            bad.push(FieldError::new(format!("{path}.{field}"), problem, fix));
        };
        let names = [("virtualCluster", &self.key.virtual_cluster), ("name", &self.key.name)];
        for (field, name) in names {
            if name.is_empty() || name.len() > LONGEST_NAME {
                wrong(&format!("key.{field}"), "it is empty or too long", "name it");
            }
        }
        if !(-1..=HIGHEST_PRIORITY).contains(&self.priority) {
            wrong("priority", "it is out of range", "write -1, or 0 to 1000");
        }
        if self.members.is_empty() || self.members.len() > MOST_MEMBERS {
            wrong("members", "there are none, or more than 1,000", "say how many pods there are");
        }
        let all: u64 = self.members.iter().map(|of| u64::from(of.pods)).sum();
        let legal = |of: &Members| of.pods > 0 && (1..=MOST).contains(&of.cells);
        if all > u64::from(MOST) || !self.members.iter().all(legal) {
            wrong("members", "numbers are 0 or absurd", "correct pods and cells");
        }
        let mut level: Vec<&NestedGroup> = self.nested.iter().collect();
        let mut seen = BTreeSet::new();
        for _ in 0..DEEPEST {
            let own = level.iter().filter_map(|group| group.member);
            for member in own {
                if member >= self.members.len() || !seen.insert(member) {
                    wrong("nested", "a member is none, or is there twice", "correct member");
                }
            }
            level = level.into_iter().flat_map(|group| &group.children).collect();
        }
        if !level.is_empty() {
            wrong("nested", "groups are nested too deeply", "have at most 16 levels");
        }
        if self.nested.is_some() && seen.len() < self.members.len() {
            wrong("nested", "it lacks a member", "name each member once");
        }
        bad
    }
}

/// What a PodGroup asks for: the PodGroup is the affinity group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellRequest {
    /// The request.
    pub group: GroupRequest,
    /// Which of [`GroupRequest::members`] the pods of each task are.
    pub tasks: BTreeMap<String, usize>,
}

impl CellRequest {
    /// All errors of the request in the field `path`. `tasks`: names of the group's tasks.
    pub fn check<'t>(
        &self,
        path: &str,
        tasks: impl IntoIterator<Item = &'t str>,
    ) -> Vec<FieldError> {
        let mut bad = self.group.check(&format!("{path}.group"));
        for task in tasks {
            let member = self.tasks.get(task);
            if member.is_none_or(|member| *member >= self.group.members.len()) {
                let path = format!("{path}.tasks.{task}");
                let problem = "the task has no member of the request";
                bad.push(FieldError::new(path, problem, "name one of group.members, from 0"));
            }
        }
        bad
    }
}

/// A guaranteed group whose cells another group of its virtual cluster took: its pods keep running as opportunistic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LazyPreemptionStatus {
    /// The group that took them, in the same virtual cluster; the group itself if it did not fit a new configuration.
    pub preemptor: String,
    /// When.
    pub preemption_time: Timestamp,
}

/// A group that holds cells, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityGroupRecord {
    /// What it asked for.
    pub request: GroupRequest,
    /// Whether its cells are reserved, not used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempting: bool,
    /// Name of the chain.
    pub chain: String,
    /// Types of the preassigned cells that its places name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub preassigned: BTreeMap<String, String>,
    /// Places, by member.
    pub pods: Vec<PodPlacementRecord>,
    /// Pods that wait for the reservation.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub preempting_pods: BTreeSet<String>,
    /// Set while the group runs as opportunistic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lazy_preemption: Option<LazyPreemptionStatus>,
}

impl AffinityGroupRecord {
    /// Name of a PodGroup's pod in [`PodPlacementRecord::pod`].
    #[must_use]
    pub fn pod_name(task: &str, index: u32) -> String {
        format!("{task}/{index}")
    }

    /// Place of a PodGroup's pod.
    #[must_use]
    pub fn place_of(&self, task: &str, index: u32) -> Option<&PodPlacementRecord> {
        let name = AffinityGroupRecord::pod_name(task, index);
        self.pods.iter().find(|place| place.pod.as_ref() == Some(&name))
    }

    /// Device numbers of each pod, by [`PodPlacementRecord::pod`].
    #[must_use]
    pub fn devices(&self) -> BTreeMap<&str, BTreeSet<u32>> {
        let of = |place: &PodPlacementRecord| {
            numbers(&place.devices).into_iter().filter_map(|n| u32::try_from(n).ok()).collect()
        };
        self.pods.iter().filter_map(|place| Some((place.pod.as_deref()?, of(place)))).collect()
    }

    /// Upper bound of its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |text| text.len())
    }
}

/// Place of one pod, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlacementRecord {
    /// Number of the member.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub member: usize,
    /// The node.
    pub node: String,
    /// Device numbers, such as `0-3,7`.
    pub devices: String,
    /// The preassigned virtual cell; none for an opportunistic group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Leaves of that cell, counted from its first, such as `8-15`; in the order of the devices.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub leaves: String,
    /// The pod that has the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Numbers as text, runs as `from-to`, in order.
#[must_use]
pub fn ranges(numbers: impl IntoIterator<Item = i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, to)) if *to >= 0 && number == *to + 1 => *to = number,
            _ => runs.push((number, number)),
        }
    }
    let runs = runs.iter().map(|&(from, to)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Most numbers that a text can stand for.
const MAX_NUMBERS: usize = 1 << 16;

/// What [`ranges`] wrote. What cannot be read is left out.
#[must_use]
pub fn numbers(text: &str) -> Vec<i32> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let run = part.get(1..).and_then(|rest| rest.find('-')).map(|at| part.split_at(at + 1));
        let (from, to) = match run {
            Some((from, to)) => (from.parse::<i32>(), to[1..].parse::<i32>()),
            None => (part.parse::<i32>(), part.parse::<i32>()),
        };
        if let (Ok(from), Ok(to)) = (from, to) {
            numbers.extend((from..=to).take(MAX_NUMBERS.saturating_sub(numbers.len())));
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_in_order() {
        for list in [
            vec![],
            vec![0],
            vec![0, 1],
            vec![1, 3, 4, 7, 0, 2, 6],
            (8..16).collect(),
            vec![-1, -1, 0, 1, 2],
        ] {
            assert_eq!(numbers(&ranges(list.iter().copied())), list);
        }
        assert_eq!(ranges(0..16), "0-15");
        assert_eq!(ranges([1, 3, 4, 5, 0]), "1,3-5,0");
    }
}
