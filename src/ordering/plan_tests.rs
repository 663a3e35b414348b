//! Passes over small worlds: by example, and any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::placing::{
    PlacementChange, StoredGroup, StoredGroups, VersionedStatus, book, held, members,
};
use super::plan::{BatchObserved, BatchPlan, Bounds, GroupStatuses, plan, positions};
use super::queues::{Queues, StoredQueue, StoredQueues, Usage};
use super::spec::SchedulerSpec;
use crate::ids::{NodeName, QueueName};
use crate::pod_group::spec::{GroupId, PodGroupSpec};
use crate::pod_group::status::{PlacementState, PodGroupPhase, PodGroupReason, PodGroupStatus};
use crate::queue::spec::QueueRecord;
use crate::schedule::NodeLabels;
use crate::schedule::capacity::{Fleet, NodeCapacity};
use crate::store::Index;
use crate::time::Timestamp;

pub(super) fn id(name: &str) -> GroupId {
    format!("ns/{name}").parse().unwrap()
}

pub(super) fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

/// Queues, groups, nodes, and a clock.
pub(super) struct TestCluster {
    pub(super) queues: StoredQueues,
    pub(super) groups: StoredGroups,
    pub(super) book: GroupStatuses,
    pub(super) fleet: Fleet,
    pub(super) spec: SchedulerSpec,
    pub(super) now: Timestamp,
    pub(super) index: u64,
    pub(super) bounds: Bounds,
    pub(super) down: BTreeSet<NodeName>,
    pub(super) unreadable: BTreeSet<GroupId>,
}

impl TestCluster {
    pub(super) fn new(nodes: &[&str]) -> TestCluster {
        let name = |n: usize| -> NodeName { format!("n{n}").parse().unwrap() };
        let labels = |n: usize| [("n".to_owned(), n.to_string())].into();
        let labels = NodeLabels { nodes: (0..nodes.len()).map(|n| (name(n), labels(n))).collect() };
        let mut fleet = Fleet { labels: Arc::new(labels), ..Fleet::default() };
        for (n, capacity) in nodes.iter().enumerate() {
            fleet.rooms.insert(
                name(n),
                NodeCapacity { capacity: capacity.parse().unwrap(), ..NodeCapacity::default() },
            );
        }
        let mut world = TestCluster {
            queues: BTreeMap::new(),
            groups: BTreeMap::new(),
            book: GroupStatuses::new(),
            fleet,
            spec: SchedulerSpec::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            index: 10,
            bounds: Bounds { placed: 100, nodes: 50 },
            down: BTreeSet::new(),
            unreadable: BTreeSet::new(),
        };
        world.queue("default", json!({}));
        world
    }

    pub(super) fn next_index(&mut self) -> Index {
        self.index += 1;
        Index(self.index)
    }

    pub(super) fn queue(&mut self, name: &str, spec: Value) {
        let record = QueueRecord::decode(json!({"spec": spec}).to_string().as_bytes());
        let index = self.next_index();
        self.queues.insert(queue(name), Arc::new(StoredQueue { index, created: index, record }));
    }

    pub(super) fn group(&mut self, name: &str, spec: Value) {
        let created = self.groups.get(&id(name)).map(|group| group.created);
        self.write(name, &json!({"spec": spec}), created);
    }

    pub(super) fn write(&mut self, name: &str, record: &Value, created: Option<Index>) {
        let index = self.next_index();
        let created = created.unwrap_or(index);
        let stored = StoredGroup::read(&id(name), record.to_string().as_bytes(), index, created);
        self.groups.insert(id(name), Arc::new(stored));
    }

    /// What the owner says of the pods.
    pub(super) fn members(&mut self, name: &str, members: Value) {
        let old = self.groups[&id(name)].clone();
        let mut record: Value =
            serde_json::from_slice(&old.record.as_ref().unwrap().encode()).unwrap();
        record["members"] = members;
        self.write(name, &record, Some(old.created));
    }

    pub(super) fn plan(&self) -> BatchPlan {
        let me = "default".parse().unwrap();
        plan(&BatchObserved {
            me: &me,
            spec: &self.spec,
            queues: &Queues::of(&self.queues),
            groups: &self.groups,
            statuses: &self.book,
            unreadable: &self.unreadable,
            fleet: &self.fleet,
            down: &self.down,
            may_forget: true,
            with_leaks: true,
            now: self.now,
            latest: Index(self.index),
            bounds: self.bounds,
        })
    }

