use proptest::prelude::*;

use super::*;

fn id(n: u8) -> PodId {
    format!("p{n}").parse().unwrap()
}

fn pod(hash: u64, states: &[AgentPodState]) -> AgentPod {
    let processes = states.iter().enumerate().map(|(n, state)| (n.to_string(), *state));
    AgentPod {
        hash,
        single_instance: SingleInstance::NotNeeded,
        may_start: true,
        was_started: true,
        proof: Proof::Gone,
        forget_at: None,
        processes: processes.collect(),
    }
}

fn decide(
    intents: Option<&[(u8, u64)]>,
    guarded: &[u8],
    pods: &[(u8, AgentPod)],
    has_lease: bool,
    now: Duration,
) -> AgentPlan {
    let intents: Option<BTreeMap<PodId, u64>> =
        intents.map(|intents| intents.iter().map(|(n, hash)| (id(*n), *hash)).collect());
    let guarded = guarded.iter().map(|n| id(*n)).collect();
    let pods = pods.iter().map(|(n, pod)| (id(*n), pod.clone())).collect();
    let intents = intents.as_ref();
    let (guarded, pods) = (&guarded, &pods);
    plan(AgentObserved { intents, guarded, pods, can_prove: true, has_lease, now })
}

#[test]
fn plan_accepts_starts_stops_and_forgets_pods_by_their_intents() {
    use AgentAction::{Accept, Forget, Start, Stop};
    let now = Duration::from_secs(3_600);
    let due = AgentPodState::Waiting(now);
    let first = || "0".to_owned();
    let actions =
        |intents, guarded: &[u8], pod| decide(intents, guarded, &[(1, pod)], true, now).actions;
    assert_eq!(decide(Some(&[(1, 7)]), &[], &[], true, now).actions, [Accept(id(1))]);
    assert_eq!(actions(Some(&[(1, 7)]), &[], pod(7, &[due])), [Start(id(1), first())]);
    assert_eq!(actions(Some(&[(1, 7)]), &[], pod(7, &[AgentPodState::Running])), []);
    let gone = "it is no longer intended here";
    assert_eq!(
        actions(Some(&[]), &[], pod(7, &[AgentPodState::Running])),
        [Stop(id(1), first(), gone)]
    );
    assert_eq!(actions(Some(&[]), &[], pod(7, &[AgentPodState::Stopping])), []);
    assert_eq!(actions(Some(&[]), &[], pod(7, &[due, AgentPodState::Ended])), [Forget(id(1))]);
    let changed = "its manifest, devices or ports have changed";
    assert_eq!(
        actions(Some(&[(1, 8)]), &[], pod(7, &[AgentPodState::Running, AgentPodState::Ended])),
        [Stop(id(1), first(), changed)]
    );
    assert_eq!(actions(Some(&[(1, 8)]), &[], pod(7, &[AgentPodState::Unfit])), [Accept(id(1))]);
    // Before the first read, and for guarded pods, nothing stops and waiting processes are started.
    assert_eq!(
        actions(None, &[], pod(7, &[AgentPodState::Running, due])),
        [Start(id(1), "1".into())]
    );
    assert_eq!(actions(Some(&[]), &[1], pod(7, &[AgentPodState::Running])), []);
}

#[test]
fn plan_stops_nothing_without_proof() {
    use AgentAction::{Forget, Prove, Start};
    let now = Duration::from_secs(3_600);
    let due = AgentPodState::Waiting(now);
    let actions = |proof, state| {
        let pod = AgentPod { proof, ..pod(7, &[state]) };
        decide(Some(&[]), &[], &[(1, pod)], true, now).actions
    };
    for state in [AgentPodState::Running, AgentPodState::Ended, due] {
        assert_eq!(actions(Proof::Unasked, state), [Prove(id(1))]);
        assert_eq!(actions(Proof::Asked, state), []);
        assert_eq!(actions(Proof::Unclear(now), state), [Prove(id(1))]);
        assert_eq!(actions(Proof::Unclear(now + Duration::from_secs(1)), state), []);
    }
    assert_eq!(actions(Proof::Lost, AgentPodState::Running), []);
    assert_eq!(actions(Proof::Lost, due), [Start(id(1), "0".into())], "it goes on");
    let never = AgentPod { proof: Proof::Unasked, was_started: false, ..pod(7, &[due]) };
    let forgotten = decide(Some(&[]), &[], &[(1, never)], true, now).actions;
    assert_eq!(forgotten, [Forget(id(1))], "what was never started needs no proof");
}

#[test]
fn plan_starts_nothing_before_it_is_reported() {
    let now = Duration::from_secs(3_600);
    let waiting = AgentPod { may_start: false, ..pod(7, &[AgentPodState::Waiting(now)]) };
    assert_eq!(decide(Some(&[(1, 7)]), &[], &[(1, waiting)], true, now).actions, []);
}

