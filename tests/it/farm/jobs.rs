//! Jobs from submission to end, with farms, fake nodes and users.

mod arrays;
mod at_rest;
mod claims;
mod deleted_keys;
mod deletion;
mod dependencies;
mod drained;
mod late_caches;
mod peers;
mod pod_ids;
mod ssh_keys;

use deletion::nothing_is_left;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::harness::{Cluster, SECOND};
use rcfarm_api::audit::Details;
use rcfarm_api::ids::{Namespaced, NodeName, PodId};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_api::queue::status::QueueStatus;
use rcfarm_emulator::{Fate, FaultOutcome, KvOp, Request};
use rcfarm_store::{Store as _, TxnOutcome};
use rcfarm_testing::fake_nodes::{FakeNodes, FakePod, report};
use rcfarm_testing::wait::within;
use serde_json::{Value, json};

/// Nodes on which a pod ends with the code of `ends`, given `<job>-<task>-<index>` and its attempt.
fn nodes(
    cluster: &Cluster,
    ends: impl Fn(&str, u64) -> Option<i32> + Send + Sync + 'static,
) -> FakeNodes {
    // Each pod is reported as running first.
    let exit_code = move |pod: &FakePod<'_>| match pod.is_new {
        true => None,
        false => ends(pod.name, pod.attempt),
    };
    let store = Arc::new(cluster.store.clone());
    FakeNodes::start(store, cluster.clock.clone(), Box::new(exit_code))
}

/// Reports a pod as running or ended, without its node.
async fn say(cluster: &Cluster, node: &NodeName, pod: &PodId, manifest: &Bytes, code: Option<i32>) {
    let ops = report(node, pod, manifest, code, cluster.clock.wall());
    assert!(matches!(cluster.store.txn(&ops).await.unwrap(), TxnOutcome::Committed { .. }));
}

fn id(name: &str) -> Namespaced {
    name.parse().unwrap()
}

/// Id of a member's pod.
fn pod_id(job: &str, task: &str, index: u32) -> PodId {
    PodIdFormat::Hashed.pod_id(&id(job), task, index).unwrap()
}

fn task(name: &str, replicas: u32) -> Value {
    json!({"name": name, "replicas": replicas, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}],
    }}})
}

async fn submit(cluster: &Cluster, name: &str, spec: Value) {
    cluster.put(key::job(&id(name)), json!({"spec": spec}).to_string()).await;
}

async fn status(cluster: &Cluster, name: &str) -> JobStatus {
    cluster.read(key::job_status(&id(name))).await.unwrap_or_default()
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
    let prefix = rcfarm_store::Prefix::parse(prefix).unwrap();
    let mut keys = cluster.keys(&prefix).await;
    keys.retain(|key| !prefix.is_sentinel(key));
    keys
}

