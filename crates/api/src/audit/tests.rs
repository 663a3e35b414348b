use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::ids::{NodeName, RcId};
use crate::labels::Labels;
use crate::{Index, Stored, Timestamp};

fn rc(n: u8) -> RcId {
    RcId(Uuid::from_u128(u128::from(n)))
}

fn node(n: u8) -> NodeName {
    format!("n{n}").parse().unwrap()
}

fn nodes(numbers: &[u8]) -> Vec<NodeName> {
    numbers.iter().map(|n| node(*n)).collect()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn user() -> Actor {
    Actor::User { name: "alice".to_owned() }
}

fn retarget(id: u8, before: &[u8], added: &[u8], removed: &[u8]) -> Retarget {
    let mut after: BTreeSet<NodeName> = nodes(before).into_iter().collect();
    after.extend(nodes(added));
    after.retain(|node| !nodes(removed).contains(node));
    Retarget {
        pod_id: "web".parse().unwrap(),
        availability_zone: "az1".to_owned(),
        cluster_name: "prod".to_owned(),
        nodes: Retarget::listed(after.iter().collect::<Vec<_>>().into_iter()),
        replication_controller_id: rc(id),
        farm: Some("f1".parse().unwrap()),
        actor: Actor::Farm,
        reason: "Scaling".to_owned(),
        nodes_added: nodes(added),
        nodes_removed: nodes(removed),
        nodes_repaired: Vec::new(),
        desired_before: None,
        desired_after: 3,
        count: after.len(),
    }
}

fn transfer() -> NodeTransfer {
    NodeTransfer {
        node_transfer_id: Uuid::from_u128(9),
        replication_controller_id: rc(1),
        pod_id: "web".parse().unwrap(),
        availability_zone: String::new(),
        cluster_name: String::new(),
        replication_controller_node_selector: "role=web".to_owned(),
        old_node: node(1),
        new_node: Some(node(2)),
        replica_count: 3,
        rollback_reason: None,
        farm: Some("f1".parse().unwrap()),
    }
}

fn change(id: u8, desired_after: Option<i64>) -> ControllerChange {
    ControllerChange {
        replication_controller_id: rc(id),
        pod_id: Some("web".parse().unwrap()),
        availability_zone: "az1".to_owned(),
        cluster_name: "prod".to_owned(),
        actor: user(),
        reason: "Requested".to_owned(),
        desired_before: None,
        desired_after,
        record: None,
        changed: Vec::new(),
        orphans: Vec::new(),
    }
}

fn node_change() -> NodeChange {
    NodeChange {
        node: node(1),
        actor: Actor::User { name: "alice".to_owned() },
        reason: "Requested".to_owned(),
        drain_deadline: None,
        pods: Vec::new(),
    }
}

fn removed(id: u8, from: &[u8]) -> OrphansRemoved {
    OrphansRemoved {
        replication_controller_id: rc(id),
        pod_id: "web".parse().unwrap(),
        nodes: nodes(from),
        actor: user(),
        reason: "Requested".to_owned(),
    }
}

fn logged(position: u64, details: &Details) -> Logged {
    let record = AuditRecord::new(details, at(i64::try_from(position).unwrap()));
    Logged { id: Uuid::from_u128(u128::from(position)), index: Index(position), record }
}

fn log(events: &[Details]) -> Vec<Logged> {
    (1..).zip(events).map(|(position, details)| logged(position, details)).collect()
}

fn state(folded: &Folded, id: u8) -> Option<(Option<Vec<String>>, Option<i64>)> {
    let controller = folded.controllers.get(&rc(id))?;
    let names = |nodes: &BTreeSet<NodeName>| nodes.iter().map(ToString::to_string).collect();
    Some((controller.nodes.as_ref().map(names), controller.desired))
}

fn names(numbers: &[u8]) -> Option<Vec<String>> {
    Some(numbers.iter().map(|n| format!("n{n}")).collect())
}

fn queue_change() -> QueueChange {
    QueueChange {
        queue: "research".parse().unwrap(),
        actor: user(),
        reason: "Requested".to_owned(),
        farm: Some("f1".parse().unwrap()),
        before: None,
        after: Some(json!({"weight": 2})),
    }
}

#[test]
fn every_event_type_round_trips() {
    let labels = Labels::from([("a".to_owned(), "b".to_owned())]);
    let all = [
        Details::Retarget(retarget(1, &[1], &[2], &[1])),
        Details::NodeTransferStart(transfer()),
        Details::NodeTransferCompletion(transfer()),
        Details::NodeTransferRollback(NodeTransfer {
            rollback_reason: Some("AllocationFailed".to_owned()),
            new_node: None,
            ..transfer()
        }),
        Details::ControllerCreated(change(1, Some(3))),
        Details::ControllerScaled(change(1, Some(5))),
        Details::ControllerUpdated(ControllerChange {
            changed: vec!["manifest".to_owned()],
            ..change(1, Some(5))
        }),
        Details::ControllerEnabled(change(1, Some(5))),
        Details::ControllerDisabled(change(1, Some(5))),
        Details::ControllerDeleted(ControllerChange { orphans: nodes(&[1]), ..change(1, None) }),
        Details::LabelsChanged(LabelsChange {
            kind: "pod".to_owned(),
            id: "n1/web".to_owned(),
            actor: Actor::RollingUpdate,
            reason: "Requested".to_owned(),
            set: labels.clone(),
            removed: labels,
        }),
        Details::OrphansRemoved(removed(1, &[1, 2])),
        Details::NodeDrained(NodeChange { drain_deadline: Some(at(9)), ..node_change() }),
        Details::NodeUndrained(node_change()),
        Details::NodeRemoved(NodeChange { pods: vec!["web".parse().unwrap()], ..node_change() }),
        Details::DeletionConfirmed(DeletionConfirmed {
            farm: "f1".parse().unwrap(),
            actor: user(),
            reason: "Requested".to_owned(),
            suspicions: vec!["labels/pod/ lost 90 of 100 keys".to_owned()],
        }),
        Details::ChangeAcknowledged(ChangeAcknowledged {
            record: Some("0".to_owned()),
            replication_controller_id: rc(1),
            actor: user(),
            reason: "Requested".to_owned(),
            nodes: [node(1)].into(),
            desired_after: None,
            differences: vec!["no record".to_owned()],
        }),
        Details::QueueCreated(queue_change()),
        Details::QueueChanged(queue_change()),
        Details::QueueDeleted(QueueChange { after: None, farm: None, ..queue_change() }),
        Details::PriorityClassChanged(PriorityClassChange {
            priority_class: "high".parse().unwrap(),
            actor: user(),
            reason: "Requested".to_owned(),
            before: None,
            after: Some(json!({"value": 1000})),
        }),
        Details::JobTypeChanged(JobTypeChange::sample(user())),
        {
            let (reason, after) = ("Requested".to_owned(), Some(json!({"physicalCluster": {}})));
            Details::CellsChanged(CellsChange { actor: user(), reason, before: None, after })
        },
        Details::GroupsOrdered(GroupsOrdered {
            scheduler: "default".parse().unwrap(),
            farm: "f1".parse().unwrap(),
            actor: Actor::Farm,
            groups: vec![GroupChange {
                group: "team-a/mnist".parse().unwrap(),
                queue: Some("research".parse().unwrap()),
                from: None,
                to: Some("Inqueue".to_owned()),
                placement: Some("Bound".to_owned()),
                reason: "AsDesired".to_owned(),
                preemptor: None,
                promised: 4,
                released: 0,
            }],
        }),
        Details::JobStep(JobStep {
            job: "default/mnist".parse().unwrap(),
            uid: Index(7),
            actor: Actor::Farm,
            farm: Some("f1".parse().unwrap()),
            asked: Some("RestartJob".to_owned()),
            command: Some(Uuid::from_u128(4)),
            phase_before: "Running".to_owned(),
            phase: "Restarting".to_owned(),
            reason: "CommandIssued".to_owned(),
            message: String::new(),
            version: 1,
            retry_count: 0,
            pods_added: vec!["worker-0@n1".to_owned()],
            pods_removed: Vec::new(),
            pods_adopted: vec!["worker-1@n1".to_owned()],
            pods_released: vec!["web@n2".to_owned()],
        }),
        Details::JobChanged(JobChange {
            job: "default/mnist".parse().unwrap(),
            actor: Actor::User { name: "me".to_owned() },
            action: "Created".to_owned(),
            reason: String::new(),
            command: None,
            record: None,
            step: None,
        }),
        Details::RecordStep(RecordStep {
            jobs_created: vec!["nightly-29000000".to_owned()],
            ..serde_json::from_value(
                json!({"kind": "CronJob", "record": "default/nightly", "uid": 7,
                "actor": "farm", "farm": "f1", "reason": "Scheduled", "jobs_created": []}),
            )
            .unwrap()
        }),
        Details::RecordChanged(RecordChange {
            kind: "CronJob".to_owned(),
            record: "default/nightly".parse().unwrap(),
            actor: user(),
            action: "Created".to_owned(),
            hash: Some("0".to_owned()),
        }),
        Details::Checkpoint(Checkpoint {
            set: Uuid::from_u128(3),
            part: 0,
            parts: 1,
            through: Index(17),
            controllers: BTreeMap::from([
                (rc(1), FoldedController { nodes: None, desired: Some(1), record: None }),
                (
                    rc(2),
                    FoldedController {
                        nodes: Some([node(1)].into()),
                        desired: None,
                        record: Some("0".to_owned()),
                    },
                ),
            ]),
        }),
        Details::Other(EventType::Other("ROLLING_UPDATE_CREATION".to_owned()), json!({"a": [1]})),
    ];
    let events: BTreeSet<EventType> = all.iter().map(Details::event_type).collect();
    assert!(
        EventType::OURS.iter().all(|event| events.contains(event)),
        "an event has no case here"
    );
    for details in all {
        let record = AuditRecord::new(&details, at(1));
        let stored = serde_json::to_vec(&record).unwrap();
        let read = AuditRecord::decode(&stored).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.details().unwrap(), details);
        assert_eq!(read.event_type, details.event_type());
    }
}

