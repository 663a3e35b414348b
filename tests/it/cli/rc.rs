//! `rcfarm rc …` without a farm.

use rcfarm_testing::wait::{in_time, until};
use serde_json::json;

use crate::harness::{HttpCluster, MANIFEST};

#[tokio::test]
async fn create_writes_record_labels_audit_and_bell_at_one_index() {
    let cluster = HttpCluster::new().await;
    let more = ["--replicas", "3", "--cluster-name", "prod", "--availability-zone", "az1"];
    let labels = ["--pod-label", "extra=yes", "--rc-label", "team=a", "--strategy", "dynamic"];
    let id = cluster.create(&[&more[..], &labels[..]].concat()).await;

    // Identical to p2's bytes (p2.md §1.2).
    let expected = format!(
        r#"{{"id":"{id}","manifest":"id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n","node_selector":"role=web","pod_labels":{{"availability_zone":"az1","cluster_name":"prod","extra":"yes"}},"replicas_desired":3,"disabled":false,"allocation_strategy":"dynamic_strategy"}}"#
    );
    let key = format!("replication_controllers/{id}");
    assert_eq!(cluster.get(&key).await.unwrap(), expected);
    let labels = cluster.get(&format!("labels/replication_controller/{id}")).await.unwrap();
    assert_eq!(labels, r#"{"pod_id":"web","team":"a"}"#);
    assert!(cluster.get(&format!("rcfarm/bell/rc/{id}")).await.is_some());

    let log = cluster.json(&["audit", "list"]).await;
    let record = &log[0]["record"];
    assert_eq!(record["event_type"], "REPLICATION_CONTROLLER_CREATED");
    assert_eq!(record["event_details"]["replication_controller_id"], json!(id));
    assert_eq!(record["event_details"]["actor"], "user:alice");
    assert_eq!(record["event_details"]["desired_after"], 3);
    let indexes: Vec<u64> = cluster
        .store
        .inspect(|tables| tables.kv.list("").map(|entry| entry.modify_index.0).collect());
    assert_eq!(indexes.len(), 4);
    assert!(indexes.iter().all(|index| *index == indexes[0]), "one transaction: {indexes:?}");
}

#[tokio::test]
async fn bad_input_is_named_with_its_remedy_and_changes_nothing() {
    let cluster = HttpCluster::new().await;
    let write = |name: &str, text: &str| {
        std::fs::write(cluster.dir.path().join(name), text).unwrap();
    };
    write("noid.yaml", "launchables: {}\n");
    write("dev.yaml", include_str!("../../../examples/web.yaml"));
    write("torn.yaml", "id: web\nlaunchables: [\n");
    let good = ["rc", "create", "-f", "web.yaml", "--node-selector", "role=web"];
    let with = |more: &[&'static str]| [&good[..], more].concat();
    for (arguments, words, hint) in [
        (vec!["rc", "create", "-f", "web.yaml"], "--node-selector <SELECTOR>", ""),
        (
            vec!["rc", "create", "-f", "dev.yaml", "--node-selector", ""],
            "describes replication controllers",
            "rcfarm apply -f dev.yaml",
        ),
        (vec!["apply", "-f", "web.yaml"], "is the manifest of a pod", "rc create -f FILE"),
        (with(&["--replicas", "-1"]), "-1 is negative", "from 0 up"),
        (with(&["--replicas", "1000000"]), "1000000 is absurd", "from 0 up"),
        (with(&["--pod-label", "pod_id=x"]), "--pod-label pod_id", "leave it out"),
        (with(&["--rc-label", "pod_id=x"]), "--rc-label pod_id", "leave it out"),
        (with(&["--cluster-name", "a b"]), "--cluster-name", ""),
        (vec!["rc", "create", "-f", "noid.yaml", "--node-selector", ""], "no field \"id\"", ""),
        (vec!["rc", "create", "-f", "torn.yaml", "--node-selector", ""], "line 2", ""),
        (vec!["rc", "create", "-f", "none.yaml", "--node-selector", ""], "none.yaml", ""),
        (vec!["rc", "scale", "web", "3"], "no replication controller \"web\"", "rc list"),
        (vec!["rc", "get", "f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0"], "no replication", "rc list"),
    ] {
        let stderr = cluster.run(&arguments).await.failed();
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{arguments:?}: {stderr}");
        let has_hint = stderr.lines().any(|line| line.starts_with("hint: ") && line.contains(hint));
        assert!(hint.is_empty() || has_hint, "{arguments:?}: {stderr}");
    }
    assert_eq!(cluster.everything(), Vec::<String>::new());
}

#[tokio::test]
async fn a_controller_is_named_by_id_beginning_or_pod() {
    let cluster = HttpCluster::new().await;
    let first = cluster.create(&[]).await;
    for name in [&first[..], &first[..8], &first[..1], "web", &first.to_uppercase()[..9]] {
        let shown = cluster.json(&["rc", "get", name]).await;
        assert_eq!(shown["record"]["id"], json!(first), "{name}");
    }
    let second = cluster.create(&["--cluster-name", "blue"]).await;
    let stderr = cluster.run(&["rc", "scale", "web", "2"]).await.failed();
    for words in [&first[..], &second[..], "blue", "give more of the id"] {
        assert!(stderr.contains(words), "{words} is not in:\n{stderr}");
    }
    assert!(cluster.run(&["rc", "scale", &second, "2"]).await.ok().contains("1 -> 2"));
}

#[tokio::test]
async fn scale_says_before_and_after_and_rings_a_new_bell_each_time() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let bell = format!("rcfarm/bell/rc/{id}");
    let first = cluster.get(&bell).await.unwrap();
    assert_eq!(
        cluster.run(&["rc", "scale", "web", "5"]).await.ok(),
        format!("web ({}): 1 -> 5\n", &id[..8])
    );
    let second = cluster.get(&bell).await.unwrap();
    assert_ne!(first, second);

    let before = cluster.everything();
    assert!(cluster.run(&["rc", "scale", "web", "5"]).await.ok().contains("5, as before"));
    assert_eq!(cluster.everything(), before, "nothing to change, nothing written");

    let shown = cluster.json(&["rc", "scale", "web", "0"]).await;
    assert_eq!(shown, json!({"id": id, "pod_id": "web", "before": 5, "after": 0}));
    assert_eq!(
        cluster.events().await,
        [
            "REPLICATION_CONTROLLER_CREATED",
            "REPLICATION_CONTROLLER_SCALED",
            "REPLICATION_CONTROLLER_SCALED"
        ]
    );
}

#[tokio::test]
async fn what_we_do_not_know_survives_a_rewrite() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let key = format!("replication_controllers/{id}");
    let text = cluster.get(&key).await.unwrap();
    let more = text.replace(r#""disabled":false"#, r#""team":{"a":[1,2.5]},"disabled":false"#);
    cluster.put(&key, &more).await;
    cluster.run(&["rc", "scale", "web", "2"]).await.ok();
    cluster.run(&["rc", "disable", "web"]).await.ok();
    let record = cluster.value(&key).await;
    assert_eq!(record["team"], json!({"a": [1, 2.5]}));
    assert_eq!((&record["replicas_desired"], &record["disabled"]), (&json!(2), &json!(true)));
    assert_eq!(record["manifest"], MANIFEST);
}

#[tokio::test]
async fn record_without_replicas_is_invalid_until_scaled() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let key = format!("replication_controllers/{id}");
    let torn = cluster.get(&key).await.unwrap().replace(r#""replicas_desired":1,"#, "");
    cluster.put(&key, &torn).await;
    let list = cluster.json(&["rc", "list"]).await;
    assert_eq!(list[0]["state"], "Invalid");
    assert!(list[0]["invalid"].as_str().unwrap().contains("replicas_desired"));
    let stderr = cluster.run(&["rc", "plan", &id]).await.plan_failed();
    assert!(stderr.contains("replicas_desired") && stderr.contains("rc scale"), "{stderr}");

    cluster.run(&["rc", "scale", &id, "2"]).await.ok();
    assert_eq!(cluster.value(&key).await["replicas_desired"], 2);
    assert_eq!(cluster.json(&["rc", "list"]).await[0]["state"], "Pending");
}

#[tokio::test]
async fn enable_and_disable_are_audited_once() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&["--disabled"]).await;
    assert_eq!(cluster.json(&["rc", "list"]).await[0]["state"], "Disabled");
    assert!(cluster.run(&["rc", "enable", "web"]).await.ok().contains("enabled"));
    assert!(cluster.run(&["rc", "enable", "web"]).await.ok().contains("as before"));
    assert!(cluster.run(&["rc", "disable", "web"]).await.ok().contains("disabled"));
    let ran = cluster.run(&["rc", "scale", &id, "4"]).await;
    assert!(ran.stderr.contains("note: it is disabled"), "{ran:?}");
    assert_eq!(
        cluster.events().await[1..],
        [
            "REPLICATION_CONTROLLER_ENABLED",
            "REPLICATION_CONTROLLER_DISABLED",
            "REPLICATION_CONTROLLER_SCALED"
        ]
    );
}

