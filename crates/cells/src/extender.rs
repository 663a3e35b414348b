//! The protocol of Kubernetes' scheduler extenders, as HiveD speaks it: `hived.md` §1.5, §1.6.
//!
//! Requests have the names of Go's fields (`NodeNames`), or those of the versioned API (`nodenames`): Go accepts both.
//! Results have Go's names, and `null` for what is empty, as HiveD writes them.
//!
//! A decision is about the cells as they are. It changes nothing: no cell is kept for the pod that asks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::or_default;
use crate::group::GroupKey;
use crate::request::{ANNOTATION_POD_SCHEDULING_SPEC, BadRequest, PodRequest};
use crate::scheduler::{CellDecision, CellScheduler, CellWait};

/// Name under which a result says why a pod waits, in place of a node's: HiveD's.
pub const COMPONENT_NAME: &str = "hivedscheduler";

/// Namespace of a pod that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// What of a Kubernetes pod a decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ExtenderPod {
    #[serde(default)]
    metadata: ExtenderPodMeta,
    #[serde(default)]
    spec: ExtenderPodSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct ExtenderPodMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default, deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExtenderPodSpec {
    /// The node that it is bound to.
    #[serde(default)]
    node_name: String,
}

/// Body of `/v1/extender/filter`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ExtenderArgs {
    /// The pod to place.
    #[serde(default, rename = "Pod", alias = "pod")]
    pub pod: Option<ExtenderPod>,
    /// Nodes on which it would fit; missing: all.
    #[serde(default, rename = "NodeNames", alias = "nodenames", alias = "nodeNames")]
    pub node_names: Option<BTreeSet<String>>,
}

/// Answer of `/v1/extender/filter`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// Always `null`: nodes have names.
    pub nodes: Option<()>,
    /// The one node of the pod.
    pub node_names: Option<Vec<String>>,
    /// Why by node, or by [`COMPONENT_NAME`], the pod has none.
    pub failed_nodes: Option<BTreeMap<String, String>>,
    /// Why there is no decision; empty: there is one.
    pub error: String,
}

/// Body of `/v1/extender/bind`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingArgs {
    #[serde(default, alias = "podName")]
    pub pod_name: String,
    #[serde(default, alias = "podNamespace")]
    pub pod_namespace: String,
    #[serde(default, rename = "PodUID", alias = "podUID")]
    pub pod_uid: String,
    #[serde(default, alias = "node")]
    pub node: String,
}

impl ExtenderBindingArgs {
    /// The pod as errors name it.
    #[must_use]
    pub fn pod(&self) -> String {
        format!("{}({}/{})", self.pod_uid, self.pod_namespace, self.pod_name)
    }

    /// Whether all fields are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        [&self.pod_name, &self.pod_namespace, &self.pod_uid, &self.node]
            .iter()
            .all(|field| !field.is_empty())
    }
}

/// Answer of `/v1/extender/bind`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Why the pod is not bound; empty: it is.
    pub error: String,
}

/// A pod that has to go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    pub uid: String,
}

/// Pods of one node that have to go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    #[serde(default, alias = "pods", deserialize_with = "or_default")]
    pub pods: Vec<MetaPod>,
    /// Always 0: groups whose disruption budget forbids it are no victims.
    #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations")]
    pub num_pdb_violations: i64,
}

/// Victims by node.
pub type VictimsByNode = BTreeMap<String, MetaVictims>;

/// Body of `/v1/extender/preempt`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ExtenderPreemptionArgs {
    /// The pod to place.
    #[serde(default, rename = "Pod", alias = "pod")]
    pub pod: Option<ExtenderPod>,
    /// Nodes on which it would fit if these pods were gone; missing: all.
    #[serde(default, rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    pub node_name_to_meta_victims: Option<VictimsByNode>,
}

/// Answer of `/v1/extender/preempt`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionResult {
    /// Victims on one node, as Kubernetes preempts on one node at a time; `null`: none.
    pub node_name_to_meta_victims: Option<VictimsByNode>,
}

impl ExtenderPod {
    /// The pod as errors name it: HiveD's `uid(namespace/name)`.
    #[must_use]
    pub fn name(&self) -> String {
        let of = &self.metadata;
        format!("{}({}/{})", of.uid, self.namespace(), of.name)
    }