#[test]
fn plan_waits_for_backoff_and_for_single_instance_lease() {
    let now = Duration::from_secs(3_600);
    let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(2));
    let waiting = pod(7, &[AgentPodState::Waiting(later), AgentPodState::Waiting(soon)]);
    let plan = decide(Some(&[(1, 7)]), &[], &[(1, waiting)], true, now);
    assert_eq!((plan.actions, plan.again_at), (vec![], Some(soon)));
    let due = [AgentPodState::Waiting(now), AgentPodState::Waiting(now)];
    let planned = |single_instance, has_lease| {
        let pods = [(1, AgentPod { single_instance, ..pod(7, &due) })];
        decide(Some(&[(1, 7)]), &[], &pods, has_lease, now)
    };
    let actions = |single_instance, has_lease| planned(single_instance, has_lease).actions;
    let start = |n: &str| AgentAction::Start(id(1), n.to_owned());
    for single_instance in
        [SingleInstance::Unchecked, SingleInstance::Checking, SingleInstance::Confirmed]
    {
        let plan = planned(single_instance, false);
        // A renewed lease is no event.
        assert_eq!((plan.actions, plan.again_at), (vec![], Some(soon)), "{single_instance:?}");
    }
    assert_eq!(
        actions(SingleInstance::Unchecked, true),
        [AgentAction::CheckSingleInstance(id(1))],
        "once for both"
    );
    assert_eq!(actions(SingleInstance::Checking, true), []);
    assert_eq!(actions(SingleInstance::Confirmed, true), [start("0"), start("1")]);
    assert_eq!(actions(SingleInstance::NotNeeded, false), [start("0"), start("1")]);
}

proptest! {
    #[test]
    fn plan_stops_unintended_pods_and_forgets_stopped_ones(
        intents in prop::option::of(prop::collection::btree_map(0u8..4, 0u64..2, 0..4)),
        guarded in prop::collection::btree_set(0u8..4, 0..2),
        pods in prop::collection::btree_map(
            0u8..4,
            (0u64..2, prop::collection::vec(0usize..6, 0..3)),
            0..4,
        ),
        has_lease: bool,
    ) {
        let now = Duration::from_secs(3_600);
        let states = [
            AgentPodState::Waiting(now), AgentPodState::Starting, AgentPodState::Running, AgentPodState::Stopping,
            AgentPodState::Ended, AgentPodState::Unfit,
        ];
        let pods: Vec<(u8, AgentPod)> = pods
            .into_iter()
            .map(|(n, (hash, picks))| {
                let picked: Vec<AgentPodState> = picks.iter().map(|pick| states[*pick]).collect();
                (n, pod(hash, &picked))
            })
            .collect();
        let read: Option<Vec<(u8, u64)>> =
            intents.as_ref().map(|intents| intents.iter().map(|(n, h)| (*n, *h)).collect());
        let guarded_ids: Vec<u8> = guarded.iter().copied().collect();
        let plan = decide(read.as_deref(), &guarded_ids, &pods, has_lease, now);
        let known: BTreeMap<PodId, AgentPod> =
            pods.iter().map(|(n, pod)| (id(*n), pod.clone())).collect();
        let hash_of = |wanted: &PodId| {
            let intents = intents.as_ref()?;
            intents.iter().find(|(n, _)| id(**n) == *wanted).map(|(_, hash)| *hash)
        };
        for action in &plan.actions {
            match action {
                AgentAction::Stop(pod, ..) | AgentAction::Forget(pod) => {
                    prop_assert!(intents.is_some());
                    prop_assert!(!guarded.iter().any(|n| id(*n) == *pod));
                    prop_assert_ne!(hash_of(pod), Some(known[pod].hash));
                }
                AgentAction::Prove(_) => prop_assert!(false, "every pod is proved to be gone"),
                AgentAction::Accept(pod) => prop_assert!(hash_of(pod).is_some()),
                AgentAction::CheckSingleInstance(_) => prop_assert!(false, "no pod is a single instance"),
                AgentAction::Start(pod, name) => {
                    prop_assert_eq!(known[pod].processes[name], AgentPodState::Waiting(now));
                }
            }
            if let AgentAction::Forget(pod) = action {
                prop_assert!(!known[pod].processes.values().any(|state| state.is_alive()));
            }
        }
    }
}

#[test]
fn forget_that_could_not_be_stored_waits() {
    let now = Duration::from_secs(60);
    let later = now + Duration::from_secs(5);
    let pod = AgentPod { forget_at: Some(later), ..pod(7, &[AgentPodState::Ended]) };
    let waits = decide(Some(&[]), &[], &[(1, pod.clone())], true, now);
    assert_eq!((waits.actions, waits.again_at), (vec![], Some(later)));
    let due = decide(Some(&[]), &[], &[(1, pod)], true, later);
    assert_eq!(due.actions, [AgentAction::Forget(id(1))]);
}

#[test]
fn single_instance_is_not_checked_before_the_first_list() {
    let now = Duration::from_secs(60);
    let due = AgentPodState::Waiting(now);
    let single = AgentPod { single_instance: SingleInstance::Unchecked, ..pod(7, &[due]) };
    assert_eq!(decide(None, &[], &[(1, single.clone())], true, now).actions, []);
    let listed = decide(Some(&[(1, 7)]), &[], &[(1, single)], true, now);
    assert_eq!(listed.actions, [AgentAction::CheckSingleInstance(id(1))]);
}
