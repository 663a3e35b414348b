//! Agents that die right after they have taken a pod, with the built program, a real Consul, four agents and real
//! processes: after three of them the pod is set aside, although a fourth node is free.

use std::collections::BTreeMap;

use rcfarm_api::key;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::wait::until;

use crate::harness::{RealCluster, manifest};

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: killer}
spec:
  minAvailable: 1
  restartDelay: {first: 0s}
  tasks:
    - {name: w, replicas: 1, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sleep, '600'], resources: {requests: {cpu: 1}}}]}}}
";

/// A farm, and agents whose sessions end soon after them.
struct Stage {
    cluster: RealCluster,
    agents: BTreeMap<String, Daemon>,
    farm: Daemon,
}

impl Stage {
    async fn new() -> Stage {
        let cluster = RealCluster::real().await;
        let settings = ["--capacity", "cpu=2", "--label", "role=web", "--check-ttl", "6s"];
        let agent = |name: &str| (name.to_owned(), cluster.agent_process(name, &settings));
        let agents: BTreeMap<String, Daemon> = ["n1", "n2", "n3", "n4"].map(agent).into();
        let farm = cluster.farm_process("a", &["--node-grace", "1s"]);
        let stage = Stage { cluster, agents, farm };
        until("four nodes are ready", || async {
            let nodes = stage.cluster.json(&["node", "list"]).await;
            nodes.as_array().unwrap().iter().filter(|node| node["state"] == "ready").count() == 4
        })
        .await;
        stage
    }

    /// A node whose agent lives and has reported the pod.
    async fn taken_by(&self) -> Option<String> {
        let prefix = key::realities();
        let keys = self.cluster.keys(&prefix).await;
        let mut nodes = keys.iter().filter_map(|key| key::node_and_pod(&prefix, key));
        nodes
            .find_map(|(node, _)| self.agents.contains_key(node.as_str()).then(|| node.to_string()))
    }

    /// Kills three agents, each as soon as it has reported the pod. Returns their nodes.
    async fn lose_three_nodes(&mut self) -> Vec<String> {
        let mut lost = Vec::new();
        for n in 1..=3 {
            let mut found = None;
            until(&format!("node {n} has taken the pod"), async || {
                found = self.taken_by().await;
                found.is_some()
            })
            .await;
            let node = found.unwrap();
            let agent = self.agents.remove(&node).unwrap();
            agent.signal("KILL");
            // Its processes end, too.
            drop(agent);
            lost.push(node);
        }
        lost
    }

    /// Checks that the only node that is left was not given the pod.
    async fn check_spared(&self) {
        let left = self.agents.keys().next().unwrap();
        for prefix in [key::intents(), key::realities()] {
            let keys = self.cluster.keys(&prefix).await;
            let on_left = keys.iter().filter_map(|key| key::node_and_pod(&prefix, key));
            let on_left: Vec<_> = on_left.filter(|(node, _)| node.as_str() == left).collect();
            assert!(on_left.is_empty(), "{prefix}: {on_left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_takes_three_agents_down_is_set_aside() {
    let mut stage = Stage::new().await;
    std::fs::write(stage.cluster.dir.path().join("job.yaml"), JOB).unwrap();
    stage.cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let lost = stage.lose_three_nodes().await;
    let state =
        async || stage.cluster.json(&["job", "get", "killer"]).await["status"]["state"].take();
    until("it is set aside", async || state().await["reason"] == "NodesLost").await;
    let message = state().await["message"].as_str().unwrap().to_owned();
    let named = format!("last {}", lost.join(", "));
    assert!(message.contains("3 nodes in a row") && message.contains(&named), "{message}");
    stage.check_spared().await;
    stage.farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_a_controller_that_takes_three_agents_down_is_set_aside() {
    let mut stage = Stage::new().await;
    let process = manifest("killer", "exec sleep 600", "");
    let dynamic = ["--replicas", "1", "--strategy", "dynamic"];
    let id = stage.cluster.create_of(&process, &dynamic).await;
    let lost = stage.lose_three_nodes().await;
    let status = key::rc_status(id.parse().unwrap());
    let stored = async || stage.cluster.get(&status).await.unwrap_or_default();
    until("it is set aside", async || stored().await.contains("3 nodes in a row")).await;
    let (stored, named) = (stored().await, format!("last {}", lost.join(", ")));
    assert!(stored.contains("NodesLost") && stored.contains(&named), "{stored}");
    let shown = stage.cluster.run(&["rc", "status", &id]).await.ok();
    assert!(shown.contains("3 nodes in a row"), "{shown}");
    stage.check_spared().await;
    stage.farm.stop().await;
}
