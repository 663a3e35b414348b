//! The agent's loop: events in, plan, actions out, reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, error_span, info, warn};

use super::driver::{Driver, FoundProcess, ProcessExit, Started};
use super::health::{HealthVerdict, ask};
use super::intents::{IntentWatch, NodeIntents};
use super::plan::{AgentAction, AgentObserved, AgentPod, AgentPodState, SingleInstance, plan};
use super::pod::{PodTask, intended, prepare};
use super::presence::{AgentPresence, PresenceState};
use super::report::{Bucket, JobBells, Leave, PodReport, bell, flapping, removal};
use super::single_instance::Asking;
use super::state::DataDir;
use super::{AgentSettings, AtShutdown, LONGEST_PAUSE, cgroup};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_store::Env;
use rcfarm_store::{Commit, Op, Query, StoreError, Txn, Writer};

/// What happened.
pub(super) enum AgentEvent {
    /// The node has a session, and may write.
    Presence(PresenceState),
    /// It has none any more.
    Lost,
    /// What is intended here was read.
    Intents(NodeIntents),
    /// A start has come to its end.
    Started(PodId, String, Result<Started, String>),
    /// A process has ended.
    Exited(PodId, String, ProcessExit),
    /// A health check was answered.
    Answer { pod: PodId, launchable: String, attempt: u64, health: Health, words: String },
    /// No other node runs a single instance.
    SingleInstance(PodId),
    /// These may still run it.
    Others(PodId, Vec<NodeName>),
    /// The pods that the store believes to be real here.
    Real(BTreeSet<PodId>),
    /// A transaction of reports has come to its end.
    Reported(Result<Commit, StoreError>, BTreeMap<PodId, Option<PodReport>>),
}

/// An agent, set up but not yet running.
pub struct Agent {
    settings: Arc<AgentSettings>,
    env: Env,
    driver: Arc<dyn Driver>,
}

/// How long the pods get to stop when they are to go with the agent, besides their own grace.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an agent ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its data directory cannot be used.
    #[error("{0}")]
    DataDir(String),
    /// A defect of the program. The log has its words; the pods run on.
    #[error("a task of the agent panicked, which is a defect: its words are in the log")]
    TaskDied,
}

impl Agent {
    /// An agent.
    #[must_use]
    pub fn new(settings: AgentSettings, env: Env, driver: Arc<dyn Driver>) -> Self {
        Agent { settings: Arc::new(settings), env, driver }
    }

    /// Runs until `shutdown`.
    ///
    /// # Errors
    /// [`AgentError`]. Failures of the store are waited out.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), AgentError> {
        // Several agents may share a process and its log.
        let span = error_span!("node", name = %self.settings.name);
        self.run_inner(shutdown).instrument(span).await
    }

    async fn run_inner(self, shutdown: CancellationToken) -> Result<(), AgentError> {
        let data = Arc::new(DataDir::open(&self.settings.data_dir).map_err(AgentError::DataDir)?);
        let (events, events_in) = unbounded_channel();
        let mut work = Work {
            writer: Writer::new(self.env.store.clone()),
            agent: self,
            data,
            events,
            tasks: Tasks::default(),
            pods: BTreeMap::new(),
            intents: None,
            presence: None,
            written: BTreeMap::new(),
            buckets: BTreeMap::new(),
            is_reporting: false,
            report_after: None,
            job_bells: JobBells::default(),
            failures: 0,
            is_watching: false,
            removing: BTreeSet::new(),
        };
        work.adopt().await;
        work.serve(events_in, shutdown).await
    }
}

/// What goes on beside the loop, under the name of the node.
#[derive(Default)]
struct Tasks(JoinSet<()>);

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.0.spawn(task.in_current_span())
    }
}

struct Work {
    agent: Agent,
    writer: Writer,
    data: Arc<DataDir>,
    events: UnboundedSender<AgentEvent>,
    tasks: Tasks,
    pods: BTreeMap<PodId, PodTask>,
    /// `None` before the first read.
    intents: Option<NodeIntents>,
    presence: Option<PresenceState>,
    /// What the store was told; `None`: that there is no such pod.
    written: BTreeMap<PodId, Option<PodReport>>,
    buckets: BTreeMap<PodId, Bucket>,
    is_reporting: bool,
    /// Nothing is reported before this moment.
    report_after: Option<Instant>,
    job_bells: JobBells,
    failures: u32,
    is_watching: bool,
    /// Pods whose end is being told. One that is back is announced when that is over, lest its announcement go with it.
    removing: BTreeSet<PodId>,
}

