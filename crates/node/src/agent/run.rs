//! The agent's loop: take events, plan, act, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, error_span, info, warn};

use super::driver::Driver;
use super::event::{AgentEvent, PresenceState};
use super::intended::NodeIntents;
use super::intents::IntentWatch;
use super::metrics::{AgentGauges, AgentMetrics};
use super::peers::PeersWatch;
use super::plan::{AgentAction, AgentObserved, AgentPlan, AgentPod, SingleInstance, plan};
use super::pod::PodTask;
use super::pods::NodePods;
use super::presence::AgentPresence;
use super::proof::{Proof, ProofVerdict};
use super::proof_check::ProofCheck;
use super::realities::RealityWatch;
use super::reporter::{ReportResult, Reporter};
use super::service_sync::{ServiceState, ServiceSync};
use super::state::DataDir;
use super::tasks::Tasks;
use super::{AgentSettings, AtShutdown, serve};
use crate::shim;
use rcfarm_api::ids::PodId;
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Answer, Commit, Env, Epoch, Query};

/// An agent that is not yet running.
pub struct Agent {
    settings: Arc<AgentSettings>,
    env: Env,
    driver: Arc<dyn Driver>,
    metrics: Arc<AgentMetrics>,
}

/// With [`AtShutdown::StopPods`], how long the agent waits for its pods to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of comparisons of the reports in Consul with those that the agent wrote.
const COMPARE_EVERY: Duration = Duration::from_secs(300);
/// A transaction whose answer was lost is applied within this time, or not at all.
const LATE_WRITES: Duration = Duration::from_secs(30);

/// Why an agent ended before its shutdown.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data directory cannot be used.
    #[error("{0}")]
    DataDir(String),
    /// A defect of the program. The panic's message is in the log; the pods keep running.
    #[error("a task of the agent panicked, which is a defect: its message is in the log")]
    TaskDied,
}

impl Agent {
    /// An agent that runs pods through `driver`.
    #[must_use]
    pub fn new(settings: AgentSettings, env: Env, driver: Arc<dyn Driver>) -> Self {
        Agent { settings: Arc::new(settings), env, driver, metrics: Arc::default() }
    }

    /// What it counts while it runs.
    #[must_use]
    pub fn metrics(&self) -> Arc<AgentMetrics> {
        self.metrics.clone()
    }

    /// Runs until `shutdown`.
    ///
    /// # Errors
    /// [`AgentError`]. Failures of Consul are retried without limit.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), AgentError> {
        // Several agents may share a process and its log.
        let span = error_span!("node", node = %self.settings.name);
        self.run_inner(shutdown).instrument(span).await
    }

    async fn run_inner(self, shutdown: CancellationToken) -> Result<(), AgentError> {
        let mut data = DataDir::open(&self.settings.data_dir).map_err(AgentError::DataDir)?;
        data.retention = self.settings.ended_logs;
        let data = Arc::new(data);
        let (events, events_in) = unbounded_channel();
        let Agent { settings, env, driver, metrics } = self;
        metrics.runs(events.clone());
        // Dropped with the agent.
        let _logs = serve::on_socket(&settings, &data);
        let reporter = Reporter::new(env.clone(), settings.clone(), data.clone(), events.clone());
        let (tasks, by_id) = (Tasks::default(), BTreeMap::new());
        let mut agent = AgentLoop {
            pods: NodePods {
                started_at: monotonic(),
                env,
                settings,
                driver,
                data,
                events,
                tasks,
                by_id,
            },
            reporter,
            intents: None,
            presence: None,
            is_watching: false,
            is_proving: false,
            read_intents_again: Arc::default(),
            compare_later: Arc::default(),
            realities: RealityWatch::default(),
            peers: PeersWatch::default(),
            services: watch::Sender::default(),
            registered_services: 0,
            metrics,
        };
        agent.pods.data.empty_trash();
        for forgotten in agent.pods.adopt().await {
            agent.reporter.forget(&forgotten);
        }
        agent.run(events_in, shutdown).await
    }
}

struct AgentLoop {
    pods: NodePods,
    reporter: Reporter,
    /// `None` before the first read.
    intents: Option<NodeIntents>,
    /// `None` without a session.
    presence: Option<PresenceState>,
    is_watching: bool,
    /// A proof is being asked for.
    is_proving: bool,
    /// Makes the watch read the intents again.
    read_intents_again: Arc<Notify>,
    /// Has the reports compared [`LATE_WRITES`] from now.
    compare_later: Arc<Notify>,
    realities: RealityWatch,
    peers: PeersWatch,
    /// What is to be registered with the local Consul agent.
    services: watch::Sender<ServiceState>,
    /// Services that the local Consul agent has.
    registered_services: usize,
    metrics: Arc<AgentMetrics>,
}

