//! Session keeper: opens a session, passes its check, renews it, and ends its epoch in time.
//!
//! Consul releases a dead farm's locks when the farm's own TTL check turns critical (2 s by default). A plain TTL session
//! would take twice its TTL (`consul-semantics.md` §0 #1). The session's TTL is long, because it must outlast a leader
//! election.
//!
//! The local deadline is the earlier of *last acknowledged check + check TTL* and *last acknowledged renewal + session
//! TTL*. Both count from when the request was sent.
//!
//! Where the check cannot be used, because the token lacks rights or because the agent cannot sync it to the servers, a
//! plain TTL session is used. The keeper tries the check again later, and ends the plain session when it works.
//!
//! A keeper runs on a thread of its own ([`KeeperRuntime`]), so that no work of the daemon delays a heartbeat.
//!
//! No keys are read or written, only sessions and checks. A crash leaves the session until its check is critical.

mod heartbeats;
mod runtime;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, debug, error, error_span, info, warn};
use uuid::Uuid;

pub use heartbeats::Heartbeats;
use runtime::HangWatch;
pub use runtime::KeeperRuntime;

use crate::failpoints::{Failpoint, enabled};
use crate::time::{IdSource, monotonic};
use crate::{Behavior, Env, Epoch, NewSession, Store, StoreError, TtlService};
use rcfarm_api::backoff;
use rcfarm_api::ids::SessionId;

/// Longest wait for an answer when a session or a service is removed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// A session with the check may be refused this often in a row before a plain TTL session is used. One refusal may be
/// an agent that is slow to sync.
const CHECK_ATTEMPTS: u32 = 3;
/// A keeper of a plain TTL session tries the check after this long, then after ever longer pauses.
const FIRST_RETRY: Duration = Duration::from_secs(60);
const LONGEST_RETRY: Duration = Duration::from_secs(1_800);

/// TTLs of a daemon's check and session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSettings {
    /// TTL of the daemon's own check; `None`: a plain TTL session.
    pub check_ttl: Option<Duration>,
    /// TTL of the session, 10 s to 24 h.
    pub session_ttl: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        SessionSettings {
            check_ttl: Some(Duration::from_secs(2)),
            session_ttl: Duration::from_secs(30),
        }
    }
}

/// Consul service that all farms register.
pub const SERVICE: &str = "rcfarm-farm";

/// The process that keeps a session: a farm or a node agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarmMember {
    /// Service name, shared by all farms or all node agents.
    pub service: &'static str,
    /// Service id, unique on the Consul agent. A second farm of the same name must not pass the first one's check.
    pub service_id: String,
    /// Role (`farm` or `node`) and name, for the catalog and the session's name.
    pub meta: (&'static str, String),
    /// What happens to the locked keys when the session ends.
    pub behavior: Behavior,
}

impl FarmMember {
    /// A farm. `process` distinguishes two processes of one name.
    pub fn farm(name: &rcfarm_api::ids::FarmName, process: &Uuid) -> FarmMember {
        let process = process.simple().to_string();
        FarmMember {
            service: SERVICE,
            service_id: format!("{SERVICE}-{name}-{}", &process[..8]),
            meta: ("farm", name.to_string()),
            behavior: match enabled(Failpoint::LockOutlivesSession) {
                true => Behavior::Release,
                false => Behavior::Delete,
            },
        }
    }
}

/// Opens, keeps and closes sessions, one after the other.
pub struct Keeper {
    runtime: KeeperRuntime,
    ids: Arc<IdSource>,
    member: FarmMember,
    settings: SessionSettings,
    /// Earlier sessions of this process that may still exist. They share the check that the next session passes, so
    /// they and their locks would never expire.
    unclosed: Mutex<Vec<SessionId>>,
    /// Sessions with the check that were refused since the last one that was created.
    refused: AtomicU32,
    /// Attempts to return to the check that failed in a row.
    retries: AtomicU32,
}

/// When check and session expire, seen from this process.
struct Deadlines {
    check: Option<Instant>,
    session: Instant,
}

