//! ACL tokens in files that are replaced while a farm, an agent and a command line run on a real Consul. The order is
//! that of `docs/operate/acl/README.md`, or the old token is deleted first.

use std::path::PathBuf;
use std::process::Stdio;

use rcfarm_api::ids::{NodeName, SessionId};
use rcfarm_api::key;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::{Key, Reader};
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use rcfarm_testing::program::Program;
use rcfarm_testing::wait::{eventually, until};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::acl_policies::{denying_consul, rules_of, run};
use crate::harness::{RealCluster, id};

/// A farm and an agent, each with a token file.
struct Stage {
    cluster: RealCluster,
    farm: Daemon,
    agent: Daemon,
}

fn n1() -> NodeName {
    "n1".parse().unwrap()
}

fn file(cluster: &RealCluster, role: &str) -> PathBuf {
    cluster.dir.path().join(format!("{role}-token"))
}

/// A new token of a role. `more` distinguishes its policy from those of the role's other tokens.
async fn token(cluster: &RealCluster, role: &str, more: &str) -> String {
    cluster.token(&(rules_of(role) + more)).await
}

/// The program with a new token of `role` in a file.
async fn with_token_file(cluster: &RealCluster, role: &str) -> Program {
    let path = file(cluster, role);
    std::fs::write(&path, token(cluster, role, "").await).unwrap();
    cluster.program.with_env("CONSUL_HTTP_TOKEN_FILE", path.to_str().unwrap())
}

impl Stage {
    /// With two pods on n1, of which one is a single instance, and sessions that end with their checks: their TTL is an hour.
    async fn new() -> Stage {
        let cluster = denying_consul().await;
        let dir = cluster.dir.path();
        let run_main = "launchables: {main: {launchable_type: process, command: sleep 600}}\n";
        for (pod, more) in [("single", "single_instance: true\n"), ("steady", ""), ("work", "")] {
            let manifest = format!("id: {pod}\n{more}{run_main}");
            std::fs::write(dir.join(format!("{pod}.yaml")), manifest).unwrap();
        }
        let program = with_token_file(&cluster, "node").await;
        let words = "node run --name n1 --label pool=a --data-dir data --session-ttl 1h";
        let words: Vec<&str> = words.split(' ').collect();
        let agent = Process::start(&mut program.command(&words), dir, "node.log");
        let agent = Daemon::new(agent, Some(dir.join("data")));
        let program = with_token_file(&cluster, "farm").await;
        let words = ["farm", "run", "--name", "f1", "--session-ttl", "1h"];
        let farm = Process::start(&mut program.command(&words), dir, "farm.log");
        let farm = Daemon::new(farm, None);
        let stage = Stage { cluster, farm, agent };
        for pod in ["single", "steady"] {
            let create = format!("rc create -f {pod}.yaml --node-selector pool=a --replicas 1");
            run(&stage.cluster.program, &format!("{create} --wait")).await.ok();
            until("it runs", async || stage.pid(pod).await.is_some()).await;
        }
        stage
    }

    /// The process of a pod that is reported as running.
    async fn pid(&self, pod: &str) -> Option<i32> {
        let key = key::pod_status(&id(pod), &n1());
        let status = self.cluster.read::<PodStatus>(key).await?;
        let is_launched = status.status == "launched";
        is_launched.then(|| status.processes.first()?.pid).flatten()
    }

    async fn holder(&self, key: Key) -> Option<SessionId> {
        self.cluster.entry(key).await?.session
    }

    /// Sessions of the farm and of the node.
    async fn sessions(&self) -> [Option<SessionId>; 2] {
        let farm = self.holder(key::farm(&"f1".parse().unwrap())).await;
        [farm, self.holder(key::node(&n1())).await]
    }

    fn log(&self, role: &str) -> String {
        let path = self.cluster.dir.path().join(format!("{role}.log"));
        std::fs::read_to_string(path).unwrap()
    }

    /// Replaces a token file as tools do that replace secrets. Returns the old and the new token.
    async fn replace(&self, role: &str) -> (String, String) {
        let new = token(&self.cluster, role, "\n").await;
        let path = file(&self.cluster, role);
        let old = std::fs::read_to_string(&path).unwrap();
        let beside = path.with_extension("new");
        std::fs::write(&beside, format!("{new}\n")).unwrap();
        std::fs::rename(beside, path).unwrap();
        (old, new)
    }