/// A node runs one pod of an id: the two would take places from each other.
#[tokio::test]
async fn another_controller_with_the_same_pod_on_the_same_nodes_is_named() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    let manifest = cluster.dir.path().join("again.yaml");
    std::fs::write(&manifest, MANIFEST).unwrap();
    let create = async |selector: &str| {
        let file = manifest.to_str().unwrap();
        let ran = cluster.run(&["rc", "create", "-f", file, "--node-selector", selector]).await;
        let note = ran.stderr.clone();
        ran.ok();
        note
    };
    assert!(!create("role=web").await.contains("another controller"));
    let id = cluster.json(&["rc", "list"]).await[0]["id"].as_str().unwrap().to_owned();
    let note = create("role").await;
    assert!(
        note.contains("another controller has the pod web") && note.contains(&id[..8]),
        "{note}"
    );
    let note = create("role=db").await;
    assert!(!note.contains("another controller"), "other nodes: {note}");
}

#[tokio::test]
async fn list_filters_by_the_controllers_own_labels() {
    let cluster = HttpCluster::new().await;
    let a = cluster.create(&["--rc-label", "team=a"]).await;
    cluster.create(&["--rc-label", "team=b"]).await;
    let list = cluster.json(&["rc", "list", "-l", "team=a"]).await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(list[0]["id"], json!(a));
    let text = cluster.run(&["rc", "list", "-l", "team=a"]).await.ok();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ID", "POD", "PODS", "HEALTHY", "STATE", "OWNER", "NODES"]);
    assert_eq!(lines[1], [&a[..8], "web", "-/1", "-", "Pending", "-", "role=web"]);
}

