//! Number and placement of pods: behaviour of p2's `pkg/rc` tests (`p2.md` §5), by their names there.

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_testing::wait::within;
use serde_json::json;

async fn reason(cluster: &Cluster, n: u128, kind: RcConditionType) -> Option<RcReason> {
    Some(cluster.status(n).await?.condition(kind)?.reason)
}

fn names(nodes: &[usize]) -> std::collections::BTreeSet<String> {
    nodes.iter().map(|n| node(*n).to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn do_nothing_for_zero_replicas() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 0).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "said so", || async { cluster.status(1).await.is_some() }).await;
    assert!(cluster.nodes_of(1).await.is_empty());
    assert!(cluster.audit().await.is_empty());
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cant_schedule_without_nodes_and_says_so() {
    let cluster = Cluster::new(0).await;
    cluster.create_rc(1, 1).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "said so", || async {
        reason(&cluster, 1, RcConditionType::Scheduled).await == Some(RcReason::NoEligibleNodes)
    })
    .await;
    assert!(cluster.audit().await.is_empty());
    cluster.label_node(&node(0), json!({"pool": "web"})).await;
    within(SECOND, "reacts to a new node", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn eligible_nodes_are_used_in_name_order_with_one_audit() {
    let cluster = Cluster::new(0).await;
    for n in [4, 2, 9, 7] {
        cluster.label_node(&node(n), json!({"pool": "web"})).await;
    }
    cluster.label_node(&node(1), json!({"pool": "db"})).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await == names(&[2, 4]) }).await;
    assert_eq!(cluster.intent(&node(2), 1).await.unwrap(), "id: pod-1\n");
    let audit = cluster.audit().await;
    assert_eq!(audit.len(), 1);
    assert_eq!(audit[0].event_details["nodes"], json!(["n0002", "n0004"]));
    assert_eq!(audit[0].event_details["pod_id"], "pod-1");
    assert_eq!(audit[0].event_details["availability_zone"], "az1");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn schedule_partial_then_the_rest() {
    let cluster = Cluster::new(1).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "one", || async {
        cluster.nodes_of(1).await.len() == 1
            && reason(&cluster, 1, RcConditionType::Scheduled).await
                == Some(RcReason::InsufficientNodes)
    })
    .await;
    cluster.label_node(&node(1), json!({"pool": "web"})).await;
    within(SECOND, "two", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn counts_that_make_no_sense_change_nothing() {
    let cluster = Cluster::new(5).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    for bad in [json!(-1), json!(1e15), json!("3"), json!(null), json!(1_000_000)] {
        let mut record = cluster.record(1, 2);
        record["replicas_desired"] = bad.clone();
        cluster.write_rc(1, &record).await;
        within(2 * SECOND, "refused", || async {
            reason(&cluster, 1, RcConditionType::Valid).await == Some(RcReason::InvalidRecord)
        })
        .await;
        assert_eq!(cluster.nodes_of(1).await.len(), 2, "{bad}");
        cluster.create_rc(1, 2).await;
        within(2 * SECOND, "mended", || async {
            reason(&cluster, 1, RcConditionType::Valid).await == Some(RcReason::AsDesired)
        })
        .await;
    }
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn up_and_down_in_packed_transactions() {
    let cluster = Cluster::new(500).await;
    cluster.create_rc(1, 100).await;
    let (farm, counted) = cluster.start_counted("a");
    within(2 * SECOND, "100", || async { cluster.nodes_of(1).await.len() == 100 }).await;
    tokio::time::sleep(10 * SECOND).await;
    let before = counted.transactions();
    cluster.create_rc(1, 500).await;
    within(5 * SECOND, "500", || async { cluster.nodes_of(1).await.len() == 500 }).await;
    let transactions = counted.transactions() - before;
    assert!(transactions <= 16, "{transactions} transactions for 100 -> 500");
    cluster.create_rc(1, 0).await;
    within(5 * SECOND, "0", || async { cluster.nodes_of(1).await.is_empty() }).await;
    assert!(cluster.store.inspect(|t| t.kv.list("intent/").next().is_none()), "no intent stays");
    let last = cluster.audit().await.pop().unwrap();
    assert_eq!(last.event_details["nodes"], json!([]));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn prefer_unschedule_ineligible_then_unhealthy_then_newest() {
    let cluster = Cluster::new(4).await;
    cluster.create_rc(1, 3).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "three", || async { cluster.nodes_of(1).await == names(&[0, 1, 2]) }).await;
    cluster.create_rc(1, 4).await;
    within(2 * SECOND, "four", || async { cluster.nodes_of(1).await.len() == 4 }).await;
    for n in [0, 2, 3] {
        cluster.set_health(&node(n), 1, "passing").await;
    }
    cluster.set_health(&node(1), 1, "critical").await;
    cluster.label_node(&node(0), json!({"pool": "drained"})).await;
    tokio::time::sleep(3 * SECOND).await;
    for (desired, left) in [(3, &[1, 2, 3][..]), (2, &[2, 3]), (1, &[2])] {
        cluster.create_rc(1, desired).await;
        within(2 * SECOND, "one less", || async { cluster.nodes_of(1).await == names(left) }).await;
    }
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_that_comes_free_is_taken() {
    let cluster = Cluster::new(2).await;
    let by_hand = key::intent(&node(0), &pod_id(1));
    cluster.put(by_hand.as_str(), "id: pod-1\nby: hand\n").await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "one", || async { cluster.nodes_of(1).await == names(&[1]) }).await;
    tokio::time::sleep(5 * SECOND).await;
    cluster.delete(by_hand.as_str()).await;
    within(5 * SECOND, "both", || async { cluster.nodes_of(1).await == names(&[0, 1]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn consistency_is_restored_and_audited() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(5 * SECOND).await;
    let key = key::intent(&node(0), &pod_id(1));
    cluster.put(key.as_str(), "id: pod-1\nother: true\n").await;
    let mended = || async { cluster.intent(&node(0), 1).await.as_deref() == Some("id: pod-1\n") };
    within(5 * SECOND, "altered intent restored", mended).await;
    cluster.delete(key.as_str()).await;
    within(5 * SECOND, "deleted intent restored", mended).await;
    let labels = key::pod_labels(&node(1), &pod_id(1));
    let id = rc_id(1);
    let bent = json!({"replication_controller_id": id, "pod_id": "x", "mine": "kept"});
    cluster.put(labels.as_str(), bent.to_string()).await;
    within(5 * SECOND, "labels restored", || async {
        cluster.store.inspect(|t| {
            let value = &t.kv.get(labels.as_str()).unwrap().value;
            let labels: serde_json::Value = serde_json::from_slice(value).unwrap();
            labels["pod_id"] == "pod-1" && labels["mine"] == "kept"
        })
    })
    .await;
    let repairs = cluster.audit().await;
    assert_eq!(repairs.iter().filter(|r| r.event_details["reason"] == "Repair").count(), 3);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_rc_does_not_fix_its_membership_when_static() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 1).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await == names(&[0]) }).await;
    cluster.label_node(&node(0), json!({"pool": "elsewhere"})).await;
    within(3 * SECOND, "said so", || async {
        reason(&cluster, 1, RcConditionType::Placed).await == Some(RcReason::IneligibleNodes)
    })
    .await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0]));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disabled_rc_changes_nothing() {
    let cluster = Cluster::new(5).await;
    cluster.create_rc(1, 3).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    for desired in [5, 1] {
        let mut record = cluster.record(1, desired);
        record["disabled"] = json!(true);
        cluster.write_rc(1, &record).await;
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(cluster.nodes_of(1).await.len(), 3);
        assert_eq!(reason(&cluster, 1, RcConditionType::Scheduled).await, Some(RcReason::Disabled));
    }
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_with_another_id_renames_the_pods_in_place() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(5 * SECOND).await;
    let mut record = cluster.record(1, 2);
    record["manifest"] = json!("id: renamed\n");
    cluster.write_rc(1, &record).await;
    within(5 * SECOND, "renamed", || async {
        cluster.store.inspect(|t| {
            let keys: Vec<_> = t.kv.list("intent/").map(|e| e.key.clone()).collect();
            keys == ["intent/n0000/renamed", "intent/n0001/renamed"]
        })
    })
    .await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_taken_by_somebody_else_is_left_alone() {
    let cluster = Cluster::new(3).await;
    cluster.put("labels/pod/n0000/pod-1", r#"{"pod_id":"pod-1"}"#).await;
    cluster.put("intent/n0001/pod-1", "id: pod-1\nby: hand\n").await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "the free one", || async {
        cluster.nodes_of(1).await == names(&[2])
            && reason(&cluster, 1, RcConditionType::Scheduled).await == Some(RcReason::PlaceTaken)
    })
    .await;
    assert_eq!(cluster.intent(&node(1), 1).await.unwrap(), "id: pod-1\nby: hand\n");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_record_leaves_its_pods() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 2).await;
    cluster.create_rc(2, 1).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    cluster.delete(key::rc(rc_id(1))).await;
    within(3 * SECOND, "released", || async { farm.claims() == 1 }).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await.len(), 2);
    assert_eq!(cluster.owner(1).await, None);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bad_records_keys_and_labels_harm_only_themselves() {
    let cluster = Cluster::new(3).await;
    cluster.put("replication_controllers/not-a-uuid", "{}").await;
    cluster.put("labels/node/n0001", "nonsense").await;
    cluster.put("labels/pod/n0002/other", "nonsense").await;
    cluster.put(key::rc(rc_id(9)), "{").await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "the good one", || async { cluster.nodes_of(1).await == names(&[0, 2]) })
        .await;
    within(3 * SECOND, "said so", || async {
        reason(&cluster, 9, RcConditionType::Valid).await == Some(RcReason::InvalidRecord)
    })
    .await;
    assert_eq!(farm.claims(), 2);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_suddenly_empty_node_tree_removes_and_moves_nothing() {
    let cluster = Cluster::new(6).await;
    let mut record = cluster.record(1, 3);
    record["allocation_strategy"] = json!("dynamic_strategy");
    cluster.write_rc(1, &record).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    let labels: Vec<_> = (0..6).map(|n| key::node_labels(&node(n))).collect();
    for label in &labels {
        cluster.delete(label.as_str()).await;
    }
    record["replicas_desired"] = json!(1);
    cluster.write_rc(1, &record).await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await.len(), 3, "nothing is removed on a doubtful view");
    assert_eq!(
        reason(&cluster, 1, RcConditionType::Scheduled).await,
        Some(RcReason::SuspiciousTree)
    );
    cluster.put("rcfarm/bell/confirm/a", "yes").await;
    within(5 * SECOND, "confirmed", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    farm.stop().await;
}

