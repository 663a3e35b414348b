use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::node_capacity::{Insufficient, NodeCapacity, PodResources};
use rcfarm_api::ResourceList;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::manifest::{Manifest, PortStanza};

fn manifest(pod: &str, more: &str) -> Manifest {
    Manifest::parse(&format!("id: {pod}\n{more}\n")).unwrap()
}

fn rc(n: u128) -> AllocationOwner {
    AllocationOwner::Rc(RcId(uuid::Uuid::from_u128(n)))
}

fn room(ports: Option<&str>) -> NodeCapacity {
    let ports = ports.map(|range| range.parse().unwrap());
    NodeCapacity { ports, ..NodeCapacity::default() }
}

fn allocate(room: &mut NodeCapacity, n: u128, manifest: &Manifest) -> Result<(), Insufficient> {
    room.allocate_devices(manifest.id(), &rc(n), &PodResources::of_manifest(manifest))
}

fn holds(room: &NodeCapacity, n: u128, manifest: &Manifest) -> bool {
    room.holds_devices(manifest.id(), &rc(n), &PodResources::of_manifest(manifest))
}

fn ports(room: &NodeCapacity, pod: &str) -> BTreeMap<String, u16> {
    room.allocated.pods.get(&pod.parse().unwrap()).map(|a| a.ports.clone()).unwrap_or_default()
}

#[test]
fn a_pod_that_asks_for_ports_alone_is_allocated_them() {
    let mut room = room(Some("100-102"));
    let web = manifest("web", "ports: [{name: http}, {name: admin, port: 101}]");
    assert!(!holds(&room, 1, &web));
    allocate(&mut room, 1, &web).unwrap();
    assert!(holds(&room, 1, &web));
    let given = ports(&room, "web");
    assert_eq!(given["admin"], 101);
    assert!([100, 102].contains(&given["http"]), "of the range, and not the fixed one: {given:?}");
    assert_eq!(room.free_ports(), Some(1));
    // The last port of the range goes to another pod; the next finds none.
    allocate(&mut room, 2, &manifest("b", "ports: [{name: http}]")).unwrap();
    let range = "100-102".parse().unwrap();
    let third = manifest("c", "ports: [{name: http}]");
    assert_eq!(allocate(&mut room, 3, &third), Err(Insufficient::NoPort(range)));
    assert!(room.release(&"web".parse().unwrap(), &rc(1)));
    allocate(&mut room, 3, &third).unwrap();
    assert_eq!(room.faults(), [""; 0]);
}

#[test]
fn fixed_ports_conflict_with_every_pod_of_the_node() {
    let mut room = room(Some("100-199"));
    let member: PodId = "job-worker-0".parse().unwrap();
    let group = AllocationOwner::of_group(&"ns/job".parse().unwrap());
    room.allocate_with_port(&member, &group, &ResourceList::default(), Some(150)).unwrap();
    let web = manifest("web", "ports: [{name: http, port: 8080}]");
    allocate(&mut room, 1, &web).unwrap();
    for (port, holder) in [(150, "job-worker-0"), (8080, "web")] {
        let other = manifest("other", &format!("ports: [{{name: x, port: {port}}}]"));
        let want = PodResources::of_manifest(&other);
        let why = room.insufficient_for(other.id(), &rc(2), &want).unwrap();
        assert_eq!(why.to_string(), format!("pod {holder} has port {port}"));
        assert_eq!(allocate(&mut room, 2, &other), Err(why));
    }
    // A member of a job does not get it either.
    let second: PodId = "job-worker-1".parse().unwrap();
    let refused =
        room.allocate_with_port(&second, &group, &ResourceList::default(), Some(8080)).unwrap_err();
    let pod = "web".parse().unwrap();
    assert_eq!(refused, Insufficient::PortTaken { port: 8080, pod });
    assert!(holds(&room, 1, &web), "nothing is changed");
}

#[test]
fn a_node_without_a_range_gives_fixed_ports_only() {
    let mut room = room(None);
    allocate(&mut room, 1, &manifest("a", "ports: [{name: x, port: 80}]")).unwrap();
    let refused = allocate(&mut room, 2, &manifest("b", "ports: [{name: x}]")).unwrap_err();
    assert_eq!(refused.to_string(), "it gives out no ports (--ports)");
    let unreadable = NodeCapacity { is_unreadable: true, ..room };
    let why = |pod: &Manifest| {
        unreadable.insufficient_for(pod.id(), &rc(3), &PodResources::of_manifest(pod))
    };
    let third = manifest("c", "ports: [{name: x, port: 81}]");
    assert_eq!(why(&third), Some(Insufficient::Unreadable));
}