    pub(super) fn apply(&mut self, change: &PlacementChange) {
        let stands = self.book.get(&change.id) == change.before.as_ref();
        assert!(stands || change.keeps_status(), "{change:?} is not based on what stands");
        book(&mut self.fleet, &change.id, &change.release, &change.promise).unwrap();
        let index = self.next_index();
        match &change.after {
            Some(_) if change.keeps_status() => {}
            Some(after) => {
                let known = VersionedStatus { index, status: Arc::new(after.clone()) };
                self.book.insert(change.id.clone(), known);
            }
            None => drop(self.book.remove(&change.id)),
        }
        self.check();
    }

    /// Passes until there is nothing more to do at once.
    pub(super) fn settle(&mut self) -> BatchPlan {
        for _ in 0..50 {
            let plan = self.plan();
            plan.changes.iter().chain(&plan.says).for_each(|change| self.apply(change));
            if !plan.more && plan.changes.is_empty() && plan.says.is_empty() {
                return plan;
            }
        }
        panic!("it does not come to rest: {:?}", self.plan());
    }

    pub(super) fn later(&mut self, seconds: u64) {
        self.now += std::time::Duration::from_secs(seconds);
    }

    pub(super) fn status(&self, name: &str) -> &PodGroupStatus {
        &self.book[&id(name)].status
    }

    pub(super) fn phases(&self, names: &[&str]) -> Vec<(PodGroupPhase, PodGroupReason)> {
        names.iter().map(|name| (self.status(name).phase, self.status(name).reason)).collect()
    }

    pub(super) fn nodes(&self, name: &str) -> Vec<String> {
        let placed = self.status(name).placement.as_ref().unwrap();
        placed.placed().map(|(_, _, node)| node.to_string()).collect()
    }

    pub(super) fn spec_of(&self, id: &GroupId) -> Option<&PodGroupSpec> {
        Some(&self.groups.get(id)?.record.as_ref().ok()?.spec)
    }