impl Work {
    /// Takes over what the last agent left running.
    async fn adopt(&mut self) {
        let now = Instant::now();
        for (id, kept) in self.data.pods() {
            let mut pod = PodTask::new(id.clone(), intended(kept), &self.data, now);
            let names: Vec<String> = pod.processes.keys().cloned().collect();
            for name in names {
                let dir = self.data.launchable(&id, &name);
                let found = self.agent.driver.adopt(&dir).await;
                let runs = matches!(found, FoundProcess::Running(_));
                pod.adopt(&name, found, now);
                if runs {
                    self.watch_over(&mut pod, &name);
                }
            }
            self.pods.insert(id, pod);
        }
        if !self.pods.is_empty() {
            info!(pods = self.pods.len(), "pods of the last agent were taken over");
        }
    }

    async fn serve(
        &mut self,
        mut events_in: UnboundedReceiver<AgentEvent>,
        shutdown: CancellationToken,
    ) -> Result<(), AgentError> {
        let presence = AgentPresence {
            env: self.agent.env.clone(),
            settings: self.agent.settings.clone(),
            data: self.data.clone(),
            events: self.events.clone(),
        };
        let present = CancellationToken::new();
        self.tasks.spawn(presence.run(present.clone()));
        let ended = loop {
            let again_at = self.act();
            let report_at = self.report();
            let next = [again_at, report_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                Some(event) = events_in.recv() => {
                    self.hear(event);
                    while let Ok(event) = events_in.try_recv() {
                        self.hear(event);
                    }
                }
                Some(Err(error)) = self.tasks.0.join_next() => {
                    // What it would have told stays as it was, and nobody would know. The pods run on.
                    if error.is_panic() {
                        error!(alert = true, %error, "a task of the agent panicked: the agent stops");
                        break Err(AgentError::TaskDied);
                    }
                }
                () = wait_until(next) => {}
            }
        };
        if ended.is_ok() && self.agent.settings.at_shutdown == AtShutdown::StopPods {
            self.stop_everything(&mut events_in).await;
        }
        present.cancel();
        self.tasks.0.shutdown().await;
        info!("stopped");
        ended
    }

    fn hear(&mut self, event: AgentEvent) {
        let now = Instant::now();
        match event {
            AgentEvent::Presence(presence) => {
                // Of pods that are gone it is still to be told.
                let pods = &self.pods;
                self.written.retain(|id, _| !pods.contains_key(id));
                self.report_after = None;
                self.read_reality();
                self.presence = Some(presence);
                self.remember();
                if !self.is_watching {
                    self.is_watching = true;
                    self.watch_intents();
                }
            }
            AgentEvent::Lost => {
                self.presence = None;
                self.pods.values_mut().for_each(PodTask::ask_again);
            }
            AgentEvent::SingleInstance(pod) => {
                if let Some(pod) = self.asking(&pod) {
                    pod.single_instance = SingleInstance::Sure;
                    pod.waits_for.clear();
                }
            }
            AgentEvent::Others(pod, nodes) => {
                if let Some(pod) = self.asking(&pod) {
                    pod.waits_for = nodes;
                }
            }
            AgentEvent::Intents(intents) => {
                for (id, intended) in &intents.pods {
                    if let Some(pod) = self.pods.get_mut(id)
                        && pod.intended.hash == intended.hash
                    {
                        pod.intended = intended.clone();
                    }
                }
                self.intents = Some(intents);
                self.remember();
            }
            AgentEvent::Started(pod, name, started) => self.started(&pod, &name, started, now),
            AgentEvent::Exited(pod, name, exit) => {
                if let Some(pod) = self.pods.get_mut(&pod) {
                    info!(pod = %pod.id, launchable = name, how = exit.in_words(), "a process has ended");
                    pod.ended(&name, exit, now);
                }
            }
            AgentEvent::Answer { pod, launchable, attempt, health, words } => {
                let pod = self.pods.get_mut(&pod);
                let process = pod.and_then(|pod| pod.processes.get_mut(&launchable));
                if let Some(process) = process.filter(|process| process.attempt == attempt) {
                    let before = process.verdict;
                    process.verdict = before.map(|verdict| verdict.after(health));
                    if process.verdict.map(|v| v.health()) != before.map(|v| v.health()) {
                        process.answer = words;
                    }
                }
            }
            AgentEvent::Real(pods) => {
                for pod in pods {
                    // A pod of which we know nothing is told to be gone; of the others everything is told anyway.
                    self.written
                        .entry(pod)
                        .or_insert(Some(PodReport { reality: None, status: Default::default() }));
                }
            }
            AgentEvent::Reported(outcome, reports) => self.reported(outcome, reports, now),
        }
    }

