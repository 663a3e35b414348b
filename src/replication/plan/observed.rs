//! Input of the plan of one replication controller: owned data, without caches, clocks or closures.
//!
//! It serialises (`rcfarm rc plan --dump FILE`), and the same file gives the same plan in a test.

mod dump;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::dump::Document;
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::{Insufficient, NodeCapacities, PodResources, ranked};
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::labels::Labels;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::rc::status::{RcStatus, Transfer};
use rcfarm_api::{Index, Timestamp};

/// A pod that carries the RC's id in its labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcPod {
    /// ModifyIndex of its labels.
    pub label_index: Index,
    /// CreateIndex of its labels; the pod with the greatest is the newest.
    pub created: Index,
    pub labels: Labels,
    pub intent: Intent,
    /// Its health as last reported.
    pub health: Health,
    /// The report may be about an earlier manifest: its node is not known to run the intended one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproved: bool,
}

/// What occupies the RC's pod id on a node where the RC has no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotState {
    /// Neither labels nor an intent.
    Nobody,
    /// An intent with the RC's manifest at this index, and no labels: it is adopted by labelling it.
    Ours(Index),
    /// A pod of another record, or of none.
    Other,
}

/// A disabled RC with the same pod id that has more pods than it wants. An enabled RC takes these over, as p2's rolling
/// updates expect (`p2.md` §2.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurplusPods {
    /// ModifyIndex of its record.
    pub record: Index,
    /// How many of its pods may be taken.
    pub surplus: usize,
    /// Its pods. Intents are compared with the manifest of the RC that takes them.
    pub pods: BTreeMap<NodeName, RcPod>,
}

/// What a node transfer depends on, besides the pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferConditions {
    /// The transfer in the RC's status.
    pub under_way: Option<Transfer>,
    /// Another session holds the record's mutation or transfer lock.
    pub lock_held: bool,
    /// Service discovery shows the RC's healthy pods.
    pub discovery_synced: bool,
    /// The scheduler allocates eligible nodes only. Where none of them is free, it need not be asked.
    pub only_eligible: bool,
}

/// Everything that the plan of one RC depends on.
///
/// Cost per reconcile: the specification, the pods, the eligible nodes and the capacities are shared (`Arc`), however
/// many nodes there are. `not_ready` and `slots` hold exceptions only, of nodes that the plan can look at. While no
/// node is wanted these are the nodes that have a pod of the RC. When `n` nodes are wanted, `not_ready` has each
/// eligible node that is not ready, and `slots` the occupied ones among the nodes tried until `n` are found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Document", try_from = "Document")]
pub struct ReplicationObserved {
    /// The checked record, with what the RC's own labels declare.
    pub spec: Arc<RcSpec>,
    /// The RC's pods.
    pub pods: Arc<BTreeMap<PodRef, RcPod>>,
    /// Nodes that the scheduler calls eligible.
    pub eligible: Arc<BTreeSet<NodeName>>,
    /// Readiness of nodes that are not [`NodeReadiness::Ready`].
    pub not_ready: BTreeMap<NodeName, NodeReadiness>,
    /// Nodes that report the manifest as one that cannot be run, and why.
    pub unfit: BTreeMap<NodeName, String>,
    /// Nodes that restart their pod again and again, and how it ends.
    pub restarting: BTreeMap<NodeName, String>,
    /// Nodes that are down and whose pods are set aside: given to no other node for a while. With the reason.
    pub set_aside: BTreeMap<NodeName, String>,
    /// Slots that are not [`SlotState::Nobody`]; see [`ReplicationObserved::look_up_slots`].
    pub slots: BTreeMap<NodeName, SlotState>,
    /// Disabled RCs whose pods may be taken over; looked up if nodes are wanted.
    pub surplus: BTreeMap<RcId, SurplusPods>,
    /// What each node has, and what of it is allocated.
    pub capacities: NodeCapacities,
    /// What the mass-deletion guard allows.
    pub allowed_actions: AllowedActions,
    /// What a node transfer depends on.
    pub transfer: TransferConditions,
}

