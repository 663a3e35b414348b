//! Ports of manifests: processes and services get the numbers that are allocated to the pod.

use std::collections::BTreeMap;

use rcfarm_api::Stored;
use rcfarm_api::allocation::{Allocation, Allocations};
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_node::agent::services::id_prefix;
use rcfarm_store::Store;
use rcfarm_testing::wait::{eventually, until};

use crate::harness::{Host, id, manifest};

const MORE: &str = "ports: [{name: http}, {name: admin-1, port: 9000}]\n\
    services: [{name: web, port: http}, {name: admin, port: '${PORT_ADMIN_1}'}]\n";

async fn allocate(host: &Host, http: u16) {
    let ports = [("http".to_owned(), http), ("admin-1".to_owned(), 9000)].into();
    let allocation = Allocation { ports, ..Allocation::default() };
    let allocations =
        Allocations { pods: [(id("web"), allocation)].into(), ..Allocations::default() };
    host.put(key::allocation(&host.node()), allocations.encode()).await;
}

async fn running(host: &Host, http: u16) -> PodStatus {
    let ports = BTreeMap::from([("http".to_owned(), http), ("admin-1".to_owned(), 9000)]);
    host.until("web", |status| status.phase == NodePodPhase::Running && status.ports == ports).await
}

/// Waits until the catalog has the services with these ports.
async fn registered(host: &Host, http: u16) {
    let prefix = id_prefix(&host.node());
    until(&format!("web is at {http}"), async || {
        let all = host.store.pod_services(&prefix).await.unwrap();
        let port = |name: &str| Some(all.get(&format!("{prefix}web:{name}"))?.service.port);
        port("web") == Some(http) && port("admin") == Some(9000)
    })
    .await;
}

/// Starts another pod, so that the agent reconciles.
async fn poke(host: &Host, pod: &str) {
    host.intend_script(pod, "exec sleep 602", "").await;
    host.until(pod, |status| status.phase == NodePodPhase::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_reach_processes_and_services_and_outlive_restarts() {
    let mut host = Host::new();
    allocate(&host, 20_001).await;
    host.start();
    let script = "echo on $PORT_HTTP and $PORT_ADMIN_1; test -e again || { touch again; exit 1; }; exec sleep 601";
    host.intend("web", &manifest("web", script, MORE)).await;
    eventually("the process is started again, with the same ports", || {
        host.log("web").matches("on 20001 and 9000").count() == 2
    })
    .await;
    let first = running(&host, 20_001).await;
    registered(&host, 20_001).await;
    // The allocation is deleted directly, and the agent is killed: the pod keeps what it has.
    host.delete(key::allocation(&host.node())).await;
    poke(&host, "a").await;
    host.kill().await;
    host.start();
    poke(&host, "b").await;
    let second = running(&host, 20_001).await;
    assert_eq!(second.processes[0].pid, first.processes[0].pid, "adopted, with what it has");
    registered(&host, 20_001).await;
    // Another port is another environment.
    allocate(&host, 20_002).await;
    poke(&host, "c").await;
    let third = running(&host, 20_002).await;
    assert_ne!(third.processes[0].pid, first.processes[0].pid);
    eventually("started anew", || host.log("web").contains("on 20002 and 9000")).await;
    registered(&host, 20_002).await;
    host.end().await;
}

/// A pod that a person intends: the farm has allocated nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_that_is_not_allocated_is_told_in_the_notes() {
    let mut host = Host::new();
    host.start();
    let script = "echo on ${PORT_HTTP-nothing} and $PORT_ADMIN_1; exec sleep 601";
    host.intend("web", &manifest("web", script, MORE)).await;
    let wanted = [
        "the pod asks for port http, but none is allocated to it",
        "service web is not registered: port: no port http is allocated to the pod",
    ];
    host.until("web", |status| {
        let notes = status.notes.join("\n");
        status.phase == NodePodPhase::Running && wanted.iter().all(|words| notes.contains(*words))
    })
    .await;
    eventually("it has the fixed one", || host.log("web").contains("on nothing and 9000")).await;
    // Once it is allocated, the next read of the intents finds it.
    allocate(&host, 20_001).await;
    poke(&host, "a").await;
    running(&host, 20_001).await;
    eventually("started anew", || host.log("web").contains("on 20001 and 9000")).await;
    registered(&host, 20_001).await;
    host.end().await;
}
