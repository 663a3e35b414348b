//! Jobs that get their cells back from jobs that they were lent to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::cells::{cluster, devices, furnish, group, id, nodes, phase, submit};
use crate::harness::{Cluster, HttpCluster, SECOND, node};
use rcfarm_api::audit::Details;
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_emulator::{Applied, FaultOutcome, Tables};
use rcfarm_store::{Behavior, NewSession, Store};
use rcfarm_testing::wait::{until, within};

async fn status(cluster: &Cluster, name: &str) -> JobStatus {
    cluster.read(key::job_status(&id(name))).await.unwrap_or_default()
}

async fn runs(cluster: &Cluster, name: &str) {
    within(600 * SECOND, &format!("{name} runs"), || async {
        phase(cluster, name).await == Some(JobPhase::Running)
    })
    .await;
}

const LENT: &str = "priority: -1";

#[tokio::test(start_paused = true)]
async fn guaranteed_job_evicts_and_says_so_and_the_victim_runs_again() {
    let cluster = cluster().await;
    let (farm, nodes) = (cluster.start("a"), nodes(&cluster));
    submit(&cluster, "lent", "A", &[(4, 4)], LENT).await;
    runs(&cluster, "lent").await;
    submit(&cluster, "own", "B", &[(2, 4)], "priority: 0").await;
    runs(&cluster, "own").await;
    assert_eq!(devices(&cluster, "own").await.len(), 2);
    within(60 * SECOND, "lent waits", || async {
        phase(&cluster, "lent").await == Some(JobPhase::Pending)
    })
    .await;
    let lent = status(&cluster, "lent").await;
    assert_eq!((lent.version, lent.retry_count), (1, 0), "a new attempt that counts as none");
    assert!(lent.state.message.contains("for default/own"), "{:?}", lent.state);
    let told: Vec<String> = cluster.audit().await.into_iter().filter_map(evicted).collect();
    assert_eq!(told, ["default/lent for default/own"]);
    cluster.delete(key::job(&id("own"))).await;
    runs(&cluster, "lent").await;
    let starts = nodes.starts();
    assert_eq!((starts["lent-t0-0"], starts["own-t0-0"]), (2, 1));
    farm.stop().await;
}

/// The eviction in an audit record.
fn evicted(record: rcfarm_api::audit::AuditRecord) -> Option<String> {
    let Details::GroupsOrdered(ordered) = record.details().ok()? else { return None };
    let mut evicted = ordered.groups.iter().filter(|group| {
        group.reason == "Evicted"
            && group.from == group.to
            && group.from.as_deref() != Some("Pending")
    });
    let group = evicted.next()?;
    Some(format!("{} for {}", group.group, group.preemptor.as_ref()?))
}

/// Nodes of the rack of virtual cluster A, of which a job of one node has the first.
async fn of_one_node(cluster: &Cluster, more: &str) -> [NodeName; 2] {
    submit(cluster, "train", "A", &[(1, 4)], more).await;
    runs(cluster, "train").await;
    let first: NodeName =
        devices(cluster, "train").await.into_keys().next().unwrap().parse().unwrap();
    let rack = if first == node(0) || first == node(1) { [0, 1] } else { [2, 3] };
    let other = rack.map(node).into_iter().find(|one| *one != first).unwrap();
    [first, other]
}

/// Waits until the job of one node runs elsewhere, as a new attempt that counts as none.
async fn moves(cluster: &Cluster, to: &NodeName) {
    within(600 * SECOND, "it runs on the other node", || async {
        let place = devices(cluster, "train").await.into_keys().next();
        place.as_deref() == Some(to.as_str())
            && phase(cluster, "train").await == Some(JobPhase::Running)
    })
    .await;
    let train = status(cluster, "train").await;
    assert_eq!((train.retry_count, train.failures.len()), (0, 0));
    assert_eq!(group(cluster, "train").await.sent_back, 0, "it keeps its place in the queue");
}

