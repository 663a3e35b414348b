//! Agents restart; pods keep running.

use std::collections::BTreeMap;

use rcfarm_api::key;
use rcfarm_api::node::status::NodePodPhase;

use crate::harness::{Host, HttpCluster, id, is_alive};
use rcfarm_testing::wait::{eventually, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_agent_adopts_all_pods() {
    let mut host = Host::new();
    host.start();
    let pods: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    for pod in &pods {
        host.intend_script(pod, "exec sleep 600", "").await;
    }
    let mut pids = BTreeMap::new();
    for pod in &pods {
        let status = host.until(pod, |status| status.phase == NodePodPhase::Running).await;
        pids.insert(pod.clone(), status.processes[0].pid);
    }
    let before = host.node_record().await.unwrap().0.session;
    host.kill().await;
    host.start();
    // The new agent has registered and written all statuses again.
    for pod in &pods {
        let health = key::health(&id(pod), &host.node());
        until("all is told anew", async || {
            let held = host.entry(&health).await.is_some_and(|entry| entry.session.is_some());
            held && host.node_record().await.unwrap().0.session != before
        })
        .await;
        let status = host.pod_status(pod).await.unwrap();
        assert_eq!(
            (status.phase, status.processes[0].pid),
            (NodePodPhase::Running, pids[pod]),
            "{pod}"
        );
        assert_eq!(status.processes[0].restarts, 0, "{pod}");
    }
    host.end().await;
    assert!(pids.values().flatten().all(|pid| !is_alive(*pid)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_while_no_agent_ran_is_learnt_from_its_shim() {
    let mut host = Host::new();
    host.start();
    let wait = "while ! [ -e go ]; do sleep 0.05; done; exit 42";
    host.intend_script("job", wait, "    restart: never\n").await;
    host.until("job", |status| status.phase == NodePodPhase::Running).await;
    host.kill().await;
    let home = host.settings.data_dir.join("pods/job");
    std::fs::write(home.join("go"), "").unwrap();
    eventually("the exit record", || home.join("main/exit.json").exists()).await;
    host.start();
    let status = host.until("job", |status| status.phase == NodePodPhase::Ended).await;
    assert_eq!(status.processes[0].last_exit.as_ref().unwrap().exit_code, 42);
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_that_went_while_no_agent_ran_ends_its_pod() {
    let mut host = Host::new();
    host.start();
    host.intend_script("old", "exec sleep 600", "").await;
    let status = host.until("old", |status| status.phase == NodePodPhase::Running).await;
    host.kill().await;
    host.unintend("old").await;
    host.start();
    host.until_gone("old").await;
    assert!(!is_alive(status.processes[0].pid.unwrap()));
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_shim_was_killed_runs_on_and_its_end_is_seen() {
    let mut host = Host::new();
    host.start();
    host.intend_script("web", "exec sleep 600", "    restart: never\n").await;
    let status = host.until("web", |status| status.phase == NodePodPhase::Running).await;
    let path = host.settings.data_dir.join("pods/web/main/running.json");
    let running: rcfarm_node::agent::driver::Started =
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    kill(running.shim);
    eventually("the shim's end", || !is_alive(running.shim)).await;
    assert!(is_alive(status.processes[0].pid.unwrap()));
    kill(running.pid);
    let status = host.until("web", |status| status.phase == NodePodPhase::Ended).await;
    assert!(status.message.contains("the shim was killed"), "{}", status.message);
    host.end().await;
}

/// The reports prove the deletion to the next agent, so they are deleted after the mark is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_stay_until_the_end_of_a_pod_is_stored() {
    let mut host = Host::new();
    host.start();
    host.intend_script("web", "exec sleep 600", "").await;
    host.until("web", |status| status.phase == NodePodPhase::Running).await;
    // As with a full disk: nothing can be put in its place.
    let record = host.settings.data_dir.join("pods/web/pod.json");
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    std::fs::write(record.join("full"), "").unwrap();
    host.unintend("web").await;
    host.until("web", |status| status.phase == NodePodPhase::Backoff).await;
    assert!(record.is_dir());
    std::fs::remove_dir_all(&record).unwrap();
    host.until_gone("web").await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_that_comes_back_stops_its_pods() {
    let cluster = HttpCluster::new().await;
    let mut host = Host::on(&cluster.store, "n1");
    host.start();
    host.intend_script("web", "exec sleep 600", "").await;
    let status = host.until("web", |status| status.phase == NodePodPhase::Running).await;
    let pid = status.processes[0].pid.unwrap();
    host.stop().await.unwrap();
    until("its session ends", async || {
        host.node_record().await.is_some_and(|(_, entry)| entry.session.is_none())
    })
    .await;
    host.unintend("web").await;
    cluster.run(&["node", "remove", "n1"]).await.ok();
    assert!(host.node_record().await.is_none() && is_alive(pid));
    host.start();
    eventually("its end", || !is_alive(pid)).await;
    host.until_gone("web").await;
    host.end().await;
}

fn kill(pid: i32) {
    assert!(
        std::process::Command::new("kill")
            .arg("-9")
            .arg(pid.to_string())
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_that_cannot_be_written_is_in_node_list() {
    let cluster = HttpCluster::new().await;
    let agent = cluster.agent_process("n1", &[]);
    let lease = cluster.dir.path().join("nodes/n1/lease");
    eventually("the lease", || lease.is_file()).await;
    // As with a full disk: nothing can be put in its place.
    eventually("a directory in its place", || {
        let _ = std::fs::remove_file(&lease);
        std::fs::create_dir(&lease).is_ok()
    })
    .await;
    std::fs::write(lease.join("full"), "").unwrap();
    let problem = async || cluster.json(&["node", "list"]).await[0]["problem"].clone();
    until("node list says so", async || problem().await.is_string()).await;
    let listed = cluster.run(&["node", "list"]).await;
    assert!(listed.stderr.contains("n1: the data directory cannot be written"), "{listed:?}");
    std::fs::remove_dir_all(&lease).unwrap();
    until("it is mended", async || problem().await.is_null()).await;
    agent.stop().await;
}