/// Farms select jobs by the labels of their documents, and over them those below `labels/job/`.
#[tokio::test(start_paused = true)]
async fn relabelled_job_moves_to_the_farm_that_selects_it() {
    let cluster = Cluster::new(1).await;
    let farms = [("a", "team=a"), ("b", "team=b"), ("rest", "!team")];
    let farms = farms.map(|(name, selector)| cluster.start_selecting(name, selector));
    let document = |labels: Value| {
        json!({"metadata": {"labels": labels}, "spec": {"suspend": true, "tasks": [task("t", 1)]}})
            .to_string()
    };
    let owned_by = async |farm: &str| {
        within(30 * SECOND, &format!("it is of {farm}"), || async {
            let lock = cluster.entry(key::job_lock(&id("default/j"))).await;
            lock.is_some_and(|lock| lock.session.is_some() && lock.value == farm)
        })
        .await;
    };
    let record = key::job(&id("default/j"));
    cluster.put(&record, document(json!({"team": "a"}))).await;
    owned_by("a").await;
    cluster.put(&record, document(json!({"team": "b"}))).await;
    owned_by("b").await;
    cluster.put("labels/job/default/j", r#"{"team":"a"}"#).await;
    owned_by("a").await;
    cluster.delete("labels/job/default/j").await;
    owned_by("b").await;
    cluster.put(&record, document(json!({}))).await;
    owned_by("rest").await;
    for farm in farms {
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_submitted_runs_and_is_done() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |pod, _| (pod != "mnist-ps-0").then_some(0));
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
    let manifest = cluster.value(&intent).await;
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
async fn failing_job_is_restarted_with_backoff_then_fails() {
    let cluster = Arc::new(Cluster::new(4).await);
    let ends = |pod: &str, _| (pod == "j-fails-0").then_some(1);
    let nodes = nodes(&cluster, ends);
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
    let nodes = nodes(&cluster, |_, _| None);
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

/// An executed command is not planned again while the cache still shows it.
#[tokio::test(start_paused = true)]
async fn each_command_costs_one_transaction() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = tried.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        if let Request::Txn(ops) = request
            && ops.iter().any(|op| op.key.starts_with("rcfarm/commands/"))
        {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Fate::DELIVER
    });
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    for n in 1..=3 {
        command(&cluster, 2 * n, "default/j", "AbortJob").await;
        reaches(&cluster, "default/j", JobPhase::Aborted, 30 * SECOND).await;
        command(&cluster, 2 * n + 1, "default/j", "ResumeJob").await;
        reaches(&cluster, "default/j", JobPhase::Running, 30 * SECOND).await;
    }
    assert_eq!(tried.load(Ordering::SeqCst), 6);
    farm.stop().await;
}

/// Its counts would be lost.
#[tokio::test(start_paused = true)]
async fn a_status_that_cannot_be_understood_is_not_taken_for_none() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = nodes(&cluster, |_, _| Some(0));
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    reaches(&cluster, "default/j", JobPhase::Completed, 10 * SECOND).await;
    farm.stop().await;
    let key = key::job_status(&id("default/j"));
    let value = async || cluster.get(&key).await.unwrap();
    let was = value().await;
    cluster.put(key.as_str(), r#"{"retryCount":"many"}"#).await;
    let farm = cluster.start("b");
    submit(&cluster, "default/other", json!({"tasks": [task("w", 1)]})).await;
    reaches(&cluster, "default/other", JobPhase::Completed, 10 * SECOND).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(value().await, r#"{"retryCount":"many"}"#);
    cluster.put(key.as_str(), was).await;
    within(700 * SECOND, "it is worked on again", || async {
        let owner = status(&cluster, "default/j").await.owner;
        owner.is_some_and(|owner| owner.farm.as_str() == "b")
    })
    .await;
    assert_eq!(status(&cluster, "default/j").await.state.phase, JobPhase::Completed);
    assert_eq!(nodes.starts()["j-w-0"], 1);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn next_owner_finishes_a_gang_restart() {
    let cluster = Arc::new(Cluster::new(40).await);
    let ends = |pod: &str, tries| (pod == "j-w-7" && tries == 0).then_some(1);
    let nodes = nodes(&cluster, ends);
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
    submit(&cluster, "default/j", json!({"tasks": [task("w", 40)], "policies": policies})).await;
    reaches(&cluster, "default/j", JobPhase::Restarting, 20 * SECOND).await;
    let owner = status(&cluster, "default/j").await.owner.unwrap().farm;
    // One transaction cannot hold 40 pods, so the restart is in progress.
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
async fn a_bell_shows_the_end_of_a_pod_that_the_trees_do_not_show() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let cluster = Arc::new(Cluster::new(1).await);
    let is_deaf = Arc::new(AtomicBool::new(false));
    let deaf = is_deaf.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        Request::List("status/pods/") | Request::Keys("status/pods/")
            if deaf.load(Ordering::SeqCst) =>
        {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    });
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let (node, pod): (NodeName, _) = ("n0000".parse().unwrap(), pod_id("default/j", "w", 0));
    let intent = key::intent(&node, &pod);
    let read = async || cluster.entry(&intent).await;
    within(10 * SECOND, "it is intended", || async { read().await.is_some() }).await;
    let manifest = read().await.unwrap().value;
    say(&cluster, &node, &pod, &manifest, None).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    is_deaf.store(true, Ordering::SeqCst);
    // The pending blocking query is answered; later ones are not.
    say(&cluster, &node, &"other".parse().unwrap(), &manifest, None).await;
    tokio::time::sleep(10 * SECOND).await;
    say(&cluster, &node, &pod, &manifest, Some(0)).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(status(&cluster, "default/j").await.state.phase, JobPhase::Running);
    cluster.put(key::job_bell(&id("default/j")), "1").await;
    reaches(&cluster, "default/j", JobPhase::Completed, 10 * SECOND).await;
    within(10 * SECOND, "the bell is taken down", || async {
        !keys(&cluster, "rcfarm/bell/").await.iter().any(|key| key.contains("job"))
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_status_was_deleted_goes_on_as_it_stands() {
    let cluster = Arc::new(Cluster::new(4).await);
    let ends = |pod: &str, tries| (pod == "j-w-0" && tries == 0).then_some(1);
    let nodes = nodes(&cluster, ends);
    let farm = cluster.start("a");
    let policies = json!([{"event": "PodFailed", "action": "RestartJob"}]);
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)], "policies": policies})).await;
    within(60 * SECOND, "its second attempt runs", || async {
        let status = status(&cluster, "default/j").await;
        (status.version, status.members.running) == (1, 2)
    })
    .await;
    farm.stop().await;
    cluster.delete(key::job_status(&id("default/j"))).await;
    let farm = cluster.start("b");
    let after = reaches(&cluster, "default/j", JobPhase::Running, 60 * SECOND).await;
    assert_eq!((after.version, after.members.running), (1, 2));
    assert_eq!(nodes.starts().values().copied().collect::<Vec<_>>(), [2, 2], "none was made anew");
    // Record and status are deleted directly.
    cluster.delete("rcfarm/jobs/default/j").await;
    cluster.delete(key::job_status(&id("default/j"))).await;
    nothing_is_left(&cluster).await;
    let queue = key::queue_status(&"default".parse().unwrap());
    within(30 * SECOND, "nothing is counted", || async {
        let status: QueueStatus = cluster.read(&queue).await.unwrap();
        status.groups == Default::default() && status.allocated.is_empty()
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unowned_pod_is_adopted_and_mismatched_pod_released() {
    let cluster = Arc::new(Cluster::new(4).await);
    let nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    let mut labels = json!({"volcano.sh/job-name": "j", "volcano.sh/job-namespace": "default",
        "volcano.sh/task-spec": "w", "volcano.sh/task-index": "1", "color": "blue"});
    let node = crate::harness::node(3);
    cluster.put(format!("labels/pod/{node}/j-w-1"), labels.to_string()).await;
    cluster.put(format!("intent/{node}/j-w-1"), r#"{"id":"j-w-1"}"#).await;
    tokio::time::sleep(SECOND).await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 3)]})).await;
    let running = reaches(&cluster, "default/j", JobPhase::Running, 70 * SECOND).await;
    within(70 * SECOND, "all three", || async {
        status(&cluster, "default/j").await.members.running == 3
    })
    .await;
    assert_eq!(keys(&cluster, "labels/pod/").await.len(), 3, "no other was made for it");
    let read = async || cluster.value(format!("labels/pod/{node}/j-w-1")).await;
    let adopted = read().await;
    assert_eq!(adopted["rcfarm/job_uid"], running.uid.to_string());
    assert_eq!(adopted["color"], "blue");

    labels = adopted;
    labels["volcano.sh/job-name"] = json!("other");
    cluster.put(format!("labels/pod/{node}/j-w-1"), labels.to_string()).await;
    within(70 * SECOND, "it is let go", || async { read().await.get("rcfarm/job_uid").is_none() })
        .await;
    within(70 * SECOND, "another takes its place", || async {
        let status = status(&cluster, "default/j").await;
        status.members.running == 3 && nodes.starts()["j-w-1"] == 2
    })
    .await;
    assert_eq!(keys(&cluster, "intent/").await.len(), 4, "it goes on running");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_job_is_told_so_and_harms_no_other() {
    let cluster = Arc::new(Cluster::new(4).await);
    let _nodes = nodes(&cluster, |_, _| Some(0));
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
        assert_ne!(status.state.last_transition_time, Default::default());
    }
    farm.stop().await;
}