impl Deadlines {
    fn earlier(&self) -> Instant {
        if enabled(Failpoint::NoDeadline) {
            return self.session + Duration::from_secs(3600);
        }
        self.check.map_or(self.session, |check| check.min(self.session))
    }
}

/// An open session, kept until it is lost, closed or dropped.
pub struct KeptSession {
    state: Arc<OpenSession>,
    /// Keeps the session.
    _keeping: AbortOnDropHandle<()>,
    /// Shows the keeper that the daemon's runtime runs tasks.
    _ticking: Option<AbortOnDropHandle<()>>,
}

struct OpenSession {
    epoch: Epoch,
    check: CheckState,
    deadlines: Mutex<Deadlines>,
    /// The keeper ended the epoch, because the next session can have the check.
    is_outdated: AtomicBool,
}

/// The check of a session.
enum CheckState {
    /// The session ends with it.
    Attached(TtlService),
    /// The settings want none.
    Unwanted,
    /// It cannot be used.
    Unusable(CheckRefusal),
}

/// Why a check cannot be used, and what to do about it; for people.
#[derive(Debug, PartialEq, Eq)]
struct CheckRefusal {
    why: String,
    fix: String,
}

impl CheckRefusal {
    /// By the answer to the registration of the service, or of a session with its check.
    fn of(error: &StoreError, service: &str) -> CheckRefusal {
        let fix = match error {
            StoreError::Forbidden { .. } => format!("grant service \"{service}\" write to the token"),
            StoreError::Rejected { body, .. } if body.contains("Missing check") => {
                "see the Consul agent's log for why it cannot sync with the servers; if its node name is reserved by an \
                 older node, deregister that one, or give the agent its node id"
                    .to_owned()
            }
            _ => "see the Consul agent's log".to_owned(),
        };
        CheckRefusal { why: error.to_string(), fix }
    }

    /// The check was registered at one agent and passed at another, or the agent has restarted.
    fn lost() -> CheckRefusal {
        CheckRefusal {
            why: "the Consul agent lost the check at once".to_owned(),
            fix: "give the address of one agent, the one on this machine".to_owned(),
        }
    }
}

impl CheckState {
    fn service(&self) -> Option<&TtlService> {
        match self {
            CheckState::Attached(service) => Some(service),
            CheckState::Unwanted | CheckState::Unusable(_) => None,
        }
    }
}

impl KeptSession {
    /// The epoch of the session. It ends when the session is lost.
    pub fn epoch(&self) -> &Epoch {
        &self.state.epoch
    }

    /// Id of the check that ends the session. `None`: a plain TTL session.
    pub fn check(&self) -> Option<String> {
        self.state.check.service().map(TtlService::check_id)
    }

    /// Why the session has no check although the settings want one.
    pub fn check_problem(&self) -> Option<&str> {
        match &self.state.check {
            CheckState::Unusable(refusal) => Some(&refusal.why),
            CheckState::Attached(_) | CheckState::Unwanted => None,
        }
    }

    /// What to do about [`KeptSession::check_problem`].
    pub fn check_fix(&self) -> Option<&str> {
        match &self.state.check {
            CheckState::Unusable(refusal) => Some(&refusal.fix),
            CheckState::Attached(_) | CheckState::Unwanted => None,
        }
    }

    /// Whether the keeper ended the epoch to return to the check. The session was then not lost.
    pub fn is_outdated(&self) -> bool {
        self.state.is_outdated.load(Ordering::SeqCst)
    }
}

impl Keeper {
    /// A keeper for `member`, on the keeper runtime of `env`.
    pub fn new(env: &Env, member: FarmMember, settings: SessionSettings) -> Arc<Keeper> {
        Arc::new(Keeper {
            runtime: env.keeper.clone(),
            ids: env.ids.clone(),
            member,
            settings,
            unclosed: Mutex::default(),
            refused: AtomicU32::new(0),
            retries: AtomicU32::new(0),
        })
    }

    fn store(&self) -> &dyn Store {
        self.runtime.store()
    }