/// Panics, hangs or fails for one controller; serves the others.
struct Vicious {
    victim: rcfarm_api::ids::RcId,
    how: &'static str,
}

#[async_trait::async_trait]
impl rcfarm::placement::Scheduler for Vicious {
    async fn eligible_nodes(
        &self,
        request: rcfarm::placement::ScheduleRequest<'_>,
    ) -> Result<rcfarm::placement::EligibleNodes, rcfarm::placement::ScheduleError> {
        if request.rc == self.victim {
            match self.how {
                "panic" => panic!("no plan for you"),
                "hang" => std::future::pending().await,
                _ => return Err(rcfarm::placement::ScheduleError::BadAnswer("no".to_owned())),
            }
        }
        Ok(std::sync::Arc::new((0..3).map(node).collect()))
    }

    async fn allocate_nodes(
        &self,
        _: rcfarm::placement::WantedNodes<'_>,
    ) -> Result<Vec<rcfarm_api::ids::NodeName>, rcfarm::placement::ScheduleError> {
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_hanging_and_failing_plans_harm_only_their_record() {
    for how in ["panic", "hang", "fail"] {
        let mut cluster = Cluster::new(3).await;
        cluster.scheduler = Some(std::sync::Arc::new(Vicious { victim: rc_id(1), how }));
        for n in 0..5 {
            cluster.create_rc(n, 2).await;
        }
        let farm = cluster.start("a");
        within(3 * SECOND, "the others", || async {
            for n in [0, 2, 3, 4] {
                if cluster.nodes_of(n).await.len() != 2 {
                    return false;
                }
            }
            true
        })
        .await;
        assert_eq!((farm.claims(), cluster.nodes_of(1).await.len()), (5, 0), "{how}");
        if how == "panic" {
            within(3 * SECOND, "said so", || async {
                let status = cluster.status(1).await.unwrap_or_default();
                status.quarantined_until.is_some()
                    && status.last_error.is_some_and(|e| e.contains("no plan for you"))
            })
            .await;
        }
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn full_transaction_has_room_for_audit_of_long_names() {
    let cluster = Cluster::new(0).await;
    // As many nodes as an audit record lists, with the longest names, and manifests that leave little space.
    for n in 0..128 {
        let node = format!("n{n:03}-{}", "x".repeat(195)).parse().unwrap();
        cluster.label_node(&node, json!({"pool": "web"})).await;
    }
    let mut record = cluster.record(1, 128);
    record["manifest"] = json!(format!("id: pod-1\n# {}\n", "x".repeat(14_000)));
    cluster.write_rc(1, &record).await;
    let farm = cluster.start("a");
    within(10 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 128 }).await;
    farm.stop().await;
}
