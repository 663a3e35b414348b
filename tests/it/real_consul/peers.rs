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

/// Each start of a member, and each signal, adds what its environment and its file say.
const SCRIPT: &str = "say() { echo $VC_W_HOSTS $(cat etc/volcano/w.host) >> said; }; \
                      trap say USR2; say; while :; do sleep 0.05; done";

/// The home of a member, on a node.
fn home(cluster: &RealCluster, node: usize, index: u32) -> PathBuf {
    let job: Namespaced = "default/train".parse().unwrap();
    let pod: PodId = PodIdFormat::Hashed.pod_id(&job, "w", index).unwrap();
    cluster.dir.path().join(format!("nodes/n{node}/pods/{pod}"))
}

/// The file of a member's hosts, on a node.
fn file(cluster: &RealCluster, node: usize, index: u32) -> PathBuf {
    home(cluster, node, index).join("etc/volcano/w.host")
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

/// A member is drained away; the other's process says what it then knows, by the job's policy.
#[tokio::test(flavor = "multi_thread")]
async fn members_are_told_of_a_drained_peer_by_the_jobs_policy() {
    for (policy, is_restarted) in [("signal=SIGUSR2", false), ("restart", true)] {
        let cluster = RealCluster::real().await;
        let agent = |n: usize| {
            let address = format!("10.7.0.{n}");
            cluster.agent_process(&format!("n{n}"), &["--capacity", "cpu=1", "--address", &address])
        };
        let _first = [1, 2].map(agent);
        let _farm = cluster.farm_process("a", &[]);
        let metadata = format!("{{name: train, annotations: {{rcfarm/on-peer-change: {policy}}}}}");
        let job = JOB.replace("{name: train}", &metadata);
        let script = serde_json::to_string(SCRIPT).unwrap();
        let job = job.replace("[sleep, '600']", &format!("[sh, -c, {script}]"));
        std::fs::write(cluster.dir.path().join("job.yaml"), job).unwrap();
        cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
        until("both run", async || {
            (0..2).all(|index| (1..=2).any(|n| home(&cluster, n, index).join("said").exists()))
        })
        .await;
        let stays = (1..=2).find(|n| home(&cluster, *n, 0).join("said").exists()).unwrap();
        let leaves = 3 - stays;
        let said = || {
            let text = std::fs::read_to_string(home(&cluster, stays, 0).join("said"));
            let text = text.unwrap_or_else(|error| {
                let homes: Vec<usize> =
                    (1..=3).filter(|n| home(&cluster, *n, 0).exists()).collect();
                panic!("member 0 was on n{stays}, and now has homes on {homes:?}: {error}")
            });
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let line = |variable: usize, file: usize| {
            format!("10.7.0.{stays},10.7.0.{variable} 10.7.0.{stays} 10.7.0.{file}")
        };
        assert_eq!(said(), [line(leaves, leaves)]);
        let _third = agent(3);
        cluster.run(&["node", "drain", &format!("n{leaves}"), "--deadline", "60s"]).await.ok();
        let last = line(if is_restarted { 3 } else { leaves }, 3);
        until("it is told", async || said().last() == Some(&last)).await;
        let status = cluster.json(&["job", "get", "train"]).await;
        assert_eq!(status["status"]["retry_count"].as_u64().unwrap_or_default(), 0, "{status}");
        let tree = cluster.json(&["job", "tree", "train"]).await;
        for pod in tree["tasks"][0]["pods"].as_array().unwrap() {
            assert_eq!(pod["restarts"], 0, "{tree}");
        }
        let explained = cluster.run(&["job", "explain", "train"]).await.ok();
        let words = if is_restarted { "restarted in place" } else { "they get SIGUSR2" };
        assert!(explained.contains(words), "{explained}");
        cluster.run(&["job", "delete", "train"]).await.ok();
    }
}
