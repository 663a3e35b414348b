use rcfarm_store::time::{Clock as _, SystemClock};

use super::super::driver::StartFailure;
use super::super::test_settings;
use super::*;

const NEVER: &str =
    "id: web\nlaunchables:\n  main: {launchable_type: process, command: 'true', restart: never}\n";
const ALWAYS: &str = "id: web\nlaunchables:\n  main: {launchable_type: process, command: 'true'}\n";

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
    let intended = Intended::new(manifest, None, BTreeMap::new());
    PodTask::new("web".parse().unwrap(), intended, data, &Default::default(), Duration::ZERO)
}

fn disk_is_full() -> StartFailure {
    StartFailure::Node("No space left on device".to_owned())
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
    assert!(status.cannot_start.is_some());
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
