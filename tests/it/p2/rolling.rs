//! Rolling updates of the real p2-rctl, which reads and writes as it goes: they cannot be replayed.

use std::path::PathBuf;
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use serde_json::Value;

use super::programs::{command, directory, output};
use super::{P2, START};

/// Nodes and the directory of p2's programs. `None`: they are not here, which is said aloud.
async fn live(nodes: usize) -> Option<(P2, PathBuf)> {
    let Some(dir) = directory() else {
        eprintln!("NOT RUN: p2's programs are not here. farm::rolling_updates makes their writes.");
        return None;
    };
    Some((P2::live(dir.clone()).await.with_nodes(nodes).await, dir))
}

/// Rolls three pods from one controller to another; checks the end, and that two were healthy all the time.
async fn roll(p2: &P2, dir: &std::path::Path, old: &str, new: &str) {
    let update = ["rolling-update", "-o", old, "-n", new, "-d", "3", "-m", "2"];
    let running = output(command(dir, &p2.cluster, &p2.cluster.address, "p2-rctl", &update));
    tokio::pin!(running);
    let mut least = usize::MAX;
    let (code, text) = loop {
        tokio::select! {
            ended = &mut running => break ended,
            () = tokio::time::sleep(START / 10) => least = least.min(p2.healthy().await),
        }
    };
    assert_eq!(code, 0, "{text}");
    assert!(least >= 2, "{least} healthy pods, the minimum is 2");
    assert_eq!(p2.nodes_of(new).await.len(), 3, "{text}");
    assert_eq!(p2.cluster.list(&key::intents()).await.len(), 3, "{text}");
    assert!(p2.cluster.get(key::rc(old.parse().unwrap())).await.is_none(), "{text}");
}

async fn rolls_on(nodes: usize) {
    let Some((p2, dir)) = live(nodes).await else { return };
    let farm = p2.cluster.farm_process("f", &[]);
    let old = p2.create_web(1).await;
    p2.rctl(&["set-replicas", "-y", &old, "3"]).await;
    p2.settled(&old).await;
    let before = p2.nodes_of(&old).await;
    let new = p2.create_web(2).await;
    roll(&p2, &dir, &old, &new).await;
    assert_eq!(p2.nodes_of(&new).await, before);
    let listed: Value = p2.cluster.json(&["rc", "list"]).await;
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_update_of_p2_rctl_ends_on_three_nodes() {
    rolls_on(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_update_of_p2_rctl_ends_on_six_nodes() {
    rolls_on(6).await;
}

/// Ten updates one after the other between farms of both programs; in each one of ours is killed and replaced.
#[tokio::test(flavor = "multi_thread")]
async fn rolling_updates_end_in_a_mixed_fleet() {
    let Some((p2, dir)) = live(3).await else { return };
    let server = || {
        let consul = &p2.cluster.address;
        let mut command = command(&dir, &p2.cluster, consul, "p2-rctl-server", &[]);
        Daemon::new(Process::start_logging_here(&mut command), None)
    };
    let _p2_farm = server();
    let _other = p2.cluster.farm_process("stays", &[]);
    let mut killed = p2.cluster.farm_process("killed-0", &[]);
    let mut old = p2.create_web(0).await;
    p2.rctl(&["set-replicas", "-y", &old, "3"]).await;
    p2.settled(&old).await;
    for round in 1..=10_u32 {
        let new = p2.create_web(round as usize).await;
        let update = roll(&p2, &dir, &old, &new);
        let kill = async {
            tokio::time::sleep(Duration::from_millis(u64::from(round) * 617 % 5000)).await;
            killed = p2.cluster.farm_process(&format!("killed-{round}"), &[]);
        };
        tokio::join!(update, kill);
        p2.settled(&new).await;
        old = new;
    }
}
