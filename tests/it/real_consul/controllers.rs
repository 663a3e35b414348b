//! Replication controllers on a real Consul, with farms that are killed, stopped and frozen, and a command-line user.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_node::procfs::start_ticks;
use rcfarm_store::{DeleteMode, Entry, Query, Reader, Store};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::wait::{eventually, until};

use crate::harness::RealCluster;

/// Settings of an agent whose session ends soon after the agent.
const SHORT: [&str; 4] = ["--label", "role=web", "--check-ttl", "6s"];

/// Creates a controller of `replicas` pods; returns its id.
async fn create(cluster: &RealCluster, pod: &str, replicas: usize) -> String {
    let manifest = format!("id: {pod}\n");
    cluster.create_of(&manifest, &["--replicas", &replicas.to_string()]).await
}

/// Process ids of running pods, by pod and node; empty while Consul does not answer.
async fn running(cluster: &RealCluster) -> BTreeMap<(String, String), i32> {
    let prefix = key::pod_statuses();
    let listed = cluster.store.list(&prefix, Query::CONSISTENT).await;
    let pid = |entry: &Entry| {
        let (pod, node) = key::pod_and_node(&prefix, &entry.key)?;
        let status = PodStatus::decode(&entry.value).ok()?;
        let pid =
            status.processes.first()?.pid.filter(|_| status.phase == NodePodPhase::Running)?;
        Some(((pod.to_string(), node.to_string()), pid))
    };
    listed.map(|listed| listed.value.iter().filter_map(pid).collect()).unwrap_or_default()
}

/// Number of allocated devices. Checks that each exists and is allocated once.
async fn devices(cluster: &RealCluster) -> usize {
    let mut count = 0;
    for entry in cluster.list(&key::allocations()).await {
        let allocated = Allocations::decode(&entry.value).unwrap();
        let mut seen = BTreeSet::new();
        for number in allocated.pods.values().flat_map(|a| a.devices.values().flatten()) {
            assert!(*number < 2 && seen.insert(*number), "{}: {allocated:?}", entry.key);
            count += 1;
        }
    }
    count
}

/// Number of pods by pod id.
async fn pods(cluster: &RealCluster) -> BTreeMap<String, usize> {
    let mut pods = BTreeMap::new();
    for entry in cluster.list(&key::intents()).await {
        let (_, pod) = key::node_and_pod(&key::intents(), &entry.key).unwrap();
        *pods.entry(pod.to_string()).or_insert(0) += 1;
    }
    pods
}

async fn status(cluster: &RealCluster, id: &str) -> Option<RcStatus> {
    cluster.read(key::rc_status(id.parse().unwrap())).await
}

/// The farm that wrote the status last.
async fn acting(cluster: &RealCluster, id: &str) -> Option<String> {
    Some(status(cluster, id).await?.owner?.farm.to_string())
}

/// Number of ownership locks by session.
async fn owners(cluster: &RealCluster) -> BTreeMap<String, usize> {
    let mut owners = BTreeMap::new();
    for session in cluster.list(&key::rc_locks()).await.into_iter().filter_map(|e| e.session) {
        *owners.entry(session.to_string()).or_insert(0) += 1;
    }
    owners
}

#[tokio::test(flavor = "multi_thread")]
async fn create_scale_kill_the_owner_scale_again_verify() {
    let cluster = RealCluster::real().await;
    cluster.nodes(8).await;
    let a = cluster.farm_process("a", &[]);
    let id = create(&cluster, "web", 3).await;
    until("scheduled", || async { pods(&cluster).await.get("web") == Some(&3) }).await;
    cluster.run(&["rc", "scale", "web", "5", "--wait", "--timeout", "60s"]).await.ok();
    assert_eq!(pods(&cluster).await["web"], 5);
    let b = cluster.farm_process("b", &[]);
    until("two farms", || async { cluster.list(&key::farms()).await.len() == 2 }).await;
    // The farm that acted is killed.
    until("acted on", || async { acting(&cluster, &id).await.is_some() }).await;
    let (victim, survivor, rest) = match acting(&cluster, &id).await.as_deref() {
        Some("a") => (a, "b", b),
        _ => (b, "a", a),
    };
    drop(victim);
    until("taken over with no other write", || async {
        acting(&cluster, &id).await.as_deref() == Some(survivor)
    })
    .await;
    cluster.run(&["rc", "scale", &id[..8], "2", "--wait", "--timeout", "60s"]).await.ok();
    assert_eq!(pods(&cluster).await["web"], 2);
    cluster.run(&["audit", "verify"]).await.ok();
    rest.stop().await;
    assert!(owners(&cluster).await.is_empty(), "a farm that stops leaves no lock");
    assert!(cluster.list(&key::farms()).await.is_empty(), "nor its presence");
}

