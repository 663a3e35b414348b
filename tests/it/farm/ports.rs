//! Ports of manifests: no two pods of a node have the same, whoever owns them.

use std::collections::BTreeSet;

use rcfarm_api::allocation::{Allocation, Allocations};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use serde_json::{Value, json};

use crate::harness::{Cluster, SECOND, node, pod_id};
use rcfarm_testing::wait::within;

async fn create(cluster: &Cluster, n: u128, replicas: i64, more: &str) {
    let mut record = cluster.record(n, replicas);
    record["manifest"] = json!(format!("id: pod-{n}\n{more}\n"));
    cluster.write_rc(n, &record).await;
}

/// A job whose master listens, as PyTorch's does, and whose worker does not.
async fn submit(cluster: &Cluster, name: &str) {
    let task = |name: &str| {
        json!({"name": name, "replicas": 1,
        "template": {"spec": {"containers": [{"name": "c", "command": ["true"]}]}}})
    };
    let tasks = [task("master"), task("worker")];
    let document = json!({"spec": {"plugins": {"pytorch": []}, "tasks": tasks}});
    cluster.put(key::job(&name.parse().unwrap()), document.to_string()).await;
}

/// Allocations of a node. No port is there twice.
async fn allocations(cluster: &Cluster, n: usize) -> Allocations {
    let allocations: Allocations =
        cluster.read(key::allocation(&node(n))).await.unwrap_or_default();
    let numbers: Vec<u16> = allocations.pods.values().flat_map(Allocation::port_numbers).collect();
    let distinct: BTreeSet<u16> = numbers.iter().copied().collect();
    assert_eq!(distinct.len(), numbers.len(), "{allocations:?}");
    allocations
}

async fn until_ports(cluster: &Cluster, count: usize) {
    within(30 * SECOND, &format!("{count} ports are given"), || async {
        let pods = allocations(cluster, 0).await.pods;
        pods.values().flat_map(Allocation::port_numbers).count() == count
    })
    .await;
}

/// Why an RC has too few pods.
async fn shortage(cluster: &Cluster, n: u128) -> String {
    let scheduled = async || {
        let status = cluster.status(n).await?;
        let condition = status.condition(RcConditionType::Scheduled)?.clone();
        (condition.reason == RcReason::InsufficientCapacity).then_some(condition.message)
    };
    within(30 * SECOND, &format!("{n} waits"), || async { scheduled().await.is_some() }).await;
    scheduled().await.unwrap()
}

async fn has_pods(cluster: &Cluster, n: u128, count: usize) {
    within(30 * SECOND, &format!("{count} pods of {n}"), || async {
        cluster.nodes_of(n).await.len() == count
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_port_of_a_node_is_given_twice_to_rcs_and_jobs() {
    let cluster = Cluster::new(1).await;
    cluster.put(key::node(&node(0)), r#"{"ports": "20000-20005"}"#).await;
    let farms = ["a", "b"].map(|name| cluster.start(name));
    create(&cluster, 1, 1, "ports: [{name: http, port: 20001}]").await;
    has_pods(&cluster, 1, 1).await;
    create(&cluster, 2, 1, "ports: [{name: http}, {name: admin}]").await;
    submit(&cluster, "default/j1").await;
    submit(&cluster, "default/j2").await;
    until_ports(&cluster, 5).await;
    let given = allocations(&cluster, 0).await;
    let of_jobs = given.pods.values().filter(|allocation| allocation.port.is_some()).count();
    assert_eq!(of_jobs, 2, "the jobs' masters: {given:?}");
    // One is left: two do not fit, and a fixed one conflicts where it is placed.
    create(&cluster, 3, 1, "ports: [{name: a}, {name: b}]").await;
    let why = shortage(&cluster, 3).await;
    assert!(why.contains("no room for ports a, b on 1 nodes"), "{why}");
    assert!(why.contains("n0000: all its ports, 20000-20005, are taken"), "{why}");
    create(&cluster, 4, 1, "ports: [{name: http, port: 20001}]").await;
    let why = shortage(&cluster, 4).await;
    assert!(why.contains("n0000: pod pod-1 has port 20001"), "{why}");
    assert_eq!(cluster.nodes_of(3).await.len() + cluster.nodes_of(4).await.len(), 0);
    // Who waits gets what becomes free.
    create(&cluster, 2, 0, "ports: [{name: http}, {name: admin}]").await;
    has_pods(&cluster, 3, 1).await;
    create(&cluster, 1, 0, "ports: [{name: http, port: 20001}]").await;
    has_pods(&cluster, 4, 1).await;
    until_ports(&cluster, 5).await;
    let given = allocations(&cluster, 0).await;
    assert_eq!(given.pods[&pod_id(4)].ports, [("http".to_owned(), 20_001)].into());
    for farm in farms {
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fixed_ports_spread_pods_and_move_them_where_they_are_free() {
    let cluster = Cluster::new(3).await;
    let farm = cluster.start("a");
    let fixed = "ports: [{name: http, port: 8080}]";
    create(&cluster, 1, 2, fixed).await;
    has_pods(&cluster, 1, 2).await;
    create(&cluster, 2, 1, fixed).await;
    has_pods(&cluster, 2, 1).await;
    let (first, second) = (cluster.nodes_of(1).await, cluster.nodes_of(2).await);
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    // A transfer takes the ports to the new node.
    create(&cluster, 2, 0, fixed).await;
    has_pods(&cluster, 2, 0).await;
    let mut record = cluster.record(1, 2);
    record["manifest"] = json!(format!("id: pod-1\n{fixed}\n"));
    record["allocation_strategy"] = json!("dynamic_strategy");
    cluster.write_rc(1, &record).await;
    let leaving = first.first().unwrap().clone();
    cluster.put(format!("rcfarm/nodes/{leaving}"), r#"{"state": "draining"}"#).await;
    within(120 * SECOND, "the pod has moved", || async {
        let nodes = cluster.nodes_of(1).await;
        nodes.len() == 2 && !nodes.contains(&leaving)
    })
    .await;
    for n in 0..3 {
        let has_pod = cluster.nodes_of(1).await.contains(node(n).as_str());
        let numbers = allocations(&cluster, n).await.pods.into_values();
        let numbers: Vec<u16> = numbers.flat_map(|a| a.ports.into_values()).collect();
        assert_eq!(numbers, if has_pod { vec![8080] } else { vec![] }, "{n}");
    }
    farm.stop().await;
}

/// The allocation is deleted by hand: it is written again, with the same number where that is free.
#[tokio::test(start_paused = true)]
async fn deleted_allocation_of_ports_is_written_again() {
    let cluster = Cluster::new(1).await;
    cluster.put(key::node(&node(0)), r#"{"ports": "20000-29999"}"#).await;
    let farm = cluster.start("a");
    create(&cluster, 1, 1, "ports: [{name: http}]").await;
    create(&cluster, 2, 1, "").await;
    has_pods(&cluster, 1, 1).await;
    has_pods(&cluster, 2, 1).await;
    let before = allocations(&cluster, 0).await;
    assert_eq!(before.pods.keys().collect::<Vec<_>>(), [&pod_id(1)], "the other asks for nothing");
    let stored: Value = cluster.value(key::allocation(&node(0))).await;
    let entry = &stored["pods"]["pod-1"];
    assert!(entry.get("port").is_none() && entry["ports"]["http"].is_number(), "{stored}");
    cluster.delete(key::allocation(&node(0))).await;
    until_ports(&cluster, 1).await;
    assert_eq!(allocations(&cluster, 0).await, before);
    farm.stop().await;
}
