//! Jobs that ask for cells with HiveD's annotation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Cluster, SECOND, node};
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::pod_group::status::{PodGroupReason, PodGroupStatus};
use rcfarm_testing::fake_nodes::{FakeNodes, FakePod};
use rcfarm_testing::wait::within;

/// Two racks of two nodes of four devices; A and B have a rack each.
fn cells() -> Value {
    let rack = |n: usize| {
        let nodes = [n, n + 1].map(|n| json!({"cellAddress": node(n)}));
        json!({"cellType": "RACK", "cellChildren": nodes})
    };
    json!({
        "physicalCluster": {
            "cellTypes": {
                "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
                "NODE": {"childCellType": "PAIR", "childCellNumber": 2, "isNodeLevel": true},
                "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            },
            "physicalCells": [rack(0), rack(2)],
        },
        "virtualClusters": {
            "A": {"virtualCells": [{"cellType": "RACK", "cellNumber": 1}]},
            "B": {"virtualCells": [{"cellType": "RACK", "cellNumber": 1}]},
        },
    })
}

pub(super) async fn cluster() -> Cluster {
    let cluster = Cluster::new(4).await;
    furnish(&cluster).await;
    cluster
}

/// Four nodes of four devices, and their cells.
pub(super) async fn furnish(cluster: &Cluster) {
    for n in 0..4 {
        let record = json!({"capacity": {"cpu_milli": 8000, "memory_bytes": 8_000_000_000_u64,
            "devices": {"gpu": 4}}});
        cluster.put(key::node(&node(n)), record.to_string()).await;
    }
    cluster.put(key::cell_config(), cells().to_string()).await;
}

pub(super) fn id(name: &str) -> Namespaced {
    format!("default/{name}").parse().unwrap()
}

/// A job whose tasks have numbers of pods and of devices, with the virtual cluster and more of the annotation.
pub(super) async fn submit(
    cluster: &Cluster,
    name: &str,
    vc: &str,
    tasks: &[(u32, u32)],
    more: &str,
) {
    let task = |(n, (pods, devices)): (usize, &(u32, u32))| {
        let annotation = format!("virtualCluster: {vc}\nleafCellNumber: {devices}\n{more}");
        json!({"name": format!("t{n}"), "replicas": pods, "template": {
            "metadata": {"annotations": {
                "hivedscheduler.microsoft.com/pod-scheduling-spec": annotation}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"],
                "resources": {"limits": {
                    "hivedscheduler.microsoft.com/pod-scheduling-enable": 1}}}]},
        }})
    };
    let tasks: Vec<Value> = tasks.iter().enumerate().map(task).collect();
    let document = json!({"spec": {"tasks": tasks}});
    cluster.put(key::job(&id(name)), document.to_string()).await;
}

/// Device numbers of the job's pods, by node.
pub(super) async fn devices(cluster: &Cluster, name: &str) -> BTreeMap<String, Vec<BTreeSet<u32>>> {
    let mut found: BTreeMap<String, Vec<BTreeSet<u32>>> = BTreeMap::new();
    for n in 0..4 {
        let read: Option<Allocations> = cluster.read(key::allocation(&node(n))).await;
        for allocation in read.unwrap_or_default().pods.into_values() {
            if allocation.owner.group() == Some(id(name)) {
                found
                    .entry(node(n).to_string())
                    .or_default()
                    .push(allocation.devices["gpu"].clone());
            }
        }
    }
    found.values_mut().for_each(|pods| pods.sort());
    found
}

pub(super) async fn phase(cluster: &Cluster, name: &str) -> Option<JobPhase> {
    Some(cluster.read::<JobStatus>(key::job_status(&id(name))).await?.state.phase)
}

pub(super) async fn group(cluster: &Cluster, name: &str) -> PodGroupStatus {
    cluster.read(key::pod_group_status(&id(name))).await.unwrap_or_default()
}

pub(super) fn nodes(cluster: &Cluster) -> FakeNodes {
    let store = Arc::new(cluster.store.clone());
    let runs = |_: &FakePod<'_>| None;
    FakeNodes::start(store, cluster.clock.clone(), Box::new(runs))
}