    fn service(&self, ttl: Duration) -> TtlService {
        let (kind, name) = &self.member.meta;
        TtlService {
            name: self.member.service.to_owned(),
            id: self.member.service_id.clone(),
            meta: BTreeMap::from([
                ((*kind).to_owned(), name.clone()),
                ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ]),
            ttl,
            deregister_after: Duration::from_secs(120),
        }
    }

    /// Closes earlier sessions, registers the check, creates the session, and keeps it from then on.
    ///
    /// # Errors
    /// Any [`StoreError`] of creating the session, and retryable ones of the steps before.
    pub async fn open(self: &Arc<Self>) -> Result<KeptSession, StoreError> {
        let keeper = self.clone();
        let state = self.runtime.run(Box::pin(async move { keeper.create().await })).await?;
        let state = Arc::new(state);
        let span = error_span!("session", id = %state.epoch.session());
        let (keeper, kept) = (self.clone(), state.clone());
        let HangWatch { ticking, hung } = self.runtime.watch_caller();
        let keep = async move { keeper.keep(&kept, hung).await }.instrument(span);
        Ok(KeptSession { state, _keeping: self.runtime.spawn(Box::pin(keep)), _ticking: ticking })
    }

    async fn create(&self) -> Result<OpenSession, StoreError> {
        self.close_earlier().await?;
        let checked_at = monotonic();
        let mut check = self.register().await?;
        let mut sent_at = monotonic();
        let mut created = self.create_session(check.service()).await;
        if let (Some(service), Err(error)) = (check.service(), &created)
            && !error.is_retryable()
            && self.refused.fetch_add(1, Ordering::SeqCst) + 1 >= CHECK_ATTEMPTS
        {
            let refusal = CheckRefusal::of(error, self.member.service);
            self.deregister(service).await;
            sent_at = monotonic();
            created = self.create_session(None).await;
            check = CheckState::Unusable(refusal);
        }
        let session = created?;
        let deadlines = Deadlines {
            check: check.service().map(|service| checked_at + service.ttl),
            session: sent_at + self.settings.session_ttl,
        };
        match &check {
            CheckState::Attached(_) => {
                self.refused.store(0, Ordering::SeqCst);
                self.retries.store(0, Ordering::SeqCst);
            }
            CheckState::Unwanted => {}
            CheckState::Unusable(refusal) => self.warn_of_slow_failover(refusal),
        }
        let epoch = Epoch::new(session, deadlines.earlier());
        info!(session = %epoch.session(), check = check.service().is_some(), "session opened");
        let is_outdated = AtomicBool::new(false);
        Ok(OpenSession { epoch, check, deadlines: Mutex::new(deadlines), is_outdated })
    }

    async fn create_session(&self, service: Option<&TtlService>) -> Result<SessionId, StoreError> {
        let new = NewSession {
            name: format!("{} {}", self.member.service, self.member.meta.1),
            ttl: Some(self.settings.session_ttl),
            // The fence makes a lock-delay unnecessary for safety, and it would delay every take-over.
            lock_delay: Duration::ZERO,
            behavior: self.member.behavior,
            checks: service.map(TtlService::check_id).into_iter().collect(),
        };
        self.store().create_session(&new).await
    }

    fn warn_of_slow_failover(&self, CheckRefusal { why, fix }: &CheckRefusal) {
        let crash_noticed_after = self.settings.session_ttl * 2;
        warn!(
            alert = true,
            why,
            ?crash_noticed_after,
            fix,
            "the Consul agent refuses the check: a plain TTL session is used"
        );
    }

    async fn close_earlier(&self) -> Result<(), StoreError> {
        let next = || self.unclosed().last().cloned();
        while let Some(session) = next() {
            match self.store().destroy_session(&session).await {
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => warn!(%session, %error, "an earlier session cannot be closed"),
                Ok(()) => info!(%session, "earlier session closed, claims released"),
            }
            self.unclosed().pop();
        }
        Ok(())
    }

