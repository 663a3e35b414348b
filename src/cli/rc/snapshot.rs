//! One-shot read of the input of a controller's plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::find::FoundRc;
use crate::cli::context::CommandContext;
use crate::cli::farm;
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::pods::LabelledPod;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::cluster::view::AllowedActions;
use crate::farm::records::FarmPresence;
use crate::placement::capacity::NodeCapacities;
use crate::placement::{RemoteScheduler, ScheduleError, ScheduleRequest, Scheduler};
use crate::replication::plan::{
    RcPod, ReplicationObserved, SlotState, SurplusPods, TransferConditions,
};
use rcfarm_api::ids::{NodeName, PodId, PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::node::{Health, HealthReport};
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::rc::status::{Quarantine, RcStatus};
use rcfarm_api::{FieldError, Index, Stored, Timestamp};
use rcfarm_store::{Entry, may_read};

/// Input of a controller's plan.
pub(super) struct RcSnapshot {
    /// Labels of all nodes.
    pub(super) nodes: BTreeMap<NodeName, Labels>,
    /// Nodes that the owner's scheduler lists, or that match the selector; none if the record is invalid.
    pub(super) eligible: BTreeSet<NodeName>,
    /// Source of `eligible`.
    pub(super) asked: AskedScheduler,
    pub(super) pods: BTreeMap<PodRef, RcPod>,
    /// State of the controller's slot on eligible nodes without a pod of its own.
    pub(super) slots: BTreeMap<NodeName, (SlotState, Option<RcId>)>,
    /// Surplus pods of disabled controllers with the same pod id.
    surplus: BTreeMap<RcId, SurplusPods>,
    pub(super) status: Option<RcStatus>,
    /// Whether the record's mutation or transfer lock is held.
    pub(super) lock_held: bool,
    /// Nodes that could not start the controller's pod, now or recently, with the reason.
    pub(super) quarantined: BTreeMap<NodeName, String>,
    /// ModifyIndex of the record.
    pub(super) record_index: Index,
    /// When it was read.
    pub(super) now: Timestamp,
    /// Nodes that report the manifest as one that cannot be run, and why.
    unfit: BTreeMap<NodeName, String>,
    restarting: BTreeMap<NodeName, String>,
    /// Nodes that failed for several records; the owner adds no pods there for some time.
    suspects: BTreeSet<NodeName>,
    cluster: ClusterSnapshot,
    /// Capacities and allocations of nodes.
    pub(super) node_capacities: NodeCapacities,
    /// Labels of the controller, which can set its minimum health.
    labels: Option<Entry>,
    /// Whether the token may read intents. If not, those of the controller's pods are taken for the record's manifest.
    pub(super) reads_intents: bool,
}

/// What is said where intents cannot be read.
pub(super) const INTENTS_HIDDEN: &str =
    "the token may not read intent/: whether the pods have the record's manifest is not known";

/// Source of eligible nodes.
pub(super) enum AskedScheduler {
    /// The built-in scheduler.
    Labels,
    /// The owner's HTTP scheduler.
    Server(String),
    /// The owner's HTTP scheduler failed; labels were used instead.
    Silent { address: String, why: ScheduleError },
}

/// Presence of the owner farm.
async fn owner(context: &CommandContext, id: RcId) -> anyhow::Result<Option<FarmPresence>> {
    let lock = context.get(&key::rc_lock(id)).await?;
    let Some(session) = lock.and_then(|entry| entry.session) else { return Ok(None) };
    let mut live = farm::live(context).await?.into_iter().map(|farm| farm.presence);
    Ok(live.find(|presence| presence.session == session))
}

/// Eligible nodes from the HTTP scheduler at `address`; without one, or if it fails, `by_labels`.
async fn eligible(
    address: Option<String>,
    spec: Option<&RcSpec>,
    by_labels: BTreeSet<NodeName>,
) -> (BTreeSet<NodeName>, AskedScheduler) {
    let (Some(spec), Some(address)) = (spec, address) else {
        return (by_labels, AskedScheduler::Labels);
    };
    let answer = match RemoteScheduler::new(&address) {
        Ok(scheduler) => scheduler.eligible_nodes(ScheduleRequest::of(spec)).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(nodes) => (nodes.as_ref().clone(), AskedScheduler::Server(address)),
        Err(why) => (by_labels, AskedScheduler::Silent { address, why }),
    }
}

/// Reads the input for a controller.
pub(super) async fn read_snapshot(
    context: &CommandContext,
    found: &FoundRc,
) -> anyhow::Result<RcSnapshot> {
    let store = &context.store;
    let prefixes = [
        key::labels(LabelKind::Node),
        key::labels(LabelKind::Pod),
        key::nodes(),
        key::allocations(),
    ];
    let cluster = ClusterSnapshot::read_once(store.as_ref(), prefixes).await?;
    let nodes = cluster.nodes.labels.nodes.clone();
    let spec = found.spec().ok();
    let selector = spec.as_ref().map(|spec| &spec.node_selector);
    let eligible: BTreeSet<NodeName> = nodes
        .iter()
        .filter(|(_, labels)| selector.is_some_and(|selector| selector.matches(labels)))
        .map(|(node, _)| node.clone())
        .collect();
    let owner = owner(context, found.id).await?;
    let (scheduler, suspects) =
        owner.map(|owner| (owner.scheduler, owner.suspect_nodes)).unwrap_or_default();
    let (eligible, asked) = self::eligible(scheduler, spec.as_ref(), eligible).await;
    let own: BTreeMap<&PodRef, &LabelledPod> = cluster.pods.of_rc(found.id).collect();
    let free: Vec<PodRef> = spec
        .iter()
        .flat_map(|spec| eligible.iter().map(|node| place(node, spec.manifest.id())))
        .filter(|place| !own.keys().any(|own| own.node == place.node))
        .collect();
    let interesting = own.keys().copied().chain(&free);
    let intents =
        context.get_many(interesting.map(|place| key::intent(&place.node, &place.pod))).await?;
    let healths =
        context.get_many(own.keys().map(|place| key::health(&place.pod, &place.node))).await?;
    let manifest = spec.as_ref().map(|spec| spec.manifest.text().as_bytes());
    // Consul leaves out what the token may not read.
    let is_missing =
        |place: &PodRef| !intents.contains_key(key::intent(&place.node, &place.pod).as_str());
    let reads_intents = !own.keys().any(|place| is_missing(place))
        || may_read(store.as_ref(), &key::intents()).await?;
    let intent = |place: &PodRef| match intents.get(key::intent(&place.node, &place.pod).as_str()) {
        None if !reads_intents && own.contains_key(place) => Intent::Same(Index::ZERO),
        None => Intent::Missing,
        Some(entry) if Some(&*entry.value) == manifest => Intent::Same(entry.modify_index),
        Some(entry) => Intent::Differs(entry.modify_index),
    };
    let pod = |(place, labelled): (&&PodRef, &&LabelledPod)| {
        let health = healths.get(key::health(&place.pod, &place.node).as_str());
        ((*place).clone(), rc_pod(labelled, intent(place), health))
    };
    let slot = |place: &PodRef| match (cluster.pods.get(place), intent(place)) {
        (Some(pod), _) => (SlotState::Other, pod.value.rc),
        (None, Intent::Missing) => (SlotState::Nobody, None),
        (None, Intent::Same(index)) => (SlotState::Ours(index), None),
        (None, Intent::Differs(_)) => (SlotState::Other, None),
    };
    let surplus = surplus(context, &cluster, &free, intent).await?;
    let locks =
        context.get_many([key::rc_mutation_lock(found.id), key::rc_transfer_lock(found.id)]);
    let lock_held = locks.await?.values().any(|entry| entry.session.is_some());
    let status = context.get(&key::rc_status(found.id)).await?;
    let status = status.and_then(|entry| RcStatus::decode(&entry.value).ok());
    let cannot_start = |place: &PodRef| {
        let health = healths.get(key::health(&place.pod, &place.node).as_str())?;
        let why = HealthReport::decode(&health.value).cannot_start?;
        Some((place.node.clone(), format!("cannot start it: {why}")))
    };
    let (index, now) = (found.entry.modify_index, context.now());
    let shunned = |node: &NodeName| {
        let entry = status.as_ref()?.quarantine(node, index, now)?;
        let Quarantine { why, failures, until, .. } = entry;
        let words = format!("is passed over until {until:.0}: it could not start it ({why})");
        let again = if *failures > 1 { format!(", {failures} times") } else { String::new() };
        Some((node.clone(), words + &again))
    };
    let named = status.iter().flat_map(|status| status.quarantined_nodes.keys());
    let quarantined: BTreeMap<NodeName, String> =
        named.filter_map(shunned).chain(own.keys().filter_map(|p| cannot_start(p))).collect();
    let reported = |place: &PodRef, what: fn(HealthReport) -> Option<Arc<str>>| {
        let health = healths.get(key::health(&place.pod, &place.node).as_str())?;
        Some((place.node.clone(), what(HealthReport::decode(&health.value))?.to_string()))
    };
    let restarting = own.keys().filter_map(|place| reported(place, |report| report.restarting));
    Ok(RcSnapshot {
        unfit: own.keys().filter_map(|place| reported(place, |report| report.unfit)).collect(),
        restarting: restarting.collect(),
        record_index: index,
        now,
        quarantined,
        suspects,
        labels: context.get(&key::rc_labels(found.id)).await?,
        reads_intents,
        slots: free.iter().map(|place| (place.node.clone(), slot(place))).collect(),
        pods: own.iter().map(pod).collect(),
        surplus,
        status,
        lock_held,
        node_capacities: cluster.node_capacities(),
        cluster,
        nodes,
        eligible,
        asked,
    })
}

/// Surplus pods of disabled controllers at these places.
async fn surplus(
    context: &CommandContext,
    cluster: &ClusterSnapshot,
    places: &[PodRef],
    intent: impl Fn(&PodRef) -> Intent,
) -> anyhow::Result<BTreeMap<RcId, SurplusPods>> {
    let owned = |place| Some((place, cluster.pods.owner(place)?));
    let owned: Vec<(&PodRef, RcId)> = places.iter().filter_map(owned).collect();
    let owners: BTreeSet<RcId> = owned.iter().map(|(_, rc)| *rc).collect();
    let records = context.get_many(owners.iter().map(|rc| key::rc(*rc))).await?;
    let mut surplus: BTreeMap<RcId, SurplusPods> = BTreeMap::new();
    for rc in owners {
        let Some(entry) = records.get(key::rc(rc).as_str()) else { continue };
        let Ok(old) = RcSpec::decode(rc, &entry.value) else { continue };
        let over = cluster.pods.of_rc(rc).count().saturating_sub(old.replicas_desired as usize);
        if old.disabled && over > 0 {
            let pods = BTreeMap::new();
            surplus.insert(rc, SurplusPods { record: entry.modify_index, surplus: over, pods });
        }
    }
    let taken = owned.iter().filter(|(_, rc)| surplus.contains_key(rc));
    let taken: Vec<(&PodRef, RcId)> = taken.copied().collect();
    let healths = context
        .get_many(taken.iter().map(|(place, _)| key::health(&place.pod, &place.node)))
        .await?;
    for (place, rc) in taken {
        let (Some(pod), Some(of)) = (cluster.pods.get(place), surplus.get_mut(&rc)) else {
            continue;
        };
        let health = healths.get(key::health(&place.pod, &place.node).as_str());
        of.pods.insert(place.node.clone(), rc_pod(pod, intent(place), health));
    }
    Ok(surplus)
}

impl RcSnapshot {
    /// Readiness of a node, quarantine included.
    pub(super) fn readiness(&self, node: &NodeName) -> NodeReadiness {
        match self.cluster.readiness(node) {
            NodeReadiness::Ready if self.quarantined.contains_key(node) => {
                NodeReadiness::Quarantined
            }
            NodeReadiness::Ready if self.suspects.contains(node) => NodeReadiness::Suspect,
            readiness => readiness,
        }
    }

    /// `spec` with the settings in the controller's labels.
    ///
    /// # Errors [`FieldError`] naming an invalid label, or all labels if they cannot be decoded.
    pub(super) fn with_labels(&self, spec: RcSpec) -> Result<RcSpec, FieldError> {
        let none = Ok(Labels::new());
        let labels = self.labels.as_ref().map_or(none, |entry| decode_labels(&entry.value));
        spec.with_labels(labels.ok().as_ref())
    }

    /// The input of the owner's plan for `spec`.
    pub(super) fn observed(&self, spec: &RcSpec) -> ReplicationObserved {
        let nodes = self.eligible.iter().chain(self.pods.keys().map(|pod_ref| &pod_ref.node));
        let not_ready = |node: &NodeName| {
            let readiness = self.readiness(node);
            (readiness != NodeReadiness::Ready).then(|| (node.clone(), readiness))
        };
        let mut observed = ReplicationObserved {
            spec: Arc::new(spec.clone()),
            pods: Arc::new(self.pods.clone()),
            eligible: Arc::new(self.eligible.clone()),
            not_ready: nodes.filter_map(not_ready).collect(),
            unfit: self.unfit.clone(),
            restarting: self.restarting.clone(),
            set_aside: BTreeMap::new(),
            slots: BTreeMap::new(),
            surplus: self.surplus.clone(),
            capacities: self.node_capacities.clone(),
            allowed_actions: AllowedActions::Full,
            transfer: TransferConditions {
                under_way: self.status.as_ref().and_then(|status| status.transfer.clone()),
                lock_held: self.lock_held,
                discovery_synced: true,
                only_eligible: matches!(self.asked, AskedScheduler::Labels),
            },
        };
        if let Some(status) = &self.status {
            observed.look_up_set_aside(status, self.record_index, self.now);
        }
        let slot =
            |node: &NodeName| self.slots.get(node).map_or(SlotState::Nobody, |(slot, _)| *slot);
        observed.look_up_slots(slot);
        observed
    }
}

fn rc_pod(pod: &LabelledPod, intent: Intent, health: Option<&Entry>) -> RcPod {
    RcPod {
        label_index: pod.index,
        created: pod.created,
        labels: pod.value.labels.clone().unwrap_or_default(),
        intent,
        health: health.map_or(Health::Absent, |entry| Health::decode(&entry.value)),
        unproved: false,
    }
}

fn place(node: &NodeName, pod: &PodId) -> PodRef {
    PodRef { node: node.clone(), pod: pod.clone() }
}
