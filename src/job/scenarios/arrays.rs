//! Arrays: members that run one task after the other.

use super::*;
use crate::job::pod_status::PodFailure;
use rcfarm_api::job::array::ArrayProgress;

/// An array with the names of the indexes that its pods run.
struct Array {
    run: Scenario,
    /// Indexes in the order of their starts.
    started: Vec<u32>,
}

impl Array {
    fn new(indexes: &str, spec: Value, restart: &str) -> Array {
        let container = json!({"name": "c", "command": ["a"]});
        let template = json!({"spec": {"restartPolicy": restart, "containers": [container]}});
        let mut document = json!({
            "metadata": {"annotations": {document::ARRAY_ANNOTATION: indexes}},
            "spec": {"tasks": [{"name": "t", "replicas": 1, "template": template}]},
        });
        document["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut array = Array { run: Scenario::new(document), started: Vec::new() };
        array.reconcile();
        array
    }

    fn progress(&self) -> ArrayProgress {
        self.run.status.array.clone().unwrap()
    }

    /// Applies plans until nothing changes, and notes which indexes start.
    fn reconcile(&mut self) {
        for _ in 0..200 {
            let (made, was_leaving) = (self.run.made.len(), !self.run.leaving.is_empty());
            let busy = self.run.look();
            let progress = self.progress();
            for (slot, ..) in &self.run.made[made..] {
                self.started.push(progress.members[&slot.index]);
            }
            let held: BTreeSet<u32> = progress.members.values().copied().collect();
            assert_eq!(held.len(), progress.members.len(), "two members have one index");
            self.run.leaving.clear();
            if !busy && !was_leaving {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.run.status);
    }

    /// The pod that runs an index.
    fn pod(&mut self, index: u32) -> &mut MemberPod {
        let progress = self.progress();
        let member = progress.members.iter().find(|(_, has)| **has == index);
        let (member, _) = member.unwrap_or_else(|| panic!("nobody has {index}: {progress:?}"));
        self.run.pod("t", *member)
    }

    fn end(&mut self, index: u32, code: i32) {
        let pod = self.pod(index);
        pod.phase = if code == 0 { PodPhase::Succeeded } else { PodPhase::Failed };
        (pod.exit_code, pod.ready) = (Some(code), false);
        self.reconcile();
    }

    fn wait(&mut self, seconds: u64) {
        self.run.now = self.run.now.checked_add(Duration::from_secs(seconds)).unwrap();
        self.reconcile();
    }

    fn phase(&self) -> JobPhase {
        self.run.status.state.phase
    }

    fn is(&self, completed: &str, failed: &str) {
        let progress = self.progress();
        let texts = [progress.completed_indexes, progress.failed_indexes].map(String::from);
        assert_eq!(texts, [completed, failed]);
    }
}

#[test]
fn each_index_runs_once_and_no_more_at_a_time_than_the_limit() {
    let mut array = Array::new("0-9:2,20%2", json!({}), "Never");
    assert_eq!((&array.started[..], array.run.pods.len()), (&[0, 2][..], 2));
    array.end(2, 0);
    array.end(0, 0);
    array.is("0,2", "");
    assert_eq!((array.phase(), array.run.pods.len()), (JobPhase::Running, 2));
    for index in [4, 6, 8] {
        array.end(index, 0);
    }
    assert!(array.run.ended.len() == 1, "a member without a task gives its node back");
    array.end(20, 0);
    array.is("0,2,4,6,8,20", "");
    assert_eq!(array.phase(), JobPhase::Completed);
    assert_eq!(array.started, [0, 2, 4, 6, 8, 20]);
    assert!(array.run.status.state.message.contains("6 completed, 0 failed, of 6 tasks"));
}

#[test]
fn failed_tasks_do_not_stop_others_and_decide_at_the_end() {
    let mut array = Array::new("0-3%2", json!({}), "Never");
    for (index, code) in [(0, 1), (1, 0), (2, 7), (3, 0)] {
        assert_eq!(array.phase(), if index == 0 { JobPhase::Pending } else { JobPhase::Running });
        array.end(index, code);
    }
    array.is("1,3", "0,2");
    assert_eq!(array.phase(), JobPhase::Failed);
    assert_eq!(array.started, [0, 1, 2, 3]);
    let mut array = Array::new("0-3%2", json!({"minSuccess": 2}), "Never");
    for (index, code) in [(0, 1), (1, 0), (2, 0)] {
        array.end(index, code);
    }
    assert_eq!(array.phase(), JobPhase::Completed);
    let mut array = Array::new("0-2%3", json!({"minSuccess": 2}), "Never");
    for (index, code) in [(0, 1), (1, 0), (2, 1)] {
        array.end(index, code);
    }
    assert_eq!(
        (array.phase(), &*array.run.status.state.reason),
        (JobPhase::Failed, "MinSuccessMissed")
    );
}

#[test]
fn policy_retries_each_index_up_to_max_retry() {
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    let spec = json!({"policies": policies, "maxRetry": 2, "restartDelay": {"first": "10s"}});
    let mut array = Array::new("0-2%1", spec, "Never");
    array.end(0, 1);
    assert_eq!(array.started, [0], "it pauses");
    array.wait(10);
    array.end(0, 1);
    array.wait(10);
    assert_eq!(array.started, [0, 0], "the pause is doubled");
    array.wait(10);
    array.end(0, 1);
    array.is("", "0");
    array.end(1, 1);
    array.wait(10);
    array.end(1, 0);
    array.end(2, 0);
    array.is("1-2", "0");
    assert_eq!(array.started, [0, 0, 0, 1, 1, 2]);
    assert_eq!((array.phase(), array.run.status.retry_count), (JobPhase::Failed, 0));
}

#[test]
fn node_restarts_a_task_up_to_its_max_retry() {
    let mut array = Array::new("0-1%1", json!({}), "OnFailure");
    // The default of a task's maxRetry.
    for restarts in 0..4 {
        let pod = array.pod(0);
        (pod.phase, pod.restarts, pod.is_due) = (PodPhase::Running, restarts, true);
        if restarts < 3 {
            array.reconcile();
            array.is("", "");
        }
    }
    array.reconcile();
    array.is("", "0");
    array.end(1, 0);
    assert_eq!((array.phase(), &array.started[..]), (JobPhase::Failed, &[0, 1][..]));
}

#[test]
fn lost_and_suspended_members_keep_their_index() {
    let mut array = Array::new("0-4%2", json!({}), "Never");
    array.end(0, 0);
    assert_eq!(array.started, [0, 1, 2]);
    array.pod(1).lost = true;
    array.reconcile();
    assert_eq!(array.started, [0, 1, 2, 1]);
    array.run.document["spec"]["suspend"] = json!(true);
    array.reconcile();
    assert_eq!((array.phase(), array.run.pods.len()), (JobPhase::Aborted, 0));
    array.run.document["spec"]["suspend"] = json!(false);
    array.reconcile();
    array.is("0", "");
    assert_eq!(array.started[4..], [2, 1]);
    for index in [1, 2, 3, 4] {
        array.end(index, 0);
    }
    array.is("0-4", "");
    assert_eq!(array.phase(), JobPhase::Completed);
}

#[test]
fn ends_while_the_job_stops_are_noted_once() {
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    let mut array = Array::new("0-3%3", json!({"policies": policies, "maxRetry": 1}), "Never");
    let ends = [(0, PodPhase::Succeeded, 0), (1, PodPhase::Failed, 1)];
    for (index, phase, code) in ends {
        let pod = array.pod(index);
        (pod.phase, pod.exit_code) = (phase, Some(code));
    }
    array.run.command(CommandAction::AbortJob, None, None);
    for _ in 0..5 {
        array.wait(60);
    }
    array.is("0", "");
    assert_eq!(array.progress().retries, [(1, 1)].into());
    array.run.command(CommandAction::ResumeJob, None, None);
    array.wait(60);
    assert_eq!(array.progress().retries, [(1, 1)].into());
    for index in 1..4 {
        array.end(index, 0);
    }
    array.is("0-3", "");
    assert_eq!(array.phase(), JobPhase::Completed);
}

/// As after its node's lease has ended. It counts towards no limit.
#[test]
fn task_without_an_exit_code_runs_again() {
    let policies = json!([{"event": "PodFailed", "action": "RestartPod"}]);
    let mut array = Array::new("0-1%1", json!({"policies": policies, "maxRetry": 0}), "Never");
    for _ in 0..5 {
        array.pod(0).phase = PodPhase::Failed;
        array.reconcile();
        array.wait(10);
    }
    array.is("", "");
    assert_eq!((&array.started[..], array.run.status.retry_count), (&[0; 6][..], 0));
    array.end(0, 0);
    array.end(1, 0);
    assert_eq!(array.phase(), JobPhase::Completed);
}

#[test]
fn fewer_or_more_tasks_at_a_time() {
    let mut array = Array::new("0-9%4", json!({}), "Never");
    let annotations = document::ARRAY_ANNOTATION;
    array.run.document["metadata"]["annotations"][annotations] = json!("0-9%2");
    array.reconcile();
    assert_eq!(array.run.pods.len(), 2);
    for index in [0, 1] {
        array.end(index, 0);
    }
    assert_eq!(array.started[4..], [2, 3], "others take over what was stopped");
    array.run.document["metadata"]["annotations"][annotations] = json!("0-9%5");
    array.reconcile();
    assert_eq!(array.run.pods.len(), 5);
    for index in 2..10 {
        array.end(index, 0);
    }
    array.is("0-9", "");
    assert_eq!(array.phase(), JobPhase::Completed);
}

/// A farm that dies before its transaction plans the same one again; one after it sees the end noted.
#[test]
fn end_of_a_task_is_noted_in_the_transaction_that_removes_its_pod() {
    let mut array = Array::new("0-2%1", json!({}), "Never");
    array.pod(0).phase = PodPhase::Succeeded;
    let before = array.run.status.clone();
    array.run.look();
    assert_eq!(array.run.pods.len(), 0);
    array.is("0", "");
    assert_ne!(before, array.run.status);
    // The pod is still on its node: the next task waits for its end.
    array.run.look();
    assert_eq!(array.run.made.len(), 1);
    array.run.leaving.clear();
    array.run.look();
    assert_eq!((array.run.made.len(), array.progress().members[&0]), (2, 1));
}

#[test]
fn array_whose_status_was_deleted_begins_anew() {
    let mut array = Array::new("0-4%2", json!({}), "Never");
    array.end(0, 0);
    array.run.status = JobStatus::default();
    array.reconcile();
    array.is("", "");
    assert_eq!(array.started, [0, 1, 2, 0, 1]);
    for index in 0..5 {
        array.end(index, 0);
    }
    array.is("0-4", "");
    assert_eq!(array.phase(), JobPhase::Completed);
}

/// Ten tasks end at once, and a transaction has room for three pods.
#[test]
fn ends_beyond_the_room_of_a_transaction_are_noted_once() {
    let mut array = Array::new("0-19%10", json!({}), "Never");
    array.run.room = 3;
    for pod in &mut array.run.pods {
        (pod.phase, pod.exit_code) = (PodPhase::Succeeded, Some(0));
    }
    array.run.look();
    array.is("0-9", "");
    assert_eq!(array.run.pods.len(), 7, "three pods are removed, all ends are noted");
    let first: Vec<u32> = array.progress().members.values().copied().collect();
    assert_eq!(first, (10..20).collect::<Vec<_>>());
    array.run.leaving.clear();
    array.reconcile();
    array.is("0-9", "");
    assert_eq!(array.run.pods.len(), 10);
    assert!(array.run.pods.iter().all(|pod| pod.attempt == 1));
    let last: Vec<u32> = array.progress().members.values().copied().collect();
    assert_eq!(last, first, "the pods that were left are not taken for those of the next tasks");
    for pod in &mut array.run.pods {
        (pod.phase, pod.exit_code) = (PodPhase::Succeeded, Some(0));
    }
    array.reconcile();
    array.is("0-19", "");
    assert_eq!(array.phase(), JobPhase::Completed);
    assert_eq!(array.run.made.len(), 20);
}

/// It is noted before the member gets its next task.
#[test]
fn failure_has_the_index_of_the_task_that_failed() {
    let mut array = Array::new("5-9%1", json!({}), "Never");
    for index in 5..8 {
        let now = array.run.now;
        let pod = array.pod(index);
        pod.failure = Some(PodFailure {
            time: now,
            exit_code: Some(3),
            reason: None,
            message: String::new(),
            output: format!("output of {index}"),
        });
        array.end(index, 3);
        array.wait(1);
    }
    let failures = &array.run.status.failures;
    let of: Vec<_> =
        failures.iter().map(|one| (one.array_index, one.attempt, &*one.output)).collect();
    assert_eq!(
        of,
        [(Some(5), 0, "output of 5"), (Some(6), 1, "output of 6"), (Some(7), 2, "output of 7")]
    );
    let slot = Slot::new("t", 0);
    let known = [1, 3, 9].map(|attempt| array.run.status.array_index_of(&slot, attempt));
    assert_eq!(known, [Some(6), Some(8), None]);
}

/// `%` is lowered when all that is left runs on members that are too many.
#[test]
fn limit_lowered_while_only_running_tasks_are_left() {
    let mut array = Array::new("0-3%4", json!({}), "Never");
    for index in [0, 1] {
        array.end(index, 0);
    }
    assert_eq!(array.run.ended.len(), 2, "members 0 and 1 gave their nodes back");
    array.run.document["metadata"]["annotations"][document::ARRAY_ANNOTATION] = json!("0-3%1");
    array.reconcile();
    assert_eq!(array.run.pods.iter().filter(|pod| !pod.phase.has_ended()).count(), 1);
    for index in [2, 3] {
        array.end(index, 0);
    }
    array.is("0-3", "");
    assert_eq!(array.phase(), JobPhase::Completed);
    assert_eq!(array.started, [0, 1, 2, 3, 2, 3]);
}
