//! Ports of a group's members. Pure.
//!
//! A node that declares a range of ports gives each to one pod at a time. Members on other nodes have no port: they use
//! those of their framework. Members of one group get the same port on each node if it is free there, because some
//! programs know a single port for all of their workers.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::capacity::NodeCapacities;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::ports::PortRange;
use rcfarm_api::pod_group::spec::PodGroupSpec;
use rcfarm_api::pod_group::status::GroupPlacement;

/// A placed member that needs a port.
struct PortNeeded {
    task: String,
    index: u32,
    node: NodeName,
    range: PortRange,
}

/// Gives a port to each placed member that needs one and has none. A member that gets none loses its node.
///
/// # Errors
/// A node all of whose ports are taken.
pub fn assign(
    node_capacities: &NodeCapacities,
    spec: &PodGroupSpec,
    place: &mut GroupPlacement,
) -> Result<(), String> {
    place.drop_unplaced_ports();
    let (needed, mut in_use) = needed(node_capacities, spec, place);
    let mut rounds: Vec<Vec<&PortNeeded>> = Vec::new();
    let mut on_node: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for one in &needed {
        let round = on_node.entry(&one.node).or_default();
        if rounds.len() == *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push(one);
        *round += 1;
    }
    let mut failure = Ok(());
    for round in rounds {
        let is_free = |one: &PortNeeded, port: u16, in_use: &InUse| {
            one.range.ports().contains(&port)
                && in_use.get(&one.node).is_none_or(|ports| !ports.contains(&port))
        };
        let everywhere = |port: &u16| round.iter().all(|one| is_free(one, *port, &in_use));
        let common = round.first().and_then(|one| one.range.ports().find(everywhere));
        for one in round {
            let own = || one.range.ports().find(|port| is_free(one, *port, &in_use));
            if let Some(port) = common.or_else(own) {
                place.set_port(&one.task, one.index, port);
                in_use.entry(one.node.clone()).or_default().insert(port);
                continue;
            }
            let nodes = place.members.get_mut(&one.task);
            nodes.and_then(|nodes| nodes.get_mut(one.index as usize)).map(Option::take);
            failure = Err(format!("{}: all its ports, {}, are taken", one.node, one.range));
        }
    }
    failure
}

type InUse = BTreeMap<NodeName, BTreeSet<u16>>;

/// Members that need a port, and the ports in use on their nodes.
fn needed(
    node_capacities: &NodeCapacities,
    spec: &PodGroupSpec,
    place: &GroupPlacement,
) -> (Vec<PortNeeded>, InUse) {
    let (mut needed, mut in_use) = (Vec::new(), InUse::new());
    for (task, index, node) in place.placed() {
        let spec = spec.tasks.iter().find(|spec| spec.name == task);
        let Some(range) = node_capacities.of(node).ports else { continue };
        let ports = in_use.entry(node.clone());
        let ports = ports.or_insert_with(|| node_capacities.of(node).ports_in_use());
        if let Some(port) = place.port_of(task, index) {
            ports.insert(port);
        } else if spec.is_some_and(|spec| index < spec.ports) {
            needed.push(PortNeeded { task: task.to_owned(), index, node: node.clone(), range });
        }
    }
    (needed, in_use)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::placing::{bookings, members};
    use crate::placement::capacity::NodeCapacity;
    use rcfarm_api::pod_group::spec::{GroupId, TaskSpec};
    use rcfarm_api::pod_group::status::PlacementState;

    fn node(n: usize) -> NodeName {
        format!("n{n}").parse().unwrap()
    }

    fn nodes(ranges: &[Option<&str>]) -> NodeCapacities {
        let mut all = NodeCapacities::default();
        for (n, range) in ranges.iter().enumerate() {
            let ports = range.map(|range| range.parse().unwrap());
            all.insert(node(n), NodeCapacity { ports, ..NodeCapacity::default() });
        }
        all
    }

    fn group(on: &[usize], ports: u32) -> (PodGroupSpec, GroupPlacement) {
        let replicas = u32::try_from(on.len()).unwrap();
        let (name, resources) = ("w".to_owned(), Default::default());
        let task = TaskSpec { name, replicas, resources, node_selector: String::new(), ports };
        let spec = PodGroupSpec { tasks: vec![task], ..PodGroupSpec::default() };
        let members = [("w".to_owned(), on.iter().map(|n| Some(node(*n))).collect())].into();
        let place = GroupPlacement {
            state: PlacementState::Bound,
            members,
            asks: BTreeMap::new(),
            pod_ids: Default::default(),
            ports: BTreeMap::new(),
            ended: BTreeMap::new(),
            cells: None,
            then: None,
        };
        (spec, place)
    }

    fn ports(place: &GroupPlacement) -> Vec<Option<u16>> {
        (0..4).map(|n| place.port_of("w", n)).collect()
    }

    #[test]
    fn members_on_several_nodes_get_one_port_if_it_is_free() {
        let all = nodes(&[Some("100-109"), Some("105-109"), None]);
        let (spec, mut place) = group(&[0, 1, 2, 0], 4);
        assign(&all, &spec, &mut place).unwrap();
        assert_eq!(ports(&place), [Some(105), Some(105), None, Some(100)]);
        let (spec, mut place) = group(&[0, 1], 1);
        assign(&all, &spec, &mut place).unwrap();
        assert_eq!(ports(&place), [Some(100), None, None, None], "only the first needs one");
    }

    #[test]
    fn member_without_a_port_loses_its_node() {
        let all = nodes(&[Some("100-100")]);
        let (spec, mut place) = group(&[0, 0], 2);
        let why = assign(&all, &spec, &mut place).unwrap_err();
        assert_eq!(why, "n0: all its ports, 100-100, are taken");
        assert_eq!(place.placed().count(), 1);
        assert_eq!(ports(&place)[..2], [Some(100), None]);
    }

    proptest! {
        /// Groups come and go, and some members are placed anew.
        #[test]
        fn no_port_of_a_node_is_given_twice(
            steps in prop::collection::vec((prop::collection::vec(0..3_usize, 1..4), any::<bool>()), 1..30),
        ) {
            let mut all = nodes(&[Some("100-105"), Some("103-110"), None]);
            let mut groups: Vec<(GroupId, GroupPlacement)> = Vec::new();
            for (n, (on, goes)) in steps.into_iter().enumerate() {
                if goes && !groups.is_empty() {
                    let (id, place) = groups.remove(n % groups.len());
                    for booking in bookings(&all, &id, &members(&id, &place), &[]).unwrap() {
                        all.insert(booking.node, booking.room);
                    }
                }
                let id: GroupId = format!("default/g{n}").parse().unwrap();
                let (spec, mut place) = group(&on, 4);
                let whole = assign(&all, &spec, &mut place).is_ok();
                let taken = place.placed().count();
                prop_assert_eq!(whole, taken == on.len());
                for booking in bookings(&all, &id, &[], &members(&id, &place)).unwrap() {
                    all.insert(booking.node, booking.room);
                }
                groups.push((id, place));
                for (node, room) in all.iter() {
                    prop_assert!(room.faults().is_empty(), "{}: {:?}", node, room.faults());
                    let range = room.ports.into_iter().flat_map(PortRange::ports);
                    let range: BTreeSet<u16> = range.collect();
                    prop_assert!(room.ports_in_use().is_subset(&range));
                }
            }
        }
    }
}