#[test]
fn a_port_keeps_its_number_while_the_manifest_asks_for_it() {
    let mut room = room(Some("100-199"));
    allocate(&mut room, 1, &manifest("web", "ports: [{name: a}, {name: b}]")).unwrap();
    let before = ports(&room, "web");
    // The range is another one: what is given stays, even though a new port is of the new range.
    room.ports = Some("300-399".parse().unwrap());
    assert!(holds(&room, 1, &manifest("web", "ports: [{name: b}, {name: a}]")));
    assert_eq!(ports(&room, "web"), before);
    room.ports = Some("100-199".parse().unwrap());
    let more = manifest("web", "resources: {}\nports: [{name: 0c}, {name: b}, {name: a}]");
    assert!(!holds(&room, 1, &more));
    allocate(&mut room, 1, &more).unwrap();
    let after = ports(&room, "web");
    assert_eq!((after.len(), after["a"], after["b"]), (3, before["a"], before["b"]));
    // A number of the manifest, which stays once the manifest does not fix it; then no port any more.
    allocate(&mut room, 1, &manifest("web", "ports: [{name: a, port: 42}]")).unwrap();
    assert_eq!(ports(&room, "web"), [("a".to_owned(), 42)].into());
    allocate(&mut room, 1, &manifest("web", "ports: [{name: a}, {name: b}]")).unwrap();
    assert_eq!(ports(&room, "web")["a"], 42);
    room.ports = None;
    allocate(&mut room, 1, &manifest("web", "ports: [{name: a}]")).unwrap();
    assert_eq!(ports(&room, "web"), [("a".to_owned(), 42)].into());
    let without = manifest("web", "");
    assert!(!holds(&room, 1, &without));
    allocate(&mut room, 1, &without).unwrap();
    assert!(room.allocated.pods.is_empty() && holds(&room, 1, &without));
}

#[test]
fn a_port_that_was_left_is_not_the_next_to_be_given() {
    let numbers: Vec<u16> = ["a", "b"]
        .map(|pod| {
            let mut room = room(Some("20000-29999"));
            allocate(&mut room, 1, &manifest(pod, "ports: [{name: http}]")).unwrap();
            ports(&room, pod)["http"]
        })
        .into();
    assert_ne!(numbers[0], numbers[1]);
    let mut again = room(Some("20000-29999"));
    allocate(&mut again, 7, &manifest("a", "ports: [{name: http}]")).unwrap();
    assert_eq!(ports(&again, "a")["http"], numbers[0], "the same pod gets the same");
}

#[test]
fn messages_name_amounts_and_ports() {
    for (more, words) in [
        ("ports: [{name: http}]", "port http"),
        ("resources: {cpu: 1}\nports: [{name: a}, {name: b, port: 80}]", "cpu=1 and ports a, 80"),
        ("resources: {cpu: 1}", "cpu=1"),
    ] {
        assert_eq!(PodResources::of_manifest(&manifest("a", more)).to_string(), words);
    }
}

prop_compose! {
    /// Ports with distinct names, and distinct numbers where they have one.
    fn any_ports()(
        ports in prop::collection::btree_map("[a-d]", prop::option::of(95_u16..106), 0..4),
    ) -> Vec<PortStanza> {
        let mut numbers = BTreeSet::new();
        let ports = ports.into_iter().filter(|(_, port)| port.is_none_or(|port| numbers.insert(port)));
        ports.map(|(name, port)| PortStanza { name, port }).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Rc(Vec<PortStanza>),
    Member(u16),
    Release,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_ports().prop_map(Step::Rc),
        2 => (95_u16..106).prop_map(Step::Member),
        1 => Just(Step::Release),
    ]
}

proptest! {
    /// Pods of RCs and members of jobs come, change and go on one node.
    #[test]
    fn no_port_of_a_node_is_given_twice_to_anybody(
        steps in prop::collection::vec((0..6_u128, any_step()), 1..40),
        has_range in any::<bool>(),
    ) {
        let mut room = room(has_range.then_some("100-103"));
        for (n, step) in steps {
            let (pod, owner): (PodId, _) = (format!("p{n}").parse().unwrap(), match n < 4 {
                true => rc(n),
                false => AllocationOwner::of_group(&format!("ns/g{n}").parse().unwrap()),
            });
            let none = ResourceList::default();
            let before = room.clone();
            let want = match &step {
                Step::Rc(ports) => PodResources { named_ports: ports, ..PodResources::of_amounts(&none) },
                Step::Member(port) => PodResources { port: Some(*port), ..PodResources::of_amounts(&none) },
                Step::Release => PodResources::of_amounts(&none),
            };
            let fits = room.holds_devices(&pod, &owner, &want)
                || room.insufficient_for(&pod, &owner, &want).is_none();
            let given = room.allocate_devices(&pod, &owner, &want);
            prop_assert_eq!(given.is_ok(), fits, "{:?}", given);
            prop_assert!(room.faults().is_empty(), "{:?}", room.faults());
            if given.is_err() {
                prop_assert_eq!(&room, &before);
                continue;
            }
            prop_assert!(room.holds_devices(&pod, &owner, &want));
            let Step::Rc(ports) = step else { continue };
            for port in ports {
                let number = room.allocated.pods[&pod].ports[&port.name];
                let old = before.allocated.pods.get(&pod).and_then(|old| old.ports.get(&port.name));
                if let Some(fixed) = port.port {
                    prop_assert_eq!(number, fixed);
                } else if old != Some(&number) {
                    prop_assert!((100..=103).contains(&number), "a new one is of the range");
                    // Only another port of the pod, which is fixed, may have the old number.
                    let mut own = room.allocated.pods[&pod].ports.values();
                    prop_assert!(old.is_none() || own.any(|other| Some(other) == old));
                }
            }
        }
    }
}
