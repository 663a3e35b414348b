//! Behaviour of Volcano jobs (`volcano.md` §5.2, §5.4), and invariants under random events.

use super::*;
use JobPhase as P;

#[test]
fn a_job_waits_for_its_place_runs_and_is_completed() {
    let mut life = volcano(&[task("a", 2), task("b", 1)], json!({}));
    life.admitted = false;
    assert_eq!(life.reconcile(), P::Pending);
    assert!(life.pods.is_empty(), "no pod before the group has its place");
    assert_eq!(life.status.state.reason, "WaitingForAdmission");
    life.admitted = true;
    assert_eq!(life.reconcile(), P::Pending);
    assert_eq!(life.slots(), ["a-0", "a-1", "b-0"]);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.status.start_time, Some(life.now));
    assert_eq!(life.end("a", 0, 0), P::Running);
    life.end("a", 1, 0);
    assert_eq!(life.end("b", 0, 0), P::Completed);
    assert_eq!(life.phases, [P::Pending, P::Running, P::Completed]);
    assert_eq!(life.status.members.succeeded, 3, "what has ended stays, and is counted");
    assert!(!life.group.exists, "its place is given back");
    assert_eq!(life.status.task_status_count["a"][&PodPhase::Succeeded], 2);
}

#[test]
fn deleted_status_is_rebuilt_from_pods() {
    let mut life = volcano(&[task("a", 2)], policy("PodFailed", "RestartJob"));
    life.run();
    assert_eq!(life.end("a", 0, 1), P::Pending);
    life.wait(10);
    assert_eq!(life.run(), P::Running);
    life.command(CommandAction::RestartPod, Some("a"), Some(1));
    assert_eq!(life.run(), P::Running);
    life.group.round = 4;
    let (before, pods) = (std::mem::take(&mut life.status), life.pods.clone());
    assert_eq!(life.reconcile(), P::Running);
    assert_eq!(life.pods, pods, "nothing is started again");
    assert_eq!((life.status.version, life.status.round), (1, 4));
    assert_eq!(life.status.tasks["a"].started, before.tasks["a"].started);
    // A new attempt has a number of its own: `check` compares them.
    life.end("a", 1, 1);
    life.wait(10);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.status.version, 2);
}

/// Policies, event, and the phases expected afterwards.
type Sequence<'a> = (Value, &'a dyn Fn(&mut Scenario), &'a [JobPhase]);

/// `volcano.md` §5.2, job_error_handling: assertions per policy.
#[test]
fn the_sequences_of_volcanos_error_handling() {
    let fails = |life: &mut Scenario| {
        life.end("a", 0, 1);
    };
    let evicts = |life: &mut Scenario| {
        life.pods.retain(|pod| pod.slot != Slot::new("a", 0));
        life.reconcile();
    };
    let exits_3 = |life: &mut Scenario| {
        life.end("a", 0, 3);
    };
    let done = |life: &mut Scenario| {
        life.end("a", 0, 0);
        life.end("a", 1, 0);
    };
    let unknown = |life: &mut Scenario| {
        life.group.unknown = true;
        life.reconcile();
    };
    let restarted = |life: &mut Scenario| {
        life.pod("a", 0).restarts = 4;
        life.reconcile();
    };
    let exit_code = json!({"policies": [{"exitCode": 3, "action": "RestartJob"}]});
    let many =
        json!({"policies": [{"events": ["PodEvicted", "PodFailed"], "action": "TerminateJob"}]});
    let cases: Vec<Sequence<'_>> = vec![
        (policy("PodFailed", "RestartJob"), &fails, &[P::Restarting, P::Pending]),
        (policy("PodFailed", "TerminateJob"), &fails, &[P::Terminating, P::Terminated]),
        (policy("PodFailed", "AbortJob"), &fails, &[P::Aborting, P::Aborted]),
        (policy("PodFailed", "RestartTask"), &fails, &[P::Restarting, P::Pending]),
        (policy("PodEvicted", "RestartJob"), &evicts, &[P::Restarting, P::Pending]),
        (policy("PodEvicted", "TerminateJob"), &evicts, &[P::Terminating, P::Terminated]),
        (policy("PodEvicted", "AbortJob"), &evicts, &[P::Aborting, P::Aborted]),
        (policy("*", "RestartJob"), &evicts, &[P::Restarting, P::Pending]),
        (policy("Unknown", "RestartJob"), &unknown, &[P::Restarting, P::Pending]),
        (policy("Unknown", "AbortJob"), &unknown, &[P::Aborting, P::Aborted]),
        (policy("TaskCompleted", "CompleteJob"), &done, &[P::Completing, P::Completed]),
        (policy("TaskFailed", "TerminateJob"), &restarted, &[P::Terminating, P::Terminated]),
        (exit_code, &exits_3, &[P::Restarting, P::Pending]),
        (many, &evicts, &[P::Terminating, P::Terminated]),
        (json!({}), &fails, &[]),
    ];
    for (policies, happens, then) in cases {
        let mut life = volcano(&[task("a", 2), task("b", 1)], policies.clone());
        assert_eq!(life.run(), P::Running);
        happens(&mut life);
        assert_eq!(life.phases[2..], *then, "{policies}");
        if then.last() == Some(&P::Pending) {
            life.group.unknown = false;
            life.wait(60);
            assert_eq!(life.run(), P::Running, "{policies}");
        }
    }
}

