//! The node's pods in memory, and the actions on them: accept, check, start, health checks, stop, forget.
//!
//! Actions start tasks. Their results come back as [`AgentEvent`]s.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::driver::{Driver, FoundProcess, Launch, ProcessExit, StartFailure, Started};
use super::event::{AgentEvent, PresenceState};
use super::health_check::{HealthCheck, HealthVerdict};
use super::intended::Intended;
use super::launch::prepare;
use super::logs::last_output;
use super::plan::{AgentPodState, SingleInstance};
use super::pod::PodTask;
use super::report::PodReport;
use super::single_instance::SingleInstanceCheck;
use super::state::{DataDir, StoredPod};
use super::tasks::Tasks;
use super::{AgentSettings, cgroup};
use rcfarm_api::ids::PodId;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{IntentIndex, LONGEST_OUTPUT, PodStatus};
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Env, panic_text};

/// The pods of this node and what is needed to run them.
pub(super) struct NodePods {
    /// When the agent started. Plans count time from it.
    pub(super) started_at: Instant,
    pub(super) env: Env,
    pub(super) settings: Arc<AgentSettings>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) data: Arc<DataDir>,
    pub(super) events: UnboundedSender<AgentEvent>,
    pub(super) tasks: Tasks,
    pub(super) by_id: BTreeMap<PodId, PodTask>,
}

/// Interval of health checks until the first verdict, unless the check's own interval is shorter.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a pod's end is stored again, after that failed.
const FORGET_AGAIN: Duration = Duration::from_secs(5);

impl NodePods {
    /// Time since the agent's start.
    pub(super) fn uptime(&self) -> Duration {
        monotonic() - self.started_at
    }

    /// Adopts the processes that the previous agent left running. Returns the pods that it had forgotten and whose
    /// reports may not be deleted yet.
    pub(super) async fn adopt(&mut self) -> Vec<PodId> {
        let (now, mut forgotten) = (self.uptime(), Vec::new());
        for (id, stored) in self.data.pods() {
            if stored.forgotten {
                forgotten.push(id);
                continue;
            }
            let reported = stored.reported;
            self.insert(id.clone(), stored.into(), now).set_reported(reported);
            let names = self.by_id.get_mut(&id).map(|pod| pod.launchables(&self.data));
            for name in names.unwrap_or_default() {
                let dir = self.data.launchable(&id, &name);
                let found = match enabled(Failpoint::NothingAdopted) {
                    true => FoundProcess::Nothing,
                    false => self.driver.adopt(&dir).await,
                };
                self.catching(&id, |pods| pods.adopt_process(&id, &name, found, now));
            }
        }
        if !self.by_id.is_empty() {
            info!(pods = self.by_id.len(), "pods of the previous agent adopted");
        }
        forgotten
    }

    fn adopt_process(&mut self, id: &PodId, name: &str, found: FoundProcess, now: Duration) {
        let log = self.data.log(id, name);
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let is_running = matches!(found, FoundProcess::Running(_));
        let found = match found {
            FoundProcess::Exited(exit) if !exit.is_success() => {
                let output = last_output(&log, LONGEST_OUTPUT);
                FoundProcess::Exited(ProcessExit { output, ..exit })
            }
            found => found,
        };
        pod.adopt(name, found, now);
        if is_running {
            self.monitor(id, name);
        }
    }

    /// Accepts a pod of which no process is left. Files of an earlier pod of its id are deleted, unless that was the same
    /// job's or another version of it: logs and counted starts are the other's.
    pub(super) fn accept(&mut self, id: PodId, intended: Intended) {
        info!(pod = %id, "pod accepted");
        let is_known = self.by_id.contains_key(&id);
        let has_foreign_files = self.is_foreign(&id, &intended) && {
            info!(pod = %id, "files of another pod of this id are deleted");
            cgroup::remove(&self.settings.name, &id);
            !self.forget_files(&id)
        };
        if is_known && let Err(error) = self.data.forget_starts(&id) {
            warn!(pod = %id, %error, "the records of the pod's earlier starts cannot be deleted");
        }
        let now = self.uptime();
        let pod = self.insert(id.clone(), intended, now);
        pod.has_foreign_files = has_foreign_files;
        if let Err(why) = &pod.spec {
            warn!(pod = %id, why, "pod cannot be run");
        }
        // Before it is reported: the next agent must delete the status when the intent is deleted.
        if !has_foreign_files {
            self.store(&id);
        }
    }

