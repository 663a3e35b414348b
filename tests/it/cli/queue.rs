//! `rcfarm queue …`, with and without a farm.

use serde_json::{Value, json};

use crate::harness::HttpCluster;

/// A group of one-CPU pods, as the job controller writes it.
async fn group(cluster: &HttpCluster, name: &str, queue: &str, members: u32) {
    let tasks = json!([{"name": "w", "replicas": members, "resources": {"cpu": 1}}]);
    let record = json!({"spec": {"queue": queue, "tasks": tasks}});
    cluster.put(format!("rcfarm/pod_groups/ns/{name}"), record.to_string()).await;
}

async fn node(cluster: &HttpCluster, cpus: u64) {
    cluster.nodes(1).await;
    let record = json!({"capacity": {"cpu_milli": cpus * 1_000, "memory_bytes": 1 << 30}});
    cluster.put("rcfarm/nodes/n1", record.to_string()).await;
}

/// Polls until `holds` is true.
async fn until(cluster: &HttpCluster, queue: &str, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let shown = cluster.json(&["queue", "get", queue]).await;
        if holds(&shown) {
            return shown;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{:#}", cluster.json(&["queue", "get", queue]).await);
}

#[tokio::test]
async fn queue_commands_each_write_one_audit_record() {
    let cluster = HttpCluster::new().await;
    let create = ["queue", "create", "research", "--weight", "2", "--capability", "cpu=64,gpu=8"];
    assert_eq!(cluster.run(&create).await.ok(), "research: created\n");
    let record = cluster.value("rcfarm/queues/research").await;
    assert_eq!(record["spec"]["capability"], json!({"cpu": "64", "gpu": 8}));
    assert_eq!((&record["spec"]["weight"], &record["spec"]["state"]), (&json!(2), &json!("Open")));

    cluster.put("rcfarm/queues/by-hand", r#"{"spec":{"parent":"research"},"team":"a"}"#).await;
    assert_eq!(cluster.run(&["queue", "close", "research"]).await.ok(), "research: closed\n");
    assert_eq!(
        cluster.run(&["queue", "close", "research"]).await.ok(),
        "research: closed, as before\n"
    );
    let stderr = cluster.run(&["queue", "open", "by-hand"]).await.failed();
    assert!(stderr.contains("stays closed as long as research"), "{stderr}");
    assert!(stderr.contains("rcfarm queue open research"), "{stderr}");
    assert_eq!(cluster.run(&["queue", "open", "research"]).await.ok(), "research: open\n");
    cluster.run(&["queue", "close", "by-hand"]).await.ok();
    let kept = cluster.value("rcfarm/queues/by-hand").await;
    assert_eq!((&kept["team"], &kept["spec"]["state"]), (&json!("a"), &json!("Closed")));

    let list = cluster.run(&["queue", "list"]).await.ok();
    assert!(list.contains("cpu=64,gpu=8") && list.contains("traverse"), "{list}");
    let stderr = cluster.run(&["queue", "delete", "research"]).await.failed();
    assert!(stderr.contains("has 1 queues below it"), "{stderr}");
    assert_eq!(cluster.run(&["queue", "delete", "by-hand"]).await.ok(), "by-hand: deleted\n");
    cluster.run(&["queue", "rm", "research"]).await.ok();
    assert_eq!(
        cluster.events().await,
        [
            "QUEUE_CREATED",
            "QUEUE_CHANGED",
            "QUEUE_CHANGED",
            "QUEUE_CHANGED",
            "QUEUE_DELETED",
            "QUEUE_DELETED"
        ]
    );
    let log = cluster.run(&["audit", "list"]).await.ok();
    assert!(log.contains("queue research state=\"Closed\"") && log.contains("alice"), "{log}");
    assert!(cluster.run(&["queue", "list"]).await.ok().contains("there are no queues"));
}

#[tokio::test]
async fn bad_input_names_the_field_and_changes_nothing() {
    let cluster = HttpCluster::new().await;
    cluster.run(&["queue", "create", "top", "--capability", "cpu=4"]).await.ok();
    cluster.put("rcfarm/queues/broken", r#"{"spec":{"weight":"two"}}"#).await;
    group(&cluster, "waits", "top", 1).await;
    std::fs::write(cluster.dir.path().join("job.yaml"), "kind: Job\nmetadata: {name: x}\n")
        .unwrap();
    let bad = "kind: Queue\nmetadata: {name: x}\nspec: {capability: {cpu: four}}\n";
    std::fs::write(cluster.dir.path().join("bad.yaml"), bad).unwrap();
    let before = cluster.everything();
    for (words, wants) in [
        (&["create", "q", "--weight", "0"][..], "spec.weight"),
        (&["create", "q", "--priority=-1"], "spec.priority"),
        (&["create", "q", "--parent", "nowhere"], "spec.parent"),
        (&["create", "q", "--parent", "q"], "spec.parent"),
        (&["create", "q", "--parent", "top", "--capability", "cpu=5"], "spec.capability.cpu"),
        (
            &["create", "q", "--guarantee", "cpu=2", "--capability", "cpu=1"],
            "spec.guarantee.resource.cpu",
        ),
        (&["create", "root"], "(name)"),
        (&["create", "top"], "there is a queue top already"),
        (&["create", "-f", "job.yaml"], "field kind: Job"),
        (&["create", "-f", "bad.yaml"], "spec.capability"),
        (&["get", "none"], "rcfarm queue list"),
        (&["open", "broken"], "spec.weight"),
        (&["delete", "top"], "0 admitted and 1 waiting"),
        (&["delete", "none"], "there is no queue none"),
    ] {
        let stderr = cluster.run(&[&["queue"], words].concat()).await.failed();
        assert!(stderr.contains(wants), "{words:?}: {stderr}");
    }
    for words in [
        ["create", "q", "--capability", "cpu=x"],
        ["create", "q", "--order", "lifo"],
        ["get", "a/b", "-o", "json"],
    ] {
        cluster.run(&[&["queue"], &words[..]].concat()).await.failed();
    }
    assert_eq!(cluster.everything(), before);
}

#[tokio::test]
async fn volcano_queue_is_accepted_and_ignored_fields_are_named() {
    let cluster = HttpCluster::new().await;
    let text = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata:\n  name: team\nspec:\n  weight: 3\n  \
                reclaimable: false\n  capability: {cpu: \"8\", memory: 16Gi}\n  affinity: {}\n";
    std::fs::write(cluster.dir.path().join("queue.yaml"), text).unwrap();
    let ran = cluster.run(&["queue", "create", "-f", "queue.yaml", "--order", "fifo"]).await;
    assert!(ran.stderr.contains("spec.affinity is kept, and nothing acts upon it"), "{ran:?}");
    ran.ok();
    let shown = cluster.json(&["queue", "get", "team"]).await;
    assert_eq!(shown["spec"]["dequeueStrategy"], "fifo");
    assert_eq!(
        (&shown["spec"]["reclaimable"], &shown["spec"]["weight"]),
        (&json!(false), &json!(3))
    );
    assert_eq!(shown["ignored"], json!(["spec.affinity", "spec.reclaimable", "spec.weight"]));
    let yaml = cluster.run(&["queue", "get", "team", "-o", "yaml"]).await.ok();
    assert!(yaml.contains("dequeueStrategy: fifo"), "{yaml}");
}

#[tokio::test]
async fn what_waits_is_shown_with_its_position_and_why() {
    let cluster = HttpCluster::new().await;
    node(&cluster, 2).await;
    cluster.run(&["queue", "create", "q", "--order", "fifo"]).await.ok();
    cluster.run(&["queue", "create", "shut", "--closed"]).await.ok();
    let _farm = cluster.start("f1");
    group(&cluster, "a-first", "q", 1).await;
    until(&cluster, "q", |shown| shown["admitted"][0]["group"] == "ns/a-first").await;
    group(&cluster, "large", "q", 2).await;
    until(&cluster, "q", |shown| shown["waiting"][0]["reason"] == "InsufficientCapacity").await;
    group(&cluster, "small", "q", 1).await;
    group(&cluster, "late", "shut", 1).await;
    let shown =
        until(&cluster, "q", |shown| shown["waiting"][1]["reason"] == "BehindInQueue").await;
    let waiting: Vec<_> = [0, 1]
        .map(|n| (shown["waiting"][n]["position"].clone(), shown["waiting"][n]["group"].clone()))
        .into();
    assert_eq!(waiting, [(json!(1), json!("ns/large")), (json!(2), json!("ns/small"))]);
    assert_eq!(shown["used"], json!({"cpu": "1", "pods": 1}));
    let text = cluster.run(&["queue", "get", "q"]).await.ok();
    assert!(text.contains("POSITION") && text.contains("InsufficientCapacity"), "{text}");
    let shut = until(&cluster, "shut", |shown| shown["state"] == "Closed").await;
    assert_eq!(shut["waiting"][0]["reason"], "QueueClosed");
    let list = cluster.run(&["queue", "list"]).await.ok();
    assert!(list.contains("default") && list.contains("Closed"), "{list}");

    assert!(
        cluster.run(&["queue", "close", "q"]).await.ok().contains("closing; 1 admitted groups")
    );
    until(&cluster, "q", |shown| shown["state"] == "Closing").await;
    cluster.delete("rcfarm/pod_groups/ns/a-first").await;
    let shown = until(&cluster, "q", |shown| shown["state"] == "Closed").await;
    assert_eq!(shown["waiting"][0]["reason"], "QueueClosed");
    cluster.run(&["queue", "open", "q"]).await.ok();
    until(&cluster, "q", |shown| shown["admitted"][0]["group"] == "ns/large").await;
}
