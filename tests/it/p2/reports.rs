//! What p2's programs delete, and what the agent and the farm do about it.

use super::P2;
use crate::harness::{id, manifest};
use rcfarm_api::key;
use rcfarm_testing::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn agent_writes_again_what_p2_wipe_reality_deletes() {
    let p2 = P2::new("agent_writes_again_what_p2_wipe_reality_deletes").await;
    let node = "n1".parse().unwrap();
    for pod in ["a", "b"] {
        let manifest = manifest(pod, "exec sleep 600", "");
        p2.cluster.put(key::intent(&node, &id(pod)), manifest).await;
    }
    let agent = p2.cluster.agent_process("n1", &[]);
    let realities = async || p2.cluster.list(&key::node_realities(&node)).await;
    until("both pods are reported", async || realities().await.len() == 2).await;
    let before = realities().await;
    let text = p2.run("p2-wipe-reality", &["n1"]).await;
    assert_eq!(text.matches("Deleting").count(), 2, "{text}");
    until("both pods are reported again", async || realities().await.len() == 2).await;
    for (old, new) in before.iter().zip(realities().await) {
        assert_eq!((&old.key, &old.value), (&new.key, &new.value));
        assert!(new.create_index > old.create_index, "it was deleted");
    }
    if let Some(shown) = p2.shown("p2-inspect", &["--node", "n1"]).await {
        assert_eq!(shown.matches("\"reality_manifest_sha\"").count(), 2, "{shown}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_a_controller_that_p2_rctl_deletes_is_collected() {
    let p2 = P2::new("status_of_a_controller_that_p2_rctl_deletes").await.with_nodes(1).await;
    let farm = p2.cluster.farm_process("f", &[]);
    let (id, stays) = (p2.create_web(1).await, p2.create_web(2).await);
    let status = |id: &str| key::rc_status(id.parse().unwrap());
    let has_status = async |id: &str| p2.cluster.entry(status(id)).await.is_some();
    until("statuses", async || has_status(&id).await && has_status(&stays).await).await;
    p2.rctl(&["delete", &id]).await;
    until("nothing is left", async || {
        let bell = p2.cluster.entry(key::rc_bell(id.parse().unwrap())).await;
        let lock = p2.cluster.entry(key::rc_lock(id.parse().unwrap())).await;
        bell.is_none() && lock.is_none() && !has_status(&id).await
    })
    .await;
    assert!(has_status(&stays).await);
    let shown = p2.shown("p2-rctl", &["list"]).await;
    assert!(shown.is_none_or(|shown| shown.contains(&stays)));
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_p2_schedule_knows_by_a_uuid_is_passed_over() {
    let p2 = P2::new("pod_that_p2_schedule_knows_by_a_uuid").await;
    let text = "id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n    location: file:///w.tar.gz\n";
    std::fs::write(p2.cluster.dir.path().join("web.yaml"), text).unwrap();
    let agent = p2.cluster.agent_process("n1", &[]);
    p2.run("p2-schedule", &["--uuid-pod", "--node", "n1", "web.yaml"]).await;
    // Hooks are no pods of a node.
    p2.run("p2-schedule", &["--hook", "--node", "n1", "web.yaml"]).await;
    let node = "n1".parse().unwrap();
    p2.cluster.put(key::intent(&node, &id("ours")), manifest("ours", "exec sleep 600", "")).await;
    let realities = async || p2.cluster.keys(&key::node_realities(&node)).await;
    until("our pod runs", async || realities().await == ["reality/n1/ours"]).await;
    let listed = p2.cluster.json(&["pod", "list"]).await;
    let [ours, by_uuid] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    let (ours, by_uuid) = if ours["pod"] == "ours" { (ours, by_uuid) } else { (by_uuid, ours) };
    assert_eq!((&ours["phase"], &by_uuid["health"]), (&"Running".into(), &"absent".into()));
    assert!(by_uuid["message"].as_str().unwrap().contains("by a UUID"), "{by_uuid}");
    let statuses = p2.cluster.keys(&key::pod_statuses()).await;
    assert_eq!(statuses, ["status/pods/ours/n1"]);
    assert_eq!(p2.cluster.keys(&key::healths()).await, ["health/ours/n1"]);
    agent.stop().await;
}
