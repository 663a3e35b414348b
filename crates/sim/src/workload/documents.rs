//! Initial records of replication controllers, jobs and queues.

use serde_json::{Value, json};
use uuid::Uuid;

use super::cells;
use crate::fleet::CELL_JOBS;
use rcfarm_api::ids::{Namespaced, PodId, RcId};
use rcfarm_api::rc::spec::RcRecord;

/// Number of replication controllers. The last two have the same pod id.
pub const RECORDS: usize = 5;
/// Kinds of jobs. A job's name begins with its kind.
pub const KINDS: [&str; 13] = [
    "one", "gang", "steps", "pods", "tf", "torch", "mpi", "doomed", "elastic", "plain", "evicted",
    "endless", "wide",
];
/// The queues: `strict` and `loose` below `top`, and `default`.
pub const QUEUES: [&str; 4] = ["top", "strict", "loose", "default"];

/// The id of a record.
#[must_use]
pub fn rc_id(n: usize) -> RcId {
    RcId(Uuid::from_u128(0xabcd_0000_0000_4000_8000_0000_0000_0000 + n as u128))
}

/// Pod id of a record; the last two share one.
#[must_use]
pub fn pod_id(n: usize) -> PodId {
    let name = if n == 3 || n == 4 { "shared".to_owned() } else { format!("pod-{n}") };
    name.parse().expect("a pod's id")
}

/// The manifest of a service. On nodes that the real agent runs, its health check is asked every other second.
#[must_use]
pub fn service(pod: &PodId, asks: &str) -> String {
    format!(
        "id: {pod}\n{asks}launchables:\n  app: {{launchable_type: process, command: [serve], \
         health: {{exec: [ask], interval: 2s, critical_after: 1}}}}\n"
    )
}

/// Initial record.
#[must_use]
pub fn record(n: usize) -> RcRecord {
    let strategy = if n.is_multiple_of(2) { "dynamic_strategy" } else { "static_strategy" };
    let asks = if n < 3 { "resources: {cpu: 1}\n" } else { "" };
    RcRecord {
        id: rc_id(n),
        manifest: service(&pod_id(n), asks),
        node_selector: "pool=web".to_owned(),
        pod_labels: None,
        replicas_desired: [3, 3, 4, 2, 2, 2][n],
        disabled: false,
        allocation_strategy: strategy.to_owned(),
        other: serde_json::Map::new(),
    }
}

/// The name of a job.
#[must_use]
pub fn job_id(kind: &str, n: usize) -> Namespaced {
    format!("team/{kind}-{n}").parse().expect("a job's name")
}

fn task(name: &str, replicas: u32, container: &str) -> Value {
    json!({"name": name, "replicas": replicas, "template": template(container)})
}

fn template(container: &str) -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": container, "command": ["true"], "resources": {"requests": {"cpu": 1}}},
    ]}})
}

fn member(replicas: u32, restart: &str, container: &str) -> Value {
    json!({"replicas": replicas, "restartPolicy": restart, "template": template(container)})
}