    /// Notes that the intents were believed under this record of the node.
    fn remember(&self) {
        let trusted = self.intents.as_ref().is_some_and(|intents| intents.doubted.is_empty());
        if let (Some(presence), true) = (&self.presence, trusted) {
            let created = Some(presence.created);
            if let Err(error) = self.data.remember(|memory| memory.record_created = created) {
                warn!(%error, "the data directory cannot be written");
            }
        }
    }

    fn watch_intents(&mut self) {
        let watch = IntentWatch {
            env: self.agent.env.clone(),
            node: self.agent.settings.name.clone(),
            data: self.data.clone(),
            events: self.events.clone(),
            known: self.pods.keys().cloned().collect(),
        };
        self.tasks.spawn(watch.run());
    }

    fn read_reality(&mut self) {
        let (store, events) = (self.agent.env.store.clone(), self.events.clone());
        let prefix = key::node_realities(&self.agent.settings.name);
        self.tasks.spawn(async move {
            if let Ok(keys) = store.keys(&prefix, None, Query::CONSISTENT).await {
                let pods = keys.value.iter().filter_map(|key| prefix.tail(key)?.parse().ok());
                let _ = events.send(AgentEvent::Real(pods.collect()));
            }
        });
    }

    /// Does what is to be done. When to look again.
    fn act(&mut self) -> Option<Instant> {
        let seen: BTreeMap<PodId, AgentPod> =
            self.pods.iter().map(|(id, pod)| (id.clone(), self.seen(pod))).collect();
        let hashes: Option<BTreeMap<PodId, u64>> = self.intents.as_ref().map(|intents| {
            intents.pods.iter().map(|(id, intended)| (id.clone(), intended.hash)).collect()
        });
        let nothing = BTreeSet::new();
        let plan = plan(AgentObserved {
            intents: hashes.as_ref(),
            doubted: self.intents.as_ref().map_or(&nothing, |intents| &intents.doubted),
            pods: &seen,
            has_lease: self.presence.as_ref().is_some_and(|s| s.claim.epoch().is_live()),
            now: Instant::now(),
        });
        let is_over = plan.actions.is_empty();
        for action in plan.actions {
            match action {
                AgentAction::Take(id) => self.take(id),
                AgentAction::Ask(id) => self.ask(&id),
                AgentAction::Start(id, name) => self.start(&id, &name),
                AgentAction::Stop(id, name, why) => self.stop(&id, &name, why),
                AgentAction::Forget(id) => self.forget(&id),
            }
        }
        // What was taken is to be started, what could not be started to be tried again.
        if is_over { plan.again_at } else { self.act() }
    }

    fn asking(&mut self, id: &PodId) -> Option<&mut PodTask> {
        self.pods.get_mut(id).filter(|pod| pod.single_instance == SingleInstance::Asked)
    }

    fn seen(&self, pod: &PodTask) -> AgentPod {
        let seen = pod.seen();
        match seen.single_instance {
            SingleInstance::Unasked if self.removing.contains(&pod.id) => {
                AgentPod { single_instance: SingleInstance::Asked, ..seen }
            }
            _ => seen,
        }
    }

    fn take(&mut self, id: PodId) {
        let intended = self.intents.as_ref().and_then(|intents| intents.pods.get(&id));
        if let Some(intended) = intended.cloned() {
            info!(pod = %id, "a pod is intended here");
            let pod = PodTask::new(id.clone(), intended, &self.data, Instant::now());
            if let Err(why) = &pod.spec {
                warn!(pod = %id, why, "the pod cannot be run");
                // Kept all the same, so that its status is taken away when the intent is.
                let _ = self.data.keep(&id, &pod.kept());
            }
            self.pods.insert(id, pod);
        }
    }

    /// Has somebody look whether another node runs a single instance.
    fn ask(&mut self, id: &PodId) {
        let (Some(presence), Some(pod)) = (self.presence.clone(), self.pods.get_mut(id)) else {
            return;
        };
        let asking = Asking {
            store: self.agent.env.store.clone(),
            presence,
            node: self.agent.settings.name.clone(),
            pod: id.clone(),
            status: pod.report().status,
            events: self.events.clone(),
        };
        pod.single_instance = SingleInstance::Asked;
        pod.asking = Some(self.tasks.spawn(asking.run()));
    }