#[test]
fn a_members_restart_is_not_taken_for_its_eviction() {
    let policies = json!({"policies": [{"event": "PodFailed", "action": "RestartPod"},
        {"event": "PodEvicted", "action": "TerminateJob", "timeout": "5m"}]});
    let mut life = volcano(&[task("a", 2)], policies);
    life.run();
    life.end("a", 1, 1);
    life.wait(10);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.wait(600), P::Running);
    assert_eq!(life.phases, [P::Pending, P::Running, P::Restarting, P::Pending, P::Running]);
    assert_eq!(life.made.len(), 3, "the other member was left alone");
}

/// Differs: Volcano makes N - 1 restarts for `maxRetry: N`.
#[test]
fn f_j21_job_fails_after_max_retry_and_keeps_the_failed_pod() {
    let mut more = policy("PodFailed", "RestartJob");
    more["maxRetry"] = json!(2);
    let mut life = volcano(&[task("fails", 1), task("sleeps", 1)], more);
    for retries in 0..=2 {
        assert_eq!(life.status.retry_count, retries);
        life.wait(60);
        assert_eq!(life.run(), P::Running);
        life.end("fails", 0, 1);
    }
    assert_eq!((life.status.state.phase, life.status.retry_count), (P::Failed, 2));
    assert_eq!(life.status.state.reason, "MaxRetryReached");
    assert_eq!(life.slots(), ["fails-0"], "with its logs");
    assert_eq!(life.status.members.failed, 1);
}

#[test]
fn f_j22_completed_task_completes_job_and_keeps_its_pod() {
    let mut life = volcano(&[task("a", 1), task("b", 1)], policy("TaskCompleted", "CompleteJob"));
    life.run();
    assert_eq!(life.end("a", 0, 0), P::Completed);
    assert_eq!((life.slots(), life.status.retry_count), (vec!["a-0".to_owned()], 0));
}

#[test]
fn f_j23_a_restart_of_a_task_takes_its_members_and_no_other() {
    let mut life = volcano(&[task("task1", 2), task("task2", 1)], json!({}));
    life.run();
    life.command(CommandAction::RestartTask, Some("task1"), None);
    let again: Vec<String> = life.made[3..].iter().map(|(slot, ..)| slot.to_string()).collect();
    assert_eq!(again, ["task1-0", "task1-1"]);
    assert_eq!(life.status.retry_count, 0, "a person's restart is no retry");
    life.run();
    for (task, index) in [(Some("x"), None), (Some("task1"), Some(9)), (None, None)] {
        let action =
            if index.is_some() { CommandAction::RestartPod } else { CommandAction::RestartTask };
        assert_eq!(life.command(action, task, index), P::Running, "nothing, and no error");
    }
    assert_eq!(life.made.len(), 5);
}

