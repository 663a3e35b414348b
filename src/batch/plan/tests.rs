//! Passes over small clusters, by example.

mod answered;
mod cells;
mod drained;
mod ended;
mod large;
mod min_resources;
mod order;
mod passed;
mod preemption;
mod properties;
mod waiting;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::batch::answers::GangAnswers;
use crate::batch::placing::{PlacementChange, bookings, members, with_allocation};
use crate::batch::plan::{
    BatchObserved, BatchPlan, Bounds, GroupStatuses, PassMemory, SetAside, plan, positions,
};
use crate::batch::queues::{Queues, Usage};
use crate::cluster::cells::StoredCells;
use crate::cluster::queues::{StoredGroup, StoredGroups, StoredQueue, StoredQueues, read_group};
use crate::placement::NodeLabels;
use crate::placement::capacity::{Fleet, NodeCapacity};
use rcfarm_api::ids::{NodeName, QueueName};
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupSpec};
use rcfarm_api::pod_group::status::{
    PlacementState, PodGroupPhase, PodGroupReason, PodGroupStatus,
};
use rcfarm_api::priority_class::PriorityClasses;
use rcfarm_api::queue::spec::QueueRecord;
use rcfarm_api::scheduler::spec::SchedulerSpec;
use rcfarm_api::{Index, Stored, Timestamp};
use rcfarm_store::Versioned;

pub(super) fn id(name: &str) -> GroupId {
    if name.contains('/') { name.parse() } else { format!("ns/{name}").parse() }.unwrap()
}

pub(super) fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

/// Queues, groups, nodes and a manual clock.
pub(super) struct TestScheduler {
    pub(super) queues: StoredQueues,
    pub(super) classes: PriorityClasses,
    pub(super) groups: StoredGroups,
    pub(super) book: GroupStatuses,
    pub(super) fleet: Fleet,
    pub(super) cells: Option<Arc<StoredCells>>,
    pub(super) answers: Option<GangAnswers>,
    pub(super) spec: SchedulerSpec,
    pub(super) now: Timestamp,
    pub(super) index: u64,
    pub(super) bounds: Bounds,
    pub(super) down: BTreeSet<NodeName>,
    pub(super) draining: BTreeMap<NodeName, DrainJobs>,
    pub(super) unreadable: BTreeSet<GroupId>,
    pub(super) set_aside: BTreeMap<GroupId, SetAside>,
    pub(super) memory: RefCell<PassMemory>,
}

impl TestScheduler {
    pub(super) fn new(nodes: &[&str]) -> TestScheduler {
        let name = |n: usize| -> NodeName { format!("n{n}").parse().unwrap() };
        let labels = |n: usize| [("n".to_owned(), n.to_string())].into();
        let labels = NodeLabels { nodes: (0..nodes.len()).map(|n| (name(n), labels(n))).collect() };
        let mut fleet = Fleet { labels: Arc::new(labels), ..Fleet::default() };
        for (n, capacity) in nodes.iter().enumerate() {
            fleet.node_capacities.insert(
                name(n),
                NodeCapacity { capacity: capacity.parse().unwrap(), ..NodeCapacity::default() },
            );
        }
        let mut sched = TestScheduler {
            queues: BTreeMap::new(),
            classes: PriorityClasses::default(),
            groups: BTreeMap::new(),
            book: GroupStatuses::new(),
            fleet,
            cells: None,
            answers: None,
            spec: SchedulerSpec::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            index: 10,
            bounds: Bounds {
                placed: 100,
                nodes: 50,
                bytes: 300_000,
                steps: usize::MAX,
                message_changes: usize::MAX,
            },
            set_aside: BTreeMap::new(),
            down: BTreeSet::new(),
            draining: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            memory: RefCell::default(),
        };
        sched.queue("default", json!({}));
        sched
    }

    pub(super) fn add_node(&mut self, capacity: &str) {
        let name: NodeName = format!("n{}", self.fleet.labels.nodes.len()).parse().unwrap();
        let mut labels = (*self.fleet.labels).clone();
        labels.nodes.insert(name.clone(), [("n".to_owned(), name.to_string())].into());
        self.fleet.labels = Arc::new(labels);
        let room = NodeCapacity { capacity: capacity.parse().unwrap(), ..NodeCapacity::default() };
        self.fleet.node_capacities.insert(name, room);
    }

    pub(super) fn next_index(&mut self) -> Index {
        self.index += 1;
        Index(self.index)
    }