    /// Invariants 14, 16 and 17, which hold after every single change.
    pub(super) fn check(&self) {
        for (node, room) in self.fleet.rooms.iter() {
            assert!(room.faults().is_empty(), "invariant 14: {node}: {:?}", room.faults());
        }
        let queues = Queues::of(&self.queues);
        let mut usage = Usage::default();
        for (id, known) in &self.book {
            let status = &known.status;
            if status.phase.is_admitted() {
                usage.charge(&queues, status.queue.as_ref().unwrap(), &status.charged);
            }
            let Some(place) = &status.placement else { continue };
            let mut all = members(id, place);
            all.retain(|member| !member.want.is_zero());
            if place.state == PlacementState::Bound {
                let promised = held(&self.fleet.rooms, id, all.clone());
                assert_eq!(
                    promised, all,
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
    let mut world = TestCluster::new(&[NODE, NODE]);
    world.group("small", json!({"tasks": workers(2, "2")}));
    world.group("large", json!({"tasks": workers(5, "2")}));
    world.group("nowhere", json!({"tasks": [{"name": "w", "replicas": 1, "nodeSelector": "n=9"}]}));
    let plan = world.settle();
    assert_eq!(
        world.phases(&["small", "large", "nowhere"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity),
            (PodGroupPhase::Pending, PodGroupReason::NoEligibleNodes),
        ]
    );
    assert_eq!(world.nodes("small").len(), 2);
    let waiting = &plan.waiting[&queue("default")];
    let listed: Vec<_> = waiting.iter().map(|w| (w.group.to_string(), w.position)).collect();
    assert_eq!(listed, [("ns/large".to_owned(), 1), ("ns/nowhere".to_owned(), 2)]);
}

#[test]
fn a_finished_or_deleted_group_frees_its_place_for_the_next() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("a", json!({"tasks": workers(2, "2")}));
    world.settle();
    world.group("b", json!({"tasks": workers(2, "2")}));
    world.group("c", json!({"tasks": workers(1, "4")}));
    world.settle();
    assert_eq!(world.status("b").reason, PodGroupReason::InsufficientCapacity);
    world.members("a", json!({"running": 2}));
    world.settle();
    assert_eq!(world.status("a").phase, PodGroupPhase::Running);
    world.members("a", json!({"succeeded": 2}));
    world.settle();
    assert_eq!(world.status("a").phase, PodGroupPhase::Completed);
    assert!(world.status("a").charged.is_empty() && world.status("a").placement.is_none());
    assert_eq!(world.status("b").phase, PodGroupPhase::Inqueue);
    world.groups.remove(&id("b"));
    world.settle();
    assert!(!world.book.contains_key(&id("b")));
    assert_eq!(world.status("c").phase, PodGroupPhase::Inqueue);
}

#[test]
fn a_group_made_anew_under_the_name_shares_nothing_with_the_old_one() {
    let mut world = TestCluster::new(&[NODE]);
    world.group(
        "a",
        json!({"tasks": workers(2, "2"), "owner": {"kind": "Job", "name": "a", "uid": "1"}}),
    );
    world.settle();
    world.groups.remove(&id("a"));
    world.group(
        "a",
        json!({"tasks": workers(1, "1"), "owner": {"kind": "Job", "name": "a", "uid": "2"}}),
    );
    world.settle();
    assert_eq!(world.status("a").owner_uid.as_deref(), Some("2"));
    assert_eq!(world.status("a").charged, "cpu=1,pods=1".parse().unwrap());
    assert_eq!(world.fleet.rooms.of(&"n0".parse().unwrap()).promised.pods.len(), 1);
}

#[test]
fn a_strict_queue_waits_for_its_first_and_another_lets_what_fits_go_ahead() {
    for (strategy, small) in [
        ("fifo", (PodGroupPhase::Pending, PodGroupReason::BehindInQueue)),
        ("traverse", (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)),
    ] {
        let mut world = TestCluster::new(&[NODE]);
        world.queue("q", json!({"dequeueStrategy": strategy, "capability": {"cpu": 4}}));
        world.group("running", json!({"queue": "q", "tasks": workers(1, "2")}));
        world.settle();
        world.group("large", json!({"queue": "q", "tasks": workers(1, "3")}));
        world.group("small", json!({"queue": "q", "tasks": workers(1, "1")}));
        world.settle();
        assert_eq!(
            world.phases(&["large", "small"]),
            [(PodGroupPhase::Pending, PodGroupReason::QueueFull), small],
            "{strategy}"
        );
        world.groups.remove(&id("running"));
        world.settle();
        // There is room for both only where the small one has not started before.
        let both = world
            .phases(&["large", "small"])
            .iter()
            .all(|(phase, _)| *phase == PodGroupPhase::Inqueue);
        assert!(both, "{strategy}");
    }
}

#[test]
fn what_can_never_fit_holds_nobody_up() {
    let mut world = TestCluster::new(&[NODE]);
    world.queue("q", json!({"dequeueStrategy": "fifo", "capability": {"cpu": 2}}));
    world.group("huge", json!({"queue": "q", "tasks": workers(1, "3"), "priority": 9}));
    world.group("small", json!({"queue": "q", "tasks": workers(1, "1")}));
    world.settle();
    assert_eq!(
        world.phases(&["huge", "small"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::ExceedsCapability),
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
        ]
    );
    assert!(
        world.status("huge").message.contains("cpu: 3 wanted, and queue q has 2"),
        "{:?}",
        world.status("huge")
    );
}

#[test]
fn the_first_of_a_strict_queue_without_nodes_goes_to_the_end_in_time() {
    let mut world = TestCluster::new(&[NODE]);
    world.queue("q", json!({"dequeueStrategy": "fifo"}));
    world.group(
        "first",
        json!({"queue": "q", "tasks": workers(1, "9"), "scheduleTimeoutSeconds": 60}),
    );
    world.group("second", json!({"queue": "q", "tasks": workers(1, "1")}));
    let plan = world.settle();
    assert_eq!(
        world.phases(&["first", "second"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity),
            (PodGroupPhase::Pending, PodGroupReason::BehindInQueue)
        ]
    );
    assert_eq!(plan.next, world.status("first").place_by);
    world.later(61);
    world.settle();
    assert_eq!(
        world.phases(&["first", "second"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::BackedOff),
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
        ]
    );
    world.group("third", json!({"queue": "q", "tasks": workers(1, "1")}));
    world.settle();
    assert_eq!(world.status("third").phase, PodGroupPhase::Inqueue, "a pause holds nobody up");
    world.later(11);
    world.settle();
    assert_eq!(
        world.status("first").reason,
        PodGroupReason::InsufficientCapacity,
        "tried again after its pause"
    );
    assert_eq!(world.status("first").sent_back, 1);
}

#[test]
fn an_admitted_group_that_loses_its_place_and_finds_none_in_time_goes_back_to_its_queue() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("a", json!({"tasks": workers(1, "2")}));
    world.settle();
    // Its owner restarts it, larger than there is room for by now.
    world.group("a", json!({"tasks": workers(1, "6"), "round": 1}));
    world.settle();
    assert_eq!(
        world.phases(&["a"]),
        [(PodGroupPhase::Inqueue, PodGroupReason::InsufficientCapacity)]
    );
    assert!(!world.status("a").charged.is_empty(), "it is still admitted");
    world.later(301);
    world.settle();
    assert_eq!(world.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::BackedOff)]);
    assert!(world.status("a").charged.is_empty());
}

