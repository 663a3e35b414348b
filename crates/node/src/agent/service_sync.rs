//! Keeps the services of the node's pods on the local Consul agent.
//!
//! It reads what the Consul agent has and carries out [`plan`], when the pods' services change, when the node is
//! registered again (the Consul agent may have lost everything) and every [`READ_EVERY`]. Without services nothing is
//! read. Writes go to the Consul agent of this machine alone, and are not fenced: the ids name the node, and an agent
//! without the lock on the node's record makes no request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::event::{AgentEvent, ServiceResult};
use super::report::{PodWriteLimiter, WriteDecision};
use super::services::{IntendedService, IntendedServices, ServiceAction, id_prefix, plan};
use super::{AgentSettings, LONGEST_PAUSE, SERVICE};
use rcfarm_api::backoff;
use rcfarm_api::ids::{PodId, SessionId};
use rcfarm_api::node::Health;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Env, PodService, RegisteredService, StoreError};

/// Interval of reads while nothing changes.
const READ_EVERY: Duration = Duration::from_secs(30);
/// Pause before a service that Consul refused is registered again, unless something changes.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// First pause after a failed request. It doubles with each in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What the agent's loop wants to be registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceState {
    /// The session under which the node is registered. `None`: no request is made.
    pub(super) session: Option<SessionId>,
    /// Whether the node's own service has a check that the services can follow.
    pub(super) has_check: bool,
    pub(super) services: IntendedServices,
}

pub(super) struct ServiceSync {
    env: Env,
    settings: Arc<AgentSettings>,
    events: UnboundedSender<AgentEvent>,
    limiters: BTreeMap<String, PodWriteLimiter>,
    /// Services that Consul refused, until when they are left alone, and why.
    refused: BTreeMap<String, (PodService, Instant, String)>,
    told: ServiceResult,
    is_refusal_logged: bool,
    /// Consul refused something since the last read.
    is_refused: bool,
}

impl ServiceSync {
    pub(super) fn new(
        env: Env,
        settings: Arc<AgentSettings>,
        events: UnboundedSender<AgentEvent>,
    ) -> ServiceSync {
        ServiceSync {
            env,
            settings,
            events,
            limiters: BTreeMap::new(),
            refused: BTreeMap::new(),
            told: ServiceResult::default(),
            is_refusal_logged: false,
            is_refused: false,
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self, mut wanted: watch::Receiver<ServiceState>) {
        let (mut session, mut next, mut failures) = (None, None, 0);
        loop {
            tokio::select! {
                biased;
                changed = wanted.changed() => if changed.is_err() { return },
                () = wait_until(next) => {}
            }
            let state = wanted.borrow_and_update().clone();
            if state.session.is_none() {
                next = None;
                continue;
            }
            if session != state.session {
                // The Consul agent may be another one, or the token have other rights.
                self.refused.clear();
                session.clone_from(&state.session);
            }
            next = match self.reconcile(&state).await {
                Ok(again_at) => {
                    failures = 0;
                    let is_idle = state.services.is_empty() && self.told.registered == 0;
                    let read_at =
                        (!is_idle).then(|| monotonic() + self.env.ids.jitter(READ_EVERY, 0.2));
                    [read_at, again_at].into_iter().flatten().min()
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        warn!(%error, "the services of pods cannot be written to the Consul agent yet");
                    }
                    let pause = backoff(FIRST_PAUSE, LONGEST_PAUSE, failures);
                    Some(monotonic() + self.env.ids.jitter(pause, 0.5))
                }
            };
        }
    }

    /// Reads once, and carries out the plan. Returns when there is more to do.
    async fn reconcile(&mut self, state: &ServiceState) -> Result<Option<Instant>, StoreError> {
        let none = IntendedServices::new();
        let intended = if state.has_check { &state.services } else { &none };
        let prefix = id_prefix(&self.settings.name);
        let found = match self.env.store.pod_services(&prefix).await {
            // Without the right to read them there are none that this agent could have registered.
            Err(StoreError::Forbidden { .. }) if intended.is_empty() => BTreeMap::new(),
            found => found?,
        };
        self.is_refused = false;
        self.limiters.retain(|id, _| intended.contains_key(id));
        self.refused.retain(|id, (service, until, _)| {
            *until > monotonic() && intended.get(id).is_some_and(|it| it.service == *service)
        });
        let mut registered = found.len();
        let mut again_at = None;
        for action in plan(intended, &found) {
            match action {
                ServiceAction::Deregister(id) => {
                    if self.deregister(&id, &found).await? {
                        registered -= 1;
                    }
                }
                ServiceAction::Register(id) => {
                    let Some(intended) = intended.get(&id) else { continue };
                    if self.register(&id, intended).await? && !found.contains_key(&id) {
                        registered += 1;
                    }
                }
                ServiceAction::SetHealth(id) => {
                    let Some(intended) = intended.get(&id) else { continue };
                    let later = self.set_health(&id, intended).await?;
                    again_at = [again_at, later].into_iter().flatten().min();
                }
            }
        }
        self.tell(state, registered);
        self.is_refusal_logged &= self.is_refused || !self.refused.is_empty();
        let refused_until = self.refused.values().map(|(_, until, _)| *until);
        Ok(refused_until.chain(again_at).min())
    }

