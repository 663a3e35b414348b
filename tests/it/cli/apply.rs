//! `rcfarm apply -f` and `plan -f` with objects of every kind.

use std::sync::Arc;

use rcfarm_emulator::serve::{CONSULS_CONNECTIONS, serve};
use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Faults, KvOp, Request};
use rcfarm_store::StoreError;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{HttpCluster, program};

const RCS: &str = "\
replication_controllers:
  - manifest: |
      id: web
      launchables: {main: {launchable_type: process, command: sleep 60}}
    node_selector: role=web
    replicas: 2
    labels: {rcfarm/min_health: '1'}
";

const QUEUES: &str = "\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: below}
spec: {parent: research, weight: 3}
---
kind: Queue
metadata: {name: research}
spec: {weight: 2, capability: {cpu: 8}}
";

const JOB: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  queue: below
  tasks: [{name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [
    {name: c, command: [sleep, '60']}]}}}]
";

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    let path = cluster.dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

async fn changes(cluster: &HttpCluster, arguments: &[&str]) -> Vec<String> {
    let shown = cluster.json(arguments).await;
    let rows = shown.as_array().unwrap().iter();
    let text = |row: &Value| {
        let name = [&row["queue"], &row["pod_id"], &row["job"]].into_iter().find(|n| n.is_string());
        format!("{} {}", name.unwrap().as_str().unwrap(), row["change"].as_str().unwrap())
    };
    rows.map(text).collect()
}

#[tokio::test]
async fn files_of_all_kinds_are_applied_in_order_of_dependency() {
    let cluster = HttpCluster::new().await;
    // Names sort the job first; it needs the queue, whose parent comes after it.
    write(&cluster, "all/a-job.yaml", JOB);
    write(&cluster, "all/b-queues.yaml", QUEUES);
    write(&cluster, "rcs.yaml", RCS);
    let plan = cluster.run(&["plan", "-f", "all", "-f", "rcs.yaml"]).await;
    assert_eq!(plan.code, 1, "{plan:?}");
    for line in ["queue below: would be created", "rc web: would be created", "default/train (Job)"]
    {
        assert!(plan.stdout.contains(line), "{}", plan.stdout);
    }
    assert!(cluster.events().await.is_empty());
    let apply = ["apply", "-f", "all", "-f", "rcs.yaml"];
    let made = ["research Created", "below Created", "web Created", "default/train Created"];
    assert_eq!(changes(&cluster, &apply).await, made);
    assert_eq!(
        cluster.events().await,
        ["QUEUE_CREATED", "QUEUE_CREATED", "REPLICATION_CONTROLLER_CREATED", "JOB_CHANGED"]
    );
    let same =
        ["research Unchanged", "below Unchanged", "web Unchanged", "default/train Unchanged"];
    assert_eq!(changes(&cluster, &apply).await, same);
    assert_eq!(cluster.run(&["plan", "-f", "all", "-f", "rcs.yaml"]).await.code, 0);

    // What a command changed since, and the file does not name, stays.
    cluster.run(&["queue", "close", "research"]).await.ok();
    write(&cluster, "all/b-queues.yaml", &QUEUES.replace("cpu: 8", "cpu: 16"));
    write(
        &cluster,
        "rcs.yaml",
        &RCS.replace("sleep 60", "sleep 90").replace("replicas: 2", "replicas: 3"),
    );
    let plan = cluster.run(&["plan", "-f", "all", "-f", "rcs.yaml"]).await;
    for line in [
        "~ spec.capability.cpu: \"8\" -> \"16\"",
        "~ replicas_desired: 2 -> 3",
        "~ manifest:\n",
        "- launchables: {main: {launchable_type: process, command: sleep 60}}\n",
        "+ launchables: {main: {launchable_type: process, command: sleep 90}}\n",
    ] {
        assert!(plan.stdout.contains(line), "{}", plan.stdout);
    }
    cluster.run(&apply).await.ok();
    let queue = cluster.value("rcfarm/queues/research").await;
    assert_eq!(
        (&queue["spec"]["state"], &queue["spec"]["capability"]["cpu"]),
        (&json!("Closed"), &json!("16"))
    );
    let rc = cluster.json(&["rc", "get", "web"]).await;
    let id = rc["record"]["id"].as_str().or(rc["id"].as_str()).unwrap().to_owned();
    let labels = cluster.value(format!("labels/replication_controller/{id}")).await;
    assert_eq!(labels["rcfarm/min_health"], "1");
    assert!(labels["rcfarm/update"].as_str().unwrap().starts_with("in-order."), "{labels}");
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));

    cluster.run(&["queue", "update", "research", "--weight", "5", "--order", "fifo"]).await.ok();
    let queue = cluster.value("rcfarm/queues/research").await;
    assert_eq!(
        (&queue["spec"]["weight"], &queue["metadata"]["name"]),
        (&json!(5), &json!("research"))
    );
    let again = cluster.run(&["queue", "update", "research", "--weight", "5"]).await.ok();
    assert_eq!(again, "research: as before\n");
    cluster.run(&["queue", "update", "none", "--weight", "5"]).await.failed();
}

