//! The ACL policies of `docs/operate/acl/` on a real Consul that denies by default: each grants what its page says, and
//! the viewer's grants no writes.

use std::path::Path;

use rcfarm_api::key;
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use rcfarm_testing::program::{Program, Ran};
use rcfarm_testing::wait::until;
use serde_json::json;

use crate::harness::{MASTER, RealCluster};

/// Requests without a token may do everything, so that the test can see when the server is ready. With a token only the
/// rights of its policy apply.
pub(super) fn denying() -> String {
    format!(
        r#"acl {{
            enabled = true
            default_policy = "deny"
            tokens {{ master = "{MASTER}" default = "{MASTER}" agent = "{MASTER}" }}
        }}"#
    )
}

/// A Consul with such ACLs.
pub(super) async fn denying_consul() -> RealCluster {
    RealCluster::on_server(ConsulServer::with_config(&denying()).await)
}

/// The rules of `docs/operate/acl/<name>.hcl`.
pub(super) fn rules_of(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/operate/acl/{name}.hcl"));
    std::fs::read_to_string(file).unwrap()
}

/// The program with a new token for `docs/operate/acl/<name>.hcl` and the rules in `more`.
pub(super) async fn with_policy(cluster: &RealCluster, name: &str, more: &str) -> Program {
    cluster.program.with_token(&cluster.token(&(rules_of(name) + more)).await)
}

/// Runs a command; words are separated by single spaces.
pub(super) async fn run(program: &Program, words: &str) -> Ran {
    program.run(&words.split(' ').collect::<Vec<_>>()).await
}

async fn all(program: &Program, commands: &[&str]) {
    for words in commands {
        run(program, words).await.ok();
    }
}