impl AgentLoop {
    async fn run(
        &mut self,
        mut events_in: UnboundedReceiver<AgentEvent>,
        shutdown: CancellationToken,
    ) -> Result<(), AgentError> {
        let presence = AgentPresence {
            env: self.pods.env.clone(),
            settings: self.pods.settings.clone(),
            data: self.pods.data.clone(),
            events: self.pods.events.clone(),
            disk: Default::default(),
        };
        let NodePods { env, settings, events, .. } = &self.pods;
        let sync = ServiceSync::new(env.clone(), settings.clone(), events.clone());
        self.pods.tasks.spawn(sync.run(self.services.subscribe()));
        let presence_shutdown = CancellationToken::new();
        self.pods.tasks.spawn(presence.run(presence_shutdown.clone()));
        let ended = loop {
            let act_at = self.act();
            let report_at = self.report();
            self.watch_realities();
            self.pods.follow_peers(&mut self.peers);
            self.show_services();
            let next = [act_at, report_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                Some(event) = events_in.recv() => {
                    self.handle(event);
                    while let Ok(event) = events_in.try_recv() {
                        self.handle(event);
                    }
                }
                Some(Err(error)) = self.pods.tasks.join_next() => {
                    // The loop would wait forever for this task's event. The pods keep running.
                    if error.is_panic() {
                        error!(alert = true, %error, "a task of the agent panicked: the agent stops");
                        break Err(AgentError::TaskDied);
                    }
                }
                () = wait_until(next) => {}
            }
        };
        if ended.is_ok() && self.pods.settings.at_shutdown == AtShutdown::StopPods {
            self.stop_all_pods(&mut events_in).await;
        }
        presence_shutdown.cancel();
        self.pods.tasks.shutdown().await;
        info!("agent stopped");
        ended
    }

    fn handle(&mut self, event: AgentEvent) {
        self.count(&event);
        match event {
            // The send fails if the request was broken off meanwhile.
            AgentEvent::Measure(answer) => _ = answer.send(self.gauges()),
            AgentEvent::Presence(presence) => self.registered(presence),
            AgentEvent::SessionLost => {
                self.presence = None;
                self.pods.by_id.values_mut().for_each(PodTask::reset_single_instance);
            }
            AgentEvent::Proved(verdicts) => self.proved(verdicts),
            AgentEvent::CompareReports => {
                self.pods.data.empty_trash();
                self.compare_reports();
            }
            AgentEvent::Unreported(pods) => self.reporter.write_unless_newer(&pods),
            AgentEvent::RealitiesListed(listed) => self.realities_listed(listed),
            AgentEvent::SingleInstance(pod) => {
                if let Some(pod) = self.pods.checking(&pod) {
                    pod.single_instance = SingleInstance::Confirmed;
                    pod.waits_for.clear();
                }
            }
            AgentEvent::OtherNodes(pod, nodes) => {
                if let Some(pod) = self.pods.checking(&pod) {
                    pod.waits_for = nodes;
                }
            }
            AgentEvent::Intents(intents, asked) => {
                self.reporter.intents_read(asked);
                self.intents_read(intents);
            }
            AgentEvent::Started(pod, name, started) => {
                self.pods.catching(&pod, |pods| pods.started(&pod, &name, started));
            }
            AgentEvent::Exited(pod, name, exit) => self.pods.exited(&pod, &name, exit),
            AgentEvent::PodPanicked { pod, launchable, panic } => {
                self.pods.panicked(&pod, launchable.as_deref(), &panic);
            }
            AgentEvent::HealthChecked { pod, launchable, attempt, health, message } => {
                self.pods.catching(&pod, |pods| {
                    pods.health_checked(&pod, &launchable, attempt, health, message);
                });
            }
            AgentEvent::ServicesWritten(mut result) => {
                self.registered_services = result.registered;
                for (id, pod) in &mut self.pods.by_id {
                    pod.service_problem = result.problems.remove(id);
                }
            }
            AgentEvent::Realities(pods) => self.reporter.found_in_consul(pods),
            AgentEvent::PeersListed(read) => self.pods.peers_listed(&mut self.peers, read),
            AgentEvent::PeersWritten { pod, hash, record, written } => {
                self.pods.peers_written(&pod, hash, record, written);
            }
            AgentEvent::PeersSignalled { pod, launchable, told } => {
                self.pods.catching(&pod, |pods| pods.peers_told(&pod, &launchable, &told));
            }
            AgentEvent::Reported(outcome, sent) => {
                let result = self.reporter.finished(outcome, sent, &self.pods.by_id);
                self.note_reported();
                match result {
                    ReportResult::Done => {}
                    ReportResult::Outdated => self.read_intents_again.notify_one(),
                    ReportResult::Changed => self.compare_reports(),
                    ReportResult::Unknown => self.compare_later.notify_one(),
                    ReportResult::SessionLost => {
                        if let Some(presence) = self.presence.take() {
                            presence.claim.epoch().end();
                        }
                    }
                }
            }
        }
    }

