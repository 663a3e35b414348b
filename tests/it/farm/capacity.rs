//! Allocations: who gets capacity, who waits, and when capacity is free again (invariant 14).

use std::collections::BTreeSet;
use std::time::Duration;

use rcfarm::placement::capacity::NodeCapacity;
use rcfarm_api::ResourceList;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_api::resource_list::units;
use rcfarm_emulator::{Fate, FaultOutcome, Request as Asked};
use rcfarm_store::StoreError;
use serde_json::json;

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use rcfarm_testing::wait::within;

fn capacity(text: &str) -> ResourceList {
    text.parse().unwrap()
}

async fn give(cluster: &Cluster, n: usize, text: &str) {
    let record = json!({"capacity": units::json(&capacity(text))});
    cluster.put(key::node(&node(n)), record.to_string()).await;
}

/// Nodes with equal capacity.
async fn cluster(nodes: usize, each: &str) -> Cluster {
    let cluster = Cluster::new(nodes).await;
    for n in 0..nodes {
        give(&cluster, n, each).await;
    }
    cluster
}

fn wanting(cluster: &Cluster, n: u128, replicas: i64, resources: &str) -> serde_json::Value {
    let mut record = cluster.record(n, replicas);
    record["manifest"] = json!(format!("id: pod-{n}\nresources: {{{resources}}}\n"));
    record
}

async fn create(cluster: &Cluster, n: u128, replicas: i64, resources: &str) {
    cluster.write_rc(n, &wanting(cluster, n, replicas, resources)).await;
}

async fn allocated(cluster: &Cluster, n: &NodeName) -> Allocations {
    cluster.read(key::allocation(n)).await.unwrap_or_default()
}

/// Checks in one snapshot: each allocation has a pod, each pod with requests has its allocation, and no node exceeds
/// its capacity.
fn check_books(cluster: &Cluster, each: &str) {
    cluster.store.inspect(|state| {
        for entry in state.kv.list("rcfarm/allocations/") {
            let name = key::allocations().tail(&entry.key).unwrap().to_owned();
            let allocated = Allocations::decode(&entry.value).unwrap();
            for (pod, allocation) in &allocated.pods {
                let label = format!("labels/pod/{name}/{pod}");
                let label = state.kv.list(&label).next().unwrap_or_else(|| panic!("no {label}"));
                let owner = allocation.owner.to_string();
                let text = String::from_utf8_lossy(&label.value).into_owned();
                assert!(
                    text.contains(owner.strip_prefix("rc/").unwrap()),
                    "{name}: {owner}: {text}"
                );
            }
            let room =
                NodeCapacity { capacity: capacity(each), allocated, ..NodeCapacity::default() };
            assert!(room.faults().is_empty(), "{name}: {:?}", room.faults());
        }
    });
}

fn allocation_count(cluster: &Cluster) -> usize {
    cluster.store.inspect(|state| {
        let records = state.kv.list("rcfarm/allocations/");
        records.map(|entry| Allocations::decode(&entry.value).unwrap().pods.len()).sum()
    })
}

/// Number of allocated devices.
fn devices(cluster: &Cluster) -> usize {
    cluster.store.inspect(|state| {
        let records = state.kv.list("rcfarm/allocations/");
        let pods = records.flat_map(|entry| Allocations::decode(&entry.value).unwrap().pods);
        pods.map(|(_, allocation)| allocation.devices.values().map(BTreeSet::len).sum::<usize>())
            .sum()
    })
}

async fn condition(
    cluster: &Cluster,
    n: u128,
    kind: RcConditionType,
) -> Option<(RcReason, String)> {
    let status = cluster.status(n).await?;
    status.condition(kind).map(|condition| (condition.reason, condition.message.clone()))
}

async fn has_pods(cluster: &Cluster, n: u128, count: usize) {
    let what = format!("{count} pods of {n}");
    within(20 * SECOND, &what, || async { cluster.nodes_of(n).await.len() == count }).await;
}

async fn says(cluster: &Cluster, n: u128, kind: RcConditionType, reason: RcReason) -> String {
    let what = format!("{n} says {reason}");
    within(20 * SECOND, &what, || async {
        condition(cluster, n, kind).await.is_some_and(|(found, _)| found == reason)
    })
    .await;
    condition(cluster, n, kind).await.unwrap().1
}