/// Its node has not started it, so only the missing intent shows the deletion.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_intent_is_taken_away_is_made_again_without_delay() {
    let cluster = Arc::new(Cluster::new(2).await);
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let intent = async || {
        within(30 * SECOND, "a pod is intended", || async {
            keys(&cluster, "intent/").await.len() == 1
        })
        .await;
        keys(&cluster, "intent/").await.remove(0)
    };
    let taken = intent().await;
    tokio::time::sleep(10 * SECOND).await;
    cluster.delete(&taken).await;
    intent().await;
    assert_eq!(status(&cluster, "default/j").await.tasks["w"].attempts[&0], 1);
    farm.stop().await;
}

/// A node writes reality and status in one transaction, but the farm's caches may read them at different times.
#[tokio::test(start_paused = true)]
async fn how_an_older_try_ended_is_not_taken_for_the_newer_ones_end() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, |_, tries| (tries == 0).then_some(3));
    let is_slow = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let slow = is_slow.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        Request::List("status/pods/") if slow.load(std::sync::atomic::Ordering::SeqCst) => {
            Fate { after: 20 * SECOND, ..Fate::DELIVER }
        }
        _ => Fate::DELIVER,
    });
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    let spec = json!({"tasks": [task("w", 1)], "policies": policies,
        "restartDelay": {"first": "3s", "longest": "3s"}});
    submit(&cluster, "default/j", spec).await;
    within(30 * SECOND, "it is restarted", || async {
        status(&cluster, "default/j").await.retry_count == 1
    })
    .await;
    is_slow.store(true, std::sync::atomic::Ordering::SeqCst);
    tokio::time::sleep(200 * SECOND).await;
    let status = status(&cluster, "default/j").await;
    assert_eq!((status.retry_count, status.state.phase), (1, JobPhase::Running));
    farm.stop().await;
}

