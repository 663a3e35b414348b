//! TensorFlow: `TF_CONFIG` (`kubeflow.md` §6.1). The chief or the workers decide (§2.3).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    Cluster, FrameworkOutcome, Operator, TaskCounts, Variable, all_succeeded, everywhere, led,
    listens,
};
use rcfarm_api::job::spec::{Framework, JobSpec, JobTask, Slot};
use rcfarm_api::job::status::JobReason;

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