    fn start(&mut self, id: &PodId, name: &str) {
        let Some(pod) = self.pods.get_mut(id) else { return };
        let launch = pod.launch(name, &self.agent.settings, &self.data);
        let Some(process) = pod.processes.get_mut(name) else { return };
        process.state = AgentPodState::Starting;
        process.attempt += 1;
        let (driver, data, events) =
            (self.agent.driver.clone(), self.data.clone(), self.events.clone());
        let (kept, node) = (pod.kept(), self.agent.settings.name.clone());
        let config = pod.spec.as_ref().ok().and_then(|spec| spec.config.clone());
        let (id, name) = (id.clone(), name.to_owned());
        self.tasks.spawn(async move {
            let dir = data.launchable(&id, &name);
            let started = match launch {
                Ok(launch) => match prepare(&data, &id, &kept, config.as_ref(), &node) {
                    Ok(()) => driver.start(&dir, &launch).await,
                    Err(why) => Err(why),
                },
                Err(why) => Err(why),
            };
            let _ = events.send(AgentEvent::Started(id, name, started));
        });
    }

    fn started(&mut self, id: &PodId, name: &str, started: Result<Started, String>, now: Instant) {
        let Some(mut pod) = self.pods.remove(id) else { return };
        match started {
            Ok(running) => {
                info!(pod = %id, launchable = name, pid = running.pid, "a process runs");
                pod.started(name, running);
                self.watch_over(&mut pod, name);
            }
            Err(why) => {
                warn!(pod = %id, launchable = name, why, "a process cannot be started");
                let at = self.agent.env.clock.wall();
                pod.ended(name, ProcessExit { at, ..ProcessExit::unknown(&why) }, now);
            }
        }
        self.pods.insert(id.clone(), pod);
    }

    /// Waits for a process's end, and asks for its health.
    fn watch_over(&mut self, pod: &mut PodTask, name: &str) {
        let check = pod.process_spec(name).and_then(|spec| spec.health.clone());
        let env = pod.launch(name, &self.agent.settings, &self.data).ok().map(|launch| launch.env);
        let Some(process) = pod.processes.get_mut(name) else { return };
        let Some(running) = process.running.clone() else { return };
        let (id, name) = (pod.id.clone(), name.to_owned());
        let (driver, events) = (self.agent.driver.clone(), self.events.clone());
        let dir = self.data.launchable(&id, &name);
        let attempt = process.attempt;
        if let (Some(check), Some(env)) = (check, env) {
            let (pod, launchable, events) = (id.clone(), name.clone(), self.events.clone());
            let home = self.data.pod(&id);
            let checker = self.tasks.spawn(async move {
                let mut verdict = HealthVerdict::new(check.thresholds);
                loop {
                    let (health, words) = ask(&check, &env, &home).await;
                    let (pod, launchable) = (pod.clone(), launchable.clone());
                    let _ =
                        events.send(AgentEvent::Answer { pod, launchable, attempt, health, words });
                    verdict = verdict.after(health);
                    // A process that comes up is waited for more closely than one that runs.
                    let closely = check.interval.min(Duration::from_millis(500));
                    let young = verdict.health() == Health::Unknown;
                    sleep(if young { closely } else { check.interval }).await;
                }
            });
            process.checker = Some(checker);
        }
        self.tasks.spawn(async move {
            let exit = driver.exited(&dir, &running).await;
            let _ = events.send(AgentEvent::Exited(id, name, exit));
        });
    }

    fn stop(&mut self, id: &PodId, name: &str, why: &str) {
        let Some(pod) = self.pods.get_mut(id) else { return };
        let (signal, grace) = pod.process_spec(name).map_or_else(
            || ("TERM".to_owned(), Duration::from_secs(10)),
            |spec| (spec.stop_signal.clone(), spec.grace),
        );
        let Some(process) = pod.processes.get_mut(name) else { return };
        let Some(running) = process.running.clone() else { return };
        info!(pod = %id, launchable = name, why, "a process is stopped");
        process.state = AgentPodState::Stopping;
        let driver = self.agent.driver.clone();
        self.tasks.spawn(async move { driver.stop(&running, &signal, grace).await });
    }

    fn forget(&mut self, id: &PodId) {
        info!(pod = %id, "the pod is gone");
        self.pods.remove(id);
        self.buckets.remove(id);
        cgroup::remove(id);
        // What was never told is taken back all the same: an agent before this one may have told it.
        self.written
            .entry(id.clone())
            .or_insert(Some(PodReport { reality: None, status: Default::default() }));
    }

