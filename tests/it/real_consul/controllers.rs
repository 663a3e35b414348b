//! Replication controllers on a real Consul, with farms that are killed, stopped and frozen, and a command-line user.

use std::collections::BTreeMap;
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_node::shim::start_ticks;
use rcfarm_store::{DeleteMode, Key, PutMode};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::wait::{eventually, until};

use super::{Daemon, RealConsul};

/// Settings of an agent whose session ends soon after the agent.
const SHORT: [&str; 4] = ["--label", "pool=web", "--check-ttl", "6s"];

#[tokio::test(flavor = "multi_thread")]
async fn create_scale_kill_the_owner_scale_again_verify() {
    let scene = RealConsul::new(8).await;
    let a = scene.farm("a");
    let id = scene.create("web", 3);
    until("scheduled", || async { scene.pods().await.get("web") == Some(&3) }).await;
    scene.ok(&["rc", "scale", "web", "5", "--wait", "--timeout", "60s"]);
    assert_eq!(scene.pods().await["web"], 5);
    let b = scene.farm("b");
    until("two farms", || async { scene.list(&key::farms()).await.len() == 2 }).await;
    // The farm that acted is killed.
    until("acted on", || async { scene.acting(&id).await.is_some() }).await;
    let (victim, survivor, rest) = match scene.acting(&id).await.as_deref() {
        Some("a") => (a, "b", b),
        _ => (b, "a", a),
    };
    drop(victim);
    until("taken over with no other write", || async {
        scene.acting(&id).await.as_deref() == Some(survivor)
    })
    .await;
    scene.ok(&["rc", "scale", &id[..8], "2", "--wait", "--timeout", "60s"]);
    assert_eq!(scene.pods().await["web"], 2);
    scene.audit_agrees();
    rest.stop().await;
    assert!(scene.owners().await.is_empty(), "a farm that stops leaves no lock");
    assert!(scene.list(&key::farms()).await.is_empty(), "nor its presence");
}