/// Differs: a restart of the whole job keeps its group and nodes.
#[test]
fn f_j24_group_is_deleted_on_stop_and_kept_on_restart() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    life.command(CommandAction::RestartPod, Some("a"), Some(1));
    assert!(life.group.exists);
    life.run();
    life.command(CommandAction::RestartJob, None, None);
    assert!(life.group.exists);
    life.run();
    life.command(CommandAction::AbortJob, None, None);
    assert!(!life.group.exists);
}

#[test]
fn f_j26_dependent_tasks_start_when_enough_pods_are_ready() {
    let with = |min: u32| {
        let mut first = task("task1", 2);
        first["minAvailable"] = json!(min);
        let mut second = task("task2", 1);
        second["dependsOn"] = json!({"name": ["task1"]});
        let mut life = volcano(&[first, second], json!({"minAvailable": 1}));
        life.reconcile();
        assert_eq!(life.slots(), ["task1-0", "task1-1"]);
        life
    };
    let mut life = with(2);
    life.end("task1", 0, 0);
    assert_eq!(life.slots().len(), 2);
    life.end("task1", 1, 0);
    assert!(life.slots().contains(&"task2-0".to_owned()), "two have succeeded");
    let mut life = with(1);
    life.pod("task1", 0).phase = PodPhase::Running;
    life.reconcile();
    assert_eq!(life.slots().len(), 2, "it runs and is not ready");
    life.pod("task1", 0).ready = true;
    life.reconcile();
    assert!(life.slots().contains(&"task2-0".to_owned()));
}

#[test]
fn job_restart_waits_for_old_members_and_backoff() {
    let mut life = volcano(&[task("a", 2)], policy("PodFailed", "RestartJob"));
    life.run();
    let pod = life.pod("a", 0);
    (pod.phase, pod.exit_code) = (PodPhase::Failed, Some(1));
    life.look();
    assert_eq!(life.status.state.phase, P::Restarting);
    life.now = life.now.checked_add(Duration::from_secs(3600)).unwrap();
    for _ in 0..5 {
        life.look();
    }
    assert_eq!(life.made.len(), 2, "an old member is still on its way out");
    life.leaving.clear();
    life.reconcile();
    assert_eq!(life.made.len(), 4);
    assert!(life.made[2..].iter().all(|(_, version, _)| *version == 1));
    life.run();
    for (n, pause) in [(2_u32, 20), (3, 40)] {
        life.end("a", 1, 1);
        assert_eq!(life.status.retry_count, n);
        let made = life.made.len();
        life.wait(pause - 1);
        assert_eq!(life.status.state.reason, "RestartDelayed");
        assert_eq!(life.made.len(), made, "not before {pause} s");
        life.wait(1);
        assert_eq!(life.made.len(), made + 2);
        life.run();
    }
}

#[test]
fn what_is_put_off_is_done_in_time_or_dropped_when_it_mends() {
    let policies = json!({"policies": [
        {"event": "PodPending", "action": "RestartJob", "timeout": "60s"},
        {"event": "PodFailed", "action": "AbortJob", "timeout": "100s"}]});
    let mut life = volcano(&[task("a", 1)], policies.clone());
    life.reconcile();
    life.wait(59);
    assert_eq!(life.status.delayed.len(), 1, "it stands in the status, so it survives its owner");
    assert_eq!(life.wait(1), P::Pending);
    assert_eq!(life.phases, [P::Pending, P::Restarting, P::Pending]);

    let mut life = volcano(&[task("a", 1), task("b", 1)], policies);
    life.run();
    assert!(life.status.delayed.is_empty(), "they run");
    assert_eq!(life.wait(600), P::Running);
    life.end("a", 0, 1);
    assert_eq!(life.wait(99), P::Running);
    assert_eq!(life.wait(1), P::Aborted);
}