#[test]
fn a_closed_queue_admits_nobody_and_keeps_what_runs() {
    let mut world = TestCluster::new(&[NODE]);
    world.queue("top", json!({}));
    world.queue("q", json!({"parent": "top"}));
    world.group("a", json!({"queue": "q", "tasks": workers(1, "1")}));
    world.settle();
    world.queue("top", json!({"state": "Closed"}));
    world.group("b", json!({"queue": "q", "tasks": workers(1, "1")}));
    world.group("c", json!({"queue": "top", "tasks": workers(1, "1")}));
    world.group("d", json!({"queue": "none", "tasks": workers(1, "1")}));
    world.settle();
    assert_eq!(
        world.phases(&["a", "b", "c", "d"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::QueueClosed),
            (PodGroupPhase::Pending, PodGroupReason::QueueClosed),
            (PodGroupPhase::Pending, PodGroupReason::QueueMissing),
        ]
    );
    world.queue("top", json!({}));
    world.settle();
    assert_eq!(
        world.phases(&["b", "c"]),
        [
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired),
            (PodGroupPhase::Pending, PodGroupReason::QueueHasChildren)
        ]
    );
}

#[test]
fn a_parents_total_and_its_siblings_guarantees_hold() {
    let mut world = TestCluster::new(&["cpu=99,memory=1Gi"]);
    world.queue("top", json!({"capability": {"cpu": 10}}));
    world.queue("a", json!({"parent": "top"}));
    world.queue("b", json!({"parent": "top", "guarantee": {"resource": {"cpu": 4}}}));
    for n in 0..8 {
        world.group(&format!("a{n}"), json!({"queue": "a", "tasks": workers(1, "1")}));
    }
    world.settle();
    let admitted = |world: &TestCluster, of: &str| {
        world
            .book
            .iter()
            .filter(|(id, known)| {
                id.name.as_str().starts_with(of) && known.status.phase.is_admitted()
            })
            .count()
    };
    assert_eq!(admitted(&world, "a"), 6, "four are kept for b");
    for n in 0..8 {
        world.group(&format!("b{n}"), json!({"queue": "b", "tasks": workers(1, "1")}));
    }
    world.settle();
    assert_eq!((admitted(&world, "a"), admitted(&world, "b")), (6, 4));
}

#[test]
fn an_elastic_group_starts_with_its_least_and_grows_when_there_is_room() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("other", json!({"tasks": workers(1, "2")}));
    world.settle();
    world.group("a", json!({"tasks": workers(4, "1"), "minMember": 1}));
    world.settle();
    assert_eq!(world.nodes("a").len(), 2, "its least first, then what there is room for");
    assert_eq!(world.status("a").charged, "cpu=2,pods=2".parse().unwrap());
    world.groups.remove(&id("other"));
    world.settle();
    assert_eq!(world.nodes("a").len(), 4);
    world.group("a", json!({"tasks": workers(1, "1"), "minMember": 1}));
    world.settle();
    assert_eq!(world.nodes("a").len(), 1, "and gives back what it wants no more");
    assert_eq!(world.status("a").charged, "cpu=1,pods=1".parse().unwrap());
}