    pub(super) fn queue(&mut self, name: &str, spec: Value) {
        let record = QueueRecord::decode(json!({"spec": spec}).to_string().as_bytes());
        let index = self.next_index();
        self.queues
            .insert(queue(name), Arc::new(StoredQueue { index, created: index, value: record }));
    }

    pub(super) fn group(&mut self, name: &str, spec: Value) {
        let created = self.groups.get(&id(name)).map(|group| group.created);
        self.write(name, &json!({"spec": spec}), created);
    }

    pub(super) fn write(&mut self, name: &str, record: &Value, created: Option<Index>) {
        let index = self.next_index();
        let created = created.unwrap_or(index);
        let stored = StoredGroup {
            index,
            created,
            value: read_group(&id(name), record.to_string().as_bytes()),
        };
        self.groups.insert(id(name), Arc::new(stored));
    }

    /// Sets the counts in the group's record.
    pub(super) fn members(&mut self, name: &str, members: Value) {
        let old = self.groups[&id(name)].clone();
        let mut record: Value =
            serde_json::from_slice(&old.value.as_ref().unwrap().encode()).unwrap();
        record["members"] = members;
        self.write(name, &record, Some(old.created));
    }

    /// Plans a pass. What earlier passes remember changes nothing.
    pub(super) fn plan(&self) -> BatchPlan {
        let me = "default".parse().unwrap();
        let queues = Queues::of(&self.queues, self.classes.clone());
        let seen = BatchObserved {
            me: &me,
            spec: &self.spec,
            queues: &queues,
            groups: &self.groups,
            statuses: &self.book,
            unreadable: &self.unreadable,
            set_aside: &self.set_aside,
            fleet: &self.fleet,
            cells: self.cells.as_ref(),
            answers: self.answers.as_ref(),
            down: &self.down,
            draining: &self.draining,
            may_forget: true,
            with_orphaned: true,
            now: self.now,
            latest: Index(self.index),
            bounds: self.bounds,
        };
        let made = plan(&seen, &mut self.memory.borrow_mut());
        if self.bounds.steps == usize::MAX {
            assert_eq!(made, plan(&seen, &mut PassMemory::default()), "without memory");
        }
        made
    }

    /// Makes a change's allocations.
    pub(super) fn book(&mut self, change: &PlacementChange) {
        let there = &self.fleet.node_capacities;
        let made = bookings(there, &change.id, &change.release, &change.allocate).unwrap();
        for booking in made {
            self.fleet.node_capacities.insert(booking.node, booking.room);
        }
    }

    pub(super) fn apply(&mut self, change: &PlacementChange) {
        let stands = self.book.get(&change.id) == change.before.as_ref();
        assert!(stands || change.keeps_status(), "{change:?} is not based on what stands");
        self.book(change);
        let index = self.next_index();
        match &change.after {
            Some(_) if change.keeps_status() => {}
            Some(after) => {
                let created = change.before.as_ref().map_or(index, |before| before.created);
                let known = Versioned { index, created, value: Arc::new(after.clone()) };
                self.book.insert(change.id.clone(), known);
            }
            None => drop(self.book.remove(&change.id)),
        }
        self.check();
    }

    /// Runs passes until none asks for another.
    pub(super) fn run(&mut self) -> BatchPlan {
        for _ in 0..50 {
            let plan = self.plan();
            plan.changes.iter().chain(&plan.message_changes).for_each(|change| self.apply(change));
            if !plan.more && plan.changes.is_empty() && plan.message_changes.is_empty() {
                return plan;
            }
        }
        panic!("it does not come to rest: {:?}", self.plan());
    }

    pub(super) fn later(&mut self, seconds: u64) {
        self.now += std::time::Duration::from_secs(seconds);
    }

    pub(super) fn status(&self, name: &str) -> &PodGroupStatus {
        &self.book[&id(name)].value
    }

    pub(super) fn phases(&self, names: &[&str]) -> Vec<(PodGroupPhase, PodGroupReason)> {
        names.iter().map(|name| (self.status(name).phase, self.status(name).reason)).collect()
    }

    pub(super) fn nodes(&self, name: &str) -> Vec<String> {
        let placed = self.status(name).placement.as_ref().unwrap();
        placed.placed().map(|(_, _, node)| node.to_string()).collect()
    }

