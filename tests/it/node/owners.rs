//! Pods of several owners on one node: none has another's devices, processes or files.

use rcfarm_api::Stored;
use rcfarm_api::allocation::{Allocation, AllocationOwner, Allocations};
use rcfarm_api::ids::{Namespaced, PodId};
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_testing::wait::eventually;
use serde_json::json;

use crate::harness::{Cluster, Host, id};

fn job(name: &str) -> Namespaced {
    name.parse().unwrap()
}

async fn running(host: &Host, pod: &str) -> PodStatus {
    host.until(pod, |status| status.phase == NodePodPhase::Running).await
}

/// Manifest as a job's controller writes it.
fn manifest(pod: &str, job: &str, script: &str, gpu: u32) -> String {
    let identity =
        json!({"id": job, "uid": 7, "task": "w", "index": 0, "version": 0, "attempt": 0});
    let process = json!({"launchable_type": "process", "command": ["sh", "-c", script],
        "restart": "never"});
    json!({"id": pod, "job": identity, "resources": {"gpu": gpu}, "launchables": {"main": process}})
        .to_string()
}

/// Replaces the allocations of the node by one.
async fn allocate(host: &Host, pod: &str, owner: &str, gpus: &[u32]) {
    let devices = match gpus {
        [] => Default::default(),
        gpus => [("gpu".to_owned(), gpus.iter().copied().collect())].into(),
    };
    let owner = AllocationOwner::of_group(&job(owner));
    let allocation = Allocation { owner, devices, ..Allocation::default() };
    let all = Allocations { pods: [(id(pod), allocation)].into(), ..Allocations::default() };
    host.put(key::allocation(&host.node()), all.encode()).await;
}

/// Starts another pod, so that the agent reads the allocations.
async fn poke(host: &Host, pod: &str) {
    host.intend_script(pod, "exec sleep 602", "").await;
    running(host, pod).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_keeps_its_devices_when_another_owner_takes_its_allocation() {
    let mut host = Host::new();
    allocate(&host, "train-w-0", "team-a/train", &[1]).await;
    host.start();
    let text = manifest("train-w-0", "team-a/train", "exec sleep 601", 1);
    host.intend("train-w-0", &text).await;
    let first = running(&host, "train-w-0").await;
    assert_eq!(first.devices, ["gpu:1"]);
    host.intend("ended-w-0", &manifest("ended-w-0", "team-a/ended", "echo ran", 0)).await;
    let ended = |status: &PodStatus| status.phase == NodePodPhase::Ended;
    host.until("ended-w-0", ended).await;
    for (n, gpus) in [&[][..], &[0]].into_iter().enumerate() {
        allocate(&host, "train-w-0", "team-b/train", gpus).await;
        poke(&host, &format!("poke-{n}")).await;
        allocate(&host, "ended-w-0", "team-b/ended", gpus).await;
        poke(&host, &format!("poke-{n}-again")).await;
    }
    let pid = |status: &PodStatus| status.processes[0].pid;
    let second = running(&host, "train-w-0").await;
    assert_eq!((pid(&second), &second.devices), (pid(&first), &first.devices));
    host.kill().await;
    allocate(&host, "train-w-0", "team-b/train", &[0]).await;
    host.start();
    poke(&host, "after").await;
    let third = running(&host, "train-w-0").await;
    assert_eq!((pid(&third), &third.devices), (pid(&first), &first.devices), "adopted");
    host.until("ended-w-0", ended).await;
    assert_eq!(host.log("ended-w-0"), "ran\n", "it ran once");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_of_an_id_gets_no_files_of_the_one_before() {
    let mut host = Host::new();
    host.start();
    host.intend("train-w-0", &manifest("train-w-0", "team-a/train", "echo secret", 0)).await;
    host.until("train-w-0", |status| status.phase == NodePodPhase::Ended).await;
    assert_eq!(host.log("train-w-0"), "secret\n");
    let text = manifest("train-w-0", "team-b/train", "echo other; exec sleep 601", 0);
    host.intend("train-w-0", &text).await;
    let second = running(&host, "train-w-0").await;
    assert_eq!(second.processes[0].restarts, 0);
    eventually("its output", || host.log("train-w-0").ends_with('\n')).await;
    assert_eq!(host.log("train-w-0"), "other\n");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_of_an_id_gets_no_files_of_a_forgotten_pod() {
    let mut host = Host::new();
    host.start();
    host.intend("train-w-0", &manifest("train-w-0", "team-a/train", "echo secret", 0)).await;
    host.until("train-w-0", |status| status.phase == NodePodPhase::Ended).await;
    host.kill().await;
    // As if the agent had ended before its reports were deleted.
    let record = host.settings.data_dir.join("pods/train-w-0/pod.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let mut stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    stored["forgotten"] = json!(true);
    std::fs::write(&record, stored.to_string()).unwrap();
    let text = manifest("train-w-0", "team-b/train", "echo other; exec sleep 601", 0);
    host.intend("train-w-0", &text).await;
    host.start();
    let second = running(&host, "train-w-0").await;
    assert_eq!(second.processes[0].restarts, 0);
    eventually("its output", || host.log("train-w-0").ends_with('\n')).await;
    assert_eq!(host.log("train-w-0"), "other\n");
    host.end().await;
}

/// A farm and an agent with real processes. The second job once took the device of the first and restarted it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_one_name_in_two_namespaces_share_a_node() {
    let mut host = Host::new();
    host.start();
    let farm = Cluster::start(&host, "a");
    let submit = async |name: &str, task: &str, requests: serde_json::Value| {
        let container = json!({"name": "c", "command": ["sh", "-c", "exec sleep 603"],
            "resources": {"requests": requests}});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
        let tasks = json!([{"name": task, "replicas": 1, "template": template}]);
        host.put(key::job(&job(name)), json!({"spec": {"tasks": tasks}}).to_string()).await;
        let pod: PodId = PodIdFormat::Hashed.pod_id(&job(name), task, 0).unwrap();
        (pod.clone(), running(&host, pod.as_str()).await)
    };
    let (pod, first) = submit("team-a/train", "w", json!({"cpu": 1, "gpu": 1})).await;
    assert_eq!(first.devices, ["gpu:0"]);
    submit("team-b/train", "w", json!({"cpu": 1})).await;
    let (_, split) = submit("ns/a", "b-c", json!({"gpu": 1})).await;
    assert_eq!(split.devices, ["gpu:1"]);
    submit("ns/a-b", "c", json!({"cpu": 1})).await;
    let last = running(&host, pod.as_str()).await;
    assert_eq!((last.processes[0].pid, last.devices), (first.processes[0].pid, first.devices));
    let allocations: Allocations = host.read(key::allocation(&host.node())).await.unwrap();
    let owners: Vec<String> = allocations.pods.values().map(|a| a.owner.to_string()).collect();
    assert_eq!(owners.len(), 4, "{owners:?}");
    farm.stop().await;
    host.end().await;
}