    /// Tells the store what has changed, one transaction at a time. When to try again.
    fn report(&mut self) -> Option<Instant> {
        let presence = self.presence.as_ref().filter(|presence| presence.claim.is_live())?;
        let now = Instant::now();
        if self.is_reporting {
            return None;
        }
        if let Some(after) = self.report_after.filter(|after| *after > now) {
            return Some(after);
        }
        let mut txn = Txn::under(&presence.claim);
        let mut told = BTreeMap::new();
        let mut again_at: Option<Instant> = None;
        let gone: Vec<PodId> =
            self.written.keys().filter(|id| !self.pods.contains_key(*id)).cloned().collect();
        let node = &self.agent.settings.name;
        let wall = self.agent.env.clock.wall();
        let value = self.agent.env.ids.ordered_uuid(wall).to_string();
        let fits = |txn: &Txn<_>, ops: &[Op]| txn.fits(ops, self.agent.settings.limits);
        for id in gone {
            let ops = removal(node, &id);
            if !fits(&txn, &ops) {
                break;
            }
            txn.extend(ops);
            told.insert(id, None);
        }
        for (id, pod) in &self.pods {
            if pod.is_settling() {
                continue;
            }
            let mut report = pod.report();
            let known = self.written.get(id);
            if known.is_some_and(|known| known.as_ref() == Some(&report)) {
                continue;
            }
            let mut ops = report.ops(node, id, &presence.health, wall);
            ops.extend(pod.intended.owner.map(|owner| bell(owner, &value)));
            ops.extend(self.job_bells.ring(&report, &value, now));
            if !fits(&txn, &ops) {
                break;
            }
            let bucket = self.buckets.entry(id.clone()).or_insert_with(|| Bucket::full(now));
            match bucket.take(now) {
                Leave::Write => {}
                Leave::WriteFlapping => {
                    // Not what is known of it, so that the truth is written as soon as it may be.
                    report = flapping(&report);
                    let throttled = report.ops(node, id, &presence.health, wall);
                    ops.splice(..throttled.len(), throttled);
                }
                Leave::Wait(at) => {
                    again_at = Some(again_at.map_or(at, |other: Instant| other.min(at)));
                    continue;
                }
            }
            txn.extend(ops);
            told.insert(id.clone(), Some(report));
        }
        if told.is_empty() {
            return again_at;
        }
        self.is_reporting = true;
        let gone = told.iter().filter(|(_, report)| report.is_none());
        self.removing = gone.map(|(id, _)| id.clone()).collect();
        let (writer, events) = (self.writer.clone(), self.events.clone());
        self.tasks.spawn(async move {
            let outcome = writer.commit(txn).await;
            let _ = events.send(AgentEvent::Reported(outcome, told));
        });
        None
    }

    fn reported(
        &mut self,
        outcome: Result<Commit, StoreError>,
        told: BTreeMap<PodId, Option<PodReport>>,
        now: Instant,
    ) {
        self.is_reporting = false;
        self.removing.clear();
        let failed = match outcome {
            Ok(Commit::Applied(_)) => None,
            Ok(Commit::ClaimLost) => {
                if let Some(presence) = self.presence.take() {
                    // The fence was refused: the session is not what it was taken for.
                    presence.claim.epoch().end();
                }
                return;
            }
            Ok(Commit::Refused(refusals)) => {
                Some(refusals.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>().join("; "))
            }
            // It may have been applied: everything in it can be written again.
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = failed {
            self.failures += 1;
            if self.failures == 1 || self.failures.is_multiple_of(20) {
                warn!(why, failures = self.failures, "the pods' states cannot be written");
            }
            let base = Duration::from_millis(200);
            let pause = rcfarm_api::backoff(base, LONGEST_PAUSE, self.failures);
            self.report_after = Some(now + self.agent.env.ids.jitter(pause, 0.5));
            return;
        }
        self.failures = 0;
        for (id, report) in told {
            match report {
                Some(report) => drop(self.written.insert(id, Some(report))),
                None => {
                    self.written.remove(&id);
                    if !self.pods.contains_key(&id)
                        && let Err(error) = self.data.forget(&id)
                    {
                        warn!(pod = %id, %error, "remains of the pod cannot be removed");
                    }
                }
            }
        }
    }

    /// Stops every pod, waits, and says so.
    async fn stop_everything(&mut self, events_in: &mut UnboundedReceiver<AgentEvent>) {
        let until = Instant::now() + LEAVE_TIMEOUT;
        self.intents = Some(NodeIntents::default());
        loop {
            self.act();
            self.report();
            if self.pods.is_empty() && (self.written.is_empty() || self.presence.is_none()) {
                return;
            }
            tokio::select! {
                biased;
                () = sleep_until(until) => {
                    warn!(pods = self.pods.len(), "pods are left running: they did not stop in time");
                    return;
                }
                Some(event) = events_in.recv() => {
                    if !matches!(event, AgentEvent::Intents(_)) {
                        self.hear(event);
                    }
                }
            }
        }
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
