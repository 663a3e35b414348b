//! Calls for sessions.

use std::time::Duration;

use consulrs::api;
use consulrs::api::session::common::ServiceCheck;
use consulrs::api::session::requests::{
    CreateSessionRequest, DeleteSessionRequest, RenewSessionRequest,
};

use super::client::{Call, Client, plain};
use super::error::{Refused, RequestContext};
use super::wire::{WireSession, go_duration};
use rcfarm_api::backoff;
use rcfarm_api::ids::SessionId;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Answer, Behavior, NewSession, Query, SessionInfo, StoreError};

/// How long a check may take from the agent, where it is registered, to the catalog, where Consul looks for it.
const CHECK_ARRIVES_WITHIN: Duration = Duration::from_secs(2);
/// First pause between attempts. Pauses grow, because each refused attempt takes an entry in the Raft log.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

impl Client {
    /// Creates a session that ends with its TTL, with one of its checks, or on request, but not with the node's own
    /// gossip check. The servers may not know a newly registered check yet: retries for 2 s.
    pub(super) async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        let asked = RequestContext::new("creating the session", &new.name);
        let endpoint = create_request(new);
        let give_up = monotonic() + CHECK_ARRIVES_WITHIN;
        let mut attempt = 0;
        loop {
            let endpoint = endpoint.clone();
            let created = self
                .through_consulrs(Call::Session, &asked, |c| api::exec_with_result(c, endpoint))
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
    pub(super) async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        let asked = RequestContext::new("renewing the session", id.as_str());
        let endpoint = RenewSessionRequest {
            uuid: plain(id.as_str(), &asked)?,
            ..RenewSessionRequest::default()
        };
        // "raw": the answer is the session, and consulrs cannot decode every session.
        let renewed = self
            .through_consulrs(Call::Heartbeat, &asked, |c| api::exec_with_raw(c, endpoint))
            .await?;
        match renewed {
            Ok(_) => Ok(true),
            Err(refused) if refused.status == 404 => Ok(false),
            Err(refused) => Err(refused.error(&asked)),
        }
    }

    pub(super) async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let asked = RequestContext::new("ending the session", id.as_str());
        let endpoint = DeleteSessionRequest {
            uuid: plain(id.as_str(), &asked)?,
            ..DeleteSessionRequest::default()
        };
        self.through_consulrs(Call::Session, &asked, |c| api::exec_with_empty(c, endpoint))
            .await?
            .map_err(|refused| refused.error(&asked))
    }

    pub(super) async fn session(
        &self,
        id: &SessionId,
    ) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        let asked = RequestContext::new("reading the session", id.as_str());
        let url = self.url(["session", "info", id.as_str()]);
        let answer = self.read::<Vec<WireSession>>(url, Query::PLAIN, &asked).await?;
        let found = answer.value.into_iter().flatten().next();
        Ok(Answer {
            value: found.map(SessionInfo::from),
            index: answer.index,
            filtered: answer.filtered,
        })
    }

    pub(super) async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        let asked = RequestContext::new("listing", "sessions");
        let url = self.url(["session", "list"]);
        let answer = self.read::<Vec<WireSession>>(url, Query::PLAIN, &asked).await?;
        let found = answer.value.into_iter().flatten();
        Ok(Answer {
            value: found.map(SessionInfo::from).collect(),
            index: answer.index,
            filtered: answer.filtered,
        })
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
