//! Kubeflow's jobs whose members are restarted together (`kubeflow.md` D18).

use super::*;
use JobPhase as P;

/// A PyTorchJob of a master and two workers, of the restart policy.
fn gang(restart: &str, policy: Value) -> Scenario {
    let mut run_policy = json!({"restartScope": "Gang"});
    run_policy.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
    let member = |replicas: u32| {
        json!({"replicas": replicas, "restartPolicy": restart, "template": {"spec": {"containers": [
            {"name": "pytorch", "command": ["t"]}]}}})
    };
    Scenario::new(json!({"kind": "PyTorchJob", "spec": {"runPolicy": run_policy,
        "pytorchReplicaSpecs": {"Master": member(1), "Worker": member(2)}}}))
}

/// Number of pods created, attempt of the job, counted failures.
fn counted(life: &Scenario) -> (usize, u64, u32) {
    let failures = life.status.tasks.values().map(|memory| memory.failures).sum();
    (life.made.len(), life.status.version, failures)
}

#[test]
fn table_of_ends_of_a_member_in_a_gang() {
    // Restart policy, exit code, phase after the pause; whether all were started again.
    for (restart, code, then, again) in [
        ("OnFailure", Some(1), P::Running, true),
        ("OnFailure", Some(137), P::Running, true),
        ("OnFailure", Some(0), P::Running, false),
        ("OnFailure", None, P::Running, true),
        ("ExitCode", Some(1), P::Failed, false),
        ("ExitCode", Some(137), P::Running, true),
        ("ExitCode", None, P::Running, true),
        ("Never", Some(1), P::Failed, false),
        ("Never", Some(0), P::Running, false),
    ] {
        let mut life = gang(restart, json!({}));
        life.run();
        match code {
            Some(code) => drop(life.end("Worker", 1, code)),
            // Such as a process that was stopped with its node's lease.
            None => {
                let pod = life.pod("Worker", 1);
                (pod.phase, pod.exit_code) = (PodPhase::Failed, None);
                life.reconcile();
            }
        }
        let case = format!("{restart} {code:?}");
        if again {
            assert_eq!(life.status.state.phase, P::Pending, "{case}: it pauses");
            assert!(life.pods.is_empty() && life.phases.contains(&P::Restarting), "{case}");
        }
        life.wait(10);
        assert_eq!(life.run(), then, "{case}");
        let wanted = match (again, code) {
            (true, Some(_)) => (6, 1, 1),
            // An end without an exit code is nobody's failure, unless nobody restarts it.
            (true, None) => (6, 1, 0),
            (false, _) => (3, 0, 0),
        };
        let none = restart == "Never" && code.is_none();
        assert!(none || counted(&life) == wanted, "{case}: {:?}", counted(&life));
    }
}

#[test]
fn lost_member_restarts_all_and_counts_not() {
    let mut life = gang("OnFailure", json!({"backoffLimit": 0}));
    life.run();
    life.pods.retain(|pod| pod.slot != Slot::new("Worker", 0));
    life.look();
    assert_eq!(life.status.state.message, "worker-0 was lost; all members are started again");
    life.wait(10);
    assert_eq!(life.run(), P::Running);
    assert_eq!((counted(&life), life.status.retry_count), ((6, 1, 0), 0));

    // Lost in the same plan as a command for another member.
    life.pods.retain(|pod| pod.slot != Slot::new("Worker", 0));
    life.command(CommandAction::RestartPod, Some("Worker"), Some(1));
    assert_eq!(life.run(), P::Running);
    assert_eq!(counted(&life), (9, 2, 0));

    let command =
        |life: &mut Scenario| life.command(CommandAction::RestartPod, Some("Worker"), Some(1));
    command(&mut life);
    life.run();
    assert_eq!(counted(&life), (10, 2, 0), "who asks for one pod gets one");
}

#[test]
fn limit_of_a_gang_counts_restarts_not_members() {
    let mut life = gang("OnFailure", json!({"backoffLimit": 2}));
    for n in 1..=2 {
        life.run();
        for index in [0, 1] {
            let pod = life.pod("Worker", index);
            (pod.phase, pod.exit_code) = (PodPhase::Failed, Some(1));
        }
        life.reconcile();
        assert_eq!(counted(&life).1, n);
        life.wait(10 * n - 1);
        assert!(life.pods.is_empty(), "the pause doubles");
        life.wait(1);
        assert_eq!(life.pods.len(), 3);
    }
    life.run();
    assert_eq!(life.end("Worker", 0, 1), P::Failed);
    assert_eq!(life.status.state.reason, "BackoffLimitExceeded");
    assert_eq!((counted(&life), life.status.retry_count), ((9, 2, 2), 0));
}

#[test]
fn members_that_succeeded_are_restarted_unless_the_job_has_ended() {
    let mut life = gang("OnFailure", json!({}));
    life.run();
    life.end("Worker", 0, 0);
    life.end("Worker", 1, 1);
    life.wait(10);
    assert_eq!((life.run(), counted(&life).0), (P::Running, 6));

    // The master has succeeded, and a worker fails at the same time.
    let worker = life.pod("Worker", 0);
    (worker.phase, worker.exit_code) = (PodPhase::Failed, Some(1));
    assert_eq!(life.end("Master", 0, 0), P::Completed);
    assert_eq!(counted(&life).0, 6);
}

#[test]
fn scope_is_checked_and_processes_are_not_restarted_in_place() {
    let life = gang("OnFailure", json!({}));
    assert!(life.job().restarts_gang);
    let problems = |document: &Value| {
        let found = document::read(&life.id, document).unwrap_err();
        found.iter().map(|issue| issue.path.clone()).collect::<Vec<_>>()
    };
    let always = gang("Always", json!({})).document;
    let types = ["Master", "Worker"];
    let paths = types.map(|name| format!("spec.pytorchReplicaSpecs.{name}.restartPolicy"));
    assert_eq!(problems(&always), paths);
    let scope = "spec.runPolicy.restartScope";
    assert_eq!(problems(&gang("OnFailure", json!({"restartScope": "Job"})).document), [scope]);
    let volcano = volcano(&[task("a", 1)], json!({"runPolicy": {"restartScope": "Gang"}}));
    assert_eq!(problems(&volcano.document), [scope]);
    assert!(!gang("Always", json!({"restartScope": "Pod"})).job().restarts_gang);
}
