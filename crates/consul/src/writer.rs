//! [`Store`] of a real Consul: writes of keys, transactions, sessions, and the service with its check.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use consulrs::api;
use consulrs::api::check::common::AgentServiceCheck;
use consulrs::api::check::requests::TtlCheckUpdateRequest;
use consulrs::api::kv::requests::{DeleteKeyRequest, SetKeyRequest};
use consulrs::api::service::requests::{DeregisterServiceRequest, RegisterServiceRequest};
use consulrs::api::session::common::ServiceCheck;
use consulrs::api::session::requests::{
    CreateSessionRequest, DeleteSessionRequest, RenewSessionRequest,
};
use tracing::{debug, info};

use super::client::{Call, Consul, plain};
use super::error::{Refused, RequestContext};
use super::txn::{outcome, subject};
use super::wire::go_duration;
use rcfarm_api::backoff;
use rcfarm_api::ids::SessionId;
use rcfarm_api::node::Health;
use rcfarm_store::time::monotonic;
use rcfarm_store::{
    Behavior, DeleteMode, Key, NewSession, Op, PodService, Prefix, PutMode, RegisteredService,
    Store, StoreError, TtlService, TxnOutcome,
};

/// Limit of one attempt to register a service with a new token. The heartbeat before it counts only when it ends.
const AGAIN_WITHIN: Duration = Duration::from_millis(500);
const PASSING: &str = "passing";
/// How long a check may take from the agent, where it is registered, to the catalog, where Consul looks for it.
const CHECK_ARRIVES_WITHIN: Duration = Duration::from_secs(2);
/// First pause between attempts. Pauses grow, because each refused attempt takes an entry in the Raft log.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

#[async_trait]
impl Store for Consul {
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        let mut asked = RequestContext::new("writing", key.as_str());
        if let PutMode::Acquire(session) = &mode {
            asked.session = Some(session);
        }
        let endpoint = || {
            let mut endpoint = SetKeyRequest {
                key: format!("{key}"),
                value: value.to_vec(),
                dc: self.datacenter.clone(),
                flags: Some(flags),
                ..SetKeyRequest::default()
            };
            match &mode {
                PutMode::Set => {}
                PutMode::Cas(index) => endpoint.cas = Some(index.0),
                PutMode::Acquire(session) => endpoint.acquire = Some(session.to_string()),
                PutMode::Release(session) => endpoint.release = Some(session.to_string()),
            }
            endpoint
        };
        self.through_consulrs(Call::Write, &asked, |c| api::exec_with_result(c, endpoint()))
            .await?
            .map_err(|refused| refused.error(&asked))
    }

    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        let cas = match mode {
            DeleteMode::Always => None,
            DeleteMode::Cas(index) => Some(index.0),
        };
        self.delete_with(RequestContext::new("deleting", key.as_str()), cas, None).await
    }

    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        let asked = RequestContext::new("deleting the tree", prefix.as_str());
        self.delete_with(asked, None, Some(true)).await.map(|_| ())
    }

    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError> {
        let asked = RequestContext::new("committing", subject(ops));
        let request = self.txn_request(self.url(["txn"]), ops, &asked)?;
        outcome(&self.send(Call::Transaction, request, Duration::ZERO).await?, ops, &asked)
    }

    // Asks `may_send` when the request has its permit, and again before it is repeated with a new token. A request that
    // was refused for its token has changed nothing.
    async fn txn_if(
        &self,
        ops: &[Op],
        may_send: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Option<TxnOutcome>, StoreError> {
        let asked = RequestContext::new("committing", subject(ops));
        let request = self.txn_request(self.url(["txn"]), ops, &asked)?;
        let _permit = self.permit(Call::Transaction).await;
        if !may_send() {
            return Ok(None);
        }
        let reply = self.exchange(Call::Transaction, request, Duration::ZERO, may_send).await?;
        if reply.is_denied() && !may_send() {
            return Ok(None);
        }
        outcome(&reply, ops, &asked).map(Some)
    }

    // Creates a session that ends with its TTL, with one of its checks, or on request, but not with the node's own
    // gossip check. The servers may not know a newly registered check yet: retries for 2 s.
    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        let asked = RequestContext::new("creating the session", &new.name);
        let endpoint = create_request(new);
        let give_up = monotonic() + CHECK_ARRIVES_WITHIN;
        let mut attempt = 0;
        loop {
            let created = self
                .through_consulrs(Call::Session, &asked, |c| {
                    api::exec_with_result(c, endpoint.clone())
                })
                .await?;
            match created {
                Ok(created) => return Ok(SessionId::from(created.id.as_str())),
                Err(refused) if awaits_check(&refused) && monotonic() < give_up => {
                    tokio::time::sleep(backoff(FIRST_PAUSE, LONGEST_PAUSE, attempt)).await;
                    attempt += 1;
                }
                Err(refused) => return Err(refused.error(&asked)),
            }
        }
    }

    // No datacenter: a session belongs to that of the agent, and consulrs would send `Dc`, which Consul ignores.
    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        let asked = RequestContext::new("renewing the session", id.as_str());
        let endpoint = RenewSessionRequest {
            uuid: plain(id.as_str(), &asked)?,
            ..RenewSessionRequest::default()
        };
        // "raw": the answer is the session, and consulrs cannot decode every session.
        let renewed = self
            .through_consulrs(Call::Heartbeat, &asked, |c| api::exec_with_raw(c, endpoint.clone()))
            .await?;
        match renewed {
            Ok(_) => Ok(true),
            Err(refused) if refused.status == 404 => Ok(false),
            Err(refused) => Err(refused.error(&asked)),
        }
    }

    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let asked = RequestContext::new("ending the session", id.as_str());
        let endpoint = DeleteSessionRequest {
            uuid: plain(id.as_str(), &asked)?,
            ..DeleteSessionRequest::default()
        };
        self.through_consulrs(Call::Session, &asked, |c| api::exec_with_empty(c, endpoint.clone()))
            .await?
            .map_err(|refused| refused.error(&asked))
    }

    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        let asked = RequestContext::new("registering the service", &service.id);
        let check = AgentServiceCheck {
            ttl: Some(go_duration(service.ttl)),
            // The default is critical, and Consul refuses a session with a critical check.
            status: Some(PASSING.to_owned()),
            deregister_critical_service_after: Some(go_duration(service.deregister_after)),
            ..AgentServiceCheck::default()
        };
        let endpoint = RegisterServiceRequest {
            name: Some(service.name.clone()),
            id: Some(plain(&service.id, &asked)?),
            meta: Some(service.meta.clone().into_iter().collect()),
            check: Some(check),
            ..RegisterServiceRequest::default()
        };
        self.through_consulrs(Call::Agent, &asked, |c| api::exec_with_empty(c, endpoint.clone()))
            .await?
            .map_err(|refused| refused.error(&asked))?;
        self.registered.insert(service, self.token.current());
        // A check that exists keeps its state, even a critical one.
        self.pass_check(&service.check_id(), "").await.map(|_| ())
    }

    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        let asked = RequestContext::new("passing the check", check);
        let id = plain(check, &asked)?;
        let endpoint = || TtlCheckUpdateRequest {
            check: id.clone(),
            status: Some(PASSING.to_owned()),
            output: Some(note.to_owned()),
            ..TtlCheckUpdateRequest::default()
        };
        let passed = self
            .through_consulrs(Call::Heartbeat, &asked, |c| api::exec_with_empty(c, endpoint()))
            .await?;
        match passed {
            Ok(()) => {
                if let Some(service) = self.registered.outdated(check, self.token.current()) {
                    self.register_again(&service).await;
                }
                Ok(true)
            }
            Err(refused) if is_unknown(&refused) => Ok(false),
            Err(refused) => Err(refused.error(&asked)),
        }
    }

    async fn pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError> {
        self.read_pod_services(id_prefix).await
    }

    async fn register_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError> {
        self.put_pod_service(service, node_service, health).await
    }

    async fn update_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError> {
        self.set_check(check, health, note).await
    }

    async fn may_register(&self, service: &str) -> Result<bool, StoreError> {
        self.try_register(service).await
    }

    async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        let asked = RequestContext::new("deregistering the service", id);
        self.registered.remove(id);
        let segment = plain(id, &asked)?;
        let endpoint = || DeregisterServiceRequest {
            id: segment.clone(),
            ..DeregisterServiceRequest::default()
        };
        let removed = self
            .through_consulrs(Call::Agent, &asked, |c| api::exec_with_empty(c, endpoint()))
            .await?;
        match removed {
            Err(refused) if !is_unknown(&refused) => Err(refused.error(&asked)),
            _ => Ok(()),
        }
    }
}

