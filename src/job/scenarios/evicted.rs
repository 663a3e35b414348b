//! Members that are lost together with something else: `PodEvicted` is answered all the same. Jobs whose group is evicted.

use super::*;
use JobPhase as P;

/// Takes the pods of these members away.
fn lose(life: &mut Scenario, slots: &[(&str, u32)]) {
    let slots: Vec<Slot> = slots.iter().map(|(task, index)| Slot::new(task, *index)).collect();
    life.pods.retain(|pod| !slots.contains(&pod.slot));
}

fn undelayed(event: &str, action: &str) -> Value {
    let mut more = policy(event, action);
    more["restartDelay"] = json!({"first": "0s"});
    more
}

/// A restart of the job begins by the policy.
#[test]
fn loss_beside_a_command_is_answered_after_it() {
    let mut life = volcano(&[task("a", 3)], undelayed("PodEvicted", "RestartJob"));
    life.run();
    lose(&mut life, &[("a", 0)]);
    life.command(CommandAction::RestartPod, Some("a"), Some(1));
    assert_eq!(life.run(), P::Running);
    assert_eq!((life.status.version, life.status.retry_count), (1, 1));
    assert_eq!(life.slots(), ["a-0", "a-1", "a-2"]);
    // The members restart with the job that a person restarts, and nothing is counted.
    lose(&mut life, &[("a", 0)]);
    life.command(CommandAction::RestartJob, None, None);
    assert_eq!(life.run(), P::Running);
    assert_eq!((life.status.version, life.status.retry_count), (2, 1));
}

#[test]
fn loss_during_a_restart_of_others_is_answered_after_it() {
    let mut more = undelayed("PodEvicted", "AbortJob");
    more["minAvailable"] = json!(3);
    let mut life = volcano(&[task("a", 2), task("b", 1)], more);
    life.run();
    let target = Target::Job {
        job: life.id.clone(),
        uid: Some(Index(7)),
        task: Some("a".into()),
        index: None,
    };
    let command = Command {
        action: CommandAction::RestartTask,
        target,
        reason: String::new(),
        issued_by: "me".into(),
    };
    let id = Uuid::from_u128(99);
    let key = rcfarm_api::key::command(id);
    life.commands.push(Pending { id, key, index: Index(9), command: command.into() });
    life.look();
    assert_eq!(life.status.state.phase, P::Restarting, "its old members are on their way out");
    lose(&mut life, &[("b", 0)]);
    life.look();
    assert_eq!(life.reconcile(), P::Aborted);
    assert_eq!(life.status.state.message, "AbortJob: PodEvicted of b-0");
    life.command(CommandAction::ResumeJob, None, None);
    assert_eq!(life.run(), P::Running, "it is not answered again");
}

/// A node takes all its members with it.
#[test]
fn several_losses_at_once_are_one_restart() {
    for (action, version) in [("RestartPod", 0), ("RestartTask", 0), ("RestartJob", 1)] {
        let mut life = volcano(&[task("a", 4)], undelayed("PodEvicted", action));
        life.run();
        lose(&mut life, &[("a", 0), ("a", 1), ("a", 3)]);
        life.reconcile();
        assert_eq!(life.run(), P::Running, "{action}");
        assert_eq!((life.status.version, life.status.retry_count), (version, 1), "{action}");
        assert_eq!(life.slots().len(), 4, "{action}");
        assert!(life.status.tasks.values().all(|memory| memory.evicted.is_empty()), "{action}");
    }
}

#[test]
fn losses_with_different_answers_are_each_answered() {
    let with = |name: &str, action: &str| {
        let mut task = task(name, 1);
        task["policies"] = json!([{"event": "PodEvicted", "action": action}]);
        task
    };
    let tasks = [with("a", "RestartPod"), with("b", "AbortJob")];
    let mut life = volcano(&tasks, json!({"restartDelay": {"first": "0s"}}));
    life.run();
    lose(&mut life, &[("a", 0), ("b", 0)]);
    assert_eq!(life.reconcile(), P::Aborted);
    assert_eq!(life.status.state.message, "AbortJob: PodEvicted of b-0");
}

/// Another group takes the room of the job's group: it has no place until it is placed again.
fn take_room(life: &mut Scenario) -> P {
    life.group.evicted = Some("evicted at 2026-01-01T00:00:00Z for ns/own: why".to_owned());
    life.admitted = false;
    life.look();
    let state = &life.status.state;
    if state.phase == P::Restarting {
        assert_eq!(state.reason, JobReason::Evicted.to_string());
        assert!(state.message.contains("for ns/own"), "{}", state.message);
    }
    life.reconcile()
}

#[test]
fn eviction_stops_all_members_and_counts_nothing() {
    let more = json!({"maxRetry": 0, "policies": [{"event": "PodEvicted", "action": "AbortJob"}]});
    let mut life = volcano(&[task("a", 2), task("b", 1)], more);
    life.run();
    life.end("b", 0, 0);
    assert_eq!(take_room(&mut life), P::Pending);
    assert!(life.pods.is_empty() && life.phases.contains(&P::Restarting));
    assert_eq!((life.status.version, life.status.retry_count), (1, 0));
    assert_eq!(life.status.not_before, None, "nothing but the queue delays it");
    (life.group.evicted, life.admitted) = (None, true);
    assert_eq!(life.run(), P::Running);
    assert_eq!(life.slots(), ["a-0", "a-1", "b-0"], "a new attempt of all");
}

#[test]
fn eviction_counts_towards_no_backoff_limit() {
    let mut life = tf(&[("Worker", 2, "OnFailure")], json!({"runPolicy": {"backoffLimit": 0}}));
    life.run();
    for version in 1..4 {
        assert_eq!(take_room(&mut life), P::Pending);
        assert_eq!(life.status.version, version);
        (life.group.evicted, life.admitted) = (None, true);
        assert_eq!(life.run(), P::Running);
    }
}

#[test]
fn what_has_ended_is_not_begun_again_for_an_eviction() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    for index in 0..2 {
        let pod = life.pod("a", index);
        (pod.phase, pod.exit_code, pod.ready) = (PodPhase::Succeeded, Some(0), false);
    }
    assert_eq!(take_room(&mut life), P::Completed);
    assert_eq!(life.status.version, 0);
}