/// Without rights a list is empty, and a running pod seems stopped.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_only_hidden_has_no_other_beside_it() {
    let cluster = Arc::new(Cluster::new(2).await);
    let is_blind = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let blind = is_blind.clone();
    let farm = cluster.start_faulty("a", move |request| {
        let is_blind = blind.load(std::sync::atomic::Ordering::SeqCst);
        match request {
            Request::List("reality/") | Request::Keys("reality/") if is_blind => {
                Fate::of(FaultOutcome::Short(0))
            }
            Request::Get(key) if is_blind && key.starts_with("reality/") => {
                let what = "simulated".to_owned();
                Fate::of(FaultOutcome::Fail(rcfarm_store::StoreError::Forbidden { what }))
            }
            _ => Fate::DELIVER,
        }
    });
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let intended = async |count: usize| {
        within(700 * SECOND, &format!("{count} are intended"), || async {
            keys(&cluster, "intent/").await.len() == count
        })
        .await;
    };
    intended(1).await;
    let intent = keys(&cluster, "intent/").await.remove(0);
    let manifest = cluster.get(&intent).await.unwrap();
    let reality = intent.replace("intent/", "reality/");
    cluster.put(&reality, manifest).await;
    reaches(&cluster, "default/j", JobPhase::Running, 20 * SECOND).await;

    // Its node stops it slowly.
    command(&cluster, 1, "default/j", "RestartJob").await;
    intended(0).await;
    is_blind.store(true, std::sync::atomic::Ordering::SeqCst);
    // A change, so that the cache is read.
    cluster.put("reality/n0001/other", "x").await;
    tokio::time::sleep(60 * SECOND).await;
    intended(0).await;
    is_blind.store(false, std::sync::atomic::Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    intended(0).await;
    cluster.delete(&reality).await;
    intended(1).await;
    farm.stop().await;
}

