//! Faults on a real cluster, for about a minute; and tests of the verdict with wrong histories.

use std::time::Duration;

use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{Actor, AuditRecord, ControllerChange, Details, Logged, Retarget};
use rcfarm_api::ids::{NodeName, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::rc::spec::RcRecord;
use rcfarm_api::rc::status::{RcConditionType, RcOwner, RcReason, RcStatus, Replicas};
use rcfarm_store::{Entry, Index};
use uuid::Uuid;

use crate::faults::history::History;
use crate::faults::load::{Effect, Write, WriteAnswer};
use crate::faults::verdict::{Rest, judge};
use crate::faults::{Floors, Run};

/// With the cluster's start and end the test takes about a minute.
const LENGTH: Duration = Duration::from_secs(40);
/// Minimum counts. Below them it runs longer, up to [`AT_MOST`].
const FLOORS: Floors =
    Floors { faults: 5, applied: 50, transitions: 20, pods: 50, holder_seen: 100 };
const AT_MOST: Duration = Duration::from_secs(300);
/// Order of the faults; set by `FAULT_SEED`.
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn invariants_1_15_27_hold_on_a_cluster_under_faults() {
    let scratch =
        tempfile::TempDir::with_prefix_in("faults-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let run = Run {
        seed: std::env::var("FAULT_SEED").map_or(SEED, |seed| seed.parse().unwrap()),
        length: LENGTH,
        floors: FLOORS,
        at_most: AT_MOST,
        rcfarm: env!("CARGO_BIN_EXE_rcfarm").into(),
        scratch: scratch.path().into(),
    };
    let report = run.make().await;
    println!("seed {}\n{report}", run.seed);
    let verdict = &report.verdict;
    if !verdict.violations.is_empty() {
        let kept = scratch.keep();
        let what = verdict.violations.join("\n");
        panic!("seed {}, logs in {}:\n{what}", run.seed, kept.display());
    }
    assert!(FLOORS.are_reached(&report.injected, verdict), "not enough was tried:\n{report}");
}

const FARM: &str = "a-1";

/// A correct history: a controller is created, scheduled by its owner, and left unchanged.
struct Scene {
    history: History,
    writes: Vec<Write>,
    rest: Rest,
}

fn id() -> RcId {
    RcId(Uuid::from_u128(7))
}

fn record(replicas: i64, disabled: bool) -> RcRecord {
    let text = format!(
        r#"{{"id":"{}","manifest":"id: web\n","node_selector":"pool=web","pod_labels":null,"replicas_desired":{replicas},"disabled":{disabled}}}"#,
        id()
    );
    RcRecord::decode(text.as_bytes()).unwrap()
}

fn entry(key: &str, value: impl Into<bytes::Bytes>, index: u64, session: Option<&str>) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.into(),
        flags: 0,
        session: session.map(SessionId::from),
        lock_index: 1,
        create_index: Index(index),
        modify_index: Index(index),
    }
}

fn logged(id: u128, index: u64, details: &Details) -> Logged {
    let record = AuditRecord::new(details, Timestamp::UNIX_EPOCH);
    Logged { id: Uuid::from_u128(id), index: Index(index), record }
}

fn created() -> Details {
    Details::ControllerCreated(ControllerChange {
        replication_controller_id: id(),
        pod_id: None,
        availability_zone: String::new(),
        cluster_name: String::new(),
        actor: Actor::User { name: "x".to_owned() },
        reason: "Requested".to_owned(),
        desired_before: None,
        desired_after: Some(1),
        record: None,
        changed: Vec::new(),
        orphans: Vec::new(),
    })
}

fn retarget() -> Retarget {
    let n1: NodeName = "n1".parse().unwrap();
    Retarget {
        pod_id: "web".parse().unwrap(),
        availability_zone: String::new(),
        cluster_name: String::new(),
        nodes: Some(vec![n1.clone()]),
        replication_controller_id: id(),
        farm: Some(FARM.parse().unwrap()),
        actor: Actor::Farm,
        reason: "ScaleUp".to_owned(),
        nodes_added: vec![n1],
        nodes_removed: Vec::new(),
        nodes_repaired: Vec::new(),
        desired_before: Some(0),
        desired_after: 1,
        count: 1,
    }
}

fn status() -> RcStatus {
    let now = Timestamp::UNIX_EPOCH;
    let mut status = RcStatus {
        observed_index: Index(10),
        revision: 1,
        replicas: Replicas { desired: 1, current: 1, healthy: 0, eligible: 1 },
        owner: Some(RcOwner { farm: FARM.parse().unwrap(), since: now }),
        ..RcStatus::default()
    };
    for kind in [RcConditionType::Valid, RcConditionType::Scheduled, RcConditionType::Placed] {
        status.set_condition(kind, true, RcReason::AsDesired, String::new(), now);
    }
    status
}