    pub(super) fn spec_of(&self, id: &GroupId) -> Option<&PodGroupSpec> {
        Some(&self.groups.get(id)?.value.as_ref().ok()?.spec)
    }

    /// Invariants 14, 16 and 17; they hold after each change.
    pub(super) fn check(&self) {
        for (node, room) in self.fleet.node_capacities.iter() {
            assert!(room.faults().is_empty(), "invariant 14: {node}: {:?}", room.faults());
        }
        let queues = Queues::of(&self.queues, self.classes.clone());
        let mut usage = Usage::default();
        for (id, known) in &self.book {
            let status = &known.value;
            if status.phase.is_admitted() {
                usage.charge(&queues, status.queue.as_ref().unwrap(), &status.charged);
            }
            let Some(place) = &status.placement else { continue };
            let mut all = members(id, place);
            all.retain(|member| !member.want.is_zero());
            if place.state == PlacementState::Bound {
                let allocated = with_allocation(&self.fleet.node_capacities, id, all.clone());
                assert_eq!(
                    allocated, all,
                    "invariant 16: {id} may start and is not promised its whole place"
                );
            }
        }
        for (name, queue) in &queues.0 {
            let over = queue.spec.capability.exceeded_by(usage.total(name));
            assert_eq!(over, None, "invariant 17: queue {name}");
        }
    }
}

pub(super) fn workers(count: u32, cpu: &str) -> Value {
    json!([{"name": "w", "replicas": count, "resources": {"cpu": cpu}}])
}

pub(super) const NODE: &str = "cpu=4,memory=8Gi";

#[test]
fn a_gang_is_placed_whole_or_waits_and_says_why() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.group("small", json!({"tasks": workers(2, "2")}));
    sched.group("large", json!({"tasks": workers(5, "2")}));
    sched.group("nowhere", json!({"tasks": [{"name": "w", "replicas": 1, "nodeSelector": "n=9"}]}));
    let plan = sched.run();
    assert_eq!(
        sched.phases(&["small", "large", "nowhere"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity),
            (PodGroupPhase::Pending, PodGroupReason::NoEligibleNodes),
        ]
    );
    assert_eq!(sched.nodes("small").len(), 2);
    let waiting = &plan.waiting[&queue("default")];
    let listed: Vec<_> = waiting.iter().map(|w| (w.group.to_string(), w.position)).collect();
    assert_eq!(listed, [("ns/large".to_owned(), 1), ("ns/nowhere".to_owned(), 2)]);
}

#[test]
fn a_finished_or_deleted_group_frees_its_place_for_the_next() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(2, "2")}));
    sched.run();
    sched.group("b", json!({"tasks": workers(2, "2")}));
    sched.group("c", json!({"tasks": workers(1, "4")}));
    sched.run();
    assert_eq!(sched.status("b").reason, PodGroupReason::InsufficientCapacity);
    sched.members("a", json!({"running": 2}));
    sched.run();
    assert_eq!(sched.status("a").phase, PodGroupPhase::Running);
    sched.members("a", json!({"succeeded": 2}));
    sched.run();
    assert_eq!(sched.status("a").phase, PodGroupPhase::Completed);
    assert!(sched.status("a").charged.is_empty() && sched.status("a").placement.is_none());
    assert_eq!(sched.status("b").phase, PodGroupPhase::Inqueue);
    sched.groups.remove(&id("b"));
    sched.run();
    assert!(!sched.book.contains_key(&id("b")));
    assert_eq!(sched.status("c").phase, PodGroupPhase::Inqueue);
}

#[test]
fn recreated_group_shares_nothing_with_the_old_one() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group(
        "a",
        json!({"tasks": workers(2, "2"), "owner": {"kind": "Job", "name": "a", "uid": "1"}}),
    );
    sched.run();
    sched.groups.remove(&id("a"));
    sched.group(
        "a",
        json!({"tasks": workers(1, "1"), "owner": {"kind": "Job", "name": "a", "uid": "2"}}),
    );
    sched.run();
    assert_eq!(sched.status("a").owner_uid.as_deref(), Some("2"));
    assert_eq!(sched.status("a").charged, "cpu=1,pods=1".parse().unwrap());
    assert_eq!(sched.fleet.node_capacities.of(&"n0".parse().unwrap()).allocated.pods.len(), 1);
}

