//! HiveD's routes for Kubernetes' scheduler: `hived.md` §1.5, §1.6. Decision 39 says how the pods of such a client relate
//! to what is stored.
//!
//! `filter` and `preempt` decide about the cells as they are stored at the time, and change nothing. `bind` is always
//! refused: pods of Kubernetes hold no cells here.
//!
//! Keys read: those of [`super::inspect`], and `rcfarm/pod_groups/` if groups would have to go. Keys written: none.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::Json;
use axum::routing::post;
use serde::de::DeserializeOwned;

use super::inspect::{HivedFailure, InspectedCells, not_implemented};
use crate::cluster::cells::CellsSnapshot;
use crate::cluster::queues::GroupIndex;
use crate::placement::cells::gang;
use rcfarm_api::cells::{ChainReason, GroupKey};
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_cells::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, ExtenderPod,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, VictimsByNode,
};
use rcfarm_cells::{CellDecision, CellWait};
use rcfarm_store::cache::read_once;

/// Longest body, in bytes. A pod and the names of 100,000 nodes take less.
const LONGEST_BODY: usize = 4 << 20;

/// Time for a body. Kubernetes' scheduler waits for 5 s at most.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why nothing is bound.
const NOT_BOUND: &str =
    "farms place the pods of their own jobs, and keep no cells for pods of Kubernetes";

/// `POST /v1/extender/filter`, `preempt` and `bind`.
pub(super) fn routes() -> Router<InspectedCells> {
    Router::new()
        .route("/v1/extender/filter", post(filter).fallback(not_implemented))
        .route("/v1/extender/bind", post(bind).fallback(not_implemented))
        .route("/v1/extender/preempt", post(preempt).fallback(not_implemented))
}

/// Failures are part of the answer, with status 200.
async fn filter(State(cells): State<InspectedCells>, body: Body) -> Json<ExtenderFilterResult> {
    let answer = async {
        let args: ExtenderArgs = read(body, "ExtenderArgs").await?;
        let pod = pod(args.pod, "ExtenderArgs")?;
        let suggested = args.node_names.as_ref();
        let decided = decide(&cells, &pod, suggested).await;
        let (now, decision) =
            decided.map_err(|bad| bad.of_routine(&pod.name(), "filterRoutine"))?;
        let pods = |groups: &[GroupKey]| pods_by_node(&now, groups);
        Ok(ExtenderFilterResult::of(&decision, suggested, pods))
    };
    let answer: Result<ExtenderFilterResult, HivedFailure> = answer.await;
    Json(answer.unwrap_or_else(|failure| ExtenderFilterResult::failed(failure.text())))
}

/// A failure has its status, since the answer has no place for it.
async fn preempt(
    State(cells): State<InspectedCells>,
    body: Body,
) -> Result<Json<ExtenderPreemptionResult>, HivedFailure> {
    let args: ExtenderPreemptionArgs = read(body, "ExtenderPreemptionArgs").await?;
    let pod = pod(args.pod, "ExtenderPreemptionArgs")?;
    let nodes = args.node_name_to_meta_victims.map(|nodes| nodes.into_keys().collect());
    let decided = decide(&cells, &pod, nodes.as_ref()).await;
    let (now, decision) = decided.map_err(|bad| bad.of_routine(&pod.name(), "preemptRoutine"))?;
    let pods = |groups: &[GroupKey]| pods_by_node(&now, groups);
    Ok(Json(ExtenderPreemptionResult::of(&decision, pods)))
}

async fn bind(body: Body) -> Json<ExtenderBindingResult> {
    let refused = match read::<ExtenderBindingArgs>(body, "ExtenderBindingArgs").await {
        Err(bad) => bad,
        Ok(args) if !args.is_complete() => {
            HivedFailure::user("ExtenderBindingArgs: All fields should not be empty")
        }
        Ok(args) => {
            let why = format!(
                "Pod cannot be bound without a scheduling placement: Pod current scheduling state Waiting, received \
                 node {}: {NOT_BOUND}",
                args.node
            );
            HivedFailure::user(why).of_routine(&args.pod(), "bindRoutine")
        }
    };
    Json(ExtenderBindingResult { error: refused.text() })
}

/// Reads a body, whatever content type it names, as HiveD does.
async fn read<T: DeserializeOwned>(body: Body, of: &str) -> Result<T, HivedFailure> {
    let unreadable = |why: String| {
        HivedFailure::user(format!("Failed to unmarshal web request body to {of}: {why}"))
    };
    let bytes = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, LONGEST_BODY)).await;
    let bytes =
        bytes.map_err(|_| unreadable(format!("it did not come within {BODY_TIMEOUT:?}")))?;
    let bytes = bytes
        .map_err(|bad| unreadable(format!("{bad}; the longest body has {LONGEST_BODY} bytes")))?;
    serde_json::from_slice(&bytes).map_err(|bad| unreadable(bad.to_string()))
}

