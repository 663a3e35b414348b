//! Measured behaviour of Kubeflow's engine (`kubeflow.md` §1), with its defects fixed.

use super::*;
use crate::job::pod_status::PodFailure;
use JobPhase as P;

#[test]
fn suspend_is_declared_and_takes_everything_back() {
    let mut life = tf(&[("Worker", 2, "Never")], json!({"runPolicy": {"suspend": true}}));
    assert_eq!(life.reconcile(), P::Aborted);
    assert!(life.made.is_empty() && life.status.start_time.is_none());
    let shown = |life: &Scenario| {
        let one = |c: &rcfarm_api::job::status::JobCondition| (c.kind, c.status);
        life.status.conditions.iter().map(one).collect::<Vec<_>>()
    };
    use JobConditionType as C;
    assert_eq!(shown(&life), [(C::Created, true), (C::Suspended, true)]);
    life.document["spec"]["runPolicy"]["suspend"] = json!(false);
    assert_eq!(life.run(), P::Running);
    let first_start = life.status.start_time;
    assert_eq!(shown(&life), [(C::Created, true), (C::Suspended, false), (C::Running, true)]);
    life.end("Worker", 1, 0);
    life.document["spec"]["runPolicy"]["suspend"] = json!(true);
    assert_eq!(life.wait(5), P::Aborted);
    assert!(life.pods.is_empty(), "whatever cleanPodPolicy says");
    assert_eq!((life.status.start_time, life.status.members.running), (first_start, 0));
    assert_eq!(life.command(CommandAction::ResumeJob, None, None), P::Aborted, "the record counts");
    life.document["spec"]["runPolicy"]["suspend"] = json!(false);
    life.wait(5);
    assert_eq!(life.run(), P::Running);
    assert!(life.status.start_time > first_start, "its time begins anew");
}

/// Otherwise `MASTER_ADDR` would be empty.
#[test]
fn nobody_starts_before_the_member_where_all_meet_has_a_place() {
    let member = |n: u32| {
        json!({"replicas": n, "template": {"spec": {"containers": [
            {"name": "pytorch", "command": ["t"]}]}}})
    };
    let mut life = Scenario::new(json!({"kind": "PyTorchJob", "spec": {
        "runPolicy": {"schedulingPolicy": {"minAvailable": 1}},
        "pytorchReplicaSpecs": {"Master": member(1), "Worker": member(2)}}}));
    life.homeless = Some(Slot::new("Master", 0));
    life.reconcile();
    assert!(life.made.is_empty());
    life.homeless = Some(Slot::new("Worker", 1));
    life.reconcile();
    assert_eq!(life.slots(), ["master-0", "worker-0"]);
    life.run();
    life.end("Master", 0, 0);
    assert_eq!(life.status.state.phase, P::Completed);
}

/// `kubeflow.md` §1.5, by the phases of pods at the job's end.
#[test]
fn the_table_of_clean_pod_policies() {
    for (clean, left) in [
        (json!({"cleanPodPolicy": "None"}), vec!["chief-0", "worker-0", "worker-1"]),
        (json!({}), vec!["chief-0", "worker-0", "worker-1"]),
        (json!({"cleanPodPolicy": "Running"}), vec!["chief-0", "worker-0"]),
        (json!({"cleanPodPolicy": "All"}), vec![]),
    ] {
        let run_policy = json!({"runPolicy": clean});
        let mut life = tf(&[("Chief", 1, "Never"), ("Worker", 2, "Never")], run_policy);
        life.run();
        life.end("Worker", 0, 0);
        assert_eq!(life.end("Chief", 0, 0), P::Completed);
        assert_eq!(life.slots(), left, "{clean}");
        let running = u32::from(left.len() == 3);
        assert_eq!(life.status.replica_statuses["Worker"].active, running, "D16");
        assert_eq!(life.group.exists, running > 0, "what runs keeps its place");
    }
}

