//! A single-instance pod never runs twice, wherever it moves and whichever agent dies.

use std::path::Path;
use std::time::Duration;

use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_store::{Op, Store, TxnOutcome};

use crate::harness::{Host, id, is_alive, manifest};
use rcfarm_testing::wait::{eventually, until};

/// Two machines, and a directory in which a process detects another one.
async fn machines() -> (Host, Host, tempfile::TempDir) {
    let first = Host::new();
    let second = Host::on(&first.store, "n2");
    (first, second, tempfile::tempdir().unwrap())
}

/// Manifest of a pod that stops slowly and records a second running instance.
fn single(shared: &Path) -> String {
    let at = shared.display();
    let script = format!(
        "trap 'sleep 0.5; rm -f {at}/alive; exit 0' TERM; set -C; \
         true > {at}/alive || echo $RCFARM_NODE >> {at}/twice; while :; do sleep 0.05; done"
    );
    manifest("one", &script, "") + "single_instance: true\n"
}

/// Moves a pod as a farm does, in one transaction.
async fn moved(host: &Host, from: &NodeName, to: &NodeName, manifest: &str) {
    let pod = id("one");
    let ops = [
        Op::Delete { key: key::intent(from, &pod) },
        Op::Set { key: key::intent(to, &pod), value: manifest.to_owned().into(), flags: 0 },
    ];
    assert!(matches!(host.store.txn(&ops).await.unwrap(), TxnOutcome::Committed { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_single_instance_never_runs_twice() {
    let (mut first, mut second, shared) = machines().await;
    first.start();
    second.start();
    let manifest = single(shared.path());
    first.intend("one", &manifest).await;
    first.until("one", |status| status.phase == NodePodPhase::Running).await;
    for _ in 0..3 {
        for (from, to) in [(&first, &second), (&second, &first)] {
            moved(from, &from.node(), &to.node(), &manifest).await;
            to.until("one", |status| status.phase == NodePodPhase::Running).await;
        }
    }
    // Moved back before the other node starts it, and before the first one has stopped.
    for _ in 0..5 {
        moved(&first, &first.node(), &second.node(), &manifest).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        moved(&first, &second.node(), &first.node(), &manifest).await;
    }
    first.until("one", |status| status.phase == NodePodPhase::Running).await;
    assert!(!shared.path().join("twice").exists());
    first.end().await;
    second.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_instance_waits_for_lease_of_dead_agent() {
    let (mut first, mut second, shared) = machines().await;
    first.start();
    second.start();
    let manifest = single(shared.path());
    first.intend("one", &manifest).await;
    let old = first.until("one", |status| status.phase == NodePodPhase::Running).await;
    let old = old.processes[0].pid.unwrap();
    first.kill().await;
    moved(&first, &first.node(), &second.node(), &manifest).await;
    second.until("one", |status| status.message.contains("until the pod has ended on n1")).await;
    second.until("one", |status| status.phase == NodePodPhase::Running).await;
    assert!(!is_alive(old));
    assert!(!shared.path().join("twice").exists());
    first.end().await;
    second.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_session_an_operator_ended_has_another_at_once() {
    let mut host = Host::new();
    host.start();
    host.intend("one", &(manifest("one", "exec sleep 600", "") + "single_instance: true\n")).await;
    let before = host.until("one", |status| status.phase == NodePodPhase::Running).await;
    let (record, entry) = host.node_record().await.unwrap();
    assert_eq!(record.lease_ms, Some(10_000));
    let ended = std::time::Instant::now();
    host.store.destroy_session(entry.session.as_ref().unwrap()).await.unwrap();
    until("another session", async || {
        let (_, now) = host.node_record().await.unwrap();
        now.session.is_some() && now.session != entry.session
    })
    .await;
    // A farm waits for the lease before it treats the node as down; a reconcile every ten seconds would be too late.
    assert!(ended.elapsed() < Duration::from_millis(record.lease_ms.unwrap()));
    let after = host.until("one", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!(after.processes[0].pid, before.processes[0].pid);
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_single_instance_do_not_wait_for_each_other() {
    let (mut first, mut second, _shared) = machines().await;
    first.start();
    second.start();
    let manifest = manifest("one", "exec sleep 600", "") + "single_instance: true\n";
    first.intend("one", &manifest).await;
    second.intend("one", &manifest).await;
    for host in [&first, &second] {
        host.until("one", |status| status.phase == NodePodPhase::Running).await;
    }
    first.end().await;
    second.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_stops_what_was_moved_away_meanwhile() {
    let (mut first, mut second, shared) = machines().await;
    first.start();
    second.start();
    let manifest = single(shared.path());
    first.intend("one", &manifest).await;
    first.intend_script("stays", "exec sleep 600", "").await;
    first.until("one", |status| status.phase == NodePodPhase::Running).await;
    let stays = first.until("stays", |status| status.phase == NodePodPhase::Running).await;
    first.kill().await;
    moved(&first, &first.node(), &second.node(), &manifest).await;
    first.start();
    second.until("one", |status| status.phase == NodePodPhase::Running).await;
    first.until_gone("one").await;
    let again = first.until("stays", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!(again.processes[0].pid, stays.processes[0].pid);
    eventually("one alone", || !shared.path().join("twice").exists()).await;
    first.end().await;
    second.end().await;
}