#[test]
fn the_envelope_is_p2s() {
    let details = Details::Retarget(retarget(1, &[1], &[2], &[]));
    let text = serde_json::to_string(&AuditRecord::new(&details, at(0))).unwrap();
    assert!(
        text.starts_with(r#"{"event_type":"REPLICATION_CONTROLLER_RETARGET","event_details":{"#)
    );
    assert!(
        text.ends_with(r#"},"timestamp":"2023-11-14T22:13:20Z","schema_version":1}"#),
        "{text}"
    );
    let json: Value = serde_json::from_str(&text).unwrap();
    let details = &json["event_details"];
    assert_eq!(details["nodes"], json!(["n1", "n2"]));
    assert_eq!((&details["pod_id"], &details["cluster_name"]), (&json!("web"), &json!("prod")));
    assert_eq!((&details["actor"], &details["nodes_added"]), (&json!("farm"), &json!(["n2"])));
}

#[test]
fn a_record_of_p2_is_read() {
    let stored = br#"{"event_type":"REPLICATION_CONTROLLER_RETARGET","event_details":{"pod_id":"hello","availability_zone":"az1","cluster_name":"prod","nodes":null},"timestamp":"2019-12-31T16:00:00.123456789-08:00","schema_version":1}"#;
    let record = AuditRecord::decode(stored).unwrap();
    assert_eq!(record.timestamp.to_string(), "2020-01-01T00:00:00.123456789Z");
    assert!(matches!(record.details().unwrap(), Details::Other(EventType::Retarget, _)));
}

#[test]
fn what_cannot_be_understood_says_so() {
    assert!(AuditRecord::decode(b"{}").unwrap_err().to_string().contains("`event_type`"));
    let stored = br#"{"event_type":"REPLICATION_CONTROLLER_SCALED","event_details":{"replication_controller_id":7},"timestamp":"2020-01-01T00:00:00Z","schema_version":1}"#;
    let error = AuditRecord::decode(stored).unwrap().details().unwrap_err().to_string();
    assert!(error.contains("REPLICATION_CONTROLLER_SCALED"), "{error}");
}

#[test]
fn long_sets_are_not_listed() {
    let many: Vec<NodeName> =
        (0..=NODES_LISTED).map(|n| format!("n{n}").parse().unwrap()).collect();
    assert_eq!(Retarget::listed(many.iter()), None);
    assert_eq!(Retarget::listed(many[1..].iter()).unwrap().len(), NODES_LISTED);
}

#[test]
fn actors_are_words() {
    for actor in [Actor::Farm, Actor::RollingUpdate, Actor::User { name: "a:b c".to_owned() }] {
        assert_eq!(actor.to_string().parse::<Actor>().unwrap(), actor);
    }
    assert!("somebody".parse::<Actor>().is_err());
}

#[test]
fn folding_follows_a_controllers_life() {
    let events = [
        Details::ControllerCreated(change(1, Some(2))),
        Details::Retarget(retarget(1, &[], &[1, 2], &[])),
        Details::ControllerScaled(change(1, Some(1))),
        Details::Retarget(Retarget { desired_after: 1, ..retarget(1, &[1, 2], &[], &[2]) }),
        Details::ControllerDeleted(ControllerChange { orphans: nodes(&[1]), ..change(1, None) }),
        Details::OrphansRemoved(removed(1, &[1])),
    ];
    let expected = [
        Some((names(&[]), Some(2))),
        Some((names(&[1, 2]), Some(3))),
        Some((names(&[1, 2]), Some(1))),
        Some((names(&[1]), Some(1))),
        Some((names(&[1]), None)),
        None,
    ];
    for (count, expected) in (1..).zip(expected) {
        let folded = fold(&log(&events[..count]));
        assert_eq!(state(&folded, 1), expected, "after {count} events");
        assert_eq!(folded.gaps, [], "after {count} events");
    }
}

#[test]
fn the_order_is_that_of_the_indexes() {
    let mut log = log(&[
        Details::Retarget(retarget(1, &[], &[1], &[])),
        Details::Retarget(retarget(1, &[1], &[2], &[1])),
    ]);
    // The second farm's clock is an hour behind, so its key sorts first.
    log[1].id = Uuid::nil();
    log[1].record.timestamp = at(-3600);
    log.reverse();
    assert_eq!(state(&fold(&log), 1), Some((names(&[2]), Some(3))));
}

#[test]
fn a_record_that_does_not_follow_is_a_gap_and_the_list_counts() {
    let folded = fold(&log(&[
        Details::Retarget(retarget(1, &[], &[1], &[])),
        Details::Retarget(retarget(1, &[1, 5], &[2], &[])),
    ]));
    assert_eq!(state(&folded, 1), Some((names(&[1, 2, 5]), Some(3))));
    assert_eq!(folded.gaps.len(), 1);
    assert_eq!(
        (folded.gaps[0].record, folded.gaps[0].controller),
        (Uuid::from_u128(2), Some(rc(1)))
    );
}

#[test]
fn without_a_list_the_differences_count() {
    let unlisted = |retarget: Retarget| Details::Retarget(Retarget { nodes: None, ..retarget });
    let events =
        [unlisted(retarget(1, &[], &[1, 2], &[])), unlisted(retarget(1, &[1, 2], &[3], &[1]))];
    let folded = fold(&log(&events));
    assert_eq!((state(&folded, 1), folded.gaps), (Some((names(&[2, 3]), Some(3))), vec![]));

    let torn = [events[0].clone(), unlisted(retarget(1, &[1, 2, 4], &[3], &[]))];
    assert_eq!(fold(&log(&torn)).gaps.len(), 1);
}

#[test]
fn what_p2_placed_is_unknown_until_a_record_lists_it() {
    let p2 = Details::Other(EventType::Retarget, json!({"pod_id": "web", "nodes": ["n1"]}));
    let scaled = Details::ControllerScaled(change(1, Some(2)));
    let before = fold(&log(&[p2.clone(), scaled.clone()]));
    assert_eq!((state(&before, 1), before.unattributed), (Some((None, Some(2))), 1));
    let actual = BTreeMap::from([(rc(1), Actual { nodes: [node(1)].into(), desired: Some(2) })]);
    assert_eq!(compare(&before, &actual), [Difference::NotInLog { controller: rc(1) }]);

    let after = fold(&log(&[p2, scaled, Details::Retarget(retarget(1, &[1], &[2], &[]))]));
    assert_eq!((state(&after, 1), after.gaps), (Some((names(&[1, 2]), Some(3))), vec![]));
}

#[test]
fn an_undecodable_record_is_a_gap_and_harms_no_other() {
    let mut log = log(&[
        Details::Retarget(retarget(1, &[], &[1], &[])),
        Details::Retarget(retarget(2, &[], &[2], &[])),
    ]);
    log[0].record.event_details["nodes"] = json!("n1");
    let folded = fold(&log);
    assert_eq!(state(&folded, 2), Some((names(&[2]), Some(3))));
    assert!(folded.gaps[0].what.contains("REPLICATION_CONTROLLER_RETARGET"), "{:?}", folded.gaps);
}

#[test]
fn a_comparison_names_each_difference() {
    let folded = fold(&log(&[
        Details::ControllerCreated(change(1, Some(1))),
        Details::Retarget(retarget(2, &[], &[1, 2], &[])),
        Details::Retarget(retarget(3, &[], &[3], &[])),
        Details::Retarget(retarget(4, &[], &[], &[])),
    ]));
    let actual = BTreeMap::from([
        (rc(1), Actual { nodes: BTreeSet::new(), desired: Some(1) }),
        (rc(2), Actual { nodes: [node(2), node(4)].into(), desired: Some(3) }),
        (rc(3), Actual { nodes: [node(3)].into(), desired: Some(9) }),
        (rc(5), Actual { nodes: [node(5)].into(), desired: Some(1) }),
    ]);
    let words: Vec<String> = compare(&folded, &actual).iter().map(ToString::to_string).collect();
    let expected = [
        format!(
            "{}: the log has pods on n1, which are not stored; \
             there are pods on n4, which the log does not have",
            rc(2)
        ),
        format!("{}: the log says a count of 3, stored is a count of 9", rc(3)),
        format!("{}: the log says a count of 3, stored is no record", rc(4)),
        format!("{}: the log does not say where its pods are", rc(5)),
    ];
    assert_eq!(words, expected);
}

/// The log after the checkpoints and the first `deletions` deletions of a plan.
fn carry_out(log: &[Logged], plan: &PrunePlan, deletions: usize, now: Timestamp) -> Vec<Logged> {
    let mut after: Vec<Logged> =
        log.iter().filter(|l| !plan.delete[..deletions].contains(&l.id)).cloned().collect();
    let newest = log.iter().map(|l| l.index.0).max().unwrap_or(0);
    for (n, part) in (1..).zip(&plan.checkpoints) {
        after.push(Logged {
            id: Uuid::from_u128((1 << 100) + u128::from(newest + n)),
            index: Index(newest + n),
            record: AuditRecord::new(&Details::Checkpoint(part.clone()), now),
        });
    }
    after
}

#[test]
fn nothing_old_means_nothing_to_do() {
    let log = log(&[Details::Retarget(retarget(1, &[], &[1], &[]))]);
    assert_eq!(prune_plan(&log, at(1), Uuid::nil()), PrunePlan::default());
    let pruned = carry_out(&log, &prune_plan(&log, at(2), Uuid::nil()), 1, at(100));
    // The checkpoint itself is old by now, but nothing supersedes it.
    assert_eq!(prune_plan(&pruned, at(1000), Uuid::nil()), PrunePlan::default());
}

#[test]
fn an_incomplete_checkpoint_does_not_count() {
    let many: Vec<Details> = (0..=255)
        .map(|id| {
            let mut retarget = retarget(id, &[], &[], &[]);
            let nodes = (0..100u8).map(|n| format!("a-rather-long-name-{n}").parse().unwrap());
            retarget.nodes_added = nodes.collect();
            retarget.nodes = Some(retarget.nodes_added.clone());
            retarget.count = 100;
            Details::Retarget(retarget)
        })
        .collect();
    let log = log(&many);
    let plan = prune_plan(&log, at(1000), Uuid::nil());
    assert!(plan.checkpoints.len() > 1);
    for part in &plan.checkpoints {
        assert!(serde_json::to_vec(part).unwrap().len() < 128 * 1024);
    }
    let mut torn = carry_out(&log, &plan, 0, at(2000));
    torn.pop();
    assert_eq!(fold(&torn).controllers, fold(&log).controllers);
    let whole = carry_out(&log, &plan, plan.delete.len(), at(2000));
    assert_eq!(whole.len(), plan.checkpoints.len());
    assert_eq!(fold(&whole).controllers, fold(&log).controllers);
}

#[test]
fn a_pruned_log_survives_being_imported_into_another_cluster() {
    let log = log(&[
        Details::Retarget(retarget(1, &[], &[1], &[])),
        Details::Retarget(retarget(1, &[1], &[2], &[])),
        Details::Retarget(retarget(2, &[], &[7], &[])),
    ]);
    let plan = prune_plan(&log, at(3), Uuid::nil());
    let mut pruned = carry_out(&log, &plan, plan.delete.len(), at(100));
    for (index, logged) in (0..).zip(&mut pruned) {
        logged.index = Index(index + 1);
    }
    // The checkpoint (through 2) stands at 2 now, the newest retarget at 1.
    assert_eq!(fold(&pruned).controllers, fold(&log).controllers);
}

#[derive(Debug, Clone)]
enum Step {
    Place(u8, u8),
    Remove(u8, u8),
    Scale(u8, i64),
    Delete(u8),
    Sweep(u8),
    Labels,
    P2,
}

fn step() -> impl Strategy<Value = Step> {
    let (id, node) = (0..4u8, 0..6u8);
    prop_oneof![
        4 => (id.clone(), node.clone()).prop_map(|(id, n)| Step::Place(id, n)),
        3 => (id.clone(), node).prop_map(|(id, n)| Step::Remove(id, n)),
        2 => (id.clone(), 0..9i64).prop_map(|(id, n)| Step::Scale(id, n)),
        1 => id.clone().prop_map(Step::Delete),
        1 => id.prop_map(Step::Sweep),
        1 => Just(Step::Labels),
        1 => Just(Step::P2),
    ]
}

/// Applies steps to a state and writes their log as farms and commands do.
fn run(steps: &[Step], is_listed: bool) -> (Vec<Logged>, BTreeMap<RcId, Actual>) {
    let mut actual: BTreeMap<RcId, Actual> = BTreeMap::new();
    let mut events = Vec::new();
    for step in steps {
        let (id, added, gone) = match *step {
            Step::Place(id, n) => (id, vec![n], vec![]),
            Step::Remove(id, n) => (id, vec![], vec![n]),
            Step::Scale(id, count) => {
                let record = actual.entry(rc(id)).or_default();
                let change = change(id, Some(count));
                events.push(match record.desired.replace(count) {
                    None => Details::ControllerCreated(change),
                    Some(_) => Details::ControllerScaled(change),
                });
                continue;
            }
            Step::Delete(id) => {
                if let Some(record) = actual.get_mut(&rc(id)).filter(|r| r.desired.is_some()) {
                    record.desired = None;
                    let orphans = record.nodes.iter().cloned().collect();
                    let change = ControllerChange { orphans, ..change(id, None) };
                    events.push(Details::ControllerDeleted(change));
                }
                continue;
            }
            Step::Sweep(id) => {
                if let Some(record) = actual.get_mut(&rc(id)).filter(|r| r.desired.is_none()) {
                    let nodes = std::mem::take(&mut record.nodes).into_iter().collect();
                    events.push(Details::OrphansRemoved(OrphansRemoved {
                        nodes,
                        ..removed(id, &[])
                    }));
                }
                continue;
            }
            Step::Labels => {
                events.push(Details::Other(EventType::Other("X".to_owned()), json!({})));
                continue;
            }
            Step::P2 => {
                events.push(Details::Other(EventType::Retarget, json!({"nodes": ["n1"]})));
                continue;
            }
        };
        let Some(record) = actual.get_mut(&rc(id)) else { continue };
        let Some(desired_after) = record.desired else { continue };
        record.nodes.extend(nodes(&added));
        record.nodes.retain(|node| !nodes(&gone).contains(node));
        let listed = Retarget::listed(record.nodes.iter()).filter(|_| is_listed);
        let count = record.nodes.len();
        let retarget = retarget(id, &[], &added, &gone);
        events.push(Details::Retarget(Retarget {
            nodes: listed,
            count,
            desired_after,
            ..retarget
        }));
    }
    actual.retain(|_, record| record.desired.is_some() || !record.nodes.is_empty());
    (log(&events), actual)
}

proptest! {
    #[test]
    fn invariant_15_folding_the_log_gives_the_state(
        steps in prop::collection::vec(step(), 0..60),
        is_listed: bool,
    ) {
        let (log, actual) = run(&steps, is_listed);
        let folded = fold(&log);
        prop_assert_eq!(compare(&folded, &actual), []);
        prop_assert_eq!(folded.gaps, []);
    }

    #[test]
    fn pruning_changes_nothing_that_the_log_says(
        steps in prop::collection::vec(step(), 1..60),
        clock_errors in prop::collection::vec(-20..20i64, 60),
        cuts in prop::collection::vec((0..80i64, 0.0..=1.0f64), 1..4),
    ) {
        let (mut log, _) = run(&steps, true);
        for (logged, error) in log.iter_mut().zip(&clock_errors) {
            logged.record.timestamp = at(i64::try_from(logged.index.0).unwrap() + error);
        }
        let before = fold(&log);
        let recent = |log: &[Logged], cut| -> BTreeSet<Uuid> {
            let is_kept = |l: &&Logged| {
                l.record.timestamp >= at(cut) && l.record.event_type != EventType::Checkpoint
            };
            log.iter().filter(is_kept).map(|l| l.id).collect()
        };
        for (n, (cut, share)) in (1..).zip(cuts) {
            let plan = prune_plan(&log, at(cut), Uuid::from_u128(n));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let deletions = (plan.delete.len() as f64 * share) as usize; // a crash in the middle
            let pruned = carry_out(&log, &plan, deletions, at(cut + 10));
            prop_assert_eq!(&fold(&pruned).controllers, &before.controllers);
            prop_assert_eq!(recent(&pruned, cut), recent(&log, cut), "something recent was deleted");
            log = pruned;
        }
    }
}