#[test]
fn kubeflow_members_restart_by_restart_policy() {
    for (restart, code, then) in [
        ("OnFailure", 1, P::Running),
        ("Always", 1, P::Running),
        ("Never", 1, P::Failed),
        ("ExitCode", 1, P::Failed),
        ("ExitCode", 137, P::Running),
    ] {
        let mut life = tf(&[("Worker", 2, restart)], json!({}));
        life.run();
        life.end("Worker", 1, code);
        life.wait(10);
        assert_eq!(life.run(), then, "{restart} {code}");
        let made = if then == P::Running { 3 } else { 2 };
        assert_eq!(life.made.len(), made, "{restart} {code}: and the other one is left alone");
    }
}

/// D6, D7: the status keeps the count when pods are replaced.
#[test]
fn the_backoff_limit_is_reached_also_when_pods_are_made_anew() {
    let mut life = tf(&[("Worker", 2, "ExitCode")], json!({"runPolicy": {"backoffLimit": 3}}));
    for _ in 0..3 {
        life.run();
        life.end("Worker", 0, 137);
        life.wait(600);
    }
    let made = |life: &Scenario| life.made.iter().filter(|(slot, ..)| slot.index == 0).count();
    assert_eq!(made(&life), 4, "three restarts, as with OnFailure");
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.end("Worker", 0, 137), P::Failed);
    assert_eq!(life.status.state.reason, "BackoffLimitExceeded");
    let message =
        "members were restarted 3 times, 3 is the limit; worker-0 ended with exit code 137";
    assert_eq!(life.status.state.message, message);
    assert_eq!(life.slots(), ["worker-0"], "what runs is stopped, what failed stays");

    let limit = |limit: u32| json!({"runPolicy": {"backoffLimit": limit}});
    for (count, made) in [(0, 1), (1, 2)] {
        let mut life = tf(&[("Worker", 1, "ExitCode")], limit(count));
        while life.status.state.phase != P::Failed {
            life.run();
            life.end("Worker", 0, 137);
            life.wait(600);
        }
        assert_eq!(life.made.len(), made, "limit {count}");
    }

    let mut lost = tf(&[("Worker", 1, "ExitCode")], limit(0));
    lost.run();
    let pod = lost.pod("Worker", 0);
    (pod.phase, pod.exit_code) = (PodPhase::Failed, None);
    lost.reconcile();
    lost.wait(600);
    assert_eq!(lost.run(), P::Running, "no fault of its own");
}

/// A run of a node agent's that has failed, of which the agent will make another.
fn fails_in_place(life: &mut Scenario, task: &str, restarts: u32) -> P {
    let time = life.now;
    let pod = life.pod(task, 0);
    let (message, output) = ("it exited with 1".to_owned(), String::new());
    pod.failure = Some(PodFailure { time, exit_code: Some(1), reason: None, message, output });
    (pod.phase, pod.restarts) = (PodPhase::Running, restarts);
    life.reconcile()
}

/// Each of the restarts may run to its end: Kubeflow stops the last one at its start (§1.7).
#[test]
fn restarts_in_place_are_as_many_as_the_backoff_limit() {
    for limit in [0, 1, 3] {
        let policy = json!({"runPolicy": {"backoffLimit": limit}});
        let mut life = tf(&[("Worker", 1, "OnFailure")], policy);
        life.run();
        for restarts in 0..limit {
            assert_eq!(fails_in_place(&mut life, "Worker", restarts), P::Running, "{limit}");
            let pod = life.pod("Worker", 0);
            (pod.failure, pod.restarts) = (None, restarts + 1);
            assert_eq!(life.reconcile(), P::Running, "{limit}: it runs again");
        }
        assert_eq!(fails_in_place(&mut life, "Worker", limit), P::Failed);
        let said = format!(
            "members were restarted {limit} times, {limit} is the limit; worker-0 ended with exit code 1"
        );
        assert_eq!(life.status.state.message, said);
    }
}