/// No policy answers `PodEvicted`: the drain moves the whole job all the same, with the members' grace.
#[tokio::test(start_paused = true)]
async fn job_with_cells_leaves_a_drained_node_whole() {
    let cluster = cluster().await;
    let (farm, nodes) = (cluster.start("a"), nodes(&cluster));
    let [first, other] = of_one_node(&cluster, "").await;
    let record = |more: serde_json::Value| {
        let mut record = json!({"capacity": {"cpu_milli": 8000,
            "memory_bytes": 8_000_000_000_u64, "devices": {"gpu": 4}}});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record.to_string()
    };
    let waits = json!({"state": "draining", "drain_jobs": "wait"});
    cluster.put(key::node(&first), record(waits)).await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(status(&cluster, "train").await.version, 0, "such a drain waits for its end");
    let evicts = json!({"state": "draining", "drain_jobs": "evict"});
    cluster.put(key::node(&first), record(evicts)).await;
    moves(&cluster, &other).await;
    assert_eq!(status(&cluster, "train").await.version, 1);
    let reasons: Vec<String> = cluster.audit().await.into_iter().filter_map(drained).collect();
    assert_eq!(reasons, ["default/train"]);
    assert_eq!(nodes.starts()["train-t0-0"], 2);
    farm.stop().await;
}

/// The eviction for a node in an audit record: it is for no other group.
fn drained(record: rcfarm_api::audit::AuditRecord) -> Option<String> {
    let Details::GroupsOrdered(ordered) = record.details().ok()? else { return None };
    let is_it = |group: &&rcfarm_api::audit::GroupChange| {
        group.reason == "Evicted" && group.from == group.to && group.placement.is_some()
    };
    let group = ordered.groups.iter().find(is_it)?;
    assert_eq!(group.preemptor, None);
    Some(group.group.to_string())
}

#[tokio::test(start_paused = true)]
async fn job_with_cells_leaves_a_node_that_goes_down() {
    let cluster = cluster().await;
    let mut sessions = Vec::new();
    for n in 0..4 {
        let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
        let session = cluster.store.create_session(&new).await.unwrap();
        let record = json!({"state": "ready", "session": session, "capacity": {"cpu_milli": 8000,
            "memory_bytes": 8_000_000_000_u64, "devices": {"gpu": 4}}});
        cluster.put_locked(key::node(&node(n)), &record.to_string(), &session).await;
        sessions.push(session);
    }
    let (farm, _nodes) = (cluster.start("a"), nodes(&cluster));
    let [first, other] = of_one_node(&cluster, "").await;
    let at = (0..4).find(|n| node(*n) == first).unwrap();
    cluster.store.kill_session(&sessions[at]);
    moves(&cluster, &other).await;
    farm.stop().await;
}

/// The next farm finishes what the dead one began: one job is evicted, once, and the other never.
#[tokio::test(start_paused = true)]
async fn farm_that_dies_at_any_transaction_of_a_preemption_evicts_nobody_twice() {
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
        for deadly in 0.. {
            let cluster = cluster().await;
            let (farm, nodes) = (cluster.start("a"), nodes(&cluster));
            for name in ["lent-0", "lent-1"] {
                submit(&cluster, name, "A", &[(2, 4)], LENT).await;
                runs(&cluster, name).await;
            }
            farm.stop().await;
            submit(&cluster, "own", "B", &[(1, 4)], "priority: 0").await;
            let (farm, made) = cluster.start_dying(
                &["rcfarm/scheduler_status/", "rcfarm/job_status/"],
                deadly,
                fate.clone(),
            );
            within(600 * SECOND, "its last transaction", || async {
                made.load(Ordering::SeqCst) > deadly
                    || phase(&cluster, "own").await == Some(JobPhase::Running)
            })
            .await;
            farm.kill().await;
            let next = cluster.start("lives");
            runs(&cluster, "own").await;
            within(600 * SECOND, "no eviction is left", || async {
                let [a, b] = [group(&cluster, "lent-0").await, group(&cluster, "lent-1").await];
                a.evicted().is_none() && b.evicted().is_none()
            })
            .await;
            let versions = [
                status(&cluster, "lent-0").await.version,
                status(&cluster, "lent-1").await.version,
            ];
            assert_eq!(versions.iter().sum::<u64>(), 1, "{fate:?} {deadly}: {versions:?}");
            let retries = status(&cluster, "lent-0").await.retry_count
                + status(&cluster, "lent-1").await.retry_count;
            assert_eq!(retries, 0, "{fate:?} {deadly}");
            assert_eq!(nodes.starts()["own-t0-0"], 1, "{fate:?} {deadly}");
            next.stop().await;
            if made.load(Ordering::SeqCst) <= deadly {
                assert!(deadly > 4, "{deadly}: it was never cut off");
                break;
            }
        }
    }
}

