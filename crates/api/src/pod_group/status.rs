//! The status that the scheduler's owner writes: the value of `rcfarm/pod_group_status/<ns>/<name>`.
//!
//! It is also the write-ahead record of a gang's placement ([`GroupPlacement`]): one CAS writes the whole placement
//! here before anything is allocated on a node, so that any later owner can finish or undo it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use super::phase::{PodGroupPhase, PodGroupReason};
use super::pod_ids::PodIdFormat;
use super::runs;
use super::spec::{GroupId, MemberCounts, PodGroupSpec};
use crate::Index;
use crate::ResourceList;
use crate::Stored;
use crate::Timestamp;
use crate::cells::{AffinityGroupRecord, ChainReason};
use crate::ids::{NodeName, QueueName};
use crate::manifest::command_line::cut;

/// Longer messages are cut, in bytes.
const LONGEST_MESSAGE: usize = 4 * 1024;

/// State of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PlacementState {
    /// Decided; being written to the nodes' allocations. No member may start.
    Reserving,
    /// Allocated on every node: the members may start.
    Bound,
    /// Being removed from the nodes' allocations. No member may start.
    Releasing,
}

/// Placement of the members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlacement {
    /// Its state.
    pub state: PlacementState,
    /// By task, the node of each index; `None`: no node.
    #[serde(with = "runs")]
    pub members: BTreeMap<String, Vec<Option<NodeName>>>,
    /// Request of a member of each task. A changed record takes effect with the next round.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asks: BTreeMap<String, ResourceList>,
    /// How the pods are named under which the members' resources are allocated; missing: `Plain`.
    #[serde(default, rename = "podIds", skip_serializing_if = "PodIdFormat::is_plain")]
    pub pod_ids: PodIdFormat,
    /// Ports of members on nodes that give some, by task and index. They end with the last member that has one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, Vec<Option<u16>>>,
    /// Nodes of members that have ended, by task and index: nothing is allocated to these members any more.
    #[serde(default, with = "runs", skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<String, Vec<Option<NodeName>>>,
    /// The cells that it holds until the placement is gone, those of members that have ended included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<Box<AffinityGroupRecord>>,
    /// While it is being released: the group's phase after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<PodGroupPhase>,
}

impl GroupPlacement {
    /// Upper bound of its size in bytes, the requests apart; it may be stored in less ([`PodGroupStatus::encode`]).
    #[must_use]
    pub fn plain_bytes(&self) -> usize {
        let ports = self.ports.iter().map(|(task, ports)| task.len() + 8 + 6 * ports.len());
        let cells = self.cells.as_ref().map_or(0, |cells| cells.bytes());
        let nodes = runs::plain_bytes(&self.members) + runs::plain_bytes(&self.ended);
        nodes + ports.sum::<usize>() + cells
    }

    /// Port of a member; `None`: it has none.
    #[must_use]
    pub fn port_of(&self, task: &str, index: u32) -> Option<u16> {
        *self.ports.get(task)?.get(usize::try_from(index).ok()?)?
    }

    /// Sets the port of a member.
    pub fn set_port(&mut self, task: &str, index: u32, port: u16) {
        let ports = self.ports.entry(task.to_owned()).or_default();
        let index = index as usize;
        ports.resize(ports.len().max(index + 1), None);
        ports[index] = Some(port);
    }

    /// Takes the ports of members without a node. Those of ended members stay for the others' lists of members, and
    /// may be given to other pods.
    pub fn drop_unplaced_ports(&mut self) {
        for (task, ports) in &mut self.ports {
            let nodes = self.members.get(task).map_or(&[][..], Vec::as_slice);
            let ended = self.ended.get(task).map_or(&[][..], Vec::as_slice);
            ports.truncate(nodes.len());
            for ((n, port), node) in ports.iter_mut().enumerate().zip(nodes) {
                if node.is_none() && ended.get(n).is_none_or(Option::is_none) {
                    *port = None;
                }
            }
            while ports.pop_if(|port| port.is_none()).is_some() {}
        }
        self.ports.retain(|_, ports| !ports.is_empty());
    }