    /// Whether the files of this id are of another pod: of another job, or forgotten. Where the record of the pod cannot
    /// be read, a process may still run, and its files are needed to find it.
    fn is_foreign(&self, id: &PodId, intended: &Intended) -> bool {
        if let Some(pod) = self.by_id.get(id) {
            return pod.intended.job != intended.job;
        }
        let stored = self.data.stored(id);
        stored.is_some_and(|pod| pod.forgotten || Intended::from(pod).job != intended.job)
    }

    /// Deletes a pod's files. Returns whether none is left.
    fn forget_files(&self, id: &PodId) -> bool {
        let forgotten = self.data.forget(id);
        if let Err(error) = &forgotten {
            warn!(pod = %id, %error, "the files of the pod before it cannot be deleted");
        }
        self.data.empty_trash();
        forgotten.is_ok()
    }

    /// Stores a pod. A failure is told by the next start, which stores it again.
    pub(super) fn store(&self, id: &PodId) {
        if let Some(pod) = self.by_id.get(id)
            && let Err(error) = self.data.keep(id, &pod.stored())
        {
            warn!(pod = %id, %error, "the pod cannot be stored");
        }
    }

    /// Reads the manifest of a pod. If that panics, the pod has a status that says so, and no processes.
    fn insert(&mut self, id: PodId, intended: Intended, now: Duration) -> &mut PodTask {
        let (data, permits) = (&self.data, &self.settings.permits);
        let read =
            AssertUnwindSafe(|| PodTask::new(id.clone(), intended.clone(), data, permits, now));
        let pod = catch_unwind(read).unwrap_or_else(|panic| {
            PodTask::unfit(id.clone(), intended, alert(&id, &panic_text(panic.as_ref())))
        });
        let mut pod = pod;
        (pod.services, pod.service_notes) = pod.services_of(&self.settings);
        self.by_id.entry(id).insert_entry(pod).into_mut()
    }