/// A process is killed by SIGKILL with the first write of `key` whose value has `text`. Another process goes on.
async fn kill_at(key: &'static str, text: &'static str) {
    let cluster = HttpCluster::new().await;
    for n in 0..4 {
        cluster.label_node(&node(n), serde_json::json!({"pool": "web"})).await;
    }
    furnish(&cluster).await;
    let first = Arc::new(cluster.farm_process("first", &[]));
    let agents = nodes(&cluster);
    for name in ["lent-0", "lent-1"] {
        submit(&cluster, name, "A", &[(2, 4)], LENT).await;
        until(name, async || phase(&cluster, name).await == Some(JobPhase::Running)).await;
    }
    let killed = Arc::new(AtomicUsize::new(0));
    let (process, count) = (first.clone(), killed.clone());
    cluster.store.observe(move |applied: &Applied, _: &Tables| {
        let is_it = applied.changes.iter().any(|change| {
            let value = change.after.as_ref().map(|entry| String::from_utf8_lossy(&entry.value));
            change.key.starts_with(key) && value.is_some_and(|value| value.contains(text))
        });
        if is_it && count.fetch_add(1, Ordering::SeqCst) == 0 {
            process.signal("KILL");
        }
    });
    submit(&cluster, "own", "B", &[(1, 4)], "priority: 0").await;
    until("the process is killed", async || killed.load(Ordering::SeqCst) > 0).await;
    let reserved = group(&cluster, "own").await.reservation;
    let reserved = reserved.expect("it is killed while cells are reserved").pods[0].node.clone();
    let second = cluster.farm_process("second", &[]);
    until("own runs", async || phase(&cluster, "own").await == Some(JobPhase::Running)).await;
    let place = devices(&cluster, "own").await;
    assert_eq!(place.into_keys().collect::<Vec<_>>(), [reserved], "{key}: where it was reserved");
    until("no eviction is left", async || {
        let [a, b] = [group(&cluster, "lent-0").await, group(&cluster, "lent-1").await];
        a.evicted().is_none() && b.evicted().is_none()
    })
    .await;
    let versions =
        [status(&cluster, "lent-0").await.version, status(&cluster, "lent-1").await.version];
    assert_eq!(versions.iter().sum::<u64>(), 1, "{key}: one victim, once: {versions:?}");
    assert_eq!(agents.starts()["own-t0-0"], 1, "{key}");
    second.stop().await;
}

#[tokio::test]
async fn process_killed_when_it_reserves_leaves_the_same_victims_to_another() {
    kill_at("rcfarm/pod_group_status/default/own", "\"reservation\"").await;
}

#[tokio::test]
async fn process_killed_when_it_evicts_leaves_the_same_victims_to_another() {
    kill_at("rcfarm/pod_group_status/default/lent", "\"eviction\"").await;
}

#[tokio::test]
async fn process_killed_when_it_stops_a_victim_leaves_the_same_victims_to_another() {
    kill_at("rcfarm/job_status/default/lent", "Evicted").await;
}
