use rcfarm_store::Index;
use rcfarm_store::time::{Clock as _, SystemClock};

use super::super::driver::StartFailure;
use super::super::health_check::Thresholds;
use super::super::test_settings;
use super::*;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;

const NEVER: &str =
    "id: web\nlaunchables:\n  main: {launchable_type: process, command: 'true', restart: never}\n";
const ALWAYS: &str = "id: web\nlaunchables:\n  main: {launchable_type: process, command: 'true'}\n";

const CHECKED: &str = "id: web\nlaunchables:\n  main: {launchable_type: process, command: 'true', \
                       health: {tcp: '127.0.0.1:1'}}\n";

/// A pod and its data directory, which a further agent may find.
struct Pod {
    task: PodTask,
    data: DataDir,
    _directory: tempfile::TempDir,
}

impl Pod {
    fn new(manifest: &str) -> Pod {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(directory.path()).unwrap();
        Pod { task: task(manifest, &data), data, _directory: directory }
    }

    /// As [`super::super::pods`] and a driver do, up to the shim's answer.
    fn start(&mut self) -> Launch {
        let launch = self.task.launch("main", &test_settings(), &self.data).unwrap();
        let dir = self.data.launchable(&self.task.id, "main");
        super::super::state::make_dir(&dir).unwrap();
        super::super::state::write(&dir.join("launch.json"), &launch).unwrap();
        self.process().starting(Some(&launch));
        launch
    }

    fn process(&mut self) -> &mut PodProcess {
        self.task.processes.get_mut("main").unwrap()
    }

    fn fails(&mut self, failure: &StartFailure) {
        let attempt = self.process().attempt;
        let exit = ProcessExit::not_started(attempt, SystemClock.wall(), failure);
        self.task.ended("main", exit, Duration::ZERO);
    }

    fn exits(&mut self, reason: Option<ExitReason>) -> ProcessExit {
        let attempt = self.process().attempt;
        let exit = ProcessExit { attempt, code: Some(1), reason, ..ProcessExit::unknown("") };
        self.process().state = AgentPodState::Running;
        self.task.ended("main", exit.clone(), Duration::ZERO);
        exit
    }

    fn restarts(&self) -> u64 {
        self.task.report().status.processes[0].restarts
    }

    /// The pod of the next agent, which finds `found`.
    fn adopted(&self, found: FoundProcess) -> PodTask {
        let mut next = task(&self.task.intended.manifest, &self.data);
        next.adopt("main", found, Duration::ZERO);
        next
    }
}

fn task(manifest: &str, data: &DataDir) -> PodTask {
    let intended = Intended::new(manifest, None);
    PodTask::new("web".parse().unwrap(), intended, data, &Default::default(), Duration::ZERO)
}

fn disk_is_full() -> StartFailure {
    StartFailure::Node("No space left on device".to_owned())
}

/// Twice in a row soon after its start. A long run ends that.
#[test]
fn process_that_ends_again_and_again_is_told_until_it_runs_for_long() {
    let mut pod = Pod::new(ALWAYS);
    pod.start();
    pod.exits(None);
    assert_eq!(pod.task.report().status.restarting, None, "once is no loop");
    for state in [AgentPodState::Starting, AgentPodState::Running] {
        pod.exits(None);
        pod.process().state = state;
        let how = pod.task.report().status.restarting;
        assert!(how.is_some_and(|how| how.starts_with("main: exited with 1")), "{state:?}");
    }
    let second = Duration::from_secs(1);
    let settles_at = pod.task.settle(second).unwrap();
    assert!(settles_at > 60 * second);
    assert_eq!(pod.task.settle(settles_at - second), Some(settles_at));
    assert!(pod.task.report().status.restarting.is_some());
    assert_eq!(pod.task.settle(settles_at), None);
    assert_eq!(pod.task.report().status.restarting, None);
    pod.exits(None);
    assert_eq!(pod.task.settle(settles_at + second), None, "the count begins anew");
}

#[test]
fn inv22_failed_node_ends_no_process_that_is_never_restarted() {
    let mut pod = Pod::new(NEVER);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        pod.start();
        pod.fails(&disk_is_full());
        let AgentPodState::Waiting(pause) = pod.process().state else { panic!("it ended") };
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4]);
    let status = pod.task.report().status;
    assert_eq!(
        (status.phase, status.processes[0].last_exit.clone()),
        (NodePodPhase::Backoff, None)
    );
    assert!(status.cannot_start.is_some() && !status.start_error, "the node is at fault");
    // The next agent finds the shim's record of it.
    let found = ProcessExit::not_started(3, SystemClock.wall(), &disk_is_full());
    let next = pod.adopted(FoundProcess::Exited(found));
    assert!(matches!(next.processes["main"].state, AgentPodState::Waiting(_)));

    pod.start();
    pod.fails(&StartFailure::Program("no such program".to_owned()));
    assert_eq!(pod.process().state, AgentPodState::Ended);
}