#[test]
fn strict_queue_blocks_on_its_head_and_others_skip_it() {
    for (strategy, small) in [
        ("fifo", (PodGroupPhase::Pending, PodGroupReason::BehindInQueue)),
        ("traverse", (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)),
    ] {
        let mut sched = TestScheduler::new(&[NODE]);
        sched.queue("q", json!({"dequeueStrategy": strategy, "capability": {"cpu": 4}}));
        sched.group("running", json!({"queue": "q", "tasks": workers(1, "2")}));
        sched.run();
        sched.group("large", json!({"queue": "q", "tasks": workers(1, "3")}));
        sched.group("small", json!({"queue": "q", "tasks": workers(1, "1")}));
        sched.run();
        assert_eq!(
            sched.phases(&["large", "small"]),
            [(PodGroupPhase::Pending, PodGroupReason::QueueFull), small],
            "{strategy}"
        );
        sched.groups.remove(&id("running"));
        sched.run();
        // Both fit only if the small group was not admitted first.
        let both = sched
            .phases(&["large", "small"])
            .iter()
            .all(|(phase, _)| *phase == PodGroupPhase::Inqueue);
        assert!(both, "{strategy}");
    }
}

#[test]
fn what_can_never_fit_holds_nobody_up() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("q", json!({"dequeueStrategy": "fifo", "capability": {"cpu": 2}}));
    sched.group("huge", json!({"queue": "q", "tasks": workers(1, "3"), "priority": 9}));
    sched.group("small", json!({"queue": "q", "tasks": workers(1, "1")}));
    sched.run();
    assert_eq!(
        sched.phases(&["huge", "small"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::ExceedsCapability),
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
        ]
    );
    assert!(
        sched.status("huge").message.contains("cpu: 3 wanted, and queue q has 2"),
        "{:?}",
        sched.status("huge")
    );
}

#[test]
fn admitted_group_without_placement_is_requeued_in_time() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(1, "2")}));
    sched.run();
    // Its owner restarts it with requests that no longer fit.
    sched.group("a", json!({"tasks": workers(1, "6"), "round": 1}));
    sched.run();
    assert_eq!(
        sched.phases(&["a"]),
        [(PodGroupPhase::Inqueue, PodGroupReason::InsufficientCapacity)]
    );
    assert!(!sched.status("a").charged.is_empty(), "it is still admitted");
    sched.later(301);
    sched.run();
    assert_eq!(sched.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::BackedOff)]);
    assert!(sched.status("a").charged.is_empty());
}

#[test]
fn a_closed_queue_admits_nobody_and_keeps_what_runs() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("top", json!({}));
    sched.queue("q", json!({"parent": "top"}));
    sched.group("a", json!({"queue": "q", "tasks": workers(1, "1")}));
    sched.run();
    sched.queue("top", json!({"state": "Closed"}));
    sched.group("b", json!({"queue": "q", "tasks": workers(1, "1")}));
    sched.group("c", json!({"queue": "top", "tasks": workers(1, "1")}));
    sched.group("d", json!({"queue": "none", "tasks": workers(1, "1")}));
    sched.run();
    assert_eq!(
        sched.phases(&["a", "b", "c", "d"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::QueueClosed),
            (PodGroupPhase::Pending, PodGroupReason::QueueClosed),
            (PodGroupPhase::Pending, PodGroupReason::QueueMissing),
        ]
    );
    sched.queue("top", json!({}));
    sched.run();
    assert_eq!(
        sched.phases(&["b", "c"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::QueueHasChildren)
        ]
    );
}

#[test]
fn a_parents_total_and_its_siblings_guarantees_hold() {
    let mut sched = TestScheduler::new(&["cpu=99,memory=1Gi"]);
    sched.queue("top", json!({"capability": {"cpu": 10}}));
    sched.queue("a", json!({"parent": "top"}));
    sched.queue("b", json!({"parent": "top", "guarantee": {"resource": {"cpu": 4}}}));
    for n in 0..8 {
        sched.group(&format!("a{n}"), json!({"queue": "a", "tasks": workers(1, "1")}));
    }
    sched.run();
    let admitted = |sched: &TestScheduler, of: &str| {
        sched
            .book
            .iter()
            .filter(|(id, known)| {
                id.name.as_str().starts_with(of) && known.value.phase.is_admitted()
            })
            .count()
    };
    assert_eq!(admitted(&sched, "a"), 6, "four are kept for b");
    for n in 0..8 {
        sched.group(&format!("b{n}"), json!({"queue": "b", "tasks": workers(1, "1")}));
    }
    sched.run();
    assert_eq!((admitted(&sched, "a"), admitted(&sched, "b")), (6, 4));
}