    async fn deregister(
        &mut self,
        id: &str,
        found: &BTreeMap<String, RegisteredService>,
    ) -> Result<bool, StoreError> {
        let name = found.get(id).map(|found| found.service.name.clone()).unwrap_or_default();
        match self.env.store.deregister_service(id).await {
            Ok(()) => {
                info!(service = name, id, "service deregistered");
                Ok(true)
            }
            Err(error) if error.is_retryable() => Err(error),
            Err(error) => {
                self.log_refusal(&name, &error);
                Ok(false)
            }
        }
    }

    async fn register(&mut self, id: &str, one: &IntendedService) -> Result<bool, StoreError> {
        if self.refused.contains_key(id) {
            return Ok(false);
        }
        let node_service = format!("{SERVICE}-{}", self.settings.name);
        let store = &self.env.store;
        match store.register_pod_service(&one.service, &node_service, one.health).await {
            Ok(()) => {
                info!(service = one.service.name, pod = %one.pod, "service registered");
                Ok(true)
            }
            Err(error) if error.is_retryable() => Err(error),
            Err(error) => {
                self.log_refusal(&one.service.name, &error);
                let why = match &error {
                    StoreError::Forbidden { .. } => {
                        format!("the agent's token needs service {:?} write", one.service.name)
                    }
                    error => error.to_string(),
                };
                let refused = (one.service.clone(), monotonic() + REFUSED_FOR, why);
                self.refused.insert(id.to_owned(), refused);
                Ok(false)
            }
        }
    }

    /// Logs the first of several refusals in a row.
    fn log_refusal(&mut self, service: &str, error: &StoreError) {
        self.is_refused = true;
        if std::mem::replace(&mut self.is_refusal_logged, true) {
            debug!(service, %error, "Consul refuses a service of a pod");
            return;
        }
        warn!(alert = true, service, %error,
            fix = "grant the agent's token service_prefix write for the names of its pods' services (docs/operate/acl), \
                   and check it with rcfarm doctor --for node",
            "Consul refuses a service of a pod; the pods run as before");
    }

    /// Sets the check of a service. Returns when that may be done, if the pod changes too often.
    async fn set_health(
        &mut self,
        id: &str,
        intended: &IntendedService,
    ) -> Result<Option<Instant>, StoreError> {
        if self.refused.contains_key(id) {
            return Ok(None);
        }
        let limiter = self.limiters.entry(id.to_owned()).or_default();
        let (health, note) = match limiter.take(monotonic()) {
            WriteDecision::Write => (intended.health, intended.note.as_str()),
            WriteDecision::WriteFlapping => {
                (Health::Critical, "the pod changes state too often; see its log")
            }
            WriteDecision::Wait(until) => return Ok(Some(until)),
        };
        let check = PodService::health_check(id);
        match self.env.store.update_check(&check, health, note).await {
            // A check that is gone is registered by the next read.
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(monotonic() + FIRST_PAUSE)),
            Err(error) if error.is_retryable() => Err(error),
            Err(error) => {
                self.log_refusal(&intended.service.name, &error);
                Ok(None)
            }
        }
    }

    /// Tells the loop what has changed.
    fn tell(&mut self, state: &ServiceState, registered: usize) {
        let mut problems: BTreeMap<PodId, String> = BTreeMap::new();
        for (id, one) in &state.services {
            let why = match (state.has_check, self.refused.get(id)) {
                (false, _) => "the node has no check that it could follow (see --check-ttl)",
                (true, Some((_, _, why))) => why,
                (true, None) => continue,
            };
            let problem = format!("service {} is not registered: {why}", one.service.name);
            let all = problems.entry(one.pod.clone()).or_default();
            *all = if all.is_empty() { problem } else { format!("{all}; {problem}") };
        }
        let result = ServiceResult { registered, problems };
        if result != self.told {
            self.told = result.clone();
            let _ = self.events.send(AgentEvent::ServicesWritten(result));
        }
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
