//! Random inputs of the plan.

use super::*;

prop_compose! {
    fn any_pod()(
        n in 0usize..10,
        old_id in prop::bool::weighted(0.1),
        intent in 0..3,
        drifted in prop::bool::weighted(0.2),
        health in 0usize..4,
        index in 10u64..99,
    ) -> (PodRef, RcPod) {
        let spec = spec(0);
        let mut pod = pod(&spec, index);
        pod.intent = match intent {
            0 => Intent::Missing,
            1 => Intent::Differs(Index(index)),
            _ => Intent::Same(Index(index)),
        };
        if drifted {
            pod.labels.insert("team".to_owned(), "b".to_owned());
        }
        pod.health =
            [Health::Passing, Health::Critical, Health::Absent, Health::Unknown][health];
        (pod_ref(n, if old_id { "old" } else { "web" }), pod)
    }
}

prop_compose! {
    pub(super) fn any_world()(
        desired in 0u32..12,
        pods in prop::collection::vec(any_pod(), 0..10),
        eligible in prop::collection::btree_set(0usize..10, 0..10),
        readiness in prop::collection::btree_map(0usize..10, prop::bool::ANY, 0..4),
        min_health in prop::option::of(0u32..8),
        occupied in prop::collection::btree_map(0usize..10, prop::bool::ANY, 0..4),
        allowed_actions in 0usize..4,
        dynamic in prop::bool::ANY,
        disabled in prop::bool::weighted(0.1),
        (synced, locked, in_order) in prop::array::uniform3(prop::bool::ANY).prop_map(|[a, b, c]| (a, b, c)),
        want in 0u64..3,
        cpus in prop::collection::vec((0u64..5, 0u64..4, 0u64..3), 10),
        given in prop::collection::btree_map(0usize..10, prop::bool::ANY, 0..4),
        surplus in 0usize..3,
    ) -> Fixture {
        let mut fixture = Fixture::resting(desired, 0, 0);
        for (pod_ref, pod) in pods {
            // One pod of an RC per node, as the layout has it.
            if !fixture.pods.keys().any(|other| other.node == pod_ref.node) {
                fixture.pods.insert(pod_ref, pod);
            }
        }
        let taken = |n: &usize| fixture.pods.contains_key(&pod_ref(*n, "web"));
        // Pods of a disabled RC, of which it does not want some.
        let given = given.into_iter().filter(|(n, _)| !taken(n));
        let given: BTreeMap<NodeName, RcPod> = given
            .map(|(n, is_passing)| {
                let health = if is_passing { Health::Passing } else { Health::Critical };
                (node(n), RcPod { health, ..pod(&spec(0), n as u64) })
            })
            .collect();
        let giver = RcId(uuid::Uuid::from_u128(8));
        fixture.occupied = occupied
            .into_iter()
            .filter(|(n, _)| !taken(n))
            .map(|(n, ours)| (node(n), if ours { SlotState::Ours(Index(5)) } else { SlotState::Other }))
            .chain(given.keys().map(|node| (node.clone(), SlotState::Other)))
            .collect();
        let is_given = |n: usize| given.contains_key(&node(n));
        let own_of_giver = |n: usize| is_given(n).then_some(AllocationOwner::Rc(giver));
        fixture.eligible = eligible.into_iter().map(node).collect();
        fixture.allowed_actions = [AllowedActions::Full, AllowedActions::Full, AllowedActions::NoRemoval, AllowedActions::Nothing][allowed_actions];
        fixture.spec.strategy = if dynamic { Allocation::Dynamic } else { Allocation::Static };
        fixture.readiness = readiness
            .into_iter()
            .map(|(n, down)| (node(n), if down { NodeReadiness::Down } else { NodeReadiness::Draining }))
            .collect();
        fixture.spec.min_health = min_health;
        fixture.spec.disabled = disabled;
        fixture.spec.in_order = in_order;
        (fixture.synced, fixture.locked) = (synced, locked);
        if want > 0 {
            let text = format!("id: web\nresources: {{cpu: {want}}}\n");
            fixture.spec.manifest = Manifest::parse(&text).unwrap();
        }
        for (n, (capacity, others, own)) in cpus.into_iter().enumerate() {
            let cpu = |n: u64| format!("cpu={n}").parse().unwrap();
            let mut room = NodeCapacity { capacity: cpu(capacity), ..NodeCapacity::default() };
            let _ = room.allocate(&"other".parse().unwrap(), &AllocationOwner::Other("job/x".to_owned()), &cpu(others));
            for pod_ref in fixture.pods.keys().filter(|pod_ref| pod_ref.node == node(n)) {
                let _ = room.allocate(&pod_ref.pod, &fixture.spec.owner(), &cpu(own));
            }
            if let Some(giver) = own_of_giver(n) {
                let _ = room.allocate(fixture.spec.manifest.id(), &giver, &cpu(own));
            }
            fixture.capacities.insert(node(n), room);
        }
        if surplus > 0 && !given.is_empty() {
            let surplus = SurplusPods { record: Index(77), surplus: surplus.min(given.len()), pods: given };
            fixture.surplus.insert(giver, surplus);
        }
        fixture
    }
}