fn pod(pod: Option<ExtenderPod>, of: &str) -> Result<ExtenderPod, HivedFailure> {
    pod.ok_or_else(|| HivedFailure::user(format!("{of}: Pod field should not be nil")))
}

/// The decision about a pod, with the cells for which it holds. A group whose victims' disruption budget forbids to
/// stop them waits, as it does if a farm places it.
async fn decide(
    cells: &InspectedCells,
    pod: &ExtenderPod,
    suggested: Option<&BTreeSet<String>>,
) -> Result<(CellsSnapshot, CellDecision), HivedFailure> {
    let now = cells.read().await?;
    let decided = now.scheduler.decide_pod(pod, suggested);
    let decision = decided.map_err(|bad| HivedFailure::user(bad.message))?;
    let CellDecision::Preempt(plan) = &decision else { return Ok((now, decision)) };
    let groups: GroupIndex = read_once(cells.reader.as_ref(), &key::pod_groups())
        .await
        .map_err(|error| HivedFailure::platform(error.to_string()))?;
    let of = |key: &GroupKey| {
        let (id, record) = now.holder(key)?;
        let group = groups.0.get(id).and_then(|group| group.value.as_ref().ok());
        Some((record, group.and_then(PodGroupRecord::forbids_stop)))
    };
    let Some(reason) = gang::forbidden(plan, of) else { return Ok((now, decision)) };
    let reasons = vec![ChainReason { chain: plan.chain.clone(), reason }];
    Ok((now, CellDecision::Wait(CellWait { reasons, cancel: None })))
}

