//! Records that are too large: each is at fault alone, says so, and can be deleted.

use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason, PodGroupStatus};
use rcfarm_api::resource_list::units;
use rcfarm_api::{ResourceList, Stored};
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::StoreError;
use serde_json::{Value, json};

use crate::harness::{Cluster, SECOND, node};
use rcfarm_testing::wait::within;

fn id(name: &str) -> GroupId {
    format!("ns/{name}").parse().unwrap()
}

async fn put_group(cluster: &Cluster, name: &str, queue: &str, tasks: Value) {
    let record = json!({"spec": {"queue": queue, "tasks": tasks}});
    cluster.put(key::pod_group(&id(name)), record.to_string()).await;
}

async fn status(cluster: &Cluster, name: &str) -> PodGroupStatus {
    cluster.read(key::pod_group_status(&id(name))).await.unwrap_or_default()
}

async fn bound(cluster: &Cluster, name: &str) {
    within(30 * SECOND, &format!("{name} is bound"), || async {
        let status = status(cluster, name).await;
        (status.phase, status.reason) == (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
    })
    .await;
}

async fn refused(cluster: &Cluster, name: &str) -> String {
    within(30 * SECOND, &format!("{name} is refused"), || async {
        status(cluster, name).await.reason == PodGroupReason::InvalidRecord
    })
    .await;
    status(cluster, name).await.message
}

async fn with_capacity(nodes: usize, each: &str) -> Cluster {
    let cluster = Cluster::new(nodes).await;
    let capacity: ResourceList = each.parse().unwrap();
    for n in 0..nodes {
        let record = json!({"capacity": units::json(&capacity)});
        cluster.put(key::node(&node(n)), record.to_string()).await;
    }
    cluster
}

/// A status with one node per member is larger than a transaction.
#[tokio::test(start_paused = true)]
async fn group_too_large_to_store_delays_no_other_queue() {
    let cluster = Cluster::new(0).await;
    for n in 0..2_200 {
        let name: NodeName = format!("n{n:04}-{}", "x".repeat(170)).parse().unwrap();
        cluster.label_node(&name, json!({"pool": "jobs"})).await;
    }
    cluster.put(key::queue(&"other".parse().unwrap()), "{}").await;
    put_group(&cluster, "huge", "default", json!([{"name": "w", "replicas": 2_200}])).await;
    let farm = cluster.start("a");
    let message = refused(&cluster, "huge").await;
    assert!(message.contains("spec.tasks: the nodes of 2200 members take"), "{message}");
    put_group(&cluster, "small", "other", json!([{"name": "w", "replicas": 1}])).await;
    bound(&cluster, "small").await;
    put_group(&cluster, "huge", "default", json!([{"name": "w", "replicas": 100}])).await;
    bound(&cluster, "huge").await;
    farm.stop().await;
}

/// Neighbours on one node are stored as one entry.
#[tokio::test(start_paused = true)]
async fn largest_group_is_placed_on_a_few_nodes() {
    let cluster = Cluster::new(3).await;
    put_group(&cluster, "g", "default", json!([{"name": "w", "replicas": 100_000}])).await;
    let farm = cluster.start("a");
    bound(&cluster, "g").await;
    assert_eq!(status(&cluster, "g").await.placement.unwrap().counts()["w"], 100_000);
    let stored = cluster.entry(key::pod_group_status(&id("g"))).await.unwrap().value;
    assert!(stored.len() < 1_000, "{}", stored.len());
    cluster.delete(key::pod_group(&id("g"))).await;
    within(30 * SECOND, "forgotten", || async {
        cluster.entry(key::pod_group_status(&id("g"))).await.is_none()
    })
    .await;
    farm.stop().await;
}

/// Consul's limit may be lower than the one that the farm knows.
#[tokio::test(start_paused = true)]
async fn change_that_consul_finds_too_large_is_its_groups_fault_alone() {
    let cluster = with_capacity(2, "cpu=8").await;
    let tasks = |cpu: &str| json!([{"name": "w", "replicas": 1, "resources": {"cpu": cpu}}]);
    put_group(&cluster, "a", "default", tasks("1")).await;
    put_group(&cluster, "bad", "default", tasks("2")).await;
    put_group(&cluster, "c", "default", tasks("3")).await;
    let farm = cluster.start_faulty("a", |request: &Request<'_>| match request {
        Request::Txn(ops)
            if ops.iter().any(|op| op.key.ends_with("/ns/bad"))
                && ops.iter().any(|op| op.key.starts_with("rcfarm/allocations/")) =>
        {
            let detail = "a lower limit".to_owned();
            Fate::of(FaultOutcome::Fail(StoreError::TooLarge { detail }))
        }
        _ => Fate::DELIVER,
    });
    bound(&cluster, "a").await;
    bound(&cluster, "c").await;
    assert!(refused(&cluster, "bad").await.contains("a lower limit"));
    // Later groups are not delayed by it.
    put_group(&cluster, "d", "default", tasks("1")).await;
    bound(&cluster, "d").await;
    farm.stop().await;
}