    async fn until_logged(&self, role: &str, text: &str) {
        eventually(&format!("{role}: {text}"), || self.log(role).contains(text)).await;
    }

    /// A pod is created on n1 and removed from it: by the farm, and by the agent.
    async fn works(&self) {
        let create = "rc create -f work.yaml --node-selector pool=a --replicas 1 --wait";
        run(&self.cluster.program, create).await.ok();
        run(&self.cluster.program, "rc scale work 0 --wait").await.ok();
        run(&self.cluster.program, "rc delete work").await.ok();
    }

    /// Logs of both, which hold no token.
    async fn end(self, secrets: &[String]) {
        for log in [self.log("farm"), self.log("node")] {
            assert!(!secrets.iter().any(|secret| log.contains(secret)), "{log}");
        }
        self.agent.stop().await;
        self.farm.stop().await;
    }
}

/// Its lines of output, and the process, which is killed with it.
fn follow(program: &Program) -> (Lines<BufReader<ChildStdout>>, Child) {
    let command = program.command(&["audit", "list", "--follow"]);
    let mut command = tokio::process::Command::from(command);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    (BufReader::new(child.stdout.take().unwrap()).lines(), child)
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_token_is_taken_before_the_old_one_is_deleted() {
    let mut stage = Stage::new().await;
    let viewer = with_token_file(&stage.cluster, "viewer").await;
    let (mut lines, mut following) = follow(&viewer);
    lines.next_line().await.unwrap().expect("the header or a record");
    let sessions = stage.sessions().await;
    assert!(sessions.iter().all(Option::is_some), "{sessions:?}");
    let pid = stage.pid("single").await.unwrap();

    let mut secrets = Vec::new();
    for role in ["farm", "node", "viewer"] {
        let (old, new) = stage.replace(role).await;
        if role != "viewer" {
            stage.until_logged(role, "the ACL token has changed").await;
            stage.until_logged(role, "registered with the new token").await;
        }
        stage.cluster.delete_token(&old).await;
        secrets.extend([old, new]);
    }

    stage.works().await;
    while !lines.next_line().await.unwrap().expect("it goes on").to_lowercase().contains("deleted")
    {
    }
    assert!(following.try_wait().unwrap().is_none(), "the command line goes on");
    assert_eq!(stage.sessions().await, sessions, "no session was lost");
    assert_eq!(stage.pid("single").await, Some(pid), "the single instance goes on");
    for log in [stage.log("farm"), stage.log("node")] {
        for word in ["denied", "ACL not found"] {
            assert!(!log.contains(word), "{log}");
        }
    }
    assert!(stage.farm.runs() && stage.agent.runs());

    // The check is synced with the new token: a farm that dies loses its session, whose TTL is an hour.
    stage.farm.signal("KILL");
    let held = sessions[0].clone().unwrap();
    until("the session has ended", async || {
        stage.cluster.store.session(&held).await.unwrap().value.is_none()
    })
    .await;
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_recover_when_the_old_token_was_deleted_first() {
    let mut stage = Stage::new().await;
    let pid = stage.pid("steady").await.unwrap();
    let mut secrets = Vec::new();
    // Until the loss of the session, which follows that of the check.
    let refused = "Consul refuses the agent's token";
    for (role, says) in [("farm", "Consul refuses the farm's token"), ("node", refused)] {
        let old = std::fs::read_to_string(file(&stage.cluster, role)).unwrap();
        stage.cluster.delete_token(&old).await;
        stage.until_logged(role, says).await;
        let (old, new) = stage.replace(role).await;
        stage.until_logged(role, "the ACL token has changed").await;
        secrets.extend([old, new]);
    }
    stage.works().await;
    let log = stage.log("node");
    assert_eq!(log.matches(refused).count(), 1, "an alert comes once: {log}");
    assert!(log.lines().any(|l| l.contains(refused) && l.contains("alert=true")), "{log}");
    assert_eq!(stage.pid("steady").await, Some(pid), "{}", stage.log("node"));
    // The single instance may have ended with its lease.
    until("it runs", async || stage.pid("single").await.is_some()).await;
    assert!(stage.farm.runs() && stage.agent.runs());
    stage.end(&secrets).await;
}