    fn count(&self, event: &AgentEvent) {
        self.metrics.count(|counts| match event {
            AgentEvent::Started(_, _, Ok(_)) => counts.started += 1,
            AgentEvent::Started(_, _, Err(_)) => counts.not_started += 1,
            AgentEvent::Exited(_, _, exit) if exit.is_success() => counts.succeeded += 1,
            AgentEvent::Exited(..) => counts.failed += 1,
            AgentEvent::Reported(outcome, _) => {
                let outcome = match outcome {
                    Ok((Commit::Applied(_), _)) => "applied",
                    Ok((Commit::Refused(_), _)) => "conflict",
                    Ok((Commit::ClaimLost, _)) => "claim_lost",
                    Err(_) => "failed",
                };
                *counts.reports.entry(outcome).or_default() += 1;
            }
            _ => {}
        });
    }

    fn gauges(&self) -> AgentGauges {
        let mut gauges =
            AgentGauges { has_session: self.presence.is_some(), ..AgentGauges::default() };
        for pod in self.pods.by_id.values() {
            let status = pod.report().status;
            *gauges.pods.entry(status.phase.to_string()).or_default() += 1;
            let is_critical =
                status.health == Health::Critical && status.phase != NodePodPhase::Ended;
            gauges.critical += u64::from(is_critical);
        }
        gauges
    }

    fn registered(&mut self, presence: PresenceState) {
        self.reporter.write_again(&self.pods.by_id);
        self.read_realities();
        self.presence = Some(presence);
        if !self.is_watching {
            self.is_watching = true;
            self.watch_intents();
            self.compare_repeatedly();
        }
    }

    fn intents_read(&mut self, intents: NodeIntents) {
        for (id, intended) in &intents.pods {
            // The owner may have changed. A pod with another hash is replaced by the plan.
            let Some(pod) = self.pods.by_id.get_mut(id) else { continue };
            pod.listed();
            let reported = self.reporter.reported(id).map(|(intent, _)| intent);
            if pod.intended.hash == intended.hash && pod.intended_again(intended.clone(), reported)
            {
                self.pods.store(id);
            }
        }
        self.intents = Some(intents);
    }

    /// Stores pods whose reports name their present intents since now.
    fn note_reported(&mut self) {
        let mut named = Vec::new();
        for (id, pod) in &mut self.pods.by_id {
            if pod.report_written(self.reporter.reported(id).map(|(intent, _)| intent)) {
                named.push(id.clone());
            }
        }
        named.iter().for_each(|id| self.pods.store(id));
    }

    /// Asks Consul whether the intents of these pods are gone.
    fn prove(&mut self, pods: BTreeSet<PodId>) {
        let mut asked = BTreeMap::new();
        for id in pods {
            let Some(pod) = self.pods.by_id.get_mut(&id) else { continue };
            pod.proof = Proof::Asked;
            let reported = self.reporter.reported(&id).map(|(intent, _)| intent);
            asked.insert(id, pod.expected(reported));
        }
        self.is_proving = true;
        let check = self.proof_check();
        self.pods.tasks.spawn(check.prove(asked));
    }

    fn proof_check(&self) -> ProofCheck {
        let NodePods { env, settings, events, .. } = &self.pods;
        let (store, node, events) = (env.store.clone(), settings.name.clone(), events.clone());
        ProofCheck { store, node, events }
    }

