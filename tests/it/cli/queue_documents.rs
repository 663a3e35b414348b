//! PodGroups and schedulers: `apply -f`, `plan -f`, `queue group …`, `queue scheduler …`, and what the log says of them.

use serde_json::{Value, json};

use crate::harness::HttpCluster;

const DOCUMENTS: &str = "\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: mnist, namespace: team-a}
spec:
  queue: vision
  minMember: 2
  tasks: [{name: worker, replicas: 4, resources: {cpu: 2}}]
---
kind: Queue
metadata: {name: vision}
spec: {scheduler: gpus}
---
kind: Scheduler
metadata: {name: gpus}
spec: {packing: bin-pack, nodeSelector: 'pool=gpu'}
";

fn write(cluster: &HttpCluster, text: &str) {
    std::fs::write(cluster.dir.path().join("all.yaml"), text).unwrap();
}

async fn applied() -> HttpCluster {
    let cluster = HttpCluster::new().await;
    write(&cluster, DOCUMENTS);
    cluster.run(&["apply", "-f", "all.yaml"]).await.ok();
    cluster
}

#[tokio::test]
async fn groups_and_schedulers_are_applied_planned_and_listed() {
    let cluster = applied().await;
    let group = cluster.value("rcfarm/pod_groups/team-a/mnist").await;
    assert_eq!(group["spec"]["tasks"][0]["replicas"], 4);
    assert_eq!(cluster.value("rcfarm/schedulers/gpus").await["spec"]["packing"], "bin-pack");
    assert_eq!(cluster.run(&["plan", "-f", "all.yaml"]).await.code, 0);

    // Its owner reports counts; they stay, and are no change.
    let mut reported = group.clone();
    reported["members"] = json!({"running": 3});
    cluster.put("rcfarm/pod_groups/team-a/mnist", reported.to_string()).await;
    assert_eq!(cluster.run(&["plan", "-f", "all.yaml"]).await.code, 0);
    write(&cluster, &DOCUMENTS.replace("minMember: 2", "minMember: 3"));
    let plan = cluster.run(&["plan", "-f", "all.yaml"]).await;
    assert!(plan.stdout.contains("~ spec.minMember: 2 -> 3"), "{plan:?}");
    assert!(!plan.stdout.contains("members"), "{plan:?}");
    cluster.run(&["apply", "-f", "all.yaml"]).await.ok();
    let changed = cluster.value("rcfarm/pod_groups/team-a/mnist").await;
    assert_eq!(
        (&changed["members"]["running"], &changed["spec"]["minMember"]),
        (&json!(3), &json!(3))
    );

    let groups = cluster.json(&["queue", "group", "list"]).await;
    assert_eq!(
        (&groups[0]["group"], &groups[0]["queue"]),
        (&json!("team-a/mnist"), &json!("vision"))
    );
    let schedulers = cluster.json(&["queue", "scheduler", "list"]).await;
    assert_eq!(
        (&schedulers[0]["scheduler"], &schedulers[0]["queues"]),
        (&json!("gpus"), &json!(["vision"]))
    );
    let got = cluster.json(&["queue", "scheduler", "get", "gpus"]).await;
    assert_eq!(got["record"]["spec"]["nodeSelector"], "pool=gpu");
}

#[tokio::test]
async fn what_is_wrong_with_groups_and_schedulers_is_refused_by_path() {
    let cluster = HttpCluster::new().await;
    for (from, to, words) in [
        (
            "replicas: 4",
            "replicas: 1",
            "PodGroup team-a/mnist: field spec.minMember: 2 is more than",
        ),
        ("queue: vision", "queue: nowhere", "PodGroup team-a/mnist: spec.queue: "),
        ("minMember: 2", "priorityClassName: none-such", "spec.priorityClassName: "),
        ("scheduling.volcano.sh/v1beta1", "v1", "field apiVersion: \"v1\" has no PodGroup"),
        ("packing: bin-pack", "packing: tight", "Scheduler gpus: field spec.packing"),
        ("packing: bin-pack", "fairShare: drf", "Scheduler gpus: field spec.fairShare"),
        ("metadata: {name: gpus}", "metadata: {name: gpus, namespace: a}", "has no namespace"),
    ] {
        write(&cluster, &DOCUMENTS.replace(from, to));
        let refused = cluster.run(&["apply", "-f", "all.yaml"]).await.failed();
        assert!(refused.contains(words), "{to}: {refused}");
    }
    assert!(cluster.events().await.is_empty());
}

#[tokio::test]
async fn groups_of_jobs_and_schedulers_in_use_are_left_alone() {
    let cluster = applied().await;
    let refused = cluster.run(&["queue", "scheduler", "delete", "gpus"]).await.failed();
    assert!(refused.contains("queue update vision --scheduler default"), "{refused}");
    let mut group = cluster.value("rcfarm/pod_groups/team-a/mnist").await;
    group["members"] = json!({"running": 3});
    cluster.put("rcfarm/pod_groups/team-a/mnist", group.to_string()).await;
    let refused = cluster.run(&["queue", "group", "delete", "team-a/mnist"]).await.failed();
    assert!(refused.contains("3 members of PodGroup team-a/mnist are on nodes"), "{refused}");
    group["spec"]["owner"] = json!({"kind": "Job", "name": "mnist", "uid": "7"});
    cluster.put("rcfarm/pod_groups/team-a/mnist", group.to_string()).await;
    let delete = ["queue", "group", "delete", "team-a/mnist", "--force"];
    let refused = cluster.run(&delete).await.failed();
    assert!(refused.contains("rcfarm job delete team-a/mnist"), "{refused}");
    write(&cluster, &DOCUMENTS.replace("minMember: 2", "minMember: 3"));
    let refused = cluster.run(&["apply", "-f", "all.yaml"]).await.failed();
    assert!(refused.contains("it belongs to Job mnist"), "{refused}");

    group["spec"]["owner"] = Value::Null;
    cluster.put("rcfarm/pod_groups/team-a/mnist", group.to_string()).await;
    cluster.run(&delete).await.ok();
    cluster.run(&["queue", "update", "vision", "--scheduler", "default"]).await.ok();
    cluster.run(&["queue", "scheduler", "delete", "gpus"]).await.ok();
    let kept = cluster.keys(&rcfarm_store::Prefix::parse("rcfarm").unwrap()).await;
    assert!(!kept.iter().any(|key| key.contains("mnist") || key.contains("gpus")), "{kept:?}");
}

#[tokio::test]
async fn edits_of_groups_schedulers_and_drains_differ_from_the_log() {
    let cluster = applied().await;
    cluster.put("rcfarm/nodes/n1", "{}").await;
    cluster.run(&["node", "drain", "n1", "--no-wait"]).await.ok();
    assert_eq!(cluster.run(&["audit", "verify"]).await.code, 0);
    cluster.put("rcfarm/nodes/n1", "{}").await;
    cluster.put("rcfarm/schedulers/gpus", "{}").await;
    cluster.put("rcfarm/pod_groups/team-a/mnist", "{}").await;
    let found = cluster.run(&["audit", "verify"]).await;
    for words in [
        "differs: drain of node n1: the log has it, and the node is not drained",
        "differs: Scheduler gpus: its record is not the one",
        "differs: PodGroup team-a/mnist: its record is not the one",
    ] {
        assert!(found.stdout.contains(words), "{found:?}");
    }
    cluster.run(&["audit", "acknowledge"]).await.ok();
    assert_eq!(cluster.run(&["audit", "verify"]).await.code, 0);
}