/// `doctor --for` finds nothing wrong with the token of each role, and says what another token lacks.
#[tokio::test]
async fn doctor_knows_what_each_role_needs() {
    let cluster = denying_consul().await;
    let farm = with_policy(&cluster, "farm", "").await;
    let node = with_policy(&cluster, "node", "").await;
    let user = with_policy(&cluster, "user", "").await;
    let viewer = with_policy(&cluster, "viewer", "").await;
    let failures = async |program: &Program, role: &str| -> Vec<String> {
        let ran = run(program, &format!("-o json doctor --for {role}")).await;
        let checks: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let checks = checks.as_array().unwrap();
        assert!(checks.len() > 8, "{checks:?}");
        let failed = checks.iter().filter(|check| check["result"] == "fail");
        let failed: Vec<_> =
            failed.map(|check| check["check"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ran.code, i32::from(!failed.is_empty()), "{ran:?}");
        failed
    };
    assert_eq!(failures(&farm, "farm").await, [""; 0]);
    assert_eq!(failures(&node, "node --node n1").await, [""; 0]);
    assert_eq!(failures(&user, "user").await, [""; 0]);
    // Without a role all rights are looked at: one line says what many of them need, and another which roles there are.
    let all = run(&user, "doctor").await;
    let needs = all.stdout.matches("the token needs key_prefix read here").count();
    assert_eq!((all.code, needs), (1, 1), "{all:?}");
    assert!(all.stdout.contains("rcfarm doctor --for farm"), "{all:?}");
    // The policy names n1.
    let of_another = failures(&node, "node --node n2").await;
    assert_eq!(
        of_another,
        [
            "reality/n2/",
            "labels/pod/n2/",
            "rcfarm/peers/n2/",
            "rcfarm/nodes/n2",
            "labels/node/n2",
            "rcfarm/allocations/n2"
        ]
    );
    assert!(failures(&user, "farm").await.contains(&"intent/".to_owned()));
    let of_viewer = failures(&viewer, "user").await;
    assert!(of_viewer.contains(&"replication_controllers/".to_owned()), "{of_viewer:?}");
    assert!(!of_viewer.contains(&"rcfarm/nodes/".to_owned()), "it may read: {of_viewer:?}");
    // Key pairs of jobs are for farms, and the copies below rcfarm/peers/n1/ for that node.
    for (program, others) in [(&node, true), (&user, true), (&viewer, true), (&farm, false)] {
        let all: serde_json::Value =
            serde_json::from_str(&run(program, "-o json doctor").await.stdout).unwrap();
        for tree in ["rcfarm/job_keys/", "rcfarm/peers/"] {
            let mut checks = all.as_array().unwrap().iter();
            let check = checks.find(|check| check["check"] == tree).unwrap();
            let is_denied = check["detail"].as_str().unwrap().starts_with("may not be read");
            assert_eq!(is_denied, others, "{check}");
        }
    }
    // The policy permits services that begin with app-, and the agent's own.
    let of_services = "node --node n1 --service app-* --service app-web --service web";
    assert_eq!(failures(&node, of_services).await, ["service \"web\""]);
    let of_user = failures(&user, of_services).await;
    for rule in ["service \"rcfarm-node\"", "service_prefix \"app-\""] {
        assert!(of_user.iter().any(|failure| failure == rule), "{of_user:?}");
    }
    let unnamed = run(&node, "doctor --for node").await.failed();
    assert!(unnamed.contains("--node"), "{unnamed}");
    // Nothing was written by the probes.
    let keys = cluster.keys(&rcfarm_store::Prefix::parse("").unwrap()).await;
    assert_eq!(keys, [""; 0]);
}

#[track_caller]
pub(super) fn must_not_be_denied(cluster: &RealCluster, log: &str) {
    let text = std::fs::read_to_string(cluster.dir.path().join(log)).unwrap();
    assert!(!text.to_lowercase().contains("denied"), "{log}: the rights are not enough:\n{text}");
}

#[tokio::test]
async fn the_documented_policies_are_enough() {
    let cluster = denying_consul().await;
    let web = "id: web\nlaunchables:\n  \
               main: {launchable_type: process, command: sleep 600}\n";
    std::fs::write(cluster.dir.path().join("web.yaml"), web).unwrap();
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
    // A user may not read the manifests of other teams, and is told so.
    let hidden = run(&user, "-o json rc pods web").await;
    assert_eq!(hidden.clone().json()[0]["intent"], "unreadable");
    assert!(hidden.stderr.contains("may not read intent/"), "{}", hidden.stderr);
    let plan = run(&user, "-o json rc plan web").await;
    let shown = plan.clone().json();
    assert_eq!((&shown["changes"], &shown["reads_intents"]), (&json!([]), &json!(false)));
    assert!(plan.stderr.contains("may not read intent/"), "{}", plan.stderr);
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
    // What p2's programs leave of a record that they delete, the farm collects with its own rights.
    let left = rcfarm_api::ids::RcId(uuid::Uuid::from_u128(7));
    let record = r#"{"id":"00000000-0000-0000-0000-000000000007","manifest":"id: left\n",
        "node_selector":"role=none","replicas_desired":0}"#;
    let status = async || cluster.entry(key::rc_status(left)).await.is_some();
    cluster.put(key::rc(left), record).await;
    until("it has a status", status).await;
    // It has no labels, and a farm may not check in a transaction that none were set meanwhile.
    all(&user, &["label set node n2 role=none", &format!("rc scale {left} 1")]).await;
    let intent = key::intent(&"n2".parse().unwrap(), &"left".parse().unwrap());
    let says = async |text: &str| {
        let entry = cluster.entry(&intent).await;
        entry.is_some_and(|entry| String::from_utf8_lossy(&entry.value).contains(text))
    };
    until("it has a pod", async || says("id: left").await).await;
    let changed = record.replace("left\\n", "left\\nconfig: {changed: 1}\\n");
    cluster.put(key::rc(left), changed.replace(":0}", ":1}")).await;
    until("its pod has the changed manifest", async || says("changed").await).await;
    cluster.delete(key::rc(left)).await;
    until("its status is gone", async || !status().await).await;
    assert!(daemon.runs() && agent.runs());
    must_not_be_denied(&cluster, "farm.log");
    must_not_be_denied(&cluster, "node.log");
    daemon.stop().await;
    agent.stop().await;
}

/// What other teams keep in Consul is none of rcfarm's business.
#[tokio::test]
async fn no_policy_reads_or_writes_keys_of_others() {
    let cluster = denying_consul().await;
    cluster.put("vault/core", "secret").await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for role in ["farm", "node", "user", "team", "viewer"] {
        let token = cluster.token(&rules_of(role)).await;
        for key in ["vault/core", "vault/?keys"] {
            let url = format!("http://{}/v1/kv/{key}", cluster.address);
            let read = client.get(&url).header("X-Consul-Token", &token).send().await.unwrap();
            let (status, text) = (read.status().as_u16(), read.text().await.unwrap());
            assert!(status == 403 || status == 404, "{role} may read {key}: {status} {text}");
            let write = client.put(&url).header("X-Consul-Token", &token).body("x");
            assert_eq!(write.send().await.unwrap().status().as_u16(), 403, "{role}: {key}");
        }
    }
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

const TEAM_JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train, namespace: TEAM}
spec:
  tasks:
    - {name: w, replicas: 1, template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1,
        containers: [{name: c, command: [sleep, '600'], resources: {requests: {cpu: 1}}}]}}}