/// Whether a pod has, or can be allocated, what the record asks for on its node. Where the node's allocations cannot
/// be read, this is unknown, and the pod may stay.
#[must_use]
pub fn has_capacity(spec: &RcSpec, capacities: &NodeCapacities, pod_ref: &PodRef) -> bool {
    let (node, want) = (capacities.of(&pod_ref.node), PodResources::of_manifest(&spec.manifest));
    node.is_unreadable
        || node.holds_devices(&pod_ref.pod, &spec.owner(), &want)
        || node.insufficient_for(&pod_ref.pod, &spec.owner(), &want).is_none()
}

/// Nodes that can take a pod of the RC, as far as labels, readiness and capacity go.
pub(super) struct OpenNodes<'a> {
    /// In the order in which the plan takes them: by name when the pods ask for no resources and no ports, else
    /// by the RC's packing. Without them it is lazy: thousands of nodes may be eligible for a few pods.
    pub(super) nodes: Box<dyn Iterator<Item = &'a NodeName> + 'a>,
    /// Those without enough capacity.
    pub(super) insufficient: Vec<(&'a NodeName, Insufficient)>,
}

impl ReplicationObserved {
    #[must_use]
    pub fn readiness(&self, node: &NodeName) -> NodeReadiness {
        self.not_ready.get(node).copied().unwrap_or(NodeReadiness::Ready)
    }

    pub(super) fn slot(&self, node: &NodeName) -> SlotState {
        self.slots.get(node).copied().unwrap_or(SlotState::Nobody)
    }

    pub(super) fn has_capacity(&self, pod_ref: &PodRef) -> bool {
        has_capacity(&self.spec, &self.capacities, pod_ref)
    }

    /// Whether a node may keep pods: it is eligible, and neither quarantined, drained nor down.
    pub(super) fn may_keep_pods(&self, node: &NodeName) -> bool {
        self.eligible.contains(node) && self.readiness(node) <= NodeReadiness::Suspect
    }

    /// Whether a pod may stay on its node.
    pub(super) fn may_stay(&self, pod_ref: &PodRef) -> bool {
        self.may_keep_pods(&pod_ref.node) && self.has_capacity(pod_ref)
    }

    /// Whether a pod should be moved.
    #[must_use]
    pub fn has_misplaced_pod(&self) -> bool {
        self.pods.keys().any(|pod_ref| !self.may_stay(pod_ref))
    }

    /// Pods of disabled RCs that can be taken over: on nodes that can take a pod. Those that do not pass come first,
    /// then by node.
    pub(super) fn takeable(&self) -> Vec<(&NodeName, &RcPod, RcId)> {
        let used: BTreeSet<&NodeName> = self.pods.keys().map(|pod_ref| &pod_ref.node).collect();
        let (id, owner) = (self.spec.manifest.id(), self.spec.owner());
        let want = PodResources::of_manifest(&self.spec.manifest);
        let may_take = |node: &NodeName| {
            self.eligible.contains(node)
                && self.readiness(node) == NodeReadiness::Ready
                && !used.contains(node)
                && self.capacities.of(node).insufficient_for(id, &owner, &want).is_none()
        };
        let mut takeable = Vec::new();
        for (rc, old) in &self.surplus {
            let mut pods: Vec<_> = old.pods.iter().filter(|(node, _)| may_take(node)).collect();
            pods.sort_by_key(|(node, pod)| (pod.health == Health::Passing, *node));
            takeable.extend(pods.into_iter().take(old.surplus).map(|(node, pod)| (node, pod, *rc)));
        }
        takeable.sort_by_key(|(node, pod, _)| (pod.health == Health::Passing, *node));
        takeable
    }