/// Two farms, few devices: each device is allocated to at most one pod, even if a farm dies.
#[tokio::test(flavor = "multi_thread")]
async fn invariant_14_two_farms_never_allocate_a_device_twice() {
    let cluster = RealCluster::real().await;
    cluster.nodes(3).await;
    for n in 1..=3 {
        let record =
            r#"{"capacity":{"cpu_milli":8000,"memory_bytes":8589934592,"devices":{"gpu":2}}}"#;
        cluster.put(format!("rcfarm/nodes/n{n}"), record).await;
    }
    let a = cluster.farm_process("a", &[]);
    let b = cluster.farm_process("b", &[]);
    until("two farms", || async { cluster.list(&key::farms()).await.len() == 2 }).await;
    for n in 0..4 {
        cluster
            .create_of(&format!("id: train-{n}\nresources: {{gpu: 1}}\n"), &["--replicas", "3"])
            .await;
    }
    // 12 are requested, 6 exist.
    until("all devices are taken", || async { devices(&cluster).await == 6 }).await;
    drop(a);
    for n in 0..4 {
        cluster.run(&["rc", "scale", &format!("train-{n}"), "1"]).await.ok();
    }
    until("one each", || async { devices(&cluster).await == 4 && pods(&cluster).await.len() == 4 })
        .await;
    let why = cluster.run(&["rc", "explain", "train-0"]).await.ok();
    assert!(why.contains("as desired: 1 of 1"), "{why}");
    // Released devices are allocated again. Two of the four may share a node, so not every node has a free device.
    for n in 1..4 {
        cluster.run(&["rc", "scale", &format!("train-{n}"), "0"]).await.ok();
    }
    cluster.run(&["rc", "scale", "train-0", "3"]).await.ok();
    let three = || async { devices(&cluster).await == 3 && pods(&cluster).await["train-0"] == 3 };
    until("one on each node", three).await;
    cluster.run(&["audit", "verify"]).await.ok();
    assert!(cluster.run(&["doctor"]).await.ok().contains("resources for 3 pods on 3 nodes"));
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_farm_writes_nothing_when_it_wakes_and_claims_anew() {
    const MANY: usize = 20;
    let cluster = RealCluster::real().await;
    cluster.nodes(6).await;
    let a = cluster.farm_process("a", &[]);
    // With random ids each farm is preferred for some of so many records.
    let mut ids = Vec::new();
    for n in 0..MANY {
        ids.push(create(&cluster, &format!("pod-{n}"), 1).await);
    }
    until("scheduled", || async { pods(&cluster).await.len() == MANY }).await;
    until("owned by a", || async { owners(&cluster).await.values().sum::<usize>() == MANY }).await;
    let old = owners(&cluster).await.into_keys().next().unwrap();
    a.signal("STOP");
    let b = cluster.farm_process("b", &[]);
    until("taken over", || async {
        let owners = owners(&cluster).await;
        owners.values().sum::<usize>() == MANY && !owners.contains_key(&old)
    })
    .await;
    for id in &ids {
        until("acted on by b", || async { acting(&cluster, id).await.as_deref() == Some("b") })
            .await;
    }
    for n in 0..MANY {
        cluster.run(&["rc", "scale", &format!("pod-{n}"), "3"]).await.ok();
    }
    let scaled = || async { pods(&cluster).await.values().all(|count| *count == 3) };
    until("scaled by b", scaled).await;
    // It resumes with old data; Consul refuses its writes.
    a.signal("CONT");
    until("a is back with a session of its own", || async {
        let sessions = cluster.store.sessions().await.unwrap().value;
        sessions.iter().filter(|s| s.name.ends_with(" a") && s.id.as_str() != old).count() == 1
    })
    .await;
    until("and gets its share", || async { owners(&cluster).await.len() == 2 }).await;
    assert!(!owners(&cluster).await.contains_key(&old));
    let pods = pods(&cluster).await;
    assert!(pods.values().all(|count| *count == 3) && pods.len() == MANY, "{pods:?}");
    cluster.run(&["audit", "verify"]).await.ok();
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_reported_and_harm_no_other() {
    let cluster = RealCluster::real().await;
    cluster.nodes(3).await;
    let _farm = cluster.farm_process("a", &[]);
    let bad = "11111111-2222-4333-8444-555555555555";
    cluster.put("replication_controllers/no-uuid", "{}").await;
    cluster.put(format!("replication_controllers/{bad}"), r#"{"id":"x"}"#).await;
    cluster.put("labels/node/n1", "[").await;
    let good = create(&cluster, "good", 2).await;
    until("the good one is scheduled", || async { pods(&cluster).await.get("good") == Some(&2) })
        .await;
    until("the bad one says why", || async {
        let status = status(&cluster, bad).await;
        status.is_some_and(|s| s.last_error.is_some_and(|e| e.contains("manifest")))
    })
    .await;
    let explained = cluster.run(&["rc", "explain", &good]).await.ok();
    assert!(explained.contains("as desired"), "{explained}");
}

/// A pod that ends by itself if the test does not stop it.
fn sleeper(pod: &str) -> String {
    format!("id: {pod}\nlaunchables:\n  main: {{launchable_type: process, command: sleep 300}}\n")
}

/// Consul is killed and restarted: running pods stay, and intents written meanwhile become real.
#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_consul_outage_and_reality_catches_up() {
    let mut cluster = RealCluster::on_server(ConsulServer::durable().await);
    let agent = cluster.agent_process("n1", &SHORT);
    let node = "n1".parse().unwrap();
    let intent = |n: usize| key::intent(&node, &format!("pod-{n}").parse().unwrap());
    for n in 0..4 {
        cluster.put(intent(n), sleeper(&format!("pod-{n}"))).await;
    }
    until("four pods run", || async { running(&cluster).await.len() == 4 }).await;
    let before = running(&cluster).await;
    cluster.put(intent(4), sleeper("pod-4")).await;
    cluster.server.kill();
    // Time for the agent to notice the outage.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(before.values().all(|pid| start_ticks(*pid).is_some()), "a pod was stopped");
    cluster.server.until_ready().await;
    until("Consul has a leader", || async {
        cluster.store.delete(&intent(0), DeleteMode::Always).await.is_ok()
    })
    .await;
    let pods = |running: &BTreeMap<(String, String), i32>| {
        running.keys().map(|(pod, _)| pod.clone()).collect::<Vec<_>>()
    };
    let wanted = ["pod-1", "pod-2", "pod-3", "pod-4"];
    until("reality is as intended", || async { pods(&running(&cluster).await) == wanted }).await;
    let after = running(&cluster).await;
    for (place, pid) in before.iter().filter(|(place, _)| after.contains_key(*place)) {
        assert_eq!(after[place], *pid, "{place:?} was started again");
    }
    cluster.store.delete_tree(&key::node_intents(&node)).await.unwrap();
    until("all are stopped", || async { after.values().all(|pid| start_ticks(*pid).is_none()) })
        .await;
    agent.stop().await;
}

/// Agent and pods of a node die together; a dynamic controller creates the pods on another node.
#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_node_that_is_killed_run_elsewhere() {
    let cluster = RealCluster::real().await;
    let farm = cluster.farm_process("a", &["--node-grace", "1s"]);
    let mut agents: BTreeMap<&str, Daemon> =
        ["n1", "n2"].map(|name| (name, cluster.agent_process(name, &SHORT))).into();
    cluster.create_of(&sleeper("web"), &["--replicas", "1", "--strategy", "dynamic"]).await;
    until("it runs", || async { running(&cluster).await.len() == 1 }).await;
    let ((_, at), pid) = running(&cluster).await.into_iter().next().unwrap();
    let (died, lives) = if at == "n1" { ("n1", "n2") } else { ("n2", "n1") };
    drop(agents.remove(died));
    eventually("its pod died with it", || start_ticks(pid).is_none()).await;
    until("it runs on the other", || async {
        running(&cluster).await.contains_key(&("web".to_owned(), lives.to_owned()))
    })
    .await;
    let intents = cluster.list(&key::intents()).await;
    let nodes = intents.iter().filter_map(|e| key::node_and_pod(&key::intents(), &e.key));
    assert_eq!(nodes.map(|(node, _)| node.to_string()).collect::<Vec<_>>(), [lives]);
    cluster.run(&["audit", "verify"]).await.ok();
    cluster.run(&["rc", "scale", "web", "0", "--wait", "--timeout", "60s"]).await.ok();
    until("nothing runs", || async { !running(&cluster).await.keys().any(|(_, at)| at == lives) })
        .await;
    for agent in agents.into_values() {
        agent.stop().await;
    }
    farm.stop().await;
}
