//! A node agent whose Consul loses its data: wiped, started again empty, restored from a snapshot that lacks the pods,
//! or replaced by an empty one at another address. No pod is stopped, and each is reported to the new state as one that
//! is not intended.

use rcfarm_api::key;
use rcfarm_api::node::status::{IntentIndex, PodStatus};
use rcfarm_store::{Prefix, Query, Reader, Store};
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::wait::{eventually, until};

use crate::harness::{RealCluster, id, is_alive, manifest, node};

#[derive(Debug, Clone, Copy)]
enum Loss {
    Wiped,
    StartedEmpty,
    Restored,
    /// The agent is started again with the address of a new Consul.
    AddressChanged,
}

struct Stage {
    cluster: RealCluster,
    agent: Daemon,
    pods: Vec<String>,
}

impl Stage {
    /// An agent on a new Consul.
    async fn new(pods: usize) -> Stage {
        let cluster = RealCluster::real().await;
        let agent = cluster.agent_process(node(1).as_str(), &[]);
        let pods = (0..pods).map(|n| format!("p{n}")).collect();
        Stage { cluster, agent, pods }
    }

    async fn status(&self, pod: &str) -> Option<PodStatus> {
        // Consul may be starting.
        let key = key::pod_status(&id(pod), &node(1));
        let answer = self.cluster.store.get(&key, Query::PLAIN).await.ok()?;
        rcfarm_api::Stored::decode(&answer.value?.value).ok()
    }

    async fn intend(&self) {
        for pod in &self.pods {
            let manifest = manifest(pod, "exec sleep 600", "");
            self.cluster.put(key::intent(&node(1), &id(pod)), manifest).await;
        }
    }

    /// Waits until every pod is reported as running, with its process, and its report names its intent or, if
    /// `intended` is false, none. Returns the process ids.
    async fn reported(&self, intended: bool) -> Vec<i32> {
        let mut pids = Vec::new();
        for pod in &self.pods {
            until(&format!("{pod} is reported, intended: {intended}"), || async {
                // An agent that has just started reports a pod before it has asked its shim for the process.
                let runs = |status: &PodStatus| {
                    status.status == "launched" && status.processes.iter().all(|p| p.pid.is_some())
                };
                let status = self.status(pod).await.filter(runs);
                let index = status.and_then(|status| status.intent_index);
                index.is_some_and(|index| (index != IntentIndex::NONE) == intended)
            })
            .await;
            let status = self.status(pod).await.expect("a status");
            pids.push(status.processes[0].pid.expect("it runs"));
        }
        pids
    }

    async fn snapshot(&self) -> Vec<u8> {
        let answer = self.http(reqwest::Method::GET, Vec::new()).await;
        answer.bytes().await.unwrap().to_vec()
    }

    async fn http(&self, method: reqwest::Method, body: Vec<u8>) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}/v1/snapshot", self.cluster.address);
        let answer = client.request(method, url).body(body).send().await.unwrap();
        answer.error_for_status().unwrap()
    }

    /// Starts the agent again, with its data, at a new Consul. The agent's pods end with the first daemon, its directory
    /// with the first cluster: both are returned.
    async fn move_to_another_consul(&mut self) -> (Daemon, RealCluster) {
        self.agent.signal("TERM");
        eventually("the agent's end", || !self.agent.runs()).await;
        let next = RealCluster::real().await;
        let program = &mut self.cluster.program;
        *program = program.with_env("CONSUL_HTTP_ADDR", &next.address);
        let agent = self.cluster.agent_process(node(1).as_str(), &[]);
        let first = std::mem::replace(&mut self.agent, agent);
        (first, std::mem::replace(&mut self.cluster, next))
    }

    async fn delete_everything(&self) {
        self.cluster.store.delete_tree(&Prefix::parse("").unwrap()).await.unwrap();
    }
}

/// Number of trials of each test: `A1_TRIALS`, or 1.
fn trials() -> usize {
    let given = std::env::var("A1_TRIALS").ok();
    given.map_or(1, |text| text.parse().expect("A1_TRIALS is a number"))
}

async fn pods_outlive(loss: Loss, pods: usize) {
    for trial in 1..=trials() {
        eprintln!("trial {trial}: {loss:?}, pods: {pods}");
        trial_of(loss, pods).await;
    }
}

async fn trial_of(loss: Loss, pods: usize) {
    let mut stage = Stage::new(pods).await;
    until("the node is registered", || async {
        stage.cluster.entry(key::node(&node(1))).await.is_some()
    })
    .await;
    let before = stage.snapshot().await;
    stage.intend().await;
    let pids = stage.reported(true).await;
    let mut left = None;
    match loss {
        Loss::Wiped => stage.delete_everything().await,
        Loss::StartedEmpty => {
            stage.cluster.server.kill();
            stage.cluster.server.until_ready().await;
        }
        Loss::Restored => {
            stage.http(reqwest::Method::PUT, before).await;
        }
        Loss::AddressChanged => left = Some(stage.move_to_another_consul().await),
    }
    assert_eq!(stage.reported(false).await, pids, "the same processes");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    // Intended again, they are taken over. Then a deletion is a deletion.
    stage.intend().await;
    assert_eq!(stage.reported(true).await, pids);
    for pod in &stage.pods {
        stage.cluster.delete(key::intent(&node(1), &id(pod))).await;
    }
    eventually("the end of all", || !pids.iter().any(|pid| is_alive(*pid))).await;
    drop(stage.agent);
    drop(left);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_outlives_a_wiped_consul() {
    pods_outlive(Loss::Wiped, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_outlive_a_wiped_consul() {
    pods_outlive(Loss::Wiped, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_outlives_a_consul_that_starts_empty() {
    pods_outlive(Loss::StartedEmpty, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_outlive_a_consul_that_starts_empty() {
    pods_outlive(Loss::StartedEmpty, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_outlives_a_restored_snapshot() {
    pods_outlive(Loss::Restored, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_outlive_a_restored_snapshot() {
    pods_outlive(Loss::Restored, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_outlives_a_change_of_address() {
    pods_outlive(Loss::AddressChanged, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_outlive_a_change_of_address() {
    pods_outlive(Loss::AddressChanged, 3).await;
}

/// A pod that was deleted while its agent was down is stopped by the next agent.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_proved_to_the_next_agent() {
    let mut stage = Stage::new(1).await;
    stage.intend().await;
    let pids = stage.reported(true).await;
    stage.agent.signal("TERM");
    eventually("the agent's end", || !stage.agent.runs()).await;
    stage.cluster.delete(key::intent(&node(1), &id("p0"))).await;
    let next = stage.cluster.agent_process(node(1).as_str(), &[]);
    eventually("the end of the pod", || !is_alive(pids[0])).await;
    drop(next);
}