/// With `Always` a member that has succeeded is started again, too: that counts before it is done.
#[test]
fn restarts_after_a_success_are_as_many_as_the_backoff_limit() {
    let policy = json!({"runPolicy": {"backoffLimit": 1}});
    let mut life = tf(&[("Worker", 1, "Always")], policy);
    life.run();
    for (restarts, then) in [(0, P::Running), (1, P::Failed)] {
        let pod = life.pod("Worker", 0);
        (pod.phase, pod.restarts, pod.is_due) = (PodPhase::Running, restarts, true);
        assert_eq!(life.reconcile(), then, "after {restarts} restarts");
        if then == P::Running {
            let pod = life.pod("Worker", 0);
            (pod.restarts, pod.is_due) = (restarts + 1, false);
            assert_eq!(life.reconcile(), P::Running);
        }
    }
    assert!(life.status.state.message.ends_with("worker-0 has ended and would be started again"));
}

/// `kubeflow.md` §1.7, but for the limit.
#[test]
fn the_table_of_counted_restarts() {
    use crate::job::members::restarts_in_place;
    for (restart, phase, counted) in [
        ("OnFailure", PodPhase::Running, 3),
        ("Always", PodPhase::Running, 3),
        ("ExitCode", PodPhase::Running, 3),
        ("Never", PodPhase::Running, 0),
        ("OnFailure", PodPhase::Pending, 0),
        ("OnFailure", PodPhase::Failed, 0),
        ("OnFailure", PodPhase::Succeeded, 0),
        ("OnFailure", PodPhase::Unknown, 0),
    ] {
        let job = tf(&[("Worker", 1, restart)], json!({})).job();
        let mut one = pod(Slot::new("Worker", 0), "n1".parse().unwrap(), 0, 0);
        (one.phase, one.restarts) = (phase, 3);
        let members = BTreeMap::from([(one.slot.clone(), &one)]);
        assert_eq!(restarts_in_place(&job, &members), counted, "{restart} {phase:?}");
    }
    let mut life = tf(
        &[("PS", 1, "Always"), ("Worker", 1, "Never")],
        json!({"runPolicy": {"backoffLimit": 3}}),
    );
    life.run();
    life.pod("Worker", 0).restarts = 9;
    life.pod("PS", 0).restarts = 3;
    assert_eq!(life.reconcile(), P::Running);
    // An owner that has not seen its agent wait for the next one.
    life.pod("PS", 0).restarts = 4;
    assert_eq!(life.reconcile(), P::Failed);
}

/// `kubeflow.md` §1.8 and §1.6; negative durations cannot be written here.
#[test]
fn the_tables_of_deadlines_and_times_to_live() {
    use crate::job::plan::triggers::past_deadline;
    let now = Timestamp::from_second(1_000).unwrap();
    for (limit, start, past) in
        [(0, 1_000, true), (2, 1_000, false), (10, 990, true), (11, 990, false), (0, 1_010, false)]
    {
        let start = Timestamp::from_second(start).unwrap();
        assert_eq!(past_deadline(start, Duration::from_secs(limit), now), past, "{limit} {start}");
    }
    let mut life = volcano(&[task("a", 1)], json!({"activeDeadlineSeconds": 100}));
    life.admitted = false;
    assert_eq!(life.wait(1000), P::Pending, "it does not run yet");
    life.admitted = true;
    life.run();
    assert_eq!(life.wait(99), P::Running);
    assert_eq!(life.wait(1), P::Failed);
    assert_eq!(life.status.state.reason, "DeadlineExceeded");

    let mut life = volcano(&[task("a", 1)], json!({"activeDeadlineSeconds": i64::MAX}));
    life.run();
    assert_eq!(life.wait(1_000_000), P::Running, "the longest ends never");

    let mut life = volcano(&[task("a", 1)], json!({"ttlSecondsAfterFinished": 3}));
    life.run();
    assert_eq!(life.wait(1_000), P::Running);
    assert!(!life.finished, "it has not ended");
    assert_eq!(life.end("a", 0, 0), P::Completed);
    life.wait(2);
    assert!(!life.finished);
    life.wait(1);
    assert!(life.finished && life.pods.is_empty());

    let mut life = volcano(&[task("a", 1)], json!({"ttlSecondsAfterFinished": 3}));
    life.run();
    life.command(CommandAction::AbortJob, None, None);
    life.wait(3);
    assert!(life.finished, "an aborted job goes, too");

    let mut life = volcano(&[task("a", 1)], json!({"ttlSecondsAfterFinished": 3, "suspend": true}));
    life.reconcile();
    life.wait(1_000);
    assert!(!life.finished, "a suspended one does not");
}