#[test]
fn restarts_are_starts_after_an_end_of_the_process() {
    let mut pod = Pod::new(ALWAYS);
    for _ in 0..3 {
        pod.start();
        pod.fails(&disk_is_full());
    }
    pod.start();
    assert_eq!(pod.restarts(), 0, "the disk was full");
    pod.exits(Some(ExitReason::LeaseEnded));
    pod.start();
    assert_eq!(pod.restarts(), 0, "it was evicted");
    let exit = pod.exits(None);
    assert_eq!(pod.start().restarts, Some(1));
    assert_eq!(pod.restarts(), 1);

    // This agent wrote `launch.json`, and ended before the shim wrote anything.
    let next = pod.adopted(FoundProcess::Exited(exit));
    assert_eq!(next.next_start("main"), (7, 1));
    let exit = pod.exits(None);
    let next = pod.adopted(FoundProcess::Exited(exit));
    assert_eq!(next.next_start("main"), (7, 2));
    pod.fails(&StartFailure::Program("no such program".to_owned()));
    assert_eq!(pod.task.next_start("main"), (7, 2), "as in Kubernetes");
}

#[test]
fn older_launch_counts_every_start_but_the_first() {
    let mut pod = Pod::new(ALWAYS);
    let launch = pod.start();
    let dir = pod.data.launchable(&pod.task.id, "main");
    let older = Launch { attempt: 3, restarts: None, ..launch };
    super::super::state::write(&dir.join("launch.json"), &older).unwrap();
    assert_eq!(pod.adopted(FoundProcess::Nothing).next_start("main"), (4, 2));
}

#[test]
fn notes_of_one_launchable_stay_when_another_starts() {
    let manifest = "id: web\nresources: {gpu: 1}\nlaunchables:\n  \
        a: {launchable_type: process, command: 'true', restart: {policy: always, backoff: 1ms}}\n  \
        b: {launchable_type: process, command: 'true'}\n";
    let mut pod = Pod::new(manifest);
    for name in ["a", "b"] {
        pod.task.launch(name, &test_settings(), &pod.data).unwrap();
    }
    let notes = pod.task.report().status.notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("under 100ms")), "{notes:?}");
}

fn index(at: u64) -> IntentIndex {
    IntentIndex { create_index: Index(at), modify_index: Index(at) }
}

#[test]
fn intent_written_again_is_proved_by_the_report_of_the_one_before() {
    let mut pod = Pod::new(ALWAYS);
    pod.task.intended.index = Some(index(5));
    let again = Intended { index: Some(index(7)), ..pod.task.intended.clone() };
    assert!(pod.task.intended_again(again.clone(), Some(index(5))));
    // The agent ends before a report names the new one.
    let stored = pod.task.stored();
    let mut next = task(&stored.manifest, &pod.data);
    next.intended.index = stored.intent_index;
    next.set_reported(stored.reported);
    assert_eq!(next.expected(None).intents, [index(7), index(5)]);
    assert!(!next.intended_again(again, None), "nothing is to be stored");
    // A snapshot may have the report of the one before, and lack the new one.
    assert!(!next.report_written(Some(index(5))));
    assert!(next.report_written(Some(index(7))));
    assert_eq!(next.expected(None).intents, [index(7)]);
    assert!(!next.report_written(Some(index(7))));
}

#[test]
fn new_intent_ends_the_check_for_other_instances() {
    let mut pod = Pod::new(&format!("{ALWAYS}single_instance: true\n"));
    for state in [SingleInstance::Checking, SingleInstance::Confirmed] {
        pod.task.single_instance = state;
        let same = pod.task.intended.clone();
        assert!(!pod.task.intended_again(same.clone(), None));
        assert_eq!(pod.task.single_instance, state);
        let modify = same.index.map_or(1, |index| index.modify_index.0 + 1);
        let again = Intended { index: Some(index(modify)), ..same };
        assert!(pod.task.intended_again(again, None));
        assert_eq!(pod.task.single_instance, SingleInstance::Unchecked);
    }
}

#[test]
fn unclear_proof_is_asked_for_less_and_less() {
    let mut pod = Pod::new(ALWAYS);
    let mut at = |now: u64| {
        pod.task.unclear(Duration::from_secs(now));
        let Proof::Unclear(at) = pod.task.proof else { panic!("{:?}", pod.task.proof) };
        at.as_secs() - now
    };
    let pauses: Vec<u64> = (0..8).map(&mut at).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    pod.task.listed();
    pod.task.unclear(Duration::ZERO);
    assert_eq!(pod.task.proof, Proof::Unclear(Duration::from_secs(1)));
}

#[test]
fn starts_of_another_manifest_are_not_the_pods_own() {
    let mut pod = Pod::new(NEVER);
    pod.start();
    pod.exits(None);
    pod.data.forget_starts(&pod.task.id).unwrap();
    let mut next = task(ALWAYS, &pod.data);
    next.adopt("main", FoundProcess::Nothing, Duration::ZERO);
    assert!(!next.was_started);
    assert_eq!(next.next_start("main"), (1, 0));
}

/// A table shows the message behind the process's name.
#[test]
fn process_without_a_message_is_not_named_in_the_pods() {
    let mut pod = Pod::new(CHECKED);
    assert_eq!(pod.task.report().status.message, "main: starting");
    pod.start();
    let thresholds = Thresholds { passing_after: 1, critical_after: 1, restart_after: None };
    pod.process().verdict = Some(HealthVerdict::new(thresholds));
    pod.process().state = AgentPodState::Running;
    let status = pod.task.report().status;
    assert_eq!((status.health, status.message.as_str()), (Health::Unknown, ""));
    pod.process().health_message = "127.0.0.1:1: refused".to_owned();
    assert_eq!(pod.task.report().status.message, "main: 127.0.0.1:1: refused");
}
