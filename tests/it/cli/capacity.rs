//! Output about resources: missing capacity and orphaned allocations.

use serde_json::json;

use crate::harness::HttpCluster;

const TRAIN: &str = "id: train\nresources: {cpu: 2, gpu: 1}\n";

async fn cluster(nodes: usize) -> HttpCluster {
    let cluster = HttpCluster::new().await;
    std::fs::write(cluster.dir.path().join("train.yaml"), TRAIN).unwrap();
    cluster.nodes(nodes).await;
    let capacity =
        r#"{"capacity":{"cpu_milli":4000,"memory_bytes":8589934592,"devices":{"gpu":1}}}"#;
    for n in 1..=nodes {
        cluster.put(format!("rcfarm/nodes/n{n}"), capacity).await;
    }
    cluster
}

async fn create(cluster: &HttpCluster, replicas: &str) -> String {
    let words = ["rc", "create", "-f", "train.yaml", "--node-selector", "role=web", "--replicas"];
    cluster.run(&[&words[..], &[replicas]].concat()).await.ok().trim().to_owned()
}

#[tokio::test]
async fn explain_says_for_each_node_what_is_short() {
    let cluster = cluster(2).await;
    cluster.put("labels/node/n3", r#"{"role":"web"}"#).await;
    let other =
        r#"{"pods":{"x":{"owner":"job/default/x/1","cpu_milli":3000,"devices":{"gpu":[0]}}}}"#;
    cluster.put("rcfarm/allocations/n2", other).await;
    let id = create(&cluster, "3").await;
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(text.contains("InsufficientCapacity: 1 of 3"), "{text}");
    let lack =
        "n2: matches, but has no room: cpu: 2 wanted, 1 of 4 free; gpu: 1 wanted, 0 of 1 free";
    assert!(text.contains(lack), "{text}");
    assert!(text.contains("n3: matches, but has no room: it declares no capacity"), "{text}");
    let shown = cluster.json(&["rc", "explain", &id]).await;
    assert_eq!(shown["unfit_nodes"][0]["reason"], "InsufficientCapacity");
    assert_eq!(
        shown["resources"],
        json!({"cpu_milli": 2000, "memory_bytes": 0, "devices": {"gpu": 1}})
    );
    let plan = cluster.run(&["rc", "plan", &id]).await;
    assert_eq!(plan.code, 1);
    assert!(
        plan.stdout.contains("+ n1")
            && plan.stdout.contains("Scheduled: no (InsufficientCapacity)"),
        "{plan:?}"
    );
}

#[tokio::test]
async fn explain_names_the_pod_that_has_a_port() {
    let cluster = cluster(1).await;
    let other = r#"{"pods":{"api":{"owner":"job/default/x/1","ports":{"http":9000}}}}"#;
    cluster.put("rcfarm/allocations/n1", other).await;
    let manifest = "id: train\nports: [{name: a}, {name: b, port: 9000}]\n";
    std::fs::write(cluster.dir.path().join("train.yaml"), manifest).unwrap();
    let id = create(&cluster, "1").await;
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(text.contains("n1: matches, but has no room: pod api has port 9000"), "{text}");
    assert!(
        text.contains("InsufficientCapacity: 0 of 1: no room for ports a, 9000 on 1"),
        "{text}"
    );
    let plan = cluster.run(&["rc", "plan", &id, "--dump", "dump.json"]).await;
    assert_eq!(plan.code, 0, "{plan:?}");
    let dump = std::fs::read_to_string(cluster.dir.path().join("dump.json")).unwrap();
    assert!(dump.contains(r#"\"ports\":[{\"name\":\"a\"}"#), "{dump}");
    cluster.delete("rcfarm/allocations/n1").await;
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(
        text.contains("n1: matches, but has no room: it gives out no ports (--ports)"),
        "{text}"
    );
    std::fs::write(cluster.dir.path().join("bad.yaml"), "id: a\nports: [{name: A}]\n").unwrap();
    let words =
        ["rc", "create", "-f", "bad.yaml", "--node-selector", "role=web", "--replicas", "1"];
    let refused = cluster.run(&words).await;
    assert!(refused.code == 1 && refused.stderr.contains("ports[0].name"), "{refused:?}");
}

#[tokio::test]
async fn allocations_agree_with_audit_and_doctor_and_end_with_pods() {
    let cluster = cluster(2).await;
    let _farm = cluster.start("f1");
    let words = ["rc", "create", "-f", "train.yaml", "--node-selector", "role=web", "--wait"];
    cluster.run(&[&words[..], &["--replicas", "2"]].concat()).await.ok();
    let doctor = cluster.run(&["doctor"]).await.ok();
    assert!(doctor.contains("resources for 2 pods on 2 nodes"), "{doctor}");
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
    let promised = cluster.value("rcfarm/allocations/n1").await;
    assert_eq!(promised["pods"]["train"]["devices"], json!({"gpu": [0]}));
    cluster.run(&["rc", "delete", "train"]).await.ok();
    assert_eq!(cluster.value("rcfarm/allocations/n1").await, json!({"pods": {}}));
}

#[tokio::test]
async fn what_is_allocated_to_nobody_is_reported_and_freed() {
    let cluster = cluster(2).await;
    let id = create(&cluster, "0").await;
    let orphaned = format!(
        r#"{{"pods":{{"train":{{"owner":"rc/{id}","cpu_milli":2000}},"x":{{"owner":"job/default/x/1","cpu_milli":1000}}}}}}"#
    );
    cluster.put("rcfarm/allocations/n1", &orphaned).await;
    cluster.put("rcfarm/allocations/n2", &orphaned).await;
    let verify = cluster.run(&["audit", "verify"]).await;
    assert_eq!(verify.code, 2);
    let words =
        format!("orphaned: n1 has an allocation for pod train of {id}, which does not exist");
    assert!(verify.stdout.contains(&words), "{verify:?}");
    let doctor = cluster.run(&["doctor"]).await.ok();
    assert!(
        doctor.contains("2 have no pods") && doctor.contains("rc orphans --remove"),
        "{doctor}"
    );
    let listed = cluster.json(&["rc", "orphans"]).await;
    assert_eq!((&listed[0]["what"], &listed[0]["node"]), (&json!("promise"), &json!("n1")));
    assert_eq!(listed.as_array().unwrap().len(), 2, "a job's are its own business");

    let text = cluster.run(&["rc", "orphans", "--remove"]).await.ok();
    assert_eq!(text.lines().filter(|line| line.ends_with("removed")).count(), 2, "{text}");
    let left = cluster.value("rcfarm/allocations/n2").await;
    assert_eq!(left["pods"].as_object().unwrap().keys().collect::<Vec<_>>(), ["x"]);
    assert_eq!(cluster.run(&["audit", "verify"]).await.code, 0);
    assert_eq!(cluster.events().await.last().unwrap(), "ORPHANS_REMOVED");

    // Allocated more than the capacity, which was lowered.
    cluster.put("rcfarm/nodes/n2", r#"{"capacity":{"cpu_milli":500}}"#).await;
    let doctor = cluster.run(&["doctor"]).await.ok();
    assert!(doctor.contains("rcfarm/allocations/n2: cpu: 1 allocated of 500m"), "{doctor}");
}

#[tokio::test]
async fn removing_an_orphan_frees_its_allocation() {
    let cluster = cluster(1).await;
    let id = create(&cluster, "1").await;
    let labels = format!(r#"{{"pod_id":"train","replication_controller_id":"{id}"}}"#);
    cluster.put("labels/pod/n1/train", &labels).await;
    cluster.put("intent/n1/train", TRAIN).await;
    let allocation = format!(r#"{{"pods":{{"train":{{"owner":"rc/{id}","cpu_milli":2000}}}}}}"#);
    cluster.put("rcfarm/allocations/n1", &allocation).await;
    cluster.run(&["rc", "delete", &id, "--force"]).await.ok();
    assert_eq!(cluster.json(&["rc", "orphans"]).await.as_array().unwrap().len(), 1);
    cluster.run(&["rc", "orphans", "--remove"]).await.ok();
    assert_eq!(cluster.value("rcfarm/allocations/n1").await, json!({"pods": {}}));
    assert_eq!(cluster.pods().await, Vec::<String>::new());
}

#[tokio::test]
async fn plan_and_explain_ask_the_owners_own_scheduler() {
    let cluster = cluster(3).await;
    let id = create(&cluster, "1").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let answer = || async { axum::Json(json!({"nodes": ["n2"]})) };
    let router = axum::Router::new().route("/eligible_nodes", axum::routing::post(answer));
    let server = tokio::spawn(axum::serve(listener, router).into_future());
    cluster.owned(&id, json!({"scheduler": address})).await;
    assert!(cluster.run(&["rc", "plan", &id]).await.stdout.contains("+ n2"));
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(text.contains("1 of 3 eligible: named by the scheduler"), "{text}");
    assert!(text.contains(&format!("n1: the scheduler at {address} does not name it")), "{text}");
    server.abort();
    let _ = server.await;
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(text.contains("gave no answer, so labels had to do"), "{text}");
}