    /// Members with a node: task, index, node.
    pub fn placed(&self) -> impl Iterator<Item = (&str, u32, &NodeName)> {
        self.members.iter().flat_map(|(task, nodes)| {
            let nodes = (0u32..).zip(nodes);
            nodes.filter_map(move |(n, node)| Some((task.as_str(), n, node.as_ref()?)))
        })
    }

    /// Members that have ended: task, index, and the node that they had.
    pub fn ended(&self) -> impl Iterator<Item = (&str, u32, &NodeName)> {
        self.ended.iter().flat_map(|(task, nodes)| {
            let nodes = (0u32..).zip(nodes);
            nodes.filter_map(move |(n, node)| Some((task.as_str(), n, node.as_ref()?)))
        })
    }

    /// Charge of the members with a node.
    #[must_use]
    pub fn charge(&self) -> ResourceList {
        let nothing = ResourceList::default();
        let of = |(task, count): (&str, u32)| {
            ResourceList::of_pods(self.asks.get(task).unwrap_or(&nothing), count.into())
        };
        let counts = self.counts().into_iter().filter(|(_, count)| *count > 0);
        ResourceList::sum(&counts.map(of).collect::<Vec<_>>())
    }

    /// Members with a node, by task.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&str, u32> {
        let count = |nodes: &Vec<Option<NodeName>>| {
            u32::try_from(nodes.iter().flatten().count()).unwrap_or(u32::MAX)
        };
        self.members.iter().map(|(task, nodes)| (task.as_str(), count(nodes))).collect()
    }
}