/// The document of a job.
#[must_use]
pub fn document(kind: &str, n: usize) -> Value {
    if CELL_JOBS.contains(&kind) {
        return cells::document(kind, n);
    }
    let queue = ["strict", "loose", "default"][n % 3];
    let delay = json!({"first": "1s", "longest": "4s"});
    let on = |event: &str, action: &str| json!([{"event": event, "action": action}]);
    let policy = |more: Value| {
        let mut policy = json!({"schedulingPolicy": {"queue": queue}});
        policy.as_object_mut().zip(more.as_object()).into_iter().for_each(|(policy, more)| {
            policy.extend(more.clone());
        });
        policy
    };
    let mut spec = match kind {
        "gang" => json!({
            "tasks": [task("w", 4, "c")], "minAvailable": 4, "maxRetry": 4,
            "policies": on("PodFailed", "RestartJob"), "priorityClassName": (n / 3 % 3).to_string(),
        }),
        "steps" => {
            let mut first = task("first", 1, "c");
            first["minAvailable"] = json!(1);
            let mut then = task("then", 2, "c");
            then["dependsOn"] = json!({"name": ["first"]});
            json!({"tasks": [first, then], "maxRetry": 3, "policies": on("PodFailed", "RestartTask")})
        }
        "pods" => json!({
            "tasks": [task("w", 3, "c")], "maxRetry": 8, "ttlSecondsAfterFinished": 5,
            "policies": on("PodFailed", "RestartPod"),
        }),
        "tf" => json!({
            "tfReplicaSpecs": {
                "PS": member(1, "ExitCode", "tensorflow"),
                "Worker": member(2, "ExitCode", "tensorflow"),
            },
            "runPolicy": policy(json!({"backoffLimit": 3, "cleanPodPolicy": "Running"})),
        }),
        "torch" => json!({
            "pytorchReplicaSpecs": {
                "Master": member(1, "OnFailure", "pytorch"),
                "Worker": member(2, "OnFailure", "pytorch"),
            },
            "runPolicy": policy(json!({"backoffLimit": 5, "cleanPodPolicy": "All"})),
        }),
        "mpi" => json!({
            "mpiReplicaSpecs": {
                "Launcher": member(1, "OnFailure", "mpi"),
                "Worker": member(2, "Never", "mpi"),
            },
            "runPolicy": policy(json!({"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 8})),
        }),
        "doomed" => json!({
            "tasks": [task("w", 2, "c")], "maxRetry": 2, "policies": on("PodFailed", "RestartJob"),
        }),
        "elastic" => json!({
            "tasks": [task("w", 4, "c")], "minAvailable": 2, "maxRetry": 5,
            "policies": on("PodFailed", "RestartPod"),
        }),
        "evicted" => json!({
            "tasks": [task("w", 2, "c")], "maxRetry": 3,
            "policies": [{"event": "PodEvicted", "action": "RestartJob"},
                {"event": "PodFailed", "action": "AbortJob", "timeout": "2s"}],
        }),
        // With small transactions its batched start takes several.
        "wide" => {
            let mut many = task("w", 9, "c");
            many["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
                json!("300m");
            json!({"tasks": [many], "minAvailable": 9, "maxRetry": 4,
                "policies": on("PodFailed", "RestartJob")})
        }
        "endless" => json!({"tasks": [task("w", 1, "c")], "activeDeadlineSeconds": 9}),
        "plain" => json!({"tasks": [task("a", 2, "c"), task("b", 1, "c")], "minAvailable": 1}),
        _ => json!({"tasks": [task("w", 1, "c")], "maxRetry": 3,
            "policies": on("PodFailed", "RestartJob")}),
    };
    let (api, word) = match kind {
        "tf" => ("kubeflow.org/v1", "TFJob"),
        "torch" => ("kubeflow.org/v1", "PyTorchJob"),
        "mpi" => ("kubeflow.org/v1", "MPIJob"),
        _ => ("batch.volcano.sh/v1alpha1", "Job"),
    };
    if word == "Job" {
        spec["queue"] = json!(queue);
        spec["restartDelay"] = delay;
    } else {
        spec["runPolicy"]["restartDelay"] = delay;
    }
    // Services and peers' files are the agents', which these worlds do not have.
    let metadata = match word {
        "Job" => json!({}),
        _ => json!({"annotations":
            {"rcfarm/services": "false", "rcfarm/on-peer-change": "none"}}),
    };
    json!({"apiVersion": api, "kind": word, "metadata": metadata, "spec": spec})
}

/// Initial record of a queue.
#[must_use]
pub fn queue(name: &str) -> Value {
    let spec = match name {
        "top" => json!({"capability": {"cpu": 8}}),
        "strict" => json!({"parent": "top", "dequeueStrategy": "fifo", "priority": 1,
            "guarantee": {"resource": {"cpu": 2}}}),
        "loose" => json!({"parent": "top", "capability": {"cpu": 5}}),
        _ => json!({}),
    };
    json!({"spec": spec})
}
