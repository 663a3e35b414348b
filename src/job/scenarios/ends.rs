//! Reasons of ends, jobs without members, dependencies of tasks.

use super::*;
use crate::job::pod_status::PodFailure;

use JobPhase as P;

/// Also of Kubeflow's kinds, whose masters and launchers are looked for by other rules.
#[test]
fn job_without_members_has_no_group_until_it_is_scaled_up() {
    let kubeflow = tf(&[("Worker", 0, "Never")], json!({}));
    for (mut life, phase) in
        [(volcano(&[task("a", 0)], json!({})), P::Running), (kubeflow, P::Pending)]
    {
        assert_eq!(life.run(), phase);
        assert_eq!(life.status.state.reason, "NoMembers");
        assert!(!life.group.exists);
    }
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    let replicas = |life: &mut Scenario, count: u32| {
        life.document["spec"]["tasks"][0]["replicas"] = json!(count);
        life.run()
    };
    assert_eq!(replicas(&mut life, 0), P::Running);
    assert!(!life.group.exists && life.slots().is_empty());
    assert_eq!(life.status.state.reason, "NoMembers");
    life.admitted = false;
    replicas(&mut life, 2);
    assert!(life.group.exists);
    assert_eq!(life.status.state.reason, "WaitingForAdmission");
    life.admitted = true;
    assert_eq!(replicas(&mut life, 2), P::Running);
    assert_eq!(life.slots(), ["a-0", "a-1"]);
}

/// Volcano issue 3834: the reason of an end is what made it end, in the state and in the condition.
#[test]
fn end_keeps_the_policy_or_command_that_caused_it() {
    let message = |life: &Scenario| {
        let last = life.status.conditions.last().unwrap();
        assert_eq!(last.message, life.status.state.message);
        life.status.state.message.clone()
    };
    let mut life = volcano(&[task("a", 2)], policy("PodFailed", "TerminateJob"));
    life.run();
    assert_eq!(life.end("a", 0, 3), P::Terminated);
    assert_eq!(life.status.state.reason, "Stopped");
    assert_eq!(message(&life), "TerminateJob: PodFailed of a-0 with exit code 3");

    let mut life = volcano(&[task("a", 1), task("b", 2)], policy("TaskCompleted", "CompleteJob"));
    life.run();
    assert_eq!(life.end("a", 0, 0), P::Completed);
    assert_eq!(life.status.state.reason, "PolicyAction");
    assert_eq!(message(&life), "CompleteJob: TaskCompleted of a");

    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert_eq!(message(&life), "AbortJob by me");
    assert_eq!(life.command(CommandAction::TerminateJob, None, None), P::Terminated);
    assert_eq!(message(&life), "TerminateJob by me");

    let mut life = volcano(&[task("a", 2)], json!({"suspend": true}));
    assert_eq!(life.run(), P::Aborted);
    assert!(message(&life).contains("rcfarm job resume"));

    let mut more = policy("PodFailed", "RestartJob");
    more["maxRetry"] = json!(0);
    let mut life = volcano(&[task("a", 2)], more);
    life.run();
    assert_eq!(life.end("a", 1, 9), P::Failed);
    assert_eq!(
        message(&life),
        "RestartJob: PodFailed of a-1 with exit code 9, and 0 retries were made"
    );

    let mut life = volcano(&[task("a", 5)], json!({}));
    life.run();
    for n in 0..5 {
        life.end("a", n, i32::try_from(n).unwrap());
    }
    let all = message(&life);
    assert!(
        all.starts_with("1 of task a succeeded, 5 are needed; a-1 ended with exit code 1; a-2")
    );
    assert!(all.ends_with("; and 1 more"), "{all}");
}

/// The webhook's default, as upstream's `example/task-start-dependency/job.yaml` relies on: all members of the other
/// task, also of an elastic job, whose group needs fewer.
#[test]
fn dependency_without_min_available_needs_all_replicas() {
    for more in [json!({}), json!({"minAvailable": 1})] {
        let mut second = task("task2", 2);
        second["dependsOn"] = json!({"name": ["task1"]});
        let mut life = volcano(&[task("task1", 3), second], more.clone());
        life.reconcile();
        let needed = if more == json!({}) { 5 } else { 1 };
        assert_eq!(life.job().min_available, needed);
        assert_eq!(life.slots(), ["task1-0", "task1-1", "task1-2"]);
        for index in 0..2 {
            let pod = life.pod("task1", index);
            (pod.phase, pod.ready) = (PodPhase::Running, true);
        }
        life.reconcile();
        assert_eq!(life.slots().len(), 3);
        if needed == 5 {
            assert_eq!(life.status.state.reason, "WaitingForDependency");
            assert!(life.status.state.message.contains("task1 (2 of 3 ready)"));
        }
        life.end("task1", 2, 0);
        assert_eq!(life.slots().len(), 5);
    }
}