#[test]
fn abort_resume_terminate_and_what_a_person_may_ask() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    life.end("a", 0, 0);
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert_eq!(life.slots(), ["a-0"], "what has ended stays");
    assert_eq!(life.command(CommandAction::RestartJob, None, None), P::Aborted);
    life.command(CommandAction::ResumeJob, None, None);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.made.len(), 3, "only what was stopped is started again");
    assert_eq!(life.status.retry_count, 0, "to go on is no retry");
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert_eq!(life.command(CommandAction::TerminateJob, None, None), P::Terminated);
    assert_eq!(life.command(CommandAction::ResumeJob, None, None), P::Terminated);

    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    let job = life.id.clone();
    let other = Target::Job { job, uid: Some(Index(6)), task: None, index: None };
    assert_eq!(life.give(CommandAction::TerminateJob, other), P::Running, "meant for an older job");
}

#[test]
fn a_job_is_scaled_up_and_down_from_its_end() {
    let mut life = volcano(&[task("a", 2)], json!({"minAvailable": 1}));
    life.run();
    life.document["spec"]["tasks"][0]["replicas"] = json!(4);
    life.run();
    assert_eq!(life.slots(), ["a-0", "a-1", "a-2", "a-3"]);
    life.document["spec"]["tasks"][0]["replicas"] = json!(1);
    life.reconcile();
    assert_eq!(life.slots(), ["a-0"]);
    assert_eq!(life.status.state.phase, P::Running);
}

/// [`Scenario::look`] checks the group's spec.
#[test]
fn a_task_of_nobody_holds_the_others_up_no_more() {
    let mut life = volcano(&[task("a", 0), task("b", 1)], json!({}));
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.slots(), ["b-0"]);
}

/// [`Scenario::check`] refuses an attempt that is created twice.
#[test]
fn scaled_up_members_return_as_new_attempts() {
    for at_once in [false, true] {
        let mut more = policy("PodEvicted", "TerminateJob");
        more["minAvailable"] = json!(1);
        let mut life = volcano(&[task("a", 4)], more);
        life.run();
        life.document["spec"]["tasks"][0]["replicas"] = json!(1);
        life.look();
        assert_eq!(life.slots(), ["a-0"]);
        if !at_once {
            life.reconcile();
        }
        life.document["spec"]["tasks"][0]["replicas"] = json!(4);
        assert_eq!(life.run(), P::Running, "nobody was evicted");
        assert_eq!(life.slots().len(), 4);
        assert!(life.made[4..].iter().all(|(_, version, attempt)| (*version, *attempt) == (0, 1)));
    }
}

#[test]
fn a_suspended_job_goes_on_whenever_its_record_says_so() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    life.document["spec"]["suspend"] = json!(true);
    life.look();
    assert_eq!(life.status.state.phase, P::Aborting, "its pods are still stopping");
    life.document["spec"]["suspend"] = json!(false);
    assert_eq!(life.run(), P::Running);
    life.document["spec"]["suspend"] = json!(true);
    assert_eq!(life.reconcile(), P::Aborted);
    assert_eq!(life.status.state.reason, "Suspended");
    // A message written meanwhile does not end the suspension.
    life.status.say_meanwhile(JobReason::Quarantined, "the disk is full");
    life.document["spec"]["suspend"] = json!(false);
    assert_eq!(life.run(), P::Running);
    // An abort by a user outlasts a suspension.
    life.command(CommandAction::AbortJob, None, None);
    for suspend in [true, false] {
        life.document["spec"]["suspend"] = json!(suspend);
        assert_eq!(life.reconcile(), P::Aborted);
        assert_eq!(life.status.state.reason, "Stopped");
    }
}

#[test]
fn a_command_for_nobody_starts_no_member_of_a_suspended_job() {
    let mut life = volcano(&[task("a", 1)], json!({"suspend": true}));
    life.command(CommandAction::RestartTask, Some("b"), None);
    assert!(life.made.is_empty(), "{:?}", life.made);
    assert_eq!(life.status.state.phase, P::Aborted);
}