#[tokio::test(start_paused = true)]
async fn pods_go_where_there_is_room_and_get_devices_of_their_own() {
    let cluster = cluster(3, "cpu=4,memory=8Gi,gpu=2").await;
    give(&cluster, 1, "cpu=4,memory=8Gi").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 2, "gpu: 1, cpu: 1").await;
    has_pods(&cluster, 1, 2).await;
    create(&cluster, 2, 2, "gpu: 1").await;
    has_pods(&cluster, 2, 2).await;
    for n in [0, 2] {
        let pods = allocated(&cluster, &node(n)).await.pods;
        let numbers = |n| pods[&pod_id(n)].devices["gpu"].clone();
        assert_eq!(&numbers(1) | &numbers(2), BTreeSet::from([0, 1]), "n{n}");
        assert_eq!(pods[&pod_id(1)].owner.to_string(), format!("rc/{}", rc_id(1)));
    }
    create(&cluster, 3, 1, "gpu: 1").await;
    let why = says(&cluster, 3, RcConditionType::Scheduled, RcReason::InsufficientCapacity).await;
    assert!(why.contains("0 of 1") && why.contains("n0000: gpu: 1 wanted, 0 of 2 free"), "{why}");
    assert!(why.contains("n0001: gpu: 1 wanted, 0 of 0 free"), "{why}");
    check_books(&cluster, "cpu=4,memory=8Gi,gpu=2");
    // Another controller releases capacity.
    create(&cluster, 2, 1, "gpu: 1").await;
    has_pods(&cluster, 3, 1).await;
    check_books(&cluster, "cpu=4,memory=8Gi,gpu=2");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_is_scheduled_and_the_rest_when_a_node_comes_or_grows() {
    let cluster = cluster(2, "cpu=1,memory=1Gi").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 4, "cpu: 1").await;
    has_pods(&cluster, 1, 2).await;
    says(&cluster, 1, RcConditionType::Scheduled, RcReason::InsufficientNodes).await;
    cluster.label_node(&node(2), json!({"pool": "web"})).await;
    let why = says(&cluster, 1, RcConditionType::Scheduled, RcReason::InsufficientCapacity).await;
    assert!(why.contains("n0002: it declares no capacity"), "{why}");
    give(&cluster, 2, "cpu=2,memory=1Gi").await;
    has_pods(&cluster, 1, 3).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_asks_for_nothing_touches_no_books() {
    let cluster = cluster(3, "cpu=1,memory=1Gi").await;
    let farm = cluster.start("a");
    cluster.create_rc(1, 3).await;
    has_pods(&cluster, 1, 3).await;
    cluster.create_rc(1, 0).await;
    has_pods(&cluster, 1, 0).await;
    let keys = cluster.keys(&key::allocations()).await;
    assert_eq!(keys, Vec::<String>::new());
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_label_chooses_between_spreading_and_packing() {
    let cluster = cluster(4, "cpu=4,memory=8Gi").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 1, "cpu: 1").await;
    has_pods(&cluster, 1, 1).await;
    let first = cluster.nodes_of(1).await;
    create(&cluster, 2, 1, "cpu: 1").await;
    has_pods(&cluster, 2, 1).await;
    assert_ne!(cluster.nodes_of(2).await, first, "spread");
    let label = json!({"rcfarm/packing": "bin-pack"}).to_string();
    cluster.put(key::rc_labels(rc_id(3)), label).await;
    tokio::time::sleep(SECOND).await;
    create(&cluster, 3, 1, "cpu: 2").await;
    has_pods(&cluster, 3, 1).await;
    let full: BTreeSet<String> = &first | &cluster.nodes_of(2).await;
    assert!(cluster.nodes_of(3).await.is_subset(&full), "packed");
    let label = json!({"rcfarm/packing": "tight"}).to_string();
    cluster.put(key::rc_labels(rc_id(3)), label).await;
    let why = says(&cluster, 3, RcConditionType::Valid, RcReason::InvalidRecord).await;
    assert!(why.contains("rcfarm/packing") && why.contains("spread or bin-pack"), "{why}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invariant_14_racing_farms_never_allocation_a_node_twice() {
    let each = "cpu=3,memory=8Gi,gpu=2";
    let cluster = cluster(6, each).await;
    let farms = [cluster.start("a"), cluster.start("b"), cluster.start("c")];
    // 12 devices; 20 controllers request 40 in total, and change their requests.
    for round in 0..6_i64 {
        for n in 0..20_u128 {
            let replicas = (i64::try_from(n).unwrap() * 7 + round * 3) % 5;
            let kind = if n % 3 == 0 { "cpu: 1" } else { "gpu: 1" };
            create(&cluster, n, replicas, kind).await;
        }
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            check_books(&cluster, each);
        }
    }
    // Finally all devices are in use.
    for n in 0..20_u128 {
        create(&cluster, n, 2, "gpu: 1").await;
    }
    // A pod that requested CPU may stay on a node without a free device.
    within(60 * SECOND, "all devices are promised", || async { devices(&cluster) == 12 }).await;
    check_books(&cluster, each);
    for n in 0..20_u128 {
        create(&cluster, n, 0, "gpu: 1").await;
    }
    within(60 * SECOND, "all is free again", || async { allocation_count(&cluster) == 0 }).await;
    for farm in farms {
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn allocation_is_made_once_despite_crash_or_lost_answer() {
    let each = "cpu=4,memory=8Gi,gpu=4";
    let cluster = cluster(2, each).await;
    let lost = std::sync::atomic::AtomicBool::new(false);
    let farm = cluster.start_faulty("a", move |asked| match asked {
        Asked::Txn(ops)
            if ops
                .iter()
                .any(|op| op.verb.writes() && op.key.starts_with("rcfarm/allocations/"))
                && !lost.swap(true, std::sync::atomic::Ordering::SeqCst) =>
        {
            Fate::of(FaultOutcome::LoseReply)
        }
        _ => Fate::DELIVER,
    });
    create(&cluster, 1, 2, "gpu: 1").await;
    has_pods(&cluster, 1, 2).await;
    create(&cluster, 2, 2, "gpu: 1").await;
    has_pods(&cluster, 2, 2).await;
    farm.kill().await;
    let next = cluster.start("b");
    create(&cluster, 3, 2, "gpu: 2").await;
    has_pods(&cluster, 3, 2).await;
    check_books(&cluster, each);
    assert_eq!(allocation_count(&cluster), 6);
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_for_more_stays_moves_or_waits() {
    let cluster = cluster(2, "cpu=4,memory=8Gi").await;
    let farm = cluster.start("a");
    let mut record = wanting(&cluster, 1, 1, "cpu: 1");
    cluster.write_rc(1, &record).await;
    has_pods(&cluster, 1, 1).await;
    let home = cluster.nodes_of(1).await;
    let home: NodeName = home.first().unwrap().parse().unwrap();
    let cpu = |allocations: Allocations| allocations.pods[&pod_id(1)].cpu_milli;
    // The node has capacity for more.
    create(&cluster, 1, 1, "cpu: 2").await;
    within(5 * SECOND, "grown", || async { cpu(allocated(&cluster, &home).await) == 2_000 }).await;
    assert!(cluster.intent(&home, 1).await.unwrap().contains("cpu: 2"));
    // Another controller takes the rest.
    let mut other = wanting(&cluster, 2, 1, "cpu: 2");
    other["node_selector"] = json!("only=home");
    cluster.label_node(&home, json!({"pool": "web", "only": "home"})).await;
    cluster.write_rc(2, &other).await;
    has_pods(&cluster, 2, 1).await;
    create(&cluster, 1, 1, "cpu: 3").await;
    let why = says(&cluster, 1, RcConditionType::Placed, RcReason::InsufficientCapacity).await;
    assert!(why.contains(home.as_str()), "{why}");
    assert!(cluster.intent(&home, 1).await.unwrap().contains("cpu: 2"), "left as it is");
    // A dynamic controller moves to another node.
    record = wanting(&cluster, 1, 1, "cpu: 3");
    record["allocation_strategy"] = json!("dynamic_strategy");
    cluster.write_rc(1, &record).await;
    within(30 * SECOND, "moved", || async {
        let nodes = cluster.nodes_of(1).await;
        nodes.len() == 1 && !nodes.contains(home.as_str())
    })
    .await;
    check_books(&cluster, "cpu=4,memory=8Gi");
    // Without requests it releases its allocation.
    cluster.create_rc(1, 1).await;
    within(5 * SECOND, "given back", || async { allocation_count(&cluster) == 1 }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drained_node_frees_allocations_and_pod_moves() {
    let cluster = cluster(3, "cpu=1,memory=8Gi").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 1, "cpu: 1").await;
    has_pods(&cluster, 1, 1).await;
    create(&cluster, 2, 1, "cpu: 1").await;
    has_pods(&cluster, 2, 1).await;
    let home = cluster.nodes_of(1).await.first().unwrap().clone();
    let other = cluster.nodes_of(2).await.first().unwrap().clone();
    let record =
        json!({"capacity": units::json(&capacity("cpu=1,memory=8Gi")), "state": "draining"});
    cluster.put(format!("rcfarm/nodes/{home}"), record.to_string()).await;
    within(30 * SECOND, "moved", || async {
        let nodes = cluster.nodes_of(1).await;
        nodes.len() == 1 && !nodes.contains(&home) && !nodes.contains(&other)
    })
    .await;
    assert!(allocated(&cluster, &home.parse().unwrap()).await.pods.is_empty());
    check_books(&cluster, "cpu=1,memory=8Gi");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_allocation_that_was_deleted_by_hand_is_made_again() {
    let cluster = cluster(1, "cpu=4,memory=8Gi,gpu=4").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 1, "gpu: 2").await;
    has_pods(&cluster, 1, 1).await;
    tokio::time::sleep(5 * SECOND).await;
    let before = allocated(&cluster, &node(0)).await;
    cluster.delete(key::allocation(&node(0))).await;
    within(10 * SECOND, "made again", || async { allocated(&cluster, &node(0)).await == before })
        .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn orphaned_allocation_is_freed_by_owner_or_by_need() {
    let each = "cpu=1,memory=8Gi";
    let cluster = cluster(2, each).await;
    let farm = cluster.start("a");
    create(&cluster, 1, 1, "cpu: 1").await;
    has_pods(&cluster, 1, 1).await;
    tokio::time::sleep(5 * SECOND).await;
    // The owner's pod is deleted by hand, and its node no longer matches: it is placed elsewhere.
    let home = cluster.nodes_of(1).await.first().unwrap().clone();
    cluster.label_node(&home.parse().unwrap(), json!({"pool": "db"})).await;
    cluster.delete(format!("intent/{home}/pod-1")).await;
    cluster.delete(format!("labels/pod/{home}/pod-1")).await;
    within(30 * SECOND, "freed by its owner", || async {
        allocated(&cluster, &home.parse().unwrap()).await.pods.is_empty()
    })
    .await;
    has_pods(&cluster, 1, 1).await;
    // Record and pod are deleted: no owner releases the allocation until another needs it.
    let home = cluster.nodes_of(1).await.first().unwrap().clone();
    cluster.delete(key::rc(rc_id(1))).await;
    tokio::time::sleep(5 * SECOND).await;
    cluster.delete(format!("intent/{home}/pod-1")).await;
    cluster.delete(format!("labels/pod/{home}/pod-1")).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(allocated(&cluster, &home.parse().unwrap()).await.pods.len(), 1);
    create(&cluster, 2, 1, "cpu: 1").await;
    has_pods(&cluster, 2, 1).await;
    assert_eq!(cluster.nodes_of(2).await, [home].into());
    check_books(&cluster, each);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn books_that_cannot_be_read_or_written_harm_nothing_else() {
    let cluster = cluster(2, "cpu=4,memory=8Gi").await;
    let farm = cluster.start("a");
    create(&cluster, 1, 2, "cpu: 1").await;
    has_pods(&cluster, 1, 2).await;
    cluster.put(key::allocation(&node(0)), "{").await;
    tokio::time::sleep(5 * SECOND).await;
    create(&cluster, 2, 2, "cpu: 1").await;
    has_pods(&cluster, 2, 1).await;
    let why = says(&cluster, 2, RcConditionType::Scheduled, RcReason::InsufficientCapacity).await;
    assert!(why.contains("n0000: the record of its allocations cannot be read"), "{why}");
    assert_eq!(cluster.nodes_of(1).await.len(), 2, "who is there stays");
    create(&cluster, 1, 0, "cpu: 1").await;
    has_pods(&cluster, 1, 0).await;
    let entry = cluster.entry(&key::allocation(&node(0))).await;
    assert_eq!(entry.unwrap().value, "{", "a person mends it");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_farm_without_rights_on_the_books_does_not_start() {
    let cluster = cluster(1, "cpu=4,memory=8Gi").await;
    let farm = cluster.start_faulty("a", |asked| match asked {
        Asked::Get(key) if key.starts_with("rcfarm/allocations/") => {
            Fate::of(FaultOutcome::Fail(StoreError::Forbidden { what: "books".to_owned() }))
        }
        _ => Fate::DELIVER,
    });
    let error = farm.outcome().await.unwrap_err().to_string();
    assert!(error.contains("rcfarm/allocations/"), "{error}");
}
