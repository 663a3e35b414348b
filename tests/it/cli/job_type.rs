//! `rcfarm job type`, and job types in files.

use serde_json::json;

use crate::harness::HttpCluster;

const EXAMPLE: &str = include_str!("../../../examples/job_type.yaml");

/// The text of the example, in a file of the cluster.
fn write(cluster: &HttpCluster, text: &str) {
    std::fs::write(cluster.dir.path().join("file.yaml"), text).unwrap();
}

#[tokio::test]
async fn job_type_is_planned_applied_shown_and_deleted() {
    let cluster = HttpCluster::new().await;
    write(&cluster, EXAMPLE);
    let planned = cluster.run(&["plan", "-f", "file.yaml"]).await;
    assert_eq!(planned.code, 1);
    assert!(planned.stdout.contains("job type PaddleJob") && planned.stdout.contains("2 x Worker"));
    cluster.run(&["apply", "-f", "file.yaml"]).await.ok();
    let again = cluster.run(&["plan", "-f", "file.yaml"]).await;
    assert_eq!(again.code, 0, "{}", again.stdout);
    let shown = cluster.json(&["job", "type", "get", "PaddleJob"]).await;
    assert_eq!(shown["spec"]["container"], "paddle");
    assert_eq!(shown["success"], "all members of Master, otherwise Worker");
    assert_eq!(cluster.json(&["job", "type", "list"]).await, json!([shown]));
    let text = cluster.run(&["job", "type", "get", "PaddleJob"]).await.ok();
    assert!(text.contains("paddlejob-port 36543") && text.contains("PADDLE_MASTER"), "{text}");
    let jobs = cluster.run(&["job", "list"]).await.ok();
    assert!(jobs.contains("PaddleJob"), "{jobs}");
    let names = cluster.run(&["complete", "--", "job", "type", "get"]).await.ok();
    assert_eq!(names, "PaddleJob\n");
    let audit = cluster.run(&["audit", "list"]).await.ok();
    assert!(audit.contains("job type PaddleJob created"), "{audit}");
    cluster.run(&["job", "type", "delete", "PaddleJob"]).await.ok();
    let missing = cluster.run(&["job", "type", "get", "PaddleJob"]).await.failed();
    assert!(missing.contains("rcfarm job type list"), "{missing}");
    assert_eq!(cluster.run(&["audit", "verify"]).await.code, 0);
}

#[tokio::test]
async fn wrong_job_type_and_unknown_kind_name_their_fields() {
    let cluster = HttpCluster::new().await;
    for (from, to, said) in [
        ("value: \"${rank}\"", "value: \"${range}\"", "spec.environment[2].value: ${range} is not"),
        ("container: paddle\n", "container: paddle\n  colour: red\n", "unknown field `colour`"),
        ("name: PaddleJob", "name: Paddle-Job", "metadata.name"),
        ("kind: PaddleJob", "kind: PaddelJob", "rcfarm/job_types/PaddelJob"),
        ("kind: PaddleJob", "kind: PaddelJob", "XGBoostJob, Pod, PaddleJob"),
        ("Master:\n", "Boss:\n", "there are Master, Worker"),
        ("replicas: 2", "replicas: 0", "spec.paddleReplicaSpecs.Worker.replicas"),
        ("[{name: paddle, command: [sleep", "[{name: pad, command: [sleep", "no container named"),
        ("v1\nkind: PaddleJob", "v2\nkind: PaddleJob", "a PaddleJob is of kubeflow.org/v1"),
    ] {
        assert!(EXAMPLE.contains(from), "{from}");
        write(&cluster, &EXAMPLE.replacen(from, to, 1));
        let refused = cluster.run(&["apply", "-f", "file.yaml"]).await.failed();
        assert!(refused.contains(said), "{to}: {refused}");
    }
    assert!(cluster.run(&["job", "type", "list"]).await.ok().lines().count() <= 1);
}

/// The type is needed by jobs that wait for a farm to give it to them.
#[tokio::test]
async fn job_type_is_not_deleted_while_a_job_waits_for_it() {
    let cluster = HttpCluster::new().await;
    let (of_type, job) = EXAMPLE.split_once("---\n").unwrap();
    write(&cluster, of_type);
    cluster.run(&["apply", "-f", "file.yaml"]).await.ok();
    let document = rcfarm::job::document::from_yaml(job).unwrap();
    cluster.put("rcfarm/jobs/default/paddle", document.to_string()).await;
    let refused = cluster.run(&["job", "type", "delete", "PaddleJob"]).await.failed();
    assert!(refused.contains("rcfarm/jobs/default/paddle"), "{refused}");
}