#[tokio::test]
async fn a_key_that_is_no_record_is_told_and_harms_nothing() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    cluster.put("replication_controllers/README", "x").await;
    let ran = cluster.run(&["rc", "list"]).await;
    assert!(ran.stderr.contains("replication_controllers/README"), "{ran:?}");
    assert_eq!(ran.ok().lines().count(), 2);
}

#[tokio::test]
async fn get_prints_the_manifest_byte_for_byte() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    assert_eq!(cluster.run(&["rc", "get", "web", "--manifest"]).await.ok(), MANIFEST);
    let yaml = cluster.run(&["rc", "get", "web", "-o", "yaml"]).await.ok();
    let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, cluster.json(&["rc", "get", "web"]).await);
}

#[tokio::test]
async fn plan_shows_the_changes_and_exits_with_2_when_there_are_any() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let id = cluster.create(&["--replicas", "2"]).await;
    cluster.pod("n3", &id).await;
    let ran = cluster.run(&["rc", "plan", "web"]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("1 -> 2 pods, 2 desired\n  + n1  add: wanted\n"), "{ran:?}");

    let ran = cluster.run(&["rc", "plan", "web", "--replicas", "1", "-o", "json"]).await;
    // The record has no pod labels to add, so nothing changes.
    assert_eq!(ran.code, 0, "{ran:?}");

    let ran = cluster.run(&["rc", "plan", "web", "--replicas", "0"]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("  - n3  remove: "), "{ran:?}");

    let ran = cluster.run(&["rc", "plan", "web", "--node-selector", "role=db"]).await;
    assert!(ran.stdout.contains("Scheduled: no (NoEligibleNodes)"), "{ran:?}");
    assert_eq!(
        cluster.value(&format!("replication_controllers/{id}")).await["replicas_desired"],
        2
    );
}