    fn namespace(&self) -> &str {
        match &*self.metadata.namespace {
            "" => DEFAULT_NAMESPACE,
            namespace => namespace,
        }
    }

    fn request(&self) -> Result<PodRequest, BadRequest> {
        let none = String::new();
        let text = self.metadata.annotations.get(ANNOTATION_POD_SCHEDULING_SPEC).unwrap_or(&none);
        PodRequest::parse(text, self.namespace(), &self.metadata.name)
    }
}

impl CellScheduler {
    /// The decision about a pod of an extender's client; nothing changes. `suggested`: nodes on which it would fit;
    /// none: all. They count if the request is strict about them, and no group has cells by its name.
    ///
    /// # Errors
    /// What HiveD refuses with 400.
    pub fn decide_pod(
        &self,
        pod: &ExtenderPod,
        suggested: Option<&BTreeSet<String>>,
    ) -> Result<CellDecision, BadRequest> {
        if !pod.spec.node_name.is_empty() {
            let node = &pod.spec.node_name;
            return Err(BadRequest::new(format!("Pod has already been bound to node {node}")));
        }
        let mut request = pod.request()?;
        let Some(group) = self.group(&request.group.key) else {
            return self.plan(&request, &pod.name(), suggested);
        };
        // Whether it keeps to suggested nodes is the holder's affair: farms decide that, whatever the pods ask for.
        request.group.ignore_suggested_nodes = group.request.ignore_suggested_nodes;
        self.plan(&request, &pod.name(), None)
    }

    /// The pods of groups, by node. `uid`: a pod's identity; pods without one are left out.
    pub fn pods_by_node(
        &self,
        groups: &[GroupKey],
        uid: impl Fn(&GroupKey, &str) -> Option<String>,
    ) -> VictimsByNode {
        let mut found = VictimsByNode::new();
        for group in groups.iter().filter_map(|key| self.group(key)) {
            for place in &group.pods {
                let name = place.pod.as_deref();
                if let Some(uid) = name.and_then(|name| uid(&group.key, name)) {
                    found.entry(place.node.clone()).or_default().pods.push(MetaPod { uid });
                }
            }
        }
        found
    }
}

impl ExtenderFilterResult {
    /// Tells a decision. `pods`: the pods of a plan's victims, by node.
    #[must_use]
    pub fn of(
        decision: &CellDecision,
        suggested: Option<&BTreeSet<String>>,
        pods: impl FnOnce(&[GroupKey]) -> VictimsByNode,
    ) -> ExtenderFilterResult {
        let failed = |nodes: BTreeMap<String, String>| ExtenderFilterResult {
            failed_nodes: Some(nodes),
            ..ExtenderFilterResult::default()
        };
        match decision {
            CellDecision::Bind(plan) => {
                let node = plan.place().node.clone();
                if suggested.is_some_and(|nodes| !nodes.contains(&node)) {
                    let why = "the cells of the Pod are on this node, which is not a suggested one";
                    return failed([(node, why.to_owned())].into());
                }
                ExtenderFilterResult {
                    node_names: Some(vec![node]),
                    ..ExtenderFilterResult::default()
                }
            }
            CellDecision::Preempt(plan) => {
                let text = |(node, victims): (String, MetaVictims)| {
                    let uids: Vec<&str> = victims.pods.iter().map(|pod| &*pod.uid).collect();
                    let why = format!("node({node}) has preemptible Pods: {}", uids.join(", "));
                    (node, why)
                };
                failed(pods(&plan.victims).into_iter().map(text).collect())
            }
            CellDecision::Wait(wait) => failed([(COMPONENT_NAME.to_owned(), waits(wait))].into()),
        }
    }

    /// The answer to a request that failed.
    #[must_use]
    pub fn failed(error: String) -> ExtenderFilterResult {
        ExtenderFilterResult { error, ..ExtenderFilterResult::default() }
    }
}

/// HiveD's text for a pod that waits, with the reason of each chain.
fn waits(wait: &CellWait) -> String {
    let reasons: Vec<String> = wait.reasons.iter().map(ToString::to_string).collect();
    format!("Pod is waiting for preemptible or free resource to appear: {}", reasons.join("; "))
}

