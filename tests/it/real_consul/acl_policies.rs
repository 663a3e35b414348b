//! The ACL policies of `docs/operate/acl/` on a real Consul that denies by default: each grants what its page says, and
//! the viewer's grants no writes.

use std::path::Path;

use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use rcfarm_testing::program::{Program, Ran};
use rcfarm_testing::wait::until;

use crate::harness::{MASTER, RealCluster};

/// Requests without a token may do everything, so that the test can see when the server is ready. With a token only the
/// rights of its policy apply.
fn denying() -> String {
    format!(
        r#"acl {{
            enabled = true
            default_policy = "deny"
            tokens {{ master = "{MASTER}" default = "{MASTER}" agent = "{MASTER}" }}
        }}"#
    )
}

/// A Consul with such ACLs.
async fn denying_consul() -> RealCluster {
    RealCluster::on_server(ConsulServer::with_config(&denying()).await)
}

/// The program with a new token for `docs/operate/acl/<name>.hcl` and the rules in `more`.
async fn with_policy(cluster: &RealCluster, name: &str, more: &str) -> Program {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/operate/acl/{name}.hcl"));
    let rules = std::fs::read_to_string(file).unwrap() + more;
    cluster.program.with_token(&cluster.token(&rules).await)
}

/// Runs a command; words are separated by single spaces.
async fn run(program: &Program, words: &str) -> Ran {
    program.run(&words.split(' ').collect::<Vec<_>>()).await
}

async fn all(program: &Program, commands: &[&str]) {
    for words in commands {
        run(program, words).await.ok();
    }
}

#[track_caller]
fn must_not_be_denied(cluster: &RealCluster, log: &str) {
    let text = std::fs::read_to_string(cluster.dir.path().join(log)).unwrap();
    assert!(!text.to_lowercase().contains("denied"), "{log}: the rights are not enough:\n{text}");
}

#[tokio::test]
async fn the_documented_policies_are_enough() {
    let cluster = denying_consul().await;
    std::fs::write(cluster.dir.path().join("web.yaml"), "id: web\n").unwrap();
    let single = "id: single\nsingle_instance: true\nlaunchables:\n  \
                  main: {launchable_type: process, command: sleep 600}\n";
    std::fs::write(cluster.dir.path().join("single.yaml"), single).unwrap();
    let farm = with_policy(&cluster, "farm", "").await;
    let user = with_policy(&cluster, "user", "").await;
    let viewer = with_policy(&cluster, "viewer", "").await;
    let node = with_policy(&cluster, "node", "").await;

    let words = ["node", "run", "--name", "n1", "--label", "pool=a", "--data-dir", "data"];
    let dir = cluster.dir.path();
    let agent = Process::start(&mut node.command(&words), dir, "node.log");
    let mut agent = Daemon::new(agent, Some(dir.join("data")));
    let daemon = &mut farm.command(&["farm", "run", "--name", "f1"]);
    let mut daemon = Daemon::new(Process::start(daemon, dir, "farm.log"), None);
    let create = "rc create -f web.yaml --node-selector role=web --replicas 2 --wait";
    let life = ["label set node n1 role=web", "label set node n2 role=web", create];
    all(&user, &life).await;
    all(&user, &["rc scale web 1 --wait", "rc disable web", "rc enable web"]).await;

    all(&user, &["rc create -f single.yaml --node-selector pool=a --replicas 1 --wait"]).await;
    until("it runs", async || {
        must_not_be_denied(&cluster, "node.log");
        let pods = run(&viewer, "-o json pod list single").await;
        let pods = pods.json();
        pods[0]["phase"] == "Running"
    })
    .await;

    let looks = [
        "rc list",
        "rc get web",
        "rc status web",
        "rc pods web",
        "rc plan web",
        "rc explain web",
        "rc orphans",
        "label list node",
        "label list pod",
        "label get rc web",
        "audit list",
        "audit verify",
        "farm list",
        "doctor",
        "node list",
        "node get n1",
        "pod get single",
    ];
    all(&viewer, &looks).await;
    let pods = run(&viewer, "-o json rc pods web").await;
    let pods = pods.json();
    assert_eq!(pods[0]["intent"], "same", "a viewer who may not read intents would see none");
    for words in ["rc scale web 2", "label set node n1 a=b", "farm confirm f1", create] {
        let refused = run(&viewer, words).await;
        assert!(refused.code != 0, "a viewer may {words}");
    }

    // Its process and its status go, too.
    all(&user, &["rc delete single"]).await;
    until("nothing runs", async || {
        must_not_be_denied(&cluster, "node.log");
        run(&viewer, "-o json pod list single").await.stdout == "[]\n"
    })
    .await;
    all(&user, &["farm confirm f1", "rc delete web", "audit prune --keep 30d"]).await;
    assert!(daemon.runs() && agent.runs());
    must_not_be_denied(&cluster, "farm.log");
    must_not_be_denied(&cluster, "node.log");
    daemon.stop().await;
    agent.stop().await;
}

/// The optional rules in the comments of `user.hcl`.
#[tokio::test]
async fn who_may_write_pods_may_remove_orphans() {
    let cluster = denying_consul().await;
    let more = "key_prefix \"labels/pod/\" { policy = \"write\" }\n\
                key_prefix \"intent/\" { policy = \"write\" }";
    let user = with_policy(&cluster, "user", more).await;
    cluster.pod("n1", MASTER).await;
    let words = "rc orphans --remove";
    assert!(run(&user, words).await.ok().contains("removed"));
    let words = "rc orphans";
    assert_eq!(run(&user, words).await.ok(), "there are no orphans\n");
}