impl Consul {
    /// Registers a service again after the token has changed. If that fails, the next heartbeat tries again: this one
    /// has been answered.
    async fn register_again(&self, service: &TtlService) {
        let registered = tokio::time::timeout(AGAIN_WITHIN, self.register_service(service)).await;
        match registered {
            Ok(Ok(())) => {
                info!(service = service.id, "the service is registered with the new token")
            }
            Ok(Err(error)) => {
                debug!(%error, service = service.id, "the service cannot be registered again yet");
            }
            Err(_) => debug!(service = service.id, "no answer to registering the service again"),
        }
    }

    /// `recurse` is `Some(true)` or absent: Consul ignores its value.
    async fn delete_with(
        &self,
        asked: RequestContext<'_>,
        cas: Option<u64>,
        recurse: Option<bool>,
    ) -> Result<bool, StoreError> {
        let endpoint = || DeleteKeyRequest {
            key: asked.about.to_owned(),
            cas,
            dc: self.datacenter.clone(),
            recurse,
            ..DeleteKeyRequest::default()
        };
        self.through_consulrs(Call::Write, &asked, |c| api::exec_with_result(c, endpoint()))
            .await?
            .map_err(|refused| refused.error(&asked))
    }
}

fn create_request(new: &NewSession) -> CreateSessionRequest {
    let check = |id: &String| ServiceCheck { id: Some(id.clone()), namespace: None };
    CreateSessionRequest {
        behavior: Some(
            match new.behavior {
                Behavior::Release => "release",
                Behavior::Delete => "delete",
            }
            .to_owned(),
        ),
        // Always sent. The default delay is 15 s, and by default the node's gossip check is attached.
        lock_delay: Some(go_duration(new.lock_delay)),
        node_checks: Some(Vec::new()),
        name: Some(new.name.clone()),
        service_checks: Some(new.checks.iter().map(check).collect()),
        ttl: new.ttl.map(go_duration),
        ..CreateSessionRequest::default()
    }
}

/// Whether Consul refused the session because its check is unknown to the servers or still critical there.
fn awaits_check(refused: &Refused) -> bool {
    refused.says("Missing check") || refused.says("is in critical state")
}

/// Whether the agent does not know the check or service: 500 in Consul 1.8, 404 since.
fn is_unknown(refused: &Refused) -> bool {
    refused.status == 404
        || (refused.status == 500
            && ["does not have associated TTL", "Unknown check", "Unknown service"]
                .iter()
                .any(|text| refused.says(text)))
}
