//! `rcfarm label …`

use serde_json::json;

use super::world::World;

#[tokio::test]
async fn label_set_get_remove_and_last_removes_key() {
    let world = World::new().await;
    world.run(&["label", "set", "node", "n1", "role=web", "zone="]).await.ok();
    assert_eq!(world.get("labels/node/n1").await.unwrap(), r#"{"role":"web","zone":""}"#);
    assert_eq!(world.run(&["label", "get", "node", "n1"]).await.ok(), "role=web\nzone=\n");
    assert_eq!(
        world.json(&["label", "get", "node", "n1"]).await,
        json!({"role": "web", "zone": ""})
    );

    world.run(&["label", "set", "node", "n1", "role=db"]).await.ok();
    world.run(&["label", "remove", "node", "n1", "zone", "absent"]).await.ok();
    assert_eq!(world.get("labels/node/n1").await.unwrap(), r#"{"role":"db"}"#);
    world.run(&["label", "rm", "node", "n1", "role"]).await.ok();
    assert!(world.get("labels/node/n1").await.is_none());

    let log = world.json(&["audit", "list"]).await;
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
async fn what_is_so_already_is_not_written() {
    let world = World::new().await;
    world.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    let before = world.everything();
    world.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    world.run(&["label", "remove", "node", "n1", "other"]).await.ok();
    assert_eq!(world.everything(), before);
}

#[tokio::test]
async fn a_selector_means_all_that_match() {
    let world = World::new().await;
    world.nodes(3).await;
    world.put("labels/node/n3", r#"{"role":"db"}"#).await;
    world.run(&["label", "set", "node", "--selector", "role=web", "drain=yes"]).await.ok();
    let list = world.run(&["label", "list", "node"]).await.ok();
    assert_eq!(
        list,
        "NODE   LABELS\nn1     drain=yes,role=web\nn2     drain=yes,role=web\nn3     role=db\n"
    );
    world.run(&["label", "remove", "node", "-l", "drain", "drain"]).await.ok();
    assert_eq!(
        world.run(&["label", "list", "node", "-l", "drain"]).await.ok(),
        "nothing matches\n"
    );
}

#[tokio::test]
async fn controllers_are_found_by_name_and_their_bell_is_rung() {
    let world = World::new().await;
    let id = world.create(&[]).await;
    let bell = format!("rcfarm/bell/rc/{id}");
    let before = world.get(&bell).await;
    world.run(&["label", "set", "rc", "web", "team=a"]).await.ok();
    let labels = world.get(&format!("labels/replication_controller/{id}")).await.unwrap();
    assert_eq!(labels, r#"{"pod_id":"web","team":"a"}"#);
    assert_ne!(world.get(&bell).await, before);
    assert!(world.run(&["label", "get", "rc", &id[..6]]).await.ok().contains("team=a"));
}

#[tokio::test]
async fn mistakes_are_named_and_change_nothing() {
    let world = World::new().await;
    let id = world.create(&[]).await;
    world.pod("n1", &id).await;
    world.put("labels/node/torn", "{").await;
    let before = world.everything();
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
        let stderr = world.run(arguments).await.failed();
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    assert_eq!(world.everything(), before);
}