/// 40 nodes of 110 pods each are few operations and many bytes.
#[tokio::test(start_paused = true)]
async fn gang_with_large_allocation_records_is_bound_and_released() {
    let cluster = with_capacity(40, "cpu=110").await;
    let tasks =
        json!([{"name": "worker-of-a-long-name", "replicas": 4_400, "resources": {"cpu": "1"}}]);
    put_group(&cluster, "gang-of-a-long-name", "default", tasks).await;
    let farm = cluster.start("a");
    bound(&cluster, "gang-of-a-long-name").await;
    let allocated = async || {
        let mut sum = 0;
        for n in 0..40 {
            let record: Option<Allocations> = cluster.read(key::allocation(&node(n))).await;
            sum += record.map_or(0, |record| record.pods.len());
        }
        sum
    };
    assert_eq!(allocated().await, 4_400);
    cluster.delete(key::pod_group(&id("gang-of-a-long-name"))).await;
    within(30 * SECOND, "released", || async { allocated().await == 0 }).await;
    farm.stop().await;
}

/// The record of a node's allocations is limited like a resource.
#[tokio::test(start_paused = true)]
async fn node_takes_no_more_pods_than_its_allocations_hold() {
    let cluster = with_capacity(2, "cpu=64").await;
    let tasks =
        |replicas: u32| json!([{"name": "w", "replicas": replicas, "resources": {"cpu": "1m"}}]);
    put_group(&cluster, "huge", "default", tasks(10_000)).await;
    let farm = cluster.start("a");
    within(30 * SECOND, "huge waits", || async {
        status(&cluster, "huge").await.reason == PodGroupReason::InsufficientCapacity
    })
    .await;
    let message = status(&cluster, "huge").await.message;
    assert!(message.contains("the record of its allocations is full"), "{message}");
    for n in 0..4 {
        put_group(&cluster, &format!("fits{n}"), "default", tasks(1_000)).await;
    }
    bound(&cluster, "fits1").await;
    put_group(&cluster, "late", "default", tasks(1)).await;
    within(30 * SECOND, "late waits", || async {
        status(&cluster, "late").await.reason == PodGroupReason::InsufficientCapacity
    })
    .await;
    for n in 0..2 {
        let record = cluster.entry(key::allocation(&node(n))).await.unwrap();
        let pods = Allocations::decode(&record.value).unwrap().pods.len();
        assert!(
            record.value.len() < 200 * 1024 && pods >= 1_000,
            "{pods} in {}",
            record.value.len()
        );
    }
    farm.stop().await;
}

/// A status that an older version wrote may hold more than a transaction beside a pod.
#[tokio::test(start_paused = true)]
async fn job_with_a_full_status_can_be_deleted() {
    let cluster = Cluster::new(1).await;
    let job = "default/j".parse().unwrap();
    let task = json!({"name": "w", "replicas": 2, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]}}});
    let document = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"tasks": [task]}});
    cluster.put(key::job(&job), document.to_string()).await;
    let uid = cluster.entry(key::job(&job)).await.unwrap().create_index;
    let attempts: serde_json::Map<String, Value> =
        (10_000..43_000).map(|n| (n.to_string(), json!(1))).collect();
    let status = json!({"uid": uid, "revision": 3, "created": "2026-01-01T00:00:00Z",
        "tasks": {"w": {"attempts": attempts}}});
    cluster.put(key::job_status(&job), status.to_string()).await;
    assert!(status.to_string().len() > 320_000);
    let farm = cluster.start("a");
    within(30 * SECOND, "it is gone", || async {
        cluster.entry(key::job(&job)).await.is_none()
            && cluster.entry(key::job_status(&job)).await.is_none()
    })
    .await;
    farm.stop().await;
}