#[test]
fn elastic_group_starts_at_min_and_grows_with_room() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("other", json!({"tasks": workers(1, "2")}));
    sched.run();
    sched.group("a", json!({"tasks": workers(4, "1"), "minMember": 1}));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 2, "its least first, then what there is room for");
    assert_eq!(sched.status("a").charged, "cpu=2,pods=2".parse().unwrap());
    sched.groups.remove(&id("other"));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 4);
    sched.group("a", json!({"tasks": workers(1, "1"), "minMember": 1}));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 1, "and gives back what it wants no more");
    assert_eq!(sched.status("a").charged, "cpu=1,pods=1".parse().unwrap());
}

#[test]
fn held_group_frees_its_placement_once_its_pods_end() {
    let mut sched = TestScheduler::new(&[NODE]);
    let hold = json!({"reason": "Suspended", "message": "by alice"});
    sched.group("a", json!({"tasks": workers(1, "1"), "hold": hold}));
    sched.run();
    assert_eq!(sched.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::Suspended)]);
    sched.group("a", json!({"tasks": workers(1, "1")}));
    sched.run();
    sched.members("a", json!({"running": 1}));
    sched.run();
    sched.write(
        "a",
        &json!({"spec": {"tasks": workers(1, "1"), "hold": hold}, "members": {"running": 1}}),
        Some(sched.groups[&id("a")].created),
    );
    sched.run();
    assert_eq!(
        sched.status("a").phase,
        PodGroupPhase::Running,
        "nobody pulls the place away under its pods"
    );
    sched.members("a", json!({}));
    sched.run();
    assert_eq!(sched.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::Suspended)]);
    assert!(sched.status("a").charged.is_empty());
}

#[test]
fn a_bad_record_is_said_so_and_harms_nobody() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("bad", json!({"tasks": workers(1, "1"), "minMember": 7}));
    sched.queue("broken", json!({"weight": 0}));
    sched.group("in-broken", json!({"queue": "broken", "tasks": workers(1, "1")}));
    sched.group("fine", json!({"tasks": workers(1, "1")}));
    sched.run();
    assert_eq!(
        sched.phases(&["bad", "in-broken", "fine"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::InvalidRecord),
            (PodGroupPhase::Pending, PodGroupReason::QueueInvalid),
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
        ]
    );
    assert!(sched.status("bad").message.contains("spec.minMember"));
    assert!(sched.status("in-broken").message.contains("spec.weight"));
}

#[test]
fn priority_precedes_age_within_and_between_queues() {
    let mut sched = TestScheduler::new(&["cpu=2,memory=1Gi"]);
    sched.queue("urgent", json!({"priority": 1}));
    sched.group("old", json!({"tasks": workers(1, "1")}));
    sched.group("important", json!({"tasks": workers(1, "1"), "priority": 5}));
    sched.group("urgent", json!({"queue": "urgent", "tasks": workers(1, "1")}));
    sched.run();
    assert_eq!(sched.status("old").phase, PodGroupPhase::Pending);
    sched.group("new", json!({"tasks": workers(1, "1"), "priority": 1}));
    let order =
        positions(&Queues::of(&sched.queues, sched.classes.clone()), &sched.groups, &sched.book);
    assert_eq!(order[&queue("default")], [id("new"), id("old")]);
}

#[test]
fn ten_thousand_single_pods_are_placed_in_few_passes() {
    let nodes = vec!["cpu=100,memory=8Gi"; 100];
    let mut sched = TestScheduler::new(&nodes);
    sched.bounds.placed = 1_000;
    for n in 0..10_000 {
        sched.group(&format!("g{n:05}"), json!({"tasks": workers(1, "1")}));
    }
    let mut passes = 0;
    loop {
        let plan = sched.plan();
        for change in &plan.changes {
            let value = Arc::new(change.after.clone().unwrap());
            let known = Versioned { index: Index(1), created: Index(1), value };
            sched.book(change);
            sched.book.insert(change.id.clone(), known);
        }
        passes += 1;
        if !plan.more {
            break;
        }
    }
    sched.check();
    assert!(sched.book.values().all(|known| known.value.phase == PodGroupPhase::Inqueue));
    assert_eq!((sched.book.len(), passes), (10_000, 10));
}
