//! `rcfarm cron …`, and CronJobs in `apply -f`.

use serde_json::json;

use crate::harness::HttpCluster;

const CRON: &str = "\
apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: '30 2 * * *'
  timeZone: Europe/Berlin
  jobTemplate:
    spec:
      tasks: [{name: w, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [sleep, '60']}]}}}]
";

fn write(cluster: &HttpCluster, name: &str, text: &str) {
    std::fs::write(cluster.dir.path().join(name), text).unwrap();
}

#[tokio::test]
async fn cron_job_is_planned_applied_shown_changed_and_deleted() {
    let cluster = HttpCluster::new().await;
    write(&cluster, "cron.yaml", CRON);
    let plan = cluster.run(&["plan", "-f", "cron.yaml"]).await;
    assert!(
        plan.code == 1 && plan.stdout.contains("CronJob default/nightly: would be created"),
        "{plan:?}"
    );
    let applied = cluster.run(&["apply", "-f", "cron.yaml"]).await.ok();
    assert!(applied.contains("CronJob default/nightly: created"), "{applied}");
    assert_eq!(cluster.run(&["plan", "-f", "cron.yaml"]).await.code, 0);
    write(&cluster, "cron.yaml", &CRON.replace("30 2", "45 3"));
    let plan = cluster.run(&["plan", "-f", "cron.yaml"]).await;
    assert!(plan.stdout.contains("spec.schedule"), "{plan:?}");
    cluster.run(&["apply", "-f", "cron.yaml"]).await.ok();

    let next = cluster
        .json(&["cron", "next", "nightly", "-n", "2", "--after", "2026-10-23T12:00:00Z"])
        .await;
    assert_eq!(
        next[1],
        json!({"time": "2026-10-25T02:45:00Z", "local": "2026-10-25T03:45:00+01:00"})
    );
    let next = cluster.run(&["cron", "next", "--schedule", "@hourly"]).await.ok();
    assert!(next.lines().count() == 6, "{next}");
    let why = cluster.run(&["cron", "next", "--schedule", "61 * * * *"]).await.failed();
    assert!(why.contains("minute hour day"), "{why}");

    cluster.run(&["cron", "suspend", "nightly"]).await.ok();
    let list = cluster.json(&["cron", "list"]).await;
    assert_eq!((&list[0]["suspend"], &list[0]["next"]), (&json!(true), &json!(null)));
    cluster.run(&["cron", "resume", "nightly"]).await.ok();
    let list = cluster.run(&["cron", "list"]).await.ok();
    assert!(list.contains("45 3 * * * Europe/Berlin") && list.contains("in "), "{list}");
    let why = cluster.run(&["cron", "explain", "nightly"]).await.ok();
    assert!(why.contains("no farm has looked at default/nightly yet"), "{why}");

    let made = cluster.run(&["cron", "run", "nightly", "--name", "by-hand"]).await.ok();
    assert!(made.contains("default/by-hand: created"), "{made}");
    let job = cluster.json(&["job", "get", "by-hand"]).await;
    assert!(job.to_string().contains("instantiate"), "{job}");

    let _farm = cluster.start("f1");
    let deleted = cluster.run(&["cron", "delete", "-f", "cron.yaml"]).await.ok();
    assert!(deleted.contains("default/nightly: deleted"), "{deleted}");
    assert!(cluster.get("rcfarm/cron_jobs/default/nightly").await.is_none());
    let why = cluster.run(&["cron", "get", "nightly"]).await.failed();
    assert!(why.contains("there is no CronJob default/nightly"), "{why}");
    let log = cluster.run(&["audit", "list", "--job", "default/nightly"]).await.ok();
    for words in ["CronJob default/nightly Created", "Suspended", "Resumed", "(Deleted)"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
}

#[tokio::test]
async fn wrong_cron_jobs_are_refused_by_path() {
    let cluster = HttpCluster::new().await;
    write(
        &cluster,
        "cron.yaml",
        &CRON.replace("30 2", "30 25").replace("replicas: 1", "replicas: x"),
    );
    let why = cluster.run(&["apply", "-f", "cron.yaml"]).await.failed();
    assert!(why.contains("CronJob default/nightly: field spec.schedule"), "{why}");
    write(&cluster, "cron.yaml", &CRON.replace("replicas: 1", "replicas: x"));
    let why = cluster.run(&["apply", "-f", "cron.yaml"]).await.failed();
    assert!(why.contains("spec.jobTemplate.spec.tasks[0].replicas"), "{why}");
    assert!(cluster.events().await.is_empty());
}

/// Its jobs could never run. A closed queue may be open when they are made.
#[tokio::test]
async fn cron_job_without_its_queue_is_refused() {
    let cluster = HttpCluster::new().await;
    let text = CRON.replace("    spec:\n", "    spec:\n      queue: science\n");
    write(&cluster, "cron.yaml", &text);
    let why = cluster.run(&["apply", "-f", "cron.yaml"]).await.failed();
    assert!(why.contains("spec.jobTemplate.spec.queue: there is no queue science"), "{why}");
    assert!(cluster.events().await.is_empty());
    let queue = "\n---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: science}\nspec: {}\n";
    write(&cluster, "both.yaml", &format!("{text}{queue}"));
    cluster.run(&["apply", "-f", "both.yaml"]).await.ok();
    cluster.run(&["queue", "close", "science"]).await.ok();
    write(&cluster, "cron.yaml", &text.replace("30 2", "45 3"));
    cluster.run(&["apply", "-f", "cron.yaml"]).await.ok();
}
