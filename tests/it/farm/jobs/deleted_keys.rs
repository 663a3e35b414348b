//! Keys of members that users delete.

use super::*;
use rcfarm_store::Prefix;

/// No two snapshots differ in such a key. Nothing but a resync, after five minutes, would find that it is gone.
#[tokio::test(start_paused = true)]
async fn intent_deleted_before_its_cache_shows_it_is_written_again() {
    let cluster = Arc::new(Cluster::new(1).await);
    let farm = cluster.start("a");
    submit(&cluster, "default/first", json!({"tasks": [task("w", 1)]})).await;
    tokio::time::sleep(10 * SECOND).await;
    cluster.put("intent/n0009/other", "{}").await;
    // The watch of the intents has just been woken and pauses for half a second.
    tokio::time::sleep(SECOND / 20).await;
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    let key = format!("intent/n0000/{}", pod_id("default/j", "w", 0));
    let is_there = || async { cluster.entry(&key).await.is_some() };
    within(SECOND / 4, &key, is_there).await;
    cluster.delete(&key).await;
    within(10 * SECOND, &format!("{key} again"), is_there).await;
    let _nodes = nodes(&cluster, |_, _| None);
    reaches(&cluster, "default/j", JobPhase::Running, 30 * SECOND).await;
    farm.stop().await;
}

/// As when Consul loses all its keys under running farms: what farms create at their start is created again, so that
/// jobs are admitted.
#[tokio::test(start_paused = true)]
async fn job_is_admitted_after_all_keys_were_lost() {
    let cluster = Arc::new(Cluster::new(1).await);
    let _nodes = nodes(&cluster, |_, _| Some(0));
    let (first, second) = (cluster.start("a"), cluster.start("b"));
    submit(&cluster, "default/j", json!({"tasks": [task("w", 1)]})).await;
    reaches(&cluster, "default/j", JobPhase::Completed, 10 * SECOND).await;
    cluster.store.delete_tree(&Prefix::parse("").unwrap()).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    cluster.label_node(&"n0000".parse().unwrap(), json!({"pool": "web"})).await;
    submit(&cluster, "default/again", json!({"tasks": [task("w", 1)]})).await;
    reaches(&cluster, "default/again", JobPhase::Completed, 60 * SECOND).await;
    first.stop().await;
    second.stop().await;
}