#[tokio::test]
async fn fields_that_a_file_leaves_out_stay_as_commands_made_them() {
    let cluster = HttpCluster::new().await;
    let labelled = RCS.replace("replicas: 2", "replicas: 2\n    pod_labels: {tier: front}");
    write(&cluster, "rcs.yaml", &labelled);
    cluster.run(&["apply", "-f", "rcs.yaml"]).await.ok();
    cluster.run(&["rc", "update", "web", "--strategy", "dynamic"]).await.ok();
    write(&cluster, "rcs.yaml", RCS);
    let plan = cluster.run(&["plan", "-f", "rcs.yaml"]).await;
    assert_eq!((plan.code, plan.stdout.contains("nothing to do")), (0, true), "{plan:?}");
    // What the file names is as the file says.
    let named = RCS.replace("replicas: 2", "replicas: 2\n    strategy: static\n    pod_labels: {}");
    write(&cluster, "rcs.yaml", &named);
    let plan = cluster.run(&["plan", "-f", "rcs.yaml"]).await;
    for field in ["~ allocation_strategy", "~ pod_labels"] {
        assert!(plan.stdout.contains(field), "{plan:?}");
    }
}

#[tokio::test]
async fn controllers_of_one_pod_are_made_by_their_ids() {
    let cluster = HttpCluster::new().await;
    let ids = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
    let entry = |id: &str| RCS.replace("  - manifest", &format!("  - id: {id}\n    manifest"));
    let both = format!("{}---\n{}", entry(ids[0]), entry(ids[1]));
    write(&cluster, "rcs.yaml", &both);
    assert_eq!(changes(&cluster, &["apply", "-f", "rcs.yaml"]).await, ["web Created"; 2]);
    assert_eq!(changes(&cluster, &["apply", "-f", "rcs.yaml"]).await, ["web Unchanged"; 2]);
    // Which of them is an entry without an id about?
    let cluster = HttpCluster::new().await;
    write(&cluster, "rcs.yaml", &format!("{}---\n{RCS}", entry(ids[0])));
    let refused = cluster.run(&["apply", "-f", "rcs.yaml"]).await.failed();
    assert!(refused.contains("twice"), "{refused}");
    // Nor may there be another beside the one that it is about, in either order.
    write(&cluster, "rcs.yaml", RCS);
    cluster.run(&["apply", "-f", "rcs.yaml"]).await.ok();
    for both in [[RCS.to_owned(), entry(ids[1])], [entry(ids[1]), RCS.to_owned()]] {
        write(&cluster, "rcs.yaml", &both.join("---\n"));
        let refused = cluster.run(&["apply", "-f", "rcs.yaml"]).await.failed();
        assert!(refused.contains("twice"), "{refused}");
    }
}

/// Refuses transactions with records of jobs.
struct NoJobs;

impl Faults for NoJobs {
    fn fate(&self, request: &Request<'_>) -> Fate {
        let is_job = |op: &KvOp| op.key.starts_with("rcfarm/jobs/");
        match request {
            Request::Txn(ops) if ops.iter().any(is_job) => {
                let detail = "by the test".to_owned();
                Fate::of(FaultOutcome::Fail(StoreError::TooLarge { detail }))
            }
            _ => Fate::DELIVER,
        }
    }
}

#[tokio::test]
async fn apply_that_fails_says_what_it_has_done_and_which_object_failed() {
    let store = Emulator::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = program(&listener.local_addr().unwrap().to_string(), dir.path());
    tokio::spawn(serve(listener, store.with_faults(Arc::new(NoJobs)), CONSULS_CONNECTIONS));
    std::fs::write(dir.path().join("all.yaml"), format!("{QUEUES}---\n{JOB}")).unwrap();
    let ran = program.run(&["apply", "-f", "all.yaml"]).await;
    assert_eq!(ran.stdout, "queue research: created\nqueue below: created\n", "{ran:?}");
    assert!(ran.code == 1 && ran.stderr.contains("default/train: request too large"), "{ran:?}");
}

#[tokio::test]
async fn one_wrong_object_keeps_all_of_them_from_being_applied() {
    let cluster = HttpCluster::new().await;
    let large = format!("{{name: train, annotations: {{note: {}}}}}", "x".repeat(700_000));
    for (name, text, words) in [
        ("queue", QUEUES.replace("weight: 2", "weight: 0"), "spec.weight"),
        ("ring", QUEUES.replace("{weight: 2,", "{parent: below,"), "spec.parent"),
        ("job", JOB.replace("queue: below", "queue: none"), "spec.queue"),
        ("rc", RCS.replace("replicas: 2", "replicas: -2"), "replicas"),
        ("field", RCS.replace("replicas: 2", "replicas: 2\n    replica: 3"), "replica"),
        ("shape", RCS.replace("replicas: 2", "replicas: many"), "[0].replicas: invalid type"),
        ("label", RCS.replace("'1'", "'x'"), "min_health"),
        ("typo", RCS.replace("command:", "comand:"), "comand"),
        ("twice", format!("{RCS}---\n{RCS}"), "twice"),
        ("large", JOB.replace("{name: train}", &large), "default/train: it has 7"),
    ] {
        write(&cluster, "wrong.yaml", &format!("{QUEUES}---\n{text}"));
        if name == "queue" || name == "ring" {
            write(&cluster, "wrong.yaml", &format!("{RCS}---\n{text}"));
        }
        let refused = cluster.run(&["apply", "-f", "wrong.yaml"]).await.failed();
        assert!(refused.contains(words), "{name}: {refused}");
    }
    assert!(cluster.events().await.is_empty());
}