fn ended(life: &Scenario) -> Vec<String> {
    life.ended.iter().map(ToString::to_string).collect()
}

/// What has ended and does not start again gives back its resources, whatever the rest does.
#[test]
fn ended_members_are_listed_until_they_start_again() {
    let mut life = volcano(&[task("a", 2), task("b", 1)], json!({}));
    life.run();
    assert!(ended(&life).is_empty());
    life.end("a", 1, 0);
    life.end("b", 0, 1);
    assert_eq!(
        (life.status.state.phase, ended(&life)),
        (JobPhase::Running, vec!["a-1".into(), "b-0".into()])
    );
    life.command(CommandAction::RestartPod, Some("a"), Some(1));
    assert_eq!(ended(&life), ["b-0"]);
    // What runs on in a finished job keeps its own.
    let mut tf = tf(&[("Worker", 1, "Never"), ("PS", 1, "Never")], json!({}));
    tf.run();
    assert_eq!(tf.end("Worker", 0, 0), JobPhase::Completed);
    assert_eq!((tf.step, ended(&tf)), (GroupStep::Keep, vec!["worker-0".to_owned()]));
}

/// It would give up a place that it needs at once.
#[test]
fn failed_member_that_is_tried_again_is_not_listed() {
    let mut life = tf(&[("Worker", 2, "ExitCode")], json!({}));
    life.run();
    let worker = life.pod("Worker", 0);
    (worker.phase, worker.exit_code) = (PodPhase::Failed, Some(130));
    life.look();
    assert!(ended(&life).is_empty());
    let mut life = volcano(&[task("a", 2)], policy("PodFailed", "RestartJob"));
    life.run();
    life.pod("a", 0).phase = PodPhase::Failed;
    life.look();
    assert!(ended(&life).is_empty());
}

/// A node is left once the member's pod is gone: its devices would be given to another pod.
#[test]
fn member_leaves_a_draining_node_once_its_pod_is_gone() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    assert_eq!(life.run(), P::Running);
    life.group.draining = ["n1".parse().unwrap()].into();
    life.reconcile();
    assert!(life.moves.is_empty(), "its members run");
    life.command(CommandAction::RestartJob, None, None);
    assert_eq!(life.moves.len(), 2);
    assert!(life.pods.is_empty() && life.status.round == 0, "it waits for other nodes");
    life.group.draining.clear();
    assert_eq!(life.run(), P::Running);
}

/// Labels of pods are text that anybody may have written.
#[test]
fn failure_of_an_attempt_that_never_was_is_not_the_jobs() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    let time = life.now;
    let (message, output) = (String::new(), String::new());
    let failure = PodFailure { time, exit_code: Some(1), reason: None, message, output };
    let mut foreign = pod(Slot::new("a", 0), "n1".parse().unwrap(), u64::MAX, u32::MAX);
    (foreign.phase, foreign.failure) = (PodPhase::Failed, Some(failure));
    life.pods.push(foreign);
    assert_eq!(life.reconcile(), P::Running);
    assert!(life.status.failures.is_empty());
}

/// A pod whose labels were deleted has no owner while its job lives.
#[test]
fn unlabelled_pod_is_collected_with_its_expired_job() {
    let mut life = volcano(&[task("a", 1)], json!({"ttlSecondsAfterFinished": 5}));
    life.run();
    assert_eq!(life.end("a", 0, 0), P::Completed);
    life.unlabelled = 1;
    life.wait(6);
    assert!(!life.finished, "its pod is still there");
    life.unlabelled = 0;
    life.wait(1);
    assert!(life.finished);
}

/// Until then no node was given by the old requests. The group's round says which requests a placement is for.
#[test]
fn requests_may_change_until_the_job_is_admitted() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.admitted = false;
    life.reconcile();
    let container = |life: &mut Scenario, field: &str, value: Value| {
        life.document["spec"]["tasks"][0]["template"]["spec"]["containers"][0][field] = value;
        life.reconcile();
        life.status.state.reason.clone()
    };
    let requests = |cpu: u32| json!({"requests": {"cpu": cpu}});
    assert_eq!(container(&mut life, "resources", requests(2)), "WaitingForAdmission");
    assert_eq!((life.status.round, life.group.round), (1, 1));
    assert_eq!(container(&mut life, "command", json!(["false"])), "ShapeChanged");
    assert_eq!(container(&mut life, "command", json!(["true"])), "WaitingForAdmission");
    life.admitted = true;
    assert_eq!(life.run(), P::Running);
    assert_eq!(container(&mut life, "resources", requests(1)), "ShapeChanged");
    container(&mut life, "resources", requests(2));
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert_eq!(container(&mut life, "resources", requests(1)), "ShapeChanged", "it has begun");
    assert_eq!(life.status.round, 1);
}