    fn proved(&mut self, verdicts: BTreeMap<PodId, ProofVerdict>) {
        self.is_proving = false;
        let now = self.pods.uptime();
        let mut is_lost = false;
        for (id, verdict) in verdicts {
            // A pod that is intended again meanwhile needs no proof.
            let pod = self.pods.by_id.get_mut(&id).filter(|pod| pod.proof == Proof::Asked);
            let Some(pod) = pod else { continue };
            match verdict {
                ProofVerdict::Gone => pod.proof = Proof::Gone,
                ProofVerdict::Unclear => {
                    let in_a_row = pod.unclear(now);
                    if in_a_row == 5 || in_a_row.is_multiple_of(20) {
                        warn!(pod = %id, in_a_row,
                            "the list of intents lacks the pod, but its intent is there or its report cannot be read: the \
                             token may lack rights. The pod goes on running");
                    }
                    self.read_intents_again.notify_one();
                }
                ProofVerdict::Lost => {
                    pod.proof = Proof::Lost;
                    is_lost = true;
                    warn!(alert = true, pod = %id,
                        "Consul has neither the pod's intent nor this agent's report of it: it was wiped, restored or \
                         replaced. The pod goes on running");
                }
            }
        }
        if is_lost {
            self.reporter.write_again(&self.pods.by_id);
            self.read_realities();
        }
    }

    /// After a restored snapshot, reports are missing or old, and pods that ended have keys again.
    fn compare_reports(&mut self) {
        self.read_realities();
        let check = self.proof_check();
        self.pods.tasks.spawn(check.compare(self.reporter.all_reported()));
    }

    /// Waits for the next change of the realities, while there are some.
    fn watch_realities(&mut self) {
        if !self.realities.is_reading && self.reporter.has_reality() {
            let NodePods { env, settings, events, tasks, .. } = &mut self.pods;
            tasks.spawn(self.realities.read(env, &settings.name, events));
        }
    }

    fn realities_listed(&mut self, listed: Option<Answer<BTreeSet<PodId>>>) {
        self.realities.read_finished(listed.as_ref());
        if listed.is_some_and(|listed| self.reporter.lacks_reality(&listed)) {
            let check = self.proof_check();
            self.pods.tasks.spawn(check.compare(self.reporter.all_reported()));
        }
    }

