//! Devices: a pod runs only on the devices allocated to it.

use rcfarm_api::Stored;
use rcfarm_api::allocation::{Allocation, Allocations};
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};

use crate::harness::{Host, id, manifest};
use rcfarm_testing::wait::eventually;

async fn allocate(host: &Host, pod: &str, gpu: u32) {
    let allocation =
        Allocation { devices: [("gpu".to_owned(), [gpu].into())].into(), ..Allocation::default() };
    let allocations =
        Allocations { pods: [(id(pod), allocation)].into(), ..Allocations::default() };
    host.put(key::allocation(&host.node()), allocations.encode()).await;
}

async fn running(host: &Host, pod: &str, devices: &[&str]) -> PodStatus {
    host.until(pod, |status| status.phase == NodePodPhase::Running && status.devices == devices)
        .await
}

/// Starts another pod, so that the agent reconciles.
async fn poke(host: &Host, pod: &str) {
    host.intend_script(pod, "exec sleep 602", "").await;
    running(host, pod, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_devices_restart_pod_and_missing_allocation_does_not() {
    let mut host = Host::new();
    allocate(&host, "train", 0).await;
    host.start();
    let script = "echo on $RCFARM_DEVICES; exec sleep 601";
    let train = manifest("train", script, "resources: {gpu: 1}\n");
    host.intend("train", &train).await;
    let first = running(&host, "train", &["gpu:0"]).await;
    // Deleted and created between two reconciles, with another device.
    allocate(&host, "train", 1).await;
    poke(&host, "a").await;
    let second = running(&host, "train", &["gpu:1"]).await;
    assert_ne!(second.processes[0].pid, first.processes[0].pid);
    eventually("started anew", || host.log("train").contains("on gpu:1")).await;
    // The allocation record is deleted directly.
    host.delete(key::allocation(&host.node())).await;
    poke(&host, "b").await;
    let third = running(&host, "train", &["gpu:1"]).await;
    assert_eq!(third.processes[0].pid, second.processes[0].pid);
    host.kill().await;
    host.start();
    poke(&host, "c").await;
    let fourth = running(&host, "train", &["gpu:1"]).await;
    assert_eq!(fourth.processes[0].pid, second.processes[0].pid, "adopted, with what it has");
    host.end().await;
}
