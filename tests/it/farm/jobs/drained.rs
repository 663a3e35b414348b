//! Members on nodes that are drained or go down.

use super::*;
use crate::harness::node;
use rcfarm_store::{Behavior, NewSession, Store};

/// Number of pods that are intended on a node.
async fn on(cluster: &Cluster, n: usize) -> usize {
    keys(cluster, &format!("intent/{}/", node(n))).await.len()
}

#[tokio::test(start_paused = true)]
async fn members_are_evicted_from_draining_nodes_and_never_started_there() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, |_, _| None);
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("a", 4)], "minAvailable": 4})).await;
    reaches(&cluster, "default/j", JobPhase::Running, 10 * SECOND).await;
    assert!(on(&cluster, 0).await > 0 && on(&cluster, 1).await > 0);
    // Without a policy they stay. A restart puts none back.
    cluster.put(key::node(&node(0)), json!({"state": "draining"}).to_string()).await;
    tokio::time::sleep(30 * SECOND).await;
    assert!(on(&cluster, 0).await > 0, "they wait for their end");
    command(&cluster, 1, "default/j", "RestartJob").await;
    within(60 * SECOND, "all are on the other node", || async {
        (on(&cluster, 0).await, on(&cluster, 1).await) == (0, 4)
    })
    .await;
    reaches(&cluster, "default/j", JobPhase::Running, 30 * SECOND).await;
    cluster.put(key::node(&node(0)), json!({}).to_string()).await;
    let evicts = json!({"state": "draining", "drain_jobs": "evict"});
    cluster.put(key::node(&node(1)), evicts.to_string()).await;
    within(60 * SECOND, "all are evicted", || async {
        (on(&cluster, 0).await, on(&cluster, 1).await) == (4, 0)
    })
    .await;
    let status = reaches(&cluster, "default/j", JobPhase::Running, 30 * SECOND).await;
    assert_eq!((status.retry_count, status.failures.len()), (0, 0));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn member_that_failed_is_started_on_another_node() {
    let cluster = Arc::new(Cluster::new(2).await);
    let _nodes = nodes(&cluster, |_, attempt| (attempt == 0).then_some(1));
    let farm = cluster.start("a");
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    submit(&cluster, "default/j", json!({"tasks": [task("a", 1)], "policies": policies})).await;
    within(10 * SECOND, "it fails", || async {
        !status(&cluster, "default/j").await.failures.is_empty()
    })
    .await;
    let first = status(&cluster, "default/j").await.failures[0].node.clone();
    let other = usize::from(first == node(0));
    within(60 * SECOND, "it runs on the other node", || async { on(&cluster, other).await == 1 })
        .await;
    reaches(&cluster, "default/j", JobPhase::Running, 30 * SECOND).await;
    farm.stop().await;
}

/// Each node that is given the member goes down.
#[tokio::test(start_paused = true)]
async fn member_that_takes_its_nodes_down_is_set_aside() {
    const NODES: usize = 8;
    let cluster = Arc::new(Cluster::new(NODES).await);
    let mut sessions = Vec::new();
    for n in 0..NODES {
        let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
        let session = cluster.store.create_session(&new).await.unwrap();
        let record = json!({"state": "ready", "session": session}).to_string();
        cluster.put_locked(key::node(&node(n)), &record, &session).await;
        sessions.push(session);
    }
    let farm = cluster.start("a");
    submit(&cluster, "default/j", json!({"tasks": [task("a", 1)]})).await;
    let mut killed = std::collections::BTreeSet::new();
    for _ in 0..300 {
        tokio::time::sleep(SECOND).await;
        for (n, session) in sessions.iter().enumerate() {
            if on(&cluster, n).await > 0 && killed.insert(n) {
                cluster.store.kill_session(session);
            }
        }
    }
    assert_eq!(killed.len(), 3, "{killed:?}");
    let status = status(&cluster, "default/j").await;
    assert_eq!(status.state.reason, "NodesLost", "{}", status.state.message);
    assert!(status.state.message.contains("3 nodes in a row"), "{}", status.state.message);
    assert_eq!(status.carried.len(), 1);
    farm.stop().await;
}