    fn compare_repeatedly(&mut self) {
        let (events, ids) = (self.pods.events.clone(), self.pods.env.ids.clone());
        let compare_later = self.compare_later.clone();
        self.pods.tasks.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = sleep(ids.jitter(COMPARE_EVERY, 0.2)) => {}
                    () = compare_later.notified() => sleep(LATE_WRITES).await,
                }
                if events.send(AgentEvent::CompareReports).is_err() {
                    return;
                }
            }
        });
    }

    fn watch_intents(&mut self) {
        let watch = IntentWatch {
            env: self.pods.env.clone(),
            node: self.pods.settings.name.clone(),
            data: self.pods.data.clone(),
            events: self.pods.events.clone(),
            known: self.pods.by_id.keys().cloned().collect(),
            again: self.read_intents_again.clone(),
        };
        self.pods.tasks.spawn(watch.run());
    }

    fn read_realities(&mut self) {
        let store = self.pods.env.store.clone();
        let events: UnboundedSender<AgentEvent> = self.pods.events.clone();
        let prefix = key::node_realities(&self.pods.settings.name);
        self.pods.tasks.spawn(async move {
            if let Ok(keys) = store.keys(&prefix, None, Query::CONSISTENT).await {
                let pods = keys.value.iter().filter_map(|key| prefix.tail(key)?.parse().ok());
                let _ = events.send(AgentEvent::Realities(pods.collect()));
            }
        });
    }

    /// Plans and acts until there is nothing more to do. Returns when to plan again without an event.
    fn act(&mut self) -> Option<Instant> {
        // An action may permit the next one at once, such as a start after a pod was accepted.
        loop {
            let plan = self.plan();
            if plan.actions.is_empty() {
                let now = self.pods.uptime();
                let settles = self.pods.by_id.values_mut().filter_map(|pod| pod.settle(now));
                let again_at = settles.chain(plan.again_at).min();
                return again_at.and_then(|at| self.pods.started_at.checked_add(at));
            }
            let mut to_prove = BTreeSet::new();
            for action in plan.actions {
                self.execute(action, &mut to_prove);
            }
            if !to_prove.is_empty() {
                self.prove(to_prove);
            }
        }
    }

    fn plan(&self) -> AgentPlan {
        let pods: BTreeMap<PodId, AgentPod> =
            self.pods.by_id.iter().map(|(id, pod)| (id.clone(), self.observed(pod))).collect();
        let hashes: Option<BTreeMap<PodId, u64>> = self.intents.as_ref().map(|intents| {
            intents.pods.iter().map(|(id, intended)| (id.clone(), intended.hash)).collect()
        });
        let hashes = match enabled(Failpoint::UnreadIsEmpty) {
            true => Some(hashes.unwrap_or_default()),
            false => hashes,
        };
        let none = BTreeSet::new();
        plan(AgentObserved {
            intents: hashes.as_ref(),
            guarded: self.intents.as_ref().map_or(&none, |intents| &intents.guarded),
            pods: &pods,
            can_prove: !self.is_proving,
            has_lease: self.presence.as_ref().is_some_and(|p| has_lease(p.claim.epoch())),
            now: self.pods.uptime(),
        })
    }

    fn execute(&mut self, action: AgentAction, to_prove: &mut BTreeSet<PodId>) {
        match action {
            AgentAction::Prove(id) => {
                to_prove.insert(id);
            }
            AgentAction::Accept(id) => {
                let intended = self.intents.as_ref().and_then(|intents| intents.pods.get(&id));
                if let Some(intended) = intended.cloned() {
                    self.reporter.accepted(&id);
                    self.pods.accept(id, intended);
                }
            }
            AgentAction::CheckSingleInstance(id) => {
                let presence = self.presence.clone();
                self.pods.catching(&id, |pods| pods.check_single_instance(&id, presence));
            }
            AgentAction::Start(id, name) => {
                self.pods.catching(&id, |pods| pods.start(&id, &name));
            }
            AgentAction::Stop(id, name, why) => self.pods.stop(&id, &name, why),
            AgentAction::Forget(id) => {
                if self.pods.forget(&id) {
                    self.reporter.forget(&id);
                }
            }
        }
    }

    /// The pod as the plan sees it. While its deletion is being written, no check for other instances begins: the
    /// check writes the status that the deletion would delete.
    fn observed(&self, pod: &PodTask) -> AgentPod {
        let mut observed = pod.observed();
        let names = self.reporter.reported(&pod.id).map(|(intent, _)| intent);
        observed.may_start |= names.is_some() && names == pod.intended.index;
        if enabled(Failpoint::ListIsProof) {
            observed.proof = Proof::Gone;
        }
        match observed.single_instance {
            SingleInstance::Unchecked if self.reporter.is_deleting(&pod.id) => {
                AgentPod { single_instance: SingleInstance::Checking, ..observed }
            }
            _ => observed,
        }
    }

    fn report(&mut self) -> Option<Instant> {
        let NodePods { by_id, tasks, .. } = &mut self.pods;
        self.reporter.write(self.presence.as_ref(), by_id, self.intents.as_ref(), tasks)
    }

    /// Shows the pods' services to the task that registers them.
    fn show_services(&self) {
        let presence = self.presence.as_ref();
        let services = self.pods.by_id.values().flat_map(PodTask::intended_services);
        let state = ServiceState {
            session: presence.map(|presence| presence.claim.epoch().session().clone()),
            has_check: presence.is_some_and(|presence| presence.has_check),
            services: services.map(|one| (one.service.id.clone(), one)).collect(),
        };
        self.services.send_if_modified(|shown| {
            let is_new = *shown != state;
            *shown = state;
            is_new
        });
    }

    /// Stops every pod and waits until their keys and services are deleted, at most [`STOP_TIMEOUT`].
    async fn stop_all_pods(&mut self, events_in: &mut UnboundedReceiver<AgentEvent>) {
        let until = monotonic() + STOP_TIMEOUT;
        self.intents = Some(NodeIntents::default());
        self.pods.by_id.values_mut().for_each(|pod| pod.proof = Proof::Gone);
        loop {
            let next = [self.act(), self.report()].into_iter().flatten().min();
            let pods = self.pods.by_id.len();
            self.show_services();
            let is_told = self.reporter.is_empty() && self.registered_services == 0;
            if pods == 0 && (is_told || self.presence.is_none()) {
                return;
            }
            tokio::select! {
                biased;
                () = sleep_until(until) => {
                    warn!(pods, "pods left running: they did not stop in time");
                    return;
                }
                Some(event) = events_in.recv() => {
                    if !matches!(event, AgentEvent::Intents(..)) {
                        self.handle(event);
                    }
                }
                () = wait_until(next) => {}
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

/// Whether a single instance may start: the shim would stop it at once if the lease were about to end.
fn has_lease(epoch: &Epoch) -> bool {
    let stopped_at = epoch.good_until().checked_sub(shim::SIGNAL_BEFORE);
    epoch.is_live() && stopped_at.is_some_and(|at| monotonic() < at)
}
