//! `rcfarm label …`

use serde_json::json;

use crate::harness::HttpCluster;

#[tokio::test]
async fn label_set_get_remove_and_last_removes_key() {
    let cluster = HttpCluster::new().await;
    cluster.run(&["label", "set", "node", "n1", "role=web", "zone="]).await.ok();
    assert_eq!(cluster.get("labels/node/n1").await.unwrap(), r#"{"role":"web","zone":""}"#);
    assert_eq!(cluster.run(&["label", "get", "node", "n1"]).await.ok(), "role=web\nzone=\n");
    assert_eq!(
        cluster.json(&["label", "get", "node", "n1"]).await,
        json!({"role": "web", "zone": ""})
    );

    cluster.run(&["label", "set", "node", "n1", "role=db"]).await.ok();
    cluster.run(&["label", "remove", "node", "n1", "zone", "absent"]).await.ok();
    assert_eq!(cluster.get("labels/node/n1").await.unwrap(), r#"{"role":"db"}"#);
    cluster.run(&["label", "rm", "node", "n1", "role"]).await.ok();
    assert!(cluster.get("labels/node/n1").await.is_none());

    let log = cluster.json(&["audit", "list"]).await;
    let details: Vec<_> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|record| {
            let details = &record["record"]["event_details"];
            (details["set"].clone(), details["removed"].clone())
        })
        .collect();
    assert_eq!(
        details,
        [
            (json!({"role": "web", "zone": ""}), json!({})),
            (json!({"role": "db"}), json!({})),
            (json!({}), json!({"zone": ""})),
            (json!({}), json!({"role": "db"})),
        ]
    );
}

#[tokio::test]
async fn labels_of_a_node_without_an_agent_are_set_with_a_note() {
    let cluster = HttpCluster::new().await;
    let ran = cluster.run(&["label", "set", "node", "n-typo", "role=web"]).await;
    assert!(ran.stderr.contains("no agent of ours runs as node n-typo"), "{ran:?}");
    ran.ok();
    let ran = cluster.run(&["label", "remove", "node", "n-typo", "role"]).await;
    assert!(!ran.stderr.contains("no agent"), "{ran:?}");
}

#[tokio::test]
async fn what_is_so_already_is_not_written() {
    let cluster = HttpCluster::new().await;
    cluster.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    let before = cluster.everything();
    cluster.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    cluster.run(&["label", "remove", "node", "n1", "other"]).await.ok();
    assert_eq!(cluster.everything(), before);
}

#[tokio::test]
async fn a_selector_means_all_that_match() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    cluster.put("labels/node/n3", r#"{"role":"db"}"#).await;
    cluster.run(&["label", "set", "node", "--selector", "role=web", "drain=yes"]).await.ok();
    let list = cluster.run(&["label", "list", "node"]).await.ok();
    assert_eq!(
        list,
        "NODE   LABELS\nn1     drain=yes,role=web\nn2     drain=yes,role=web\nn3     role=db\n"
    );
    cluster.run(&["label", "remove", "node", "-l", "drain", "drain"]).await.ok();
    assert_eq!(
        cluster.run(&["label", "list", "node", "-l", "drain"]).await.ok(),
        "nothing matches\n"
    );
}

#[tokio::test]
async fn controllers_are_found_by_name_and_their_bell_is_rung() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let bell = format!("rcfarm/bell/rc/{id}");
    let before = cluster.get(&bell).await;
    cluster.run(&["label", "set", "rc", "web", "team=a"]).await.ok();
    let labels = cluster.get(&format!("labels/replication_controller/{id}")).await.unwrap();
    assert_eq!(labels, r#"{"pod_id":"web","team":"a"}"#);
    assert_ne!(cluster.get(&bell).await, before);
    assert!(cluster.run(&["label", "get", "rc", &id[..6]]).await.ok().contains("team=a"));
}

#[tokio::test]
async fn mistakes_are_named_and_change_nothing() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    cluster.pod("n1", &id).await;
    cluster.put("labels/node/torn", "{").await;
    let before = cluster.everything();
    for (arguments, words) in [
        (&["label", "set", "node", "n1"][..], "no label is given"),
        (&["label", "set", "node", "n1", "role"], "write it as key=value"),
        (&["label", "set", "node", "n1", "a=b c"], "not a legal label value"),
        (&["label", "remove", "node", "n1", "a/b/c"], "more than one '/'"),
        (&["label", "set", "node", "a/b", "a=b"], "node \"a/b\""),
        (&["label", "set", "pod", "n1", "a=b"], "not NODE/POD"),
        (&["label", "set", "pod", "n2/web", "a=b"], "no pod n2/web"),
        (&["label", "set", "pod", "n1/web", "replication_controller_id=x"], "whose pod it is"),
        (&["label", "remove", "pod", "n1/web", "pod_id"], "whose pod it is"),
        (&["label", "set", "rc", "nothing", "a=b"], "no replication controller"),
        (&["label", "set", "rolls", "x", "a=b"], "UUID"),
        (&["label", "set", "node", "torn", "a=b"], "labels/node/torn"),
        (&["label", "get", "node", "n7"], "has no labels"),
    ] {
        let stderr = cluster.run(arguments).await.failed();
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    assert_eq!(cluster.everything(), before);
}

#[tokio::test]
async fn labels_of_a_job_are_set_removed_shown_and_selected_by() {
    let cluster = HttpCluster::new().await;
    let document = json!({"kind": "Job", "metadata": {"name": "j", "labels": {"app": "a"}}, "spec": {
        "tasks": [{"name": "t", "replicas": 1, "template": {"spec": {"containers": [
            {"name": "c", "command": ["true"]}]}}}]}});
    cluster.put("rcfarm/jobs/default/j", document.to_string()).await;
    let labels = async || {
        let record = cluster.get("rcfarm/jobs/default/j").await.unwrap();
        serde_json::from_str::<serde_json::Value>(&record).unwrap()["metadata"]["labels"].clone()
    };
    let said = cluster.run(&["job", "label", "j", "team=b", "tier=", "app-"]).await.ok();
    assert_eq!(said, "team=b\ntier=\n");
    assert_eq!(labels().await, json!({"team": "b", "tier": ""}));
    let log = cluster.json(&["audit", "list", "--job", "j"]).await;
    let change = &log[0]["record"]["event_details"];
    assert_eq!(
        (&change["action"], &change["reason"]),
        (&json!("Labelled"), &json!("team=b tier= app-"))
    );
    cluster.run(&["audit", "verify"]).await.ok();

    let before = cluster.everything();
    cluster.run(&["job", "label", "j", "team=b", "absent-"]).await.ok();
    assert_eq!(cluster.run(&["job", "label", "j"]).await.ok(), "team=b\ntier=\n");
    assert_eq!(cluster.everything(), before);

    // The labels key takes precedence, so a label that is set leaves it.
    cluster.put("labels/job/default/j", r#"{"team":"x","zone":"z"}"#).await;
    assert_eq!(
        cluster.json(&["job", "get", "j"]).await["labels"],
        json!({"team": "x", "tier": "", "zone": "z"})
    );
    cluster.run(&["job", "label", "j", "team=c"]).await.ok();
    assert_eq!(cluster.get("labels/job/default/j").await.unwrap(), r#"{"zone":"z"}"#);
    for (selector, count) in [("team=c,zone=z", 1), ("team=x", 0), ("!tier", 0)] {
        let rows = cluster.json(&["job", "list", "-l", selector]).await;
        assert_eq!(rows.as_array().unwrap().len(), count, "{selector}");
    }
    cluster.run(&["job", "label", "j", "zone-"]).await.ok();
    assert!(cluster.get("labels/job/default/j").await.is_none());

    let queue = "kueue.x-k8s.io/queue-name=other";
    for wrong in [&["a"][..], &["a=b", "a-"], &["a b=c"], &["a=b c"], &[queue]] {
        let ran = cluster.run(&[&["job", "label", "j"], wrong].concat()).await;
        assert_eq!(ran.code, 1, "{wrong:?}: {ran:?}");
    }
    assert_eq!(labels().await, json!({"team": "c", "tier": ""}));
}