";

const TEAM_OWNERS: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: nightly, namespace: TEAM}
spec:
  schedule: '0 0 1 1 *'
  jobTemplate:
    spec:
      tasks:
        - {name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [
            {name: c, command: ['true'], resources: {requests: {cpu: 100m}}}]}}}
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: step, namespace: TEAM}
spec:
  parameterized: {payload: optional}
  tasks:
    - {name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [
        {name: c, command: ['true'], resources: {requests: {cpu: 100m}}}]}}}
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: line, namespace: TEAM}
spec:
  flows:
    - {name: a, template: step}
    - {name: b, template: step, dependsOn: {targets: [a]}}
";

const CELLS: &str = "\
physicalCluster:
  cellTypes: {NODE: {childCellType: GPU, childCellNumber: 4, isNodeLevel: true}}
  physicalCells: [{cellType: NODE, cellAddress: n9}]
virtualClusters: {NAME: {virtualCells: [{cellType: NODE, cellNumber: 1}]}}
";

/// `team.hcl` and `farm.hcl`: CronJobs, flows and dispatched templates of a team's own namespace, and of no other.
#[tokio::test]
async fn a_team_has_cron_jobs_and_flows_of_its_own() {
    let cluster = denying_consul().await;
    let dir = cluster.dir.path();
    let farm = with_policy(&cluster, "farm", "").await;
    let node = with_policy(&cluster, "node", "").await;
    let team = with_policy(&cluster, "team", "").await;
    for team in ["team-a", "team-b"] {
        std::fs::write(dir.join(format!("{team}.yaml")), TEAM_OWNERS.replace("TEAM", team))
            .unwrap();
    }
    let words = ["node", "run", "--name", "n1", "--capacity", "cpu=4", "--data-dir", "data"];
    let agent = Process::start(&mut node.command(&words), dir, "node.log");
    let agent = Daemon::new(agent, Some(dir.join("data")));
    let daemon = &mut farm.command(&["farm", "run", "--name", "f1"]);
    let daemon = Daemon::new(Process::start(daemon, dir, "farm.log"), None);
    for (file, cluster) in [("cells", "research"), ("more", "mine")] {
        std::fs::write(dir.join(format!("{file}.yaml")), CELLS.replace("NAME", cluster)).unwrap();
    }
    // Another team has the same, by an operator's hand.
    let operator = cluster.program.with_token(MASTER);
    all(&operator, &["apply -f team-b.yaml", "cell config apply cells.yaml"]).await;

    all(&team, &["apply -f team-a.yaml", "cron run team-a/nightly"]).await;
    let phase = async || {
        let ran = run(&team, "-o json flow status team-a/line").await;
        ran.json()["status"]["state"]["phase"].as_str().unwrap_or_default().to_owned()
    };
    until("the flow has succeeded", async || phase().await == "Succeed").await;
    let completed = async || {
        let jobs = run(&team, "-o json job list").await.json();
        let jobs = jobs.as_array().unwrap().clone();
        jobs.iter().filter(|job| job["phase"] == "Completed").count()
    };
    until("the CronJob's job has completed, too", async || completed().await == 3).await;
    let own = [
        "job dispatch team-a/step",
        "cron list",
        "cron explain team-a/nightly",
        "cron suspend team-a/nightly",
        "cron resume team-a/nightly",
        "flow list",
        "flow explain team-a/line",
        "flow template list",
        "cell tree",
        "cell status research",
        "flow delete team-a/line",
        "cron delete team-a/nightly",
    ];
    all(&team, &own).await;
    let others = [
        "apply -f team-b.yaml",
        "cron run team-b/nightly",
        "cron suspend team-b/nightly",
        "cron delete team-b/nightly",
        "flow delete team-b/line",
        "flow template delete team-b/step",
        "job dispatch team-b/step",
        "cell config apply more.yaml",
    ];
    for words in others {
        let refused = run(&team, words).await;
        assert!(refused.code != 0, "team-a may {words}: {}", refused.stdout);
    }
    must_not_be_denied(&cluster, "farm.log");
    must_not_be_denied(&cluster, "node.log");
    daemon.stop().await;
    agent.stop().await;
}