/// Why a group is stopped: another one gets its room, or it has to leave a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The PodGroup that gets its room. With `drain` it is the group itself: farms from before need the field.
    pub preemptor: GroupId,
    /// The node that it has to leave, because it is drained or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<NodeName>,
    /// Why, for people.
    pub why: String,
    /// When it was decided.
    pub since: Timestamp,
    /// Unless its members are being stopped by then, the preemptor gives up, and the group runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Eviction {
    /// The other group that gets its room; `None`: it has to leave a node.
    #[must_use]
    pub fn by(&self) -> Option<&GroupId> {
        self.drain.is_none().then_some(&self.preemptor)
    }

    /// Whether another eviction has the same cause: the same group, or the same node.
    #[must_use]
    pub fn has_same_cause(&self, other: &Eviction) -> bool {
        (&self.preemptor, &self.drain) == (&other.preemptor, &other.drain)
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evicted at {:.0}", self.since)?;
        if let Some(by) = self.by() {
            write!(f, " for {by}")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupStatus {
    /// Its phase.
    pub phase: PodGroupPhase,
    /// Reason of the phase.
    pub reason: PodGroupReason,
    /// The same for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// If it asks for cells: why each chain that was tried has no place for it. Part of the message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chain_reasons: Vec<ChainReason>,
    /// When phase or reason last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// CreateIndex of the record that this status is about. A record created again under the name is another group.
    pub of: Index,
    /// The uid of its owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<String>,
    /// Round of the record that this status is about.
    #[serde(skip_serializing_if = "is_zero")]
    pub round: u64,
    /// The queue that counts it, and that is charged while it is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Charge to the queue.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub charged: ResourceList,
    /// Order among groups of its priority; smaller comes first.
    pub since: Index,
    /// Unless it is placed by then, it goes back to its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place_by: Option<Timestamp>,
    /// How often it went back to its queue.
    #[serde(skip_serializing_if = "is_zero_count")]
    pub sent_back: u32,
    /// How many groups of its queue went before it while it was the first that waited for capacity; at most the
    /// queue's `maxPasses`.
    #[serde(skip_serializing_if = "is_zero_count")]
    pub passed: u32,
    /// When what is kept for it is released, since groups of other queues have taken of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<Timestamp>,
    /// Earliest admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Placement of its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<GroupPlacement>,
    /// The cells that it reserves while others use some of them. It has no placement then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Box<AffinityGroupRecord>>,
    /// Set once another group takes its room, or it has to leave a node. It holds its placement until its members have
    /// been stopped, and keeps this until it is placed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
    /// How many groups it has had told to stop since it was last placed or went back to its queue.
    #[serde(skip_serializing_if = "is_zero_count")]
    pub evictions: u32,
    /// Phases of its pods, as reported when the phase was decided.
    #[serde(skip_serializing_if = "MemberCounts::is_zero")]
    pub members: MemberCounts,
    /// Incremented by every transaction.
    pub revision: u64,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_zero_count(number: &u32) -> bool {
    *number == 0
}

impl Stored for PodGroupStatus {}

impl PodGroupStatus {
    /// Whether the group's pods may be created, each on the node of [`PodGroupStatus::node_of`]: everything is
    /// allocated, to this owner, for this round, and nobody takes it.
    #[must_use]
    pub fn may_start(&self, spec: &PodGroupSpec) -> bool {
        self.phase.is_admitted()
            && self.round == spec.round
            && self.owner_uid.as_deref() == spec.owner.as_ref().map(|owner| owner.uid.as_str())
            && self.eviction.is_none()
            && self.placement.as_ref().is_some_and(|p| p.state == PlacementState::Bound)
    }

    /// Why its members have to stop.
    #[must_use]
    pub fn evicted(&self) -> Option<&Eviction> {
        self.eviction.as_ref().filter(|_| self.phase.is_admitted() && self.placement.is_some())
    }

    /// The node of a member; `None` while it has none.
    #[must_use]
    pub fn node_of(&self, task: &str, index: u32) -> Option<&NodeName> {
        let nodes = self.placement.as_ref()?.members.get(task)?;
        nodes.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// Whether a member's node is one of these.
    #[must_use]
    pub fn is_placed_on(&self, nodes: &BTreeSet<NodeName>) -> bool {
        let members = self.placement.iter().flat_map(|placement| placement.members.values());
        members.flatten().flatten().any(|node| nodes.contains(node))
    }

    /// Sets phase, reason and message; it has no reasons of chains then. The time changes only with phase or reason.
    pub fn say(
        &mut self,
        phase: PodGroupPhase,
        reason: PodGroupReason,
        message: String,
        now: Timestamp,
    ) {
        if (self.phase, self.reason) != (phase, reason) || self.last_transition_time.is_none() {
            self.last_transition_time = Some(now);
        }
        (self.phase, self.reason) = (phase, reason);
        self.message = cut(&message, LONGEST_MESSAGE);
        self.chain_reasons.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod_group::spec::{OwnerRef, PodGroupRecord};

    fn bound() -> PodGroupStatus {
        let text = json!({
            "phase": "Inqueue", "reason": "AsDesired", "ownerUid": "u1", "round": 3, "queue": "default",
            "charged": {"cpu": "2", "pods": 2}, "since": 7, "of": 7,
            "placement": {"state": "Bound", "members": {"worker": ["n1", null, "n2"]}}, "surge": 1,
        });
        PodGroupStatus::decode(text.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_status_survives_the_store_and_keeps_what_we_do_not_know() {
        let status = bound();
        assert_eq!(PodGroupStatus::decode(&status.encode()).unwrap(), status);
        assert_eq!(status.other["surge"], 1);
    }

    #[test]
    fn members_start_when_the_whole_placement_is_allocated() {
        let mut spec = PodGroupSpec { round: 3, ..PodGroupSpec::default() };
        let owner = |uid: &str| OwnerRef { kind: "Job".into(), name: "a".into(), uid: uid.into() };
        spec.owner = Some(owner("u1"));
        let status = bound();
        assert!(status.may_start(&spec));
        assert_eq!(status.node_of("worker", 2).unwrap().as_str(), "n2");
        assert_eq!((status.node_of("worker", 1), status.node_of("worker", 9)), (None, None));
        assert_eq!(status.placement.as_ref().unwrap().counts()["worker"], 2);
        let other_round = PodGroupSpec { round: 4, ..spec.clone() };
        let other_owner = PodGroupSpec { owner: Some(owner("u2")), ..spec.clone() };
        assert!(!status.may_start(&other_round) && !status.may_start(&other_owner));
        for state in [PlacementState::Reserving, PlacementState::Releasing] {
            let mut half = bound();
            half.placement.as_mut().unwrap().state = state;
            assert!(!half.may_start(&spec), "{state:?}");
        }
        for (phase, may) in [
            (PodGroupPhase::Pending, false),
            (PodGroupPhase::Completed, false),
            (PodGroupPhase::Unknown, true),
        ] {
            assert_eq!(PodGroupStatus { phase, ..bound() }.may_start(&spec), may, "{phase}");
        }
    }

    #[test]
    fn a_record_says_its_least_its_charge_and_its_pods() {
        let text = br#"{"spec":{"minMember":3,"minTaskMember":{"b":1},"tasks":[
            {"name":"a","replicas":2,"resources":{"cpu":1}},{"name":"b","replicas":4,"resources":{"gpu":1}}]}}"#;
        let spec = PodGroupRecord::decode(text).unwrap().spec;
        assert!(spec.check(&"ns/g".parse().unwrap()).is_empty());
        let least = spec.least();
        assert_eq!((least["a"], least["b"]), (2, 1), "b's own minimum first, then in order");
        assert_eq!(spec.charge(&least), "cpu=2,gpu=1,pods=3".parse().unwrap());
        assert_eq!(spec.charge(&spec.all()), "cpu=2,gpu=4,pods=6".parse().unwrap());
    }

    #[test]
    fn each_rule_of_a_group_is_told_by_its_path() {
        let task = json!({"name": "a", "replicas": 2});
        for (spec, path) in [
            (json!({}), "spec.tasks"),
            (json!({"tasks": [task, task]}), "spec.tasks[1].name"),
            (json!({"tasks": [{"name": "a/b", "replicas": 1}]}), "spec.tasks[0].name"),
            (json!({"tasks": [{"name": "a".repeat(200), "replicas": 1}]}), "spec.tasks[0].name"),
            (
                json!({"tasks": [{"name": "a", "replicas": 1, "nodeSelector": "a b"}]}),
                "spec.tasks[0].nodeSelector",
            ),
            (
                json!({"tasks": [{"name": "a", "replicas": 1, "resources": {"pods": 1}}]}),
                "spec.tasks[0].resources.pods",
            ),
            (json!({"tasks": [{"name": "a", "replicas": 200_000}]}), "spec.tasks"),
            (json!({"tasks": [task], "minMember": 3}), "spec.minMember"),
            (json!({"tasks": [task], "minTaskMember": {"a": 3}}), "spec.minTaskMember.a"),
            (json!({"tasks": [task], "minTaskMember": {"b": 1}}), "spec.minTaskMember.b"),
            (json!({"tasks": [task], "hold": {"reason": "QueueClosed"}}), "spec.hold.reason"),
        ] {
            let text = json!({"spec": spec}).to_string();
            let record = PodGroupRecord::decode(text.as_bytes()).unwrap();
            let bad = record.spec.check(&"ns/g".parse().unwrap());
            assert_eq!(bad.iter().map(|b| b.path.as_str()).collect::<Vec<_>>(), [path], "{spec}");
        }
        let bad = PodGroupRecord::decode(br#"{"spec":{"tasks":[{"name":"a","replicas":-1}]}}"#)
            .unwrap_err();
        assert_eq!(bad.path, "spec.tasks[0].replicas");
    }
}