#[test]
fn phase_reason_returns_after_a_temporary_one() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    assert_eq!(life.end("a", 0, 0), P::Completed);
    let state = life.status.state.clone();
    life.document["spec"]["queue"] = json!("other");
    life.reconcile();
    assert_eq!(life.status.state.reason, "ShapeChanged");
    life.status.say_meanwhile(JobReason::InvalidRecord, "spec.teh");
    life.document["spec"].as_object_mut().unwrap().remove("queue");
    life.reconcile();
    assert_eq!(life.status.state, state);
}

#[test]
fn delayed_actions_end_with_a_command_on_the_job() {
    let policies =
        json!({"policies": [{"event": "PodFailed", "action": "TerminateJob", "timeout": "100s"}]});
    let failed = || {
        let mut life = volcano(&[task("a", 1), task("b", 1)], policies.clone());
        life.run();
        life.end("a", 0, 1);
        assert_eq!(life.status.delayed.len(), 1);
        life
    };
    let mut life = failed();
    life.document["spec"]["suspend"] = json!(true);
    assert_eq!(life.reconcile(), P::Aborted);
    assert_eq!(life.wait(200), P::Aborted);
    life.document["spec"]["suspend"] = json!(false);
    assert_eq!(life.run(), P::Running);
    let mut life = failed();
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert_eq!(life.wait(200), P::Aborted);
    life.command(CommandAction::ResumeJob, None, None);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.wait(200), P::Running);
    let mut life = failed();
    life.command(CommandAction::RestartPod, Some("b"), Some(0));
    life.run();
    assert_eq!(life.wait(200), P::Terminated, "it was about another pod");
}

#[test]
fn a_restart_of_a_task_that_was_put_off_is_that_tasks() {
    let more =
        json!({"policies": [{"event": "TaskFailed", "action": "RestartTask", "timeout": "10s"}]});
    let mut life = volcano(&[task("a", 2), task("b", 1)], more);
    life.run();
    life.pod("a", 1).restarts = 4;
    life.pod("b", 0).restarts = 4;
    life.reconcile();
    assert_eq!(life.status.delayed.len(), 2, "one for each task");
    life.wait(10);
    life.wait(60);
    assert_eq!(life.run(), P::Running);
    let again: BTreeSet<String> =
        life.made[3..].iter().map(|(slot, ..)| slot.to_string()).collect();
    assert_eq!(again.into_iter().collect::<Vec<_>>(), ["a-0", "a-1", "b-0"]);
    assert_eq!(life.made.len(), 6, "once each");
}

#[test]
fn pauses_grow_with_failures_and_not_with_commands() {
    let mut life = volcano(&[task("a", 2)], policy("PodFailed", "RestartPod"));
    life.run();
    for _ in 0..5 {
        life.command(CommandAction::RestartPod, Some("a"), Some(0));
        life.run();
    }
    for pause in [10, 20] {
        let made = life.made.len();
        life.end("a", 0, 1);
        life.wait(pause - 1);
        assert_eq!(life.made.len(), made, "not before {pause} s");
        life.wait(1);
        assert_eq!(life.made.len(), made + 1);
        life.run();
    }
}

#[test]
fn a_member_that_was_scaled_away_comes_back_as_another_try() {
    let mut life = volcano(&[task("a", 3)], policy("PodEvicted", "RestartJob"));
    life.document["spec"]["minAvailable"] = json!(1);
    life.run();
    for (replicas, tries) in [(1, 1), (3, 2), (1, 2), (2, 3)] {
        life.document["spec"]["tasks"][0]["replicas"] = json!(replicas);
        life.run();
        assert_eq!(life.slots().len(), replicas);
        let made = life.made.iter().filter(|(slot, ..)| *slot == Slot::new("a", 1));
        assert_eq!(made.count(), tries, "of {replicas}");
    }
    assert_eq!(life.status.version, 0, "and nobody takes it for an eviction");
}

