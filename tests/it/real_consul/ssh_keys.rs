//! Members of a job with the plugin `ssh` on a real Consul, with farms and agents as processes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Command;

use rcfarm_api::ids::{Namespaced, PodId};
use rcfarm_api::key;
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::wait::until;

use crate::harness::RealCluster;

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  plugins: {ssh: [--ssh-port=2222]}
  tasks:
    - {name: w, replicas: 2, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sh, -c, '(ls .ssh; echo $RCFARM_SSH_CONFIG) > new; mv new found; sleep 600'],
          resources: {requests: {cpu: 1}}}]}}}
";

struct Stage {
    cluster: RealCluster,
    key_file: String,
}

impl Stage {
    async fn new() -> Stage {
        let cluster = RealCluster::real().await;
        let path = cluster.dir.path().join("ssh.key");
        std::fs::write(&path, "a secret that has more than thirty-two bytes").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(cluster.dir.path().join("job.yaml"), JOB).unwrap();
        Stage { cluster, key_file: path.display().to_string() }
    }

    fn farm(&self, name: &str) -> Daemon {
        self.cluster.farm_process(name, &["--ssh-key-file", &self.key_file])
    }

    fn agent(&self, n: usize, more: &[&str]) -> Daemon {
        let address = format!("10.7.0.{n}");
        let own = ["--capacity", "cpu=1", "--address", &address];
        self.cluster.agent_process(&format!("n{n}"), &[&own, more].concat())
    }

    /// The home of a member, once its process has started.
    fn home(&self, index: u32) -> Option<PathBuf> {
        let job: Namespaced = "default/train".parse().unwrap();
        let pod: PodId = PodIdFormat::Hashed.pod_id(&job, "w", index).unwrap();
        let on = |n| self.cluster.dir.path().join(format!("nodes/n{n}/pods/{pod}"));
        (1..=2).map(on).find(|home| home.join("found").exists())
    }

    fn file(&self, index: u32, name: &str) -> String {
        let path = self.home(index).unwrap().join(".ssh").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    async fn both_run(&self) {
        until("both run", async || (0..2).all(|index| self.home(index).is_some())).await;
    }

    /// Everything that Consul holds of the job's keys.
    async fn stored(&self) -> String {
        let mut all = String::new();
        for prefix in [key::job_keys_records(), key::peers_records()] {
            for key in self.cluster.keys(&prefix).await {
                all += &self.cluster.get(&key).await.unwrap_or_default();
            }
        }
        all
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{program} {arguments:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_a_pair_that_outlives_the_farm() {
    let stage = Stage::new().await;
    let cluster = &stage.cluster;
    let agents = [1, 2].map(|n| stage.agent(n, &["--ssh-key-file", &stage.key_file]));
    let farm = stage.farm("a");
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    stage.both_run().await;
    let private = stage.file(0, "id_ed25519");
    let public = stage.file(0, "id_ed25519.pub");
    for index in 0..2 {
        assert_eq!(stage.file(index, "id_ed25519"), private);
        assert_eq!(stage.file(index, "id_ed25519.pub"), public);
        assert_eq!(stage.file(index, "authorized_keys"), public);
        let home = stage.home(index).unwrap();
        let mode = |path: &str| std::fs::metadata(home.join(path)).unwrap().mode() & 0o777;
        assert_eq!(
            [mode(".ssh"), mode(".ssh/id_ed25519"), mode(".ssh/config")],
            [0o700, 0o600, 0o600]
        );
        let key = home.join(".ssh/id_ed25519").display().to_string();
        assert_eq!(run("ssh-keygen", &["-y", "-f", &key]), public);
        // The process saw its files at its first start.
        let found = std::fs::read_to_string(home.join("found")).unwrap();
        let config = home.join(".ssh/config").display().to_string();
        let wanted = format!("authorized_keys\nconfig\nid_ed25519\nid_ed25519.pub\n{config}\n");
        assert_eq!(found, wanted);
        let other = format!("train-w-{}", 1 - index);
        let said = run("ssh", &["-G", "-F", &config, &other]);
        for line in ["port 2222", "stricthostkeychecking false", &format!("identityfile {key}")] {
            assert!(said.lines().any(|one| one == line), "{line} is not in {said}");
        }
        let address = said.lines().find_map(|line| line.strip_prefix("hostname ")).unwrap();
        assert!(address.starts_with("10.7.0."), "{said}");
    }
    // What Consul holds, and what is shown, has no private key.
    let stored = stage.stored().await;
    let blob = private.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    assert_eq!(stored.matches("\"sealed\":").count(), 3, "{stored}");
    assert!(!stored.contains("PRIVATE") && !stored.contains("\"seed\""), "{stored}");
    assert!(!stored.contains(&blob[blob.len() / 2..]), "{stored}");
    let shown = cluster.json(&["job", "get", "train"]).await;
    let fingerprint = run(
        "ssh-keygen",
        &["-lf", &stage.home(0).unwrap().join(".ssh/id_ed25519.pub").display().to_string()],
    );
    let said = shown["status"]["sshKey"].as_str().unwrap();
    assert_eq!(fingerprint.split(' ').nth(1), Some(said));
    assert!(!shown.to_string().contains("sealed"), "{shown}");
    // A farm that is killed, and one that takes over, make no second pair.
    drop(farm);
    let farm = stage.farm("b");
    until("the other farm owns it", async || {
        let status = cluster.json(&["job", "get", "train"]).await;
        status["status"]["owner"]["farm"] == "b"
    })
    .await;
    cluster.run(&["job", "restart", "train"]).await.ok();
    until("it is restarted", async || {
        let status = cluster.json(&["job", "get", "train"]).await;
        status["status"]["version"] == 1 && status["status"]["running"] == 2
    })
    .await;
    stage.both_run().await;
    assert_eq!(stage.file(1, "id_ed25519"), private);
    cluster.run(&["job", "delete", "train"]).await.ok();
    until("the keys are gone", async || stage.stored().await.is_empty()).await;
    drop((farm, agents));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_wait_for_the_farms_and_the_agents_key_file() {
    let stage = Stage::new().await;
    let cluster = &stage.cluster;
    let agents = [1, 2].map(|n| stage.agent(n, &[]));
    let farm = cluster.farm_process("a", &[]);
    cluster.run(&["apply", "-f", "job.yaml"]).await.ok();
    let state = async || cluster.json(&["job", "get", "train"]).await["status"]["state"].take();
    until("it is held", async || state().await["reason"] == "SshKeysRefused").await;
    let held = state().await;
    assert!(held["message"].as_str().unwrap().contains("--ssh-key-file"), "{held}");
    assert_eq!(cluster.keys(&key::intents()).await, [""; 0]);
    farm.stop().await;
    let farm = stage.farm("a");
    // The agents have no file: they say so, and start nothing.
    until("both members have a note", async || {
        let mut count = 0;
        for key in cluster.keys(&key::pod_statuses()).await {
            let status = cluster.get(&key).await.unwrap_or_default();
            count += status.matches("a key file that this agent was not given").count();
        }
        count == 2
    })
    .await;
    assert_eq!((stage.home(0), stage.home(1)), (None, None));
    for agent in agents {
        agent.stop().await;
    }
    let agents = [1, 2].map(|n| stage.agent(n, &["--ssh-key-file", &stage.key_file]));
    stage.both_run().await;
    assert_eq!(stage.file(0, "id_ed25519"), stage.file(1, "id_ed25519"));
    cluster.run(&["job", "delete", "train"]).await.ok();
    drop((farm, agents));
}