    /// Runs `step`, which handles one pod. A panic ends that pod; the agent goes on.
    pub(super) fn catching(&mut self, id: &PodId, step: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| step(self))) {
            self.panicked(id, None, &panic_text(panic.as_ref()));
        }
    }

    /// Stops a pod after a panic. It is not started again until its manifest changes or the agent is started again.
    /// `unwatched`: a launchable whose end nobody will report.
    pub(super) fn panicked(&mut self, id: &PodId, unwatched: Option<&str>, panic: &str) {
        let why = alert(id, panic);
        let Some(pod) = self.by_id.get_mut(id) else { return };
        for name in pod.fail(why) {
            self.stop(id, &name, "the agent panicked");
        }
        if let (Some(name), Some(pod)) = (unwatched, self.by_id.get_mut(id)) {
            pod.lost(name);
        }
    }

    /// Spawns a task of one pod. If it panics, the loop gets [`AgentEvent::PodPanicked`].
    pub(super) fn spawn_for(
        &mut self,
        pod: &PodId,
        launchable: Option<&str>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let (pod, launchable) = (pod.clone(), launchable.map(str::to_owned));
        let events = self.events.clone();
        self.tasks.spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                let panic = panic_text(panic.as_ref());
                let _ = events.send(AgentEvent::PodPanicked { pod, launchable, panic });
            }
        })
    }

    /// Starts the check that no other node runs a single instance.
    pub(super) fn check_single_instance(&mut self, id: &PodId, presence: Option<PresenceState>) {
        let (Some(presence), Some(pod)) = (presence, self.by_id.get_mut(id)) else { return };
        let intent = pod.intended.index.unwrap_or(IntentIndex::NONE);
        let status = PodStatus { intent_index: Some(intent), ..pod.report().status };
        let check = SingleInstanceCheck {
            store: self.env.store.clone(),
            presence,
            node: self.settings.name.clone(),
            pod: id.clone(),
            intent,
            report: PodReport { reality: None, status },
            events: self.events.clone(),
        };
        pod.single_instance = SingleInstance::Checking;
        let check = self.spawn_for(id, None, check.run());
        if let Some(pod) = self.by_id.get_mut(id) {
            pod.single_instance_check = Some(check);
        }
    }

    /// The pod, if a check for other instances is under way.
    pub(super) fn checking(&mut self, id: &PodId) -> Option<&mut PodTask> {
        self.by_id.get_mut(id).filter(|pod| pod.single_instance == SingleInstance::Checking)
    }

    pub(super) fn start(&mut self, id: &PodId, name: &str) {
        let has_foreign_files = self.by_id.get(id).is_some_and(|pod| pod.has_foreign_files);
        let has_foreign_files = has_foreign_files && !self.forget_files(id);
        let Some(pod) = self.by_id.get_mut(id) else { return };
        pod.has_foreign_files = has_foreign_files;
        let known = pod.knows_at_start(name);
        let launch = match has_foreign_files {
            true => Err("files of an earlier pod of this id cannot be deleted".into()),
            false => pod.launch(name, &self.settings, &self.data),
        };
        let Some(process) = pod.processes.get_mut(name) else { return };
        process.starting(launch.as_ref().ok());
        pod.was_started = true;
        let (driver, data, events) = (self.driver.clone(), self.data.clone(), self.events.clone());
        let (stored, node) = (pod.stored(), self.settings.name.clone());
        let spec = pod.spec.clone().ok();
        let (pod, launchable) = (id.clone(), name.to_owned());
        self.spawn_for(id, Some(name), async move {
            let dir = data.launchable(&pod, &launchable);
            let started = match launch {
                Ok(launch) => {
                    let user = launch.run_as;
                    let prepared = prepare(&data, &pod, &stored, spec.as_ref(), user, &node);
                    match prepared.and_then(|()| known.map_or(Ok(()), |known| known.store(&dir))) {
                        Ok(()) => driver.start(&dir, &launch).await,
                        Err(why) => Err(StartFailure::Node(why)),
                    }
                }
                Err(failure) => Err(failure),
            };
            let _ = events.send(AgentEvent::Started(pod, launchable, started));
        });
    }

    pub(super) fn started(
        &mut self,
        id: &PodId,
        name: &str,
        started: Result<Started, StartFailure>,
    ) {
        let now = self.uptime();
        let Some(pod) = self.by_id.get_mut(id) else { return };
        match started {
            Ok(running) => {
                info!(pod = %id, launchable = name, pid = running.pid, "process started");
                pod.started(name, running);
                let is_ended = pod.spec.is_err();
                self.monitor(id, name);
                if is_ended {
                    self.stop(id, name, "the agent panicked");
                }
            }
            Err(failure) => {
                let why = failure.why();
                warn!(pod = %id, launchable = name, why, "process cannot be started");
                let attempt = pod.processes.get(name).map_or(0, |process| process.attempt);
                let exit = ProcessExit::not_started(attempt, self.env.clock.wall(), &failure);
                pod.ended(name, exit, now);
            }
        }
    }

    pub(super) fn exited(&mut self, id: &PodId, name: &str, exit: ProcessExit) {
        let now = self.uptime();
        let Some(pod) = self.by_id.get_mut(id) else { return };
        info!(pod = %id, launchable = name, exit = exit.in_words(), "process ended");
        let ended = catch_unwind(AssertUnwindSafe(|| pod.ended(name, exit, now)));
        if let Err(panic) = ended {
            self.panicked(id, Some(name), &panic_text(panic.as_ref()));
        }
    }

    /// Counts the result of one health check of the start `attempt`. Results of earlier starts are ignored.
    pub(super) fn health_checked(
        &mut self,
        id: &PodId,
        name: &str,
        attempt: u64,
        health: Health,
        message: String,
    ) {
        let process = self.by_id.get_mut(id).and_then(|pod| pod.processes.get_mut(name));
        let Some(process) = process.filter(|process| process.attempt == attempt) else { return };
        let before = process.verdict;
        process.verdict = before.map(|verdict| verdict.after(health));
        if process.verdict.map(|v| v.health()) != before.map(|v| v.health()) {
            process.health_message = message;
        }
        let failed = process.verdict.and_then(|verdict| verdict.restarts_after());
        if let (Some(failed), AgentPodState::Running) = (failed, process.state) {
            process.failed_checks = Some(failed);
            self.stop(id, name, "its health check fails");
        }
    }

    /// Starts two tasks for a running process: one waits for its end, one checks its health.
    fn monitor(&mut self, id: &PodId, name: &str) {
        self.spawn_checker(id, name);
        let process = self.by_id.get(id).and_then(|pod| pod.processes.get(name));
        let Some(running) = process.and_then(|process| process.running.clone()) else { return };
        let (pod, launchable) = (id.clone(), name.to_owned());
        let (driver, events) = (self.driver.clone(), self.events.clone());
        let (dir, log) = (self.data.launchable(id, name), self.data.log(id, name));
        self.spawn_for(id, Some(name), async move {
            let mut exit = driver.exited(&dir, &running).await;
            if !exit.is_success() {
                exit.output = last_output(&log, LONGEST_OUTPUT);
            }
            let _ = events.send(AgentEvent::Exited(pod, launchable, exit));
        });
    }

    fn spawn_checker(&mut self, id: &PodId, name: &str) {
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let Some(health_check) = pod.process_spec(name).and_then(|spec| spec.health.clone()) else {
            return;
        };
        let Some(process) = pod.processes.get_mut(name).filter(|process| process.running.is_some())
        else {
            return;
        };
        let Some(launch) = process.launch.as_deref().cloned() else {
            warn!(pod = %id, launchable = name, "its launch.json cannot be read: its health is not checked");
            process.health_message = "its launch.json cannot be read".to_owned();
            return;
        };
        let (pod, launchable, attempt) = (id.clone(), name.to_owned(), process.attempt);
        let events = self.events.clone();
        let report = move |(health, message)| {
            let (pod, launchable) = (pod.clone(), launchable.clone());
            let event = AgentEvent::HealthChecked { pod, launchable, attempt, health, message };
            let _ = events.send(event);
        };
        let launch = Launch { cwd: self.data.home(id, launch.run_as), ..launch };
        let checks = check_repeatedly(self.driver.clone(), health_check, launch, report);
        let checker = self.spawn_for(id, None, checks);
        let process = self.by_id.get_mut(id).and_then(|pod| pod.processes.get_mut(name));
        if let Some(process) = process {
            process.checker = Some(checker);
        }
    }

    pub(super) fn stop(&mut self, id: &PodId, name: &str, why: &str) {
        let Some(pod) = self.by_id.get_mut(id) else { return };
        let (signal, grace) = pod.process_spec(name).map_or_else(
            || ("TERM".to_owned(), Duration::from_secs(10)),
            |spec| (spec.stop_signal.clone(), spec.grace),
        );
        let Some(process) = pod.processes.get_mut(name) else { return };
        let Some(running) = process.running.clone() else { return };
        info!(pod = %id, launchable = name, why, "stopping process");
        process.state = AgentPodState::Stopping;
        let driver = self.driver.clone();
        self.spawn_for(id, None, async move { driver.stop(&running, &signal, grace).await });
    }

    /// Forgets a pod. Its reports are the proof of its deletion, and they are deleted after it. Without the mark the next
    /// agent would take the pod for one that Consul has lost, and keep it. Returns whether the mark is written.
    #[must_use]
    pub(super) fn forget(&mut self, id: &PodId) -> bool {
        let again = self.uptime().saturating_add(FORGET_AGAIN);
        let Some(pod) = self.by_id.get_mut(id) else { return true };
        let marked = self.data.keep(id, &StoredPod { forgotten: true, ..pod.stored() });
        if let Err(error) = marked {
            warn!(pod = %id, %error, "the pod cannot be marked as forgotten: its reports stay until it is");
            pod.forget_at = Some(again);
            return false;
        }
        info!(pod = %id, "pod removed");
        self.by_id.remove(id);
        cgroup::remove(&self.settings.name, id);
        true
    }
}

/// Logs a panic while a pod was handled. Returns the reason for the pod's status.
fn alert(id: &PodId, panic: &str) -> String {
    error!(alert = true, pod = %id, panic, "a panic while a pod was handled: the pod is stopped");
    format!("the agent panicked while it handled the pod, which is a defect of the agent: {panic}")
}

/// Runs a health check until it is aborted, and reports each result.
async fn check_repeatedly(
    driver: Arc<dyn Driver>,
    health_check: HealthCheck,
    launch: Launch,
    report: impl Fn((Health, String)),
) {
    let mut verdict = HealthVerdict::new(health_check.thresholds);
    loop {
        let result = driver.check_health(&health_check, &launch).await;
        verdict = verdict.after(result.0);
        report(result);
        let interval = match verdict.health() {
            Health::Unknown => health_check.interval.min(FIRST_CHECK_INTERVAL),
            _ => health_check.interval,
        };
        sleep(interval).await;
    }
}