#[test]
fn a_held_group_waits_and_gives_its_place_back_once_its_pods_are_gone() {
    let mut world = TestCluster::new(&[NODE]);
    let hold = json!({"reason": "Suspended", "message": "by alice"});
    world.group("a", json!({"tasks": workers(1, "1"), "hold": hold}));
    world.settle();
    assert_eq!(world.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::Suspended)]);
    world.group("a", json!({"tasks": workers(1, "1")}));
    world.settle();
    world.members("a", json!({"running": 1}));
    world.settle();
    world.write(
        "a",
        &json!({"spec": {"tasks": workers(1, "1"), "hold": hold}, "members": {"running": 1}}),
        Some(world.groups[&id("a")].created),
    );
    world.settle();
    assert_eq!(
        world.status("a").phase,
        PodGroupPhase::Running,
        "nobody pulls the place away under its pods"
    );
    world.members("a", json!({}));
    world.settle();
    assert_eq!(world.phases(&["a"]), [(PodGroupPhase::Pending, PodGroupReason::Suspended)]);
    assert!(world.status("a").charged.is_empty());
}

#[test]
fn a_bad_record_is_said_so_and_harms_nobody() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("bad", json!({"tasks": workers(1, "1"), "minMember": 7}));
    world.queue("broken", json!({"weight": 0}));
    world.group("in-broken", json!({"queue": "broken", "tasks": workers(1, "1")}));
    world.group("fine", json!({"tasks": workers(1, "1")}));
    world.settle();
    assert_eq!(
        world.phases(&["bad", "in-broken", "fine"]),
        [
            (PodGroupPhase::Pending, PodGroupReason::InvalidRecord),
            (PodGroupPhase::Pending, PodGroupReason::QueueInvalid),
            (PodGroupPhase::Inqueue, PodGroupReason::AsDesired)
        ]
    );
    assert!(world.status("bad").message.contains("spec.minMember"));
    assert!(world.status("in-broken").message.contains("spec.weight"));
}

#[test]
fn priority_goes_before_age_and_queues_of_priority_before_others() {
    let mut world = TestCluster::new(&["cpu=2,memory=1Gi"]);
    world.queue("urgent", json!({"priority": 1}));
    world.group("old", json!({"tasks": workers(1, "1")}));
    world.group("important", json!({"tasks": workers(1, "1"), "priority": 5}));
    world.group("urgent", json!({"queue": "urgent", "tasks": workers(1, "1")}));
    world.settle();
    assert_eq!(world.status("old").phase, PodGroupPhase::Pending);
    world.group("new", json!({"tasks": workers(1, "1"), "priority": 1}));
    let order = positions(&Queues::of(&world.queues), &world.groups, &world.book);
    assert_eq!(order[&queue("default")], [id("new"), id("old")]);
}

/// A gang that is written ahead: whatever part of the changes was made, the next pass goes on from there.
#[test]
fn a_large_gang_interrupted_anywhere_ends_whole_or_not_at_all() {
    for changed in [false, true] {
        for stop in 0..12 {
            let mut world = TestCluster::new(&[NODE; 9]);
            world.bounds.nodes = 2;
            world.group("g", json!({"tasks": workers(9, "3")}));
            let mut made = 0;
            while made < stop {
                let plan = world.plan();
                if plan.changes.is_empty() {
                    break;
                }
                for change in plan.changes.iter().take(stop - made) {
                    world.apply(change);
                    made += 1;
                }
            }
            // Another owner takes over; meanwhile the group is gone, or not.
            if changed {
                world.groups.remove(&id("g"));
            }
            world.settle();
            let promised: usize =
                world.fleet.rooms.iter().map(|(_, room)| room.promised.pods.len()).sum();
            match changed {
                true => assert_eq!((promised, world.book.len()), (0, 0), "after {stop}"),
                false => {
                    assert_eq!(promised, 9, "after {stop}");
                    assert_eq!(
                        world.status("g").placement.as_ref().unwrap().state,
                        PlacementState::Bound
                    );
                }
            }
        }
    }
}