/// Kills a farm after `writes` transactions; with or without capacity afterwards, all members start or none.
async fn dies_after(writes: usize, with_room: bool) -> bool {
    const MEMBERS: u32 = 60;
    let cluster = Arc::new(Cluster::new(60).await);
    for n in 0..60 {
        let key = key::node(&crate::harness::node(n));
        cluster.put(key.as_str(), r#"{"capacity":{"cpu_milli":1000}}"#).await;
    }
    let nodes = nodes(&cluster, |_, _| None);
    let left = Arc::new(std::sync::atomic::AtomicUsize::new(writes));
    let lives = left.clone();
    let dying = cluster.start_faulty("a", move |request| {
        use std::sync::atomic::Ordering::SeqCst;
        let one_less = |left: usize| left.checked_sub(1);
        match request {
            Request::Txn(_) if lives.fetch_update(SeqCst, SeqCst, one_less).is_err() => {
                Fate::of(FaultOutcome::Lose)
            }
            _ => Fate::DELIVER,
        }
    });
    let mut member = task("w", MEMBERS);
    member["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": 1}});
    submit(&cluster, "default/j", json!({"tasks": [member]})).await;
    let all = async || keys(&cluster, "intent/").await.len() == MEMBERS as usize;
    // Until the farm has used up its writes or is done.
    let start = tokio::time::Instant::now();
    while left.load(std::sync::atomic::Ordering::SeqCst) > 0
        && !all().await
        && start.elapsed() < 60 * SECOND
    {
        tokio::time::sleep(SECOND / 20).await;
    }
    dying.kill().await;
    let was_done = all().await;
    let begun = !keys(&cluster, "intent/").await.is_empty();
    let status = cluster.get(key::pod_group_status(&id("default/j"))).await;
    let is_bound = status.is_some_and(|status| status.contains(r#""state":"Bound""#));
    assert!(is_bound || !begun, "after {writes}: members began before all had their place");
    let taken = crate::harness::node(7);
    if !with_room && !is_bound {
        // One node less: the gang no longer fits.
        cluster.put(key::node(&taken), r#"{"state":"draining"}"#).await;
        let allocated = key::allocation(&taken);
        let allocations = keys(&cluster, "rcfarm/allocations/").await;
        if allocations.iter().any(|key| key == allocated.as_str()) {
            // If the node's allocation exists already, it counts, and all are placed.
            cluster.put(key::node(&taken), r#"{"capacity":{"cpu_milli":1000}}"#).await;
        }
    }
    let heir = cluster.start("b");
    tokio::time::sleep(45 * SECOND).await;
    let count = keys(&cluster, "intent/").await.len();
    assert!(count == 0 || count == MEMBERS as usize, "after {writes}: {count} of {MEMBERS}");
    assert!(!with_room || count > 0, "after {writes}: there is room");
    assert!(nodes.starts().values().all(|starts| *starts == 1), "after {writes}: a member twice");
    heir.stop().await;
    was_done
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_transaction_of_a_gang_leaves_all_or_none() {
    for with_room in [true, false] {
        let mut writes = 1;
        while !dies_after(writes, with_room).await {
            writes += 1;
            assert!(writes < 60, "it is never done");
        }
        assert!(writes > 5, "a gang of this size is written ahead: {writes}");
    }
}

/// An idle owner writes nothing that could be refused.
#[tokio::test(start_paused = true)]
async fn owner_of_an_ended_job_sees_what_a_restored_snapshot_took_back() {
    let cluster = Arc::new(Cluster::new(4).await);
    let may_end = Arc::new(AtomicUsize::new(0));
    let ends = may_end.clone();
    let _nodes = nodes(&cluster, move |_, _| (ends.load(Ordering::SeqCst) > 0).then_some(0));
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("w", 2)]})).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    tokio::time::sleep(SECOND).await;
    let snapshot = cluster.store.snapshot();
    may_end.store(1, Ordering::SeqCst);
    reaches(&cluster, "default/j", JobPhase::Completed, 10 * SECOND).await;
    within(5 * SECOND, "its group is deleted", || async {
        keys(&cluster, "rcfarm/pod_group_status/").await.is_empty()
    })
    .await;
    let ended: Vec<_> = cluster.list(&key::pod_statuses()).await;
    cluster.store.restore(snapshot);
    assert_eq!(status(&cluster, "default/j").await.state.phase, JobPhase::Running);
    // Its nodes report again what they know.
    for entry in ended {
        cluster.put(&entry.key, entry.value).await;
    }
    reaches(&cluster, "default/j", JobPhase::Completed, 400 * SECOND).await;
    within(400 * SECOND, "its group is deleted again", || async {
        keys(&cluster, "rcfarm/pod_group_status/").await.is_empty()
    })
    .await;
    farm.stop().await;
}