fn scene() -> Scene {
    let value = record(1, false).encode();
    let labels = format!(r#"{{"pod_id":"web","replication_controller_id":"{}"}}"#, id());
    let (label, intent) = ("labels/pod/n1/web".to_owned(), "intent/n1/web".to_owned());
    let mut history = History::default();
    let lock = entry(key::rc_lock(id()).as_str(), FARM, 11, Some("s1"));
    history.saw_lock(&lock, Index(20));
    history.labels.insert((label.clone(), Index(14)), labels.clone().into());
    history.intents.insert((intent.clone(), Index(14)), "id: web\n".into());
    history.statuses.entry(id()).or_default().insert(Index(14), status());
    let effect = Effect { key: key::rc(id()), base: Index::ZERO, value: Some(value.clone()) };
    let write = Write {
        what: "create",
        audit: Uuid::from_u128(1),
        effects: vec![effect],
        told: WriteAnswer::Applied(Index(10)),
    };
    let rest = Rest {
        of_users: vec![entry(key::rc(id()).as_str(), value, 10, None)],
        labels: vec![entry(&label, labels, 14, None)],
        intents: vec![entry(&intent, "id: web\n", 14, None)],
        statuses: vec![entry(key::rc_status(id()).as_str(), status().encode(), 14, None)],
        audit: vec![logged(1, 10, &created()), logged(2, 14, &Details::Retarget(retarget()))],
    };
    Scene { history, writes: vec![write], rest }
}

fn violations(scene: &Scene) -> Vec<String> {
    judge(&scene.history, &scene.writes, &scene.rest).violations
}

#[test]
fn a_right_history_is_right() {
    let scene = scene();
    assert_eq!(violations(&scene), [""; 0]);
    let verdict = judge(&scene.history, &scene.writes, &scene.rest);
    assert_eq!((verdict.transitions, verdict.statuses, verdict.pods), (1, 1, 2));
    assert_eq!((verdict.holder_seen, verdict.applied), (2, 1));
}

type Wrong = fn(&mut Scene);

/// Wrong histories, each with a part of the expected message.
#[test]
fn a_wrong_history_is_found_out() {
    fn retargeted(scene: &mut Scene, change: fn(&mut Retarget)) {
        let mut wrong = retarget();
        change(&mut wrong);
        scene.rest.audit[1] = logged(2, 14, &Details::Retarget(wrong));
    }
    fn another_write(scene: &mut Scene, base: u64, told: WriteAnswer) {
        let value = record(1, true).encode();
        let effect = Effect { key: key::rc(id()), base: Index(base), value: Some(value.clone()) };
        let audit = Uuid::from_u128(3);
        scene.writes.push(Write { what: "switch", audit, effects: vec![effect], told });
        scene.rest.audit.insert(1, logged(3, 12, &created()));
        scene.rest.of_users[0] = entry(key::rc(id()).as_str(), value, 12, None);
    }
    let wrongs: [(&str, Wrong); 18] = [
        ("while b-1 held the lock", |s| {
            let lock = entry(key::rc_lock(id()).as_str(), "b-1", 13, Some("s2"));
            s.history.saw_lock(&lock, Index(15));
        }),
        ("held by s1 and by s2", |s| {
            let lock = entry(key::rc_lock(id()).as_str(), "b-1", 11, Some("s2"));
            s.history.saw_lock(&lock, Index(15));
        }),
        ("acknowledged at 10, the log has it at None", |s| drop(s.rest.audit.remove(0))),
        ("acknowledged at 9", |s| s.writes[0].told = WriteAnswer::Applied(Index(9))),
        ("was said not to be applied (Refused)", |s| s.writes[0].told = WriteAnswer::Refused),
        ("was said not to be applied (NotApplied)", |s| s.writes[0].told = WriteAnswer::NotApplied),
        ("replaced 9, but 10 stood there", |s| another_write(s, 9, WriteAnswer::Unknown)),
        ("changed while disabled", |s| another_write(s, 10, WriteAnswer::Applied(Index(12)))),
        ("users last wrote", |s| s.rest.of_users[0].modify_index = Index(15)),
        ("users last wrote None", |s| s.rest.of_users.push(entry("labels/node/x", "{}", 3, None))),
        ("changed without a record", |s| {
            s.rest.audit[0].index = Index(15);
            s.writes[0].told = WriteAnswer::Applied(Index(15));
        }),
        ("for 3 pods, asked were 1", |s| retargeted(s, |d| d.desired_after = 3)),
        ("2 pods, asked were 1", |s| retargeted(s, |d| d.count = 2)),
        ("no audit record of that index names it", |s| {
            retargeted(s, |d| {
                d.nodes_added = vec!["n2".parse().unwrap()];
            })
        }),
        ("two records of one change", |s| {
            s.rest.audit.push(logged(4, 14, &Details::Retarget(retarget())));
        }),
        ("revision 1 after 1", |s| {
            s.history.statuses.get_mut(&id()).unwrap().insert(Index(15), status());
        }),
        ("has labels or an intent, and not both", |s| s.rest.intents.clear()),
        ("0 pods instead of 1", |s| s.rest.labels.clear()),
    ];
    for (word, make_wrong) in wrongs {
        let mut scene = scene();
        make_wrong(&mut scene);
        let found = violations(&scene);
        assert!(found.iter().any(|what| what.contains(word)), "{word:?} is not in {found:?}");
    }
}