#[tokio::test(start_paused = true)]
async fn job_with_the_annotation_runs_on_its_leaves() {
    let cluster = cluster().await;
    let (farm, _nodes) = (cluster.start("a"), nodes(&cluster));
    let group = "affinityGroup:\n  name: g\n  members:\n  - {podNumber: 2, leafCellNumber: 2}\n  \
                 - {podNumber: 1, leafCellNumber: 4}\n";
    submit(&cluster, "train", "B", &[(2, 2), (1, 4)], group).await;
    within(60 * SECOND, "it runs", || async {
        phase(&cluster, "train").await == Some(JobPhase::Running)
    })
    .await;
    let found = devices(&cluster, "train").await;
    let mut shapes: Vec<Vec<BTreeSet<u32>>> = found.values().cloned().collect();
    shapes.sort();
    assert_eq!(shapes, [vec![[0, 1].into(), [2, 3].into()], vec![[0, 1, 2, 3].into()]]);
    let racks: BTreeSet<bool> = found.keys().map(|name| *name < node(2).to_string()).collect();
    assert_eq!(racks.len(), 1, "one rack: {found:?}");
    let held = group_cells(&cluster, "train").await;
    assert_eq!(
        (held["request"]["key"]["name"].as_str(), held["chain"].as_str()),
        (Some("g"), Some("RACK"))
    );

    // A job of A that names no group: all its members are one. It has the other rack.
    submit(&cluster, "other", "A", &[(2, 4)], "").await;
    within(60 * SECOND, "it runs", || async {
        phase(&cluster, "other").await == Some(JobPhase::Running)
    })
    .await;
    let others = devices(&cluster, "other").await;
    assert!(others.len() == 2 && others.keys().all(|name| !found.contains_key(name)), "{others:?}");
    farm.stop().await;
}

async fn group_cells(cluster: &Cluster, name: &str) -> Value {
    let place = group(cluster, name).await.placement.expect("it is placed");
    serde_json::to_value(place.cells).unwrap()
}

/// Another farm rebuilds the same from the records: the place of a group is that of before, and its cells are taken.
#[tokio::test(start_paused = true)]
async fn cells_outlive_the_farm_and_are_free_after_the_job() {
    let cluster = cluster().await;
    let (farm, _nodes) = (cluster.start("a"), nodes(&cluster));
    submit(&cluster, "one", "A", &[(2, 4)], "").await;
    within(60 * SECOND, "one runs", || async {
        phase(&cluster, "one").await == Some(JobPhase::Running)
    })
    .await;
    let before = group_cells(&cluster, "one").await;
    farm.kill().await;
    let farm = cluster.start("b");
    submit(&cluster, "two", "A", &[(1, 4)], "").await;
    within(120 * SECOND, "two waits", || async {
        group(&cluster, "two").await.reason == PodGroupReason::InsufficientCapacity
    })
    .await;
    let why = group(&cluster, "two").await.message;
    assert!(why.contains("chain RACK: "), "{why}");
    assert_eq!(group_cells(&cluster, "one").await, before);
    cluster.delete(key::job(&id("one"))).await;
    within(600 * SECOND, "two runs", || async {
        phase(&cluster, "two").await == Some(JobPhase::Running)
    })
    .await;
    farm.stop().await;
}

/// What it waits for comes by a change of the configuration alone.
#[tokio::test(start_paused = true)]
async fn changed_configuration_wakes_the_scheduler() {
    let cluster = cluster().await;
    let (farm, _nodes) = (cluster.start("a"), nodes(&cluster));
    submit(&cluster, "train", "C", &[(1, 4)], "").await;
    within(60 * SECOND, "it waits", || async {
        group(&cluster, "train").await.reason == PodGroupReason::InvalidRecord
    })
    .await;
    assert!(group(&cluster, "train").await.message.contains("VC C does not exists!"));
    let text = cells().to_string().replace("\"B\"", "\"C\"");
    cluster.put(key::cell_config(), text).await;
    within(60 * SECOND, "it runs", || async {
        phase(&cluster, "train").await == Some(JobPhase::Running)
    })
    .await;
    farm.stop().await;
}
