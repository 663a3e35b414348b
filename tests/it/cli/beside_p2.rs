//! Commands beside a farm and preparers of p2, which hold locks and write neither presences nor statuses.

use crate::harness::HttpCluster;
use rcfarm_api::key;
use rcfarm_store::{NewSession, Store};

/// A controller with two pods on `n1` and `n2`, one healthy, whose lock a farm of p2 holds.
async fn owned_by_p2(cluster: &HttpCluster) -> String {
    cluster.nodes(3).await;
    let id = cluster.create(&["--replicas", "2"]).await;
    let session = cluster.store.create_session(&NewSession::default()).await.unwrap();
    cluster.put_locked(key::rc_lock(id.parse().unwrap()), "", &session).await;
    for node in ["n1", "n2"] {
        cluster.pod(node, &id).await;
        cluster.put(format!("reality/{node}/web"), "id: web\n").await;
    }
    cluster.put("health/web/n1", r#"{"Status":"passing"}"#).await;
    id
}

#[tokio::test]
async fn rc_list_and_doctor_see_a_farm_of_p2() {
    let cluster = HttpCluster::new().await;
    let id = owned_by_p2(&cluster).await;
    let listed = cluster.json(&["rc", "list"]).await;
    let row = &listed[0];
    assert_eq!(row["id"], id.as_str());
    assert_eq!((&row["owner"], &row["state"]), (&"(p2?)".into(), &"AsDesired".into()));
    assert_eq!((&row["replicas"]["current"], &row["replicas"]["healthy"]), (&2.into(), &1.into()));
    let doctor = cluster.json(&["doctor"]).await;
    let farms = doctor.as_array().unwrap().iter().find(|check| check["check"] == "farms").unwrap();
    assert!(farms["detail"].as_str().unwrap().contains("own 1 controllers"), "{farms}");
}

#[tokio::test]
async fn rc_scale_waits_for_a_farm_of_p2() {
    let cluster = HttpCluster::new().await;
    let id = owned_by_p2(&cluster).await;
    let arguments = ["rc", "scale", &id, "3", "--wait", "--timeout", "60s"];
    let scale = cluster.run(&arguments);
    let p2 = async {
        let key = key::rc(id.parse().unwrap());
        while !cluster.get(key.clone()).await.unwrap().contains("\"replicas_desired\":3") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        cluster.pod("n3", &id).await;
    };
    let (scaled, ()) = tokio::join!(scale, p2);
    scaled.ok();
}

#[tokio::test]
async fn pod_list_knows_pods_of_p2_preparers() {
    let cluster = HttpCluster::new().await;
    owned_by_p2(&cluster).await;
    let pods = cluster.json(&["pod", "list"]).await;
    let shown: Vec<String> = pods
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| format!("{} {} {}", pod["pod"], pod["node"], pod["health"]).replace('"', ""))
        .collect();
    assert_eq!(shown, ["web n1 passing", "web n2 absent"]);
    let got = cluster.run(&["pod", "get", "web", "--node", "n1"]).await.ok();
    assert!(got.contains("p2's preparer"), "{got}");
}

#[tokio::test]
async fn create_warns_of_what_p2_cannot_read_and_refuses_typing_errors() {
    let cluster = HttpCluster::new().await;
    let file = cluster.dir.path().join("m.yaml");
    let create = ["rc", "create", "-f", "m.yaml", "--node-selector", ""];
    std::fs::write(&file, "id: a\nresource_limits: {cgroup: {memory: 1Gi}}\n").unwrap();
    let ran = cluster.run(&create).await;
    assert!(ran.stderr.contains("p2's programs cannot read"), "{ran:?}");
    ran.ok();
    let doctor = cluster.run(&["doctor"]).await;
    assert!(doctor.stdout.contains("p2's programs cannot read 1"), "{doctor:?}");
    std::fs::write(&file, "id: a\nlaunchables: {m: {launchable_type: process, comand: x}}\n")
        .unwrap();
    let refused = cluster.run(&create).await.failed();
    assert!(refused.contains("launchables.m") && refused.contains("comand"), "{refused}");
}
