//! Gangs that lose a node, with the built program, a real Consul, three agents and real processes.

use std::collections::{BTreeMap, BTreeSet};

use rcfarm_api::key;
use rcfarm_testing::daemon::Daemon;
use serde_json::Value;

use crate::harness::RealCluster;
use rcfarm_testing::wait::until;

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME}
spec:
  minAvailable: 3
  restartDelay: {first: 0s}
  policies: [{event: Unknown, action: RestartJob}]
  tasks:
    - {name: w, replicas: 3, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sleep, '600'], resources: {requests: {cpu: 1}}}]}}}
";
const JOBS: [&str; 2] = ["a", "b"];

struct Stage {
    cluster: RealCluster,
    agents: BTreeMap<&'static str, Daemon>,
}

impl Stage {
    async fn new() -> Stage {
        let cluster = RealCluster::real().await;
        let settings = ["--capacity", "cpu=2", "--check-ttl", "6s"];
        let agent = |name| (name, cluster.agent_process(name, &settings));
        let agents = ["n1", "n2", "n3"].map(agent).into();
        let stage = Stage { cluster, agents };
        until("three nodes are ready", || async {
            let nodes = stage.cluster.json(&["node", "list"]).await;
            nodes.as_array().unwrap().iter().filter(|node| node["state"] == "ready").count() == 3
        })
        .await;
        stage
    }

    async fn explained(&self, job: &str) -> Value {
        self.cluster.json(&["job", "explain", job]).await
    }

    async fn phase(&self, job: &str) -> Value {
        self.explained(job).await["state"]["phase"].clone()
    }

    /// The nodes of a job's pods, of those that are intended.
    async fn nodes(&self, job: &str) -> Vec<String> {
        let intents = self.cluster.list(&key::intents()).await;
        let places = intents.iter().filter_map(|e| key::node_and_pod(&key::intents(), &e.key));
        let own = places.filter(|(_, pod)| pod.as_str().starts_with(&format!("{job}-w-")));
        own.map(|(node, _)| node.to_string()).collect()
    }

    /// The pods of a job that have an allocation.
    async fn allocated(&self, job: &str) -> usize {
        let mut count = 0;
        for entry in self.cluster.list(&key::allocations()).await {
            let record: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            let pods = record["pods"].as_object();
            count += pods
                .into_iter()
                .flatten()
                .filter(|(id, _)| id.starts_with(&format!("{job}-w-")))
                .count();
        }
        count
    }
}

/// Both jobs lose a member, and what is left has room for one of them. Without whole gangs each keeps two places that the
/// other needs, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn gangs_that_lost_a_node_run_whole_or_wait_whole() {
    let mut stage = Stage::new().await;
    let farm = stage.cluster.farm_process("a", &["--node-grace", "1s"]);
    for job in JOBS {
        let file = stage.cluster.dir.path().join("job.yaml");
        std::fs::write(&file, JOB.replace("NAME", job)).unwrap();
        stage.cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
        stage.cluster.run(&["job", "wait", job, "--for", "running", "--timeout", "60s"]).await.ok();
    }
    for job in JOBS {
        let nodes: BTreeSet<String> = stage.nodes(job).await.into_iter().collect();
        assert!(nodes.contains("n3"), "{job} has a member there: {nodes:?}");
    }
    drop(stage.agents.remove("n3"));

    until("one runs whole, and the other waits whole", || async {
        let (a, b) = (stage.phase("a").await, stage.phase("b").await);
        let pods = [stage.nodes("a").await, stage.nodes("b").await];
        let is_alive = |nodes: &Vec<String>| nodes.len() == 3 && !nodes.contains(&"n3".to_owned());
        let is_divided = |one: &Vec<String>, other: &Vec<String>| is_alive(one) && other.is_empty();
        match (a.as_str(), b.as_str()) {
            (Some("Running"), Some("Pending")) => is_divided(&pods[0], &pods[1]),
            (Some("Pending"), Some("Running")) => is_divided(&pods[1], &pods[0]),
            _ => false,
        }
    })
    .await;
    let (runs, waits) = match stage.nodes("a").await.is_empty() {
        true => ("b", "a"),
        false => ("a", "b"),
    };
    until("what waits has given its places back", || async {
        stage.allocated(waits).await == 0 && stage.allocated(runs).await == 3
    })
    .await;
    // Its group is queued again before a pass says why it waits.
    let missing = || async { stage.explained(waits).await["missing"].as_array().unwrap().clone() };
    until("what waits says why", || async {
        let missing = missing().await;
        missing.len() == 3 && missing.iter().all(|one| one["reason"] == "InsufficientCapacity")
    })
    .await;
    for (n, member) in missing().await.iter().enumerate() {
        assert_eq!(member["member"]["index"], n, "{member:#}");
        assert!(member["message"].as_str().unwrap().contains("cpu: "), "{member:#}");
    }
    let text = stage.cluster.run(&["job", "explain", waits]).await.ok();
    assert!(text.contains("w-2: InsufficientCapacity: "), "{text}");

    // It was not given up.
    stage.cluster.run(&["job", "delete", runs, "--timeout", "80s"]).await.ok();
    stage.cluster.run(&["job", "wait", waits, "--for", "running", "--timeout", "80s"]).await.ok();
    assert_eq!(stage.nodes(waits).await.len(), 3);
    stage.cluster.run(&["job", "delete", waits, "--timeout", "80s"]).await.ok();
    for agent in stage.agents.into_values() {
        agent.stop().await;
    }
    farm.stop().await;
}
