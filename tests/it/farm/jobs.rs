//! Jobs from their submission to their end: farms, nodes that pretend to run what is intended, and users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::SECOND;
use super::cluster::{Cluster, within};
use rcfarm::audit::Details;
use rcfarm::ids::{Namespaced, NodeName, PodId};
use rcfarm::job::machine::JobPhase;
use rcfarm::job::status::JobStatus;
use rcfarm::node::status::{LastExit, Phase, PodStatus, ProcessStatus};
use rcfarm::store::{Query, Reader, key};
use rcfarm::time::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// How a pod ends, by its id and its try: `None` while it runs.
type Ends = Box<dyn Fn(&str, u64) -> Option<i32> + Send + Sync>;

/// Nodes that run what is intended there, and stop what is not.
struct Nodes {
    task: JoinHandle<()>,
    /// Every try that was ever started.
    started: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Nodes {
    fn start(cluster: &Arc<Cluster>, ends: Ends) -> Nodes {
        let started = Arc::new(Mutex::new(Vec::new()));
        let (cluster, seen) = (cluster.clone(), started.clone());
        let task = tokio::spawn(async move {
            loop {
                turn(&cluster, &ends, &seen).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Nodes { task, started }
    }

    /// How often each pod was started.
    fn starts(&self) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        for (pod, _) in self.started.lock().unwrap().iter() {
            *starts.entry(pod.clone()).or_default() += 1;
        }
        starts
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn turn(cluster: &Cluster, ends: &Ends, started: &Mutex<Vec<(String, Value)>>) {
    let list = async |prefix| cluster.store.list(&prefix, Query::PLAIN).await.unwrap().value;
    let intents: BTreeMap<(NodeName, PodId), Value> = list(key::intents())
        .await
        .iter()
        .filter_map(|entry| {
            let place = key::node_and_pod(&key::intents(), &entry.key)?;
            Some((place, serde_json::from_slice(&entry.value).ok()?))
        })
        .collect();
    for entry in list(key::realities()).await {
        let place = key::node_and_pod(&key::realities(), &entry.key).unwrap();
        if !intents.contains_key(&place) {
            cluster.delete(&entry.key).await;
            cluster.delete(key::pod_status(&place.1, &place.0).as_str()).await;
        }
    }
    for ((node, pod), manifest) in intents {
        let reality = key::reality(&node, &pod);
        let real = cluster.store.get(&reality, Query::PLAIN).await.unwrap().value;
        if real.as_ref().is_some_and(|real| real.value == manifest.to_string()) {
            let tries = manifest["job"]["attempt"].as_u64().unwrap();
            if let Some(code) = ends(pod.as_str(), tries) {
                say(cluster, &node, &pod, Some(code)).await;
            }
            continue;
        }
        if real.is_some() {
            // The older try stops before the next one starts.
            cluster.delete(reality.as_str()).await;
            continue;
        }
        let mark = manifest["job"].clone();
        note(started, &pod, mark);
        say(cluster, &node, &pod, None).await;
        cluster.put(reality.as_str(), manifest.to_string()).await;
    }
}

fn note(started: &Mutex<Vec<(String, Value)>>, pod: &PodId, mark: Value) {
    let mut started = started.lock().unwrap();
    assert!(!started.iter().any(|(_, other)| *other == mark), "a try was started twice: {mark}");
    started.push((pod.to_string(), mark));
}

async fn say(cluster: &Cluster, node: &NodeName, pod: &PodId, code: Option<i32>) {
    let phase = if code.is_some() { Phase::Ended } else { Phase::Running };
    let last_exit =
        code.map(|exit_code| LastExit { time: Timestamp::UNIX_EPOCH, exit_code, exit_status: 0 });
    let processes = vec![ProcessStatus { phase, last_exit, ..ProcessStatus::default() }];
    let status = PodStatus { phase, processes, ..PodStatus::default() };
    let key = key::pod_status(pod, node);
    let old = cluster.store.get(&key, Query::PLAIN).await.unwrap().value;
    if old.is_none_or(|old| old.value != status.encode()) {
        cluster.put(key.as_str(), status.encode()).await;
    }
}

fn id(name: &str) -> Namespaced {
    name.parse().unwrap()
}

fn task(name: &str, replicas: u32) -> Value {
    json!({"name": name, "replicas": replicas, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}],
    }}})
}

async fn submit(cluster: &Cluster, name: &str, spec: Value) {
    cluster.put(key::job(&id(name)).as_str(), json!({"spec": spec}).to_string()).await;
}

async fn status(cluster: &Cluster, name: &str) -> JobStatus {
    let key = key::job_status(&id(name));
    let entry = cluster.store.get(&key, Query::PLAIN).await.unwrap().value;
    entry.map(|entry| JobStatus::decode(&entry.value).unwrap()).unwrap_or_default()
}

async fn reaches(cluster: &Cluster, name: &str, phase: JobPhase, limit: Duration) -> JobStatus {
    within(limit, &format!("{name} {phase}"), || async {
        status(cluster, name).await.state.phase == phase
    })
    .await;
    status(cluster, name).await
}

async fn command(cluster: &Cluster, n: u32, job: &str, action: &str) {
    let key = format!("rcfarm/commands/01890000-0000-7000-8000-{n:012}");
    let value = json!({"action": action, "target": {"kind": "Job", "job": job}, "issued_by": "me"});
    cluster.put(&key, value.to_string()).await;
}

async fn keys(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let prefix = rcfarm::store::Prefix::parse(prefix).unwrap();
    cluster.store.keys(&prefix, None, Query::PLAIN).await.unwrap().value
}

#[tokio::test(start_paused = true)]
async fn a_job_is_submitted_runs_and_is_done() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = Nodes::start(&cluster, Box::new(|pod, _| (pod != "mnist-ps-0").then_some(0)));
    let farm = cluster.start("a");
    let policies = json!([{"event": "TaskCompleted", "action": "CompleteJob"}]);
    let spec = json!({"tasks": [task("ps", 1), task("worker", 3)], "policies": policies,
        "plugins": {"env": [], "svc": []}});
    submit(&cluster, "default/mnist", spec).await;
    let done = reaches(&cluster, "default/mnist", JobPhase::Completed, 10 * SECOND).await;
    assert_eq!((done.members.succeeded, done.retry_count), (3, 0));
    assert_eq!(done.owner.as_ref().unwrap().farm.as_str(), "a");
    let phases: Vec<JobPhase> = done.phases.iter().map(|record| record.status).collect();
    assert!(phases.ends_with(&[JobPhase::Completing, JobPhase::Completed]), "{phases:?}");
    within(5 * SECOND, "its place is given back", || async {
        keys(&cluster, "rcfarm/pod_groups/").await.is_empty()
    })
    .await;
    assert_eq!(keys(&cluster, "intent/").await.len(), 3, "what has ended stays, with its logs");
    let intent = keys(&cluster, "intent/").await.remove(0);
    let intent = rcfarm::store::Key::parse(&intent).unwrap();
    let value = cluster.store.get(&intent, Query::PLAIN).await.unwrap().value.unwrap().value;
    let manifest: Value = serde_json::from_slice(&value).unwrap();
    assert_eq!(manifest["launchables"]["c"]["env"]["VC_WORKER_NUM"], "3");
    let steps: Vec<_> = cluster.audit().await;
    let steps = steps.iter().filter_map(|record| match record.details().unwrap() {
        Details::JobStep(step) => Some(step),
        _ => None,
    });
    let added: BTreeSet<String> = steps.flat_map(|step| step.pods_added).collect();
    assert_eq!(added.len(), 4, "each pod is in the log once: {added:?}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_always_fails_is_restarted_with_pauses_and_then_fails() {
    let cluster = Arc::new(Cluster::new(4).await);
    let ends = |pod: &str, _| (pod == "j-fails-0").then_some(1);
    let nodes = Nodes::start(&cluster, Box::new(ends));
    let farm = cluster.start("a");
    let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
    let spec = json!({"tasks": [task("fails", 1), task("sleeps", 2)], "policies": policies,
        "maxRetry": 2});
    submit(&cluster, "default/j", spec).await;
    reaches(&cluster, "default/j", JobPhase::Restarting, 10 * SECOND).await;
    let start = tokio::time::Instant::now();
    let done = reaches(&cluster, "default/j", JobPhase::Failed, 120 * SECOND).await;
    assert!(start.elapsed() >= 30 * SECOND, "pauses of 10 s and 20 s: {:?}", start.elapsed());
    assert_eq!((done.retry_count, done.state.reason.as_str()), (2, "MaxRetryReached"));
    let each = |n| [("j-fails-0", n), ("j-sleeps-0", n), ("j-sleeps-1", n)];
    let starts: BTreeMap<String, usize> =
        each(3).into_iter().map(|(pod, n)| (pod.to_owned(), n)).collect();
    assert_eq!(nodes.starts(), starts);
    within(5 * SECOND, "what still ran is stopped", || async {
        keys(&cluster, "reality/").await.len() == 1
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn commands_are_carried_out_once_and_a_stopped_job_goes_on() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = Nodes::start(&cluster, Box::new(|_, _| None));
    let farm = cluster.start("a");
    submit(&cluster, "team/j", json!({"tasks": [task("w", 2)]})).await;
    reaches(&cluster, "team/j", JobPhase::Running, 10 * SECOND).await;
    command(&cluster, 1, "team/j", "AbortJob").await;
    reaches(&cluster, "team/j", JobPhase::Aborted, 10 * SECOND).await;
    assert_eq!(keys(&cluster, "rcfarm/commands/").await, Vec::<String>::new());
    assert!(keys(&cluster, "intent/").await.is_empty());
    command(&cluster, 2, "team/j", "ResumeJob").await;
    reaches(&cluster, "team/j", JobPhase::Running, 10 * SECOND).await;
    command(&cluster, 3, "team/j", "TerminateJob").await;
    let done = reaches(&cluster, "team/j", JobPhase::Terminated, 10 * SECOND).await;
    assert_eq!(done.retry_count, 0);
    assert_eq!(nodes.starts().values().copied().collect::<Vec<_>>(), [2, 2]);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_dies_in_the_middle_of_a_gangs_restart_is_followed_without_a_trace() {
    let cluster = Arc::new(Cluster::new(40).await);
    let ends = |pod: &str, tries| (pod == "j-w-7" && tries == 0).then_some(1);
    let nodes = Nodes::start(&cluster, Box::new(ends));
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
    submit(&cluster, "default/j", json!({"tasks": [task("w", 40)], "policies": policies})).await;
    reaches(&cluster, "default/j", JobPhase::Restarting, 20 * SECOND).await;
    let owner = status(&cluster, "default/j").await.owner.unwrap().farm;
    // Of 40 pods no transaction takes all, so the restart is under way.
    let rest = match owner.as_str() {
        "a" => {
            a.kill().await;
            b
        }
        _ => {
            b.kill().await;
            a
        }
    };
    within(90 * SECOND, "all again", || async {
        let status = status(&cluster, "default/j").await;
        status.state.phase == JobPhase::Running && status.members.running == 40
    })
    .await;
    let after = status(&cluster, "default/j").await;
    assert_eq!((after.retry_count, after.version), (1, 1), "counted once");
    assert_ne!(after.owner.unwrap().farm, owner);
    assert!(nodes.starts().values().all(|n| *n == 2), "{:?}", nodes.starts());
    assert_eq!(keys(&cluster, "labels/pod/").await.len(), 40);
    rest.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_job_leaves_nothing_and_its_name_is_another_jobs() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = Nodes::start(&cluster, Box::new(|_, _| None));
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    let first = reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    // By hand, without asking anybody: its pods stay, and the next job of the name takes them away.
    cluster.delete("rcfarm/jobs/default/j").await;
    tokio::time::sleep(5 * SECOND).await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    within(20 * SECOND, "the new one runs alone", || async {
        let status = status(&cluster, "default/j").await;
        status.uid != first.uid
            && status.state.phase == JobPhase::Running
            && keys(&cluster, "intent/").await.len() == 1
    })
    .await;
    assert_eq!(nodes.starts()["j-w-0"], 2);
    let document = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"tasks": [task("w", 1)]}});
    cluster.put("rcfarm/jobs/default/j", document.to_string()).await;
    within(20 * SECOND, "nothing is left", || async {
        let mut left = keys(&cluster, "rcfarm/jobs/").await;
        left.extend(keys(&cluster, "rcfarm/job_status/").await);
        left.extend(keys(&cluster, "rcfarm/pod_groups/").await);
        left.extend(keys(&cluster, "labels/pod/").await);
        left.extend(keys(&cluster, "intent/").await);
        left.is_empty()
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_job_is_told_so_and_harms_no_other() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = Nodes::start(&cluster, Box::new(|_, _| Some(0)));
    let farm = cluster.start("a");
    submit(&cluster, "default/bad", json!({"tasks": [task("w", 1), task("w", 1)]})).await;
    cluster.put("rcfarm/jobs/default/worse", "{").await;
    cluster.put("rcfarm/jobs/astray", "{}").await;
    submit(&cluster, "default/good", json!({"tasks": [task("w", 1)]})).await;
    reaches(&cluster, "default/good", JobPhase::Completed, 10 * SECOND).await;
    for (name, words) in [("default/bad", "spec.tasks[1].name"), ("default/worse", "no JSON")] {
        let status = status(&cluster, name).await;
        assert_eq!(status.state.reason, "InvalidRecord");
        assert!(status.state.message.contains(words), "{}", status.state.message);
    }
    farm.stop().await;
}
