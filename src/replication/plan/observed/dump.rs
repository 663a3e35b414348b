//! JSON form of the plan's input, for bug reports and tests.
//!
//! It contains no secrets: of the manifest only id, resources and ports, which is all that the plan reads. Pods' labels,
//! node names and allocations are included. Only nodes that the plan can look at are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{RcPod, ReplicationObserved, SlotState, SurplusPods, TransferConditions};
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::NodeCapacity;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::Labels;
use rcfarm_api::rc::spec::{RcRecord, RcSpec};
use rcfarm_api::rc::update::{UpdateChoice, UpdateOrder};

/// Version of the form. A change that an older program would misread raises it.
const VERSION: u32 = 1;

/// The input as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    version: u32,
    /// The record, with a manifest that has only id, resources and ports.
    record: RcRecord,
    /// The RC's own labels, as far as they declare something.
    labels: Labels,
    pods: BTreeMap<PodRef, RcPod>,
    eligible_nodes: BTreeSet<NodeName>,
    not_ready: BTreeMap<NodeName, NodeReadiness>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    unfit: BTreeMap<NodeName, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    restarting: BTreeMap<NodeName, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    set_aside: BTreeMap<NodeName, String>,
    slots: BTreeMap<NodeName, SlotState>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    surplus: BTreeMap<RcId, SurplusPods>,
    capacities: BTreeMap<NodeName, Arc<NodeCapacity>>,
    allowed_actions: AllowedActions,
    transfer: TransferConditions,
}

fn record(spec: &RcSpec) -> RcRecord {
    let id = spec.manifest.id();
    // JSON is YAML.
    let mut manifest = json!({"id": id});
    if !spec.resources().is_zero() {
        manifest["resources"] = json!(spec.resources());
    }
    if !spec.manifest.ports().is_empty() {
        manifest["ports"] = json!(spec.manifest.ports());
    }
    RcRecord {
        id: spec.id,
        manifest: manifest.to_string(),
        node_selector: spec.node_selector.to_string(),
        pod_labels: Some(spec.pod_labels.clone()),
        replicas_desired: i64::from(spec.replicas_desired),
        disabled: spec.disabled,
        allocation_strategy: spec.strategy.as_str().to_owned(),
        other: serde_json::Map::new(),
    }
}

fn labels(spec: &RcSpec, record: &RcRecord) -> Labels {
    let mut labels = Labels::new();
    if spec.in_order != spec.min_health.is_some() {
        let order = if spec.in_order { UpdateOrder::InOrder } else { UpdateOrder::AtOnce };
        let choice = UpdateChoice::new(order, &record.manifest);
        labels.insert(key::UPDATE_LABEL.to_owned(), choice.to_string());
    }
    labels.extend(spec.min_health.map(|n| (key::MIN_HEALTH_LABEL.to_owned(), n.to_string())));
    labels.insert(key::PACKING_LABEL.to_owned(), spec.packing.to_string());
    labels
}

impl From<ReplicationObserved> for Document {
    fn from(observed: ReplicationObserved) -> Document {
        let nodes = observed.pods.keys().map(|pod_ref| &pod_ref.node).chain(&*observed.eligible);
        let capacity =
            |node: &NodeName| Some((node.clone(), observed.capacities.get(node)?.clone()));
        let record = record(&observed.spec);
        Document {
            version: VERSION,
            labels: labels(&observed.spec, &record),
            record,
            capacities: nodes.filter_map(capacity).collect(),
            pods: Arc::unwrap_or_clone(observed.pods),
            eligible_nodes: Arc::unwrap_or_clone(observed.eligible),
            not_ready: observed.not_ready,
            unfit: observed.unfit,
            restarting: observed.restarting,
            set_aside: observed.set_aside,
            slots: observed.slots,
            surplus: observed.surplus,
            allowed_actions: observed.allowed_actions,
            transfer: observed.transfer,
        }
    }
}

impl TryFrom<Document> for ReplicationObserved {
    type Error = String;

    fn try_from(document: Document) -> Result<Self, String> {
        if document.version != VERSION {
            return Err(format!("version {}: this program reads {VERSION}", document.version));
        }
        let checked = RcSpec::check(document.record.id, &document.record);
        let spec = checked.and_then(|spec| spec.with_labels(Some(&document.labels)));
        Ok(ReplicationObserved {
            spec: Arc::new(spec.map_err(|bad| bad.to_string())?),
            pods: Arc::new(document.pods),
            eligible: Arc::new(document.eligible_nodes),
            not_ready: document.not_ready,
            unfit: document.unfit,
            restarting: document.restarting,
            set_aside: document.set_aside,
            slots: document.slots,
            surplus: document.surplus,
            capacities: document.capacities.into_iter().collect(),
            allowed_actions: document.allowed_actions,
            transfer: document.transfer,
        })
    }
}
