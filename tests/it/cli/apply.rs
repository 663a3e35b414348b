//! `rcfarm apply -f` and `plan -f` with objects of every kind.

use serde_json::{Value, json};

use crate::harness::HttpCluster;

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
    for line in
        ["~ spec.capability.cpu: \"8\" -> \"16\"", "~ replicas_desired: 2 -> 3", "~ manifest: "]
    {
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
async fn one_wrong_object_keeps_all_of_them_from_being_applied() {
    let cluster = HttpCluster::new().await;
    for (name, text, words) in [
        ("queue", QUEUES.replace("weight: 2", "weight: 0"), "spec.weight"),
        ("ring", QUEUES.replace("{weight: 2,", "{parent: below,"), "spec.parent"),
        ("job", JOB.replace("queue: below", "queue: none"), "spec.queue"),
        ("rc", RCS.replace("replicas: 2", "replicas: -2"), "replicas"),
        ("field", RCS.replace("replicas: 2", "replicas: 2\n    replica: 3"), "replica"),
        ("label", RCS.replace("'1'", "'x'"), "min_health"),
        ("typo", RCS.replace("command:", "comand:"), "comand"),
        ("twice", format!("{RCS}---\n{RCS}"), "twice"),
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