    fn unclosed(&self) -> std::sync::MutexGuard<'_, Vec<SessionId>> {
        self.unclosed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the service and passes its check.
    async fn register(&self) -> Result<CheckState, StoreError> {
        let Some(ttl) = self.settings.check_ttl else { return Ok(CheckState::Unwanted) };
        let service = self.service(ttl);
        match self.store().register_service(&service).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                return Ok(CheckState::Unusable(CheckRefusal::of(&error, self.member.service)));
            }
        }
        Ok(match self.store().pass_check(&service.check_id(), "started").await? {
            true => CheckState::Attached(service),
            false => CheckState::Unusable(CheckRefusal::lost()),
        })
    }

    async fn deregister(&self, service: &TtlService) {
        let _ = timeout(CLOSE_TIMEOUT, self.store().deregister_service(&service.id)).await;
    }

    /// Passes the check and renews the session until the epoch ends, or until the daemon is `hung`. The session then
    /// expires by its TTL.
    async fn keep(&self, kept: &OpenSession, hung: BoxFuture<'static, ()>) {
        let checks = async {
            match &kept.check {
                CheckState::Attached(service) => self.pass_checks(kept, service).await,
                CheckState::Unwanted => std::future::pending().await,
                CheckState::Unusable(_) => self.return_to_check(kept).await,
            }
        };
        tokio::select! {
            biased;
            () = kept.epoch.ended() => {}
            () = self.watch_deadline(kept) => {}
            () = checks => {}
            () = self.renew(kept) => {}
            () = hung => error!(alert = true, "the process hangs: its session ends"),
        }
        kept.epoch.end();
    }

    /// Tries the check now and then. Resolves when a session can have it.
    async fn return_to_check(&self, kept: &OpenSession) {
        loop {
            let failed = self.retries.load(Ordering::SeqCst);
            sleep(self.ids.jitter(backoff(FIRST_RETRY, LONGEST_RETRY, failed), 0.2)).await;
            self.retries.fetch_add(1, Ordering::SeqCst);
            match self.try_check().await {
                Ok(true) => {
                    info!("the check can be used again: opening a session that has it");
                    kept.is_outdated.store(true, Ordering::SeqCst);
                    return;
                }
                Ok(false) => {}
                Err(error) => debug!(%error, "the check cannot be used yet"),
            }
        }
    }

    /// Whether a session can have the check: creates one, which ends at once.
    async fn try_check(&self) -> Result<bool, StoreError> {
        let CheckState::Attached(service) = self.register().await? else { return Ok(false) };
        match self.create_session(Some(&service)).await {
            Ok(session) => {
                self.store().destroy_session(&session).await?;
                Ok(true)
            }
            Err(error) => {
                self.deregister(&service).await;
                Err(error)
            }
        }
    }

    async fn watch_deadline(&self, kept: &OpenSession) {
        while kept.epoch.is_live() {
            sleep_until(kept.epoch.good_until()).await;
        }
        warn!(session = %kept.epoch.session(), "the session's deadline passed without an answer from \
            Consul: writes stop until there is a new session");
    }

    /// Passes the check every third of its TTL.
    async fn pass_checks(&self, kept: &OpenSession, service: &TtlService) {
        let every = service.ttl / 3;
        let mut failing = false;
        loop {
            let due_at = monotonic() + every;
            sleep_until(due_at).await;
            let sent_at = monotonic();
            let limit = service.ttl.max(Duration::from_millis(500));
            match timeout(limit, self.store().pass_check(&service.check_id(), "alive")).await {
                Ok(Ok(true)) => {
                    failing = false;
                    self.runtime.heartbeats().answered(monotonic() - due_at);
                    self.prolong(kept, |deadlines| deadlines.check = Some(sent_at + service.ttl));
                }
                Ok(Ok(false)) => {
                    // The session is most likely gone too: the renewal finds out.
                    warn!("the Consul agent lost the check; registering it again");
                    let _ = self.store().register_service(service).await;
                    if let Ok(false) = self.store().renew_session(kept.epoch.session()).await
                        && !enabled(Failpoint::DeadSessionKept)
                    {
                        self.gone(kept);
                        return;
                    }
                }
                Ok(Err(error)) if !failing => {
                    failing = true;
                    warn!(%error, "the check cannot be passed");
                }
                Ok(Err(error)) => debug!(%error, "the check cannot be passed"),
                Err(_) => debug!("no answer to a check in time"),
            }
        }
    }

    async fn renew(&self, kept: &OpenSession) {
        let ttl = self.settings.session_ttl;
        let (mut pause, mut failing) = (ttl / 3, false);
        loop {
            sleep(pause).await;
            let sent_at = monotonic();
            match timeout(ttl, self.store().renew_session(kept.epoch.session())).await {
                Ok(Ok(renewed)) if renewed || enabled(Failpoint::DeadSessionKept) => {
                    (pause, failing) = (ttl / 3, false);
                    self.prolong(kept, |deadlines| deadlines.session = sent_at + ttl);
                }
                Ok(Ok(_)) => {
                    self.gone(kept);
                    return;
                }
                Ok(Err(error)) => {
                    if !failing {
                        warn!(%error, "the session cannot be renewed");
                    }
                    (pause, failing) = (Duration::from_secs(1), true);
                }
                Err(_) => pause = Duration::from_secs(1),
            }
        }
    }

    /// Renews a second session of the daemon every third of its TTL. Resolves when it is gone.
    pub async fn renew_until_gone(self: &Arc<Self>, session: &SessionId) {
        let (keeper, session) = (self.clone(), session.clone());
        let renew = async move {
            loop {
                sleep(keeper.settings.session_ttl / 3).await;
                match keeper.store().renew_session(&session).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => debug!(%session, %error, "the session cannot be renewed"),
                }
            }
        };
        self.runtime.run(Box::pin(renew)).await;
    }

    fn gone(&self, kept: &OpenSession) {
        warn!(session = %kept.epoch.session(), "session lost: opening a new one");
        kept.epoch.end();
    }

    fn prolong(&self, kept: &OpenSession, change: impl FnOnce(&mut Deadlines)) {
        let mut deadlines = kept.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut deadlines);
        kept.epoch.extend(deadlines.earlier());
    }

    /// Ends the epoch and destroys the session, which releases its locks. Waits at most 3 s for each request. With
    /// `deregister` the service is removed too.
    pub async fn close(self: &Arc<Self>, kept: KeptSession, deregister: bool) {
        kept.state.epoch.end();
        let (keeper, state) = (self.clone(), kept.state.clone());
        let close = async move { keeper.destroy(&state, deregister).await };
        self.runtime.run(Box::pin(close)).await;
    }

    async fn destroy(&self, kept: &OpenSession, deregister: bool) {
        let session = kept.epoch.session();
        match timeout(CLOSE_TIMEOUT, self.store().destroy_session(session)).await {
            Ok(Ok(())) => info!(%session, "session closed, claims released"),
            Ok(Err(error)) => {
                warn!(%session, %error, "the session cannot be closed");
                self.unclosed().push(session.clone());
            }
            Err(_) => {
                warn!(%session, "no answer to closing the session");
                self.unclosed().push(session.clone());
            }
        }
        if let Some(service) = kept.check.service().filter(|_| deregister) {
            self.deregister(service).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_about_a_refused_check_follows_its_cause() {
        let rejected = |body: &str| StoreError::Rejected { status: 500, body: body.to_owned() };
        let forbidden = StoreError::Forbidden { what: "PUT /v1/agent/service/register".to_owned() };
        for (error, fix, not) in [
            (forbidden, "grant service \"rcfarm-node\" write", "sync"),
            (rejected("Missing check 'service:a' registration"), "cannot sync", "grant"),
            (rejected("Invalid TTL"), "the Consul agent's log", "grant"),
        ] {
            let refusal = CheckRefusal::of(&error, "rcfarm-node");
            assert_eq!(refusal.why, error.to_string());
            assert!(refusal.fix.contains(fix) && !refusal.fix.contains(not), "{refusal:?}");
        }
    }
}