/// `kubeflow.md` §4.2.
#[test]
fn unowned_pods_of_the_name_are_adopted_as_members() {
    let free = |index: u32, node: &str, is_intended: bool| FreePod {
        slot: Slot::new("Worker", index),
        node: node.parse().unwrap(),
        is_intended,
    };
    let mut life = tf(&[("Worker", 3, "Never")], json!({}));
    life.free = vec![free(1, "n7", true), free(2, "n8", false), free(9, "n9", true)];
    assert_eq!(life.reconcile(), P::Pending);
    assert_eq!(life.slots(), ["worker-0", "worker-1", "worker-2"]);
    assert_eq!(life.pod("Worker", 1).place.node.as_str(), "n7");
    let made: Vec<u32> = life.made.iter().map(|(slot, ..)| slot.index).collect();
    assert_eq!(made, [0, 2], "what is adopted is not made, what is on its way out is");
    assert_eq!(life.run(), P::Running);
    life.pods.retain(|pod| pod.slot.index != 1);
    life.reconcile();
    assert_eq!(life.made.last().unwrap().0.index, 1, "it is missed as if it had been made");

    let mut life = tf(&[("Worker", 1, "Never")], json!({}));
    life.run();
    life.free = vec![free(0, "n7", true)];
    life.reconcile();
    assert_eq!(life.slots(), ["worker-0"], "D2: of two the one that has come furthest stays");
    assert_eq!(life.pod("Worker", 0).place.node.as_str(), "n1");

    let mut life = tf(&[("Worker", 1, "Never")], json!({}));
    life.run();
    life.free = vec![free(0, "n7", true)];
    life.document["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    life.reconcile();
    assert!(life.finished && life.free.len() == 1, "a job that goes adopts nobody");
}

/// `kubeflow.md` §1.3 with D1 to D3: creates missing members in range, removes all other pods.
#[test]
fn the_table_of_slots() {
    for (existing, replicas, made, removed) in [
        (&[][..], 0, &[][..], &[][..]),
        (&[0], 0, &[], &[0]),
        (&[], 1, &[0], &[]),
        (&[0, 1, 2], 4, &[3], &[]),
        (&[0, 1, 2], 1, &[], &[1, 2]),
        (&[0, 4], 3, &[1, 2], &[4]),
        (&[0, 0, 1], 3, &[2], &[0]),
    ] {
        let mut life = volcano(&[task("a", replicas)], json!({"minAvailable": 0}));
        life.reconcile();
        life.pods.clear();
        life.made.clear();
        life.status.memory("a").started = Default::default();
        life.status.memory("a").attempts.clear();
        for (n, index) in (0u64..).zip(existing) {
            let mut one = pod(Slot::new("a", *index), format!("n{n}").parse().unwrap(), 0, 0);
            one.label_index = Index(n + 1);
            life.pods.push(one);
        }
        life.look();
        let indexes = |slots: Vec<&Slot>| slots.iter().map(|slot| slot.index).collect::<Vec<_>>();
        let new = indexes(life.made.iter().map(|(slot, ..)| slot).collect());
        let out = indexes(life.leaving.iter().map(|pod| &pod.slot).collect());
        assert_eq!((&new[..], &out[..]), (made, removed), "{existing:?} of {replicas}");
    }
}