impl ExtenderPreemptionResult {
    /// Victims on the node of the pod's own place, if there are any, else on the first node by name.
    #[must_use]
    pub fn of(
        decision: &CellDecision,
        pods: impl FnOnce(&[GroupKey]) -> VictimsByNode,
    ) -> ExtenderPreemptionResult {
        let CellDecision::Preempt(plan) = decision else {
            return ExtenderPreemptionResult::default();
        };
        let mut all = pods(&plan.victims);
        let own = all.remove_entry(&plan.place().node);
        let one = own.or_else(|| all.pop_first());
        ExtenderPreemptionResult { node_name_to_meta_victims: one.map(|one| [one].into()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::rack;

    fn scheduler() -> CellScheduler {
        let clusters =
            "{A: {virtualCells: [{cellType: RACK.NODE, cellNumber: 2}]}, B: {virtualCells: []}}";
        rack("", clusters, &["n0", "n1"])
    }

    /// Arguments of kube-scheduler for a pod of a group of `pods` pods with two devices each.
    fn args(vc: &str, priority: i32, group: &str, pods: u32, more: &Value) -> ExtenderArgs {
        let spec = format!(
            "virtualCluster: {vc}\npriority: {priority}\nleafCellNumber: 2\naffinityGroup:\n  name: {group}\n  \
             members: [{{podNumber: {pods}, leafCellNumber: 2}}]\n{}",
            more["spec"].as_str().unwrap_or_default()
        );
        let pod = json!({
            "metadata": {"name": "p0", "namespace": "ns", "uid": "u0", "annotations": {
                "hivedscheduler.microsoft.com/pod-scheduling-spec": spec}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {
                "hivedscheduler.microsoft.com/pod-scheduling-enable": "1"}}}],
                "nodeName": more["node"].as_str().unwrap_or_default()},
            "status": {"phase": "Pending"},
        });
        let names = more.get("names").cloned().unwrap_or_else(|| json!(["n0", "n1"]));
        serde_json::from_value(json!({"Pod": pod, "Nodes": null, "NodeNames": names})).unwrap()
    }

    fn place(scheduler: &mut CellScheduler, args: &ExtenderArgs, pods: &[&str]) {
        let decision = scheduler.decide_pod(args.pod.as_ref().unwrap(), None).unwrap();
        let CellDecision::Bind(plan) = decision else { panic!("{decision:?}") };
        let pods: Vec<String> = pods.iter().map(|&pod| pod.to_owned()).collect();
        scheduler.commit_gang(&plan, &pods, jiff::Timestamp::UNIX_EPOCH).unwrap();
    }

    fn uid(group: &GroupKey, pod: &str) -> Option<String> {
        Some(format!("{group}:{pod}"))
    }

    fn filter(scheduler: &CellScheduler, args: &ExtenderArgs) -> Value {
        let suggested = args.node_names.as_ref();
        let decision = scheduler.decide_pod(args.pod.as_ref().unwrap(), suggested).unwrap();
        let pods = |groups: &[GroupKey]| scheduler.pods_by_node(groups, uid);
        serde_json::to_value(ExtenderFilterResult::of(&decision, suggested, pods)).unwrap()
    }

    fn preempt(scheduler: &CellScheduler, args: &ExtenderArgs) -> Value {
        let decision = scheduler.decide_pod(args.pod.as_ref().unwrap(), None).unwrap();
        let pods = |groups: &[GroupKey]| scheduler.pods_by_node(groups, uid);
        serde_json::to_value(ExtenderPreemptionResult::of(&decision, pods)).unwrap()
    }

    #[test]
    fn filter_names_the_one_node_and_changes_nothing() {
        let scheduler = scheduler();
        let asked = args("A", 1, "g", 1, &json!({}));
        let found = json!({"Nodes": null, "NodeNames": ["n0"], "FailedNodes": null, "Error": ""});
        for _ in 0..2 {
            assert_eq!(filter(&scheduler, &asked), found);
        }
        assert_eq!(preempt(&scheduler, &asked), json!({"NodeNameToMetaVictims": null}));
        assert_eq!(scheduler.groups().count(), 0);
    }

    #[test]
    fn filter_keeps_to_suggested_nodes() {
        let scheduler = scheduler();
        let only = json!({"names": ["n1"]});
        let loose = filter(&scheduler, &args("A", 1, "g", 1, &only));
        assert_eq!(loose["NodeNames"], json!(null));
        let why = loose["FailedNodes"]["n0"].as_str().unwrap();
        assert!(why.ends_with("not a suggested one"), "{why}");
        let strict = json!({"names": ["n1"], "spec": "ignoreK8sSuggestedNodes: false"});
        let strict = filter(&scheduler, &args("A", 1, "g", 1, &strict));
        assert_eq!(strict["NodeNames"], json!(["n1"]));
        let any = filter(&scheduler, &args("A", 1, "g", 1, &json!({"names": null})));
        assert_eq!(any["NodeNames"], json!(["n0"]));
    }

