//! Volcano's facts about counts, one scenario each (`volcano.md` §5.4, F-J3 to F-J13), and names of Kubeflow's pods.

use super::*;
use JobPhase as P;

/// A job of one task with the given numbers of pending, running, succeeded and failed members.
fn stands(
    replicas: u32,
    more: Value,
    [pending, running, succeeded, failed]: [usize; 4],
) -> Scenario {
    let mut life = volcano(&[task("a", replicas)], more);
    life.run();
    let phases = [
        (PodPhase::Pending, pending),
        (PodPhase::Running, running),
        (PodPhase::Succeeded, succeeded),
        (PodPhase::Failed, failed),
    ];
    let phases = phases.into_iter().flat_map(|(phase, n)| std::iter::repeat_n(phase, n));
    assert_eq!(life.pods.len(), pending + running + succeeded + failed);
    for (pod, phase) in life.pods.iter_mut().zip(phases) {
        pod.phase = phase;
        pod.exit_code = match phase {
            PodPhase::Succeeded => Some(0),
            PodPhase::Failed => Some(1),
            _ => None,
        };
    }
    life.reconcile();
    life
}

fn phase(replicas: u32, more: Value, counts: [usize; 4]) -> JobPhase {
    stands(replicas, more, counts).status.state.phase
}

#[test]
fn f_j3_three_of_a_minimum_of_three_run() {
    let mut life = volcano(&[task("a", 3)], json!({"minAvailable": 3}));
    assert_eq!(life.reconcile(), P::Pending);
    assert_eq!(life.run(), P::Running);
}

#[test]
fn f_j4_two_of_a_minimum_of_three_are_too_few() {
    let mut life = volcano(&[task("a", 3)], json!({"minAvailable": 3}));
    life.reconcile();
    for index in 0..2 {
        life.pod("a", index).phase = PodPhase::Running;
    }
    assert_eq!(life.reconcile(), P::Pending);
}

#[test]
fn f_j6_all_succeeded() {
    assert_eq!(phase(2, json!({}), [0, 0, 2, 0]), P::Completed);
}

#[test]
fn f_j7_one_of_two_succeeded() {
    assert_eq!(phase(2, json!({}), [0, 1, 1, 0]), P::Running);
}

#[test]
fn f_j8_too_many_wait_again() {
    assert_eq!(phase(5, json!({"minAvailable": 3}), [5, 0, 0, 0]), P::Pending);
    assert_eq!(phase(5, json!({"minAvailable": 3}), [3, 2, 0, 0]), P::Pending);
}

#[test]
fn f_j9_some_of_each() {
    assert_eq!(phase(5, json!({"minAvailable": 3}), [2, 1, 1, 1]), P::Running);
}

#[test]
fn f_j10_nobody_is_wanted() {
    let mut life = volcano(&[task("a", 1)], json!({"minAvailable": 0}));
    life.run();
    life.document["spec"]["tasks"][0]["replicas"] = json!(0);
    assert_eq!(life.reconcile(), P::Running);
}

#[test]
fn f_j11_enough_succeeded_though_others_run() {
    assert_eq!(phase(3, json!({"minSuccess": 2}), [0, 1, 2, 0]), P::Completed);
}

#[test]
fn f_j12_fewer_succeeded_than_the_minimum() {
    let life = stands(2, json!({}), [0, 0, 1, 1]);
    assert_eq!(life.status.state.phase, P::Failed);
    assert_eq!(life.status.state.reason, "TaskMinAvailableMissed");
}

#[test]
fn f_j13_fewer_of_a_task_succeeded_than_its_minimum() {
    let (mut a, mut b) = (task("a", 3), task("b", 3));
    (a["minAvailable"], b["minAvailable"]) = (json!(2), json!(1));
    let mut life = volcano(&[a, b], json!({}));
    life.run();
    for (task, index, code) in
        [("b", 0, 0), ("b", 1, 0), ("b", 2, 0), ("a", 0, 0), ("a", 1, 1), ("a", 2, 1)]
    {
        life.end(task, index, code);
    }
    assert_eq!(life.status.state.phase, P::Failed);
    assert_eq!(life.status.state.reason, "TaskMinAvailableMissed");
}

/// `kubeflow.md` §1.4.
#[test]
fn members_are_called_and_labelled_as_kubeflows_are() {
    let mut life = tf(&[("Chief", 1, "Never"), ("PS", 1, "Never")], json!({}));
    life.document["spec"]["tfReplicaSpecs"]["PS"]["template"]["metadata"] =
        json!({"labels": {"team": "a", "training.kubeflow.org/replica-type": "mine"}});
    let job = life.job();
    let labels = |task: &str| {
        let slot = Slot::new(task, 0);
        let (job_id, uid) = (life.id.clone(), JobUid(Index(7)));
        let identity =
            crate::job::manifest::PodIdentity { job: job_id, uid, slot, version: 0, attempt: 0 };
        crate::job::writes::labels_of(&job, &identity)
    };
    let ps = labels("PS");
    assert_eq!(Slot::new("PS", 0).pod_id(&life.id, PodIdFormat::Plain).unwrap().as_str(), "j-ps-0");
    for (name, value) in [
        ("team", "a"),
        ("training.kubeflow.org/operator-name", "tfjob-controller"),
        ("training.kubeflow.org/job-name", "j"),
        ("training.kubeflow.org/replica-type", "ps"),
        ("training.kubeflow.org/replica-index", "0"),
    ] {
        assert_eq!(ps[name], value, "{name}");
    }
    assert!(!ps.contains_key("training.kubeflow.org/job-role"));
    assert_eq!(labels("Chief")["training.kubeflow.org/job-role"], "master");
}

#[test]
fn f_a1_a_command_is_carried_out_whatever_the_policies_say() {
    let mut life = volcano(&[task("a", 1)], policy("*", "TerminateJob"));
    life.run();
    let pod = life.pod("a", 0);
    (pod.phase, pod.exit_code) = (PodPhase::Failed, Some(1));
    assert_eq!(life.command(CommandAction::AbortJob, None, None), P::Aborted);
    assert!(!life.phases.contains(&P::Terminating));
}

#[test]
fn f_a3_what_is_asked_of_another_job_of_the_name_is_a_sync() {
    let mut life = volcano(&[task("a", 1)], json!({}));
    life.run();
    for (uid, then) in [(6, P::Running), (7, P::Terminated)] {
        let job = life.id.clone();
        let target = Target::Job { job, uid: Some(Index(uid)), task: None, index: None };
        assert_eq!(life.give(CommandAction::TerminateJob, target), then);
    }
}

#[test]
fn f_a4_what_happens_to_an_older_attempt_is_a_sync() {
    let mut life = volcano(&[task("a", 1)], policy("PodFailed", "TerminateJob"));
    life.run();
    life.room = 0;
    life.commands.push(Pending {
        id: Uuid::from_u128(99),
        key: rcfarm_api::key::command(Uuid::from_u128(99)),
        index: Index(9),
        command: Command {
            action: CommandAction::RestartJob,
            target: Target::Job { job: life.id.clone(), uid: None, task: None, index: None },
            reason: String::new(),
            issued_by: String::new(),
        }
        .into(),
    });
    life.look();
    assert_eq!((life.status.version, life.pods.len()), (1, 1), "the old one is still there");
    let pod = life.pod("a", 0);
    (pod.phase, pod.exit_code) = (PodPhase::Failed, Some(1));
    life.look();
    life.room = 100;
    assert_eq!(life.run(), P::Running);
    assert!(!life.phases.contains(&P::Terminating));
}