#[test]
fn what_may_not_change_is_reported_and_changes_nothing() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    let before = life.status.clone();
    for (field, value) in [("queue", json!("other")), ("tasks", json!([task("b", 1)]))] {
        let was = life.document["spec"][field].take();
        life.document["spec"][field] = value;
        assert_eq!(life.reconcile(), P::Running);
        assert_eq!(life.status.state.reason, "ShapeChanged");
        assert_eq!((life.slots(), life.step), (vec!["a-0".to_owned()], GroupStep::Leave));
        life.document["spec"][field] = was;
        if field == "queue" {
            life.document["spec"].as_object_mut().unwrap().remove("queue");
        }
        life.reconcile();
        assert_eq!(life.status, before);
    }
}

#[test]
fn members_on_lost_nodes_are_made_elsewhere_once() {
    let mut life = tf(&[("Worker", 2, "Never")], json!({}));
    life.run();
    life.pod("Worker", 1).lost = true;
    life.reconcile();
    assert_eq!(life.made.len(), 3);
    assert_eq!(life.made[2].2, 1, "as another try");
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.status.retry_count, 0);
}

#[test]
fn missing_batched_pods_restart_as_the_same_attempt() {
    let mut life = volcano(&[task("a", 5)], policy("PodFailed", "RestartJob"));
    (life.room, life.missed) = (2, 2);
    while life.pods.is_empty() {
        life.look();
    }
    let memory = &life.status.tasks["a"];
    assert_eq!(memory.starting.iter().collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(life.slots(), ["a-0", "a-1", "a-2", "a-4"]);
    assert_eq!(life.status.members.pending, 5, "all of them count");
    life.look();
    assert_eq!(life.slots().len(), 5);
    assert!(life.made.iter().all(|(_, _, attempt)| *attempt == 0));
    assert_eq!(life.run(), P::Running);
    assert!(!life.status.is_starting() && life.status.tasks["a"].attempts.is_empty());
}

#[test]
fn batched_start_of_a_stopped_job_is_rolled_back() {
    for (action, then) in
        [(CommandAction::AbortJob, P::Aborted), (CommandAction::RestartJob, P::Running)]
    {
        let mut life = volcano(&[task("a", 5)], json!({}));
        (life.room, life.missed) = (1, 2);
        while life.pods.is_empty() {
            life.look();
        }
        assert_eq!(life.slots(), ["a-0", "a-1", "a-3"]);
        life.missed = usize::MAX;
        life.command(action, None, None);
        life.run();
        assert_eq!(life.status.state.phase, then);
        let tries = life.status.tasks["a"].attempts.clone();
        assert_eq!(tries.keys().copied().collect::<Vec<_>>(), [0, 1, 3], "those that were made");
        assert_eq!(life.pods.len(), if then == P::Aborted { 0 } else { 5 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// With random events and partial writes: [`Scenario::check`] holds, no member runs twice, and the job becomes
    /// idle.
    #[test]
    fn no_life_breaks_a_rule(
        steps in prop::collection::vec((0u8..13, 0u32..3), 0..24),
        room in 1usize..5,
        missed in 1usize..5,
        event in prop::sample::select(vec!["PodFailed", "PodEvicted", "TaskCompleted", "*"]),
        action in prop::sample::select(
            vec!["RestartJob", "RestartTask", "RestartPod", "AbortJob", "TerminateJob", "CompleteJob"],
        ),
    ) {
        let mut life = volcano(&[task("a", 3), task("b", 1)], policy(event, action));
        life.document["spec"]["minAvailable"] = json!(2);
        (life.room, life.missed) = (room, missed);
        for (what, n) in steps {
            let index = usize::try_from(n).unwrap();
            match what {
                0 => { life.run(); }
                1..=2 if index < life.pods.len() => {
                    let pod = &mut life.pods[index];
                    (pod.phase, pod.exit_code) = (PodPhase::Failed, Some(1));
                }
                3..=4 if index < life.pods.len() => life.pods[index].phase = PodPhase::Succeeded,
                // Removed before its start was noted, it may be created again with the same attempt number.
                5 if index < life.pods.len() && !life.status.is_starting() => drop(life.pods.remove(index)),
                6 if index < life.pods.len() => life.pods[index].lost = true,
                7 => { life.command(CommandAction::RestartPod, Some("a"), Some(n)); }
                8 if n == 0 => { life.command(CommandAction::AbortJob, None, None); }
                9 => { life.command(CommandAction::ResumeJob, None, None); }
                10 => life.admitted = n > 0,
                11 => life.document["spec"]["tasks"][0]["replicas"] = json!(n + 1),
                _ => {
                    life.look();
                    life.now = life.now.checked_add(Duration::from_secs(7)).unwrap();
                }
            }
        }
        life.admitted = true;
        life.wait(100_000);
        let phase = life.status.state.phase;
        prop_assert!(phase.starts_members() || phase.is_final() || phase == P::Aborted, "{phase}");
    }
}

#[test]
fn a_gang_with_taken_ids_does_not_start_in_part() {
    let mut life = volcano(&[task("w", 3)], json!({"minAvailable": 3}));
    life.taken.insert(Slot::new("w", 1));
    life.reconcile();
    assert_eq!(life.slots(), [""; 0]);
    assert_eq!(life.status.state.reason, JobReason::PlaceTaken.to_string());
    life.taken.clear();
    assert_eq!(life.run(), JobPhase::Running);
    assert_eq!(life.slots(), ["w-0", "w-1", "w-2"]);
    let mut life = volcano(&[task("w", 3)], json!({"minAvailable": 2}));
    life.taken.insert(Slot::new("w", 1));
    life.reconcile();
    assert_eq!(life.slots(), ["w-0", "w-2"], "enough to start");
}

/// A node is lost, and there is no other.
#[test]
fn restarted_gang_with_a_member_without_node_waits_whole() {
    let mut life = volcano(&[task("a", 3)], policy("PodFailed", "RestartJob"));
    assert_eq!(life.run(), JobPhase::Running);
    life.homeless = Some(Slot::new("a", 2));
    life.end("a", 0, 1);
    assert_eq!(life.wait(20), JobPhase::Pending);
    assert!(life.pods.is_empty(), "{:?}", life.slots());
    assert_eq!(life.status.round, 1, "all are placed again");
    assert_eq!(life.status.state.reason, "WaitingForAdmission");
    life.wait(60);
    assert_eq!((life.pods.len(), life.status.round), (0, 1));
    life.homeless = None;
    assert_eq!(life.wait(1), JobPhase::Pending);
    assert_eq!(life.run(), JobPhase::Running);
    assert_eq!((life.pods.len(), life.status.retry_count), (3, 1));
}

#[test]
fn attempt_that_loses_a_node_before_it_ran_gives_the_others_up() {
    let mut life = volcano(&[task("a", 3)], json!({}));
    life.reconcile();
    assert_eq!(life.pods.len(), 3);
    (0..2).for_each(|index| life.pod("a", index).phase = PodPhase::Running);
    life.pod("a", 2).lost = true;
    life.homeless = Some(Slot::new("a", 2));
    life.group.unknown = true;
    life.look();
    let why = "2 of 3 needed members have a place; all wait for places together: a-2: no node has room for it";
    assert_eq!(life.status.state.message, why);
    life.reconcile();
    assert!(life.pods.is_empty(), "{:?}", life.slots());
    assert_eq!((life.status.retry_count, life.status.version), (0, 1));
    (life.homeless, life.group.unknown) = (None, false);
    life.wait(20);
    assert_eq!(life.run(), JobPhase::Running);
    // Once it has run, the others go on without the lost one.
    life.pod("a", 2).lost = true;
    life.homeless = Some(Slot::new("a", 2));
    life.group.unknown = true;
    life.reconcile();
    assert_eq!(life.slots(), ["a-0", "a-1"]);
}