#[test]
fn a_large_gang_whose_node_was_taken_meanwhile_gives_everything_back_and_tries_again() {
    let mut world = TestCluster::new(&[NODE; 6]);
    world.bounds.nodes = 2;
    world.group("g", json!({"tasks": workers(5, "3")}));
    let first = world.plan();
    world.apply(&first.changes[0]);
    assert_eq!(world.status("g").reason, PodGroupReason::Reserving);
    let forward = world.plan();
    world.apply(&forward.changes[0]);
    // Somebody else's pod takes the room of a node that has yet to promise.
    let taken = world
        .nodes("g")
        .into_iter()
        .find(|node| world.fleet.rooms.of(&node.parse().unwrap()).promised.pods.is_empty());
    let node: NodeName = taken.unwrap().parse().unwrap();
    let mut room = world.fleet.rooms.of(&node).clone();
    let owner = "rc/other".parse().unwrap();
    room.promise(&"other".parse().unwrap(), &owner, &"cpu=2".parse().unwrap()).unwrap();
    world.fleet.rooms.insert(node.clone(), room);
    let back = world.plan();
    world.apply(&back.changes[0]);
    assert_eq!(world.status("g").reason, PodGroupReason::ReservationFailed);
    world.settle();
    assert_eq!(world.phases(&["g"]), [(PodGroupPhase::Inqueue, PodGroupReason::AsDesired)]);
    assert!(!world.nodes("g").contains(&node.to_string()), "placed around it");
}

#[test]
fn ten_thousand_single_pods_are_placed_in_few_passes() {
    let nodes = vec!["cpu=100,memory=8Gi"; 100];
    let mut world = TestCluster::new(&nodes);
    world.bounds.placed = 1_000;
    for n in 0..10_000 {
        world.group(&format!("g{n:05}"), json!({"tasks": workers(1, "1")}));
    }
    let mut passes = 0;
    loop {
        let plan = world.plan();
        for change in &plan.changes {
            let known = VersionedStatus {
                index: Index(1),
                status: Arc::new(change.after.clone().unwrap()),
            };
            book(&mut world.fleet, &change.id, &change.release, &change.promise).unwrap();
            world.book.insert(change.id.clone(), known);
        }
        passes += 1;
        if !plan.more {
            break;
        }
    }
    world.check();
    assert!(world.book.values().all(|known| known.status.phase == PodGroupPhase::Inqueue));
    assert_eq!((world.book.len(), passes), (10_000, 10));
}

/// A gang whose node goes down while others of it run: who lost its place gets another, the others stay.
#[test]
fn a_member_whose_node_is_down_gets_another_place_once_its_pod_is_gone() {
    let mut world = TestCluster::new(&["cpu=1", "cpu=1", "cpu=1"]);
    world.group("g", json!({"tasks": workers(2, "1")}));
    world.settle();
    assert_eq!(world.nodes("g"), ["n0", "n1"]);
    world.down = ["n1".parse().unwrap()].into();
    world.fleet.unfit = world.down.clone();
    world.members("g", json!({"running": 2}));
    world.settle();
    assert_eq!(world.nodes("g"), ["n0", "n1"], "its pod may still be there");
    world.members("g", json!({"running": 1, "pending": 1}));
    world.settle();
    assert_eq!(world.nodes("g"), ["n0", "n2"]);
    assert_eq!(world.status("g").phase, PodGroupPhase::Running);
    world.down = ["n1".parse().unwrap(), "n2".parse().unwrap()].into();
    world.fleet.unfit = world.down.clone();
    world.settle();
    assert_eq!(
        (world.nodes("g").len(), world.status("g").phase),
        (1, PodGroupPhase::Unknown),
        "no room"
    );
}

/// Nobody is put out while its pods stop, and a place that was lost goes to nobody lower in the same pass.
#[test]
fn a_gang_keeps_its_place_until_its_last_pod_is_gone_and_then_comes_first() {
    let mut world = TestCluster::new(&["cpu=2"]);
    world.queue("default", json!({"dequeueStrategy": "fifo"}));
    world.group("first", json!({"tasks": workers(2, "1")}));
    world.group("then", json!({"tasks": workers(2, "1")}));
    world.settle();
    world.members("first", json!({"running": 2}));
    world.settle();
    world.members("first", json!({"pending": 2, "releasing": 1}));
    world.settle();
    assert_eq!(world.status("first").phase, PodGroupPhase::Running);
    world.members("first", json!({"pending": 2}));
    world.settle();
    assert!(world.status("first").phase.is_admitted());
    assert_eq!(world.status("then").phase, PodGroupPhase::Pending);
}