    /// Nodes that can take a pod: eligible, ready, without a pod of the RC, and not the target of a transfer.
    pub(super) fn open_nodes(&self) -> OpenNodes<'_> {
        let used: BTreeSet<&NodeName> = self.pods.keys().map(|pod_ref| &pod_ref.node).collect();
        let target = self.transfer.under_way.as_ref().and_then(|t| t.new_node.as_ref());
        let open = self.eligible.iter().filter(move |node| {
            !used.contains(*node)
                && target != Some(*node)
                && self.readiness(node) == NodeReadiness::Ready
        });
        let pod = self.spec.manifest.id();
        let want = PodResources::of_manifest(&self.spec.manifest);
        if want.is_nothing() {
            return OpenNodes { nodes: Box::new(open), insufficient: Vec::new() };
        }
        let owner = self.spec.owner();
        let (mut sufficient, mut insufficient) = (Vec::new(), Vec::new());
        for node in open {
            let capacity = self.capacities.of(node);
            match capacity.insufficient_for(pod, &owner, &want) {
                None => sufficient.push((node, capacity)),
                Some(why) => insufficient.push((node, why)),
            }
        }
        let salt = self.spec.id.to_string();
        let nodes = ranked(want.amounts, self.spec.packing, &salt, sufficient.into_iter());
        OpenNodes { nodes: Box::new(nodes.into_iter()), insufficient }
    }

    /// Fills in `set_aside` from the status. Readiness must be there.
    pub fn look_up_set_aside(&mut self, status: &RcStatus, record_index: Index, now: Timestamp) {
        let is_down = |node: &&NodeName| self.readiness(node) == NodeReadiness::Down;
        let why = |node: &NodeName| {
            let carried = status.set_aside(node, record_index, now)?;
            let (until, times) = (carried.goes_on_at(), carried.times.saturating_add(1));
            let nodes = carried.nodes.iter().chain([node]).map(NodeName::as_str);
            let named = nodes.collect::<Vec<_>>().join(", ");
            let why = format!(
                "until {until:.0}: {times} nodes in a row went down soon after they were given it, last {named}"
            );
            Some((node.clone(), why))
        };
        let nodes = self.pods.keys().map(|pod_ref| &pod_ref.node).filter(is_down);
        self.set_aside = nodes.filter_map(why).collect();
    }

    /// How many nodes the plan looks for: one per missing pod, or one when a pod should be moved.
    #[must_use]
    pub fn nodes_wanted(&self) -> usize {
        let missing = (self.spec.replicas_desired as usize).saturating_sub(self.pods.len());
        match missing {
            _ if self.spec.disabled => 0,
            0 => usize::from(self.has_misplaced_pod()),
            missing => missing,
        }
    }

    /// Fills in `slots`, after everything else is there: of nodes whose pod has an old id, and of open nodes in the
    /// plan's order until as many are free as are wanted. The plan looks at no others. Returns how many are free.
    pub fn look_up_slots(&mut self, slot: impl Fn(&NodeName) -> SlotState) -> usize {
        let mut slots = BTreeMap::new();
        let mut look_up = |node: &NodeName| {
            let state = slot(node);
            if state != SlotState::Nobody {
                slots.insert(node.clone(), state);
            }
            state
        };
        let id = self.spec.manifest.id();
        for pod_ref in self.pods.keys().filter(|pod_ref| pod_ref.pod != *id) {
            look_up(&pod_ref.node);
        }
        let wanted = self.nodes_wanted();
        // Pods are taken over where some are missing; one that only moves needs a free node.
        let is_missing = self.pods.len() < self.spec.replicas_desired as usize;
        let mut free = if is_missing { self.takeable().len() } else { 0 };
        if wanted > free {
            for node in self.open_nodes().nodes {
                free += usize::from(look_up(node) != SlotState::Other);
                if free == wanted {
                    break;
                }
            }
        }
        self.slots = slots;
        free
    }

    /// Pods that pass their check. Those on a node that is down do not, whatever was last reported.
    pub(super) fn is_passing(&self, pod_ref: &PodRef, pod: &RcPod) -> bool {
        pod.health == Health::Passing && self.readiness(&pod_ref.node) != NodeReadiness::Down
    }

    /// Pods that pass their check with the intended manifest. A minimum health counts these alone. A node stops a pod that
    /// has no intent.
    pub(super) fn is_up(&self, pod_ref: &PodRef, pod: &RcPod) -> bool {
        !pod.unproved && pod.intent != Intent::Missing && self.is_passing(pod_ref, pod)
    }

    pub(super) fn healthy(&self) -> usize {
        self.pods.iter().filter(|(pod_ref, pod)| self.is_up(pod_ref, pod)).count()
    }
}