/// The pods of groups by node, each by the id under which its node knows it.
fn pods_by_node(now: &CellsSnapshot, groups: &[GroupKey]) -> VictimsByNode {
    now.scheduler.pods_by_node(groups, |group, name| {
        let (id, _) = now.holder(group)?;
        let status = now.statuses.0.get(id)?.value.as_ref()?;
        let place = status.placement.as_ref()?;
        let (task, index) = name.rsplit_once('/')?;
        let index: u32 = index.parse().ok()?;
        let is_placed = place.placed().any(|(of, n, _)| of == task && n == index);
        let pod = place.pod_ids.pod_id(id, task, index).ok()?;
        is_placed.then(|| pod.to_string())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::inspect::tests::{furnished, put, send};
    use rcfarm_emulator::Emulator;
    use rcfarm_store::{Prefix, Query, Reader as _};

    /// A pod of a group of one pod with two devices, of priority 5, as kube-scheduler sends it.
    fn pod(group: &str, priority: i32) -> Value {
        let spec = format!(
            "virtualCluster: A\npriority: {priority}\nleafCellNumber: 2\naffinityGroup: {{name: {group}, members: \
             [{{podNumber: 1, leafCellNumber: 2}}]}}"
        );
        json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "creationTimestamp": null, "annotations":
                {"hivedscheduler.microsoft.com/pod-scheduling-spec": spec}},
            "spec": {"schedulerName": "hivedscheduler", "containers": [{"name": "c", "resources": {"limits":
                {"hivedscheduler.microsoft.com/pod-scheduling-enable": "1"}}}]},
            "status": {},
        })
    }

    async fn ask(store: &Emulator, verb: &str, body: &Value) -> (u16, Value) {
        let asked = ("POST", format!("extender/{verb}"), body.to_string().into_bytes());
        send(store.clone(), &[asked]).await.remove(0)
    }

    #[tokio::test]
    async fn a_pod_is_filtered_preempts_and_is_not_bound() {
        let store = furnished().await;
        let entries = async || store.list(&Prefix::parse("rcfarm/").unwrap(), Query::PLAIN).await;
        let before = entries().await.unwrap().value;
        let body = json!({"Pod": pod("new", 5), "NodeNames": ["n1", "n2"]});
        let (code, answer) = ask(&store, "filter", &body).await;
        let failed = json!({"n1": "node(n1) has preemptible Pods: j-w-0"});
        let expected =
            json!({"Nodes": null, "NodeNames": null, "FailedNodes": failed, "Error": ""});
        assert_eq!((code, answer), (200, expected));
        let nodes = json!({"n1": {"Pods": [], "NumPDBViolations": 0}});
        let body = json!({"Pod": pod("new", 5), "NodeNameToMetaVictims": nodes});
        let victims = json!({"n1": {"Pods": [{"UID": "j-w-0"}], "NumPDBViolations": 0}});
        let answer = ask(&store, "preempt", &body).await;
        assert_eq!(answer, (200, json!({"NodeNameToMetaVictims": victims})));
        let body = json!({"PodName": "p", "PodNamespace": "ns", "PodUID": "u1", "Node": "n1"});
        let (code, answer) = ask(&store, "bind", &body).await;
        let why = answer["Error"].as_str().unwrap();
        let text = "hivedscheduler: User Error: [u1(ns/p)]: bindRoutine: Failed: Pod cannot be bound without a \
                    scheduling placement: Pod current scheduling state Waiting, received node n1: farms place";
        assert!(code == 200 && why.starts_with(text), "{code} {why}");
        assert_eq!(entries().await.unwrap().value, before, "something was written");
    }

    #[tokio::test]
    async fn groups_of_equal_priority_and_those_with_a_budget_stay() {
        let store = furnished().await;
        let waits = "Pod is waiting for preemptible or free resource to appear: chain NODE: ";
        let reason = async |priority| {
            let (code, answer) = ask(&store, "filter", &json!({"Pod": pod("new", priority)})).await;
            assert_eq!(code, 200);
            answer["FailedNodes"]["hivedscheduler"].as_str().unwrap_or_default().to_owned()
        };
        let equal = reason(3).await;
        assert!(equal.starts_with(waits) && equal.contains("insufficient capacity"), "{equal}");
        assert_eq!(reason(5).await, "");
        let group = json!({"spec": {"queue": "default", "budget": {"minAvailable": 1}, "tasks": [{"name": "w",
            "replicas": 1}]}, "members": {"running": 1}});
        put(&store, key::pod_group(&"ns/j".parse().unwrap()), group).await;
        let kept = reason(5).await;
        assert!(kept.starts_with(waits) && kept.contains("disruption budget"), "{kept}");
        let (code, answer) = ask(&store, "preempt", &json!({"Pod": pod("new", 5)})).await;
        assert_eq!((code, answer), (200, json!({"NodeNameToMetaVictims": null})));
    }

    #[tokio::test]
    async fn errors_are_in_the_answer_of_filter_and_the_status_of_preempt() {
        let store = furnished().await;
        let user = |why: &str| format!("hivedscheduler: User Error: {why}");
        let nil = user("ExtenderArgs: Pod field should not be nil");
        let (code, answer) = ask(&store, "filter", &json!({"NodeNames": []})).await;
        assert_eq!((code, &answer["Error"]), (200, &json!(nil)));
        let nil = user("ExtenderPreemptionArgs: Pod field should not be nil");
        assert_eq!(ask(&store, "preempt", &json!({})).await, (400, json!(nil)));
        let empty = user("ExtenderBindingArgs: All fields should not be empty");
        assert_eq!(ask(&store, "bind", &json!({})).await, (200, json!({"Error": empty})));
        let more = "Requesting more pods than the configured number for 2 leaf cells (1 pods) in affinity group g/h";
        let more = user(&format!("[u1(ns/p)]: preemptRoutine: Failed: {more}"));
        let held = ask(&store, "preempt", &json!({"Pod": pod("g/h", 3)})).await;
        assert_eq!(held, (400, json!(more)));
        let get = ("GET", "extender/filter".to_owned(), Vec::new());
        let answers = send(store.clone(), &[get]).await;
        assert_eq!(answers, [(400, json!(user("NotImplemented")))]);
        let none = ask(&Emulator::default(), "preempt", &json!({"Pod": pod("g", 3)})).await;
        let platform = "hivedscheduler: Platform Error: [u1(ns/p)]: preemptRoutine: Failed: there are no cells";
        assert_eq!(none, (500, json!(platform)));
    }

    #[tokio::test]
    async fn bodies_that_are_too_long_or_no_json_are_refused() {
        let store = furnished().await;
        let cannot =
            "hivedscheduler: User Error: Failed to unmarshal web request body to ExtenderArgs: ";
        for (body, why) in [
            (vec![b' '; LONGEST_BODY + 1], "the longest body has"),
            (b"[".to_vec(), "EOF"),
            (br#"{"Pod": {"metadata": 3}}"#.to_vec(), "invalid type"),
        ] {
            let filter = ("POST", "extender/filter".to_owned(), body.clone());
            let preempt = ("POST", "extender/preempt".to_owned(), body);
            let answers = send(store.clone(), &[filter, preempt]).await;
            let text = answers[0].1["Error"].as_str().unwrap();
            assert!(text.starts_with(cannot) && text.contains(why), "{text}");
            assert_eq!((answers[0].0, answers[1].0), (200, 400));
        }
    }
}