#[tokio::test]
async fn plan_dump_gives_the_same_plan_and_has_no_manifest_text() {
    use rcfarm::replication::plan::{PodStep, ReplicationObserved, plan};

    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let id = cluster.create(&["--replicas", "2"]).await;
    cluster.pod("n3", &id).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let ran = cluster.run(&["rc", "plan", "web", "--dump", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, 1, "{ran:?}");

    let text = std::fs::read_to_string(&file).unwrap();
    let observed: ReplicationObserved = serde_json::from_str(&text).unwrap();
    let plan = plan(&observed);
    let [PodStep::Add { pod_ref, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(pod_ref.to_string(), "n1/web");
    let dumped: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(dumped["record"]["manifest"], r#"{"id":"web"}"#);

    let missing = folder.path().join("no/such/plan.json");
    let ran = cluster.run(&["rc", "plan", "web", "--dump", missing.to_str().unwrap()]).await;
    assert!(ran.plan_failed().contains("name a file that can be written"));
}

#[tokio::test]
async fn plan_repairs_what_has_drifted() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    let id = cluster.create(&[]).await;
    cluster.pod("n1", &id).await;
    cluster.put("intent/n1/web", "id: web\nother: true\n").await;
    let ran = cluster.run(&["rc", "plan", "web", "-o", "json"]).await;
    assert_eq!(ran.code, 1);
    let shown: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        shown["changes"],
        json!([{"action": "repair", "node": "n1", "pod_id": "web",
                "reason": "its intent is not the record's manifest"}])
    );
    assert!(cluster.run(&["rc", "pods", "web"]).await.ok().contains("differs"));
}

#[tokio::test]
async fn explain_names_what_stands_in_the_way() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    cluster.put("labels/node/n9", r#"{"role":"db"}"#).await;
    let other = cluster.create(&[]).await;
    cluster.pod("n1", &other).await;
    let id = cluster.create(&["--replicas", "2"]).await;
    let text = cluster.run(&["rc", "explain", &id]).await.ok();
    for words in [
        "PlaceTaken: 1 of 2",
        "nobody: no farm is running",
        "2 of 3 eligible: nodes that match role=web",
        &format!("n1: eligible, but its pod web belongs to {other}"),
        "n9: label role is \"db\", but role=web is required",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let shown = cluster.json(&["rc", "explain", &id]).await;
    assert_eq!(shown["eligible_nodes"], json!(["n1", "n2"]));
    assert_eq!(shown["unfit_nodes"][1]["node"], "n9");
}

#[tokio::test]
async fn delete_without_pods_leaves_nothing_but_the_log() {
    let cluster = HttpCluster::new().await;
    cluster.create(&[]).await;
    assert!(cluster.run(&["rc", "delete", "web"]).await.ok().contains("deleted"));
    let left = cluster.everything();
    assert!(left.iter().all(|line| line.starts_with("audit_logs/")), "{left:?}");
    assert!(cluster.events().await.contains(&"REPLICATION_CONTROLLER_DELETED".to_owned()));
}

#[tokio::test]
async fn delete_refuses_while_there_are_pods_that_nobody_removes() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    cluster.pod("n1", &id).await;
    let before = cluster.everything();
    let stderr = cluster.run(&["rc", "delete", "web"]).await.failed();
    assert!(
        stderr.contains("1 pods, and no farm owns it") && stderr.contains("--force"),
        "{stderr}"
    );
    assert_eq!(cluster.everything(), before);

    cluster.run(&["rc", "disable", "web"]).await.ok();
    let stderr = cluster.run(&["rc", "delete", "web"]).await.failed();
    assert!(stderr.contains("it is disabled") && stderr.contains("rc enable"), "{stderr}");
}

#[tokio::test]
async fn a_forced_deletion_names_the_orphans_and_they_can_be_removed() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    cluster.pod("n1", &id).await;
    cluster.pod("n2", &id).await;
    let kept = cluster.create(&[]).await;
    cluster.pod("n3", &kept).await;

    let shown = cluster.json(&["rc", "delete", &id, "--force"]).await;
    assert_eq!(shown["orphans"], json!(["n1", "n2"]));
    assert_eq!(cluster.pods().await, ["n1/web", "n2/web", "n3/web"], "they keep running");

    let orphans = cluster.json(&["rc", "orphans"]).await;
    let nodes: Vec<&str> =
        orphans.as_array().unwrap().iter().map(|o| o["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["n1", "n2"]);
    assert_eq!(orphans[0]["replication_controller_id"], json!(id));

    let text = cluster.run(&["rc", "orphans", "--remove"]).await.ok();
    assert_eq!(text.lines().filter(|line| line.ends_with("removed")).count(), 2, "{text}");
    assert_eq!(cluster.pods().await, ["n3/web"]);
    assert!(cluster.get("intent/n1/web").await.is_none());
    assert_eq!(cluster.run(&["rc", "orphans"]).await.ok(), "there are no orphans\n");
    assert_eq!(cluster.events().await.last().unwrap(), "ORPHANS_REMOVED");
}

#[tokio::test]
async fn nothing_waits_for_ever_without_a_farm() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let ran = cluster.run(&["rc", "scale", "web", "2", "--wait", "--timeout", "200ms"]).await;
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("gave up waiting after 200ms: no farm has looked at the change"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains(&format!("rc explain {id}")), "{ran:?}");
    assert_eq!(
        cluster.value(&format!("replication_controllers/{id}")).await["replicas_desired"],
        2
    );
}

#[tokio::test]
async fn short_beginning_of_an_id_names_nothing() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let changes: [&[&str]; 5] = [
        &["rc", "delete", &id[..1]],
        &["rc", "disable", &id[..3]],
        &["label", "set", "rc", &id[..1], "a=b"],
        &["label", "remove", "rc", &id[..1], "a"],
        &["audit", "acknowledge", "--rc", &id[..1]],
    ];
    for arguments in changes {
        let error = cluster.run(arguments).await.failed();
        assert!(error.contains("too short"), "{arguments:?}: {error}");
    }
    cluster.run(&["rc", "get", &id[..1]]).await.ok();
    cluster.run(&["label", "get", "rc", &id[..1]]).await.ok();
    cluster.run(&["rc", "disable", &id[..4]]).await.ok();
}

#[tokio::test]
async fn update_writes_manifest_order_audit_and_bell_at_one_index() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&["--replicas", "3", "--rc-label", "rcfarm/min_health=2"]).await;
    let (key, labels) =
        (format!("replication_controllers/{id}"), format!("labels/replication_controller/{id}"));
    let mut record = cluster.value(&key).await;
    record["team"] = json!("a");
    cluster.put(&key, record.to_string()).await;
    let manifest = format!("{MANIFEST}    location: file:///web_2.tar.gz\n");
    std::fs::write(cluster.dir.path().join("v2.yaml"), &manifest).unwrap();
    let said = cluster.run(&["rc", "update", "web", "-f", "v2.yaml"]).await.ok();
    assert!(said.contains("manifest changed"), "{said}");
    let record = cluster.value(&key).await;
    assert_eq!((record["manifest"].as_str(), &record["team"]), (Some(&*manifest), &json!("a")));
    let chosen = cluster.value(&labels).await;
    assert!(chosen["rcfarm/update"].as_str().unwrap().starts_with("in-order."), "{chosen}");
    assert_eq!(chosen["rcfarm/min_health"], "2");
    let index = async |key: &str| cluster.entry(key).await.unwrap().modify_index;
    let bell = format!("rcfarm/bell/rc/{id}");
    assert_eq!(index(&key).await, index(&labels).await);
    assert_eq!(index(&key).await, index(&bell).await);

    let again = cluster.run(&["rc", "update", "web", "-f", "v2.yaml"]).await.ok();
    assert!(again.contains("as before"), "{again}");
    cluster.run(&["rc", "update", "web", "-f", "v2.yaml", "--all-at-once"]).await.ok();
    let chosen = cluster.value(&labels).await;
    assert!(chosen["rcfarm/update"].as_str().unwrap().starts_with("at-once."), "{chosen}");
    let more = ["--node-selector", "role=db", "--strategy", "dynamic"];
    cluster.run(&[&["rc", "update", "web"][..], &more].concat()).await.ok();
    let record = cluster.value(&key).await;
    assert_eq!(record["node_selector"], "role=db");
    assert_eq!(record["allocation_strategy"], "dynamic_strategy");
    let log = cluster.run(&["audit", "list"]).await.ok();
    assert!(log.contains("node_selector allocation_strategy"), "{log}");
    assert_eq!(cluster.events().await.len(), 4);
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));

    std::fs::write(cluster.dir.path().join("bad.yaml"), "id: web\nlaunchables: [\n").unwrap();
    cluster.run(&["rc", "update", "web", "-f", "bad.yaml"]).await.failed();
    cluster.run(&["rc", "update", "web"]).await.failed();
    assert_eq!(cluster.events().await.len(), 4);
}

#[tokio::test]
async fn wait_for_a_controller_ends_when_it_is_deleted() {
    let cluster = HttpCluster::new().await;
    let id = cluster.create(&[]).await;
    let record = format!("replication_controllers/{id}");
    let before = cluster.entry(&record).await.unwrap().modify_index;
    let scale = ["rc", "scale", &id, "3", "--wait", "--timeout", "1h"];
    let (ran, ()) = in_time("the wait ends", async {
        tokio::join!(cluster.run(&scale), async {
            let is_scaled = async || cluster.entry(&record).await.unwrap().modify_index != before;
            until("it is scaled", is_scaled).await;
            cluster.delete(&record).await;
        })
    })
    .await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("was deleted"), "{ran:?}");
}
