//! Members of a job on a real Consul, one of which is drained away: the files of the others name its new node.

use std::path::PathBuf;

use rcfarm_api::ids::{Namespaced, PodId};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_testing::wait::until;

use crate::harness::RealCluster;

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  plugins: {svc: []}
  tasks:
    - {name: w, replicas: 2, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sleep, '600'], resources: {requests: {cpu: 1}}}]}}}
";

/// The file of a member's hosts, on a node.
fn file(cluster: &RealCluster, node: usize, index: u32) -> PathBuf {
    let job: Namespaced = "default/train".parse().unwrap();
    let pod: PodId = PodIdFormat::Hashed.pod_id(&job, "w", index).unwrap();
    let home = cluster.dir.path().join(format!("nodes/n{node}/pods/{pod}"));
    home.join("etc/volcano/w.host")
}

/// The node of each member, and what its file says, once both have one.
fn told(cluster: &RealCluster) -> Option<Vec<(usize, String)>> {
    let of = |index| {
        let on = |node| Some((node, std::fs::read_to_string(file(cluster, node, index)).ok()?));
        (1..=3).find_map(on)
    };
    (0..2).map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_peers_follow_a_member_that_is_drained_away() {
    let cluster = RealCluster::real().await;
    let agent = |n: usize| {
        let address = format!("10.7.0.{n}");
        let name = format!("n{n}");
        cluster.agent_process(&name, &["--capacity", "cpu=1", "--address", &address])
    };
    let _first = [1, 2].map(agent);
    let _farm = cluster.farm_process("a", &[]);
    std::fs::write(cluster.dir.path().join("job.yaml"), JOB).unwrap();
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let is_told = |addresses: [usize; 2]| {
        let text: String = addresses.map(|n| format!("10.7.0.{n}\n")).concat();
        told(&cluster).is_some_and(|all| all.iter().all(|(_, said)| *said == text))
    };
    until("both are told of both", async || is_told([1, 2]) || is_told([2, 1])).await;
    let before = told(&cluster).unwrap();
    let (stays, leaves) = (before[0].0, before[1].0);
    let _third = agent(3);
    cluster.run(&["node", "drain", &format!("n{leaves}"), "--deadline", "60s"]).await.ok();
    until("the one that stays is told of the new node", async || {
        let said = std::fs::read_to_string(file(&cluster, stays, 0)).unwrap();
        said == format!("10.7.0.{stays}\n10.7.0.3\n")
    })
    .await;
    let status = cluster.json(&["job", "get", "train"]).await;
    let nodes = [format!("n{stays}"), "n3".to_owned()];
    assert_eq!(status["status"]["peers"]["nodes"], serde_json::json!(nodes));
    cluster.run(&["job", "delete", "train"]).await.ok();
    until("the records are gone", async || {
        cluster.keys(&rcfarm_api::key::peers_records()).await.is_empty()
    })
    .await;
}
