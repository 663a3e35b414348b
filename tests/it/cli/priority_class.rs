//! `rcfarm priority-class …`, and priority classes in `apply -f`.

use serde_json::{Value, json};

use crate::harness::HttpCluster;

const CLASSES: &str = "\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
description: for deadlines
preemptionPolicy: Never
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: usual}
value: 10
globalDefault: true
preemptionPolicy: PreemptLowerPriority
";

fn job(kind: &str) -> String {
    let template =
        "{spec: {restartPolicy: Never, containers: [{name: pytorch, command: [sleep, '60']}]}}";
    match kind {
        "Job" => format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: train}}\nspec:\n  \
             priorityClassName: high\n  tasks: [{{name: w, replicas: 1, template: {template}}}]\n"
        ),
        _ => format!(
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: torch}}\nspec:\n  \
             runPolicy: {{schedulingPolicy: {{priorityClass: high}}}}\n  \
             pytorchReplicaSpecs: {{Master: {{replicas: 1, template: {template}}}}}\n"
        ),
    }
}

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    std::fs::write(cluster.dir.path().join(name), text).unwrap();
}

fn find<'v>(list: &'v Value, name: &str) -> &'v Value {
    list.as_array().unwrap().iter().find(|class| class["name"] == name).unwrap()
}

#[tokio::test]
async fn classes_of_kubernetes_are_applied_before_jobs_that_name_them() {
    let cluster = HttpCluster::new().await;
    for (kind, field) in
        [("Job", "spec.priorityClassName"), ("PyTorchJob", "schedulingPolicy.priorityClass")]
    {
        write(&cluster, "job.yaml", &job(kind));
        let refused = cluster.run(&["apply", "-f", "job.yaml"]).await.failed();
        for words in [field, "there is no priority class high", "priority-class create high"] {
            assert!(refused.contains(words), "{refused}");
        }
    }
    assert!(cluster.events().await.is_empty());
    write(&cluster, "all.yaml", &format!("{}---\n{CLASSES}", job("Job")));
    let plan = cluster.run(&["plan", "-f", "all.yaml"]).await;
    assert!(plan.stdout.contains("priority class high: would be created"), "{plan:?}");
    let applied = cluster.run(&["apply", "-f", "all.yaml"]).await;
    assert!(
        applied.stderr.contains("usual: preemptionPolicy: nothing is preempted"),
        "{applied:?}"
    );
    assert!(!applied.stderr.contains("high: preemptionPolicy"), "{applied:?}");
    applied.ok();
    assert_eq!(
        cluster.events().await,
        ["PRIORITY_CLASS_CHANGED", "PRIORITY_CLASS_CHANGED", "JOB_CHANGED"]
    );
    let stored = cluster.value("rcfarm/priority_classes/high").await;
    assert_eq!((&stored["value"], &stored["metadata"]["name"]), (&json!(1000), &json!("high")));
    assert_eq!(cluster.run(&["plan", "-f", "all.yaml"]).await.code, 0);

    let list = cluster.json(&["priority-class", "list"]).await;
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|class| class["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["system-node-critical", "system-cluster-critical", "high", "usual"]);
    assert_eq!(find(&list, "usual")["globalDefault"], true);
    let log = cluster.run(&["audit", "list"]).await.ok();
    assert!(log.contains("priority class high - -> 1000"), "{log}");

    // A job that is there keeps its class when that is gone; a new one is refused.
    let gone = cluster.run(&["priority-class", "delete", "high"]).await.ok();
    assert_eq!(gone, "high: deleted\n");
    write(&cluster, "job.yaml", &job("Job").replace("  tasks:", "  maxRetry: 4\n  tasks:"));
    let kept = cluster.run(&["apply", "-f", "job.yaml"]).await;
    assert!(!kept.stderr.contains("priority class"), "{kept:?}");
    write(&cluster, "job.yaml", &job("PyTorchJob"));
    cluster.run(&["apply", "-f", "job.yaml"]).await.failed();
}

#[tokio::test]
async fn wrong_classes_are_refused_with_the_field() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "classes.yaml", CLASSES);
    cluster.run(&["apply", "-f", "classes.yaml"]).await.ok();
    for (from, to, words) in [
        ("value: 1000", "value: 1000000001", "value: 1000000001 is not between"),
        ("value: 1000", "value: 2000", "value: it may not change"),
        ("Policy: Never", "Policy: Always", "preemptionPolicy"),
        ("Policy: Never", "Policy: PreemptLowerPriority", "preemptionPolicy: it may not change"),
        ("description:", "descripton:", "descripton"),
        ("value: 1000\n", "", "value"),
        ("{name: high}", "{name: system-mine}", "metadata.name"),
        ("metadata: {name: high}", "metadata: {}", "metadata.name"),
        ("value: 1000", "value: 1000\nglobalDefault: true", "globalDefault: usual is the global"),
        ("scheduling.k8s.io/v1", "scheduling.volcano.sh/v1", "apiVersion"),
        ("name: usual", "name: high", "twice"),
    ] {
        write(&cluster, "wrong.yaml", &CLASSES.replacen(from, to, 1));
        let refused = cluster.run(&["apply", "-f", "wrong.yaml"]).await.failed();
        assert!(refused.contains(words), "{from} -> {to}: {refused}");
    }
    assert_eq!(cluster.events().await.len(), 2);
    write(&cluster, "new.yaml", &CLASSES.replace("for deadlines", "for papers"));
    let changed = cluster.run(&["apply", "-f", "new.yaml"]).await.ok();
    assert!(changed.contains("priority class high: changed"), "{changed}");
    let create = ["priority-class", "create", "low", "--value", "-5", "--description", "later"];
    assert_eq!(cluster.run(&create).await.ok(), "low: created\n");
    assert!(cluster.run(&create).await.failed().contains("there is a priority class low already"));
    let second = ["priority-class", "create", "x", "--value", "1", "--global-default"];
    assert!(cluster.run(&second).await.failed().contains("usual is the global default"));
    assert_eq!(cluster.json(&["priority-class", "get", "low"]).await["value"], -5);
    let built_in = cluster.json(&["priority-class", "get", "system-node-critical"]).await;
    assert_eq!(
        (&built_in["value"], &built_in["builtIn"]),
        (&json!(2_000_001_000_i64), &json!(true))
    );
    for command in ["get", "delete"] {
        let refused = cluster.run(&["priority-class", command, "none"]).await.failed();
        assert!(refused.contains("there is no priority class none"), "{refused}");
    }
}
