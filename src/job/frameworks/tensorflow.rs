//! TensorFlow: `TF_CONFIG` (`kubeflow.md` §6.1). The chief or the workers decide (§2.3).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCounts, Variable, all_succeeded, everywhere, led,
    listens, tf_config_of,
};
use rcfarm_api::job::spec::{Framework, JobSpec, JobTask, Slot};
use rcfarm_api::job::status::JobReason;
use rcfarm_api::manifest::{PeerForm, PeerPart, PeersForm, PeersStanza};

const PORT_NAME: &str = "tfjob-port";
/// Default port of a member.
pub(super) const PORT: u16 = 2222;

pub(super) struct TensorFlow;

fn leader(job: &JobSpec) -> Option<&'static str> {
    ["Chief", "Master"]
        .into_iter()
        .find(|name| job.task(name).is_some_and(|task| task.replicas > 0))
}

fn port(task: &JobTask) -> u16 {
    listens(Framework::TensorFlow, task).unwrap_or(PORT)
}

impl Operator for TensorFlow {
    fn port(&self) -> Option<(&'static str, u16)> {
        Some((PORT_NAME, PORT))
    }

    fn listeners(&self, job: &JobSpec, task: &JobTask) -> u32 {
        if job.replicas() > 1 { task.replicas } else { 0 }
    }

    fn is_master(&self, job: &JobSpec, slot: &Slot) -> bool {
        match leader(job) {
            Some(name) => slot.task == name,
            None => slot.task == "Worker" && slot.index == 0,
        }
    }

    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable> {
        // A job with a single member is not distributed.
        if cluster.job.replicas() <= 1 {
            return Vec::new();
        }
        let dense = config(cluster, slot, "cloud");
        let value = if cluster.job.dynamic_workers { sparse(cluster, slot) } else { dense };
        vec![Variable {
            container: Framework::TensorFlow.container(),
            ..everywhere("TF_CONFIG", value)
        }]
    }

    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza {
        if job.replicas() <= 1 {
            return PeersStanza::default();
        }
        tf_config_of(if job.dynamic_workers { sparse_parts(job, slot) } else { parts(job, slot) })
    }

    fn meets_at(&self, _: &JobSpec) -> Vec<Slot> {
        Vec::new()
    }

    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
        let tolerated: &[&str] = if job.dynamic_workers { &["Worker"] } else { &[] };
        led(
            counts,
            leader(job),
            |workers| {
                if all_succeeded(workers) {
                    return Some((JobReason::EnoughSucceeded, "all workers have succeeded"));
                }
                let first = workers.first_succeeded && !job.all_workers_must_succeed;
                first.then_some((JobReason::LeaderSucceeded, "worker 0 has succeeded"))
            },
            tolerated,
        )
    }
}

fn endpoints(cluster: &Cluster<'_>, task: &JobTask) -> Vec<String> {
    cluster.peers(task).map(|peer| peer.at(port(task))).collect()
}

/// Keys have the order of Kubeflow's operator.
fn config(cluster: &Cluster<'_>, slot: &Slot, environment: &str) -> String {
    let members: BTreeMap<String, Vec<String>> = cluster
        .job
        .tasks
        .iter()
        .map(|task| (task.lower_name(), endpoints(cluster, task)))
        .collect();
    format!(
        r#"{{"cluster":{},"task":{},"environment":{}}}"#,
        json!(members),
        task_of(slot),
        json!(environment)
    )
}

/// The parts of [`config`].
fn parts(job: &JobSpec, slot: &Slot) -> Vec<PeerPart> {
    let mut tasks: Vec<&JobTask> = job.tasks.iter().collect();
    tasks.sort_by_key(|task| task.lower_name());
    let mut parts = vec![PeerPart::text(r#"{"cluster":{"#)];
    for (n, task) in tasks.into_iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        parts.push(PeerPart::text(format!("{comma}{}:", json!(task.lower_name()))));
        parts.push(PeerPart::all(&task.name, PeersForm::Endpoints));
    }
    parts.push(PeerPart::text(format!(r#"}},"task":{},"environment":"cloud"}}"#, task_of(slot))));
    parts
}

/// The parts of [`sparse`].
fn sparse_parts(job: &JobSpec, slot: &Slot) -> Vec<PeerPart> {
    let text = |text: &str| PeerPart::Text(text.to_owned());
    let own =
        || [text("\""), PeerPart::one(&slot.task, slot.index, PeerForm::Endpoint), text("\"")];
    let mut parts = vec![text(r#"{"cluster":{"worker":{"#)];
    if slot.task == "Worker" {
        parts.push(PeerPart::text(format!(r#""{}":"#, slot.index)));
        parts.extend(own());
    }
    parts.push(text(r#"},"ps":"#));
    match slot.task.as_str() {
        "Worker" if job.task("PS").is_some() => {
            parts.push(PeerPart::all("PS", PeersForm::Endpoints));
        }
        "PS" => {
            parts.push(text("["));
            parts.extend(own());
            parts.push(text("]"));
        }
        _ => parts.push(text("[]")),
    }
    parts.push(PeerPart::text(format!(r#"}},"task":{}}}"#, task_of(slot))));
    parts
}

fn task_of(slot: &Slot) -> String {
    format!(r#"{{"type":{},"index":{}}}"#, json!(slot.task.to_ascii_lowercase()), slot.index)
}

/// With dynamic workers: a worker knows itself and all parameter servers, a parameter server only itself.
fn sparse(cluster: &Cluster<'_>, slot: &Slot) -> String {
    let own = |task: &JobTask| cluster.peer(&task.name, slot.index).at(port(task));
    let (mut workers, mut servers) = (Value::Object(serde_json::Map::new()), Vec::new());
    if let Some(task) = cluster.job.task("Worker").filter(|_| slot.task == "Worker") {
        workers = json!({slot.index.to_string(): own(task)});
        servers = cluster.job.task("PS").map(|ps| endpoints(cluster, ps)).unwrap_or_default();
    } else if let Some(task) = cluster.job.task("PS").filter(|_| slot.task == "PS") {
        servers = vec![own(task)];
    }
    let cluster = format!(r#"{{"worker":{workers},"ps":{}}}"#, json!(servers));
    format!(r#"{{"cluster":{cluster},"task":{}}}"#, task_of(slot))
}
