//! Deleted jobs, jobs created again under the same name, and pods that have lost their intent.

use super::*;
use JobPhase as P;

#[test]
fn a_job_that_is_deleted_leaves_nothing() {
    let mut life = volcano(&[task("a", 2)], json!({}));
    life.run();
    life.document["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    life.look();
    assert_eq!((life.leaving.len(), life.finished), (2, false));
    life.look();
    assert!(!life.finished && life.group.exists, "its place is not given back while they stop");
    life.reconcile();
    assert!(life.finished);
}

/// The group keeps the nodes on which the older job's pods may still run.
#[test]
fn the_group_of_an_older_job_goes_when_its_pods_are_gone() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    (life.group.is_foreign, life.older) = (true, true);
    for deleting in [false, true] {
        if deleting {
            life.document["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        }
        life.look();
        assert_eq!((life.step, life.finished), (GroupStep::Leave, false));
    }
    life.document.as_object_mut().unwrap().remove("metadata");
    life.older = false;
    life.look();
    assert_eq!(life.step, GroupStep::Delete);
    assert_eq!(life.run(), P::Running);
}

#[test]
fn a_command_that_is_older_than_its_job_is_dropped() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    life.given_at = Index(6);
    let job = life.id.clone();
    let target = Target::Job { job, uid: None, task: None, index: None };
    assert_eq!(life.give(CommandAction::TerminateJob, target.clone()), P::Running);
    life.given_at = Index(8);
    assert_eq!(life.give(CommandAction::TerminateJob, target), P::Terminated);
}

#[test]
fn deleted_job_requests_no_placement_and_deletes_its_commands() {
    let mut life = volcano(&[task("a", 2)], json!({"ttlSecondsAfterFinished": 5}));
    life.run();
    life.end("a", 0, 0);
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert!(!life.group.exists && life.slots() == ["a-0"]);
    life.now = life.now.checked_add(Duration::from_secs(5)).unwrap();
    life.look();
    assert!(!life.group.exists && life.slots().is_empty(), "its pods go, and no group comes");
    for n in 1..3 {
        let target = Target::Job { job: life.id.clone(), uid: None, task: None, index: None };
        let action = CommandAction::ResumeJob;
        let command = Command { action, target, reason: String::new(), issued_by: "me".into() };
        let id = uuid::Uuid::from_u128(n);
        let key = rcfarm_api::key::command(id);
        let index = rcfarm_api::Index(1);
        life.commands.push(Pending { id, key, index, command: command.into() });
    }
    life.reconcile();
    assert!(life.finished && life.commands.is_empty(), "none is left for the next of its name");
}

/// A restored snapshot knows of no member yet, and a node keeps one that it has no intent for.
#[test]
fn a_member_that_only_its_node_knows_is_named_while_the_job_waits_for_it() {
    let mut life = volcano(&[task("a", 1), task("b", 1)], json!({}));
    life.document["spec"]["tasks"][1]["dependsOn"] = json!({"name": ["a"]});
    let mut other = volcano(&[task("a", 1)], json!({}));
    other.run();
    life.leaving.append(&mut other.pods);
    life.look();
    life.look();
    assert!(life.made.is_empty(), "two would run");
    assert_eq!(life.status.state.reason, "WaitingForOldMembers");
    assert!(life.status.state.message.contains("a pod of a-0"), "{}", life.status.state.message);
    life.leaving.clear();
    life.look();
    assert_eq!(life.made.len(), 1);
}