    #[test]
    fn a_pod_that_waits_is_told_why_under_the_components_name() {
        let scheduler = scheduler();
        let answer = filter(&scheduler, &args("A", 1, "g", 3, &json!({})));
        let why = answer["FailedNodes"]["hivedscheduler"].as_str().unwrap();
        let text = "Pod is waiting for preemptible or free resource to appear: ";
        assert!(why.starts_with(text) && why.len() > text.len(), "{why}");
        assert_eq!((&answer["NodeNames"], &answer["Error"]), (&json!(null), &json!("")));
        let waits = preempt(&scheduler, &args("A", 1, "g", 3, &json!({})));
        assert_eq!(waits, json!({"NodeNameToMetaVictims": null}));
    }

    #[test]
    fn victims_are_whole_groups_and_preempt_names_one_node() {
        let mut scheduler = scheduler();
        place(&mut scheduler, &args("B", -1, "lent", 2, &json!({})), &["w/0", "w/1"]);
        let asked = args("A", 1, "g", 1, &json!({}));
        let answer = filter(&scheduler, &asked);
        assert_eq!(answer["NodeNames"], json!(null));
        let failed = answer["FailedNodes"].as_object().unwrap();
        assert_eq!(failed.keys().collect::<Vec<_>>(), ["n0", "n1"]);
        assert_eq!(failed["n0"], "node(n0) has preemptible Pods: B/lent:w/0");
        let pods = json!({"Pods": [{"UID": "B/lent:w/0"}], "NumPDBViolations": 0});
        assert_eq!(preempt(&scheduler, &asked), json!({"NodeNameToMetaVictims": {"n0": pods}}));
        assert_eq!(scheduler.groups().count(), 1, "nothing is reserved");
    }

    #[test]
    fn groups_that_hold_cells_have_no_place_for_more_pods() {
        let mut scheduler = scheduler();
        let asked = args("A", 1, "g", 1, &json!({"spec": "ignoreK8sSuggestedNodes: false"}));
        place(&mut scheduler, &asked, &["w/0"]);
        // The same but for its suggested nodes.
        let again = args("A", 1, "g", 1, &json!({}));
        let bad = scheduler.decide_pod(again.pod.as_ref().unwrap(), None).unwrap_err();
        let text = "Requesting more pods than the configured number for 2 leaf cells (1 pods) in affinity group g";
        assert_eq!(bad.message, text);
        let bound = args("A", 1, "h", 1, &json!({"node": "n1"}));
        let bad = scheduler.decide_pod(bound.pod.as_ref().unwrap(), None).unwrap_err();
        assert_eq!(bad.message, "Pod has already been bound to node n1");
        let unknown = args("X", 1, "h", 1, &json!({}));
        let bad = scheduler.decide_pod(unknown.pod.as_ref().unwrap(), None).unwrap_err();
        assert_eq!(bad.message, "[u0(ns/p0)]: VC X does not exists!");
    }

    #[test]
    fn names_of_the_versioned_api_are_read_too() {
        let args: ExtenderArgs = serde_json::from_value(json!({"pod": {"metadata": {"uid": "u",
            "annotations": null}}, "nodenames": ["n0"]}))
        .unwrap();
        assert_eq!(args.pod.unwrap().name(), "u(default/)");
        assert_eq!(args.node_names, Some(["n0".to_owned()].into()));
        let args: ExtenderPreemptionArgs = serde_json::from_value(json!({"pod": {},
            "nodeNameToMetaVictims": {"n0": {"pods": [{"uid": "u"}]}}}))
        .unwrap();
        assert_eq!(args.node_name_to_meta_victims.unwrap()["n0"].pods[0].uid, "u");
        let args: ExtenderBindingArgs = serde_json::from_value(json!({"podName": "p",
            "podNamespace": "ns", "podUID": "u", "node": "n0"}))
        .unwrap();
        assert!(args.is_complete());
        assert_eq!(args.pod(), "u(ns/p)");
    }
}
