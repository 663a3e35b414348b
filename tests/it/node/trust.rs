//! When an agent trusts the store, and what it does without Consul.

use std::time::Duration;

use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_node::agent::AtShutdown;
use rcfarm_store::{Prefix, Store};
use uuid::Uuid;

use crate::harness::{Host, is_alive};
use rcfarm_testing::wait::{eventually, until};

async fn six(host: &mut Host) -> Vec<i32> {
    host.start();
    let mut pids = Vec::new();
    for n in 0..6 {
        let pod = format!("p{n}");
        host.own(&pod, RcId(Uuid::from_u128(n))).await;
        host.intend_script(&pod, "exec sleep 600", "").await;
        let status = host.until(&pod, |status| status.phase == NodePodPhase::Running).await;
        pids.push(status.processes[0].pid.unwrap());
    }
    pids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vanished_intents_need_vanished_labels_to_be_trusted() {
    let mut host = Host::new();
    let pids = six(&mut host).await;
    host.store.delete_tree(&key::node_intents(&host.node())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)), "the labels say that they are wanted");
    host.store.delete_tree(&key::node_pod_labels(&host.node())).await.unwrap();
    eventually("the end of all", || !pids.iter().any(|pid| is_alive(*pid))).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_store_stops_nothing() {
    let mut host = Host::new();
    let pids = six(&mut host).await;
    let created = async || host.node_record().await.map(|(_, entry)| entry.create_index);
    let before = created().await;
    host.store.delete_tree(&Prefix::parse("").unwrap()).await.unwrap();
    // It registers again, and has read the empty prefix.
    until("it registers again", async || created().await > before).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_of_the_name_starts_nothing() {
    let mut first = Host::new();
    first.start();
    first.intend_script("web", "exec sleep 600", "").await;
    first.until("web", |status| status.phase == NodePodPhase::Running).await;
    let mut second = Host::new();
    second.start_on(first.store.clone());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!second.settings.data_dir.join("pods/web").exists());
    second.settings.at_shutdown = AtShutdown::LeavePods;
    second.kill().await;
    first.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_instance_ends_with_lease_without_agent() {
    let mut host = Host::new();
    host.start();
    let single =
        crate::harness::manifest("single", "exec sleep 600", "") + "single_instance: true\n";
    host.intend("single", &single).await;
    host.intend_script("other", "exec sleep 600", "").await;
    let single = host.until("single", |status| status.phase == NodePodPhase::Running).await;
    let other = host.until("other", |status| status.phase == NodePodPhase::Running).await;
    let [single, other] = [single, other].map(|status| status.processes[0].pid.unwrap());
    host.kill().await;
    // Consul keeps the session until the check's TTL has passed without a renewal.
    let session = host.node_record().await.unwrap().1.session;
    assert!(session.is_some());
    eventually("the end of the single instance", || !is_alive(single)).await;
    assert_eq!(host.node_record().await.unwrap().1.session, session, "others may not start it yet");
    assert!(is_alive(other));
    host.end().await;
    assert!(!is_alive(other));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritable_data_directory_is_reported_in_pod_status() {
    let mut host = Host::new();
    host.start();
    host.intend_script("first", "exec sleep 600", "").await;
    host.until("first", |status| status.phase == NodePodPhase::Running).await;
    // A file in place of the pod's directory fails like a full disk, for root as well.
    std::fs::write(host.settings.data_dir.join("pods/second"), "").unwrap();
    host.intend_script("second", "exec sleep 600", "").await;
    let status = host.until("second", |status| status.phase == NodePodPhase::Backoff).await;
    assert!(status.message.contains("cannot store the pod"), "{}", status.message);
    std::fs::remove_file(host.settings.data_dir.join("pods/second")).unwrap();
    host.until("second", |status| status.phase == NodePodPhase::Running).await;
    host.end().await;
}