/// `team.hcl`: a team does everything with its own jobs, and nothing with another's of the same name.
#[tokio::test]
async fn a_team_works_in_its_own_namespace() {
    let cluster = denying_consul().await;
    let dir = cluster.dir.path();
    let farm = with_policy(&cluster, "farm", "").await;
    let node = with_policy(&cluster, "node", "").await;
    let team_a = with_policy(&cluster, "team", "").await;
    let rules = rules_of("team");
    // The length is part of the policy's name.
    let rules = rules.replace("team-a", "team-b") + "\n";
    let token_b = cluster.token(&rules).await;
    let team_b = cluster.program.with_token(&token_b);
    for team in ["team-a", "team-b"] {
        std::fs::write(dir.join(format!("{team}.yaml")), TEAM_JOB.replace("TEAM", team)).unwrap();
    }
    let words = ["node", "run", "--name", "n1", "--capacity", "cpu=4", "--data-dir", "data"];
    let agent = Process::start(&mut node.command(&words), dir, "node.log");
    let agent = Daemon::new(agent, Some(dir.join("data")));
    let daemon = &mut farm.command(&["farm", "run", "--name", "f1"]);
    let daemon = Daemon::new(Process::start(daemon, dir, "farm.log"), None);

    all(&team_a, &["apply -f team-a.yaml", "job wait team-a/train --for running"]).await;
    all(&team_b, &["apply -f team-b.yaml", "job wait team-b/train --for running"]).await;
    let own = [
        "job list",
        "job get team-a/train",
        "job tree team-a/train",
        "job explain team-a/train",
        "queue list",
        "audit list",
        "job restart-pod team-a/train w 0",
        "job abort team-a/train",
        "job wait team-a/train --for stopped",
        "job resume team-a/train",
        "job wait team-a/train --for running",
        "job suspend team-a/train",
        "job resume team-a/train",
        "job wait team-a/train --for running",
    ];
    all(&team_a, &own).await;

    let list = run(&team_a, "-o json job list").await.json();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().filter_map(|j| j["job"].as_str()).collect();
    assert_eq!(names, ["team-a/train"]);
    let log = run(&team_a, "-o json audit list").await.json();
    let jobs = log.as_array().unwrap().iter().map(|one| &one["record"]["event_details"]["job"]);
    let jobs: Vec<&serde_json::Value> = jobs.collect();
    assert!(jobs.len() > 5 && jobs.iter().all(|job| *job == "team-a/train"), "{jobs:?}");
    let before = run(&team_b, "-o json job get team-b/train").await.json();
    let others = [
        "apply -f team-b.yaml",
        "job get team-b/train",
        "job abort team-b/train",
        "job restart team-b/train",
        "job suspend team-b/train",
        "job delete team-b/train",
        "audit prune --keep 0s",
        "queue close default",
    ];
    for words in others {
        let refused = run(&team_a, words).await;
        assert!(refused.code != 0, "team-a may {words}: {}", refused.stdout);
    }
    // Commands by hand, to another team's job: where team-a may write, and where it may not.
    let abort = r#"{"action":"AbortJob","target":{"kind":"Job","job":"team-b/train"}}"#;
    let id = "01890000-0000-7000-8000-000000000001";
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let put = async |token: &str, key: String| {
        let url = format!("http://{}/v1/kv/{key}", cluster.address);
        let request = client.put(url).header("X-Consul-Token", token).body(abort);
        request.send().await.unwrap().status().as_u16()
    };
    let token_a = cluster.token(&(rules.replace("team-b", "team-a") + "\n")).await;
    assert_eq!(put(&token_a, format!("rcfarm/commands/team-a/{id}")).await, 200);
    assert_eq!(put(&token_a, format!("rcfarm/commands/team-b/{id}")).await, 403);
    assert_eq!(put(&token_a, format!("rcfarm/commands/{id}")).await, 403);
    all(&team_a, &["job abort team-a/train", "job wait team-a/train --for stopped"]).await;
    let after = run(&team_b, "-o json job get team-b/train").await.json();
    let state = |job: &serde_json::Value| job["status"]["state"].clone();
    assert_eq!(state(&after), state(&before), "carried out on no other team's job");
    // An older command line's command of an operator.
    assert_eq!(put(MASTER, format!("rcfarm/commands/{id}")).await, 200);
    all(&team_b, &["job wait team-b/train --for stopped"]).await;
    all(&team_a, &["job delete team-a/train"]).await;
    must_not_be_denied(&cluster, "farm.log");
    must_not_be_denied(&cluster, "node.log");
    daemon.stop().await;
    agent.stop().await;
}
