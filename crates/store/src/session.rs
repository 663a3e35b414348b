//! Session keeper: opens a session, passes its check, renews it, and ends its epoch in time.
//!
//! Consul releases a dead farm's locks when the farm's own TTL check turns critical (2 s by default). A plain TTL session
//! would take twice its TTL (`consul-semantics.md` §0 #1). The session's TTL is long, because it must outlast a leader
//! election.
//!
//! The local deadline is the earlier of *last acknowledged check + check TTL* and *last acknowledged renewal + session
//! TTL*. Both count from when the request was sent.
//!
//! No keys are read or written, only sessions and checks. A crash leaves the session until its check is critical.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::failpoints::{Failpoint, enabled};
use crate::time::monotonic;
use crate::{Behavior, Epoch, NewSession, Store, StoreError, TtlService};
use rcfarm_api::ids::SessionId;

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
    #[must_use]
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
    store: Arc<dyn Store>,
    member: FarmMember,
    settings: SessionSettings,
    /// Earlier sessions of this process that may still exist. They share the check that the next session passes, so
    /// they and their locks would never expire.
    unclosed: Mutex<Vec<SessionId>>,
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

/// An open session.
pub struct KeptSession {
    epoch: Epoch,
    service: Option<TtlService>,
    deadlines: Arc<Mutex<Deadlines>>,
}

impl KeptSession {
    /// The epoch of the session.
    #[must_use]
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// Id of the check that ends the session. `None`: a plain TTL session.
    #[must_use]
    pub fn check(&self) -> Option<String> {
        self.service.as_ref().map(TtlService::check_id)
    }
}

impl Keeper {
    /// A keeper for `member`.
    pub fn new(store: Arc<dyn Store>, member: FarmMember, settings: SessionSettings) -> Self {
        Keeper { store, member, settings, unclosed: Mutex::default() }
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

    /// Closes earlier sessions, registers the check and creates the session. If the Consul agent refuses the check, a
    /// plain TTL session is used.
    ///
    /// # Errors
    /// Any [`StoreError`] of creating the session, and retryable ones of the steps before.
    pub async fn open(&self) -> Result<KeptSession, StoreError> {
        self.close_earlier().await?;
        let checked_at = monotonic();
        let service = self.register().await?;
        let sent_at = monotonic();
        let session_ttl = self.settings.session_ttl;
        let session = self
            .store
            .create_session(&NewSession {
                name: format!("{} {}", self.member.service, self.member.meta.1),
                ttl: Some(session_ttl),
                // The fence makes a lock-delay unnecessary for safety, and it would delay every take-over.
                lock_delay: Duration::ZERO,
                behavior: self.member.behavior,
                checks: service.iter().map(TtlService::check_id).collect(),
            })
            .await?;
        let deadlines = Deadlines {
            check: service.as_ref().map(|service| checked_at + service.ttl),
            session: sent_at + session_ttl,
        };
        let epoch = Epoch::new(session, deadlines.earlier());
        info!(session = %epoch.session(), check = service.is_some(), "session opened");
        Ok(KeptSession { epoch, service, deadlines: Arc::new(Mutex::new(deadlines)) })
    }

    async fn close_earlier(&self) -> Result<(), StoreError> {
        let next = || self.unclosed().last().cloned();
        while let Some(session) = next() {
            match self.store.destroy_session(&session).await {
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

    async fn register(&self) -> Result<Option<TtlService>, StoreError> {
        let Some(ttl) = self.settings.check_ttl else { return Ok(None) };
        let service = self.service(ttl);
        match self.store.register_service(&service).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                let slow = self.settings.session_ttl * 2;
                let service = self.member.service;
                warn!(%error, "the Consul agent refuses the check: a plain TTL session is used, and a \
                    crash will be noticed after {slow:?} instead of {ttl:?}; \
                    grant `service \"{service}\" {{ policy = \"write\" }}` and use a local agent");
                return Ok(None);
            }
        }
        if !self.store.pass_check(&service.check_id(), "started").await? {
            warn!("the Consul agent lost the check at once: a plain TTL session is used");
            return Ok(None);
        }
        Ok(Some(service))
    }

    /// Passes the check and renews the session until the epoch ends.
    pub async fn keep(&self, kept: &KeptSession) {
        let checks = async {
            match &kept.service {
                Some(service) => self.pass_checks(kept, service).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = kept.epoch.ended() => {}
            () = self.watch_deadline(kept) => {}
            () = checks => {}
            () = self.renew(kept) => {}
        }
        kept.epoch.end();
    }

    async fn watch_deadline(&self, kept: &KeptSession) {
        while kept.epoch.is_live() {
            sleep_until(kept.epoch.good_until()).await;
        }
        warn!(session = %kept.epoch.session(), "the session's deadline passed without an answer from \
            Consul: writes stop until there is a new session");
    }

    /// Passes the check every third of its TTL.
    async fn pass_checks(&self, kept: &KeptSession, service: &TtlService) {
        let every = service.ttl / 3;
        let mut failing = false;
        loop {
            sleep(every).await;
            let sent_at = monotonic();
            let limit = service.ttl.max(Duration::from_millis(500));
            match timeout(limit, self.store.pass_check(&service.check_id(), "alive")).await {
                Ok(Ok(true)) => {
                    failing = false;
                    self.prolong(kept, |deadlines| deadlines.check = Some(sent_at + service.ttl));
                }
                Ok(Ok(false)) => {
                    // The session is most likely gone too: the renewal finds out.
                    warn!("the Consul agent lost the check; registering it again");
                    let _ = self.store.register_service(service).await;
                    if let Ok(false) = self.store.renew_session(kept.epoch.session()).await
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

    async fn renew(&self, kept: &KeptSession) {
        let ttl = self.settings.session_ttl;
        let mut pause = ttl / 3;
        loop {
            sleep(pause).await;
            let sent_at = monotonic();
            match timeout(ttl, self.store.renew_session(kept.epoch.session())).await {
                Ok(Ok(renewed)) if renewed || enabled(Failpoint::DeadSessionKept) => {
                    pause = ttl / 3;
                    self.prolong(kept, |deadlines| deadlines.session = sent_at + ttl);
                }
                Ok(Ok(_)) => {
                    self.gone(kept);
                    return;
                }
                Ok(Err(error)) => {
                    warn!(%error, "the session cannot be renewed");
                    pause = Duration::from_secs(1);
                }
                Err(_) => pause = Duration::from_secs(1),
            }
        }
    }

    fn gone(&self, kept: &KeptSession) {
        warn!(session = %kept.epoch.session(), "session lost: opening a new one");
        kept.epoch.end();
    }

    fn prolong(&self, kept: &KeptSession, change: impl FnOnce(&mut Deadlines)) {
        let mut deadlines = kept.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut deadlines);
        kept.epoch.extend(deadlines.earlier());
    }

    /// Ends the epoch and destroys the session, which releases its locks. Waits at most 3 s for each request. With
    /// `deregister` the service is removed too.
    pub async fn close(&self, kept: &KeptSession, deregister: bool) {
        kept.epoch.end();
        let limit = Duration::from_secs(3);
        let session = kept.epoch.session();
        match timeout(limit, self.store.destroy_session(session)).await {
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
        if let Some(service) = kept.service.as_ref().filter(|_| deregister) {
            let _ = timeout(limit, self.store.deregister_service(&service.id)).await;
        }
    }
}
