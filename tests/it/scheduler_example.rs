//! Uses the example of an HTTP scheduler with a farm.

#[path = "../../examples/scheduler_server.rs"]
#[allow(dead_code)]
mod server;

use std::path::Path;
use std::sync::Arc;

use rcfarm::placement::capacity::Gang;
use rcfarm::placement::{
    GangRequest, RemoteScheduler, ScheduleError, ScheduleRequest, Scheduler as _, WantedNodes,
};
use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::manifest::Manifest;
use rcfarm_api::pod_group::status::{GroupPlacement, PodGroupStatus};
use rcfarm_api::scheduler::Packing;
use rcfarm_emulator::Emulator;
use serde_json::json;
use uuid::Uuid;

use crate::harness::Cluster;
use rcfarm_testing::wait::until;

/// Serves a file of machines on loopback.
async fn serve(fleet: &Path) -> RemoteScheduler {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, server::router(fleet.to_owned())).into_future());
    RemoteScheduler::new(&format!("http://{address}")).unwrap()
}

fn write(fleet: &Path, cordoned: &[&str]) {
    let machine = |name: &str| {
        json!({
            "labels": {"role": "web"}, "cordoned": cordoned.contains(&name),
            "capacity": {"cpu_milli": 2000},
        })
    };
    let machines = json!({"n1": machine("n1"), "n2": machine("n2"), "n3": machine("n3")});
    std::fs::write(fleet, machines.to_string()).unwrap();
}

#[tokio::test]
async fn a_repeated_call_gets_the_same_machines() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = dir.path().join("fleet.json");
    write(&fleet, &["n3"]);
    let scheduler = serve(&fleet).await;
    let (manifest, selector) = (Manifest::parse("id: web").unwrap(), "role=web".parse().unwrap());
    let rc = RcId(Uuid::from_u128(1));
    let request =
        ScheduleRequest { rc, manifest: &manifest, selector: &selector, packing: Packing::Spread };
    let eligible = scheduler.eligible_nodes(request).await.unwrap();
    assert_eq!(eligible.iter().map(|node| node.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);

    let none = [].into();
    let (first, second) = (Uuid::from_u128(2), Uuid::from_u128(3));
    let wanted = |count, token| {
        let force = count > 1;
        scheduler.allocate_nodes(WantedNodes { request, current: &none, count, force, token })
    };
    let once = wanted(1, first).await.unwrap();
    let again = wanted(1, first).await.unwrap();
    assert_eq!(once, again, "the same token");
    let other = wanted(1, second).await.unwrap();
    assert_ne!(once, other, "the machine with fewer reservations");
    scheduler.deallocate_nodes(request, &once, first).await.unwrap();
    scheduler.deallocate_nodes(request, &once, first).await.unwrap();
    let many = wanted(3, Uuid::from_u128(4)).await;
    assert!(matches!(many, Err(ScheduleError::Exhausted(_))), "{many:?}");
}

/// Nodes with an intent.
async fn scheduled(cluster: &Cluster) -> Vec<String> {
    let keys = cluster.keys(&key::intents()).await;
    keys.iter().map(|key| key.split('/').nth(1).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_farm_moves_a_pod_off_a_machine_that_was_cordoned() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = dir.path().join("fleet.json");
    write(&fleet, &[]);
    let scheduler = serve(&fleet).await;
    let mut cluster = Cluster::on(Emulator::default());
    let id = RcId(Uuid::from_u128(1));
    let record = json!({
        "id": id, "manifest": "id: web", "node_selector": "role=web", "pod_labels": null,
        "replicas_desired": 1, "allocation_strategy": "dynamic_strategy",
    });
    cluster.put(key::rc(id), record.to_string()).await;
    cluster.scheduler = Some(Arc::new(scheduler));
    let _farm = cluster.start("f1");
    until("it is on n1", async || scheduled(&cluster).await == ["n1"]).await;
    write(&fleet, &["n1"]);
    // The farm does not watch the scheduler; a doorbell makes it reconcile.
    cluster.put(key::rc_bell(id), "cordoned").await;
    until("it is on n2", async || scheduled(&cluster).await == ["n2"]).await;
}

/// Nodes of a group's members, and what its status says.
async fn placed(cluster: &Cluster, id: &str) -> Option<(Vec<String>, String)> {
    let key = key::pod_group_status(&id.parse().unwrap());
    let status: PodGroupStatus = cluster.read(key).await?;
    let place = status.placement.iter().flat_map(GroupPlacement::placed);
    Some((place.map(|(_, _, node)| node.to_string()).collect(), status.message))
}

#[tokio::test]
async fn a_farm_places_gangs_where_the_example_says() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = dir.path().join("fleet.json");
    write(&fleet, &["n3"]);
    let mut cluster = Cluster::on(Emulator::default());
    for node in ["n1", "n2", "n3"] {
        let node = node.parse().unwrap();
        cluster.label_node(&node, json!({"role": "web"})).await;
        cluster.put(key::node(&node), json!({"capacity": {"cpu_milli": 2000}}).to_string()).await;
    }
    cluster.scheduler = Some(Arc::new(serve(&fleet).await));
    let _farm = cluster.start("f1");
    let group = async |name: &str, selector: &str| {
        let tasks = json!([{"name": "w", "replicas": 3, "nodeSelector": selector,
            "resources": {"cpu": "100m"}}]);
        let id = format!("ns/{name}").parse().unwrap();
        let record = json!({"spec": {"tasks": tasks}}).to_string();
        cluster.put(key::pod_group(&id), record).await;
    };
    group("gang", "role=web").await;
    until("its members are on the machines that are not cordoned, the last first", async || {
        placed(&cluster, "ns/gang").await.is_some_and(|(nodes, _)| nodes == ["n2", "n1", "n2"])
    })
    .await;
    // The example has no such machine.
    group("none", "role=db").await;
    write(&fleet, &["n1", "n2", "n3"]);
    group("cordoned", "role=web").await;
    until("it waits for what the example says", async || {
        let found = placed(&cluster, "ns/cordoned").await;
        found
            .is_some_and(|(nodes, why)| nodes.is_empty() && why.contains("no machine has role=web"))
    })
    .await;
    // Once a machine is there, it is asked again.
    write(&fleet, &["n1", "n2"]);
    until("it is placed", async || {
        placed(&cluster, "ns/cordoned").await.is_some_and(|(nodes, _)| nodes == ["n3", "n3", "n3"])
    })
    .await;
    assert_eq!(placed(&cluster, "ns/none").await.map_or(0, |(nodes, _)| nodes.len()), 0);
}

#[tokio::test]
async fn a_server_without_the_verb_leaves_gangs_to_the_farm() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, axum::Router::new()).into_future());
    let remote = RemoteScheduler::new(&format!("http://{address}")).unwrap();
    let (scheduler, queue) = ("default".parse().unwrap(), "q".parse().unwrap());
    let (id, gang) = ("ns/g".parse().unwrap(), Gang::default());
    let request = GangRequest { scheduler: &scheduler, queue: &queue, id: &id, gang: &gang };
    assert_eq!(remote.place(request).await, Ok(None));
}