/// Two farms, few devices: each device is allocated to at most one pod, even if a farm dies.
#[tokio::test(flavor = "multi_thread")]
async fn invariant_14_two_farms_never_allocate_a_device_twice() {
    let scene = RealConsul::new(3).await;
    for n in 0..3 {
        let record =
            r#"{"capacity":{"cpu_milli":8000,"memory_bytes":8589934592,"devices":{"gpu":2}}}"#;
        let key = key::node(&format!("n{n:02}").parse().unwrap());
        scene.store.put(&key, record.into(), 0, PutMode::Set).await.unwrap();
    }
    let a = scene.farm("a");
    let b = scene.farm("b");
    until("two farms", || async { scene.list(&key::farms()).await.len() == 2 }).await;
    for n in 0..4 {
        scene.create_of(&format!("id: train-{n}\nresources: {{gpu: 1}}\n"), 3);
    }
    // 12 are requested, 6 exist.
    until("all devices are taken", || async { scene.devices().await == 6 }).await;
    drop(a);
    for n in 0..4 {
        scene.ok(&["rc", "scale", &format!("train-{n}"), "1"]);
    }
    until("one each", || async { scene.devices().await == 4 && scene.pods().await.len() == 4 })
        .await;
    let why = scene.ok(&["rc", "explain", "train-0"]);
    assert!(why.contains("as desired: 1 of 1"), "{why}");
    // Released devices are allocated again. Two of the four may share a node, so not every node has a free device.
    for n in 1..4 {
        scene.ok(&["rc", "scale", &format!("train-{n}"), "0"]);
    }
    scene.ok(&["rc", "scale", "train-0", "3"]);
    let three = || async { scene.devices().await == 3 && scene.pods().await["train-0"] == 3 };
    until("one on each node", three).await;
    scene.audit_agrees();
    assert!(scene.ok(&["doctor"]).contains("resources for 3 pods on 3 nodes"));
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_farm_writes_nothing_when_it_wakes_and_claims_anew() {
    const MANY: usize = 20;
    let scene = RealConsul::new(6).await;
    let a = scene.farm("a");
    // With random ids each farm is preferred for some of so many records.
    let ids: Vec<String> = (0..MANY).map(|n| scene.create(&format!("pod-{n}"), 1)).collect();
    until("scheduled", || async { scene.pods().await.len() == MANY }).await;
    until("owned by a", || async { scene.owners().await.values().sum::<usize>() == MANY }).await;
    let old = scene.owners().await.into_keys().next().unwrap();
    a.signal("STOP");
    let b = scene.farm("b");
    until("taken over", || async {
        let owners = scene.owners().await;
        owners.values().sum::<usize>() == MANY && !owners.contains_key(&old)
    })
    .await;
    for id in &ids {
        until("acted on by b", || async { scene.acting(id).await.as_deref() == Some("b") }).await;
    }
    for n in 0..MANY {
        scene.ok(&["rc", "scale", &format!("pod-{n}"), "3"]);
    }
    let scaled = || async { scene.pods().await.values().all(|count| *count == 3) };
    until("scaled by b", scaled).await;
    // It resumes with old data; Consul refuses its writes.
    a.signal("CONT");
    until("a is back with a session of its own", || async {
        let sessions = scene.store.sessions().await.unwrap().value;
        sessions.iter().filter(|s| s.name.ends_with(" a") && s.id.as_str() != old).count() == 1
    })
    .await;
    until("and gets its share", || async { scene.owners().await.len() == 2 }).await;
    assert!(!scene.owners().await.contains_key(&old));
    let pods = scene.pods().await;
    assert!(pods.values().all(|count| *count == 3) && pods.len() == MANY, "{pods:?}");
    scene.audit_agrees();
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_reported_and_harm_no_other() {
    let scene = RealConsul::new(3).await;
    let _farm = scene.farm("a");
    let bad = "11111111-2222-4333-8444-555555555555";
    let put = |key: &str, value: &str| {
        let key = Key::parse(key).unwrap();
        let value = bytes::Bytes::copy_from_slice(value.as_bytes());
        let store = scene.store.clone();
        async move { store.put(&key, value, 0, rcfarm_store::PutMode::Set).await.unwrap() }
    };
    put("replication_controllers/no-uuid", "{}").await;
    put(&format!("replication_controllers/{bad}"), r#"{"id":"x"}"#).await;
    put("labels/node/n00", "[").await;
    let good = scene.create("good", 2);
    until("the good one is scheduled", || async { scene.pods().await.get("good") == Some(&2) })
        .await;
    until("the bad one says why", || async {
        scene
            .status(bad)
            .await
            .is_some_and(|s| s.last_error.is_some_and(|e| e.contains("manifest")))
    })
    .await;
    let explained = scene.ok(&["rc", "explain", &good]);
    assert!(explained.contains("as desired"), "{explained}");
}

/// A pod that ends by itself if the test does not stop it.
fn sleeper(pod: &str) -> String {
    format!("id: {pod}\nlaunchables:\n  main: {{launchable_type: process, command: sleep 300}}\n")
}

/// Consul is killed and restarted: running pods stay, and intents written meanwhile become real.
#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_consul_outage_and_reality_catches_up() {
    let mut scene = RealConsul::on(ConsulServer::durable().await, 0);
    let dir = tempfile::tempdir().unwrap();
    let agent = scene.agent("n1", &SHORT, dir.path());
    let node = "n1".parse().unwrap();
    let intent = |n: usize| key::intent(&node, &format!("pod-{n}").parse().unwrap());
    for n in 0..4 {
        let manifest = sleeper(&format!("pod-{n}")).into();
        scene.store.put(&intent(n), manifest, 0, PutMode::Set).await.unwrap();
    }
    until("four pods run", || async { scene.running().await.len() == 4 }).await;
    let before = scene.running().await;
    let manifest = sleeper("pod-4").into();
    scene.store.put(&intent(4), manifest, 0, PutMode::Set).await.unwrap();
    scene.server.kill();
    // Time for the agent to notice the outage.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(before.values().all(|pid| start_ticks(*pid).is_some()), "a pod was stopped");
    scene.server.until_ready().await;
    until("Consul has a leader", || async {
        scene.store.delete(&intent(0), DeleteMode::Always).await.is_ok()
    })
    .await;
    let pods = |running: &BTreeMap<(String, String), i32>| {
        running.keys().map(|(pod, _)| pod.clone()).collect::<Vec<_>>()
    };
    let wanted = ["pod-1", "pod-2", "pod-3", "pod-4"];
    until("reality is as intended", || async { pods(&scene.running().await) == wanted }).await;
    let after = scene.running().await;
    for (place, pid) in before.iter().filter(|(place, _)| after.contains_key(*place)) {
        assert_eq!(after[place], *pid, "{place:?} was started again");
    }
    scene.store.delete_tree(&key::node_intents(&node)).await.unwrap();
    until("all are stopped", || async { after.values().all(|pid| start_ticks(*pid).is_none()) })
        .await;
    agent.stop().await;
}

/// Agent and pods of a node die together; a dynamic controller creates the pods on another node.
#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_node_that_is_killed_run_elsewhere() {
    let scene = RealConsul::new(0).await;
    let dir = tempfile::tempdir().unwrap();
    let args = ["farm", "run", "--name", "a", "--log", "warn", "--node-grace", "1s"];
    let farm = Daemon::start(&mut scene.command(&args), None);
    let mut agents: BTreeMap<&str, Daemon> =
        ["n1", "n2"].map(|name| (name, scene.agent(name, &SHORT, dir.path()))).into();
    let file = dir.path().join("web.yaml");
    std::fs::write(&file, sleeper("web")).unwrap();
    let args = ["rc", "create", "-f", file.to_str().unwrap(), "--node-selector", "pool=web"];
    scene.ok(&[&args[..], &["--replicas", "1", "--strategy", "dynamic"]].concat());
    until("it runs", || async { scene.running().await.len() == 1 }).await;
    let ((_, at), pid) = scene.running().await.into_iter().next().unwrap();
    let (died, lives) = if at == "n1" { ("n1", "n2") } else { ("n2", "n1") };
    drop(agents.remove(died));
    eventually("its pod died with it", || start_ticks(pid).is_none()).await;
    until("it runs on the other", || async {
        scene.running().await.contains_key(&("web".to_owned(), lives.to_owned()))
    })
    .await;
    let intents = scene.list(&key::intents()).await;
    let nodes = intents.iter().filter_map(|e| key::node_and_pod(&key::intents(), &e.key));
    assert_eq!(nodes.map(|(node, _)| node.to_string()).collect::<Vec<_>>(), [lives]);
    scene.audit_agrees();
    scene.ok(&["rc", "scale", "web", "0", "--wait", "--timeout", "60s"]);
    until("nothing runs", || async { !scene.running().await.keys().any(|(_, at)| at == lives) })
        .await;
    for agent in agents.into_values() {
        agent.stop().await;
    }
    farm.stop().await;
}
